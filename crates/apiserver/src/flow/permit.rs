//! Futures that compute outside of the threads that serve connections, with and without a permit.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use polis_apimachinery::fair_queue::{FlowKey, Ticket};
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    time::Sleep,
};

use super::{caller::Caller, level::Level};
use crate::status::StatusError;

/// Longest wait for the first permit; a quarter of the deadline, as in Kubernetes.
const QUEUE_WAIT: Duration = Duration::from_secs(15);

/// Computes outside of the threads that serve connections: tokio moves the other tasks of this thread to
/// another one. Only its runtime with several threads can; on others the work stays here.
fn off_reactor<T>(compute: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|handle| handle.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(compute),
        _ => compute(),
    }
}

/// A future each of whose steps is computed outside of the threads that serve connections.
pub(super) struct OffReactor<F: ?Sized>(pub(super) Pin<Box<F>>);

impl<F: Future + ?Sized> Future for OffReactor<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        off_reactor(|| self.0.as_mut().poll(context))
    }
}

/// Why a request was not computed to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PermitError {
    QueueFull,
    TimedOut,
    Panicked,
}

impl PermitError {
    pub(super) fn status(self, caller: &Caller) -> StatusError {
        let identity = caller.identity();
        match self {
            Self::QueueFull => StatusError::too_many(format!(
                "too many requests of {identity} or of its priority level wait: try again later"
            )),
            Self::TimedOut => StatusError::too_many(format!(
                "the request of {identity} waited {} s for its turn: try again later",
                QUEUE_WAIT.as_secs()
            )),
            Self::Panicked => {
                StatusError::internal("the request made the server panic; the log has the cause")
            }
        }
    }
}

enum State {
    /// Not queued yet.
    New,
    Waiting(Ticket),
    /// Between two steps: the future waits for something else than a permit.
    Paused(Ticket),
    Done,
}

/// A future that computes on a permit of its level, and waits without one.
pub(super) struct WithPermit<F: ?Sized> {
    level: Arc<Level>,
    key: FlowKey,
    state: State,
    arrived: Instant,
    /// The end of the wait for the first permit.
    timeout: Option<Pin<Box<Sleep>>>,
    request: Pin<Box<F>>,
}

impl<F: Future + ?Sized> WithPermit<F> {
    pub(super) fn new(level: Arc<Level>, key: FlowKey, request: Pin<Box<F>>) -> Self {
        Self { level, key, state: State::New, arrived: Instant::now(), timeout: None, request }
    }

    /// Waits for a permit. `None` when there is one.
    fn poll_permit(&mut self, context: &mut Context<'_>) -> Poll<Result<Ticket, PermitError>> {
        let ticket = match self.state {
            State::New => {
                let Ok(ticket) = self.level.arrive(&self.key) else {
                    self.state = State::Done;
                    self.level.metrics.reject("queue-full");
                    return Poll::Ready(Err(PermitError::QueueFull));
                };
                self.timeout = Some(Box::pin(tokio::time::sleep(QUEUE_WAIT)));
                ticket
            }
            State::Paused(ticket) => {
                self.level.resume(&self.key, ticket);
                ticket
            }
            State::Waiting(ticket) => ticket,
            State::Done => return Poll::Pending,
        };
        self.state = State::Waiting(ticket);
        if self.level.poll_permit(ticket, context) {
            if self.timeout.take().is_some() {
                self.level.metrics.dispatch(self.arrived.elapsed());
            }
            // The permit is taken: from here on `abandon` must not be called.
            self.state = State::Done;
            return Poll::Ready(Ok(ticket));
        }
        if let Some(timeout) = &mut self.timeout
            && timeout.as_mut().poll(context).is_ready()
        {
            self.level.abandon(&self.key, ticket);
            self.state = State::Done;
            self.level.metrics.reject("time-out");
            return Poll::Ready(Err(PermitError::TimedOut));
        }
        Poll::Pending
    }
}

impl<F: Future + ?Sized> Future for WithPermit<F> {
    type Output = Result<F::Output, PermitError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let ticket = match this.poll_permit(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Ready(Ok(ticket)) => ticket,
        };
        let start = Instant::now();
        let step = catch_unwind(AssertUnwindSafe(|| off_reactor(|| this.request.as_mut().poll(context))));
        this.level.finish(&this.key, start.elapsed());
        match step {
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Ok(Poll::Pending) => {
                this.state = State::Paused(ticket);
                Poll::Pending
            }
            Err(_) => Poll::Ready(Err(PermitError::Panicked)),
        }
    }
}

impl<F: ?Sized> Drop for WithPermit<F> {
    fn drop(&mut self) {
        if let State::Waiting(ticket) = self.state {
            self.level.abandon(&self.key, ticket);
        }
    }
}
