//! The fake server on a socket: TLS, a stream limit, optionally only HTTP/1.1, and connections that a test
//! can break.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use polis_api::kube;
use polis_engine::Plane;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_rustls::TlsAcceptor;
use tower::Service;

use super::FakeApiServer;
use super::body::{self, FakeBody};

pub struct Options {
    pub streams: u32,
    pub http2: bool,
    /// Accept only clients with a certificate of the test CA.
    pub client_certificates: bool,
    /// Accept only requests with this bearer token.
    pub token: Arc<Mutex<Option<String>>>,
}

impl Default for Options {
    fn default() -> Self {
        Self { streams: 100, http2: true, client_certificates: false, token: Arc::default() }
    }
}

/// A server on a free port, stopped when dropped.
pub struct Server {
    pub address: SocketAddr,
    pub authority: Authority,
    accepting: JoinHandle<()>,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
    goaway: tokio::sync::watch::Sender<u64>,
    accepted: Arc<std::sync::atomic::AtomicUsize>,
}

/// A certificate authority for one test.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub der: CertificateDer<'static>,
    pub pem: String,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        let (der, pem) = (certificate.der().clone(), certificate.pem());
        Self { issuer: Issuer::new(params, key), der, pem }
    }

    /// Issues a certificate and key, as PEM and as DER.
    pub fn issue(
        &self,
        names: &[&str],
        usage: ExtendedKeyUsagePurpose,
    ) -> (String, String, CertificateDer<'static>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        (certificate.pem(), key.serialize_pem(), certificate.der().clone(), der)
    }
}

impl Server {
    pub async fn start(fake: FakeApiServer, options: Options) -> Self {
        let authority = Authority::new();
        let (_, _, certificate, key) = authority.issue(&["127.0.0.1"], ExtendedKeyUsagePurpose::ServerAuth);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = if options.client_certificates {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(authority.der.clone()).unwrap();
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let mut tls = builder.with_single_cert(vec![certificate], key).unwrap();
        tls.alpn_protocols = if options.http2 {
            vec![b"h2".to_vec(), b"http/1.1".to_vec()]
        } else {
            vec![b"http/1.1".to_vec()]
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections: Arc<Mutex<Vec<AbortHandle>>> = Arc::default();
        let accepted = Arc::<std::sync::atomic::AtomicUsize>::default();
        let (goaway, goaway_requested) = tokio::sync::watch::channel(0);
        let accepting = tokio::spawn({
            let (acceptor, connections, accepted) =
                (TlsAcceptor::from(Arc::new(tls)), connections.clone(), accepted.clone());
            async move {
                while let Ok((socket, _)) = listener.accept().await {
                    accepted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let (acceptor, fake, token, mut goaway_requested) =
                        (acceptor.clone(), fake.clone(), options.token.clone(), goaway_requested.clone());
                    goaway_requested.mark_unchanged();
                    let task = tokio::spawn(async move {
                        let Ok(stream) = acceptor.accept(socket).await else { return };
                        let service = service_fn(move |request: Request<Incoming>| {
                            respond(fake.clone(), token.lock().clone(), request)
                        });
                        let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                        builder.http2().max_concurrent_streams(options.streams);
                        let mut serving =
                            std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
                        tokio::select! {
                            _ = serving.as_mut() => return,
                            _ = goaway_requested.changed() => serving.as_mut().graceful_shutdown(),
                        }
                        let _ = serving.await;
                    });
                    connections.lock().push(task.abort_handle());
                }
            }
        });
        Self { address, authority, accepting, connections, goaway, accepted }
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Closes every connection abruptly.
    pub fn break_connections(&self) {
        self.connections.lock().drain(..).for_each(|connection| connection.abort());
    }

    /// Sends GOAWAY on every connection. Running requests finish.
    pub fn send_goaway(&self) {
        self.goaway.send_modify(|goaway_requested| *goaway_requested += 1);
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub fn config(&self) -> kube::Config {
        let mut config = kube::Config::new(self.url().parse().unwrap());
        config.root_cert = Some(vec![self.authority.der.to_vec()]);
        config
    }

    pub fn plane(&self, name: &str) -> Plane {
        Plane::from_kube_config(name, &self.config()).unwrap()
    }

    /// Writes a kubeconfig with a client certificate and returns its path.
    pub fn kubeconfig(&self, directory: &Path) -> std::path::PathBuf {
        let (certificate, key, ..) = self.authority.issue(&["client"], ExtendedKeyUsagePurpose::ClientAuth);
        let write = |name: &str, text: &str| {
            let path = directory.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (certificate, key) = (write("client.pem", &certificate), write("key.pem", &key));
        let user = serde_json::json!({"client-certificate": certificate, "client-key": key});
        self.kubeconfig_of(directory, user)
    }

    /// Writes a kubeconfig with this user and returns its path.
    pub fn kubeconfig_of(&self, directory: &Path, user: serde_json::Value) -> std::path::PathBuf {
        let write = |name: &str, text: &str| {
            let path = directory.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let ca = write("ca.pem", &self.authority.pem);
        let text = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "main",
            "contexts": [{"name": "main", "context": {"cluster": "main", "user": "main"}}],
            "clusters": [{"name": "main", "cluster": {"server": self.url(), "certificate-authority": ca}}],
            "users": [{"name": "main", "user": user}],
        });
        write("kubeconfig", &text.to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
        self.break_connections();
    }
}

async fn respond(
    mut fake: FakeApiServer,
    token: Option<String>,
    request: Request<Incoming>,
) -> Result<Response<FakeBody>, std::io::Error> {
    if let Some(token) = token
        && request
            .headers()
            .get("authorization")
            .is_none_or(|value| value != format!("Bearer {token}").as_str())
    {
        let mut response = Response::new(body::full(
            "{\"kind\":\"Status\",\"code\":401,\"reason\":\"Unauthorized\",\"message\":\"who are you\"}"
                .to_owned(),
        ));
        *response.status_mut() = StatusCode::UNAUTHORIZED;
        return Ok(response);
    }
    let (parts, body) = request.into_parts();
    let content: Bytes = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    fake.call(Request::from_parts(parts, content)).await.map_err(std::io::Error::other)
}
