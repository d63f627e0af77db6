//! The metrics over TLS, to those who may see them: `metricsServer.secureServing`.
//!
//! A scraper shows a bearer token. The cluster of the process is asked whose it is, and whether they may `get` the path
//! `/metrics`, as programs of Kubernetes do that guard their metrics (`access`). While they are served here they are not on
//! the health address, which asks nobody who they are.

mod access;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use polis_apiserver::Authority;
use polis_engine::{CertificateSecret, Engine, Handle, Metrics};
use polis_tls::{Clients, Handshake, Limits, Pem};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::certificates::{self, Proof};
use super::config::{MetricsServer, SecretRef};
use super::planes::Planes;
use access::{Access, Verdict};

/// Scrapers are few, and ask for one page at a time.
const LIMITS: Limits = Limits { connections: 32, streams: 8 };

/// A server of metrics that listens and does not answer yet.
pub(crate) struct Scrapes {
    listener: TcpListener,
    handshake: Box<dyn Handshake>,
    /// Where the certificate comes from, if it is watched.
    secret: Option<CertificateSecret>,
    access: Arc<Access>,
    handle: Handle,
}

impl Scrapes {
    /// Where the certificate comes from, if it is watched.
    pub(crate) fn secret(&self) -> Option<CertificateSecret> {
        self.secret.clone()
    }
}

/// Opens the server.
pub(crate) async fn open(
    address: SocketAddr,
    server: &MetricsServer,
    engine: &mut Engine,
    planes: &Planes,
) -> Result<Scrapes> {
    let mut secret = None;
    let handshake: Box<dyn Handshake> = match certificates::proof(&server.tls, |file| file.exists()) {
        Proof::Files(files) => Box::new(files.open().context("failed to use metricsServer.tls")?),
        Proof::Secret(SecretRef { name, namespace }) => {
            let own = planes.own.clone();
            let watched = CertificateSecret::watched(engine, "metrics", own, (namespace, name), None);
            let opened = watched.open().await.context("failed to use metricsServer.tls.secretRef")?;
            secret = Some(watched);
            Box::new(opened)
        }
        Proof::Own => {
            tracing::warn!(
                "metrics are served with a certificate that nobody can check; name one with metricsServer.tls"
            );
            Box::new(own_certificate()?)
        }
    };
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("failed to listen on {address} (metricsServer.bindAddress)"))?;
    tracing::info!(address = %listener.local_addr()?, "metrics are served over TLS");
    engine.guard_metrics();
    let access = Arc::new(Access::new(planes.own.role("own")));
    Ok(Scrapes { listener, handshake, secret, access, handle: engine.handle() })
}

/// A certificate for this process alone.
fn own_certificate() -> Result<TlsAcceptor> {
    let made = Authority::new()?.server(&["localhost"])?;
    let (shown, key) = (Pem::new("of its own", made.cert), Pem::new("key", made.key));
    Ok(TlsAcceptor::from(Arc::new(polis_tls::server(&shown, &key, Clients::Unasked)?)))
}

/// Serves for ever; without a server, waits for ever.
pub(crate) async fn serve(scrapes: Option<Scrapes>) {
    let Some(Scrapes { listener, handshake, access, handle, .. }) = scrapes else {
        return std::future::pending().await;
    };
    polis_tls::serve(listener, LIMITS, handshake, move |_| {
        let (access, handle) = (access.clone(), handle.clone());
        hyper::service::service_fn(move |request: Request<Incoming>| {
            let (access, handle) = (access.clone(), handle.clone());
            async move { Ok::<_, Infallible>(answer(&request, &access, &handle).await) }
        })
    })
    .await;
}

async fn answer<B>(request: &Request<B>, access: &Access, handle: &Handle) -> Response<Full<Bytes>> {
    if request.uri().path() != access::PATH {
        return text(StatusCode::NOT_FOUND, "only /metrics is here\n".to_owned());
    }
    if request.method() != Method::GET {
        return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered here\n".to_owned());
    }
    match access.judge(request.headers().get(header::AUTHORIZATION)).await {
        Verdict::Allowed => {
            let mut response = text(StatusCode::OK, handle.metrics());
            let kind = HeaderValue::from_static(Metrics::CONTENT_TYPE);
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
            response
        }
        Verdict::Stranger => {
            let mut response = text(
                StatusCode::UNAUTHORIZED,
                "a bearer token that this cluster knows is needed here\n".to_owned(),
            );
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
        Verdict::Refused(user) => text(
            StatusCode::FORBIDDEN,
            format!(
                "{user} may not get the path /metrics; ClusterRole compute-metrics-reader of deploy/components/secure-metrics is for that\n"
            ),
        ),
        Verdict::Unsure => text(
            StatusCode::SERVICE_UNAVAILABLE,
            "who you are could not be asked; the log of the manager says why\n".to_owned(),
        ),
    }
}

fn text(code: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = code;
    response
}
