//! A circuit breaker for the calls to one plane.
//!
//! A call to a plane that does not respond holds a worker until the call times out. The breaker bounds that
//! cost: it opens after a failed call and rejects all calls for [`OPEN_TIME`]. Then it is half-open: it lets
//! one call through at a time. It closes with the first response of the plane.

use std::future::Future;
use std::time::Duration;

use parking_lot::Mutex;
use polis_engine::Error as EngineError;
use polis_engine::transport::TransportError;
use tokio::time::{Instant, timeout};

/// How long the breaker stays open after a failed call. Short, so that write-back resumes soon after the hub
/// is back.
const OPEN_TIME: Duration = Duration::from_secs(5);
/// Timeout of one call, including the retries of the transport.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The circuit breaker of one plane.
#[derive(Debug, Default)]
pub(crate) struct CircuitBreaker {
    /// When the open breaker becomes half-open. None while it is closed.
    open_until: Mutex<Option<Instant>>,
}

/// Why a call has no result.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The plane does not respond. Retry after this time.
    Unavailable {
        retry_after: Duration,
        /// Set if this call was made and failed; none if the breaker rejected it.
        cause: Option<String>,
        /// False if no connection to the host could be made. A timeout and a rejected call leave it true.
        connected: bool,
    },
    /// The plane returned an error, or the request cannot succeed by waiting.
    Failed(EngineError),
}

impl CircuitBreaker {
    /// Makes the call, unless the breaker is open.
    pub(crate) async fn call<T>(
        &self,
        request: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, CallError> {
        if let Some(retry_after) = self.rejects_for() {
            return Err(CallError::rejected(retry_after));
        }
        match timeout(CALL_TIMEOUT, request).await {
            Err(_) => Err(self.trip(format!("no response within {} s", CALL_TIMEOUT.as_secs()), true)),
            Ok(Err(error @ EngineError::NotEngaged { .. })) => Err(self.trip(error.to_string(), true)),
            Ok(Err(error @ EngineError::Unreachable { .. })) => {
                let connected =
                    matches!(error, EngineError::Unreachable { source: TransportError::Timeout { .. }, .. });
                Err(self.trip(error.to_string(), connected))
            }
            Ok(response) => {
                self.close();
                response.map_err(CallError::Failed)
            }
        }
    }

    /// How long a call is rejected for. None permits the call: the breaker is closed, or it is half-open and
    /// no other call was permitted within the last [`CALL_TIMEOUT`].
    pub(crate) fn rejects_for(&self) -> Option<Duration> {
        let mut open_until = self.open_until.lock();
        let until = (*open_until)?;
        let now = Instant::now();
        if now < until {
            return Some(until - now);
        }
        *open_until = Some(now + CALL_TIMEOUT);
        None
    }

    /// How long the breaker stays open. Unlike [`Self::rejects_for`] it does not count as an attempt.
    pub(crate) fn open_for(&self) -> Option<Duration> {
        let until = (*self.open_until.lock())?;
        until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    /// Opens the breaker: the plane does not respond.
    pub(crate) fn open(&self) {
        *self.open_until.lock() = Some(Instant::now() + OPEN_TIME);
    }

    /// Closes the breaker: the plane responds.
    pub(crate) fn close(&self) {
        *self.open_until.lock() = None;
    }

    fn trip(&self, cause: String, connected: bool) -> CallError {
        self.open();
        CallError::Unavailable { retry_after: OPEN_TIME, cause: Some(cause), connected }
    }
}

impl CallError {
    /// The error of a call that an open breaker did not make.
    pub(crate) fn rejected(retry_after: Duration) -> Self {
        CallError::Unavailable { retry_after, cause: None, connected: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    async fn no_response() -> Result<(), EngineError> {
        std::future::pending().await
    }

    async fn response() -> Result<(), EngineError> {
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn the_breaker_opens_after_a_timeout_and_closes_with_a_response() {
        let breaker = CircuitBreaker::default();
        assert!(matches!(
            breaker.call(no_response()).await,
            Err(CallError::Unavailable { cause: Some(_), .. })
        ));
        let rejected = breaker.call(response()).now_or_never().unwrap();
        assert!(matches!(rejected, Err(CallError::Unavailable { retry_after: OPEN_TIME, cause: None, .. })));
        tokio::time::advance(OPEN_TIME).await;
        assert!(breaker.call(response()).await.is_ok());
        assert!(breaker.call(response()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_half_open_breaker_permits_one_call_at_a_time() {
        let breaker = CircuitBreaker::default();
        assert!(breaker.call(no_response()).await.is_err());
        tokio::time::advance(OPEN_TIME).await;
        let mut first = Box::pin(breaker.call(no_response()));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(matches!(breaker.call(response()).await, Err(CallError::Unavailable { cause: None, .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_from_the_plane_is_a_response() {
        let breaker = CircuitBreaker::default();
        let error = async { Err::<(), _>(EngineError::Kubeconfig { from: "x".into(), why: "y".into() }) };
        assert!(matches!(breaker.call(error).await, Err(CallError::Failed(_))));
        assert!(breaker.call(response()).await.is_ok());
    }
}
