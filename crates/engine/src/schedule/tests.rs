//! Tests of the schedule: its rules one by one, a state machine test against a model, and a concurrency test.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

use super::*;

fn mk_task(plane: &str, name: &str) -> Task {
    Task { controller: 0, key: Key::new(plane, "n", name) }
}

#[test]
fn a_key_that_is_added_many_times_is_returned_once() {
    let (mut schedule, now) = (Schedule::default(), Instant::now());
    for priority in [Priority::Backlog, Priority::Fresh, Priority::Retry, Priority::Fresh] {
        schedule.add(mk_task("p", "a"), priority, now);
        schedule.check();
    }
    assert_eq!(schedule.next(now), Some(mk_task("p", "a")));
    assert_eq!(schedule.next(now), None);
    schedule.check();
}

#[test]
fn a_key_that_is_added_while_running_is_returned_again_only_after_it_is_done() {
    let (mut schedule, now) = (Schedule::default(), Instant::now());
    schedule.add(mk_task("p", "a"), Priority::Fresh, now);
    let task = schedule.next(now).unwrap();
    schedule.add(task.clone(), Priority::Fresh, now);
    assert_eq!(schedule.next(now), None);
    schedule.done(&task, TaskResult::Done, now);
    assert_eq!(schedule.next(now), Some(task));
}

#[test]
fn ten_thousand_keys_of_one_plane_delay_another_plane_by_one_key() {
    let (mut schedule, now) = (Schedule::default(), Instant::now());
    for number in 0..10_000 {
        schedule.add(mk_task("busy", &number.to_string()), Priority::Fresh, now);
    }
    schedule.add(mk_task("quiet", "only"), Priority::Fresh, now);
    let first_two = [schedule.next(now).unwrap(), schedule.next(now).unwrap()];
    assert!(first_two.contains(&mk_task("quiet", "only")), "{first_two:?}");
}

#[test]
fn fresh_changes_overtake_the_backlog_but_do_not_starve_it() {
    let (mut schedule, now) = (Schedule::default(), Instant::now());
    for number in 0..100 {
        schedule.add(mk_task("p", &format!("old{number}")), Priority::Backlog, now);
        schedule.add(mk_task("p", &format!("new{number}")), Priority::Fresh, now);
    }
    let order: Vec<_> =
        std::iter::from_fn(|| schedule.next(now)).map(|task| task.key.name.starts_with("new")).collect();
    assert!(order[..LOW_PRIORITY_INTERVAL as usize].iter().all(|fresh| *fresh));
    let first_old = order.iter().position(|fresh| !fresh).unwrap();
    assert_eq!(first_old, LOW_PRIORITY_INTERVAL as usize);
}

#[test]
fn a_fresh_change_does_not_wait_for_the_back_off() {
    let (mut schedule, now) = (Schedule::default(), Instant::now());
    let task = mk_task("p", "a");
    schedule.add(task.clone(), Priority::Fresh, now);
    schedule.next(now);
    schedule.done(&task, TaskResult::Failed(Duration::from_secs(300)), now);
    assert_eq!((schedule.next(now), schedule.failures(&task)), (None, 1));
    schedule.add(task.clone(), Priority::Fresh, now);
    assert_eq!(schedule.next(now), Some(task.clone()));
    schedule.done(&task, TaskResult::Done, now);
    assert_eq!(schedule.next(now + Duration::from_secs(301)), None, "the delayed retry is cancelled");
    schedule.check();
}

#[test]
fn a_deferred_key_keeps_its_failures() {
    let (mut schedule, now) = (Schedule::default(), Instant::now());
    let task = mk_task("p", "a");
    schedule.add(task.clone(), Priority::Fresh, now);
    schedule.next(now);
    schedule.done(&task, TaskResult::Failed(Duration::ZERO), now);
    schedule.next(now);
    schedule.done(&task, TaskResult::Deferred(Duration::from_secs(10)), now);
    assert_eq!((schedule.next(now), schedule.failures(&task)), (None, 1));
    assert_eq!(schedule.next(now + Duration::from_secs(10)), Some(task));
}

#[test]
fn forgetting_a_plane_drops_its_keys() {
    let (mut schedule, now) = (Schedule::default(), Instant::now());
    for plane in ["p", "q"] {
        for name in ["ready", "running", "waiting"] {
            schedule.add(mk_task(plane, name), Priority::Fresh, now);
        }
    }
    for _ in 0..6 {
        schedule.next(now);
    }
    for plane in ["p", "q"] {
        schedule.done(&mk_task(plane, "waiting"), TaskResult::RequeueAfter(Duration::from_secs(5)), now);
        schedule.done(&mk_task(plane, "ready"), TaskResult::Cancelled, now);
        schedule.add(mk_task(plane, "running"), Priority::Fresh, now);
    }
    schedule.forget(0, &"p".into());
    schedule.check();
    schedule.done(&mk_task("p", "running"), TaskResult::Done, now);
    schedule.check();
    assert_eq!(schedule.next(now), Some(mk_task("q", "ready")));
    assert_eq!(schedule.next(now), None);
    assert_eq!(schedule.next(now + Duration::from_secs(5)), Some(mk_task("q", "waiting")));
}

/// A simple model of the queue: sets of keys, without an order.
#[derive(Clone, Debug, Default)]
struct Model {
    ready: BTreeSet<u8>,
    running: BTreeSet<u8>,
    again: BTreeSet<u8>,
    /// Due times, in seconds since the start.
    due: BTreeMap<u8, u64>,
    now: u64,
}

#[derive(Clone, Debug)]
enum Operation {
    Add(u8, u8),
    Next,
    Done(u8, TaskResult),
    Wait(u64),
}

fn priority_of(number: u8) -> Priority {
    PRIORITIES[usize::from(number % 3)]
}

/// Four planes with four keys each.
fn task_of(number: u8) -> Task {
    mk_task(&format!("p{}", number / 4), &format!("k{}", number % 4))
}

impl Model {
    fn promote(&mut self) {
        let due: Vec<u8> = self.due.iter().filter(|(_, at)| **at <= self.now).map(|(key, _)| *key).collect();
        for key in due {
            self.due.remove(&key);
            self.ready.insert(key);
        }
    }
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Operation;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self::default()).boxed()
    }

    fn transitions(_: &Self) -> BoxedStrategy<Operation> {
        let result = prop_oneof![
            3 => Just(TaskResult::Done),
            1 => (1u64..20).prop_map(|delay| TaskResult::RequeueAfter(Duration::from_secs(delay))),
            2 => (1u64..20).prop_map(|delay| TaskResult::Failed(Duration::from_secs(delay))),
            1 => (1u64..20).prop_map(|delay| TaskResult::Deferred(Duration::from_secs(delay))),
            1 => Just(TaskResult::Cancelled),
        ];
        prop_oneof![
            4 => (0u8..16, 0u8..3).prop_map(|(key, priority)| Operation::Add(key, priority)),
            3 => Just(Operation::Next),
            3 => (0u8..16, result).prop_map(|(key, result)| Operation::Done(key, result)),
            1 => (1u64..10).prop_map(Operation::Wait),
        ]
        .boxed()
    }

    fn apply(mut state: Self, operation: &Operation) -> Self {
        match operation {
            Operation::Add(key, _) if state.running.contains(key) => {
                state.again.insert(*key);
            }
            Operation::Add(key, _) => {
                state.due.remove(key);
                state.ready.insert(*key);
            }
            Operation::Next => state.promote(), // the schedule chooses the key; see `Checked`
            Operation::Done(key, result) if state.running.remove(key) => {
                let again = state.again.remove(key);
                match result {
                    _ if again => drop(state.ready.insert(*key)),
                    TaskResult::Done => {}
                    TaskResult::Cancelled => drop(state.ready.insert(*key)),
                    TaskResult::RequeueAfter(delay)
                    | TaskResult::Failed(delay)
                    | TaskResult::Deferred(delay) => {
                        state.due.insert(*key, state.now + delay.as_secs());
                    }
                }
            }
            Operation::Done(..) => {}
            Operation::Wait(seconds) => state.now += seconds,
        }
        state
    }
}

/// The schedule and a second model. The schedule chooses which ready key is next, and this model follows the
/// choice.
struct Checked {
    schedule: Schedule,
    model: Model,
    start: Instant,
    /// For each plane with ready keys: how many keys of other planes were returned since its last one.
    waited: BTreeMap<String, usize>,
}

impl StateMachineTest for Checked {
    type SystemUnderTest = Self;
    type Reference = Model;

    fn init_test(_: &Model) -> Self {
        Self {
            schedule: Schedule::default(),
            model: Model::default(),
            start: Instant::now(),
            waited: BTreeMap::new(),
        }
    }

    fn apply(mut this: Self, _: &Model, operation: Operation) -> Self {
        let now = this.start + Duration::from_secs(this.model.now);
        match &operation {
            Operation::Add(key, priority) => this.schedule.add(task_of(*key), priority_of(*priority), now),
            Operation::Done(key, result) => this.schedule.done(&task_of(*key), *result, now),
            Operation::Wait(_) => {}
            Operation::Next => {
                this.model.promote();
                let taken = this.schedule.next(now);
                let number = taken.as_ref().map(|task| (0..16).find(|key| task_of(*key) == *task).unwrap());
                match number {
                    None => assert!(this.model.ready.is_empty(), "lost: {:?}", this.model.ready),
                    Some(key) => {
                        assert!(this.model.ready.remove(&key), "{key} was not ready");
                        assert!(this.model.running.insert(key), "{key} runs twice");
                        this.check_fairness(key);
                    }
                }
                this.schedule.check();
                return this;
            }
        }
        this.model = <Model as ReferenceStateMachine>::apply(this.model, &operation);
        this.schedule.check();
        this
    }
}

impl Checked {
    /// Checks that a plane with ready keys waits for a bounded number of keys of other planes.
    fn check_fairness(&mut self, taken: u8) {
        let plane = |key: u8| format!("p{}", key / 4);
        self.waited.remove(&plane(taken));
        let waiting: BTreeSet<String> = self.model.ready.iter().map(|key| plane(*key)).collect();
        self.waited.retain(|plane, _| waiting.contains(plane));
        for plane in waiting {
            let turns = self.waited.entry(plane.clone()).or_default();
            *turns += 1;
            let bound = 4 * (LOW_PRIORITY_INTERVAL as usize + 1) * 2;
            assert!(*turns <= bound, "{plane} has waited for {turns} keys");
        }
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 256, .. ProptestConfig::default() })]
    #[test]
    fn the_schedule_loses_no_key_and_runs_none_twice(sequential 1..120 => Checked);
}

/// Worker threads in random interleavings by shuttle.
#[test]
fn concurrent_workers_never_share_a_key_and_lose_none() {
    use shuttle::sync::{Arc, Mutex};
    use shuttle::thread;

    shuttle::check_random(
        || {
            let start = Instant::now();
            let schedule = Arc::new(Mutex::new(Schedule::default()));
            let in_progress: Arc<Mutex<BTreeSet<Task>>> = Arc::default();
            // For each key: the number of changes, and how many of them a worker has reconciled.
            let changes_by_key: Arc<Mutex<BTreeMap<Task, (u32, u32)>>> = Arc::default();
            let change = {
                let (schedule, changes_by_key) = (schedule.clone(), changes_by_key.clone());
                move |task: Task| {
                    changes_by_key.lock().unwrap().entry(task.clone()).or_default().0 += 1;
                    schedule.lock().unwrap().add(task, Priority::Fresh, start);
                }
            };
            let work = {
                let (schedule, in_progress, changes_by_key) =
                    (schedule.clone(), in_progress.clone(), changes_by_key.clone());
                move || {
                    let taken = schedule.lock().unwrap().next(start);
                    let Some(task) = taken else { return false };
                    assert!(in_progress.lock().unwrap().insert(task.clone()), "two workers on {task:?}");
                    {
                        let mut changes_by_key = changes_by_key.lock().unwrap();
                        let entry = changes_by_key.entry(task.clone()).or_default();
                        entry.1 = entry.0;
                    }
                    thread::yield_now();
                    in_progress.lock().unwrap().remove(&task);
                    schedule.lock().unwrap().done(&task, TaskResult::Done, start);
                    true
                }
            };
            let mut threads = Vec::new();
            for plane in ["p", "q"] {
                let change = change.clone();
                threads.push(thread::spawn(move || {
                    for name in ["a", "b", "a"] {
                        change(mk_task(plane, name));
                    }
                }));
            }
            for _ in 0..2 {
                let work = work.clone();
                threads.push(thread::spawn(move || {
                    for _ in 0..6 {
                        work();
                    }
                }));
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            while work() {}
            for (task, (changes, reconciled)) in &*changes_by_key.lock().unwrap() {
                assert_eq!(changes, reconciled, "{task:?} has a change that no worker reconciled");
            }
        },
        200,
    );
}
