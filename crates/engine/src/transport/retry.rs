//! Retries of failed unary calls.
//!
//! A write is not retried if the server may have processed it and a second execution has an effect. The
//! server may have processed a `POST` before the connection broke; a second one would create a second object,
//! or fail with a misleading "already exists". A `PUT` or `PATCH` with a resource version and a `DELETE` with
//! a UID can be retried: if the first was processed, the server rejects the second.

use std::time::Duration;

use http::{Method, StatusCode};

use super::TransportError;
use crate::Random;

/// Maximum number of attempts. After that the reconcile fails, and the back-off of the work queue does not
/// occupy a worker.
const MAX_ATTEMPTS: u32 = 4;
const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(5);
/// Longest accepted `Retry-After`. For a longer one the reconcile fails, and the back-off of the work queue
/// applies.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(10);

/// How an attempt failed.
#[derive(Debug)]
pub(crate) enum Failure<'a> {
    Response { status: StatusCode, retry_after: Option<Duration> },
    NoResponse(&'a TransportError),
}

/// Whether a request may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// A second execution has no effect.
    Idempotent,
    /// Only if the server has certainly not processed the first request.
    OnlyIfUnprocessed,
}

impl Retry {
    /// `idempotent`: preconditions or apply semantics make a second execution of a write harmless.
    pub(crate) fn of(method: &Method, idempotent: bool) -> Self {
        if method.is_safe() || idempotent { Self::Idempotent } else { Self::OnlyIfUnprocessed }
    }
}

/// The delay before the next attempt; none if the call fails. `attempt` counts from 1.
pub(crate) fn retry_delay(
    attempt: u32,
    retry: Retry,
    failure: &Failure<'_>,
    random: &Random,
) -> Option<Duration> {
    if attempt >= MAX_ATTEMPTS {
        return None;
    }
    let (retryable, retry_after) = match failure {
        Failure::Response { status, retry_after } => (
            match status.as_u16() {
                429 => true,
                // With Retry-After the server rejected the request unprocessed; without, it may come from a
                // proxy.
                503 => retry == Retry::Idempotent || retry_after.is_some(),
                504 => retry == Retry::Idempotent,
                _ => false,
            },
            *retry_after,
        ),
        Failure::NoResponse(error) => (
            match error {
                TransportError::Tls { .. }
                | TransportError::Credentials { .. }
                | TransportError::InvalidResponse { .. } => false,
                // The timeout of the call is over.
                TransportError::Timeout { .. } => false,
                TransportError::Connect { .. } => true,
                error => error.was_not_processed() || retry == Retry::Idempotent,
            },
            None,
        ),
    };
    if !retryable {
        return None;
    }
    match retry_after {
        Some(delay) if delay > MAX_RETRY_AFTER => None,
        Some(delay) => Some(random.jitter(delay, 0.2)),
        None => Some(random.jitter((FIRST_DELAY * 2u32.pow(attempt - 1)).min(MAX_DELAY), 1.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(code: u16, retry_after: Option<u64>) -> Failure<'static> {
        Failure::Response {
            status: StatusCode::from_u16(code).unwrap(),
            retry_after: retry_after.map(Duration::from_secs),
        }
    }

    fn retried(retry: Retry, failure: &Failure<'_>) -> bool {
        retry_delay(1, retry, failure, &Random::from_seed(1)).is_some()
    }

    #[test]
    fn a_write_that_may_have_been_processed_is_not_retried() {
        let broken = TransportError::Broken { why: "reset".into() };
        assert!(!retried(Retry::OnlyIfUnprocessed, &Failure::NoResponse(&broken)));
        assert!(!retried(Retry::OnlyIfUnprocessed, &response(504, None)));
        assert!(!retried(Retry::OnlyIfUnprocessed, &response(503, None)));
        assert!(retried(Retry::Idempotent, &Failure::NoResponse(&broken)));
        assert!(retried(Retry::Idempotent, &response(504, None)));
    }

    #[test]
    fn an_unprocessed_request_is_retried_for_every_verb() {
        assert!(retried(Retry::OnlyIfUnprocessed, &response(429, None)));
        assert!(retried(Retry::OnlyIfUnprocessed, &response(503, Some(1))));
        assert!(retried(
            Retry::OnlyIfUnprocessed,
            &Failure::NoResponse(&TransportError::Unsent { why: "goaway".into() })
        ));
    }

    #[test]
    fn other_error_responses_are_not_retried() {
        for code in [400, 401, 403, 404, 409, 410, 422, 500] {
            assert!(!retried(Retry::Idempotent, &response(code, None)), "{code}");
        }
    }

    #[test]
    fn retry_after_is_respected_up_to_the_maximum() {
        let random = Random::from_seed(1);
        let wait = retry_delay(1, Retry::Idempotent, &response(429, Some(3)), &random).unwrap();
        assert!(wait >= Duration::from_secs(3) && wait <= Duration::from_millis(3600), "{wait:?}");
        assert_eq!(retry_delay(1, Retry::Idempotent, &response(429, Some(60)), &random), None);
    }

    #[test]
    fn the_number_of_attempts_is_limited() {
        assert_eq!(
            retry_delay(MAX_ATTEMPTS, Retry::Idempotent, &response(429, None), &Random::from_seed(1)),
            None
        );
    }
}
