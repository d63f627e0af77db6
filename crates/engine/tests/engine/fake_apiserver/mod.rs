//! A fake API server: in process, or on a socket ([`network`]).
//!
//! The path prefix `…/control-plane/` selects the plane; the root plane has no prefix. Lists are paged or
//! streamed, watches resume from a revision or fail with 410, and writes check resource versions, UIDs and
//! finalizers. Tests inject faults one by one, or at random and reproducibly with a seed.

pub mod body;
pub mod network;
pub mod store;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use polis_engine::{Plane, Random};
use serde_json::{Value, json};

use body::FakeBody;
use store::{Backup, Collection, StatusError, Store};

/// The fake server. Cheap to clone; clones are the same server.
#[derive(Clone)]
pub struct FakeApiServer(Arc<Mutex<Inner>>);

struct Inner {
    planes: BTreeMap<String, Store>,
    served: BTreeMap<Collection, String>,
    streaming: bool,
    page: usize,
    log: Vec<String>,
    hook: Option<Hook>,
    chaos: Option<Chaos>,
    /// Streams that stay open and send nothing.
    silent_streams: Vec<tokio::sync::mpsc::UnboundedSender<Bytes>>,
}

type Hook = Arc<dyn Fn(&Method, &str) -> Option<InjectedFault> + Send + Sync>;

/// A fault of one request.
#[derive(Clone, Debug)]
pub enum InjectedFault {
    /// Respond with this code and text.
    Respond(u16, String),
    /// Respond with this code and a `Retry-After` in seconds.
    Overloaded(u16, u64),
    /// Never respond.
    NoResponse,
    /// Respond with a stream that sends nothing.
    SilentStream,
    /// Break the connection before processing the request.
    BreakBefore,
    /// Process the request, then break the connection.
    BreakAfter,
}

/// Random faults.
struct Chaos {
    random: Random,
    rate: f64,
}

impl FakeApiServer {
    /// A server of the kinds `(group/version, plural, kind)`. For the core group the first part is the
    /// version.
    pub fn new(kinds: &[(&str, &str, &str)]) -> Self {
        let served = kinds
            .iter()
            .map(|(api, plural, kind)| (Collection::new(api, plural), (*kind).to_owned()))
            .collect();
        Self(Arc::new(Mutex::new(Inner {
            planes: BTreeMap::new(),
            served,
            streaming: true,
            page: 500,
            log: Vec::new(),
            hook: None,
            chaos: None,
            silent_streams: Vec::new(),
        })))
    }

    /// A server of ConfigMaps, Namespaces, Secrets, Leases and Events.
    pub fn with_default_kinds() -> Self {
        Self::new(&[
            ("v1", "configmaps", "ConfigMap"),
            ("v1", "namespaces", "Namespace"),
            ("v1", "secrets", "Secret"),
            ("coordination.k8s.io/v1", "leases", "Lease"),
            ("events.k8s.io/v1", "events", "Event"),
        ])
    }

    /// The root plane of this server, in process.
    pub fn plane(&self, name: &str) -> Plane {
        Plane::in_process(name, self.clone())
    }

    pub fn serve(&self, api: &str, plural: &str, kind: &str) {
        self.0.lock().served.insert(Collection::new(api, plural), kind.to_owned());
    }

    pub fn unserve(&self, api: &str, plural: &str) {
        let collection = Collection::new(api, plural);
        let mut inner = self.0.lock();
        inner.served.remove(&collection);
        for store in inner.planes.values_mut() {
            store.end_watches();
        }
    }

    /// Enables or disables streaming lists.
    pub fn streaming(&self, streaming: bool) {
        self.0.lock().streaming = streaming;
    }

    /// Sets the maximum number of objects per page.
    pub fn page(&self, page: usize) {
        self.0.lock().page = page;
    }

    /// Calls `hook` for every request; it may return a fault.
    pub fn hook(&self, hook: impl Fn(&Method, &str) -> Option<InjectedFault> + Send + Sync + 'static) {
        self.0.lock().hook = Some(Arc::new(hook));
    }

    pub fn clear_faults(&self) {
        let mut inner = self.0.lock();
        inner.hook = None;
        inner.chaos = None;
    }

    /// Injects random faults: delayed responses, connections that break before or after the write, ended
    /// watches, compacted history.
    pub fn chaos(&self, seed: u64, rate: f64) {
        self.0.lock().chaos = Some(Chaos { random: Random::from_seed(seed), rate });
    }

    /// Ends every watch, like a restart.
    pub fn end_watches(&self) {
        self.0.lock().planes.values_mut().for_each(Store::end_watches);
    }

    /// Compacts the history: a watch that resumes fails with 410.
    pub fn compact(&self) {
        self.0.lock().planes.values_mut().for_each(Store::compact);
    }

    /// The state of the root plane, as a backup has it.
    pub fn backup(&self) -> Backup {
        self.0.lock().planes.entry(String::new()).or_default().backup()
    }

    /// Replaces the state of the root plane by a backup. Watches end.
    pub fn restore(&self, backup: &Backup) {
        self.0.lock().planes.entry(String::new()).or_default().restore(backup);
    }

    /// Makes watches late: they send nothing until they are no longer late, and then every event.
    pub fn late_watches(&self, late: bool) {
        self.0.lock().planes.values_mut().for_each(|store| store.set_late(late));
    }

    /// Uses resource versions that cannot be compared, on the root plane.
    pub fn opaque_versions(&self) {
        self.0.lock().planes.entry(String::new()).or_default().set_opaque_versions();
    }

    pub fn watches(&self) -> usize {
        self.0.lock().planes.values_mut().map(Store::watches).sum()
    }

    /// Requests so far, as `METHOD path?query`.
    pub fn log(&self) -> Vec<String> {
        self.0.lock().log.clone()
    }

    pub fn requests(&self) -> usize {
        self.0.lock().log.len()
    }

    /// Writes an object directly, without faults. `plane` is the path prefix, empty for the root.
    pub fn put(&self, plane: &str, api: &str, plural: &str, object: Value) -> Value {
        let mut inner = self.0.lock();
        let collection = Collection::new(api, plural);
        let kind = inner.served.get(&collection).cloned().unwrap_or_default();
        inner.planes.entry(plane.to_owned()).or_default().put(&collection, &kind, object)
    }

    pub fn remove(&self, plane: &str, api: &str, plural: &str, id: &str) {
        let mut inner = self.0.lock();
        inner.planes.entry(plane.to_owned()).or_default().remove(&Collection::new(api, plural), id);
    }

    /// The objects of a collection by `namespace/name`.
    pub fn objects(&self, plane: &str, api: &str, plural: &str) -> BTreeMap<String, Value> {
        let inner = self.0.lock();
        inner.planes.get(plane).map(|store| store.objects(&Collection::new(api, plural))).unwrap_or_default()
    }

    fn respond(&self, request: &Request<Bytes>) -> Response<FakeBody> {
        let mut guard = self.0.lock();
        let inner = &mut *guard;
        let (plane, path) = split(request.uri().path());
        let query = QueryParams::parse(request.uri().query().unwrap_or_default());
        let Some(target) = Target::parse(&path) else {
            return status_response(404, "NotFound", "404 page not found");
        };
        let (collection, object, sub) = match target {
            Target::Group(api) => return inner.discover(&api),
            Target::Object { collection, namespace, name, sub } => (collection, (namespace, name), sub),
        };
        let Some(kind) = inner.served.get(&collection).cloned() else {
            return status_response(404, "NotFound", "the server could not find the requested resource");
        };
        let (streaming, page) = (inner.streaming, inner.page);
        let store = inner.planes.entry(plane).or_default();
        let (namespace, name) = object;
        let content: Value = serde_json::from_slice(request.body()).unwrap_or(Value::Null);
        let result = match (request.method(), name) {
            (&Method::GET, None) if query.get("watch") == Some("true") => {
                if query.get("sendInitialEvents").is_some() && !streaming {
                    Err(StatusError::new(422, "Invalid", "sendInitialEvents is forbidden"))
                } else {
                    return match store.watch(&collection, namespace.as_deref(), &query) {
                        Ok(body) => Response::new(body),
                        Err(error) => error.into(),
                    };
                }
            }
            (&Method::GET, None) => store.list(&collection, &kind, namespace.as_deref(), &query, page),
            (&Method::GET, Some(name)) => store.get(&collection, namespace.as_deref(), &name),
            (&Method::POST, None) => store.create(&collection, &kind, namespace.as_deref(), content),
            (&Method::PUT, Some(name)) => store.update(
                &collection,
                namespace.as_deref(),
                &name,
                content,
                sub.as_deref() == Some("status"),
            ),
            (&Method::PATCH, Some(name)) => {
                store.patch(&collection, &kind, namespace.as_deref(), &name, &content)
            }
            (&Method::DELETE, Some(name)) => store.delete(&collection, namespace.as_deref(), &name, &content),
            _ => Err(StatusError::new(405, "MethodNotAllowed", "no such verb here")),
        };
        match result {
            Ok(value) => {
                let code =
                    if request.method() == Method::POST { StatusCode::CREATED } else { StatusCode::OK };
                let mut response = Response::new(body::full(value.to_string()));
                *response.status_mut() = code;
                response
            }
            Err(error) => error.into(),
        }
    }

    async fn handle(
        self,
        request: Request<Bytes>,
    ) -> Result<Response<FakeBody>, polis_engine::transport::TransportError> {
        let broken = |why: &str| polis_engine::transport::TransportError::Broken { why: why.into() };
        let line = format!("{} {}", request.method(), request.uri());
        let (fault, delay) = {
            let mut inner = self.0.lock();
            inner.log.push(line);
            let hooked =
                inner.hook.clone().and_then(|hook| hook(request.method(), &request.uri().to_string()));
            let (random, delay) = inner.random_fault();
            (hooked.or(random), delay)
        };
        if delay > Duration::ZERO {
            tokio::time::sleep(delay).await;
        }
        match fault {
            None => Ok(self.respond(&request)),
            Some(InjectedFault::Respond(code, text)) => {
                let mut response = Response::new(body::full(text));
                *response.status_mut() = StatusCode::from_u16(code).unwrap();
                Ok(response)
            }
            Some(InjectedFault::Overloaded(code, seconds)) => {
                let mut response = status_response(code, "TooManyRequests", "too many requests");
                response.headers_mut().insert("retry-after", seconds.into());
                Ok(response)
            }
            Some(InjectedFault::NoResponse) => std::future::pending().await,
            Some(InjectedFault::SilentStream) => {
                let (lines, body) = tokio::sync::mpsc::unbounded_channel();
                self.0.lock().silent_streams.push(lines);
                Ok(Response::new(body::streamed(body)))
            }
            Some(InjectedFault::BreakBefore) => Err(broken("before")),
            Some(InjectedFault::BreakAfter) => {
                drop(self.respond(&request));
                Err(broken("after"))
            }
        }
    }
}

impl Inner {
    fn discover(&self, api: &str) -> Response<FakeBody> {
        let resources: Vec<Value> = self
            .served
            .iter()
            .filter(|(collection, _)| collection.api == api)
            .map(|(collection, kind)| json!({"name": collection.plural, "kind": kind, "namespaced": true}))
            .collect();
        if resources.is_empty() {
            return status_response(404, "NotFound", "404 page not found");
        }
        let list = json!({"kind": "APIResourceList", "groupVersion": api, "resources": resources});
        Response::new(body::full(list.to_string()))
    }

    /// A random fault and delay for a request.
    fn random_fault(&mut self) -> (Option<InjectedFault>, Duration) {
        let Some(chaos) = &self.chaos else { return (None, Duration::ZERO) };
        let late = Duration::from_millis((chaos.random.fraction() * 800.0) as u64);
        if chaos.random.fraction() >= chaos.rate {
            return (None, late);
        }
        let fault = match chaos.random.next() % 6 {
            0 => Some(InjectedFault::BreakBefore),
            1 => Some(InjectedFault::BreakAfter),
            2 => Some(InjectedFault::Respond(500, "boom".to_owned())),
            3 => {
                self.planes.values_mut().for_each(Store::end_watches);
                None
            }
            4 => {
                self.planes.values_mut().for_each(Store::compact);
                self.planes.values_mut().for_each(Store::end_watches);
                None
            }
            _ => Some(InjectedFault::Overloaded(429, 1)),
        };
        (fault, late)
    }
}

impl tower::Service<Request<Bytes>> for FakeApiServer {
    type Response = Response<FakeBody>;
    type Error = polis_engine::transport::TransportError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        Box::pin(self.clone().handle(request))
    }
}

/// The plane (empty for the root) and the path within it.
fn split(path: &str) -> (String, String) {
    match path.split_once("/control-plane/") {
        Some((front, rest)) => (front.rsplit('/').next().unwrap_or_default().to_owned(), format!("/{rest}")),
        None => (String::new(), path.to_owned()),
    }
}

enum Target {
    Group(String),
    Object { collection: Collection, namespace: Option<String>, name: Option<String>, sub: Option<String> },
}

impl Target {
    fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (api, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ((*version).to_owned(), rest),
            ["apis", group, version, rest @ ..] => (format!("{group}/{version}"), rest),
            _ => return None,
        };
        let text = |text: Option<&&str>| text.map(|text| (*text).to_owned());
        Some(match rest {
            [] => Self::Group(api),
            ["namespaces", namespace, plural, rest @ ..] => Self::Object {
                collection: Collection::new(&api, plural),
                namespace: Some((*namespace).to_owned()),
                name: text(rest.first()),
                sub: text(rest.get(1)),
            },
            [plural, rest @ ..] => Self::Object {
                collection: Collection::new(&api, plural),
                namespace: None,
                name: text(rest.first()),
                sub: text(rest.get(1)),
            },
        })
    }
}

/// The query parameters of a request.
pub struct QueryParams(BTreeMap<String, String>);

impl QueryParams {
    fn parse(query: &str) -> Self {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        Self(pairs.map(|(name, value)| (name.to_owned(), unescape(value))).collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

fn unescape(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8().expect("UTF-8").into_owned()
}

fn status_response(code: u16, reason: &str, message: &str) -> Response<FakeBody> {
    StatusError::new(code, reason, message).into()
}

impl From<StatusError> for Response<FakeBody> {
    fn from(refused: StatusError) -> Self {
        let mut response = Response::new(body::full(refused.status().to_string()));
        *response.status_mut() = StatusCode::from_u16(refused.code).unwrap();
        response
    }
}
