//! Which failed unary calls are tried again, and when.
//!
//! The rule that matters: a write whose outcome is unknown is not repeated blindly. A `POST` may have been carried out before
//! the connection broke; a second one would create a second object, or fail with a misleading "already exists". A `PUT` or
//! `PATCH` that carries a resource version and a `DELETE` that carries a UID can be repeated: the server itself refuses the
//! second if the first was done.

use std::time::Duration;

use http::{Method, StatusCode};

use super::TransportError;
use crate::Random;

/// Attempts in all. What is still failing then is the queue's business, which backs off without holding a worker.
const ATTEMPTS: u32 = 4;
const FIRST: Duration = Duration::from_millis(100);
const CAP: Duration = Duration::from_secs(5);
/// A server that asks for a longer pause than this gets it from the queue's back-off instead.
const LONGEST_WISH: Duration = Duration::from_secs(10);

/// How an attempt ended without success.
#[derive(Debug)]
pub(crate) enum Failure<'a> {
    Answer { status: StatusCode, retry_after: Option<Duration> },
    NoAnswer(&'a TransportError),
}

/// Whether doing it twice is as good as doing it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    Harmless,
    OnlyIfNotDone,
}

impl Repeat {
    /// `guarded`: the request carries a resource version or UID that makes a repetition fail.
    pub(crate) fn of(method: &Method, guarded: bool) -> Self {
        if method.is_safe() || guarded { Self::Harmless } else { Self::OnlyIfNotDone }
    }
}

/// How long to wait before the next attempt; none to give up. `attempt` counts from 1.
pub(crate) fn pause(
    attempt: u32,
    repeat: Repeat,
    failure: &Failure<'_>,
    random: &Random,
) -> Option<Duration> {
    if attempt >= ATTEMPTS {
        return None;
    }
    let (worth_it, wish) = match failure {
        Failure::Answer { status, retry_after } => (
            match status.as_u16() {
                429 => true,
                // With Retry-After it is the server's own refusal before any work; without, some proxy that lost track.
                503 => repeat == Repeat::Harmless || retry_after.is_some(),
                504 => repeat == Repeat::Harmless,
                _ => false,
            },
            *retry_after,
        ),
        Failure::NoAnswer(error) => (
            match error {
                TransportError::Tls { .. }
                | TransportError::Credentials { .. }
                | TransportError::Garbage { .. } => false,
                // The time of the call is used up.
                TransportError::Timeout { .. } => false,
                TransportError::Connect { .. } => true,
                error => error.certainly_not_done() || repeat == Repeat::Harmless,
            },
            None,
        ),
    };
    if !worth_it {
        return None;
    }
    match wish {
        Some(wish) if wish > LONGEST_WISH => None,
        Some(wish) => Some(random.jitter(wish, 0.2)),
        None => Some(random.jitter((FIRST * 2u32.pow(attempt - 1)).min(CAP), 1.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: u16, retry_after: Option<u64>) -> Failure<'static> {
        Failure::Answer {
            status: StatusCode::from_u16(code).unwrap(),
            retry_after: retry_after.map(Duration::from_secs),
        }
    }

    fn retried(repeat: Repeat, failure: &Failure<'_>) -> bool {
        pause(1, repeat, failure, &Random::from_seed(1)).is_some()
    }

    #[test]
    fn a_write_of_unknown_outcome_is_never_repeated_blindly() {
        let broken = TransportError::Broken { why: "reset".into() };
        assert!(!retried(Repeat::OnlyIfNotDone, &Failure::NoAnswer(&broken)));
        assert!(!retried(Repeat::OnlyIfNotDone, &answer(504, None)));
        assert!(!retried(Repeat::OnlyIfNotDone, &answer(503, None)));
        assert!(retried(Repeat::Harmless, &Failure::NoAnswer(&broken)));
        assert!(retried(Repeat::Harmless, &answer(504, None)));
    }

    #[test]
    fn what_the_server_turned_away_unread_is_repeated_for_every_verb() {
        assert!(retried(Repeat::OnlyIfNotDone, &answer(429, None)));
        assert!(retried(Repeat::OnlyIfNotDone, &answer(503, Some(1))));
        assert!(retried(
            Repeat::OnlyIfNotDone,
            &Failure::NoAnswer(&TransportError::Unsent { why: "goaway".into() })
        ));
    }

    #[test]
    fn refusals_are_final() {
        for code in [400, 401, 403, 404, 409, 410, 422, 500] {
            assert!(!retried(Repeat::Harmless, &answer(code, None)), "{code}");
        }
    }

    #[test]
    fn the_wish_of_the_server_is_honoured_within_reason() {
        let random = Random::from_seed(1);
        let wait = pause(1, Repeat::Harmless, &answer(429, Some(3)), &random).unwrap();
        assert!(wait >= Duration::from_secs(3) && wait <= Duration::from_millis(3600), "{wait:?}");
        assert_eq!(pause(1, Repeat::Harmless, &answer(429, Some(60)), &random), None);
    }

    #[test]
    fn attempts_end() {
        assert_eq!(pause(ATTEMPTS, Repeat::Harmless, &answer(429, None), &Random::from_seed(1)), None);
    }
}
