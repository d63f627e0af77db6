//! Which key is next: the rules of the queue, without a clock or a task of their own.
//!
//! - A key is in the schedule once, however often it is added.
//! - A key is worked on by one worker at a time; what is added meanwhile is kept and comes up again afterwards.
//! - Planes take turns: within a priority the next key is of the plane whose last turn is longest ago, so ten thousand keys of
//!   one project delay another project by one key.
//! - Fresh changes come before retries, retries before the backlog; but each [`PATIENCE`]th turn goes to the lowest priority that
//!   has work, so that a busy day never starves the backlog.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::{Key, PlaneName};

/// Turns after which the lowest priority gets one.
pub(crate) const PATIENCE: u32 = 16;

/// How urgent a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Something has just changed.
    Fresh,
    /// A second look: after a failure, or because a reconcile asked for one.
    Retry,
    /// Everything there is, after a start or on engagement of a plane.
    Backlog,
}

const PRIORITIES: [Priority; 3] = [Priority::Fresh, Priority::Retry, Priority::Backlog];

/// A key of one controller.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Task {
    pub(crate) controller: usize,
    pub(crate) key: Key,
}

/// What is known about a key that is waiting, running, or failing.
#[derive(Debug, Default)]
struct Entry {
    /// Waiting in a lane, with the ticket that is valid.
    ready: Option<(Priority, u64)>,
    since: Option<Instant>,
    running: bool,
    /// Added while running.
    again: Option<Priority>,
    /// Waiting for a time.
    due: Option<(Instant, u64)>,
    failures: u32,
}

impl Entry {
    fn is_idle(&self) -> bool {
        self.ready.is_none() && !self.running && self.due.is_none()
    }
}

/// The lanes of one priority, one per plane, in the order of their turns.
#[derive(Debug, Default)]
struct Ring {
    turns: VecDeque<PlaneName>,
    lanes: BTreeMap<PlaneName, VecDeque<(Task, u64)>>,
}

impl Ring {
    fn push(&mut self, task: Task, ticket: u64) {
        let plane = task.key.plane.clone();
        let lane = self.lanes.entry(plane.clone()).or_default();
        if lane.is_empty() {
            self.turns.push_back(plane);
        }
        lane.push_back((task, ticket));
    }

    /// The first key that is still meant to be here.
    fn pop(&mut self, valid: impl Fn(&Task, u64) -> bool) -> Option<Task> {
        while let Some(plane) = self.turns.pop_front() {
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
                self.turns.push_back(plane);
            }
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

/// How work on a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Settled,
    After(Duration),
    /// Failed; to be tried again after this pause.
    Failed(Duration),
    /// Not finished through no fault of the key: again as soon as possible.
    Abandoned,
}

/// Counts, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) ready: [usize; 3],
    pub(crate) delayed: usize,
    pub(crate) running: usize,
    pub(crate) oldest: Duration,
}

/// The schedule.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    entries: BTreeMap<Task, Entry>,
    rings: [Ring; 3],
    delayed: BTreeSet<(Instant, u64, Task)>,
    tickets: u64,
    turns_above: u32,
    ready: [usize; 3],
    running: usize,
}

impl Schedule {
    /// Adds a key. Known keys keep their place, or move up to a more urgent one.
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
        entry.since.get_or_insert(now);
        self.ready[priority as usize] += 1;
        self.rings[priority as usize].push(task, self.tickets);
    }

    /// The next key to work on, which is then running.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Task> {
        self.promote(now);
        let mut order = PRIORITIES;
        let lower_waits = self.ready[1] + self.ready[2] > 0;
        if self.turns_above >= PATIENCE {
            order.reverse();
        }
        for priority in order {
            let entries = &self.entries;
            let valid = |task: &Task, ticket| {
                entries.get(task).is_some_and(|entry| entry.ready == Some((priority, ticket)))
            };
            let Some(task) = self.rings[priority as usize].pop(valid) else { continue };
            let outranked =
                PRIORITIES[priority as usize + 1..].iter().any(|below| self.ready[*below as usize] > 0);
            self.turns_above = if lower_waits && outranked { self.turns_above + 1 } else { 0 };
            self.ready[priority as usize] -= 1;
            self.running += 1;
            if let Some(entry) = self.entries.get_mut(&task) {
                entry.ready = None;
                entry.since = None;
                entry.running = true;
            }
            return Some(task);
        }
        None
    }

    /// Work on a key has ended.
    pub(crate) fn done(&mut self, task: &Task, verdict: Verdict, now: Instant) {
        let Some(entry) = self.entries.get_mut(task).filter(|entry| entry.running) else {
            return;
        };
        entry.running = false;
        self.running -= 1;
        let again = entry.again.take();
        match verdict {
            Verdict::Settled | Verdict::After(_) => entry.failures = 0,
            Verdict::Failed(_) => entry.failures = entry.failures.saturating_add(1),
            Verdict::Abandoned => {}
        }
        match (again, verdict) {
            // Something changed meanwhile: whatever the verdict was, it is out of date.
            (Some(priority), _) => self.add(task.clone(), priority, now),
            (None, Verdict::Settled) => self.forget_if_idle(task),
            (None, Verdict::After(pause) | Verdict::Failed(pause)) => self.add_at(task, now + pause),
            (None, Verdict::Abandoned) => self.add(task.clone(), Priority::Retry, now),
        }
    }

    /// Failures of a key in a row.
    pub(crate) fn failures(&self, task: &Task) -> u32 {
        self.entries.get(task).map_or(0, |entry| entry.failures)
    }

    /// When the next waiting key is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.delayed.first().map(|(at, ..)| *at)
    }

    /// True if a key can be taken now.
    pub(crate) fn has_ready(&self) -> bool {
        self.ready.iter().any(|count| *count > 0)
    }

    /// Drops the keys of a plane for a controller. One that is running finishes and is then forgotten.
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

    pub(crate) fn load(&self, now: Instant) -> Load {
        let since = self.entries.values().filter_map(|entry| entry.since).min();
        let oldest = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        Load { ready: self.ready, delayed: self.delayed.len(), running: self.running, oldest }
    }

    fn add_at(&mut self, task: &Task, at: Instant) {
        let Some(entry) = self.entries.get_mut(task) else { return };
        self.tickets += 1;
        entry.due = Some((at, self.tickets));
        self.delayed.insert((at, self.tickets, task.clone()));
    }

    /// Keys whose time has come become ready.
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
        if self.entries.get(task).is_some_and(Entry::is_idle) {
            self.entries.remove(task);
        }
    }

    /// Recomputes what is kept on the side, from scratch; tests call it after every step.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let mut ready = [0; 3];
        let mut running = 0;
        for (task, entry) in &self.entries {
            assert!(!entry.is_idle(), "{task:?} is kept for nothing");
            assert!(
                !(entry.running && (entry.ready.is_some() || entry.due.is_some())),
                "{task:?} runs and waits"
            );
            assert!(!(entry.ready.is_some() && entry.due.is_some()), "{task:?} waits twice");
            if let Some((priority, ticket)) = entry.ready {
                ready[priority as usize] += 1;
                let lane = &self.rings[priority as usize].lanes[&task.key.plane];
                assert_eq!(
                    lane.iter().filter(|(t, n)| t == task && *n == ticket).count(),
                    1,
                    "{task:?} is lost"
                );
                assert!(self.rings[priority as usize].turns.contains(&task.key.plane));
            }
            if let Some((at, ticket)) = entry.due {
                assert!(self.delayed.contains(&(at, ticket, task.clone())));
            }
            running += usize::from(entry.running);
        }
        assert_eq!((ready, running), (self.ready, self.running));
        assert_eq!(self.delayed.len(), self.entries.values().filter(|entry| entry.due.is_some()).count());
        for ring in &self.rings {
            assert_eq!(ring.turns.len(), ring.lanes.len());
        }
    }
}

#[cfg(test)]
mod tests;
