//! The API server as a tower service, for network connections and in-process callers alike.

use std::{
    borrow::Cow,
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, Response, header, request::Parts};
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;

use crate::{
    access::{self, Attributes, Peer, SessionEnd},
    endpoint::{self, Endpoint},
    flow::{Caller, DEADLINE, HeldBody, Origin, PriorityLevel},
    health,
    http::{BODY_MAX, Content, Options, ResponseBody, failure, read},
    plane::Plane,
    route::{self, ResourcePath, Target, Verb},
    server::Core,
    status::{GroupResource, StatusError},
    store::{CommitError, Revision},
    subresource::SubresourceRequest,
    user::{AUTHENTICATED, UserInfo},
    verbs::{Call, Payload, convert_value},
};

/// The API of all planes, or of one plane.
#[derive(Clone)]
pub struct Service {
    core: Arc<Core>,
    plane: Option<Arc<str>>,
    /// The caller sees writes that are not durable yet.
    read_uncommitted: bool,
}

/// A response extension: the latest revision that the response shows. The response waits until it is durable.
#[derive(Clone, Copy)]
pub(crate) struct ShownRevision(pub(crate) Revision);

type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Infallible>> + Send>>;

impl<B> tower::Service<Request<B>> for Service
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture {
        let service = self.clone();
        Box::pin(async move { Ok(service.handle(request).await) })
    }
}

/// The user that a request acts as, and the authenticated sender whose share of the server it uses.
struct Sender {
    user: UserInfo,
    caller: Caller,
}

impl Service {
    pub(crate) fn new(core: Arc<Core>, plane: Option<Arc<str>>) -> Self {
        Self { core, plane, read_uncommitted: false }
    }

    /// Lets the caller read writes, and receive watch events, before they are durable. This is safe for an
    /// in-process controller that writes only to this store: its writes go to the same log, so a crash loses
    /// both what it read and what it wrote, or neither. All other callers see only durable writes.
    pub fn read_uncommitted(self) -> Self {
        Self { read_uncommitted: true, ..self }
    }

    /// Handles one request.
    pub async fn handle<B>(&self, request: Request<B>) -> Response<ResponseBody>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: std::fmt::Display,
    {
        let (parts, body) = request.into_parts();
        let head = parts.method == http::Method::HEAD;
        let mut trail = access::Trail::begin(&self.core, self.plane.as_deref(), &parts);
        let dispatched = self.dispatch(&parts, body, &mut trail).await;
        let mut response = dispatched.unwrap_or_else(|error| failure(&error));
        let shown = response.extensions().get().map(|ShownRevision(shown)| *shown);
        if let Some(durable) = self.until_durable(shown)
            && let Err(error) = durable.await
        {
            response = failure(&StatusError::internal(&error.to_string()));
        }
        trail.finish(&mut response);
        if head {
            *response.body_mut() = ResponseBody::full(Bytes::new());
        }
        response
    }

    /// The wait before a response is sent: for the revision that it shows, else for every visible write.
    fn until_durable(&self, shown: Option<Revision>) -> Option<BoxFuture<'static, Result<(), CommitError>>> {
        let store = &self.core.store;
        store.durable(shown.unwrap_or_else(|| store.view().revision())).filter(|_| !self.read_uncommitted)
    }

    async fn dispatch<B>(
        &self,
        parts: &Parts,
        body: B,
        trail: &mut access::Trail<'_>,
    ) -> Result<Response<ResponseBody>, StatusError>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: std::fmt::Display,
    {
        let path = decode_path(parts.uri.path())?;
        let (name, project, path) = match &self.plane {
            Some(name) => (Cow::Borrowed(&**name), name.strip_prefix("project:"), &*path),
            None => {
                let found = route::plane_of(&path);
                (found.plane, found.project, found.path)
            }
        };
        let (mut user, session) = access::authenticate(&self.core, &name, parts)?;
        let caller = Caller::of(origin(parts), &name, &user);
        if let Some(project) = project {
            access::add_project(&mut user, project);
        }
        trail.authenticated(&user);
        let plane = self.core.plane(&name);
        // An anonymous caller does not learn which planes exist: it is refused as on a plane that grants it
        // nothing.
        if plane.is_none() && user.is_in(AUTHENTICATED) {
            return Err(StatusError::no_such_path());
        }
        let user = access::impersonate(&self.core, plane.as_ref(), user, &parts.headers)?;
        trail.impersonated(&user);
        match route::target(path) {
            Target::NonResource(path) => {
                let attributes = Attributes::non_resource(&parts.method, path);
                let plane = access::authorize(&self.core, plane.as_ref(), &user, &attributes)?;
                trail.authorized();
                if plane.name.is_empty() && path == access::CREDENTIALS_PATH {
                    let body = read(body).await?;
                    return self.core.credentials.respond(&self.core, &parts.method, body).await;
                }
                let mut response = health::respond(&self.core, plane, path, parts)?;
                response.extensions_mut().insert(ShownRevision(0));
                Ok(response)
            }
            Target::Resource(target) => {
                let sender = Sender { user, caller };
                let response = self.dispatch_resource(plane.as_ref(), sender, &target, parts, body, trail);
                let mut response = response.await?;
                if let Some(session) = session.filter(|_| response.body().is_streamed()) {
                    response.body_mut().set_session(SessionEnd::of(&self.core, session));
                }
                Ok(response)
            }
        }
    }

    async fn dispatch_resource(
        &self,
        plane: Option<&Arc<Plane>>,
        Sender { user, caller }: Sender,
        target: &ResourcePath<'_>,
        parts: &Parts,
        body: impl http_body::Body<Data = Bytes, Error: std::fmt::Display> + Send,
        trail: &mut access::Trail<'_>,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let options = Options::parse(parts.uri.query().unwrap_or_default());
        let verb = route::verb(&parts.method, target, options.as_ref().is_ok_and(|options| options.watch));
        // A list or watch of one name is authorized by that name, as in Kubernetes.
        let selected = || selected_name(verb?, options.as_ref().ok()?);
        let name = target.name.map(str::to_owned).or_else(selected);
        let attributes = Attributes::resource(verb, target, name.as_deref());
        let plane = access::authorize(&self.core, plane, &user, &attributes)?;
        trail.authorized();
        if target.malformed {
            return Err(endpoint::malformed(target));
        }
        let options = options?;
        let kinds = plane.catalogue.kinds();
        let verb = verb.ok_or_else(|| endpoint::no_verb(&kinds, target))?;
        let endpoint = Endpoint::find(kinds, target)?;
        if let Some((handler, name)) = endpoint.handler(target) {
            let request = self.subresource_request(plane, endpoint, verb, name, user, parts)?;
            return handler.handle(request).await;
        }
        let subresource = endpoint.accept(verb, target, name.as_deref())?;
        let output = endpoint.negotiate(&parts.headers)?;
        if verb == Verb::Create && name.is_some() && subresource.is_none() && !endpoint.kind.is_custom() {
            return Err(StatusError::method_not_allowed());
        }
        let (_held, payload) = match verb.is_write() {
            true => self.receive(&caller, plane, &parts.headers, body).await?,
            false => (None, Payload { content: None, bytes: Bytes::new() }),
        };
        trail.body(&payload);
        let deadline = (caller.level != PriorityLevel::Exempt).then(|| Instant::now() + DEADLINE);
        let call = Call {
            core: self.core.clone(),
            plane: plane.clone(),
            kinds: endpoint.kinds,
            kind: endpoint.kind,
            version: endpoint.version,
            verb,
            namespace: endpoint.namespace,
            name,
            subresource,
            user,
            caller,
            options,
            output,
            read_uncommitted: self.read_uncommitted,
            agent: agent(&parts.headers),
            deadline,
            warnings: Mutex::default(),
        };
        Ok(execute(call, payload, parts).await)
    }

    /// Reads the body of a write. It is accounted for as long as the caller keeps the first value.
    async fn receive(
        &self,
        caller: &Caller,
        plane: &Plane,
        headers: &HeaderMap,
        body: impl http_body::Body<Data = Bytes, Error: std::fmt::Display> + Send,
    ) -> Result<(Option<HeldBody>, Payload), StatusError> {
        let held = self.core.flows.hold_body(caller, &plane.name, expected_bytes(&body))?;
        Ok((held, Payload { content: Content::of(headers), bytes: read(body).await? }))
    }

    /// The request for a handler of the embedding program, with the object whose subresource it serves.
    fn subresource_request(
        &self,
        plane: &Plane,
        endpoint: Endpoint,
        verb: Verb,
        name: &str,
        user: UserInfo,
        parts: &Parts,
    ) -> Result<SubresourceRequest, StatusError> {
        if verb != Verb::Get {
            return Err(StatusError::method_not_allowed());
        }
        let Endpoint { kind, version, namespace, .. } = endpoint;
        let stored = self
            .core
            .store
            .view()
            .get(&kind.collection(&plane.name), &kind.path(namespace.as_deref(), name))
            .ok_or_else(|| StatusError::not_found(&kind.group_resource(), name))?;
        Ok(SubresourceRequest {
            plane: plane.name.to_string(),
            namespace,
            name: name.to_owned(),
            object: convert_value(&kind, &version, &stored),
            user,
            query: parts.uri.query().unwrap_or_default().to_owned(),
        })
    }
}

/// Runs the verb, and adds the warnings to the response.
async fn execute(call: Call, payload: Payload, parts: &Parts) -> Response<ResponseBody> {
    let work = call.estimate(payload.bytes.len()).work(call.caller.level);
    let request = Box::pin(call.run(payload));
    let result = call.core.flows.run(&call.caller, &call.plane.name, work, request).await;
    let result = result.map_err(|failure| match failure.code {
        405 if call.kind.is_custom() => {
            StatusError::not_supported(&call.kind.group_resource(), call.verb.as_str())
        }
        _ => failure,
    });
    tracing::trace!(
        plane = &*call.plane.name,
        user = call.user.name,
        verb = call.verb.as_str(),
        path = parts.uri.path(),
        code = result.as_ref().map_or_else(|failure| failure.code, |response| response.status().as_u16()),
        "request handled"
    );
    let mut response = result.unwrap_or_else(|error| failure(&error));
    for warning in call.warnings.lock().drain(..) {
        let text = format!("299 - \"{}\"", warning.replace('\\', "\\\\").replace('"', "\\\""));
        if let Ok(value) = HeaderValue::from_str(&text) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    response
}

/// How the identity of a request is established.
fn origin(parts: &Parts) -> Origin {
    match (parts.extensions.get::<UserInfo>(), parts.extensions.get::<Peer>()) {
        (Some(_), _) => Origin::InProcess,
        _ if parts.headers.contains_key(header::AUTHORIZATION) => Origin::Token,
        (None, None) => Origin::InProcess,
        (None, Some(_)) => Origin::Connection,
    }
}

/// Bytes that the body of a request may have: as announced, or the most that is read.
fn expected_bytes(body: &impl http_body::Body) -> usize {
    let announced = body.size_hint().upper().and_then(|bytes| usize::try_from(bytes).ok());
    announced.unwrap_or(BODY_MAX).min(BODY_MAX)
}

/// The object name to which the field selector of a list or watch restricts it, if it can be a name.
fn selected_name(verb: Verb, options: &Options) -> Option<String> {
    let name = options
        .fields
        .as_ref()
        .filter(|_| matches!(verb, Verb::List | Verb::Watch))?
        .exact("metadata.name")?;
    (!name.is_empty() && polis_apimachinery::names::path_segment(name).is_empty()).then(|| name.to_owned())
}

/// The user agent up to the first `/`: the field manager when the query names none.
fn agent(headers: &HeaderMap) -> String {
    let agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let word = agent.split('/').next().unwrap_or_default();
    let word: String = word.chars().filter(|c| !c.is_control()).take(128).collect();
    if word.is_empty() { "unknown".into() } else { word }
}

/// Percent-decodes a request path. Like Go's net/url, it refuses invalid escapes.
pub(crate) fn decode_path(path: &str) -> Result<Cow<'_, str>, StatusError> {
    let bytes = path.as_bytes();
    let is_escape =
        |at: usize| bytes.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
    if !memchr::memchr_iter(b'%', bytes).all(is_escape) {
        return Err(StatusError::bad_request("the path has a broken escape"));
    }
    percent_decode_str(path).decode_utf8().map_err(|_| StatusError::bad_request("the path is not UTF-8"))
}

impl Attributes {
    /// The RBAC attributes of a resource request. A method without a verb needs a rule for all verbs.
    fn resource(verb: Option<Verb>, target: &ResourcePath<'_>, name: Option<&str>) -> Self {
        let resource = match target.subresource {
            Some(sub) => format!("{}/{sub}", target.resource),
            None => target.resource.to_owned(),
        };
        Self {
            verb: verb.map(Verb::as_str).unwrap_or_default().to_owned(),
            about: GroupResource::new(target.group, resource),
            subresource: target.subresource.unwrap_or_default().to_owned(),
            name: name.unwrap_or_default().to_owned(),
            namespace: target.namespace.unwrap_or_default().to_owned(),
            path: None,
        }
    }
}
