//! The rules of the work queue: which key is next. Pure state, without timers or tasks.
//!
//! - Deduplication: a key is in the schedule once, however often it is added.
//! - One worker reconciles a key at a time. A key that is added while it is running is queued again
//!   afterwards.
//! - Fairness: within a priority, planes are served round-robin. Ten thousand keys of one project delay
//!   another project by one key.
//! - Fresh changes come before retries, and retries before the backlog. After [`LOW_PRIORITY_INTERVAL`] keys
//!   that overtook a lower priority, the lowest priority with ready keys is served once, so that it never
//!   starves.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::{Key, PlaneName};

/// The number of keys after which the lowest priority with ready keys is served.
pub(crate) const LOW_PRIORITY_INTERVAL: u32 = 16;

/// The priority of a key in the work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Priority {
    /// An object has changed.
    Fresh,
    /// A retry after a failure, or a requeue that a reconcile requested.
    Retry,
    /// A cached object, queued when its controller starts or a plane becomes engaged.
    Backlog,
}

const PRIORITIES: [Priority; 3] = [Priority::Fresh, Priority::Retry, Priority::Backlog];

/// A key of one controller.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Task {
    pub(crate) controller: usize,
    pub(crate) key: Key,
}

/// The state of a key that is ready, running or delayed.
#[derive(Debug, Default)]
struct TaskState {
    /// Ready, with the ticket of its valid position in a lane. Positions with other tickets are stale.
    ready: Option<(Priority, u64)>,
    ready_since: Option<Instant>,
    running: bool,
    /// Added while running: queued again with this priority afterwards.
    again: Option<Priority>,
    /// Delayed until this time.
    due: Option<(Instant, u64)>,
    failures: u32,
}

impl TaskState {
    fn is_idle(&self) -> bool {
        self.ready.is_none() && !self.running && self.due.is_none()
    }
}

/// The ready keys of one priority: a FIFO lane for each plane, served round-robin.
#[derive(Debug, Default)]
struct PriorityQueue {
    round_robin: VecDeque<PlaneName>,
    lanes: BTreeMap<PlaneName, VecDeque<(Task, u64)>>,
}

impl PriorityQueue {
    fn push(&mut self, task: Task, ticket: u64) {
        let plane = task.key.plane.clone();
        let lane = self.lanes.entry(plane.clone()).or_default();
        if lane.is_empty() {
            self.round_robin.push_back(plane);
        }
        lane.push_back((task, ticket));
    }

    /// Removes and reround_robin the next key whose position is valid.
    fn pop(&mut self, valid: impl Fn(&Task, u64) -> bool) -> Option<Task> {
        while let Some(plane) = self.round_robin.pop_front() {
            let Some(lane) = self.lanes.get_mut(&plane) else { continue };
            let mut found = None;
            while let Some((task, ticket)) = lane.pop_front() {
                if valid(&task, ticket) {
                    found = Some(task);
                    break;
                }
            }
            if lane.is_empty() {
                self.lanes.remove(&plane);
            } else {
                self.round_robin.push_back(plane);
            }
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

/// How the reconcile of a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskResult {
    /// Succeeded, and waits for a change.
    Done,
    /// Succeeded, and runs again after this time or on a change.
    RequeueAfter(Duration),
    /// Failed, and retried after this time.
    Failed(Duration),
    /// Not reconciled, and queued again after this time. Its failures still count.
    Deferred(Duration),
    /// The worker was cancelled before the reconcile ended. The key is queued again at once.
    Cancelled,
}

/// The size of the queue, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueStats {
    pub(crate) ready: [usize; 3],
    pub(crate) delayed: usize,
    pub(crate) running: usize,
    pub(crate) oldest: Duration,
}

/// The state of the work queue.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    entries: BTreeMap<Task, TaskState>,
    queues: [PriorityQueue; 3],
    delayed: BTreeSet<(Instant, u64, Task)>,
    tickets: u64,
    /// Keys served in a row while a lower priority had ready keys.
    overtakes: u32,
    ready: [usize; 3],
    running: usize,
}

impl Schedule {
    /// Adds a key. A key that is already ready keeps its position, or moves to a higher priority.
    pub(crate) fn add(&mut self, task: Task, priority: Priority, now: Instant) {
        let entry = self.entries.entry(task.clone()).or_default();
        if entry.running {
            entry.again = Some(entry.again.map_or(priority, |before| before.min(priority)));
            return;
        }
        if entry.ready.is_some_and(|(before, _)| before <= priority) {
            return;
        }
        if let Some((at, ticket)) = entry.due.take() {
            self.delayed.remove(&(at, ticket, task.clone()));
        }
        if let Some((before, _)) = entry.ready {
            self.ready[before as usize] -= 1;
        }
        self.tickets += 1;
        entry.ready = Some((priority, self.tickets));
        entry.ready_since.get_or_insert(now);
        self.ready[priority as usize] += 1;
        self.queues[priority as usize].push(task, self.tickets);
    }

    /// Removes the next ready key and marks it as running.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Task> {
        self.promote(now);
        let mut order = PRIORITIES;
        let lower_is_ready = self.ready[1] + self.ready[2] > 0;
        if self.overtakes >= LOW_PRIORITY_INTERVAL {
            order.reverse();
        }
        for priority in order {
            let entries = &self.entries;
            let valid = |task: &Task, ticket| {
                entries.get(task).is_some_and(|entry| entry.ready == Some((priority, ticket)))
            };
            let Some(task) = self.queues[priority as usize].pop(valid) else { continue };
            let overtaken =
                PRIORITIES[priority as usize + 1..].iter().any(|below| self.ready[*below as usize] > 0);
            self.overtakes = if lower_is_ready && overtaken { self.overtakes + 1 } else { 0 };
            self.ready[priority as usize] -= 1;
            self.running += 1;
            if let Some(entry) = self.entries.get_mut(&task) {
                entry.ready = None;
                entry.ready_since = None;
                entry.running = true;
            }
            return Some(task);
        }
        None
    }

    /// Records the result of a running key.
    pub(crate) fn done(&mut self, task: &Task, result: TaskResult, now: Instant) {
        let Some(entry) = self.entries.get_mut(task).filter(|entry| entry.running) else {
            return;
        };
        entry.running = false;
        self.running -= 1;
        let again = entry.again.take();
        match result {
            TaskResult::Done | TaskResult::RequeueAfter(_) => entry.failures = 0,
            TaskResult::Failed(_) => entry.failures = entry.failures.saturating_add(1),
            TaskResult::Deferred(_) | TaskResult::Cancelled => {}
        }
        match (again, result) {
            // The key was added while it was running, so the result is out of date.
            (Some(priority), _) => self.add(task.clone(), priority, now),
            (None, TaskResult::Done) => self.forget_if_idle(task),
            (
                None,
                TaskResult::RequeueAfter(pause) | TaskResult::Failed(pause) | TaskResult::Deferred(pause),
            ) => self.add_at(task, now + pause),
            (None, TaskResult::Cancelled) => self.add(task.clone(), Priority::Retry, now),
        }
    }

    /// Consecutive failures of a key.
    pub(crate) fn failures(&self, task: &Task) -> u32 {
        self.entries.get(task).map_or(0, |entry| entry.failures)
    }

    /// When the next delayed key is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.delayed.first().map(|(at, ..)| *at)
    }

    /// True if a key is ready.
    pub(crate) fn has_ready(&self) -> bool {
        self.ready.iter().any(|count| *count > 0)
    }

    /// Drops the keys of a plane and a controller. A running key is dropped when it finishes.
    pub(crate) fn forget(&mut self, controller: usize, plane: &PlaneName) {
        let tasks: Vec<Task> = self
            .entries
            .keys()
            .filter(|task| task.controller == controller && task.key.plane == *plane)
            .cloned()
            .collect();
        for task in tasks {
            let Some(entry) = self.entries.get_mut(&task) else { continue };
            entry.again = None;
            entry.failures = 0;
            if let Some((priority, _)) = entry.ready.take() {
                self.ready[priority as usize] -= 1;
            }
            if let Some((at, ticket)) = entry.due.take() {
                self.delayed.remove(&(at, ticket, task.clone()));
            }
            self.forget_if_idle(&task);
        }
    }

    pub(crate) fn stats(&self, now: Instant) -> QueueStats {
        let since = self.entries.values().filter_map(|entry| entry.ready_since).min();
        let oldest = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        QueueStats { ready: self.ready, delayed: self.delayed.len(), running: self.running, oldest }
    }

    fn add_at(&mut self, task: &Task, at: Instant) {
        let Some(entry) = self.entries.get_mut(task) else { return };
        self.tickets += 1;
        entry.due = Some((at, self.tickets));
        self.delayed.insert((at, self.tickets, task.clone()));
    }

    /// Makes delayed keys that are due ready.
    fn promote(&mut self, now: Instant) {
        while let Some((at, ..)) = self.delayed.first()
            && *at <= now
        {
            let Some((at, _, task)) = self.delayed.pop_first() else { break };
            if let Some(entry) = self.entries.get_mut(&task) {
                entry.due = None;
            }
            self.add(task, Priority::Retry, at);
        }
    }

    fn forget_if_idle(&mut self, task: &Task) {
        if self.entries.get(task).is_some_and(TaskState::is_idle) {
            self.entries.remove(task);
        }
    }

    /// Recomputes the derived state and compares it. Tests call this after every operation.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let mut ready = [0; 3];
        let mut running = 0;
        for (task, entry) in &self.entries {
            assert!(!entry.is_idle(), "{task:?} is idle but still stored");
            assert!(
                !(entry.running && (entry.ready.is_some() || entry.due.is_some())),
                "{task:?} is running and also ready or delayed"
            );
            assert!(!(entry.ready.is_some() && entry.due.is_some()), "{task:?} is both ready and delayed");
            if let Some((priority, ticket)) = entry.ready {
                ready[priority as usize] += 1;
                let lane = &self.queues[priority as usize].lanes[&task.key.plane];
                assert_eq!(
                    lane.iter().filter(|(t, n)| t == task && *n == ticket).count(),
                    1,
                    "{task:?} has no valid position in its lane"
                );
                assert!(self.queues[priority as usize].round_robin.contains(&task.key.plane));
            }
            if let Some((at, ticket)) = entry.due {
                assert!(self.delayed.contains(&(at, ticket, task.clone())));
            }
            running += usize::from(entry.running);
        }
        assert_eq!((ready, running), (self.ready, self.running));
        assert_eq!(self.delayed.len(), self.entries.values().filter(|entry| entry.due.is_some()).count());
        for queue in &self.queues {
            assert_eq!(queue.round_robin.len(), queue.lanes.len());
        }
    }
}

#[cfg(test)]
mod tests;
