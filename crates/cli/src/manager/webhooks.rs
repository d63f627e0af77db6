//! The webhook server of a manager: where it listens, with which certificate, and about which projects.

use std::path::PathBuf;

use anyhow::{Context, Result};
use polis_admission::{CertificateFiles, CertificateSecret, Certificates, Webhook};
use polis_api::networking::LocationBinding;
use polis_engine::{Engine, PlaneSet, Watch};
use tokio::net::TcpListener;

use super::config::{SecretRef, Tls, WebhookServer};
use super::planes::Planes;

/// A webhook server that listens and does not answer yet.
pub(crate) struct Webhooks {
    listener: TcpListener,
    certificates: Certificates,
    /// Where the certificate comes from, if it is watched.
    secret: Option<CertificateSecret>,
    webhook: Webhook,
}

impl Webhooks {
    /// Where the certificate comes from, if it is watched.
    pub(crate) fn secret(&self) -> Option<CertificateSecret> {
        self.secret.clone()
    }
}

/// Opens the server. It shares the planes of the projects with the controllers, where there are any: projects are
/// engaged on every replica, leader or not, and readiness waits for them.
pub(crate) async fn open(
    server: &WebhookServer,
    engine: &mut Engine,
    planes: &Planes,
    projects: Option<PlaneSet>,
) -> Result<Webhooks> {
    let secret = server.tls.secret_ref.as_ref().map(|SecretRef { name, namespace }| {
        let clients = Some(server.client_ca_name.as_str()).filter(|key| !key.is_empty());
        CertificateSecret::watched(engine, planes.own.clone(), namespace, name, clients)
    });
    let certificates = match secret.clone() {
        Some(secret) => Certificates::of_secret(secret).await?,
        None => Certificates::open(files(&server.tls, &server.client_ca_name))?,
    };
    let host = if server.host.is_empty() { "0.0.0.0" } else { &server.host };
    let listener = TcpListener::bind((host, server.port)).await.with_context(|| {
        format!("failed to listen on {host}:{} (webhookServer.host and .port)", server.port)
    })?;
    tracing::info!(address = %listener.local_addr()?, "webhooks are served");
    let projects = projects
        .unwrap_or_else(|| engine.planes("project", planes.projects(), [Watch::of::<LocationBinding>()]));
    let webhook = Webhook::new(planes.judged(projects), &engine.handle().registry());
    Ok(Webhooks { listener, certificates, secret, webhook })
}

/// Serves for ever; without a server, waits for ever.
pub(crate) async fn serve(webhooks: Option<Webhooks>) {
    match webhooks {
        Some(Webhooks { listener, certificates, webhook, .. }) => {
            polis_admission::serve(listener, certificates, webhook).await
        }
        None => std::future::pending().await,
    }
}

/// The files of a certificate, by the configuration.
pub(crate) fn files(tls: &Tls, client_ca_name: &str) -> CertificateFiles {
    let usual = || std::env::temp_dir().join("k8s-webhook-server/serving-certs");
    let folder: PathBuf = tls.cert_dir.clone().unwrap_or_else(usual);
    let named = |name: &Option<String>, usual: &str| {
        folder.join(name.as_deref().filter(|name| !name.is_empty()).unwrap_or(usual))
    };
    CertificateFiles {
        certificate: named(&tls.cert_name, "tls.crt"),
        key: named(&tls.key_name, "tls.key"),
        clients: Some(client_ca_name).filter(|name| !name.is_empty()).map(|name| folder.join(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_mounted_secret_are_the_usual_ones() {
        let tls = Tls { cert_dir: Some("/certs".into()), ..Tls::default() };
        let found = files(&tls, "");
        assert_eq!(found, CertificateFiles::within("/certs".as_ref()));
        let tls = Tls { cert_name: Some("a.pem".into()), key_name: Some("a.key".into()), ..tls };
        let found = files(&tls, "ca.pem");
        assert_eq!(found.certificate, PathBuf::from("/certs/a.pem"));
        assert_eq!(found.clients, Some(PathBuf::from("/certs/ca.pem")));
    }
}
