//! The accept loop of an HTTP/1.1 and HTTP/2 server, with or without TLS.
//!
//! A peer is hostile until it shows otherwise. It holds a connection only while it makes progress:
//!
//! | while the server waits for | limit |
//! |---|---|
//! | the handshake | [`Timeouts::handshake`] |
//! | the first request, or the headers of an HTTP/1.1 request | [`Timeouts::header`] |
//! | a request body | [`Timeouts::body_stall`], [`Timeouts::body`] |
//! | the next request, or a peer that does not read its responses | [`Timeouts::idle`] |
//!
//! A watch waits for the server, not for its peer, and may last for ever; HTTP/2 PINGs find a peer that is
//! gone. Connections have no maximum age: a graceful end would leave the watches of an old connection where
//! they are, and a hard one would interrupt them. How many connections a peer may hold is in `slots`.

use std::future::{Future, ready};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::activity::{RequestGuard, TrackedBody};
use crate::slots::{Slot, Slots};
use crate::{ConnectionLimits, RequestBody, Timeouts};

/// Maximum size of the request headers, in bytes.
const MAX_HEADER_BYTES: u32 = 64 << 10;
/// Interval and timeout of HTTP/2 PINGs.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(15));
/// Delay after a failed accept. Most likely the process is out of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// How long an idle connection has to end after its GOAWAY, for requests that crossed it.
const GOAWAY_GRACE: Duration = Duration::from_secs(5);

/// Provides the TLS acceptor for each new connection.
pub trait AcceptorProvider: Send + 'static {
    /// The acceptor with the current certificate.
    fn acceptor(&self) -> TlsAcceptor;
}

impl AcceptorProvider for TlsAcceptor {
    /// Always the same acceptor.
    fn acceptor(&self) -> TlsAcceptor {
        self.clone()
    }
}

impl AcceptorProvider for Box<dyn AcceptorProvider> {
    fn acceptor(&self) -> TlsAcceptor {
        (**self).acceptor()
    }
}

/// The client of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Its verified certificate, if it presented one.
    pub certificate: Option<CertificateDer<'static>>,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The service of one connection. Implemented for every service with these bounds.
pub trait ConnectionService<B>:
    Service<Request<RequestBody>, Response = Response<B>, Future: Send + 'static, Error: Into<BoxError>>
    + Send
    + 'static
{
}

impl<S, B> ConnectionService<B> for S where
    S: Service<Request<RequestBody>, Response = Response<B>, Future: Send + 'static, Error: Into<BoxError>>
        + Send
        + 'static
{
}

/// A response body of a [`ConnectionService`]. Implemented for every body with these bounds.
pub trait ConnectionBody: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static {}

impl<B> ConnectionBody for B where B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static {}

/// Serves over TLS until the future is dropped, which closes all connections. `service` makes one service for
/// each connection.
pub async fn serve<S, B>(
    listener: TcpListener,
    limits: ConnectionLimits,
    acceptors: impl AcceptorProvider,
    service: impl Fn(Peer) -> S + Clone + Send + 'static,
) where
    S: ConnectionService<B>,
    B: ConnectionBody,
{
    let handshake = move |stream| {
        let accept = acceptors.acceptor().accept(stream);
        async move {
            let stream = accept.await?;
            let presented = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
            let certificate = presented.map(|leaf| leaf.clone().into_owned());
            Ok((stream, certificate))
        }
    };
    accept_loop(listener, limits, handshake, service).await;
}

/// Serves like [`serve()`], without TLS.
pub async fn serve_plain<S, B>(
    listener: TcpListener,
    limits: ConnectionLimits,
    service: impl Fn(Peer) -> S + Clone + Send + 'static,
) where
    S: ConnectionService<B>,
    B: ConnectionBody,
{
    accept_loop(listener, limits, |stream: TcpStream| ready(Ok((stream, None))), service).await;
}

async fn accept_loop<H, I, S, B>(
    listener: TcpListener,
    limits: ConnectionLimits,
    handshake: impl Fn(TcpStream) -> H,
    service: impl Fn(Peer) -> S + Clone + Send + 'static,
) where
    H: Future<Output = io::Result<(I, Option<CertificateDer<'static>>)>> + Send + 'static,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: ConnectionService<B>,
    B: ConnectionBody,
{
    let slots = Slots::new(limits);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    let Some(slot) = slots.open(address.ip()) else {
                        tracing::debug!(peer = %address, "refused a connection: all are in use");
                        continue;
                    };
                    // Responses are small, and Nagle's algorithm would delay them. The socket also works
                    // without this option.
                    let _ = stream.set_nodelay(true);
                    let (handshake, service) = (handshake(stream), service.clone());
                    connections.spawn(async move {
                        tokio::select! {
                            () = slot.activity.evicted() => {
                                tracing::debug!(peer = %address, "closed an idle connection for another one");
                            }
                            () = connection(handshake, service, address, &slot, limits) => {}
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection; will retry");
                    slots.evict();
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

async fn connection<I, S, B>(
    handshake: impl Future<Output = io::Result<(I, Option<CertificateDer<'static>>)>>,
    service: impl Fn(Peer) -> S,
    address: SocketAddr,
    slot: &Slot,
    limits: ConnectionLimits,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: ConnectionService<B>,
    B: ConnectionBody,
{
    let timeouts = limits.timeouts;
    let (stream, certificate) = match timeout(timeouts.handshake, handshake).await {
        Ok(Ok(established)) => established,
        Ok(Err(error)) => return tracing::debug!(peer = %address, %error, "TLS handshake failed"),
        Err(_) => return tracing::debug!(peer = %address, "TLS handshake timed out"),
    };
    if !slot.keep(certificate.as_ref()) {
        return tracing::debug!(peer = %address, "refused a connection: its peer has too many");
    }
    let (service, activity) = (service(Peer { address, certificate }), slot.activity.clone());
    let tracked = service_fn(move |request: Request<Incoming>| {
        let guard = RequestGuard::new(activity.clone());
        let response = service.call(request.map(|body| RequestBody::new(body, timeouts)));
        async move { Ok::<_, S::Error>(response.await?.map(|body| TrackedBody::new(body, guard))) }
    });
    let builder = builder(limits.streams, timeouts);
    let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), tracked));
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = slot.activity.timed_out(&timeouts) => {
            serving.as_mut().graceful_shutdown();
            // A peer that ignores the GOAWAY is disconnected.
            timeout(GOAWAY_GRACE, serving).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(peer = %address, %error, "connection ended");
    }
}

fn builder(streams: u32, timeouts: Timeouts) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(timeouts.header)
        .max_buf_size(MAX_HEADER_BYTES as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .max_header_list_size(MAX_HEADER_BYTES)
        .keep_alive_interval(Some(KEEP_ALIVE.0))
        .keep_alive_timeout(KEEP_ALIVE.1);
    builder
}
