//! When a container is started, and what is to be said of it meanwhile.
//!
//! A container runs for ever: however its program ends, it is started again, after a pause that doubles with each failure in
//! a row. A run that lasted long enough is forgiven the failures before it. One that was told to stop (Polis went home,
//! the instance was suspended) has not failed. After a failure a run is on probation for as long as the pause before
//! it was, ten seconds at most: a program that ends again and again is never taken for one that runs.

use std::time::Duration;

use crate::provider::Phase;
use crate::shim::{Ending, How, State};

/// When failed containers are started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restarts {
    /// The pause after the first failure.
    pub first: Duration,
    /// The longest pause.
    pub cap: Duration,
    /// A run that lasted this long makes the next failure a first one.
    pub forgiven_after: Duration,
}

impl Default for Restarts {
    /// From half a second to five minutes: a slip of a developer costs no time, a broken program no processor.
    fn default() -> Self {
        Restarts {
            first: Duration::from_millis(500),
            cap: Duration::from_secs(300),
            forgiven_after: Duration::from_secs(600),
        }
    }
}

/// The longest probation.
const PROBATION: Duration = Duration::from_secs(10);
/// A container without ports counts as running after this time: one that cannot even begin has ended by then.
const FIRST_BREATH: Duration = Duration::from_millis(250);

impl Restarts {
    /// The pause after so many failures in a row.
    pub(crate) fn pause(&self, streak: u32) -> Duration {
        let doublings = streak.saturating_sub(1).min(31);
        self.first.saturating_mul(1 << doublings).min(self.cap)
    }

    /// How long a run must last to count.
    fn probation(&self, streak: u32, has_ports: bool) -> Duration {
        match (streak, has_ports) {
            (0, true) => Duration::ZERO,
            (0, false) => FIRST_BREATH,
            (streak, _) => self.pause(streak).clamp(FIRST_BREATH, PROBATION),
        }
    }
}

/// What there is of a container.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found<'a> {
    /// It never ran.
    Nothing,
    /// It has been up for this long.
    Up(&'a State, Duration),
    /// It ended so long ago.
    Ended(&'a State, &'a Ending, Duration),
}

/// What to do about a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Start it, with these counts.
    Start { restarts: u32, streak: u32, before: Option<Ending> },
    /// Not yet.
    Wait(Duration),
    /// It runs.
    Leave,
    /// It runs something else than is wanted.
    Stop,
}

/// What to do next about a container that is to run a template.
pub(crate) fn step(found: Found<'_>, template: &str, restarts: &Restarts) -> Step {
    match found {
        Found::Nothing => Step::Start { restarts: 0, streak: 0, before: None },
        Found::Up(state, _) if state.template == template => Step::Leave,
        Found::Up(..) => Step::Stop,
        Found::Ended(state, ending, _) if state.template != template || ending.how == How::Stopped => {
            Step::Start { restarts: state.restarts, streak: 0, before: None }
        }
        Found::Ended(state, ending, ago) => {
            let streak = failures(state, ending, restarts);
            match restarts.pause(streak).checked_sub(ago) {
                Some(left) if !left.is_zero() => Step::Wait(left),
                _ => Step::Start { restarts: state.restarts + 1, streak, before: Some(ending.clone()) },
            }
        }
    }
}

/// Failures in a row, the one at the end of this run included.
fn failures(state: &State, ending: &Ending, restarts: &Restarts) -> u32 {
    let lasted = ending.at.duration_since(state.started);
    let lasted = Duration::try_from(lasted).unwrap_or_default(); // a clock that was set back: no credit
    if lasted >= restarts.forgiven_after { 1 } else { state.streak + 1 }
}

/// What is to be said of a container, and when to look again at the latest.
pub(crate) fn phase(
    name: &str,
    found: Found<'_>,
    has_ports: bool,
    restarts: &Restarts,
) -> (Phase, Option<Duration>) {
    match found {
        Found::Nothing => (Phase::Starting(format!("container {name} is being started")), None),
        Found::Up(state, up_for) => {
            let left = restarts.probation(state.streak, has_ports).saturating_sub(up_for);
            match &state.before {
                _ if left.is_zero() => (Phase::Up(String::new()), None),
                Some(before) => {
                    (crashing(name, state.restarts, &before.how, restarts.pause(state.streak)), Some(left))
                }
                None => (Phase::Starting(format!("container {name} is being started")), Some(left)),
            }
        }
        Found::Ended(_, Ending { how: How::Stopped, .. }, _) => (Phase::Stopped, None),
        Found::Ended(state, ending, _) => {
            let pause = restarts.pause(failures(state, ending, restarts));
            (crashing(name, state.restarts + 1, &ending.how, pause), None)
        }
    }
}

/// The same words while a restart is waited for and while it is on probation: one change of status per failure.
fn crashing(name: &str, restarts: u32, last: &How, pause: Duration) -> Phase {
    Phase::Crashing(format!(
        "container {name} ends again and again: restart {restarts}, after a pause of {pause:?}; last exit: {last}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    use jiff::{SignedDuration, Timestamp};

    fn at(second: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
    }

    fn mk_state(restarts: u32, streak: u32) -> State {
        State {
            shim: 1,
            pid: 2,
            restarts,
            streak,
            before: (restarts > 0).then(|| mk_ending(How::Exit(1), 0)),
            template: "h1".into(),
            started: at(0),
            ending: None,
        }
    }

    fn mk_ending(how: How, second: i64) -> Ending {
        Ending { at: at(second), how }
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn policy() -> Restarts {
        Restarts { first: secs(1), cap: secs(60), forgiven_after: secs(600) }
    }

    fn start(restarts: u32, streak: u32, before: Option<Ending>) -> Step {
        Step::Start { restarts, streak, before }
    }

    #[test]
    fn pauses_double_up_to_the_cap() {
        let pauses: Vec<u64> =
            [1, 2, 3, 6, 7, 40, u32::MAX].map(|streak| policy().pause(streak).as_secs()).into();
        assert_eq!(pauses, [1, 2, 4, 32, 60, 60, 60]);
    }

    #[test]
    fn a_container_is_started_left_alone_or_replaced() {
        let state = mk_state(0, 0);
        assert_eq!(step(Found::Nothing, "h1", &policy()), start(0, 0, None));
        assert_eq!(step(Found::Up(&state, secs(1)), "h1", &policy()), Step::Leave);
        assert_eq!(step(Found::Up(&state, secs(1)), "h2", &policy()), Step::Stop);
    }

    #[test]
    fn what_failed_waits_longer_each_time() {
        let ending = mk_ending(How::Exit(3), 2);
        let state = mk_state(2, 2);
        let after = |ago| step(Found::Ended(&state, &ending, secs(ago)), "h1", &policy());
        assert_eq!(after(0), Step::Wait(secs(4)));
        assert_eq!(after(3), Step::Wait(secs(1)));
        assert_eq!(after(4), start(3, 3, Some(ending.clone())));
    }

    #[test]
    fn an_end_with_code_zero_is_a_failure_too() {
        let (state, ending) = (mk_state(0, 0), mk_ending(How::Exit(0), 1));
        assert_eq!(step(Found::Ended(&state, &ending, secs(0)), "h1", &policy()), Step::Wait(secs(1)));
    }

    #[test]
    fn a_long_run_is_forgiven_and_keeps_its_count() {
        let (state, ending) = (mk_state(9, 9), mk_ending(How::Signal(9), 700));
        let found = |ago| Found::Ended(&state, &ending, secs(ago));
        assert_eq!(step(found(0), "h1", &policy()), Step::Wait(secs(1)));
        assert_eq!(step(found(1), "h1", &policy()), start(10, 1, Some(ending.clone())));
    }

    #[test]
    fn a_clock_that_was_set_back_gives_no_credit_and_does_no_harm() {
        let (state, ending) = (mk_state(1, 1), mk_ending(How::Exit(1), -5000));
        assert_eq!(step(Found::Ended(&state, &ending, secs(0)), "h1", &policy()), Step::Wait(secs(2)));
    }

    #[test]
    fn what_was_told_to_stop_starts_at_once_and_so_does_another_template() {
        let state = mk_state(4, 3);
        let (stopped, failed) = (mk_ending(How::Stopped, 1), mk_ending(How::Exit(1), 1));
        assert_eq!(step(Found::Ended(&state, &stopped, secs(0)), "h1", &policy()), start(4, 0, None));
        assert_eq!(step(Found::Ended(&state, &failed, secs(0)), "h2", &policy()), start(4, 0, None));
    }

    #[test]
    fn a_failure_is_told_in_the_same_words_until_its_probation_is_over() {
        let (before, after) = (mk_state(2, 2), mk_state(3, 3));
        let ending = mk_ending(How::Exit(1), 1);
        let (waiting, _) = phase("app", Found::Ended(&before, &ending, secs(0)), true, &policy());
        let (probation, again) = phase("app", Found::Up(&after, secs(1)), true, &policy());
        assert_eq!(waiting, probation);
        assert_eq!(again, Some(secs(3)));
        let Phase::Crashing(words) = waiting else { panic!("{waiting:?}") };
        assert!(words.contains("restart 3") && words.ends_with("last exit: exit code 1"), "{words}");
        assert_eq!(phase("app", Found::Up(&after, secs(4)), true, &policy()).0, Phase::Up(String::new()));
    }

    #[test]
    fn a_first_run_without_ports_must_draw_breath() {
        let state = mk_state(0, 0);
        assert!(matches!(
            phase("app", Found::Up(&state, secs(0)), false, &policy()),
            (Phase::Starting(_), Some(_))
        ));
        assert_eq!(
            phase("app", Found::Up(&state, secs(1)), false, &policy()),
            (Phase::Up(String::new()), None)
        );
        assert_eq!(
            phase("app", Found::Up(&state, secs(0)), true, &policy()),
            (Phase::Up(String::new()), None)
        );
    }
}
