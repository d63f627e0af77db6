//! [`RequestBody`]: a request body with timeouts.
//!
//! Two limits, because either alone can be evaded: a peer that sends nothing is cut off after
//! [`Timeouts::body_stall`], and a peer that sends a byte now and then after [`Timeouts::body`]. Only waiting
//! for the peer counts: data that has arrived is always returned, so a slow handler loses nothing.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::Timeouts;

/// The body of a request, which fails if the peer is too slow.
#[derive(Debug)]
pub struct RequestBody<B = Incoming> {
    data: B,
    timeouts: Timeouts,
    started: Instant,
    /// Ends the current wait for data. Most bodies are complete when they are read, and need no timer.
    timer: Option<Pin<Box<Sleep>>>,
}

/// Why a request body cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RequestBodyError<E> {
    /// The peer has stopped sending.
    #[error("no data of the request body arrived for {} s", .0.as_secs())]
    Stalled(Duration),
    /// The peer sends too slowly.
    #[error("the request body did not arrive within {} s", .0.as_secs())]
    TooSlow(Duration),
    /// The connection failed.
    #[error(transparent)]
    Connection(E),
}

impl<B> RequestBody<B> {
    pub(crate) fn new(data: B, timeouts: Timeouts) -> Self {
        Self { data, timeouts, started: Instant::now(), timer: None }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = RequestBodyError<B::Error>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Self { data, timeouts, started, timer } = &mut *self;
        if let Poll::Ready(frame) = Pin::new(data).poll_frame(cx) {
            *timer = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(RequestBodyError::Connection)));
        }
        let end = *started + timeouts.body;
        let waiting =
            timer.get_or_insert_with(|| Box::pin(sleep_until(end.min(Instant::now() + timeouts.body_stall))));
        ready!(waiting.as_mut().poll(cx));
        let error = match waiting.deadline() < end {
            true => RequestBodyError::Stalled(timeouts.body_stall),
            false => RequestBodyError::TooSlow(timeouts.body),
        };
        Poll::Ready(Some(Err(error)))
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
    use std::future::poll_fn;

    use super::*;

    /// A body of `left` bytes, one every `every`.
    struct Trickle {
        left: usize,
        every: Duration,
        next: Pin<Box<Sleep>>,
    }

    impl Body for Trickle {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if self.left == 0 {
                return Poll::Ready(None);
            }
            ready!(self.next.as_mut().poll(cx));
            let next = Instant::now() + self.every;
            self.next.as_mut().reset(next);
            self.left -= 1;
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"x")))))
        }
    }

    /// Reads a body of `left` bytes, one every `seconds`: the result, and the seconds that it took.
    async fn read(left: usize, seconds: u64) -> (Result<usize, String>, u64) {
        let every = Duration::from_secs(seconds);
        let started = Instant::now();
        let data = Trickle { left, every, next: Box::pin(sleep_until(started + every)) };
        let mut body = RequestBody::new(data, Timeouts::DEFAULT);
        let mut size = 0;
        let result = loop {
            match poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                None => break Ok(size),
                Some(Ok(_)) => size += 1,
                Some(Err(error)) => break Err(error.to_string()),
            }
        };
        (result, started.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_that_ends_in_time_is_read() {
        assert_eq!(read(50, 1).await, (Ok(50), 50));
        assert_eq!(read(2, 29).await, (Ok(2), 58));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_body_fails() {
        let stalled = "no data of the request body arrived for 30 s".to_owned();
        assert_eq!(read(5, 3600).await, (Err(stalled), 30));
    }

    #[tokio::test(start_paused = true)]
    async fn a_trickled_body_fails_although_data_arrives() {
        let slow = "the request body did not arrive within 60 s".to_owned();
        assert_eq!(read(1000, 1).await, (Err(slow), 60));
    }
}
