//! Wire: the line between the controllers of one role and one plane, with an ear and a pair of scissors on it.
//!
//! Controllers under test never talk to a plane directly. They talk to a wire, which carries every request to the
//! plane under the identity of their role, writes down what passed, and can cut the line. So a scenario knows every
//! request that a role made, on embedded planes and on real engines alike, and a crash point is a line that is cut
//! after the n-th write, followed by the end of the process behind it.
//!
//! A wire may lead to several planes: the one for project planes takes them apart by the path that Milo uses,
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
use tokio::{net::TcpListener, sync::watch};
use tokio_rustls::TlsAcceptor;

use crate::{Error, planes::Identity};

/// What kube-apiserver allows on one connection; more than that hang, and so they do here.
const STREAMS_PER_CONNECTION: u32 = 100;

/// The path, on Milo, under which the plane of a project is found.
pub fn project_path(project: &str) -> String {
    format!("/apis/resourcemanager.miloapis.com/v1alpha1/projects/{project}/control-plane")
}

/// One request that passed, or was to pass, a wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// When it arrived.
    pub at: Instant,
    /// The plane it was for.
    pub plane: String,
    /// Who the plane took it from.
    pub who: Arc<Identity>,
    /// What it wanted.
    pub verb: Verb,
    /// The group of the kind; empty for the core group and where the path names no kind.
    pub group: String,
    /// Plural of the kind, with the subresource after a slash; the path itself when it names no kind.
    pub resource: String,
    /// The namespace in the path, or the namespace that the request is about.
    pub namespace: Option<String>,
    /// The name in the path, or the only one that is looked for.
    pub name: Option<String>,
    /// Whether the line was cut before it could pass.
    pub cut: bool,
    /// Whether somebody else was faster: what it was decided on had changed, or what it was to make was there.
    pub late: bool,
    /// The owners of a new object that must not go before it.
    pub owners: Vec<Owner>,
}

/// An owner that a new object names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The group of its kind.
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// What a request wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// One object, a document of the server, or a health check.
    Get,
    /// Many objects.
    List,
    /// Many objects, and what becomes of them.
    Watch,
    /// A new object.
    Create,
    /// A whole object.
    Update,
    /// A part of an object.
    Patch,
    /// No object any more.
    Delete,
}

impl Verb {
    /// Whether the request changes the plane.
    pub fn writes(self) -> bool {
        matches!(self, Verb::Create | Verb::Update | Verb::Patch | Verb::Delete)
    }
}

/// Reads from method, path and query what a request wants. `body` is looked at only for the name of a new namespace, and
/// for owners of what is new.
fn read_call(plane: &str, method: &Method, path: &str, query: &str, body: &[u8]) -> Call {
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
        Method::POST => Verb::Create,
        Method::PUT => Verb::Update,
        Method::PATCH => Verb::Patch,
        Method::DELETE => Verb::Delete,
        _ if watches => Verb::Watch,
        _ if name.is_none() && !rest.is_empty() => Verb::List,
        _ => Verb::Get,
    };
    // A server judges a look at one name as a look at that object.
    let name = name
        .or_else(|| query.split('&').find_map(|pair| pair.strip_prefix("fieldSelector=metadata.name%3D")));
    let made: Option<serde_json::Value> =
        (verb == Verb::Create).then(|| serde_json::from_slice(body).ok()).flatten();
    // A request about a namespace belongs to that namespace, also when it makes it.
    let about = || made.as_ref()?.pointer("/metadata/name")?.as_str().map(str::to_owned);
    let namespace = match namespace {
        Some(namespace) => Some(namespace.to_owned()),
        None if resource.starts_with("namespaces") => name.map(str::to_owned).or_else(about),
        None => None,
    };
    Call {
        at: Instant::now(),
        plane: plane.to_owned(),
        who: Arc::default(),
        verb,
        group: group.to_owned(),
        resource,
        namespace,
        name: name.map(str::to_owned),
        cut: false,
        late: false,
        owners: made.iter().flat_map(owners).collect(),
    }
}

/// The owners of an object that wait for it.
fn owners(made: &serde_json::Value) -> Vec<Owner> {
    let named = made.pointer("/metadata/ownerReferences").and_then(serde_json::Value::as_array);
    let waiting = named.into_iter().flatten().filter(|owner| owner["blockOwnerDeletion"] == true);
    let read = |owner: &serde_json::Value| {
        let word = |field: &str| owner[field].as_str().unwrap_or_default();
        let group = word("apiVersion").split_once('/').map_or("", |(group, _)| group);
        Owner { group: group.to_owned(), kind: word("kind").to_owned(), name: word("name").to_owned() }
    };
    waiting.map(read).collect()
}

/// Permission to make so many writes about some namespaces, and then none, and no read either.
#[derive(Debug)]
struct Ration {
    namespaces: Vec<String>,
    left: usize,
    used_up: bool,
}

/// What was said on the wires of one role, and what may still be said.
///
/// All wires of a role share one tap: a process that has made its n-th write, on whichever plane, makes no other.
#[derive(Debug, Default)]
pub struct Tap {
    state: Mutex<TapState>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct TapState {
    /// Whether lists are to be asked for in pages: what older servers say to one who wants a stream.
    in_pages: bool,
    calls: Vec<Call>,
    rations: BTreeMap<u64, Ration>,
    next: u64,
}

/// A cut that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut(u64);

impl Tap {
    /// Everything that passed or was cut since `since`.
    pub fn since(&self, since: Instant) -> Vec<Call> {
        self.state().calls.iter().filter(|call| call.at >= since).cloned().collect()
    }

    /// Everything that ever passed or was cut.
    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// How many writes about these namespaces have passed. Events are not counted: they are said, not meant to last.
    pub fn writes_about(&self, namespaces: &[String]) -> Vec<Call> {
        let about = |call: &&Call| call.namespace.as_ref().is_some_and(|ns| namespaces.contains(ns));
        self.state().calls.iter().filter(about).filter(|call| counts(call) && !call.cut).cloned().collect()
    }

    /// Lets `writes` writes about these namespaces pass, and then nothing that names them.
    pub fn cut_after(&self, writes: usize, namespaces: &[String]) -> Cut {
        let mut state = self.state();
        state.next += 1;
        let cut = state.next;
        state.rations.insert(cut, Ration { namespaces: namespaces.to_vec(), left: writes, used_up: false });
        Cut(cut)
    }

    /// Whether a write was held back by this cut.
    pub fn is_cut(&self, cut: Cut) -> bool {
        self.state().rations.get(&cut.0).is_some_and(|ration| ration.used_up)
    }

    /// Mends every line.
    pub fn mend(&self) {
        let mut state = self.state();
        state.rations.clear();
        state.in_pages = false;
    }

    /// Answers as a server does that cannot stream lists, until it is mended.
    pub fn list_in_pages(&self) {
        self.state().in_pages = true;
    }

    fn refuses(&self, query: &str) -> bool {
        query.contains("sendInitialEvents=true") && self.state().in_pages
    }

    /// Told whenever a call was written down.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Writes the call down and says, if it may pass, where.
    fn note(&self, mut call: Call) -> Option<usize> {
        let mut state = self.state();
        let ration = state
            .rations
            .values_mut()
            .find(|ration| call.namespace.as_ref().is_some_and(|ns| ration.namespaces.contains(ns)));
        let passes = match ration {
            None => true,
            Some(ration) if ration.used_up => false,
            Some(ration) if !counts(&call) => !ration.used_up,
            Some(ration) if ration.left == 0 => {
                ration.used_up = true;
                false
            }
            Some(ration) => {
                ration.left -= 1;
                true
            }
        };
        call.cut = !passes;
        state.calls.push(call);
        let at = state.calls.len() - 1;
        drop(state);
        self.changed.send_replace(());
        passes.then_some(at)
    }

    /// Writes down what came of a call.
    fn answered(&self, at: usize, status: StatusCode) {
        self.state().calls[at].late = status == StatusCode::CONFLICT;
    }

    fn state(&self) -> std::sync::MutexGuard<'_, TapState> {
        self.state.lock().expect("nobody panics while writing a call down")
    }
}

/// Whether a call is a write that a crash point is counted by.
fn counts(call: &Call) -> bool {
    call.verb.writes() && call.resource != "events"
}

/// Where a wire leads.
#[derive(Clone)]
pub struct Route {
    /// Begin of the path that is taken off; empty for a wire to a single plane.
    pub prefix: String,
    /// The plane behind it.
    pub plane: String,
    /// Who the plane takes requests from.
    pub who: Arc<Identity>,
    /// A client of that plane with this identity.
    pub client: Client,
}

/// A line to one or more planes; it ends when this is dropped.
pub struct Wire {
    address: SocketAddr,
    certificate: String,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Wire {
    /// Lays a wire. What passes is written down in `tap`.
    pub async fn lay(routes: Vec<Route>, tap: Arc<Tap>) -> Result<Wire, Error> {
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let issued = rcgen::generate_simple_self_signed(names).map_err(Error::wire)?;
        let chain = vec![issued.cert.der().clone()];
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(Error::wire)?
            .with_no_client_auth()
            .with_single_cert(chain, key.into())
            .map_err(Error::wire)?;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(Error::wire)?;
        let address = listener.local_addr().map_err(Error::wire)?;
        let ends = Arc::new(Ends { routes, tap });
        let server = tokio::spawn(serve(listener, TlsAcceptor::from(Arc::new(tls)), ends));
        Ok(Wire { address, certificate: issued.cert.pem(), server })
    }

    /// A kubeconfig that leads to this wire. It holds no credential: the wire has the identity.
    pub fn kubeconfig(&self) -> String {
        let authority = base64::engine::general_purpose::STANDARD.encode(&self.certificate);
        let document = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "wire",
            "clusters": [{"name": "wire", "cluster": {
                "server": format!("https://{}", self.address), "certificate-authority-data": authority,
            }}],
            "users": [{"name": "wire", "user": {"token": "the-wire-has-the-identity"}}],
            "contexts": [{"name": "wire", "context": {"cluster": "wire", "user": "wire"}}],
        });
        // JSON is YAML.
        document.to_string()
    }
}

struct Ends {
    routes: Vec<Route>,
    tap: Arc<Tap>,
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, ends: Arc<Ends>) {
    // Connections end with the wire: a JoinSet aborts what it holds when it is dropped.
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((tcp, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let _ = tcp.set_nodelay(true);
        let (tls, ends) = (tls.clone(), ends.clone());
        connections.spawn(async move {
            let Ok(stream) = tls.accept(tcp).await else { return };
            let service = service_fn(move |request| carry(ends.clone(), request));
            let mut server = auto::Builder::new(TokioExecutor::new());
            server.http2().max_concurrent_streams(STREAMS_PER_CONNECTION);
            let _ = server.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Why a request got no answer; the client sees a broken stream, as it would from a plane that is gone.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("the line is cut")]
    Cut,
    #[error("no plane of this wire has the path {0}")]
    NoRoute(String),
    #[error("failed to read the request: {0}")]
    Request(#[from] hyper::Error),
    #[error("failed to build the request: {0}")]
    Build(#[from] http::Error),
    #[error("the plane did not answer: {0}")]
    Plane(#[from] polis_api::kube::Error),
}

async fn carry(ends: Arc<Ends>, request: Request<Incoming>) -> Result<Response<Body>, Broken> {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    let route = ends.routes.iter().find(|route| {
        path.strip_prefix(&*route.prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    let Some(route) = route else { return not_found(path) };
    let rest = match &path[route.prefix.len()..] {
        "" => "/",
        rest => rest,
    };
    let query = head.uri.query().unwrap_or("");
    if ends.tap.refuses(query) {
        return refusal(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", "sendInitialEvents is forbidden");
    }
    let body: Bytes = body.collect().await?.to_bytes();
    let mut call = read_call(&route.plane, &head.method, rest, query, &body);
    call.who = route.who.clone();
    let Some(noted) = ends.tap.note(call) else {
        return Err(Broken::Cut);
    };
    let uri = if query.is_empty() { rest.to_owned() } else { format!("{rest}?{query}") };
    let mut onward = Request::builder().method(head.method).uri(uri).body(Body::from(body))?;
    for (name, value) in &head.headers {
        if !matches!(
            *name,
            header::AUTHORIZATION | header::HOST | header::CONNECTION | header::CONTENT_LENGTH
        ) {
            onward.headers_mut().append(name, value.clone());
        }
    }
    let mut answer = route.client.send(onward).await?;
    ends.tap.answered(noted, answer.status());
    for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
        answer.headers_mut().remove(name);
    }
    Ok(answer)
}

/// What Milo says about a project that it does not have.
fn not_found(path: &str) -> Result<Response<Body>, Broken> {
    if !path.starts_with("/apis/resourcemanager.miloapis.com/v1alpha1/projects/") {
        return Err(Broken::NoRoute(path.to_owned()));
    }
    refusal(StatusCode::NOT_FOUND, "NotFound", "the project was not found")
}

fn refusal(code: StatusCode, reason: &str, message: &str) -> Result<Response<Body>, Broken> {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code.as_u16(),
        "message": message,
    });
    let answer = Response::builder().status(code).header(header::CONTENT_TYPE, "application/json");
    Ok(answer.body(Body::from(status.to_string().into_bytes()))?)
}

impl From<Infallible> for Broken {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: Method, path: &str, query: &str) -> Call {
        read_call("hub", &method, path, query, b"")
    }

    #[test]
    fn requests_are_told_apart_by_method_path_and_query() {
        let base = "/apis/compute.datumapis.com/v1alpha/namespaces/ns-1/instances";
        for (method, path, query, verb, resource, name) in [
            (Method::GET, base.to_owned(), "", Verb::List, "instances", None),
            (Method::GET, base.to_owned(), "limit=500&watch=true", Verb::Watch, "instances", None),
            (
                Method::GET,
                base.to_owned(),
                "fieldSelector=metadata.name%3Da-0&watch=true",
                Verb::Watch,
                "instances",
                Some("a-0"),
            ),
            (Method::GET, format!("{base}/a-0"), "", Verb::Get, "instances", Some("a-0")),
            (Method::PUT, format!("{base}/a-0/status"), "", Verb::Update, "instances/status", Some("a-0")),
            (Method::DELETE, format!("{base}/a-0"), "", Verb::Delete, "instances", Some("a-0")),
        ] {
            let call = call(method, &path, query);
            assert_eq!(
                (call.verb, &*call.resource, call.name.as_deref()),
                (verb, resource, name),
                "{path}?{query}"
            );
            assert_eq!(call.namespace.as_deref(), Some("ns-1"));
        }
    }

    #[test]
    fn documents_of_the_server_are_reads_without_a_kind() {
        for path in ["/apis", "/api/v1", "/apis/compute.datumapis.com/v1alpha", "/version", "/readyz"] {
            let call = call(Method::GET, path, "");
            assert_eq!((call.verb, call.resource, call.namespace), (Verb::Get, path.to_owned(), None));
        }
    }

    #[test]
    fn a_request_about_a_namespace_belongs_to_it_also_when_it_makes_it() {
        let read = call(Method::GET, "/api/v1/namespaces/ns-1", "");
        assert_eq!((read.verb, read.namespace.as_deref()), (Verb::Get, Some("ns-1")));
        let made =
            read_call("hub", &Method::POST, "/api/v1/namespaces", "", br#"{"metadata":{"name":"ns-2"}}"#);
        assert_eq!((made.verb, made.namespace.as_deref()), (Verb::Create, Some("ns-2")));
        assert_eq!(call(Method::GET, "/api/v1/namespaces", "watch=1").namespace, None);
    }

    #[test]
    fn of_the_owners_of_a_new_object_those_are_read_that_wait_for_it() {
        let owner = |name: &str, waits: bool| serde_json::json!({"apiVersion": "g/v1", "kind": "Thing", "name": name, "blockOwnerDeletion": waits});
        let made =
            serde_json::json!({"metadata": {"ownerReferences": [owner("a", true), owner("b", false)]}});
        let path = "/apis/g/v1/namespaces/shop/parts";
        let call = read_call("hub", &Method::POST, path, "", made.to_string().as_bytes());
        let named: Vec<&str> = call.owners.iter().map(|owner| &*owner.name).collect();
        assert_eq!((named, &*call.owners[0].group, &*call.owners[0].kind), (vec!["a"], "g", "Thing"));
    }

    fn passes(tap: &Tap, call: Call) -> bool {
        tap.note(call).is_some()
    }

    fn write(namespace: &str) -> Call {
        call(Method::PUT, &format!("/apis/g/v/namespaces/{namespace}/things/x"), "")
    }

    fn read(namespace: &str) -> Call {
        call(Method::GET, &format!("/apis/g/v/namespaces/{namespace}/things/x"), "")
    }

    #[test]
    fn a_cut_lets_so_many_writes_pass_and_then_nothing_that_names_the_namespaces() {
        let tap = Tap::default();
        let cut = tap.cut_after(2, &["shop".to_owned(), "ns-1".to_owned()]);
        let told: Vec<bool> =
            [write("shop"), read("shop"), write("ns-1"), read("ns-1")].map(|c| passes(&tap, c)).to_vec();
        assert_eq!(told, [true; 4]);
        assert!(!tap.is_cut(cut));
        assert!(!passes(&tap, write("shop")));
        assert!(tap.is_cut(cut));
        assert!(!passes(&tap, read("ns-1")), "a dead process reads nothing either");
        assert!(passes(&tap, write("other")), "other namespaces are not touched");
        tap.mend();
        assert!(passes(&tap, write("shop")));
    }

    #[test]
    fn events_are_no_crash_points() {
        let tap = Tap::default();
        tap.cut_after(0, &["shop".to_owned()]);
        assert!(passes(&tap, call(Method::POST, "/api/v1/namespaces/shop/events", "")));
        assert!(tap.writes_about(&["shop".to_owned()]).is_empty());
    }
}
