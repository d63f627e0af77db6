//! A priority level at work: the fair queue, and the tasks that wait in it.

use std::{
    collections::HashMap,
    task::{Context, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use polis_apimachinery::fair_queue::{FairQueue, FlowKey, Limits, QueueFull, Ticket};

use crate::metrics::LevelMetrics;

/// The queue of a level and the tasks that wait for a permit.
pub(super) struct Level {
    state: Mutex<State>,
    pub(super) metrics: LevelMetrics,
}

struct State {
    queue: FairQueue,
    /// The requests without a permit, and those that have one and do not know it yet.
    waiters: HashMap<Ticket, PendingRequest>,
}

#[derive(Default)]
struct PendingRequest {
    granted: bool,
    waker: Option<Waker>,
}

impl Level {
    pub(super) fn new(limits: Limits, metrics: LevelMetrics) -> Self {
        let state = State { queue: FairQueue::new(limits), waiters: HashMap::new() };
        Self { state: Mutex::new(state), metrics }
    }

    /// Queues a new request.
    pub(super) fn arrive(&self, key: &FlowKey) -> Result<Ticket, QueueFull> {
        let mut state = self.state.lock();
        let ticket = state.queue.arrive(key)?;
        state.waiters.insert(ticket, PendingRequest::default());
        self.dispatch(state);
        Ok(ticket)
    }

    /// Queues a request that has given its permit back.
    pub(super) fn resume(&self, key: &FlowKey, ticket: Ticket) {
        let mut state = self.state.lock();
        state.queue.resume(key, ticket);
        state.waiters.insert(ticket, PendingRequest::default());
        self.dispatch(state);
    }

    /// Whether the request has a permit. If not, its task is woken when it has one.
    pub(super) fn poll_permit(&self, ticket: Ticket, context: &mut Context<'_>) -> bool {
        let mut state = self.state.lock();
        match state.waiters.get_mut(&ticket) {
            Some(waiter) if !waiter.granted => {
                waiter.waker = Some(context.waker().clone());
                false
            }
            _ => {
                state.waiters.remove(&ticket);
                true
            }
        }
    }

    /// Takes the permit of a request back after it has computed for this time.
    pub(super) fn finish(&self, key: &FlowKey, used: Duration) {
        let mut state = self.state.lock();
        state.queue.finish(key, used);
        self.dispatch(state);
    }

    /// Removes a request that waits, or that has a permit and does not know it.
    pub(super) fn abandon(&self, key: &FlowKey, ticket: Ticket) {
        let mut state = self.state.lock();
        match state.waiters.remove(&ticket) {
            Some(PendingRequest { granted: true, .. }) => state.queue.finish(key, Duration::ZERO),
            _ => state.queue.abandon(key, ticket),
        }
        self.dispatch(state);
    }

    /// Gives free permits to waiting requests and wakes their tasks.
    fn dispatch(&self, mut state: parking_lot::MutexGuard<'_, State>) {
        let mut woken = Vec::new();
        for ticket in state.queue.dispatch() {
            let waiter = state.waiters.entry(ticket).or_default();
            waiter.granted = true;
            woken.extend(waiter.waker.take());
        }
        self.metrics.show(state.queue.executing(), state.queue.waiting());
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}
