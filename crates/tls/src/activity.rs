//! What a connection waits for: the server, or its peer.
//!
//! A request waits for the server while it is handled, and while its response body has no data, as a watch
//! without events. It waits for the peer while a part of the response is to be sent, so a peer that does not
//! read its responses is as idle as one that sends no requests. A connection is idle while no request waits
//! for the server.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::Timeouts;

/// The activity of one connection.
pub(crate) struct Activity {
    state: Mutex<State>,
    evicted: Notify,
}

struct State {
    /// The number of requests that wait for the server.
    busy: usize,
    /// When a request last made progress; the connection is idle from then on if `busy` is zero.
    idle_since: Instant,
    /// Whether there has been a request.
    used: bool,
}

impl Activity {
    pub(crate) fn new() -> Self {
        let state = State { busy: 0, idle_since: Instant::now(), used: false };
        Self { state: Mutex::new(state), evicted: Notify::new() }
    }

    /// Since when the connection has been idle; `None` if it is not.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        (state.busy == 0).then_some(state.idle_since)
    }

    /// Restarts the time without a request, at the end of the handshake.
    pub(crate) fn established(&self) {
        self.state.lock().idle_since = Instant::now();
    }

    /// Waits until the peer has exceeded a timeout between requests.
    pub(crate) async fn timed_out(&self, timeouts: &Timeouts) {
        loop {
            let now = Instant::now();
            let check = {
                let state = self.state.lock();
                let timeout = if state.used { timeouts.idle } else { timeouts.header };
                if state.busy > 0 { now + timeouts.idle } else { state.idle_since + timeout }
            };
            if check <= now {
                return;
            }
            sleep_until(check).await;
        }
    }

    /// Makes the connection end.
    pub(crate) fn evict(&self) {
        self.evicted.notify_one();
    }

    /// Waits until the connection is evicted.
    pub(crate) async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

/// A request of a connection, until its response body is dropped.
pub(crate) struct RequestGuard {
    activity: Arc<Activity>,
    busy: bool,
}

impl RequestGuard {
    /// A new request, which waits for the server.
    pub(crate) fn new(activity: Arc<Activity>) -> Self {
        let mut guard = Self { activity, busy: false };
        guard.set_busy(true);
        guard
    }

    /// Records whether the request waits for the server. Each call is progress.
    fn set_busy(&mut self, busy: bool) {
        let mut state = self.activity.state.lock();
        match (self.busy, busy) {
            (false, true) => state.busy += 1,
            (true, false) => state.busy -= 1,
            _ => {}
        }
        state.idle_since = Instant::now();
        state.used = true;
        self.busy = busy;
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.set_busy(false);
    }
}

/// A response body that records what its request waits for.
pub(crate) struct TrackedBody<B> {
    data: B,
    request: RequestGuard,
}

impl<B> TrackedBody<B> {
    pub(crate) fn new(data: B, mut request: RequestGuard) -> Self {
        request.set_busy(false); // until hyper, which first waits for the peer's window, asks for data
        Self { data, request }
    }
}

impl<B: Body + Unpin> Body for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.data).poll_frame(cx);
        self.request.set_busy(polled.is_pending());
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.data.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::task::Waker;
    use std::time::Duration;

    use hyper::body::Bytes;
    use tokio::time::{advance, timeout};

    use super::*;

    /// A body that has data, or waits for it as a watch does.
    struct Events {
        ready: bool,
    }

    impl Body for Events {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            match self.ready {
                true => Poll::Ready(Some(Ok(Frame::data(Bytes::new())))),
                false => Poll::Pending,
            }
        }
    }

    /// Whether the connection times out within an hour.
    async fn times_out(activity: &Activity) -> bool {
        timeout(Duration::from_secs(3600), activity.timed_out(&Timeouts::DEFAULT)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_request_has_less_time_than_the_next_one() {
        let activity = Arc::new(Activity::new());
        let started = Instant::now();
        activity.timed_out(&Timeouts::DEFAULT).await;
        assert_eq!(started.elapsed().as_secs(), 10);
        drop(RequestGuard::new(activity.clone()));
        activity.timed_out(&Timeouts::DEFAULT).await;
        assert_eq!(started.elapsed().as_secs(), 130);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_being_handled_keeps_its_connection() {
        let activity = Arc::new(Activity::new());
        let request = RequestGuard::new(activity.clone());
        assert!(!times_out(&activity).await);
        advance(Duration::from_secs(5)).await;
        let ended = Instant::now();
        drop(request);
        activity.timed_out(&Timeouts::DEFAULT).await;
        assert_eq!(ended.elapsed().as_secs(), 120);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_keeps_its_connection_while_its_peer_reads() {
        let activity = Arc::new(Activity::new());
        let mut body = TrackedBody::new(Events { ready: false }, RequestGuard::new(activity.clone()));
        let mut poll = |ready| {
            body.data.ready = ready;
            let _ = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
        };
        poll(false);
        assert!(!times_out(&activity).await, "no event");
        poll(true);
        poll(false);
        assert!(!times_out(&activity).await, "an event was sent");
        for _ in 0..100 {
            poll(true);
            let timed_out = timeout(Duration::from_secs(60), activity.timed_out(&Timeouts::DEFAULT));
            assert!(timed_out.await.is_err(), "the peer reads slowly");
        }
        assert!(times_out(&activity).await, "an event is not read by the peer");
    }
}
