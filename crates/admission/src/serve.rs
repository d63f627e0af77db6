//! The webhooks on a socket: TLS, HTTP/1.1 and HTTP/2.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::{Certificates, Webhook};

/// Connections at a time; more wait to be accepted. API servers keep a few each.
const CONNECTIONS_MAX: usize = 512;
/// Streams per HTTP/2 connection.
const STREAMS_MAX: u32 = 100;
/// Time for a handshake, and for the headers of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves until the future is dropped, which ends every connection.
pub async fn serve(listener: TcpListener, certificates: Certificates, webhook: Webhook) {
    let seats = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        // The semaphore is never closed.
        let Ok(seat) = seats.clone().acquire_owned().await else { return };
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let (acceptor, webhook) = (certificates.acceptor(), webhook.clone());
                    connections.spawn(async move {
                        let _seat = seat;
                        connection(webhook, acceptor, stream, peer).await;
                    });
                }
                Err(error) => {
                    // Out of file descriptors, most likely: give others time to return some.
                    tracing::warn!(%error, "webhook server cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

async fn connection(
    webhook: Webhook,
    acceptor: tokio_rustls::TlsAcceptor,
    stream: TcpStream,
    peer: SocketAddr,
) {
    // Answers are small and waited for. A socket that refuses still works.
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%peer, %error, "handshake failed"),
        Err(_) => return tracing::debug!(%peer, "handshake took too long"),
    };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(Some(Duration::from_secs(30)))
        .keep_alive_timeout(Duration::from_secs(15));
    if let Err(error) =
        builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(webhook)).await
    {
        tracing::debug!(%peer, %error, "connection ended");
    }
}
