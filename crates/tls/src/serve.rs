//! The connections of a server: TLS, HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls_pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Time for a handshake, and for the headers of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest header block.
const HEADERS_MAX: u32 = 64 << 10;
/// How often a connection is asked whether somebody is still there, and how long it may take to say so.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(15));
/// Out of file descriptors, most likely: gives others time to return some.
const AFTER_A_FAILED_ACCEPT: Duration = Duration::from_millis(50);

/// How hands are shaken: asked once for every connection.
pub trait Handshake: Send + 'static {
    /// With what is to be shown now.
    fn acceptor(&self) -> TlsAcceptor;
}

impl Handshake for TlsAcceptor {
    /// Always the same.
    fn acceptor(&self) -> TlsAcceptor {
        self.clone()
    }
}

impl Handshake for Box<dyn Handshake> {
    fn acceptor(&self) -> TlsAcceptor {
        (**self).acceptor()
    }
}

/// What a server takes on at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections; more wait to be accepted.
    pub connections: usize,
    /// Streams of one HTTP/2 connection.
    pub streams: u32,
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where it is.
    pub address: SocketAddr,
    /// The certificate that it has proved to hold, if it has shown one.
    pub certificate: Option<CertificateDer<'static>>,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Serves until the future is dropped, which ends every connection. Each has a service of its own, made for its peer.
pub async fn serve<S, B>(
    listener: TcpListener,
    limits: Limits,
    handshake: impl Handshake,
    service: impl Fn(Peer) -> S + Clone + Send + 'static,
) where
    S: Service<Request<Incoming>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let seats = Arc::new(Semaphore::new(limits.connections));
    let mut connections = JoinSet::new();
    loop {
        // The semaphore is never closed.
        let Ok(seat) = seats.clone().acquire_owned().await else { return };
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    let (acceptor, service) = (handshake.acceptor(), service.clone());
                    connections.spawn(async move {
                        let _seat = seat;
                        connection(acceptor, service, stream, address, limits).await;
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection; going on");
                    tokio::time::sleep(AFTER_A_FAILED_ACCEPT).await;
                }
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

async fn connection<S, B>(
    acceptor: TlsAcceptor,
    service: impl Fn(Peer) -> S,
    stream: TcpStream,
    address: SocketAddr,
    limits: Limits,
) where
    S: Service<Request<Incoming>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    // Answers are small and waited for. A socket that refuses still works.
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(peer = %address, %error, "handshake failed"),
        Err(_) => return tracing::debug!(peer = %address, "handshake took too long"),
    };
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = shown.map(|leaf| leaf.clone().into_owned());
    let service = service(Peer { address, certificate });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(HEADERS_MAX as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(HEADERS_MAX)
        .keep_alive_interval(Some(KEEP_ALIVE.0))
        .keep_alive_timeout(KEEP_ALIVE.1);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(peer = %address, %error, "connection ended");
    }
}
