//! The webhook server: HTTPS on a socket.

use hyper_util::service::TowerToHyperService;
use polis_tls::{AcceptorProvider, ConnectionLimits};
use tokio::net::TcpListener;

use crate::Webhook;

/// Each API server keeps a few connections open.
const LIMITS: ConnectionLimits = ConnectionLimits { connections: 512, streams: 100 };

/// Serves until the future is dropped, which closes all connections.
pub async fn serve(listener: TcpListener, handshake: impl AcceptorProvider, webhook: Webhook) {
    polis_tls::serve(listener, LIMITS, handshake, move |_| TowerToHyperService::new(webhook.clone())).await;
}
