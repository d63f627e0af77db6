//! One HTTP/2 connection.
//!
//! It counts its open streams against the peer's limit, detects a dead peer by PING, and after a GOAWAY
//! finishes the streams that the peer still serves. The pool chooses the connection of a request.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Connection, SendRequest};
use h2::{Ping, PingPong, RecvStream};
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Body, BoxError, TransportError};

/// Timeout for the peer's SETTINGS frame.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two PINGs.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Timeout for the response to a PING.
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// Initial stream limit, before the peer's SETTINGS arrive. No server uses this number as its limit.
const UNKNOWN: usize = 0x5e77;
/// Maximum number of streams on a connection, even if the peer allows more: with more, a lost connection
/// interrupts too many watches.
const MAX_STREAMS: usize = 1000;
/// Flow-control windows: unread bytes per stream, and per connection. Watches read at once, so small windows
/// suffice, and they bound the memory of a burst.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// A connection. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Conn {
    send: SendRequest<Bytes>,
    state: Arc<State>,
}

struct State {
    /// The peer's limit of concurrent streams.
    allowed: AtomicUsize,
    /// The number of open streams. h2 silently queues streams beyond the limit, and a watch would never free
    /// a slot.
    open: AtomicUsize,
    /// No new streams are accepted: the connection ended, or the peer sent GOAWAY.
    closed: AtomicBool,
}

impl Conn {
    /// Performs the handshake and waits for the peer's SETTINGS. A new task drives the connection until it
    /// ends.
    pub(crate) async fn establish<T>(io: T) -> Result<Self, TransportError>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut builder = h2::client::Builder::new();
        builder
            .initial_max_send_streams(UNKNOWN)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_reset_streams(64)
            .enable_push(false);
        let broken = |why: h2::Error| TransportError::Unsent { why: why.to_string().into() };
        let (send, connection) = timeout(SETTINGS_TIMEOUT, builder.handshake::<_, Bytes>(io))
            .await
            .map_err(|_| settings_timeout())?
            .map_err(broken)?;
        let state = Arc::new(State {
            allowed: AtomicUsize::new(UNKNOWN),
            open: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        });
        let (settings_received, settings) = oneshot::channel();
        tokio::spawn(drive(connection, state.clone(), settings_received));
        match timeout(SETTINGS_TIMEOUT, settings).await {
            Ok(Ok(())) => Ok(Self { send, state }),
            Ok(Err(_)) => Err(TransportError::Unsent { why: "ended during the handshake".into() }),
            Err(_) => {
                state.closed.store(true, Ordering::Release);
                Err(settings_timeout())
            }
        }
    }

    /// Reserves a slot for one stream. None if the connection is closed or has reached 90 % of the limit.
    pub(crate) fn try_reserve(&self) -> Option<Slot> {
        if self.state.closed.load(Ordering::Acquire) {
            return None;
        }
        let limit = (self.state.allowed.load(Ordering::Acquire).min(MAX_STREAMS) * 9 / 10).max(1);
        let reserved = self
            .state
            .open
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| (open < limit).then_some(open + 1));
        reserved.ok().map(|_| Slot(self.state.clone()))
    }

    /// True if no new stream can start.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.closed.load(Ordering::Acquire)
    }

    #[cfg(test)]
    pub(crate) fn open(&self) -> usize {
        self.state.open.load(Ordering::Acquire)
    }

    /// Sends a request in a reserved slot. The URI must be absolute.
    pub(crate) async fn request(
        &self,
        request: Request<Bytes>,
        slot: Slot,
    ) -> Result<Response<Body>, TransportError> {
        let unsent = |why: h2::Error| {
            self.state.closed.store(true, Ordering::Release);
            TransportError::Unsent { why: why.to_string().into() }
        };
        let (head, content) = request.into_parts();
        let mut send = self.send.clone().ready().await.map_err(unsent)?;
        let (response, mut stream) =
            send.send_request(Request::from_parts(head, ()), content.is_empty()).map_err(unsent)?;
        if !content.is_empty() {
            send_content(&mut stream, content).await.map_err(|error| self.classify(&error))?;
        }
        drop(stream);
        let response = response.await.map_err(|error| self.classify(&error))?;
        Ok(response.map(|data| Body::http2(Stream { data, _slot: slot })))
    }

    /// The peer has not processed a stream that it refused, or whose id is beyond its GOAWAY.
    fn classify(&self, error: &h2::Error) -> TransportError {
        let why: Arc<str> = error.to_string().into();
        if error.is_go_away() || error.is_io() {
            self.state.closed.store(true, Ordering::Release);
        }
        let unprocessed = error.reason() == Some(h2::Reason::REFUSED_STREAM)
            || (error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR));
        if unprocessed { TransportError::Unsent { why } } else { TransportError::Broken { why } }
    }
}

fn settings_timeout() -> TransportError {
    TransportError::Timeout { after: SETTINGS_TIMEOUT }
}

async fn send_content(stream: &mut h2::SendStream<Bytes>, mut content: Bytes) -> Result<(), h2::Error> {
    while !content.is_empty() {
        stream.reserve_capacity(content.len());
        let ready = match poll_fn(|cx| stream.poll_capacity(cx)).await {
            Some(ready) => ready?.min(content.len()),
            None => return Ok(()), // the peer has responded and accepts no more data
        };
        let part = content.split_to(ready);
        stream.send_data(part, content.is_empty())?;
    }
    Ok(())
}

/// Drives a connection to its end, updates the stream limit and sends PINGs.
async fn drive<T>(
    mut connection: Connection<T, Bytes>,
    state: Arc<State>,
    settings_received: oneshot::Sender<()>,
) where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut settings_received = Some(settings_received);
    let mut alive = connection.ping_pong().map(KeepAlive::new);
    let ended = poll_fn(|cx| {
        let ended = Pin::new(&mut connection).poll(cx);
        let allowed = connection.max_concurrent_send_streams();
        state.allowed.store(allowed, Ordering::Release);
        if allowed != UNKNOWN
            && let Some(settings_received) = settings_received.take()
        {
            let _ = settings_received.send(());
        }
        if let Poll::Ready(result) = ended {
            return Poll::Ready(result.map_err(|error| error.to_string()));
        }
        if state.closed.load(Ordering::Acquire) && state.open.load(Ordering::Acquire) == 0 {
            return Poll::Ready(Ok(())); // drained
        }
        match alive.as_mut().map(|alive| alive.poll(cx)) {
            Some(Poll::Ready(())) => Poll::Ready(Err(format!("no response to PING within {PING_TIMEOUT:?}"))),
            _ => Poll::Pending,
        }
    })
    .await;
    state.closed.store(true, Ordering::Release);
    if let Err(why) = ended {
        tracing::debug!(%why, "connection ended");
    }
}

/// Sends PINGs. Ready when the peer does not respond in time.
struct KeepAlive {
    ping: PingPong,
    timer: Pin<Box<tokio::time::Sleep>>,
    awaiting_pong: bool,
}

impl KeepAlive {
    fn new(ping: PingPong) -> Self {
        Self { ping, timer: Box::pin(sleep_until(Instant::now() + PING_INTERVAL)), awaiting_pong: false }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.awaiting_pong
                && let Poll::Ready(pong) = self.ping.poll_pong(cx)
            {
                if pong.is_err() {
                    return Poll::Ready(());
                }
                self.awaiting_pong = false;
                self.timer.as_mut().reset(Instant::now() + PING_INTERVAL);
            }
            std::task::ready!(self.timer.as_mut().poll(cx));
            if self.awaiting_pong || self.ping.send_ping(Ping::opaque()).is_err() {
                return Poll::Ready(());
            }
            self.awaiting_pong = true;
            self.timer.as_mut().reset(Instant::now() + PING_TIMEOUT);
        }
    }
}

/// A reserved stream slot of a connection, released when dropped.
pub(crate) struct Slot(Arc<State>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The body of one response.
pub(crate) struct Stream {
    data: RecvStream,
    _slot: Slot,
}

impl Stream {
    pub(super) fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BoxError>>> {
        self.data.poll_data(cx).map(|data| {
            data.map(|data| {
                let data = data?;
                self.data.flow_control().release_capacity(data.len())?;
                Ok(data)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};

    /// A peer that responds to every request with an endless body. After `silence` it neither reads nor
    /// writes, and its socket stays open, like a machine that lost its power.
    fn half_open(io: DuplexStream, silence: tokio::sync::oneshot::Receiver<()>) {
        tokio::spawn(async move {
            let mut connection = h2::server::handshake(io).await.unwrap();
            let mut streams = Vec::new();
            let serving = async {
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    streams.push(respond.send_response(Response::new(()), false).unwrap());
                }
            };
            tokio::select! { () = serving => {}, _ = silence => {} }
            std::future::pending::<()>().await;
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_peer_is_detected_and_its_streams_end() {
        let (ours, theirs) = duplex(64 * 1024);
        let (go_silent, silence) = tokio::sync::oneshot::channel();
        half_open(theirs, silence);
        let conn = Conn::establish(ours).await.unwrap();
        let slot = conn.try_reserve().unwrap();
        let request = Request::get("https://peer/watch").body(Bytes::new()).unwrap();
        let mut body = conn.request(request, slot).await.unwrap().into_body();
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(!conn.is_closed(), "an idle peer that responds to PING is alive");
        assert_eq!(conn.open(), 1);

        go_silent.send(()).unwrap();
        let start = Instant::now();
        assert!(body.frame().await.unwrap().is_err());
        assert!(start.elapsed() <= PING_INTERVAL + PING_TIMEOUT, "{:?}", start.elapsed());
        assert!(conn.is_closed() && conn.try_reserve().is_none());
        drop(body);
        assert_eq!(conn.open(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_sends_no_settings_is_a_timeout() {
        let (ours, mut theirs) = duplex(64 * 1024);
        tokio::spawn(async move {
            let mut sink = Vec::new();
            let _ = theirs.read_to_end(&mut sink).await;
        });
        let start = Instant::now();
        let failed = Conn::establish(ours).await.err();
        assert!(matches!(failed, Some(TransportError::Timeout { .. })), "{failed:?}");
        assert!(start.elapsed() <= SETTINGS_TIMEOUT);
    }
}
