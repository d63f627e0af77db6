//! The server as a tower service: the same for a socket and for a caller in this process.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, Response, header, request::Parts};
use parking_lot::Mutex;

use crate::{
    access::{self, Attributes},
    extension::Extended,
    health,
    http::{Body, Content, Options, Output, failure, read},
    identity::Identity,
    plane::Plane,
    route::{self, ResourcePath, Target, Verb},
    server::Core,
    status::{About, Failure},
    store::{CommitError, Revision},
    verbs::{Call, Payload},
};

/// The API of all planes, or of one.
#[derive(Clone)]
pub struct Service {
    core: Arc<Core>,
    plane: Option<Arc<str>>,
    /// The caller may see what is not durable yet.
    ahead: bool,
}

/// What an answer shows was written up to this revision; put among its extensions by whoever knows.
#[derive(Clone, Copy)]
pub(crate) struct Shows(pub(crate) Revision);

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl<B> tower::Service<Request<B>> for Service
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Answer {
        let service = self.clone();
        Box::pin(async move { Ok(service.handle(request).await) })
    }
}

impl Service {
    pub(crate) fn new(core: Arc<Core>, plane: Option<Arc<str>>) -> Self {
        Self { core, plane, ahead: false }
    }

    /// The same, for a caller who keeps all that he does in the store of this server: he is answered, and told of
    /// changes, before they are durable. A crash takes what he saw together with what he made of it. Anybody else, and
    /// everybody outside of this process, sees only what lasts.
    pub fn ahead(self) -> Self {
        Self { ahead: true, ..self }
    }

    /// Answers one request.
    pub async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: std::fmt::Display,
    {
        let (parts, body) = request.into_parts();
        let head = parts.method == http::Method::HEAD;
        let mut response = self.answer(parts, body).await.unwrap_or_else(|refusal| failure(&refusal));
        let shown = response.extensions().get().map(|Shows(shown)| *shown);
        if let Some(durable) = self.until_durable(shown)
            && let Err(error) = durable.await
        {
            response = failure(&Failure::internal(&error.to_string()));
        }
        if head {
            *response.body_mut() = Body::full(Bytes::new());
        }
        response
    }

    /// The wait that is due before an answer goes out: for what it shows, or for everything if it does not say.
    fn until_durable(&self, shown: Option<Revision>) -> Option<BoxFuture<'static, Result<(), CommitError>>> {
        let store = &self.core.store;
        store.durable(shown.unwrap_or_else(|| store.view().revision())).filter(|_| !self.ahead)
    }

    async fn answer<B>(&self, parts: Parts, body: B) -> Result<Response<Body>, Failure>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: std::fmt::Display,
    {
        let path = decode_path(parts.uri.path())?;
        let (plane, project, path) = match &self.plane {
            Some(name) => (self.core.plane(name), name.strip_prefix("project:"), path.as_str()),
            None => {
                let found = route::plane_of(&path);
                (self.core.plane(&found.plane), found.project, found.path)
            }
        };
        let Some(plane) = plane else { return Err(Failure::no_such_path()) };
        let mut identity = access::authenticate(&self.core, &plane, &parts)?;
        if let Some(project) = project {
            access::add_project(&mut identity, project);
        }
        let Some(target) = route::target(path) else {
            return Err(match path.starts_with("/api/v1/") {
                true => Failure::no_such_resource(),
                false => Failure::no_such_path(),
            });
        };
        let target = match target {
            Target::NonResource(path) => {
                let identity = access::impersonate(&self.core, &plane, identity, &parts.headers)?;
                access::authorize(
                    &self.core,
                    &plane,
                    &identity,
                    &Attributes::non_resource(&parts.method, path),
                )?;
                let mut response = health::answer(&self.core, &plane, path, &parts)?;
                response.extensions_mut().insert(Shows(0));
                return Ok(response);
            }
            Target::Resource(found) => found,
        };
        let identity = access::impersonate(&self.core, &plane, identity, &parts.headers)?;
        self.resource(&plane, identity, &target, &parts, body).await
    }

    async fn resource<B>(
        &self,
        plane: &Arc<Plane>,
        identity: Identity,
        target: &ResourcePath<'_>,
        parts: &Parts,
        body: B,
    ) -> Result<Response<Body>, Failure>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: std::fmt::Display,
    {
        let mut options = Options::parse(parts.uri.query().unwrap_or_default())?;
        let Some(mut verb) = route::verb(&parts.method, target, options.watch) else {
            let custom = plane
                .catalogue
                .kinds()
                .find(target.group, target.resource)
                .filter(|kind| kind.is_custom())
                .cloned();
            return Err(custom
                .map_or_else(Failure::method_not_allowed, |kind| Failure::not_supported(&kind.about(), "")));
        };
        let mut name = target.name.map(str::to_owned);
        // A watch of one object is a watch of the collection that selects its name.
        if verb == Verb::Watch && target.subresource.is_some() {
            verb = Verb::Get;
        }
        options.watch |= target.watch;
        access::authorize(&self.core, plane, &identity, &Attributes::resource(verb, target))?;
        let kinds = plane.catalogue.kinds();
        let kind = kinds.find(target.group, target.resource).cloned().ok_or_else(|| {
            match target.group.is_empty() || target.group.ends_with(".k8s.io") {
                // Of a built-in group only the resource is missing.
                true if kinds
                    .iter()
                    .any(|kind| kind.group == target.group && kind.version(target.version).is_some()) =>
                {
                    Failure::no_such_resource()
                }
                _ => Failure::no_such_path(),
            }
        })?;
        let version = kind.version(target.version).cloned().ok_or_else(Failure::no_such_path)?;
        let namespace = target.namespace.filter(|_| kind.namespaced).map(str::to_owned);
        if kind.namespaced && namespace.is_none() && name.is_some()
            || !kind.namespaced && target.namespace.is_some() && target.resource != "namespaces"
        {
            return Err(Failure::no_such_path());
        }
        if let (Some(sub), Some(name)) = (target.subresource, target.name)
            && let Some(extension) = kinds.extensions.find(target.group, target.resource, sub)
        {
            if verb != Verb::Get {
                return Err(Failure::method_not_allowed());
            }
            let stored = self
                .core
                .store
                .view()
                .get(&kind.collection(&plane.name), &kind.path(namespace.as_deref(), name))
                .ok_or_else(|| Failure::not_found(&kind.about(), name))?;
            let request = Extended {
                plane: plane.name.to_string(),
                namespace,
                name: name.to_owned(),
                object: crate::verbs::present_value(&kind, &version, &stored),
                identity,
                query: parts.uri.query().unwrap_or_default().to_owned(),
            };
            return extension.answer(request).await;
        }
        // Across all namespaces there is only reading.
        if kind.namespaced && namespace.is_none() && !matches!(verb, Verb::List | Verb::Watch) {
            return Err(match kind.is_custom() {
                true => Failure::no_such_path(),
                false => Failure::method_not_allowed(),
            });
        }
        let subresource = match target.subresource {
            Some(sub) => Some(kind.subresource(&version, sub).ok_or_else(|| match kind.is_custom() {
                true => Failure::not_found(&kind.about(), target.name.unwrap_or_default()),
                false => Failure::no_such_resource(),
            })?),
            None => None,
        };
        if kind.rules().is_some_and(|rules| rules.ephemeral) && name.is_some() {
            return Err(Failure::no_such_resource());
        }
        if subresource.is_none() && !kind.verbs().contains(&verb.as_str()) {
            return Err(Failure::method_not_allowed());
        }
        if kind.is_custom() && name.is_none() && matches!(verb, Verb::Update | Verb::Patch) {
            return Err(Failure::bad_request("name must be provided"));
        }
        let accept = parts.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
        let output = Output::negotiate(accept).ok_or_else(|| match kind.is_custom() {
            true => Failure::not_acceptable(crate::http::OFFERED),
            false if accept.is_some_and(|accept| accept.contains("application/json")) => {
                Failure::not_acceptable(crate::http::OFFERED)
            }
            false => Failure::bare(
                406,
                "NotAcceptable",
                format!("406: Not Acceptable\n\nAvailable representations: {}", crate::http::OFFERED),
            ),
        })?;
        if verb == Verb::Create && name.is_some() && subresource.is_none() && !kind.is_custom() {
            return Err(Failure::method_not_allowed());
        }
        let payload = if verb.is_write() {
            Payload { content: Content::of(&parts.headers), bytes: read(body).await? }
        } else {
            Payload { content: None, bytes: Bytes::new() }
        };
        if matches!(verb, Verb::List) {
            name = None;
        }
        let call = Call {
            core: self.core.clone(),
            plane: plane.clone(),
            kinds,
            kind,
            version,
            verb,
            namespace,
            name,
            subresource,
            identity,
            options,
            output,
            ahead: self.ahead,
            agent: agent(&parts.headers),
            warnings: Mutex::default(),
        };
        let result = Box::pin(call.run(payload)).await.map_err(|failure| match failure.code {
            405 if call.kind.is_custom() => Failure::not_supported(&call.kind.about(), verb.as_str()),
            _ => failure,
        });
        if verb.is_write() {
            access::audit(&call, parts, &result);
        }
        tracing::trace!(
            plane = &*call.plane.name,
            user = call.identity.user,
            verb = verb.as_str(),
            path = parts.uri.path(),
            code = result.as_ref().map_or_else(|failure| failure.code, |response| response.status().as_u16()),
            "answered"
        );
        let mut response = match result {
            Ok(response) => response,
            Err(refusal) => failure(&refusal),
        };
        for warning in call.warnings.lock().drain(..) {
            let text = format!("299 - \"{}\"", warning.replace('\\', "\\\\").replace('"', "\\\""));
            if let Ok(value) = HeaderValue::from_str(&text) {
                response.headers_mut().append(header::WARNING, value);
            }
        }
        Ok(response)
    }
}

/// The first word of the user agent: the manager of fields when none is named.
fn agent(headers: &HeaderMap) -> String {
    let agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let word = agent.split('/').next().unwrap_or_default();
    let word: String = word.chars().filter(|c| !c.is_control()).take(128).collect();
    if word.is_empty() { "unknown".into() } else { word }
}

/// A path with its escapes resolved, as Go sees it.
fn decode_path(path: &str) -> Result<String, Failure> {
    if !path.contains('%') {
        return Ok(path.to_owned());
    }
    let bytes = path.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = |offset: usize| bytes.get(at + offset).and_then(|byte| char::from(*byte).to_digit(16));
        match (bytes[at], hex(1), hex(2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
                at += 3;
            }
            (b'%', ..) => return Err(Failure::bad_request("the path has a broken escape")),
            (byte, ..) => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(decoded).map_err(|_| Failure::bad_request("the path is not UTF-8"))
}

impl Attributes {
    /// What a resource request wants, in the terms of RBAC.
    fn resource(verb: Verb, target: &ResourcePath<'_>) -> Self {
        let resource = match target.subresource {
            Some(sub) => format!("{}/{sub}", target.resource),
            None => target.resource.to_owned(),
        };
        Self {
            verb: verb.as_str().to_owned(),
            about: About::new(target.group, resource),
            name: target.name.unwrap_or_default().to_owned(),
            namespace: target.namespace.unwrap_or_default().to_owned(),
            path: None,
        }
    }
}
