//! [`Plane`]: a client of one Kubernetes API server, with the informer cache of the plane.
//!
//! A plane has a name, a transport and a path prefix. It works the same with Milo, kube-apiserver, Karmada
//! and the embedded server. A plane that the engine watches also has a cache: cached reads are synchronous
//! calls (see [`crate::cache`]), and [`Plane::uncached`] reads from the server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use polis_api::kube;
use polis_api::kube::core::Status;
use tokio::time::timeout;

use crate::cache::InformerStore;
use crate::discovery::Discovery;
use crate::health::{PlaneHealth, Reachability};
use crate::metrics::Metrics;
use crate::modify::ObjectLocks;
use crate::transport::retry::{Failure, Retry, retry_delay};
use crate::transport::{Body, BoxError, Purpose, Transport, TransportError};
use crate::{Clock, Error, Kind, PlaneName, Random, UncachedReader};

/// Timeout of a unary call, and of the response headers of a watch.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest response to a unary call. A page of 500 objects at etcd's limit of 1.5 MiB would be larger; real
/// pages are far smaller.
const MAX_RESPONSE_BYTES: usize = 256 * 1024 * 1024;

/// What all parts of an engine share: the injected clock and random source, the metrics, and the locks of the
/// objects that are being written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Env {
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) locks: ObjectLocks,
}

/// One Kubernetes API server, or one path prefix of it, under a name. Cheap to clone.
#[derive(Clone)]
pub struct Plane {
    core: Arc<Core>,
    informers: Option<Arc<InformerStore>>,
}

#[derive(Clone)]
struct Core {
    name: PlaneName,
    /// The label of its requests in metrics: `project`, `hub`, `cell`.
    role: &'static str,
    prefix: Box<str>,
    /// The namespace that watches without a namespace of their own are limited to.
    namespace: Option<Box<str>>,
    transport: Transport,
    discovery: Arc<Discovery>,
    health: Arc<PlaneHealth>,
    env: Arc<Env>,
    request_timeout: Duration,
}

impl Plane {
    /// A plane that is reached through a transport.
    pub fn new(name: impl Into<PlaneName>, transport: Transport) -> Self {
        Self {
            core: Arc::new(Core {
                name: name.into(),
                role: "plane",
                prefix: "".into(),
                namespace: None,
                transport,
                discovery: Arc::default(),
                health: Arc::default(),
                env: Arc::default(),
                request_timeout: RESPONSE_TIMEOUT,
            }),
            informers: None,
        }
    }

    /// A plane served in this process by a tower service.
    pub fn in_process<S, B, R>(name: impl Into<PlaneName>, service: S) -> Self
    where
        S: tower::Service<Request<B>, Response = Response<R>> + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: From<Bytes> + Send + 'static,
        R: http_body::Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        Self::new(name, Transport::in_process(service))
    }

    /// The plane behind a client of the `kube` crate.
    pub fn from_kube_client(name: impl Into<PlaneName>, client: kube::Client) -> Self {
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let client = client.clone();
            async move { client.send(request).await }
        });
        Self::in_process(name, service)
    }

    /// Another plane at a path prefix of the same server, which is how Milo serves its projects. It shares
    /// the connections and the discovery results of this plane, but not its cache.
    pub fn with_path_prefix(&self, name: impl Into<PlaneName>, prefix: &str) -> Self {
        let prefix = match prefix.trim_matches('/') {
            "" => self.core.prefix.to_string(),
            path => format!("{}/{path}", self.core.prefix),
        };
        let (name, health) = (name.into(), Arc::default());
        Self::uncached_with(Core { name, prefix: prefix.into(), health, ..self.core() })
    }

    /// One namespace of this plane, as a plane that is named after the namespace: its watches of namespaced
    /// kinds list and watch only there. For credentials that have no rights in the other namespaces. It
    /// shares the connections and the discovery results of this plane, but not its cache.
    pub fn within(&self, namespace: &str) -> Self {
        let (name, namespace) = (namespace.into(), Some(namespace.into()));
        Self::uncached_with(Core { name, namespace, ..self.core() })
    }

    /// The namespace that the watches of this plane are limited to.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.core.namespace.as_deref()
    }

    /// A plane at another host, with the credentials and the CA of this one and without a path prefix.
    pub(crate) fn at_host(&self, name: impl Into<PlaneName>, host: &str, port: u16) -> Self {
        let transport = self.core.transport.at_host(host, port);
        let (name, health) = (name.into(), Arc::default());
        Self::uncached_with(Core { name, prefix: "".into(), transport, health, ..self.core() })
    }

    /// The same plane with `role` (`project`, `hub`, `cell`) as the label of its requests in metrics.
    pub fn with_role(&self, role: &'static str) -> Self {
        self.with(Core { role, ..self.core() })
    }

    /// The same plane with another timeout of a unary call; the default is 30 seconds.
    pub fn with_request_timeout(&self, timeout: Duration) -> Self {
        self.with(Core { request_timeout: timeout, ..self.core() })
    }

    /// The same plane with the environment of an engine and, if the engine watches it, with its cache.
    pub(crate) fn bound_to(&self, env: &Arc<Env>, informers: Option<Arc<InformerStore>>) -> Self {
        Self { core: Arc::new(Core { env: env.clone(), ..self.core() }), informers }
    }

    pub(crate) fn sharing_discovery(&self, discovery: Arc<Discovery>) -> Self {
        self.with(Core { discovery, ..self.core() })
    }

    fn core(&self) -> Core {
        Core::clone(&self.core)
    }

    fn with(&self, core: Core) -> Self {
        Self { core: Arc::new(core), informers: self.informers.clone() }
    }

    fn uncached_with(core: Core) -> Self {
        Self { core: Arc::new(core), informers: None }
    }

    /// The name of the plane.
    pub fn name(&self) -> &PlaneName {
        &self.core.name
    }

    /// Whether the plane answers the requests of this process.
    pub fn reachability(&self) -> Reachability {
        self.core.health.reachability()
    }

    /// Reads from the server instead of the cache, for decisions that a stale read would make wrong.
    pub fn uncached(&self) -> UncachedReader<'_> {
        UncachedReader::new(self)
    }

    /// A client of the `kube` crate for this plane, for requests that the engine does not support (logs,
    /// exec, rare subresources).
    ///
    /// It costs a task and about 11 KiB while it exists: make one when needed, not one per project. Must be
    /// called within a tokio runtime.
    pub fn kube_client(&self) -> kube::Client {
        let plane = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let plane = plane.clone();
            async move {
                let (parts, body) = request.into_parts();
                let content = http_body_util::BodyExt::collect(body)
                    .await
                    .map_err(|error| Box::new(error) as BoxError)?
                    .to_bytes();
                let watch = parts.uri.query().is_some_and(|query| query.contains("watch=true"));
                let request = plane.prefixed(Request::from_parts(parts, content));
                let purpose = if watch { Purpose::Watch } else { Purpose::Unary };
                plane.core.transport.send(request, purpose).await.map_err(|error| Box::new(error) as BoxError)
            }
        });
        kube::Client::new(service, "default")
    }

    pub(crate) fn informers(&self) -> Option<&Arc<InformerStore>> {
        self.informers.as_ref()
    }

    pub(crate) fn discovery(&self) -> &Arc<Discovery> {
        &self.core.discovery
    }

    /// Which requests the plane answers.
    pub(crate) fn health(&self) -> &PlaneHealth {
        &self.core.health
    }

    pub(crate) fn env(&self) -> &Arc<Env> {
        &self.core.env
    }

    pub(crate) fn refused(&self, action: String, status: Status) -> Error {
        Error::Refused { plane: self.name().clone(), action, status: Box::new(status) }
    }

    pub(crate) fn unreachable(&self, action: String, source: TransportError) -> Error {
        Error::Unreachable { plane: self.name().clone(), action, source }
    }

    fn prefixed(&self, mut request: Request<Bytes>) -> Request<Bytes> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let uri = format!("{}{path}", self.core.prefix);
        if let Ok(uri) = uri.parse() {
            *request.uri_mut() = uri;
        }
        request
    }

    /// Opens a watch stream. The timeout covers the response headers only; the body may stream without end.
    pub(crate) async fn open(
        &self,
        path_and_query: &str,
        accept: &'static str,
    ) -> Result<Response<Body>, Error> {
        let action = || format!("watch {path_and_query}");
        let request = self
            .request(Method::GET, path_and_query, accept, None, Bytes::new())
            .map_err(|error| self.unreachable(action(), error))?;
        let response = timeout(RESPONSE_TIMEOUT, self.core.transport.send(request, Purpose::Watch)).await;
        let response = response.unwrap_or(Err(TransportError::Timeout { after: RESPONSE_TIMEOUT }));
        self.count("watch", &response);
        let response = response.map_err(|error| self.unreachable(action(), error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let code = response.status();
        let content = timeout(RESPONSE_TIMEOUT, response.into_body().read_all(1 << 20)).await;
        let content = content.ok().and_then(Result::ok).unwrap_or_default();
        Err(self.refused(action(), status_of(code, &content)))
    }

    /// Sends a unary call and retries it where that is safe (see [`crate::transport::retry`]).
    pub(crate) async fn call(&self, call: Call<'_>) -> Result<Vec<u8>, Error> {
        let mut attempt = 1;
        loop {
            let (failure, delay) = match self.attempt(&call).await {
                Ok((status, _, content)) if status.is_success() => return Ok(content),
                Ok((status, retry_after, content)) => {
                    let failure = Failure::Response { status, retry_after };
                    let delay = retry_delay(attempt, call.retry(), &failure, &self.core.env.random);
                    (self.refused(call.action(), status_of(status, &content)), delay)
                }
                Err(error) => {
                    let delay = retry_delay(
                        attempt,
                        call.retry(),
                        &Failure::NoResponse(&error),
                        &self.core.env.random,
                    );
                    (self.unreachable(call.action(), error), delay)
                }
            };
            match delay {
                Some(delay) => tokio::time::sleep(delay).await,
                None => return Err(failure),
            }
            attempt += 1;
        }
    }

    /// Sends a unary call without retries.
    pub(crate) async fn call_once(&self, call: Call<'_>) -> Result<Vec<u8>, Error> {
        match self.attempt(&call).await {
            Ok((status, _, content)) if status.is_success() => Ok(content),
            Ok((status, _, content)) => Err(self.refused(call.action(), status_of(status, &content))),
            Err(error) => Err(self.unreachable(call.action(), error)),
        }
    }

    async fn attempt(
        &self,
        call: &Call<'_>,
    ) -> Result<(StatusCode, Option<Duration>, Vec<u8>), TransportError> {
        let request = self.request(
            call.method.clone(),
            &call.path,
            call.accept,
            call.content_type,
            call.content.clone(),
        )?;
        let exchange = async {
            let response = self.core.transport.send(request, Purpose::Unary).await?;
            let (parts, body) = response.into_parts();
            let retry_after = parts
                .headers
                .get(RETRY_AFTER)
                .and_then(|value| value.to_str().ok()?.parse().ok())
                .map(Duration::from_secs);
            let content = body
                .read_all(MAX_RESPONSE_BYTES)
                .await
                .map_err(|error| TransportError::Broken { why: error.to_string().into() })?;
            Ok((parts.status, retry_after, content))
        };
        let after = self.core.request_timeout;
        let response = timeout(after, exchange).await.unwrap_or(Err(TransportError::Timeout { after }));
        let code = response
            .as_ref()
            .map_or_else(|error| error.reason().to_owned(), |(status, ..)| status.as_str().to_owned());
        let status = response.as_ref().ok().map(|(status, ..)| status.as_u16());
        self.core.health.record(call.verb, status, &code, || self.core.env.clock.now());
        self.core.env.metrics.request(call.verb, code, self.core.role);
        response
    }

    fn count(&self, verb: &'static str, response: &Result<Response<Body>, TransportError>) {
        let code = match response {
            Ok(response) => response.status().as_str().to_owned(),
            Err(error) => error.reason().to_owned(),
        };
        let status = response.as_ref().ok().map(|response| response.status().as_u16());
        self.core.health.record(verb, status, &code, || self.core.env.clock.now());
        self.core.env.metrics.request(verb, code, self.core.role);
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
        content_type: Option<&'static str>,
        content: Bytes,
    ) -> Result<Request<Bytes>, TransportError> {
        let mut request = Request::new(content);
        *request.method_mut() = method;
        *request.uri_mut() =
            format!("{}{path}", self.core.prefix).parse().map_err(|error: http::uri::InvalidUri| {
                TransportError::Unsent { why: format!("path {path}: {error}").into() }
            })?;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accept));
        if let Some(content_type) = content_type {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        Ok(request)
    }
}

impl fmt::Debug for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plane({})", self.core.name)
    }
}

/// The media type of an object or a list.
pub(crate) const JSON: &str = "application/json";

/// One unary call.
pub(crate) struct Call<'a> {
    pub(crate) verb: &'static str,
    pub(crate) method: Method,
    pub(crate) path: String,
    /// The media type of the response.
    pub(crate) accept: &'static str,
    pub(crate) content_type: Option<&'static str>,
    pub(crate) content: Bytes,
    /// Preconditions (resource version or UID) or apply semantics make a second execution harmless.
    pub(crate) idempotent: bool,
    /// The object or kind, for messages.
    pub(crate) about: &'a str,
}

impl Call<'_> {
    fn retry(&self) -> Retry {
        Retry::of(&self.method, self.idempotent)
    }

    fn action(&self) -> String {
        format!("{} {}", self.verb, self.about)
    }
}

/// The `Status` of an error response. For a response that is no `Status`, such as one of a proxy, it is made
/// of the HTTP code and the first 200 bytes of the body.
fn status_of(code: StatusCode, content: &[u8]) -> Status {
    match serde_json::from_slice::<Status>(content) {
        Ok(mut status) if !status.message.is_empty() || !status.reason.is_empty() => {
            status.code = code.as_u16();
            status
        }
        _ => Status {
            code: code.as_u16(),
            message: String::from_utf8_lossy(&content[..content.len().min(200)]).trim().to_owned(),
            reason: code.canonical_reason().unwrap_or("Unknown").replace(' ', ""),
            ..Status::default()
        },
    }
}

/// `Kind namespace/name`, for messages.
pub(crate) fn about(kind: &Kind, object: crate::NamespacedName<'_>) -> String {
    format!("{} {object}", kind.kind)
}
