//! The secure metrics server: TLS, authentication and authorisation (`metricsServer.secureServing`).
//!
//! A scraper sends a bearer token. `access` authenticates it with a TokenReview and authorises `get` on the
//! path `/metrics` with a SubjectAccessReview, as controller-runtime does. While this server runs, the health
//! address, which has no authentication, does not serve metrics.

mod access;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use polis_engine::{CertificateSecret, Engine, Handle, Metrics};
use polis_tls::ServerTls;
use polis_tls::{AcceptorProvider, ConnectionLimits, RequestBody};
use tokio::net::TcpListener;

use super::certificates::{self, CertificateSource};
use super::config::{MetricsServer, SecretRef};
use super::planes::Planes;
use access::{AccessDecision, MetricsAuthorizer};

/// Connection limits: scrapers are few and send one request at a time.
const LIMITS: ConnectionLimits = ConnectionLimits::new(32, 8);

/// A metrics server with a bound socket; [`serve`] runs it.
pub(crate) struct SecureMetricsServer {
    listener: TcpListener,
    acceptor: Box<dyn AcceptorProvider>,
    /// The Secret of the certificate, if it is watched.
    secret: Option<CertificateSecret>,
    access: Arc<MetricsAuthorizer>,
    handle: Handle,
}

impl SecureMetricsServer {
    /// The Secret of the certificate, if it is watched.
    pub(crate) fn secret(&self) -> Option<CertificateSecret> {
        self.secret.clone()
    }
}

/// Binds the socket and loads the certificate.
pub(crate) async fn open(
    address: SocketAddr,
    server: &MetricsServer,
    engine: &mut Engine,
    planes: &Planes,
) -> Result<SecureMetricsServer> {
    let mut secret = None;
    let acceptor: Box<dyn AcceptorProvider> = match certificates::source(&server.tls, |file| file.exists()) {
        CertificateSource::Files(files) => Box::new(files.open().context("failed to use metricsServer.tls")?),
        CertificateSource::Secret(SecretRef { name, namespace }) => {
            let own = planes.own.clone();
            let watched = CertificateSecret::watch(engine, "metrics", own, (namespace, name), None);
            let opened = watched.open().await.context("failed to use metricsServer.tls.secretRef")?;
            secret = Some(watched);
            Box::new(opened)
        }
        CertificateSource::SelfSigned => {
            tracing::warn!(
                "metrics are served with a self-signed certificate, which clients cannot verify; set metricsServer.tls"
            );
            Box::new(ServerTls::self_signed(["localhost".to_owned()])?)
        }
    };
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("failed to listen on {address} (metricsServer.bindAddress)"))?;
    tracing::info!(address = %listener.local_addr()?, "metrics are served over TLS");
    engine.disable_admin_metrics();
    let access = Arc::new(MetricsAuthorizer::new(planes.own.with_role("own")));
    Ok(SecureMetricsServer { listener, acceptor, secret, access, handle: engine.handle() })
}

/// Serves until the process exits; without a server, waits forever.
pub(crate) async fn serve(metrics_server: Option<SecureMetricsServer>) {
    let Some(SecureMetricsServer { listener, acceptor, access, handle, .. }) = metrics_server else {
        return std::future::pending().await;
    };
    polis_tls::serve(listener, LIMITS, acceptor, move |_| {
        let (access, handle) = (access.clone(), handle.clone());
        hyper::service::service_fn(move |request: Request<RequestBody>| {
            let (access, handle) = (access.clone(), handle.clone());
            async move { Ok::<_, Infallible>(respond(&request, &access, &handle).await) }
        })
    })
    .await;
}

async fn respond<B>(
    request: &Request<B>,
    access: &MetricsAuthorizer,
    handle: &Handle,
) -> Response<Full<Bytes>> {
    if request.uri().path() != access::PATH {
        return text(StatusCode::NOT_FOUND, "not found: this server has only /metrics\n".to_owned());
    }
    if request.method() != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed: use GET\n".to_owned());
    }
    match access.authorize(request.headers().get(header::AUTHORIZATION)).await {
        AccessDecision::Allowed => {
            let mut response = text(StatusCode::OK, handle.metrics());
            let kind = HeaderValue::from_static(Metrics::CONTENT_TYPE);
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        }
        AccessDecision::Unauthenticated => {
            let mut response = text(
                StatusCode::UNAUTHORIZED,
                "unauthorized: send a bearer token that this cluster accepts\n".to_owned(),
            );
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
        AccessDecision::Forbidden(user) => text(
            StatusCode::FORBIDDEN,
            format!(
                "{user} may not get the path /metrics; ClusterRole compute-metrics-reader of deploy/components/secure-metrics grants it\n"
            ),
        ),
        AccessDecision::Unavailable => text(
            StatusCode::SERVICE_UNAVAILABLE,
            "service unavailable: failed to review the token; see the log of the manager\n".to_owned(),
        ),
    }
}

fn text(code: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = code;
    response
}
