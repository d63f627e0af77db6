//! Decides when a container is started again, and computes its phase.
//!
//! A container always restarts, whatever its exit code, after a back-off that doubles with each consecutive
//! failure. A run that lasted at least `reset_after` resets the count. A container that the runtime stopped
//! (Polis shut down, or the instance was suspended) has not failed. After a failure a run is on probation for
//! as long as the back-off before it, at most ten seconds: until then it does not count as running, so that a
//! crash-looping program never appears to run.

use std::time::Duration;

use crate::provider::InstancePhase;
use crate::shim::{ShimState, Termination, TerminationCause};

/// Exponential back-off for container restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartBackoff {
    /// The back-off after the first failure.
    pub initial: Duration,
    /// The longest back-off.
    pub max: Duration,
    /// A run that lasted this long resets the count of consecutive failures.
    pub reset_after: Duration,
}

impl Default for RestartBackoff {
    /// From 0.5 s, so that a developer's mistake costs little time, to 5 min, so that a broken program costs
    /// little CPU.
    fn default() -> Self {
        RestartBackoff {
            initial: Duration::from_millis(500),
            max: Duration::from_secs(300),
            reset_after: Duration::from_secs(600),
        }
    }
}

/// The longest probation.
const MAX_PROBATION: Duration = Duration::from_secs(10);
/// A first run without ports counts as running after this time: a program that cannot start has exited by
/// then.
const MIN_UPTIME: Duration = Duration::from_millis(250);

impl RestartBackoff {
    /// The back-off after this many consecutive failures.
    pub(crate) fn backoff(&self, consecutive_failures: u32) -> Duration {
        let doublings = consecutive_failures.saturating_sub(1).min(31);
        self.initial.saturating_mul(1 << doublings).min(self.max)
    }

    /// How long a run must last before it counts as running.
    fn probation(&self, consecutive_failures: u32, has_ports: bool) -> Duration {
        match (consecutive_failures, has_ports) {
            (0, true) => Duration::ZERO,
            (0, false) => MIN_UPTIME,
            (consecutive_failures, _) => self.backoff(consecutive_failures).clamp(MIN_UPTIME, MAX_PROBATION),
        }
    }
}

/// The observed state of a container.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ObservedContainer<'a> {
    /// No run is recorded.
    NeverRan,
    /// It has been running for this long.
    Running(&'a ShimState, Duration),
    /// It exited this long ago.
    Exited(&'a ShimState, &'a Termination, Duration),
}

/// What to do with a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RestartAction {
    /// Start it with these counts.
    Start { restarts: u32, consecutive_failures: u32, last_termination: Option<Termination> },
    /// Wait for the back-off.
    Wait(Duration),
    /// It runs as desired.
    None,
    /// It runs another template.
    Stop,
}

/// Decides the next action for a container that should run a template.
pub(crate) fn plan(
    observed: ObservedContainer<'_>,
    template: &str,
    backoff: &RestartBackoff,
) -> RestartAction {
    match observed {
        ObservedContainer::NeverRan => {
            RestartAction::Start { restarts: 0, consecutive_failures: 0, last_termination: None }
        }
        ObservedContainer::Running(state, _) if state.template == template => RestartAction::None,
        ObservedContainer::Running(..) => RestartAction::Stop,
        ObservedContainer::Exited(state, termination, _)
            if state.template != template || termination.cause == TerminationCause::Stopped =>
        {
            RestartAction::Start { restarts: state.restarts, consecutive_failures: 0, last_termination: None }
        }
        ObservedContainer::Exited(state, termination, ago) => {
            let consecutive_failures = failures(state, termination, backoff);
            match backoff.backoff(consecutive_failures).checked_sub(ago) {
                Some(left) if !left.is_zero() => RestartAction::Wait(left),
                _ => RestartAction::Start {
                    restarts: state.restarts + 1,
                    consecutive_failures,
                    last_termination: Some(termination.clone()),
                },
            }
        }
    }
}

/// Consecutive failures, including the end of this run.
fn failures(state: &ShimState, termination: &Termination, backoff: &RestartBackoff) -> u32 {
    let lasted = termination.at.duration_since(state.started);
    let lasted = Duration::try_from(lasted).unwrap_or_default(); // zero if the clock was set back
    if lasted >= backoff.reset_after { 1 } else { state.consecutive_failures + 1 }
}

/// The phase of a container, and when to check it again at the latest.
pub(crate) fn phase(
    name: &str,
    observed: ObservedContainer<'_>,
    has_ports: bool,
    backoff: &RestartBackoff,
) -> (InstancePhase, Option<Duration>) {
    match observed {
        ObservedContainer::NeverRan => {
            (InstancePhase::Starting(format!("container {name} is being started")), None)
        }
        ObservedContainer::Running(state, up_for) => {
            let left = backoff.probation(state.consecutive_failures, has_ports).saturating_sub(up_for);
            match &state.last_termination {
                _ if left.is_zero() => (InstancePhase::Up(String::new()), None),
                Some(last_termination) => (
                    crashing(
                        name,
                        state.restarts,
                        &last_termination.cause,
                        backoff.backoff(state.consecutive_failures),
                    ),
                    Some(left),
                ),
                None => (InstancePhase::Starting(format!("container {name} is being started")), Some(left)),
            }
        }
        ObservedContainer::Exited(_, Termination { cause: TerminationCause::Stopped, .. }, _) => {
            (InstancePhase::Stopped, None)
        }
        ObservedContainer::Exited(state, termination, _) => {
            let delay = backoff.backoff(failures(state, termination, backoff));
            (crashing(name, state.restarts + 1, &termination.cause, delay), None)
        }
    }
}

/// The message is the same during the back-off and during the probation after it: one status update per
/// failure.
fn crashing(name: &str, restarts: u32, last: &TerminationCause, delay: Duration) -> InstancePhase {
    InstancePhase::Crashing(format!(
        "container {name} keeps exiting: restart {restarts}, after a back-off of {delay:?}; last exit: {last}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    use jiff::{SignedDuration, Timestamp};

    fn at(second: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
    }

    fn mk_state(restarts: u32, consecutive_failures: u32) -> ShimState {
        ShimState {
            shim: 1,
            pid: 2,
            restarts,
            consecutive_failures,
            last_termination: (restarts > 0).then(|| mk_termination(TerminationCause::Exit(1), 0)),
            template: "h1".into(),
            started: at(0),
            previous_started: None,
            grace_period: None,
            termination: None,
        }
    }

    fn mk_termination(cause: TerminationCause, second: i64) -> Termination {
        Termination { at: at(second), cause }
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn backoff() -> RestartBackoff {
        RestartBackoff { initial: secs(1), max: secs(60), reset_after: secs(600) }
    }

    fn start(
        restarts: u32,
        consecutive_failures: u32,
        last_termination: Option<Termination>,
    ) -> RestartAction {
        RestartAction::Start { restarts, consecutive_failures, last_termination }
    }

    #[test]
    fn back_off_doubles_up_to_the_maximum() {
        let backoffs: Vec<u64> = [1, 2, 3, 6, 7, 40, u32::MAX]
            .map(|consecutive_failures| backoff().backoff(consecutive_failures).as_secs())
            .into();
        assert_eq!(backoffs, [1, 2, 4, 32, 60, 60, 60]);
    }

    #[test]
    fn a_container_is_started_kept_or_replaced() {
        let state = mk_state(0, 0);
        assert_eq!(plan(ObservedContainer::NeverRan, "h1", &backoff()), start(0, 0, None));
        assert_eq!(plan(ObservedContainer::Running(&state, secs(1)), "h1", &backoff()), RestartAction::None);
        assert_eq!(plan(ObservedContainer::Running(&state, secs(1)), "h2", &backoff()), RestartAction::Stop);
    }

    #[test]
    fn each_failure_doubles_the_back_off() {
        let termination = mk_termination(TerminationCause::Exit(3), 2);
        let state = mk_state(2, 2);
        let after = |ago| plan(ObservedContainer::Exited(&state, &termination, secs(ago)), "h1", &backoff());
        assert_eq!(after(0), RestartAction::Wait(secs(4)));
        assert_eq!(after(3), RestartAction::Wait(secs(1)));
        assert_eq!(after(4), start(3, 3, Some(termination.clone())));
    }

    #[test]
    fn a_container_that_a_probe_ended_has_failed() {
        let (state, unhealthy) =
            (mk_state(0, 0), mk_termination(TerminationCause::Unhealthy("no answer".into()), 1));
        let observed = |ago| ObservedContainer::Exited(&state, &unhealthy, secs(ago));
        assert_eq!(plan(observed(0), "h1", &backoff()), RestartAction::Wait(secs(1)));
        assert_eq!(plan(observed(1), "h1", &backoff()), start(1, 1, Some(unhealthy.clone())));
        let (InstancePhase::Crashing(message), _) = phase("app", observed(0), true, &backoff()) else {
            panic!("not crashing");
        };
        assert!(message.ends_with("last exit: unhealthy: no answer"), "{message}");
    }

    #[test]
    fn exit_code_zero_is_a_failure_too() {
        let (state, termination) = (mk_state(0, 0), mk_termination(TerminationCause::Exit(0), 1));
        assert_eq!(
            plan(ObservedContainer::Exited(&state, &termination, secs(0)), "h1", &backoff()),
            RestartAction::Wait(secs(1))
        );
    }

    #[test]
    fn a_long_run_resets_the_back_off_and_keeps_the_restart_count() {
        let (state, termination) = (mk_state(9, 9), mk_termination(TerminationCause::Signal(9), 700));
        let observed = |ago| ObservedContainer::Exited(&state, &termination, secs(ago));
        assert_eq!(plan(observed(0), "h1", &backoff()), RestartAction::Wait(secs(1)));
        assert_eq!(plan(observed(1), "h1", &backoff()), start(10, 1, Some(termination.clone())));
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_reset_the_back_off() {
        let (state, termination) = (mk_state(1, 1), mk_termination(TerminationCause::Exit(1), -5000));
        assert_eq!(
            plan(ObservedContainer::Exited(&state, &termination, secs(0)), "h1", &backoff()),
            RestartAction::Wait(secs(2))
        );
    }

    #[test]
    fn a_stopped_container_and_one_with_a_new_template_start_at_once() {
        let state = mk_state(4, 3);
        let (stopped, failed) =
            (mk_termination(TerminationCause::Stopped, 1), mk_termination(TerminationCause::Exit(1), 1));
        assert_eq!(
            plan(ObservedContainer::Exited(&state, &stopped, secs(0)), "h1", &backoff()),
            start(4, 0, None)
        );
        assert_eq!(
            plan(ObservedContainer::Exited(&state, &failed, secs(0)), "h2", &backoff()),
            start(4, 0, None)
        );
    }

    #[test]
    fn the_crash_message_stays_the_same_until_the_probation_is_over() {
        let (before, after) = (mk_state(2, 2), mk_state(3, 3));
        let termination = mk_termination(TerminationCause::Exit(1), 1);
        let (waiting, _) =
            phase("app", ObservedContainer::Exited(&before, &termination, secs(0)), true, &backoff());
        let (probation, again) = phase("app", ObservedContainer::Running(&after, secs(1)), true, &backoff());
        assert_eq!(waiting, probation);
        assert_eq!(again, Some(secs(3)));
        let InstancePhase::Crashing(message) = waiting else { panic!("{waiting:?}") };
        assert!(message.contains("restart 3") && message.ends_with("last exit: exit code 1"), "{message}");
        assert_eq!(
            phase("app", ObservedContainer::Running(&after, secs(4)), true, &backoff()).0,
            InstancePhase::Up(String::new())
        );
    }

    #[test]
    fn a_first_run_without_ports_must_last_a_minimum_time() {
        let state = mk_state(0, 0);
        assert!(matches!(
            phase("app", ObservedContainer::Running(&state, secs(0)), false, &backoff()),
            (InstancePhase::Starting(_), Some(_))
        ));
        assert_eq!(
            phase("app", ObservedContainer::Running(&state, secs(1)), false, &backoff()),
            (InstancePhase::Up(String::new()), None)
        );
        assert_eq!(
            phase("app", ObservedContainer::Running(&state, secs(0)), true, &backoff()),
            (InstancePhase::Up(String::new()), None)
        );
    }
}
