//! A small API server for tests: as much of Kubernetes as the engine relies on, and every way to misbehave.
//!
//! A tower service over plain JSON. Planes are told apart by the path in front (`…/control-plane/`); the root plane has none.
//! Lists come in pages or as streams, watches resume from a revision or are told 410, writes obey resource versions, UIDs and
//! finalizers. Faults are switched on by the test; with a seed they come by chance and reproducibly.

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

use body::StandInBody;
use store::{Collection, Refusal, Store};

/// The server. Cheap to clone; clones are the same server.
#[derive(Clone)]
pub struct StandIn(Arc<Mutex<Inner>>);

struct Inner {
    planes: BTreeMap<String, Store>,
    served: BTreeMap<Collection, String>,
    streaming: bool,
    page: usize,
    log: Vec<String>,
    hook: Option<Hook>,
    chaos: Option<Chaos>,
    /// Streams that stay open and silent.
    mute: Vec<tokio::sync::mpsc::UnboundedSender<Bytes>>,
}

type Hook = Arc<dyn Fn(&Method, &str) -> Option<Misdeed> + Send + Sync>;

/// What to do instead of answering.
#[derive(Clone, Debug)]
pub enum Misdeed {
    /// Answer with this code and text.
    Answer(u16, String),
    /// Answer with this code, asking to be left alone for some seconds.
    Overloaded(u16, u64),
    /// Never answer.
    Silence,
    /// Answer, and then say nothing.
    Mute,
    /// Break the connection before doing anything.
    BreakBefore,
    /// Do it, then break the connection.
    BreakAfter,
}

/// Faults by chance.
struct Chaos {
    random: Random,
    rate: f64,
}

impl StandIn {
    /// A server of the kinds `(group/version, plural, kind)`; the core group is just its version.
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
            mute: Vec::new(),
        })))
    }

    /// A server of ConfigMaps, Namespaces, Secrets and Leases.
    pub fn usual() -> Self {
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
            store.cut_watches();
        }
    }

    /// Whether lists can be streamed.
    pub fn streaming(&self, streaming: bool) {
        self.0.lock().streaming = streaming;
    }

    /// Objects per page at most.
    pub fn page(&self, page: usize) {
        self.0.lock().page = page;
    }

    /// Looks at every request first.
    pub fn hook(&self, hook: impl Fn(&Method, &str) -> Option<Misdeed> + Send + Sync + 'static) {
        self.0.lock().hook = Some(Arc::new(hook));
    }

    pub fn behave(&self) {
        let mut inner = self.0.lock();
        inner.hook = None;
        inner.chaos = None;
    }

    /// From now on things go wrong by chance: answers are late, lost before or after the deed, watches are cut, history is
    /// forgotten.
    pub fn chaos(&self, seed: u64, rate: f64) {
        self.0.lock().chaos = Some(Chaos { random: Random::from_seed(seed), rate });
    }

    /// Ends every watch, as a restart does.
    pub fn cut_watches(&self) {
        self.0.lock().planes.values_mut().for_each(Store::cut_watches);
    }

    /// Forgets history: whoever resumes is told 410.
    pub fn forget_history(&self) {
        self.0.lock().planes.values_mut().for_each(Store::forget_history);
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

    /// Writes as a user would, past every fault. `plane` is the path in front, empty for the root.
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

    fn answer(&self, request: &Request<Bytes>) -> Response<StandInBody> {
        let mut guard = self.0.lock();
        let inner = &mut *guard;
        let (plane, path) = split(request.uri().path());
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let Some(target) = Target::parse(&path) else {
            return refusal(404, "NotFound", "404 page not found");
        };
        let (collection, place, sub) = match target {
            Target::Group(api) => return inner.discover(&api),
            Target::Object { collection, namespace, name, sub } => (collection, (namespace, name), sub),
        };
        let Some(kind) = inner.served.get(&collection).cloned() else {
            return refusal(404, "NotFound", "the server could not find the requested resource");
        };
        let (streaming, page) = (inner.streaming, inner.page);
        let store = inner.planes.entry(plane).or_default();
        let (namespace, name) = place;
        let content: Value = serde_json::from_slice(request.body()).unwrap_or(Value::Null);
        let outcome = match (request.method(), name) {
            (&Method::GET, None) if query.get("watch") == Some("true") => {
                if query.get("sendInitialEvents").is_some() && !streaming {
                    Err(Refusal::new(422, "Invalid", "sendInitialEvents is forbidden"))
                } else {
                    return match store.watch(&collection, namespace.as_deref(), &query) {
                        Ok(body) => Response::new(body),
                        Err(refused) => refused.into(),
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
            _ => Err(Refusal::new(405, "MethodNotAllowed", "no such verb here")),
        };
        match outcome {
            Ok(value) => {
                let code =
                    if request.method() == Method::POST { StatusCode::CREATED } else { StatusCode::OK };
                let mut response = Response::new(StandInBody::full(value.to_string()));
                *response.status_mut() = code;
                response
            }
            Err(refused) => refused.into(),
        }
    }

    async fn handle(
        self,
        request: Request<Bytes>,
    ) -> Result<Response<StandInBody>, polis_engine::transport::TransportError> {
        let broken = |why: &str| polis_engine::transport::TransportError::Broken { why: why.into() };
        let line = format!("{} {}", request.method(), request.uri());
        let (misdeed, delay) = {
            let mut inner = self.0.lock();
            inner.log.push(line);
            let hooked =
                inner.hook.clone().and_then(|hook| hook(request.method(), &request.uri().to_string()));
            let (chance, late) = inner.mischief();
            (hooked.or(chance), late)
        };
        if delay > Duration::ZERO {
            tokio::time::sleep(delay).await;
        }
        match misdeed {
            None => Ok(self.answer(&request)),
            Some(Misdeed::Answer(code, text)) => {
                let mut response = Response::new(StandInBody::full(text));
                *response.status_mut() = StatusCode::from_u16(code).unwrap();
                Ok(response)
            }
            Some(Misdeed::Overloaded(code, seconds)) => {
                let mut response = refusal(code, "TooManyRequests", "come back later");
                response.headers_mut().insert("retry-after", seconds.into());
                Ok(response)
            }
            Some(Misdeed::Silence) => std::future::pending().await,
            Some(Misdeed::Mute) => {
                let (lines, body) = tokio::sync::mpsc::unbounded_channel();
                self.0.lock().mute.push(lines);
                Ok(Response::new(StandInBody::Lines(body)))
            }
            Some(Misdeed::BreakBefore) => Err(broken("before")),
            Some(Misdeed::BreakAfter) => {
                drop(self.answer(&request));
                Err(broken("after"))
            }
        }
    }
}

impl Inner {
    fn discover(&self, api: &str) -> Response<StandInBody> {
        let resources: Vec<Value> = self
            .served
            .iter()
            .filter(|(collection, _)| collection.api == api)
            .map(|(collection, kind)| json!({"name": collection.plural, "kind": kind, "namespaced": true}))
            .collect();
        if resources.is_empty() {
            return refusal(404, "NotFound", "404 page not found");
        }
        let list = json!({"kind": "APIResourceList", "groupVersion": api, "resources": resources});
        Response::new(StandInBody::full(list.to_string()))
    }

    /// What chance has in store for a request: a misdeed, and a delay.
    fn mischief(&mut self) -> (Option<Misdeed>, Duration) {
        let Some(chaos) = &self.chaos else { return (None, Duration::ZERO) };
        let late = Duration::from_millis((chaos.random.fraction() * 800.0) as u64);
        if chaos.random.fraction() >= chaos.rate {
            return (None, late);
        }
        let misdeed = match chaos.random.next() % 6 {
            0 => Some(Misdeed::BreakBefore),
            1 => Some(Misdeed::BreakAfter),
            2 => Some(Misdeed::Answer(500, "boom".to_owned())),
            3 => {
                self.planes.values_mut().for_each(Store::cut_watches);
                None
            }
            4 => {
                self.planes.values_mut().for_each(Store::forget_history);
                self.planes.values_mut().for_each(Store::cut_watches);
                None
            }
            _ => Some(Misdeed::Overloaded(429, 1)),
        };
        (misdeed, late)
    }
}

impl tower::Service<Request<Bytes>> for StandIn {
    type Response = Response<StandInBody>;
    type Error = polis_engine::transport::TransportError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        Box::pin(self.clone().handle(request))
    }
}

/// The path in front (empty for the root plane) and the path behind it.
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

/// The parameters of a request.
pub struct Query(BTreeMap<String, String>);

impl Query {
    fn parse(query: &str) -> Self {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        Self(pairs.map(|(name, value)| (name.to_owned(), unescape(value))).collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first == b'%' && after.len() >= 2 {
            bytes.push(u8::from_str_radix(std::str::from_utf8(&after[..2]).unwrap(), 16).unwrap());
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).unwrap()
}

fn refusal(code: u16, reason: &str, message: &str) -> Response<StandInBody> {
    Refusal::new(code, reason, message).into()
}

impl From<Refusal> for Response<StandInBody> {
    fn from(refused: Refusal) -> Self {
        let mut response = Response::new(StandInBody::full(refused.status().to_string()));
        *response.status_mut() = StatusCode::from_u16(refused.code).unwrap();
        response
    }
}
