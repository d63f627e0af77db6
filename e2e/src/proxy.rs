//! A proxy between a controller process and its planes: it records requests, and can drop the connection
//! after N writes.
//!
//! Controllers under test never connect to a plane directly. The proxy forwards every request under the
//! identity of the process, records it, and can inject faults. So its log has every request of a process,
//! on embedded planes and on real engines. A crash point is a proxy that drops every request after the
//! n-th write, followed by a kill of the process.
//!
//! A proxy may serve several planes: the one for project planes routes by Milo's path
//! `/apis/resourcemanager.miloapis.com/v1alpha1/projects/<project>/control-plane/…`.

use std::{net::SocketAddr, sync::Arc};

use base64::Engine as _;
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use polis_api::kube::{Client, client::Body};
use polis_testing::{ClientIdentity, RequestFault};
pub use polis_testing::{FaultId, RecordedRequest, RequestLog, RequestVerb, project_path};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::Error;

/// Concurrent streams per connection, as in kube-apiserver: further ones block.
const STREAMS_PER_CONNECTION: u32 = 100;

/// A plane behind a proxy.
#[derive(Clone)]
pub struct ProxyRoute {
    /// Path prefix that the proxy strips; empty for a proxy of a single plane.
    pub prefix: String,
    /// The name of the plane.
    pub plane: String,
    /// The identity that the plane sees.
    pub identity: Arc<ClientIdentity>,
    /// A client of that plane with this identity.
    pub client: Client,
}

/// A proxy to one or more planes. Dropping it closes all connections.
pub struct TlsProxy {
    address: SocketAddr,
    certificate: String,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for TlsProxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl TlsProxy {
    /// Starts a proxy that records into `requests`.
    pub async fn start(routes: Vec<ProxyRoute>, requests: Arc<RequestLog>) -> Result<TlsProxy, Error> {
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let issued = rcgen::generate_simple_self_signed(names).map_err(Error::proxy)?;
        let chain = vec![issued.cert.der().clone()];
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(Error::proxy)?
            .with_no_client_auth()
            .with_single_cert(chain, key.into())
            .map_err(Error::proxy)?;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(Error::proxy)?;
        let address = listener.local_addr().map_err(Error::proxy)?;
        let state = Arc::new(ProxyState { routes, requests });
        let server = tokio::spawn(serve(listener, TlsAcceptor::from(Arc::new(tls)), state));
        Ok(TlsProxy { address, certificate: issued.cert.pem(), server })
    }

    /// A kubeconfig for this proxy. It has no credential: the proxy adds the identity.
    pub fn kubeconfig(&self) -> String {
        let authority = base64::engine::general_purpose::STANDARD.encode(&self.certificate);
        let document = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {
                "server": format!("https://{}", self.address), "certificate-authority-data": authority,
            }}],
            "users": [{"name": "proxy", "user": {"token": "the-proxy-has-the-identity"}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        });
        // JSON is valid YAML.
        document.to_string()
    }
}

struct ProxyState {
    routes: Vec<ProxyRoute>,
    requests: Arc<RequestLog>,
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, state: Arc<ProxyState>) {
    // Dropping the JoinSet aborts all connections.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((tcp, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let _ = tcp.set_nodelay(true);
        let (tls, state) = (tls.clone(), state.clone());
        connections.spawn(async move {
            let Ok(stream) = tls.accept(tcp).await else { return };
            let service = service_fn(move |request| forward(state.clone(), request));
            let mut server = auto::Builder::new(TokioExecutor::new());
            server.http2().max_concurrent_streams(STREAMS_PER_CONNECTION);
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Why a request gets no response. The client sees a broken stream, as from a plane that is down.
#[derive(Debug, thiserror::Error)]
enum ProxyError {
    #[error("dropped by an injected fault")]
    Dropped,
    #[error("no plane of this proxy has the path {0}")]
    NoRoute(String),
    #[error("failed to read the request: {0}")]
    Request(#[from] hyper::Error),
    #[error("failed to build the request: {0}")]
    Build(#[from] http::Error),
    #[error("the plane did not respond: {0}")]
    Plane(#[from] polis_api::kube::Error),
}

async fn forward(state: Arc<ProxyState>, request: Request<Incoming>) -> Result<Response<Body>, ProxyError> {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    let route = state.routes.iter().find(|route| {
        path.strip_prefix(&*route.prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    let Some(route) = route else { return not_found(path) };
    let rest = match &path[route.prefix.len()..] {
        "" => "/",
        rest => rest,
    };
    let query = head.uri.query().unwrap_or("");
    let body: Bytes = body.collect().await?.to_bytes();
    let mut request = RecordedRequest::parse(&route.plane, &head.method, rest, query, &body);
    request.identity = route.identity.clone();
    let (number, fault) = state.requests.record(request);
    match fault {
        None => {}
        Some(RequestFault::Refuse) => return Err(ProxyError::Dropped),
        Some(RequestFault::Hang) => std::future::pending().await,
        Some(RequestFault::Status(code)) => return status_response(code, "Invalid", "injected by the proxy"),
        Some(RequestFault::Delay(by)) => tokio::time::sleep(by).await,
    }
    let uri = if query.is_empty() { rest.to_owned() } else { format!("{rest}?{query}") };
    let mut forwarded = Request::builder().method(head.method).uri(uri).body(Body::from(body))?;
    for (name, value) in &head.headers {
        if !matches!(
            *name,
            header::AUTHORIZATION | header::HOST | header::CONNECTION | header::CONTENT_LENGTH
        ) {
            forwarded.headers_mut().append(name, value.clone());
        }
    }
    let mut response = route.client.send(forwarded).await?;
    state.requests.record_status(number, response.status());
    for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
        response.headers_mut().remove(name);
    }
    Ok(response)
}

/// Milo's response for an unknown project.
fn not_found(path: &str) -> Result<Response<Body>, ProxyError> {
    if !path.starts_with("/apis/resourcemanager.miloapis.com/v1alpha1/projects/") {
        return Err(ProxyError::NoRoute(path.to_owned()));
    }
    status_response(StatusCode::NOT_FOUND, "NotFound", "the project was not found")
}

fn status_response(code: StatusCode, reason: &str, message: &str) -> Result<Response<Body>, ProxyError> {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code.as_u16(),
        "message": message,
    });
    let response = Response::builder().status(code).header(header::CONTENT_TYPE, "application/json");
    Ok(response.body(Body::from(status.to_string().into_bytes()))?)
}
