//! The ways to the planes of projects, which one host serves.
//!
//! A project whose plane does not answer is left alone by itself: the instances of others must not wait for it. Only when
//! the host itself is away is everybody held back. It is away when there is no connection to it, or when [`MANY`] projects
//! in a row were silent and nobody answered in between: asked one by one, a thousand silent planes would hold every
//! worker of the cell.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use polis_engine::Error as EngineError;

use crate::link::{Link, Trouble};

/// So many silent projects, with no answer from any in between, are a silent host.
const MANY: usize = 4;

/// Remembers who answers.
#[derive(Debug, Default)]
pub(crate) struct Links {
    host: Link,
    troubled: Mutex<Troubled>,
}

#[derive(Debug, Default)]
struct Troubled {
    /// The projects that did not answer when they were last asked. One that answers leaves.
    links: BTreeMap<String, Arc<Link>>,
    /// Those that were silent since anybody answered.
    silent: BTreeSet<String>,
}

impl Links {
    /// Asks the plane of a project, if it and its host are believed to answer or it is time to try.
    pub(crate) async fn ask<T>(
        &self,
        project: &str,
        question: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, Trouble> {
        let link = self.troubled.lock().links.get(project).cloned();
        if let Some(again) = link.as_ref().and_then(|link| link.is_away()) {
            return Err(Trouble::away(again));
        }
        if let Some(again) = self.host.rest() {
            return Err(Trouble::away(again));
        }
        let link = link.unwrap_or_default();
        let answer = link.ask(question).await;
        match &answer {
            Ok(_) | Err(Trouble::Failed(_)) => self.heard_of(project),
            Err(Trouble::Away { why: Some(_), connected, .. }) => self.silent(project, link, *connected),
            Err(Trouble::Away { why: None, .. }) => {} // somebody else is just trying
        }
        answer
    }

    /// The project answered, and so does its host.
    fn heard_of(&self, project: &str) {
        let mut troubled = self.troubled.lock();
        troubled.links.remove(project);
        troubled.silent.clear();
        self.host.found();
    }

    fn silent(&self, project: &str, link: Arc<Link>, connected: bool) {
        let mut troubled = self.troubled.lock();
        troubled.links.insert(project.to_owned(), link);
        troubled.silent.insert(project.to_owned());
        if !connected || troubled.silent.len() >= MANY {
            self.host.lose();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use polis_engine::transport::TransportError;

    use super::*;

    async fn silence() -> Result<(), EngineError> {
        std::future::pending().await
    }

    async fn answer() -> Result<(), EngineError> {
        Ok(())
    }

    async fn no_connection() -> Result<(), EngineError> {
        let source = TransportError::Connect { host: "platform".into(), why: "refused".into() };
        Err(EngineError::Unreachable { plane: "acme".into(), action: "get".into(), source })
    }

    /// Whether the project is asked right away, and answers.
    fn answers(links: &Links, project: &str) -> bool {
        links.ask(project, answer()).now_or_never().unwrap().is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_project_is_left_alone_and_the_others_are_asked() {
        let links = Links::default();
        for _ in 0..MANY * 2 {
            _ = links.ask("mute", silence()).await;
            assert!(!answers(&links, "mute"));
            assert!(answers(&links, "acme"));
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        assert!(answers(&links, "mute"));
        assert!(links.troubled.lock().links.is_empty(), "who answers is not remembered");
    }

    #[tokio::test(start_paused = true)]
    async fn many_silent_projects_in_a_row_are_a_silent_host() {
        let links = Links::default();
        for number in 0..MANY {
            assert!(number == 0 || links.host.is_away().is_none());
            _ = links.ask(&format!("p{number}"), silence()).await;
        }
        assert!(!answers(&links, "acme"));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(answers(&links, "acme"), "it is tried again");
        assert!(answers(&links, "shop"), "and back for all with the first answer");
    }

    #[tokio::test(start_paused = true)]
    async fn no_connection_is_no_connection_for_anybody() {
        let links = Links::default();
        _ = links.ask("acme", no_connection()).await;
        assert!(!answers(&links, "shop"));
    }
}
