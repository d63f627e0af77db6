//! A plane: one Kubernetes API, wherever it is.
//!
//! A name, a way to it, and a path in front of everything. What a plane is behind that (Milo, kube-apiserver, Karmada, the
//! embedded server) nobody asks. A plane that the engine watches also carries what was seen of it: reads from that cache are
//! plain calls (see [`crate::cache`]), reads from the server go through [`Plane::live`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use polis_api::kube;
use polis_api::kube::core::Status;
use tokio::time::timeout;

use crate::cache::Seen;
use crate::discovery::Discovery;
use crate::metrics::Metrics;
use crate::transport::retry::{Failure, Repeat, pause};
use crate::transport::{Body, BoxError, Purpose, Transport, TransportError};
use crate::{Clock, Error, Kind, Live, PlaneName, Random};

/// A unary call that is not answered within this time is given up.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Longest answer to a unary call: a page of 500 objects at etcd's limit of 1.5 MiB each would be more, real ones are far less.
const LONGEST_ANSWER: usize = 256 * 1024 * 1024;

/// What every part of an engine shares: the seams and the counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Env {
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    pub(crate) metrics: Arc<Metrics>,
}

/// One Kubernetes API, by a name. Cheap to clone.
#[derive(Clone)]
pub struct Plane {
    core: Arc<Core>,
    seen: Option<Arc<Seen>>,
}

#[derive(Clone)]
struct Core {
    name: PlaneName,
    /// What the plane is to us (`project`, `hub`, `cell`): the label of its requests in metrics.
    role: &'static str,
    prefix: Box<str>,
    transport: Transport,
    discovery: Arc<Discovery>,
    env: Arc<Env>,
}

impl Plane {
    /// A plane behind a transport.
    pub fn new(name: impl Into<PlaneName>, transport: Transport) -> Self {
        Self {
            core: Arc::new(Core {
                name: name.into(),
                role: "plane",
                prefix: "".into(),
                transport,
                discovery: Arc::default(),
                env: Arc::default(),
            }),
            seen: None,
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

    /// Another plane behind the same connections, with a path in front: how Milo serves its projects.
    ///
    /// The planes under one base share what is known about the kinds they serve.
    pub fn under(&self, name: impl Into<PlaneName>, prefix: &str) -> Self {
        let prefix = match prefix.trim_matches('/') {
            "" => self.core.prefix.to_string(),
            path => format!("{}/{path}", self.core.prefix),
        };
        self.with(Core { name: name.into(), prefix: prefix.into(), ..self.core() })
    }

    /// A plane at another host, with the credentials and the authority of this one and no path in front.
    pub(crate) fn elsewhere(&self, name: impl Into<PlaneName>, host: &str, port: u16) -> Self {
        let transport = self.core.transport.elsewhere(host, port);
        self.with(Core { name: name.into(), prefix: "".into(), transport, ..self.core() })
    }

    /// The same plane, counted in metrics as a `role` (`project`, `hub`, `cell`).
    pub fn role(&self, role: &'static str) -> Self {
        self.with(Core { role, ..self.core() })
    }

    /// The same plane with the seams of an engine, and what that engine sees of it.
    pub(crate) fn bound_to(&self, env: &Arc<Env>, seen: Option<Arc<Seen>>) -> Self {
        Self { core: Arc::new(Core { env: env.clone(), ..self.core() }), seen }
    }

    pub(crate) fn sharing_discovery(&self, discovery: Arc<Discovery>) -> Self {
        self.with(Core { discovery, ..self.core() })
    }

    fn core(&self) -> Core {
        Core::clone(&self.core)
    }

    fn with(&self, core: Core) -> Self {
        Self { core: Arc::new(core), seen: self.seen.clone() }
    }

    /// The name of the plane.
    pub fn name(&self) -> &PlaneName {
        &self.core.name
    }

    /// Reads that ask the server now, for decisions that need positive evidence.
    pub fn live(&self) -> Live<'_> {
        Live::new(self)
    }

    /// A client of the `kube` crate for this plane, for what the engine has no verb for (logs, exec, rare subresources).
    ///
    /// It costs a task and about 11 KiB while it lives: make one when needed, not one per project. Must be called within a
    /// tokio runtime.
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

    pub(crate) fn seen(&self) -> Option<&Arc<Seen>> {
        self.seen.as_ref()
    }

    pub(crate) fn discovery(&self) -> &Arc<Discovery> {
        &self.core.discovery
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

    /// Opens a stream. The answer's head must come within the usual time; its body may take for ever.
    pub(crate) async fn open(&self, path_and_query: &str) -> Result<Response<Body>, Error> {
        let action = || format!("watch {path_and_query}");
        let request = self
            .request(Method::GET, path_and_query, None, Bytes::new())
            .map_err(|error| self.unreachable(action(), error))?;
        let answer = timeout(ANSWER_WITHIN, self.core.transport.send(request, Purpose::Watch)).await;
        let answer = answer.unwrap_or(Err(TransportError::Timeout { after: ANSWER_WITHIN }));
        self.count("watch", &answer);
        let response = answer.map_err(|error| self.unreachable(action(), error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let code = response.status();
        let content = timeout(ANSWER_WITHIN, response.into_body().read_all(1 << 20)).await;
        let content = content.ok().and_then(Result::ok).unwrap_or_default();
        Err(self.refused(action(), status_of(code, &content)))
    }

    /// A unary call, retried as far as that is safe.
    pub(crate) async fn call(&self, call: Call<'_>) -> Result<Vec<u8>, Error> {
        let mut attempt = 1;
        loop {
            let (failure, pause) = match self.attempt(&call).await {
                Ok((status, _, content)) if status.is_success() => return Ok(content),
                Ok((status, retry_after, content)) => {
                    let failure = Failure::Answer { status, retry_after };
                    let pause = pause(attempt, call.repeat(), &failure, &self.core.env.random);
                    (self.refused(call.action(), status_of(status, &content)), pause)
                }
                Err(error) => {
                    let pause =
                        pause(attempt, call.repeat(), &Failure::NoAnswer(&error), &self.core.env.random);
                    (self.unreachable(call.action(), error), pause)
                }
            };
            match pause {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(failure),
            }
            attempt += 1;
        }
    }

    async fn attempt(
        &self,
        call: &Call<'_>,
    ) -> Result<(StatusCode, Option<Duration>, Vec<u8>), TransportError> {
        let request =
            self.request(call.method.clone(), &call.path, call.content_type, call.content.clone())?;
        let whole = async {
            let response = self.core.transport.send(request, Purpose::Unary).await?;
            let (parts, body) = response.into_parts();
            let retry_after = parts
                .headers
                .get(RETRY_AFTER)
                .and_then(|value| value.to_str().ok()?.parse().ok())
                .map(Duration::from_secs);
            let content = body
                .read_all(LONGEST_ANSWER)
                .await
                .map_err(|error| TransportError::Broken { why: error.to_string().into() })?;
            Ok((parts.status, retry_after, content))
        };
        let answer = timeout(ANSWER_WITHIN, whole)
            .await
            .unwrap_or(Err(TransportError::Timeout { after: ANSWER_WITHIN }));
        let code = answer
            .as_ref()
            .map_or_else(|error| error.reason().to_owned(), |(status, ..)| status.as_str().to_owned());
        self.core.env.metrics.request(call.verb, code, self.core.role);
        answer
    }

    fn count(&self, verb: &'static str, answer: &Result<Response<Body>, TransportError>) {
        let code = match answer {
            Ok(response) => response.status().as_str().to_owned(),
            Err(error) => error.reason().to_owned(),
        };
        self.core.env.metrics.request(verb, code, self.core.role);
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        content_type: Option<&'static str>,
        content: Bytes,
    ) -> Result<Request<Bytes>, TransportError> {
        let mut request = Request::new(content);
        *request.method_mut() = method;
        *request.uri_mut() =
            format!("{}{path}", self.core.prefix).parse().map_err(|error: http::uri::InvalidUri| {
                TransportError::Unsent { why: format!("path {path}: {error}").into() }
            })?;
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
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

/// One unary call.
pub(crate) struct Call<'a> {
    pub(crate) verb: &'static str,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) content_type: Option<&'static str>,
    pub(crate) content: Bytes,
    /// Carries a resource version or UID that makes a repetition fail.
    pub(crate) guarded: bool,
    /// What it is about, for messages.
    pub(crate) about: &'a str,
}

impl Call<'_> {
    fn repeat(&self) -> Repeat {
        Repeat::of(&self.method, self.guarded)
    }

    fn action(&self) -> String {
        format!("{} {}", self.verb, self.about)
    }
}

/// The refusal in an answer. Servers and proxies that do not speak Kubernetes still get a code and their first words.
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
pub(crate) fn about(kind: &Kind, place: crate::Place<'_>) -> String {
    format!("{} {place}", kind.kind)
}
