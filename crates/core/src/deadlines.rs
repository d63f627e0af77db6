//! Deadlines: how long a state may last before it is called stuck.
//!
//! A state that waiting does not resolve is blocked from the start (see [`ranking::needs_action`]). Every
//! other state is expected to change, and has a deadline here: past it, a person has to look. The rollout
//! conditions of deployments and `polis why` use the same deadlines.
//!
//! [`ranking::needs_action`]: crate::ranking::needs_action

use std::time::Duration;

use polis_api::reasons::*;

/// The deadline of most states: the controllers need seconds, a machine under load some tens of them.
pub const DEFAULT: Duration = Duration::from_secs(120);
/// Pulling a large image over a slow link. Kubernetes gives a rollout the same ten minutes.
pub const PROGRAMMING: Duration = Duration::from_secs(600);
/// Longer than the longest grace period that a provider gives a program to stop.
pub const STOPPING_INSTANCE: Duration = Duration::from_secs(300);
/// How long a denial of quota, or a city without a location, must last before it counts. Quota that an
/// instance releases is granted to its replacement within this time.
pub const GRACE: Duration = Duration::from_secs(5);

/// How long the state of this reason may last.
pub fn of(reason: &str) -> Duration {
    match reason {
        PROGRAMMING_IN_PROGRESS => PROGRAMMING,
        STOPPING | STOPPED | INSTANCES_ENDING | CLEANUP_STARTED | CLEANUP_AWAITING_COMPLETION => {
            STOPPING_INSTANCE
        }
        _ => DEFAULT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pulling_an_image_may_take_longer_than_opening_a_port() {
        assert!(of(PROGRAMMING_IN_PROGRESS) > of(STARTING));
        assert!(
            of(STARTING) < Duration::from_secs(300),
            "a port that never opens is noticed in five minutes"
        );
        assert_eq!(of("OfAnotherVersion"), DEFAULT);
    }
}
