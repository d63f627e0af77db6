//! The queue of keys, shared by all controllers and workers of an engine. The rules are in [`crate::schedule`].

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::schedule::{Load, Priority, Schedule, Task, Verdict};
use crate::{Outcome, PlaneName, Random};

/// The queue. Cheap to clone.
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

    /// The next key, once there is one. None after [`Queue::close`].
    pub(crate) async fn next(&self) -> Option<Taken> {
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
                    return Some(Taken { task, failures, queue: self.clone(), open: true });
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

    /// No more keys are handed out.
    pub(crate) fn close(&self) {
        self.0.closed.cancel();
    }

    /// Ready once the queue is closed.
    pub(crate) async fn closed(&self) {
        self.0.closed.cancelled().await;
    }

    pub(crate) fn load(&self) -> Load {
        self.0.schedule.lock().load(Instant::now())
    }

    fn done(&self, task: &Task, verdict: Verdict) {
        self.0.schedule.lock().done(task, verdict, Instant::now());
        self.0.wake.notify_one();
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// A key in work. Dropped without a word (the worker was cancelled), it goes back to the queue.
pub(crate) struct Taken {
    pub(crate) task: Task,
    /// Failures in a row before this attempt.
    pub(crate) failures: u32,
    queue: Queue,
    open: bool,
}

impl Taken {
    pub(crate) fn finish(mut self, outcome: Outcome) {
        self.open = false;
        let verdict = match outcome {
            Outcome::Settled => Verdict::Settled,
            Outcome::After(pause) => Verdict::After(pause),
        };
        self.queue.done(&self.task, verdict);
    }

    /// Puts the key back, to be tried again later.
    pub(crate) fn fail(mut self) {
        self.open = false;
        let pause = self.queue.0.backoff.pause(self.failures.saturating_add(1), &self.queue.0.random);
        self.queue.done(&self.task, Verdict::Failed(pause));
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.open {
            self.queue.done(&self.task, Verdict::Abandoned);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;
    use std::time::Duration;

    const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), cap: Duration::from_secs(60) };

    fn mk_queue() -> Queue {
        Queue::new(BACKOFF, Random::from_seed(1))
    }

    fn mk_task(plane: &str, name: &str) -> Task {
        Task { controller: 0, key: Key::new(plane, "n", name) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_fails_for_ever_costs_one_attempt_per_cap_and_delays_nobody() {
        let queue = mk_queue();
        queue.add(mk_task("p", "bad"), Priority::Fresh);
        let start = Instant::now();
        let mut attempts = 0;
        while start.elapsed() < Duration::from_secs(3600) {
            let taken = queue.next().await.unwrap();
            attempts += 1;
            taken.fail();
            // Another key comes and is worked on at once.
            queue.add(mk_task("p", "good"), Priority::Fresh);
            let before = Instant::now();
            let good = queue.next().await.unwrap();
            assert_eq!((good.task.clone(), Instant::now()), (mk_task("p", "good"), before));
            good.finish(Outcome::Settled);
        }
        // Six doublings up to the cap, then once per 60 to 90 seconds.
        assert!((6 + 3540 / 90..=7 + 3600 / 60).contains(&attempts), "{attempts}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_appointment_is_kept_to_the_moment() {
        let queue = mk_queue();
        queue.add(mk_task("p", "a"), Priority::Fresh);
        queue.next().await.unwrap().finish(Outcome::After(Duration::from_secs(30)));
        let start = Instant::now();
        queue.next().await.unwrap().finish(Outcome::Settled);
        assert_eq!(start.elapsed(), Duration::from_secs(30));
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_is_cancelled_gives_its_key_back() {
        let queue = mk_queue();
        queue.add(mk_task("p", "a"), Priority::Fresh);
        drop(queue.next().await.unwrap());
        assert_eq!(queue.next().await.unwrap().task, mk_task("p", "a"));
    }

    #[tokio::test(start_paused = true)]
    async fn ten_thousand_keys_of_one_plane_delay_another_by_one_round() {
        let queue = mk_queue();
        for number in 0..10_000 {
            queue.add(mk_task("loud", &number.to_string()), Priority::Fresh);
        }
        queue.add(mk_task("quiet", "only"), Priority::Fresh);
        // Four workers, each key takes a second.
        let start = Instant::now();
        let seen = Arc::new(Mutex::new(None));
        for _ in 0..4 {
            let (queue, seen) = (queue.clone(), seen.clone());
            tokio::spawn(async move {
                while let Some(taken) = queue.next().await {
                    if &*taken.task.key.name == "only" {
                        *seen.lock() = Some(start.elapsed());
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    taken.finish(Outcome::Settled);
                }
            });
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(*seen.lock(), Some(Duration::ZERO), "worked on in the first round");
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_queue_hands_out_nothing_and_wakes_everyone() {
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
        for waiter in waiting {
            assert!(waiter.await.unwrap());
        }
    }
}
