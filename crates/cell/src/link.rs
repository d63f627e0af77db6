//! The way to a plane that may be away.
//!
//! A plane that does not answer costs whoever asks it a worker for as long as the question waits. A cell has much else to
//! do, so after a failure nobody asks for a while, and then one at a time, until the plane has answered once.

use std::future::Future;
use std::time::Duration;

use parking_lot::Mutex;
use polis_engine::Error as EngineError;
use polis_engine::transport::TransportError;
use tokio::time::{Instant, timeout};

/// How long a plane that did not answer is left alone. Short enough to tell the hub within a moment of its return.
const REST: Duration = Duration::from_secs(5);
/// How long one question may take, repetitions of the transport included.
const PATIENCE: Duration = Duration::from_secs(10);

/// Remembers whether a plane answers.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// Away, and to be left alone until then. None while it answers.
    away: Mutex<Option<Instant>>,
}

/// Why a question has no answer.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// Nobody answers; ask again after this time. The words say what happened, if this very question found it out.
    Away {
        again: Duration,
        why: Option<String>,
        /// There is a connection to the host, or nobody tried: it is just the answer that does not come.
        connected: bool,
    },
    /// There was an answer, or none can be had by waiting.
    Failed(EngineError),
}

impl Link {
    /// Asks, if the plane is believed to answer or it is time to try.
    pub(crate) async fn ask<T>(
        &self,
        question: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, Trouble> {
        if let Some(again) = self.rest() {
            return Err(Trouble::away(again));
        }
        match timeout(PATIENCE, question).await {
            Err(_) => Err(self.lost(format!("no answer within {} s", PATIENCE.as_secs()), true)),
            Ok(Err(error @ EngineError::NotEngaged { .. })) => Err(self.lost(error.to_string(), true)),
            Ok(Err(error @ EngineError::Unreachable { .. })) => {
                let connected =
                    matches!(error, EngineError::Unreachable { source: TransportError::Timeout { .. }, .. });
                Err(self.lost(error.to_string(), connected))
            }
            Ok(answer) => {
                self.found();
                answer.map_err(Trouble::Failed)
            }
        }
    }

    /// How long to leave the plane alone. One who comes when the time is over is let through, and the next are not
    /// before another such time.
    pub(crate) fn rest(&self) -> Option<Duration> {
        let mut away = self.away.lock();
        let until = (*away)?;
        let now = Instant::now();
        if now < until {
            return Some(until - now);
        }
        *away = Some(now + PATIENCE);
        None
    }

    /// For how long the plane is to be left alone still.
    pub(crate) fn is_away(&self) -> Option<Duration> {
        let until = (*self.away.lock())?;
        until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    /// The plane does not answer.
    pub(crate) fn lose(&self) {
        *self.away.lock() = Some(Instant::now() + REST);
    }

    /// The plane answers.
    pub(crate) fn found(&self) {
        *self.away.lock() = None;
    }

    fn lost(&self, why: String, connected: bool) -> Trouble {
        self.lose();
        Trouble::Away { again: REST, why: Some(why), connected }
    }
}

impl Trouble {
    /// Nobody is asked for so long.
    pub(crate) fn away(again: Duration) -> Self {
        Trouble::Away { again, why: None, connected: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    async fn silence() -> Result<(), EngineError> {
        std::future::pending().await
    }

    async fn answer() -> Result<(), EngineError> {
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_plane_that_does_not_answer_is_left_alone_for_a_while() {
        let link = Link::default();
        assert!(matches!(link.ask(silence()).await, Err(Trouble::Away { why: Some(_), .. })));
        let refused = link.ask(answer()).now_or_never().unwrap();
        assert!(matches!(refused, Err(Trouble::Away { again: REST, why: None, .. })));
        tokio::time::advance(REST).await;
        assert!(link.ask(answer()).await.is_ok());
        assert!(link.ask(answer()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn only_one_at_a_time_tries_whether_it_is_back() {
        let link = Link::default();
        assert!(link.ask(silence()).await.is_err());
        tokio::time::advance(REST).await;
        let mut first = Box::pin(link.ask(silence()));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(matches!(link.ask(answer()).await, Err(Trouble::Away { why: None, .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_an_answer() {
        let link = Link::default();
        let gone = async { Err::<(), _>(EngineError::Kubeconfig { from: "x".into(), why: "y".into() }) };
        assert!(matches!(link.ask(gone).await, Err(Trouble::Failed(_))));
        assert!(link.ask(answer()).await.is_ok());
    }
}
