//! The work queue of an engine, shared by all controllers and workers. [`crate::schedule`] contains its
//! rules.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::schedule::{Priority, QueueStats, Schedule, Task, TaskResult};
use crate::{Action, ErrorClass, PlaneName, Random};

/// Longest back-off after a transient error: a plane that does not respond, or answers 429 or 503. It comes
/// back without an event, and a person who has repaired it is watching. The workers bound the requests that
/// many such keys make.
const TRANSIENT_CAP: Duration = Duration::from_secs(10);

/// The work queue. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Queue(Arc<Inner>);

struct Inner {
    schedule: Mutex<Schedule>,
    wake: Notify,
    closed: CancellationToken,
    backoff: Backoff,
    random: Random,
}

impl Queue {
    pub(crate) fn new(backoff: Backoff, random: Random) -> Self {
        Self(Arc::new(Inner {
            schedule: Mutex::default(),
            wake: Notify::new(),
            closed: CancellationToken::new(),
            backoff,
            random,
        }))
    }

    pub(crate) fn add(&self, task: Task, priority: Priority) {
        self.0.schedule.lock().add(task, priority, Instant::now());
        self.0.wake.notify_one();
    }

    /// Waits for the next key. None after [`Queue::close`].
    pub(crate) async fn next(&self) -> Option<ActiveTask> {
        loop {
            let notified = self.0.wake.notified();
            let due = {
                if self.0.closed.is_cancelled() {
                    return None;
                }
                let mut schedule = self.0.schedule.lock();
                if let Some(task) = schedule.next(Instant::now()) {
                    let failures = schedule.failures(&task);
                    let more = schedule.has_ready();
                    drop(schedule);
                    if more {
                        self.0.wake.notify_one();
                    }
                    return Some(ActiveTask { task, failures, queue: self.clone(), finished: false });
                }
                schedule.next_due()
            };
            tokio::select! {
                biased;
                () = self.0.closed.cancelled() => return None,
                () = notified => {}
                () = until(due) => {}
            }
        }
    }

    pub(crate) fn forget(&self, controller: usize, plane: &PlaneName) {
        self.0.schedule.lock().forget(controller, plane);
    }

    /// Closes the queue: [`Queue::next`] returns no more keys.
    pub(crate) fn close(&self) {
        self.0.closed.cancel();
    }

    /// Waits until the queue is closed.
    pub(crate) async fn closed(&self) {
        self.0.closed.cancelled().await;
    }

    pub(crate) fn stats(&self) -> QueueStats {
        self.0.schedule.lock().stats(Instant::now())
    }

    fn done(&self, task: &Task, result: TaskResult) {
        self.0.schedule.lock().done(task, result, Instant::now());
        self.0.wake.notify_one();
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// A key that a worker is reconciling. If it is dropped without a result because the worker was cancelled,
/// the key is queued again.
pub(crate) struct ActiveTask {
    pub(crate) task: Task,
    /// Consecutive failures before this attempt.
    pub(crate) failures: u32,
    queue: Queue,
    finished: bool,
}

impl ActiveTask {
    pub(crate) fn finish(mut self, action: Action) {
        self.finished = true;
        let result = match action {
            Action::AwaitChange => TaskResult::Done,
            Action::RequeueAfter(delay) => TaskResult::RequeueAfter(delay),
        };
        self.queue.done(&self.task, result);
    }

    /// Queues the key again after a delay, without having reconciled it.
    pub(crate) fn defer(mut self, delay: Duration) {
        self.finished = true;
        self.queue.done(&self.task, TaskResult::Deferred(delay));
    }

    /// Queues the key again with back-off, and if the error is transient with at most [`TRANSIENT_CAP`].
    pub(crate) fn fail(mut self, class: ErrorClass) {
        self.finished = true;
        let mut backoff = self.queue.0.backoff;
        if class == ErrorClass::Transient {
            backoff.cap = backoff.cap.min(TRANSIENT_CAP);
        }
        let delay = backoff.delay(self.failures.saturating_add(1), &self.queue.0.random);
        self.queue.done(&self.task, TaskResult::Failed(delay));
    }
}

impl Drop for ActiveTask {
    fn drop(&mut self) {
        if !self.finished {
            self.queue.done(&self.task, TaskResult::Cancelled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;

    const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(60) };

    fn mk_queue() -> Queue {
        Queue::new(BACKOFF, Random::from_seed(1))
    }

    fn mk_task(plane: &str, name: &str) -> Task {
        Task { controller: 0, key: Key::new(plane, "n", name) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_always_fails_costs_one_attempt_per_cap_and_delays_no_other_key() {
        let queue = mk_queue();
        queue.add(mk_task("p", "bad"), Priority::Fresh);
        let start = Instant::now();
        let mut attempts = 0;
        while start.elapsed() < Duration::from_secs(3600) {
            let active = queue.next().await.unwrap();
            attempts += 1;
            active.fail(ErrorClass::Other);
            // Another key is added and is next at once.
            queue.add(mk_task("p", "good"), Priority::Fresh);
            let before = Instant::now();
            let good = queue.next().await.unwrap();
            assert_eq!((good.task.clone(), Instant::now()), (mk_task("p", "good"), before));
            good.finish(Action::AwaitChange);
        }
        // Six doublings up to the cap, then once per 60 to 90 seconds.
        assert!((6 + 3540 / 90..=7 + 3600 / 60).contains(&attempts), "{attempts}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_requeued_key_is_next_exactly_when_it_is_due() {
        let queue = mk_queue();
        queue.add(mk_task("p", "a"), Priority::Fresh);
        queue.next().await.unwrap().finish(Action::RequeueAfter(Duration::from_secs(30)));
        let start = Instant::now();
        queue.next().await.unwrap().finish(Action::AwaitChange);
        assert_eq!(start.elapsed(), Duration::from_secs(30));
    }

    #[tokio::test(start_paused = true)]
    async fn the_key_of_a_cancelled_worker_is_queued_again() {
        let queue = mk_queue();
        queue.add(mk_task("p", "a"), Priority::Fresh);
        drop(queue.next().await.unwrap());
        assert_eq!(queue.next().await.unwrap().task, mk_task("p", "a"));
    }

    #[tokio::test(start_paused = true)]
    async fn ten_thousand_keys_of_one_plane_delay_another_by_one_round() {
        let queue = mk_queue();
        for number in 0..10_000 {
            queue.add(mk_task("busy", &number.to_string()), Priority::Fresh);
        }
        queue.add(mk_task("quiet", "only"), Priority::Fresh);
        // Four workers, each key takes a second.
        let start = Instant::now();
        let reconciled_at = Arc::new(Mutex::new(None));
        for _ in 0..4 {
            let (queue, reconciled_at) = (queue.clone(), reconciled_at.clone());
            tokio::spawn(async move {
                while let Some(active) = queue.next().await {
                    if &*active.task.key.name == "only" {
                        *reconciled_at.lock() = Some(start.elapsed());
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    active.finish(Action::AwaitChange);
                }
            });
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(*reconciled_at.lock(), Some(Duration::ZERO), "reconciled in the first round");
    }

    #[tokio::test(start_paused = true)]
    async fn closing_the_queue_wakes_all_workers_and_ends_them() {
        let queue = mk_queue();
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                tokio::spawn({
                    let queue = queue.clone();
                    async move { queue.next().await.is_none() }
                })
            })
            .collect();
        tokio::task::yield_now().await;
        queue.close();
        queue.add(mk_task("p", "late"), Priority::Fresh);
        for worker in waiting {
            assert!(worker.await.unwrap());
        }
    }
}
