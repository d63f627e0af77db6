//! The admission webhook server of a manager.

use anyhow::{Context, Result};
use polis_admission::Webhook;
use polis_api::networking::LocationBinding;
use polis_engine::{CertificateSecret, Engine, PlaneSet, Watch};
use polis_tls::ReloadingCertificate;
use tokio::net::TcpListener;

use super::certificates;
use super::config::{SecretRef, WebhookServer};
use super::planes::Planes;

/// A webhook server with a bound socket; [`serve`] runs it.
pub(crate) struct Webhooks {
    listener: TcpListener,
    certificates: ReloadingCertificate,
    /// The Secret of the certificate, if it is watched.
    secret: Option<CertificateSecret>,
    webhook: Webhook,
}

impl Webhooks {
    /// The Secret of the certificate, if it is watched.
    pub(crate) fn secret(&self) -> Option<CertificateSecret> {
        self.secret.clone()
    }
}

/// Binds the socket and loads the certificate. The server shares the project planes with the controllers, if
/// they run: projects are engaged on every replica, leader or not, and readiness waits for them.
pub(crate) async fn open(
    server: &WebhookServer,
    engine: &mut Engine,
    planes: &Planes,
    projects: Option<PlaneSet>,
) -> Result<Webhooks> {
    let secret = server.tls.secret_ref.as_ref().map(|SecretRef { name, namespace }| {
        let clients = Some(server.client_ca_name.as_str()).filter(|key| !key.is_empty());
        CertificateSecret::watch(engine, "certificate", planes.own.clone(), (namespace, name), clients)
    });
    let certificates = match &secret {
        Some(secret) => secret.open().await.context(
            "failed to use webhookServer.tls.secretRef; deploy/components/secret-webhook-cert grants it",
        )?,
        None => {
            let files = certificates::files(&server.tls, certificates::WEBHOOKS, &server.client_ca_name);
            files.open().context("failed to use webhookServer.tls")?
        }
    };
    let host = if server.host.is_empty() { "0.0.0.0" } else { &server.host };
    let listener = TcpListener::bind((host, server.port)).await.with_context(|| {
        format!("failed to listen on {host}:{} (webhookServer.host and .port)", server.port)
    })?;
    tracing::info!(address = %listener.local_addr()?, "webhooks are served");
    if server.client_ca_name.is_empty() && !listener.local_addr()?.ip().is_loopback() {
        tracing::warn!(
            "webhooks answer every peer that reaches their port; set webhookServer.clientCAName where the API servers can present a client certificate"
        );
    }
    let projects = projects
        .unwrap_or_else(|| engine.planes("project", planes.projects(), [Watch::of::<LocationBinding>()]));
    let webhook = Webhook::new(planes.admission_projects(projects), &engine.handle().registry());
    Ok(Webhooks { listener, certificates, secret, webhook })
}

/// Serves until the process exits; without a server, waits forever.
pub(crate) async fn serve(webhooks: Option<Webhooks>) {
    match webhooks {
        Some(Webhooks { listener, certificates, webhook, .. }) => {
            polis_admission::serve(listener, certificates, webhook).await
        }
        None => std::future::pending().await,
    }
}
