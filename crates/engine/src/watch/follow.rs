//! The loop that follows one kind on one plane.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::SemaphorePermit;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::lines::Lines;
use super::{Gate, Observer, Watch};
use crate::backoff::Backoff;
use crate::cache::{Seen, Trouble, intake};
use crate::live::{Page, page};
use crate::metrics::EXPIRED;
use crate::transport::{BoxError, TransportError};
use crate::{Error, Plane};

/// A watch asks to be ended after this time, plus up to as much again by chance: loops that start together do not come back
/// together. What kube-apiserver does for a client that asks for nothing; liveness is the business of PING and bookmarks.
const ROUND: Duration = Duration::from_secs(30 * 60);
/// A server that does not end a watch this long after it should have is not to be trusted.
const OVERTIME: Duration = Duration::from_secs(60);
/// While listing, data must keep coming.
const NEXT_WITHIN: Duration = Duration::from_secs(30);
/// A watch that ends sooner than this without a word counts as a failure; otherwise a server that closes at once would be
/// asked in a tight loop.
const WORTHWHILE: Duration = Duration::from_secs(1);
/// A stream that lasted this long wipes out earlier failures.
const GOOD_ROUND: Duration = Duration::from_secs(30);
/// Time for the answer to "which kinds do you serve?", which is short. A plane that does not give it holds up only itself.
const DISCOVERED_WITHIN: Duration = Duration::from_secs(10);
/// Waiting times after failures.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(500), cap: Duration::from_secs(60) };

/// How one round of following ended.
enum Ended {
    /// As it should: resume.
    Quietly,
    /// The server has forgotten where we were: list again.
    Expired,
    /// The kind was not served, and there is reason to ask again.
    Absent,
    Failed(Box<Error>),
}

/// One loop: a kind on a plane.
pub(crate) struct Follow {
    pub(crate) plane: Plane,
    pub(crate) seen: Arc<Seen>,
    pub(crate) watch: usize,
    pub(crate) observer: Arc<dyn Observer>,
    pub(crate) gate: Arc<Gate>,
}

/// Where a loop stands.
#[derive(Default)]
struct Progress {
    /// The last resource version seen; none before the first complete list.
    version: Option<String>,
    /// What a list that is under way has brought so far.
    listed: Option<BTreeSet<Arc<str>>>,
    failures: u32,
    /// Since when the loop is at rest on an open stream; none if it never came to that in this round.
    listening: Option<Instant>,
}

impl Follow {
    /// Runs for as long as it is polled.
    ///
    /// This future exists for every kind of every project, idle almost always. So what is seldom done is boxed, and gone when it
    /// is over; what remains is [`Listen`].
    pub(crate) async fn run(self) {
        let mut progress = Progress::default();
        loop {
            let ended = match Box::pin(self.begin(&mut progress)).await {
                Ok((lines, until)) => Listen { follow: &self, progress: &mut progress, lines, until }.await,
                Err(ended) => ended,
            };
            Box::pin(self.pause(&mut progress, ended)).await;
        }
    }

    /// Begins a round. Whoever has to list waits for a place first, with little in hand: thousands stand in that line.
    async fn begin(&self, progress: &mut Progress) -> Result<(Lines, Pin<Box<Sleep>>), Ended> {
        progress.listening = None;
        let mut permit = None;
        if progress.version.is_none() {
            permit = self.enter(progress).await;
            match Box::pin(self.is_served()).await {
                Ok(true) => {}
                Ok(false) => {
                    drop(permit);
                    Box::pin(self.await_news()).await;
                    return Err(Ended::Absent);
                }
                Err(error) => return Err(Ended::Failed(Box::new(error))),
            }
        }
        Box::pin(self.open(progress, permit)).await
    }

    /// What follows from the end of a round.
    async fn pause(&self, progress: &mut Progress, ended: Ended) {
        let lasted = progress.listening.map_or(Duration::ZERO, |since| since.elapsed());
        progress.listed = None;
        if lasted >= GOOD_ROUND {
            progress.failures = 0;
        }
        match ended {
            Ended::Quietly if lasted < WORTHWHILE => {
                self.failed(progress, self.broken("ended at once")).await
            }
            Ended::Quietly | Ended::Absent => {}
            Ended::Expired => self.expired(progress).await,
            Ended::Failed(error) if self.declared().if_allowed && error.code() == Some(403) => {
                self.forbidden(progress).await
            }
            Ended::Failed(error) => self.failed(progress, *error).await,
        }
    }

    /// The point to resume from is gone. Listing again at once is right the first time; a server that forgets faster than it
    /// is listed is left alone for longer each time.
    async fn expired(&self, progress: &mut Progress) {
        let env = self.plane.env();
        progress.version = None;
        env.metrics.watch_restarted(&self.declared().kind, EXPIRED);
        if progress.failures > 0 {
            tokio::time::sleep(BACKOFF.pause(progress.failures, &env.random)).await;
        }
        progress.failures = progress.failures.saturating_add(1);
    }

    fn declared(&self) -> &Watch {
        &self.seen.watches[self.watch]
    }

    /// Whether the plane serves the kind.
    async fn is_served(&self) -> Result<bool, Error> {
        let kind = &self.declared().kind;
        let asked = timeout(DISCOVERED_WITHIN, self.plane.discovery().serves(&self.plane, kind)).await;
        asked.unwrap_or_else(|_| {
            let source = TransportError::Timeout { after: DISCOVERED_WITHIN };
            Err(self.plane.unreachable(format!("discover {kind}"), source))
        })
    }

    /// The kind is not served: says so once, and waits until there is reason to ask again.
    async fn await_news(&self) {
        let discovery = self.plane.discovery();
        let mut doubts = discovery.doubts();
        self.absent("not served; will be watched once it is");
        let pause = self.plane.env().random.jitter(discovery.ask_again_after(), 0.5);
        tokio::select! {
            biased;
            _ = doubts.changed() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// The kind may not be watched, and can be done without.
    async fn forbidden(&self, progress: &mut Progress) {
        self.absent("may not be watched; will be once that is allowed");
        progress.version = None;
        progress.failures = progress.failures.saturating_add(1);
        tokio::time::sleep(BACKOFF.pause(progress.failures, &self.plane.env().random)).await;
    }

    /// Notes that there is nothing of the kind to be seen. Says so once.
    fn absent(&self, why: &'static str) {
        let first = {
            let mut store = self.seen.store(self.watch).lock();
            let first = !store.is_absent();
            store.set_absent();
            first
        };
        if first {
            tracing::info!(plane = %self.plane.name(), kind = %self.declared().kind, "{why}");
            self.observer.synced(&self.plane, self.watch);
            self.observer.troubled(&self.plane, self.watch);
        }
    }

    async fn enter(&self, progress: &Progress) -> Option<SemaphorePermit<'_>> {
        let line = if progress.failures == 0 { &self.gate.first } else { &self.gate.again };
        line.acquire().await.ok() // never closed
    }

    /// Opens the stream, with everything that is there already taken in. Gives the time by which the stream must have ended.
    async fn open(
        &self,
        progress: &mut Progress,
        permit: Option<SemaphorePermit<'_>>,
    ) -> Result<(Lines, Pin<Box<Sleep>>), Ended> {
        let length = self.plane.env().random.jitter(ROUND, 1.0);
        let until = Instant::now() + length + OVERTIME;
        let common = format!(
            "{}watch=true&allowWatchBookmarks=true&timeoutSeconds={}",
            self.declared().path(),
            length.as_secs()
        );
        let mut streamed = None;
        if progress.version.is_none() && self.plane.discovery().can_stream_lists() {
            streamed = self.stream_list(progress, &common).await?;
        }
        if progress.version.is_none() {
            self.list_pages(progress).await.map_err(|error| self.ended(error))?;
        }
        drop(permit);
        let lines = match streamed {
            Some(lines) => lines,
            None => {
                let version = progress.version.as_deref().unwrap_or_default();
                let path = format!("{common}&resourceVersion={version}");
                let response = self.plane.open(&path).await.map_err(|error| self.ended(error))?;
                Lines::new(response.into_body())
            }
        };
        self.healthy();
        progress.listening = Some(Instant::now());
        Ok((lines, Box::pin(sleep_until(until))))
    }

    /// Takes the list as a stream, up to the bookmark that ends it; the stream then goes on with events. None if the server
    /// cannot.
    async fn stream_list(&self, progress: &mut Progress, common: &str) -> Result<Option<Lines>, Ended> {
        let path = format!("{common}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
        let response = match self.plane.open(&path).await {
            Ok(response) => response,
            // The parameters are what it does not understand.
            Err(error) if matches!(error.code(), Some(400 | 422)) => {
                tracing::debug!(plane = %self.plane.name(), %error, "cannot stream lists; listing in pages");
                self.plane.discovery().cannot_stream_lists();
                return Ok(None);
            }
            Err(error) => return Err(self.ended(error)),
        };
        progress.listed = Some(BTreeSet::new());
        let mut lines = Lines::new(response.into_body());
        while progress.listed.is_some() {
            let Ok(data) = timeout(NEXT_WITHIN, poll_fn(|cx| lines.poll_data(cx))).await else {
                // It took the parameters for nothing and will never say where the list ends.
                tracing::debug!(plane = %self.plane.name(), "a streamed list went silent; listing in pages");
                self.plane.discovery().cannot_stream_lists();
                return Ok(None);
            };
            self.take_data(data, &mut lines, progress)?;
        }
        Ok(Some(lines))
    }

    fn ended(&self, error: Error) -> Ended {
        match error.code() {
            Some(410) => Ended::Expired,
            Some(404) => {
                self.plane.discovery().contradicted(&self.declared().kind);
                Ended::Failed(Box::new(error))
            }
            _ => Ended::Failed(Box::new(error)),
        }
    }

    async fn list_pages(&self, progress: &mut Progress) -> Result<(), Error> {
        let (kind, path) = (&self.declared().kind, self.declared().path());
        progress.listed = Some(BTreeSet::new());
        let mut next = None;
        loop {
            let content = page(&self.plane, kind, &path, next.as_deref()).await?;
            let page = Page::parse(&self.plane, kind, &content)?;
            for item in &page.items {
                self.take(item.get().as_bytes(), progress);
            }
            match page.metadata.next.filter(|next| !next.is_empty()) {
                Some(token) => next = Some(token),
                None => {
                    self.list_complete(progress, page.metadata.resource_version);
                    return Ok(());
                }
            }
        }
    }

    /// Takes what has come on the stream, or its end.
    fn take_data(
        &self,
        data: Option<Result<Bytes, BoxError>>,
        lines: &mut Lines,
        progress: &mut Progress,
    ) -> Result<(), Ended> {
        match data {
            None if progress.listed.is_some() => Err(self.failure("ended within the list")),
            None => Err(Ended::Quietly),
            Some(Err(error)) => Err(self.failure(&error.to_string())),
            Some(Ok(data)) => {
                lines.split(&data, |line| self.take_line(line, progress))?;
                if lines.is_endless() { Err(self.garbage("a line without an end")) } else { Ok(()) }
            }
        }
    }

    fn take_line(&self, line: &[u8], progress: &mut Progress) -> Result<(), Ended> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        let event: Event<'_> =
            serde_json::from_slice(line).map_err(|error| self.garbage(&error.to_string()))?;
        let object = event.object.get().as_bytes();
        match &*event.what {
            "ADDED" | "MODIFIED" => self.take(object, progress),
            "DELETED" => self.lose(object, progress),
            "BOOKMARK" => {
                let mark: Bookmark =
                    serde_json::from_slice(object).map_err(|error| self.garbage(&error.to_string()))?;
                if mark.metadata.annotations.initial_events_end.as_deref() == Some("true") {
                    self.list_complete(progress, mark.metadata.resource_version);
                } else if progress.listed.is_none() {
                    progress.version = Some(mark.metadata.resource_version);
                }
            }
            "ERROR" => {
                let status = serde_json::from_slice(object).unwrap_or_default();
                let error = self.plane.refused(format!("watch {}", self.declared().kind), status);
                return Err(self.ended(error));
            }
            other => return Err(self.garbage(&format!("event of type {other}"))),
        }
        Ok(())
    }

    fn take(&self, object: &[u8], progress: &mut Progress) {
        let declared = self.declared();
        let taken = match intake(object) {
            Ok(taken) => taken,
            Err(error) => return self.unreadable(&error),
        };
        if let Some(listed) = &mut progress.listed {
            listed.insert(taken.id.clone());
        } else {
            progress.version = Some(taken.version);
        }
        let change = self.seen.store(self.watch).lock().apply(&declared.indexes, &taken.id, taken.bytes);
        if let Some(change) = change {
            if progress.listed.is_none() && change.before.is_none() {
                self.plane.env().metrics.watch_lag(
                    &declared.kind,
                    taken.created.as_deref(),
                    &self.plane.env().clock,
                );
            }
            self.observer.changed(&self.plane, self.watch, change);
        }
    }

    fn lose(&self, object: &[u8], progress: &mut Progress) {
        let taken = match intake(object) {
            Ok(taken) => taken,
            Err(error) => return self.unreadable(&error),
        };
        match &mut progress.listed {
            Some(listed) => {
                listed.remove(&taken.id);
            }
            None => progress.version = Some(taken.version),
        }
        let change = self.seen.store(self.watch).lock().remove(&self.declared().indexes, &taken.id);
        if let Some(change) = change {
            self.observer.changed(&self.plane, self.watch, change);
        }
    }

    /// The list is whole: what it does not have was deleted while nobody looked.
    fn list_complete(&self, progress: &mut Progress, version: String) {
        let Some(listed) = progress.listed.take() else {
            return;
        };
        progress.version = Some(version);
        let store = self.seen.store(self.watch);
        let gone = store.lock().missing_from(&listed);
        for id in gone {
            let change = store.lock().remove(&self.declared().indexes, &id);
            if let Some(change) = change {
                self.observer.changed(&self.plane, self.watch, change);
            }
        }
        store.lock().set_synced();
        self.observer.synced(&self.plane, self.watch);
    }

    fn unreadable(&self, error: &serde_json::Error) {
        let kind = &self.declared().kind;
        self.plane.env().metrics.decode_failed(kind);
        tracing::warn!(plane = %self.plane.name(), %kind, %error, "an object in a watch cannot be read; skipped");
    }

    fn healthy(&self) {
        let mut store = self.seen.store(self.watch).lock();
        if store.trouble().is_some() {
            store.set_trouble(None);
            drop(store);
            tracing::info!(plane = %self.plane.name(), kind = %self.declared().kind, "watching again");
            self.observer.troubled(&self.plane, self.watch);
        }
    }

    /// Notes the trouble, says so once, and waits.
    async fn failed(&self, progress: &mut Progress, error: Error) {
        let (kind, plane) = (&self.declared().kind, &self.plane);
        let reason = reason_of(&error);
        plane.env().metrics.watch_restarted(kind, reason);
        let trouble = Trouble { reason, message: error.to_string() };
        progress.failures = progress.failures.saturating_add(1);
        if error.code() == Some(404) {
            progress.version = None; // ask whether it is served, and list anew once it is
        }
        // One broken connection is ordinary; a second failure in a row is trouble. Before the first list, any is.
        if progress.failures > 1 || progress.version.is_none() {
            let news = {
                let mut store = self.seen.store(self.watch).lock();
                let news = store.trouble().is_none_or(|known| known.reason != reason);
                store.set_trouble(Some(trouble));
                news
            };
            if news {
                tracing::warn!(plane = %plane.name(), %kind, %error, "cannot watch");
                self.observer.troubled(plane, self.watch);
            }
        }
        tokio::time::sleep(BACKOFF.pause(progress.failures, &plane.env().random)).await;
    }

    fn broken(&self, why: &str) -> Error {
        self.plane.unreachable(self.action(), TransportError::Broken { why: why.into() })
    }

    fn failure(&self, why: &str) -> Ended {
        Ended::Failed(Box::new(self.broken(why)))
    }

    fn garbage(&self, why: &str) -> Ended {
        let source = TransportError::Garbage { why: why.into() };
        Ended::Failed(Box::new(self.plane.unreachable(self.action(), source)))
    }

    fn action(&self) -> String {
        format!("watch {}", self.declared().kind)
    }
}

/// A loop at rest: waits for what comes on an open stream.
struct Listen<'a> {
    follow: &'a Follow,
    progress: &'a mut Progress,
    lines: Lines,
    until: Pin<Box<Sleep>>,
}

impl Future for Listen<'_> {
    type Output = Ended;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ended> {
        let this = self.get_mut();
        while let Poll::Ready(data) = this.lines.poll_data(cx) {
            if let Err(ended) = this.follow.take_data(data, &mut this.lines, this.progress) {
                return Poll::Ready(ended);
            }
        }
        this.until.as_mut().poll(cx).map(|()| this.follow.failure("went on for longer than it should"))
    }
}

/// One word for why a plane cannot be watched.
fn reason_of(error: &Error) -> &'static str {
    match error {
        Error::Unreachable { source, .. } => source.reason(),
        Error::Refused { status, .. } => match status.code {
            401 => "unauthorized",
            403 => "forbidden",
            404 => "not_served",
            429 | 503 => "overloaded",
            _ => "refused",
        },
        _ => "other",
    }
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type", borrow)]
    what: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct Bookmark {
    metadata: BookmarkMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default)]
    annotations: BookmarkNotes,
}

#[derive(Deserialize, Default)]
struct BookmarkNotes {
    #[serde(default, rename = "k8s.io/initial-events-end")]
    initial_events_end: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Change;

    struct Nobody;
    impl Observer for Nobody {
        fn changed(&self, _: &Plane, _: usize, _: Change) {}
        fn synced(&self, _: &Plane, _: usize) {}
        fn troubled(&self, _: &Plane, _: usize) {}
    }

    /// A loop is held for every kind of every project, so its size is a price.
    #[tokio::test]
    async fn a_loop_is_small() {
        let service = tower::service_fn(|_: http::Request<bytes::Bytes>| async {
            Ok::<_, std::convert::Infallible>(http::Response::new(
                http_body_util::Full::<bytes::Bytes>::default(),
            ))
        });
        let plane = Plane::in_process("p", service);
        let seen = Arc::new(Seen::new(0, Arc::from([])));
        let follow =
            Follow { plane, seen, watch: 0, observer: Arc::new(Nobody), gate: Arc::new(Gate::new(1)) };
        let size = std::mem::size_of_val(&follow.run());
        assert!(size <= 400, "{size} bytes");
    }
}
