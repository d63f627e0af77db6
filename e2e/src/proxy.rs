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

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Instant,
};

use base64::Engine as _;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use polis_api::kube::{Client, client::Body};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::{Error, planes::ClientIdentity};

/// Concurrent streams per connection, as in kube-apiserver: further ones block.
const STREAMS_PER_CONNECTION: u32 = 100;

/// The path of a project's plane on Milo.
pub fn project_path(project: &str) -> String {
    format!("/apis/resourcemanager.miloapis.com/v1alpha1/projects/{project}/control-plane")
}

/// A request that a proxy forwarded or dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedRequest {
    /// When it arrived.
    pub at: Instant,
    /// The target plane.
    pub plane: String,
    /// The identity that the plane sees.
    pub identity: Arc<ClientIdentity>,
    /// The verb.
    pub verb: RequestVerb,
    /// The API group; empty for the core group and for paths without a resource.
    pub group: String,
    /// The plural, with a subresource after a slash; the path itself if it names no resource.
    pub resource: String,
    /// The namespace in the path, or the namespace that the request creates or reads.
    pub namespace: Option<String>,
    /// The name in the path or in a field selector for one name.
    pub name: Option<String>,
    /// Whether a fault dropped it.
    pub dropped: bool,
    /// Whether the plane returned 409: the object had changed, or it existed already.
    pub conflicted: bool,
    /// Owners with `blockOwnerDeletion` of the created object.
    pub owners: Vec<BlockingOwner>,
}

/// An owner with `blockOwnerDeletion` in a created object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockingOwner {
    /// Its API group.
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// The verb of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestVerb {
    /// Reads one object, a discovery document or a health check.
    Get,
    /// Lists objects.
    List,
    /// Watches objects.
    Watch,
    /// Creates an object.
    Create,
    /// Replaces an object.
    Update,
    /// Patches an object.
    Patch,
    /// Deletes one object or a collection.
    Delete,
}

impl RequestVerb {
    /// Whether the request changes the plane.
    pub fn writes(self) -> bool {
        matches!(self, RequestVerb::Create | RequestVerb::Update | RequestVerb::Patch | RequestVerb::Delete)
    }
}

/// Parses a request. The body is parsed only for creates: for the name of a new namespace, and for owner
/// references.
fn parse_request(plane: &str, method: &Method, path: &str, query: &str, body: &[u8]) -> RecordedRequest {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    // /api/<version>/… or /apis/<group>/<version>/…
    let (group, rest): (&str, &[&str]) = match parts.as_slice() {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (group, rest),
        _ => ("", &[]),
    };
    let (namespace, rest): (Option<&str>, &[&str]) = match rest {
        ["namespaces", namespace, rest @ ..]
            if !rest.is_empty() && !matches!(rest, ["status" | "finalize"]) =>
        {
            (Some(namespace), rest)
        }
        rest => (None, rest),
    };
    let (resource, name) = match rest {
        [] => (path.to_owned(), None),
        [kind] => ((*kind).to_owned(), None),
        [kind, name] => ((*kind).to_owned(), Some(*name)),
        [kind, name, sub, ..] => (format!("{kind}/{sub}"), Some(*name)),
    };
    let watches = query.split('&').any(|pair| pair == "watch=true" || pair == "watch=1");
    let verb = match *method {
        Method::POST => RequestVerb::Create,
        Method::PUT => RequestVerb::Update,
        Method::PATCH => RequestVerb::Patch,
        Method::DELETE => RequestVerb::Delete,
        _ if watches => RequestVerb::Watch,
        _ if name.is_none() && !rest.is_empty() => RequestVerb::List,
        _ => RequestVerb::Get,
    };
    // An API server authorizes a list with a field selector for one name as access to that name.
    let name = name
        .or_else(|| query.split('&').find_map(|pair| pair.strip_prefix("fieldSelector=metadata.name%3D")));
    let created: Option<serde_json::Value> =
        (verb == RequestVerb::Create).then(|| serde_json::from_slice(body).ok()).flatten();
    // A request for a namespace object belongs to that namespace, also when it creates it.
    let created_name = || created.as_ref()?.pointer("/metadata/name")?.as_str().map(str::to_owned);
    let namespace = match namespace {
        Some(namespace) => Some(namespace.to_owned()),
        None if resource.starts_with("namespaces") => name.map(str::to_owned).or_else(created_name),
        None => None,
    };
    RecordedRequest {
        at: Instant::now(),
        plane: plane.to_owned(),
        identity: Arc::default(),
        verb,
        group: group.to_owned(),
        resource,
        namespace,
        name: name.map(str::to_owned),
        dropped: false,
        conflicted: false,
        owners: created.iter().flat_map(owners).collect(),
    }
}

/// The owners with `blockOwnerDeletion`.
fn owners(created: &serde_json::Value) -> Vec<BlockingOwner> {
    let named = created.pointer("/metadata/ownerReferences").and_then(serde_json::Value::as_array);
    let blocking = named.into_iter().flatten().filter(|owner| owner["blockOwnerDeletion"] == true);
    let parse = |owner: &serde_json::Value| {
        let field = |name: &str| owner[name].as_str().unwrap_or_default();
        let group = field("apiVersion").split_once('/').map_or("", |(group, _)| group);
        BlockingOwner {
            group: group.to_owned(),
            kind: field("kind").to_owned(),
            name: field("name").to_owned(),
        }
    };
    blocking.map(parse).collect()
}

/// Number of writes that pass for some namespaces; then all their requests, including reads, are dropped.
#[derive(Debug)]
struct WriteBudget {
    namespaces: Vec<String>,
    left: usize,
    exhausted: bool,
}

/// The requests of one process, and the faults to inject into them.
///
/// All proxies of a process share one log, so that a write budget counts writes on all planes.
#[derive(Debug, Default)]
pub struct RequestLog {
    state: Mutex<RequestLogState>,
}

#[derive(Debug, Default)]
struct RequestLogState {
    /// Whether streaming lists are rejected, as by older API servers; clients then list in pages.
    paginated: bool,
    requests: Vec<RecordedRequest>,
    budgets: BTreeMap<u64, WriteBudget>,
    next: u64,
}

/// An injected fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultId(u64);

impl RequestLog {
    /// Requests since `since`.
    pub fn since(&self, since: Instant) -> Vec<RecordedRequest> {
        self.state().requests.iter().filter(|request| request.at >= since).cloned().collect()
    }

    /// All requests.
    pub fn all(&self) -> Vec<RecordedRequest> {
        self.state().requests.clone()
    }

    /// Forwarded writes in these namespaces, without Events: their number depends on timing.
    pub fn writes_in(&self, namespaces: &[String]) -> Vec<RecordedRequest> {
        let in_namespaces =
            |request: &&RecordedRequest| request.namespace.as_ref().is_some_and(|ns| namespaces.contains(ns));
        let requests = self.state().requests.clone().into_iter();
        requests
            .filter(|request| in_namespaces(&request))
            .filter(|request| is_counted_write(request) && !request.dropped)
            .collect()
    }

    /// Forwards `writes` writes in these namespaces, then drops every request for them.
    pub fn fail_after_writes(&self, writes: usize, namespaces: &[String]) -> FaultId {
        let mut state = self.state();
        state.next += 1;
        let id = state.next;
        state
            .budgets
            .insert(id, WriteBudget { namespaces: namespaces.to_vec(), left: writes, exhausted: false });
        FaultId(id)
    }

    /// Whether the fault has dropped a write.
    pub fn is_triggered(&self, fault: FaultId) -> bool {
        self.state().budgets.get(&fault.0).is_some_and(|budget| budget.exhausted)
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        let mut state = self.state();
        state.budgets.clear();
        state.paginated = false;
    }

    /// Rejects streaming lists until [`RequestLog::clear_faults`], as older API servers do.
    pub fn list_in_pages(&self) {
        self.state().paginated = true;
    }

    fn rejects_streaming_list(&self, query: &str) -> bool {
        query.contains("sendInitialEvents=true") && self.state().paginated
    }

    /// Records a request; returns its index if it is forwarded.
    fn record(&self, mut request: RecordedRequest) -> Option<usize> {
        let mut state = self.state();
        let budget = state
            .budgets
            .values_mut()
            .find(|budget| request.namespace.as_ref().is_some_and(|ns| budget.namespaces.contains(ns)));
        let passes = match budget {
            None => true,
            Some(budget) if budget.exhausted => false,
            Some(budget) if !is_counted_write(&request) => !budget.exhausted,
            Some(budget) if budget.left == 0 => {
                budget.exhausted = true;
                false
            }
            Some(budget) => {
                budget.left -= 1;
                true
            }
        };
        request.dropped = !passes;
        state.requests.push(request);
        let at = state.requests.len() - 1;
        drop(state);
        passes.then_some(at)
    }

    /// Records the status of a response.
    fn record_status(&self, at: usize, status: StatusCode) {
        self.state().requests[at].conflicted = status == StatusCode::CONFLICT;
    }

    fn state(&self) -> std::sync::MutexGuard<'_, RequestLogState> {
        self.state.lock().expect("the lock is not poisoned")
    }
}

/// Whether a request is a write that counts as a crash point.
fn is_counted_write(request: &RecordedRequest) -> bool {
    request.verb.writes() && request.resource != "events"
}

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
pub struct Proxy {
    address: SocketAddr,
    certificate: String,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Proxy {
    /// Starts a proxy that records into `requests`.
    pub async fn start(routes: Vec<ProxyRoute>, requests: Arc<RequestLog>) -> Result<Proxy, Error> {
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
        Ok(Proxy { address, certificate: issued.cert.pem(), server })
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
    if state.requests.rejects_streaming_list(query) {
        return status_response(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            "sendInitialEvents is forbidden",
        );
    }
    let body: Bytes = body.collect().await?.to_bytes();
    let mut request = parse_request(&route.plane, &head.method, rest, query, &body);
    request.identity = route.identity.clone();
    let Some(index) = state.requests.record(request) else {
        return Err(ProxyError::Dropped);
    };
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
    state.requests.record_status(index, response.status());
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

impl From<Infallible> for ProxyError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, path: &str, query: &str) -> RecordedRequest {
        parse_request("hub", &method, path, query, b"")
    }

    #[test]
    fn verb_resource_and_name_come_from_method_path_and_query() {
        let base = "/apis/compute.datumapis.com/v1alpha/namespaces/ns-1/instances";
        for (method, path, query, verb, resource, name) in [
            (Method::GET, base.to_owned(), "", RequestVerb::List, "instances", None),
            (Method::GET, base.to_owned(), "limit=500&watch=true", RequestVerb::Watch, "instances", None),
            (
                Method::GET,
                base.to_owned(),
                "fieldSelector=metadata.name%3Da-0&watch=true",
                RequestVerb::Watch,
                "instances",
                Some("a-0"),
            ),
            (Method::GET, format!("{base}/a-0"), "", RequestVerb::Get, "instances", Some("a-0")),
            (
                Method::PUT,
                format!("{base}/a-0/status"),
                "",
                RequestVerb::Update,
                "instances/status",
                Some("a-0"),
            ),
            (Method::DELETE, format!("{base}/a-0"), "", RequestVerb::Delete, "instances", Some("a-0")),
        ] {
            let request = request(method, &path, query);
            assert_eq!(
                (request.verb, &*request.resource, request.name.as_deref()),
                (verb, resource, name),
                "{path}?{query}"
            );
            assert_eq!(request.namespace.as_deref(), Some("ns-1"));
        }
    }

    #[test]
    fn discovery_and_health_requests_are_reads_without_a_resource() {
        for path in ["/apis", "/api/v1", "/apis/compute.datumapis.com/v1alpha", "/version", "/readyz"] {
            let request = request(Method::GET, path, "");
            assert_eq!(
                (request.verb, request.resource, request.namespace),
                (RequestVerb::Get, path.to_owned(), None)
            );
        }
    }

    #[test]
    fn a_request_for_a_namespace_belongs_to_it_even_when_it_creates_it() {
        let get = request(Method::GET, "/api/v1/namespaces/ns-1", "");
        assert_eq!((get.verb, get.namespace.as_deref()), (RequestVerb::Get, Some("ns-1")));
        let created =
            parse_request("hub", &Method::POST, "/api/v1/namespaces", "", br#"{"metadata":{"name":"ns-2"}}"#);
        assert_eq!((created.verb, created.namespace.as_deref()), (RequestVerb::Create, Some("ns-2")));
        assert_eq!(request(Method::GET, "/api/v1/namespaces", "watch=1").namespace, None);
    }

    #[test]
    fn only_owners_that_block_deletion_are_recorded() {
        let owner = |name: &str, blocks: bool| serde_json::json!({"apiVersion": "g/v1", "kind": "Widget", "name": name, "blockOwnerDeletion": blocks});
        let created =
            serde_json::json!({"metadata": {"ownerReferences": [owner("a", true), owner("b", false)]}});
        let path = "/apis/g/v1/namespaces/shop/parts";
        let request = parse_request("hub", &Method::POST, path, "", created.to_string().as_bytes());
        let named: Vec<&str> = request.owners.iter().map(|owner| &*owner.name).collect();
        assert_eq!((named, &*request.owners[0].group, &*request.owners[0].kind), (vec!["a"], "g", "Widget"));
    }

    fn passes(log: &RequestLog, request: RecordedRequest) -> bool {
        log.record(request).is_some()
    }

    fn mk_write(namespace: &str) -> RecordedRequest {
        request(Method::PUT, &format!("/apis/g/v/namespaces/{namespace}/widgets/x"), "")
    }

    fn mk_read(namespace: &str) -> RecordedRequest {
        request(Method::GET, &format!("/apis/g/v/namespaces/{namespace}/widgets/x"), "")
    }

    #[test]
    fn a_fault_forwards_n_writes_and_then_drops_every_request_of_the_namespaces() {
        let log = RequestLog::default();
        let fault = log.fail_after_writes(2, &["shop".to_owned(), "ns-1".to_owned()]);
        let passed: Vec<bool> = [mk_write("shop"), mk_read("shop"), mk_write("ns-1"), mk_read("ns-1")]
            .map(|c| passes(&log, c))
            .to_vec();
        assert_eq!(passed, [true; 4]);
        assert!(!log.is_triggered(fault));
        assert!(!passes(&log, mk_write("shop")));
        assert!(log.is_triggered(fault));
        assert!(!passes(&log, mk_read("ns-1")), "reads are dropped too");
        assert!(passes(&log, mk_write("other")), "other namespaces are not affected");
        log.clear_faults();
        assert!(passes(&log, mk_write("shop")));
    }

    #[test]
    fn events_do_not_count_as_crash_points() {
        let log = RequestLog::default();
        log.fail_after_writes(0, &["shop".to_owned()]);
        assert!(passes(&log, request(Method::POST, "/api/v1/namespaces/shop/events", "")));
        assert!(log.writes_in(&["shop".to_owned()]).is_empty());
    }
}
