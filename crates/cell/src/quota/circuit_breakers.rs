//! Circuit breakers for the planes of projects, which are all served by one host.
//!
//! Each project has its own breaker, so that a project plane that does not respond delays only its own
//! instances. A breaker for the host rejects the calls to all projects. It opens when no connection can be
//! made, or when [`HOST_THRESHOLD`] projects in a row do not respond: tried one by one, a thousand planes
//! that time out would hold every worker of the cell.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use polis_engine::Error as EngineError;

use crate::circuit_breaker::{CallError, CircuitBreaker};

/// After this many projects without a response, with no response from any project in between, the host counts
/// as down.
const HOST_THRESHOLD: usize = 4;

/// The circuit breakers of the host and of the projects that do not respond.
#[derive(Debug, Default)]
pub(crate) struct CircuitBreakers {
    host: CircuitBreaker,
    failing: Mutex<FailingProjects>,
}

#[derive(Debug, Default)]
struct FailingProjects {
    /// By project. A response of the project removes its breaker.
    breakers: BTreeMap<String, Arc<CircuitBreaker>>,
    /// Projects whose calls failed since the last response of any project.
    since_response: BTreeSet<String>,
}

impl CircuitBreakers {
    /// Makes a call to the plane of a project, unless the breaker of the project or of the host is open.
    pub(crate) async fn call<T>(
        &self,
        project: &str,
        request: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, CallError> {
        let breaker = self.failing.lock().breakers.get(project).cloned();
        if let Some(retry_after) = breaker.as_ref().and_then(|breaker| breaker.open_for()) {
            return Err(CallError::rejected(retry_after));
        }
        if let Some(retry_after) = self.host.rejects_for() {
            return Err(CallError::rejected(retry_after));
        }
        let breaker = breaker.unwrap_or_default();
        let result = breaker.call(request).await;
        match &result {
            Ok(_) | Err(CallError::Failed(_)) => self.record_response(project),
            Err(CallError::Unavailable { cause: Some(_), connected, .. }) => {
                self.record_failure(project, breaker, *connected);
            }
            Err(CallError::Unavailable { cause: None, .. }) => {} // another worker makes the half-open call
        }
        result
    }

    /// A response of a project closes its breaker and the breaker of the host.
    fn record_response(&self, project: &str) {
        let mut failing = self.failing.lock();
        failing.breakers.remove(project);
        failing.since_response.clear();
        self.host.close();
    }

    fn record_failure(&self, project: &str, breaker: Arc<CircuitBreaker>, connected: bool) {
        let mut failing = self.failing.lock();
        failing.breakers.insert(project.to_owned(), breaker);
        failing.since_response.insert(project.to_owned());
        if !connected || failing.since_response.len() >= HOST_THRESHOLD {
            self.host.open();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use polis_engine::transport::TransportError;

    use super::*;

    async fn no_response() -> Result<(), EngineError> {
        std::future::pending().await
    }

    async fn response() -> Result<(), EngineError> {
        Ok(())
    }

    async fn no_connection() -> Result<(), EngineError> {
        let source = TransportError::Connect { host: "platform".into(), why: "refused".into() };
        Err(EngineError::Unreachable { plane: "acme".into(), action: "get".into(), source })
    }

    /// Whether a call to the project is made at once and succeeds.
    fn responds(breakers: &CircuitBreakers, project: &str) -> bool {
        breakers.call(project, response()).now_or_never().unwrap().is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_project_without_a_response_does_not_delay_the_others() {
        let breakers = CircuitBreakers::default();
        for _ in 0..HOST_THRESHOLD * 2 {
            _ = breakers.call("down", no_response()).await;
            assert!(!responds(&breakers, "down"));
            assert!(responds(&breakers, "acme"));
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        assert!(responds(&breakers, "down"));
        assert!(breakers.failing.lock().breakers.is_empty(), "a response removes the breaker");
    }

    #[tokio::test(start_paused = true)]
    async fn many_projects_in_a_row_without_a_response_open_the_breaker_of_the_host() {
        let breakers = CircuitBreakers::default();
        for number in 0..HOST_THRESHOLD {
            assert!(number == 0 || breakers.host.open_for().is_none());
            _ = breakers.call(&format!("p{number}"), no_response()).await;
        }
        assert!(!responds(&breakers, "acme"));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(responds(&breakers, "acme"), "the half-open breaker permits a call");
        assert!(responds(&breakers, "shop"), "the first response closes the breaker for all projects");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_connection_opens_the_breaker_of_the_host() {
        let breakers = CircuitBreakers::default();
        _ = breakers.call("acme", no_connection()).await;
        assert!(!responds(&breakers, "shop"));
    }
}
