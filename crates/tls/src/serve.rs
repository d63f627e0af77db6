//! The accept loop of a TLS server for HTTP/1.1 and HTTP/2.

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

/// Timeout of the TLS handshake, and of reading the headers of an HTTP/1.1 request.
const HANDSHAKE_AND_HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of the request headers, in bytes.
const MAX_HEADER_BYTES: u32 = 64 << 10;
/// Interval and timeout of HTTP/2 PINGs.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(15));
/// Delay after a failed accept. Most likely the process is out of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

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

/// The connection and stream limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Maximum number of open connections. Further connections wait to be accepted.
    pub connections: usize,
    /// Maximum number of concurrent streams of one HTTP/2 connection.
    pub streams: u32,
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

/// Serves until the future is dropped, which closes all connections. `service` makes one service for each
/// connection.
pub async fn serve<S, B>(
    listener: TcpListener,
    limits: ConnectionLimits,
    acceptors: impl AcceptorProvider,
    service: impl Fn(Peer) -> S + Clone + Send + 'static,
) where
    S: Service<Request<Incoming>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let permits = Arc::new(Semaphore::new(limits.connections));
    let mut connections = JoinSet::new();
    loop {
        // The semaphore is never closed.
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    let (acceptor, service) = (acceptors.acceptor(), service.clone());
                    connections.spawn(async move {
                        let _permit = permit;
                        connection(acceptor, service, stream, address, limits).await;
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection; will retry");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
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
    limits: ConnectionLimits,
) where
    S: Service<Request<Incoming>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    // Responses are small, and Nagle's algorithm would delay them. The socket also works without this option.
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE_AND_HEADER_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(peer = %address, %error, "TLS handshake failed"),
        Err(_) => return tracing::debug!(peer = %address, "TLS handshake timed out"),
    };
    let presented = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = presented.map(|leaf| leaf.clone().into_owned());
    let service = service(Peer { address, certificate });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HANDSHAKE_AND_HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(MAX_HEADER_BYTES)
        .keep_alive_interval(Some(KEEP_ALIVE.0))
        .keep_alive_timeout(KEEP_ALIVE.1);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(peer = %address, %error, "connection ended");
    }
}
