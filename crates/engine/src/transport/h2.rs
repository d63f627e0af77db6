//! One HTTP/2 connection.
//!
//! Knows how many streams the peer allows and how many are open, tells a dead peer by PING, and passes on every stream it
//! can still serve after the peer said GOAWAY. Which connection a request takes is the pool's business.

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

/// A peer that does not send its settings within this time is not an HTTP/2 server, or a dead one.
const SETTINGS_WITHIN: Duration = Duration::from_secs(5);
/// Quiet time after which the peer is asked whether it is alive.
const PING_AFTER: Duration = Duration::from_secs(30);
/// Time the peer has to answer.
const PONG_WITHIN: Duration = Duration::from_secs(15);
/// Stands for "the peer has not said yet"; no server allows this odd number.
const UNKNOWN: usize = 0x5e77;
/// Streams we put on a connection whatever the peer allows: beyond it, a lost connection hurts too many at once.
const MOST_STREAMS: usize = 1000;
/// Received bytes that may wait unread per stream, and per connection. Watches read at once, so a small window is enough, and
/// it bounds what a burst can pin in memory.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// A connection. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Conn {
    send: SendRequest<Bytes>,
    state: Arc<State>,
}

struct State {
    /// Streams the peer allows at once.
    allowed: AtomicUsize,
    /// Streams open now, counted by us: h2 would queue beyond the limit without a word, and a watch never makes room.
    open: AtomicUsize,
    /// No new streams: ended, or the peer said GOAWAY.
    closed: AtomicBool,
}

impl Conn {
    /// Shakes hands and waits for the peer's settings. The connection is driven by a task of its own until it ends.
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
        let (send, connection) = timeout(SETTINGS_WITHIN, builder.handshake::<_, Bytes>(io))
            .await
            .map_err(|_| silent())?
            .map_err(broken)?;
        let state = Arc::new(State {
            allowed: AtomicUsize::new(UNKNOWN),
            open: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        });
        let (told, settings) = oneshot::channel();
        tokio::spawn(drive(connection, state.clone(), told));
        match timeout(SETTINGS_WITHIN, settings).await {
            Ok(Ok(())) => Ok(Self { send, state }),
            Ok(Err(_)) => Err(TransportError::Unsent { why: "ended during the handshake".into() }),
            Err(_) => {
                state.closed.store(true, Ordering::Release);
                Err(silent())
            }
        }
    }

    /// Takes a place for one stream, unless the connection is full (nine tenths of what the peer allows) or closed.
    pub(crate) fn try_reserve(&self) -> Option<Slot> {
        if self.state.closed.load(Ordering::Acquire) {
            return None;
        }
        let most = (self.state.allowed.load(Ordering::Acquire).min(MOST_STREAMS) * 9 / 10).max(1);
        let taken = self
            .state
            .open
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |open| (open < most).then_some(open + 1));
        taken.ok().map(|_| Slot(self.state.clone()))
    }

    /// True once no new stream can start.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.closed.load(Ordering::Acquire)
    }

    #[cfg(test)]
    pub(crate) fn open(&self) -> usize {
        self.state.open.load(Ordering::Acquire)
    }

    /// Sends a request on a reserved place. The URI must be absolute.
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
        let (answer, mut stream) =
            send.send_request(Request::from_parts(head, ()), content.is_empty()).map_err(unsent)?;
        if !content.is_empty() {
            send_content(&mut stream, content).await.map_err(|error| self.classify(&error))?;
        }
        drop(stream);
        let response = answer.await.map_err(|error| self.classify(&error))?;
        Ok(response.map(|data| Body::http2(Stream { data, _slot: slot })))
    }

    /// A stream that the peer refused, or that it numbered beyond its GOAWAY, was not looked at.
    fn classify(&self, error: &h2::Error) -> TransportError {
        let why: Arc<str> = error.to_string().into();
        if error.is_go_away() || error.is_io() {
            self.state.closed.store(true, Ordering::Release);
        }
        let untouched = error.reason() == Some(h2::Reason::REFUSED_STREAM)
            || (error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR));
        if untouched { TransportError::Unsent { why } } else { TransportError::Broken { why } }
    }
}

fn silent() -> TransportError {
    TransportError::Timeout { after: SETTINGS_WITHIN }
}

async fn send_content(stream: &mut h2::SendStream<Bytes>, mut content: Bytes) -> Result<(), h2::Error> {
    while !content.is_empty() {
        stream.reserve_capacity(content.len());
        let ready = match poll_fn(|cx| stream.poll_capacity(cx)).await {
            Some(ready) => ready?.min(content.len()),
            None => return Ok(()), // the peer has answered already and wants no more
        };
        let part = content.split_to(ready);
        stream.send_data(part, content.is_empty())?;
    }
    Ok(())
}

/// Runs a connection to its end, keeping the stream limit up to date and asking a quiet peer whether it is alive.
async fn drive<T>(mut connection: Connection<T, Bytes>, state: Arc<State>, told: oneshot::Sender<()>)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut told = Some(told);
    let mut alive = connection.ping_pong().map(KeepAlive::new);
    let ended = poll_fn(|cx| {
        let ended = Pin::new(&mut connection).poll(cx);
        let allowed = connection.max_concurrent_send_streams();
        state.allowed.store(allowed, Ordering::Release);
        if allowed != UNKNOWN
            && let Some(told) = told.take()
        {
            let _ = told.send(());
        }
        if let Poll::Ready(result) = ended {
            return Poll::Ready(result.map_err(|error| error.to_string()));
        }
        if state.closed.load(Ordering::Acquire) && state.open.load(Ordering::Acquire) == 0 {
            return Poll::Ready(Ok(())); // drained
        }
        match alive.as_mut().map(|alive| alive.poll(cx)) {
            Some(Poll::Ready(())) => Poll::Ready(Err(format!("no answer to PING within {PONG_WITHIN:?}"))),
            _ => Poll::Pending,
        }
    })
    .await;
    state.closed.store(true, Ordering::Release);
    if let Err(why) = ended {
        tracing::debug!(%why, "connection ended");
    }
}

/// Asks the peer from time to time whether it is alive. Ready when it is not.
struct KeepAlive {
    ping: PingPong,
    timer: Pin<Box<tokio::time::Sleep>>,
    asked: bool,
}

impl KeepAlive {
    fn new(ping: PingPong) -> Self {
        Self { ping, timer: Box::pin(sleep_until(Instant::now() + PING_AFTER)), asked: false }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.asked
                && let Poll::Ready(answer) = self.ping.poll_pong(cx)
            {
                if answer.is_err() {
                    return Poll::Ready(());
                }
                self.asked = false;
                self.timer.as_mut().reset(Instant::now() + PING_AFTER);
            }
            std::task::ready!(self.timer.as_mut().poll(cx));
            if self.asked || self.ping.send_ping(Ping::opaque()).is_err() {
                return Poll::Ready(());
            }
            self.asked = true;
            self.timer.as_mut().reset(Instant::now() + PONG_WITHIN);
        }
    }
}

/// A place on a connection for one stream, free again when dropped.
pub(crate) struct Slot(Arc<State>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The data of one stream.
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

    /// A peer that answers every request with an endless body, until told to go silent: it then neither reads nor writes, and
    /// its socket stays open. What a machine looks like that lost its power.
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
    async fn a_peer_that_went_silent_is_found_out_and_its_streams_end() {
        let (ours, theirs) = duplex(64 * 1024);
        let (go_silent, silence) = tokio::sync::oneshot::channel();
        half_open(theirs, silence);
        let conn = Conn::establish(ours).await.unwrap();
        let slot = conn.try_reserve().unwrap();
        let request = Request::get("https://peer/watch").body(Bytes::new()).unwrap();
        let mut body = conn.request(request, slot).await.unwrap().into_body();
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(!conn.is_closed(), "a quiet peer that answers PING is alive");
        assert_eq!(conn.open(), 1);

        go_silent.send(()).unwrap();
        let start = Instant::now();
        assert!(body.frame().await.unwrap().is_err());
        assert!(start.elapsed() <= PING_AFTER + PONG_WITHIN, "{:?}", start.elapsed());
        assert!(conn.is_closed() && conn.try_reserve().is_none());
        drop(body);
        assert_eq!(conn.open(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_never_says_its_settings_is_no_peer() {
        let (ours, mut theirs) = duplex(64 * 1024);
        tokio::spawn(async move {
            let mut sink = Vec::new();
            let _ = theirs.read_to_end(&mut sink).await;
        });
        let start = Instant::now();
        let failed = Conn::establish(ours).await.err();
        assert!(matches!(failed, Some(TransportError::Timeout { .. })), "{failed:?}");
        assert!(start.elapsed() <= SETTINGS_WITHIN);
    }
}
