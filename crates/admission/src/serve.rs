//! The webhook server: HTTPS on a socket.

use std::time::Duration;

use hyper_util::service::TowerToHyperService;
use polis_tls::{AcceptorProvider, ConnectionLimits, Timeouts};
use tokio::net::TcpListener;

use crate::Webhook;

/// Each API server keeps a few connections open, and waits ten seconds for a webhook.
const LIMITS: ConnectionLimits = ConnectionLimits {
    timeouts: Timeouts { body: Duration::from_secs(10), ..Timeouts::DEFAULT },
    ..ConnectionLimits::new(512, 100)
};

/// Serves until the future is dropped, which closes all connections.
pub async fn serve(listener: TcpListener, handshake: impl AcceptorProvider, webhook: Webhook) {
    polis_tls::serve(listener, LIMITS, handshake, move |_| TowerToHyperService::new(webhook.clone())).await;
}
