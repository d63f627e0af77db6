//! The webhooks on a socket.

use hyper_util::service::TowerToHyperService;
use polis_tls::{Handshake, Limits};
use tokio::net::TcpListener;

use crate::Webhook;

/// API servers keep a few connections each.
const LIMITS: Limits = Limits { connections: 512, streams: 100 };

/// Serves until the future is dropped, which ends every connection.
pub async fn serve(listener: TcpListener, handshake: impl Handshake, webhook: Webhook) {
    polis_tls::serve(listener, LIMITS, handshake, move |_| TowerToHyperService::new(webhook.clone())).await;
}
