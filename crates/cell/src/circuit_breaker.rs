//! A circuit breaker for the calls to the planes of one host.
//!
//! A call to a plane that does not respond holds a worker until the call times out. The breaker bounds that
//! cost. Each plane has a circuit of its own, so that a plane that does not respond delays only its own
//! objects: its circuit opens after a failed call and rejects all calls for [`OPEN_TIME`]. Then it is
//! half-open: it lets one call through at a time. It closes with the first response of the plane.
//!
//! A circuit for the host rejects the calls to all planes. It opens when no connection can be made, or when
//! [`HOST_THRESHOLD`] planes in a row do not respond: tried one by one, a thousand planes that time out would
//! hold every worker of the cell.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use parking_lot::Mutex;
use polis_engine::Error as EngineError;
use polis_engine::transport::TransportError;
use tokio::time::{Instant, timeout};

/// How long a circuit stays open after a failed call. Short, so that work resumes soon after the plane is
/// back.
const OPEN_TIME: Duration = Duration::from_secs(5);
/// Timeout of one call, including the retries of the transport.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// After this many planes without a response, with no response from any plane in between, the host counts as
/// down.
const HOST_THRESHOLD: usize = 4;

/// The circuit breaker of the planes of one host.
#[derive(Debug, Default)]
pub(crate) struct CircuitBreaker(Mutex<Circuits>);

#[derive(Debug, Default)]
struct Circuits {
    host: Circuit,
    /// The planes that do not respond, by name. A response removes the circuit of the plane.
    planes: BTreeMap<String, Circuit>,
    /// Planes whose calls failed since the last response of any plane.
    since_response: BTreeSet<String>,
}

/// The state of one circuit.
#[derive(Clone, Copy, Debug, Default)]
struct Circuit {
    /// When the open circuit becomes half-open. None while it is closed.
    open_until: Option<Instant>,
}

/// Why a call has no result.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The plane does not respond. Retry after this time.
    Unavailable {
        retry_after: Duration,
        /// Set if this call was made and failed; none if the breaker rejected it.
        cause: Option<String>,
    },
    /// The plane returned an error, or the request cannot succeed by waiting.
    Failed(EngineError),
}

impl CircuitBreaker {
    /// Makes a call to a plane, unless the circuit of the plane or of the host is open.
    pub(crate) async fn call<T>(
        &self,
        plane: impl AsRef<str>,
        request: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, CallError> {
        let plane = plane.as_ref();
        if let Some(retry_after) = self.0.lock().rejects_for(plane, Instant::now()) {
            return Err(CallError::Unavailable { retry_after, cause: None });
        }
        match timeout(CALL_TIMEOUT, request).await {
            Err(_) => Err(self.fail(plane, format!("no response within {} s", CALL_TIMEOUT.as_secs()), true)),
            Ok(Err(error @ EngineError::NotEngaged { .. })) => Err(self.fail(plane, error.to_string(), true)),
            Ok(Err(error @ EngineError::Unreachable { .. })) => {
                let connected =
                    matches!(error, EngineError::Unreachable { source: TransportError::Timeout { .. }, .. });
                Err(self.fail(plane, error.to_string(), connected))
            }
            Ok(response) => {
                self.0.lock().record_response(plane);
                response.map_err(CallError::Failed)
            }
        }
    }

    /// Whether a call to the plane would be rejected now.
    pub(crate) fn is_open(&self, plane: &str) -> bool {
        let (circuits, now) = (self.0.lock(), Instant::now());
        let circuit = circuits.planes.get(plane).copied().unwrap_or_default();
        [circuit, circuits.host].iter().any(|circuit| circuit.open_for(now).is_some())
    }

    fn fail(&self, plane: &str, cause: String, connected: bool) -> CallError {
        self.0.lock().record_failure(plane, connected, Instant::now());
        CallError::Unavailable { retry_after: OPEN_TIME, cause: Some(cause) }
    }
}

impl Circuits {
    /// How long a call to a plane is rejected for. None permits the call, which then is the one call of each
    /// half-open circuit. A call that one circuit rejects is not an attempt of the other.
    fn rejects_for(&mut self, plane: &str, now: Instant) -> Option<Duration> {
        let circuit = self.planes.get_mut(plane);
        if let Some(left) = circuit.as_ref().and_then(|circuit| circuit.open_for(now)) {
            return Some(left);
        }
        if let Some(left) = self.host.open_for(now) {
            return Some(left);
        }
        [circuit, Some(&mut self.host)].into_iter().flatten().for_each(|circuit| circuit.attempt(now));
        None
    }

    /// A response of a plane closes its circuit and the circuit of the host.
    fn record_response(&mut self, plane: &str) {
        self.planes.remove(plane);
        self.since_response.clear();
        self.host = Circuit::default();
    }

    /// A plane did not respond; `connected` is false if no connection to the host could be made.
    fn record_failure(&mut self, plane: &str, connected: bool, now: Instant) {
        self.planes.insert(plane.to_owned(), Circuit::open(now));
        self.since_response.insert(plane.to_owned());
        if !connected || self.since_response.len() >= HOST_THRESHOLD {
            self.host = Circuit::open(now);
        }
    }
}

impl Circuit {
    fn open(now: Instant) -> Self {
        Self { open_until: Some(now + OPEN_TIME) }
    }

    /// How long the circuit stays open.
    fn open_for(&self, now: Instant) -> Option<Duration> {
        self.open_until?.checked_duration_since(now).filter(|left| !left.is_zero())
    }

    /// A half-open circuit permits no other call while this one runs.
    fn attempt(&mut self, now: Instant) {
        if self.open_until.is_some() {
            self.open_until = Some(now + CALL_TIMEOUT);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

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

    /// Whether a call to the plane is made at once and succeeds.
    fn responds(breaker: &CircuitBreaker, plane: &str) -> bool {
        breaker.call(plane, response()).now_or_never().unwrap().is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_circuit_opens_after_a_timeout_and_closes_with_a_response() {
        let breaker = CircuitBreaker::default();
        let failed = breaker.call("hub", no_response()).await;
        assert!(matches!(failed, Err(CallError::Unavailable { cause: Some(_), .. })));
        let rejected = breaker.call("hub", response()).now_or_never().unwrap();
        assert!(matches!(rejected, Err(CallError::Unavailable { retry_after: OPEN_TIME, cause: None })));
        tokio::time::advance(OPEN_TIME).await;
        assert!(responds(&breaker, "hub"));
        assert!(responds(&breaker, "hub"));
        assert!(breaker.0.lock().planes.is_empty(), "a response removes the circuit");
    }

    #[tokio::test(start_paused = true)]
    async fn a_half_open_circuit_permits_one_call_at_a_time() {
        let breaker = CircuitBreaker::default();
        assert!(breaker.call("hub", no_response()).await.is_err());
        tokio::time::advance(OPEN_TIME).await;
        let mut first = Box::pin(breaker.call("hub", no_response()));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(!responds(&breaker, "hub"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_from_the_plane_is_a_response() {
        let breaker = CircuitBreaker::default();
        let error = async { Err::<(), _>(EngineError::Kubeconfig { from: "x".into(), why: "y".into() }) };
        assert!(matches!(breaker.call("hub", error).await, Err(CallError::Failed(_))));
        assert!(responds(&breaker, "hub"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_plane_without_a_response_does_not_delay_the_others() {
        let breaker = CircuitBreaker::default();
        for _ in 0..HOST_THRESHOLD * 2 {
            _ = breaker.call("down", no_response()).await;
            assert!(!responds(&breaker, "down"));
            assert!(responds(&breaker, "acme"));
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        assert!(responds(&breaker, "down"));
    }

    #[tokio::test(start_paused = true)]
    async fn many_planes_in_a_row_without_a_response_open_the_circuit_of_the_host() {
        let breaker = CircuitBreaker::default();
        for number in 0..HOST_THRESHOLD {
            assert!(breaker.0.lock().host.open_until.is_none(), "{number} planes");
            _ = breaker.call(format!("p{number}"), no_response()).await;
        }
        assert!(!responds(&breaker, "acme"));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert!(responds(&breaker, "acme"), "the half-open circuit permits a call");
        assert!(responds(&breaker, "shop"), "the first response closes the circuit for all planes");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_connection_opens_the_circuit_of_the_host() {
        let breaker = CircuitBreaker::default();
        _ = breaker.call("acme", no_connection()).await;
        assert!(!responds(&breaker, "shop"));
    }
}
