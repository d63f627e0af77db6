//! The trail of one request: what is known about it for its audit events.

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, header, request::Parts};
use jiff::Timestamp;
use polis_apimachinery::{
    audit::{AuditAttributes, AuditDecision, AuditLevel, AuditStage, AuditTarget},
    clock::Clock,
};

use super::{
    Audit,
    event::{Event, ObjectReference, RequestEnd},
};
use crate::{
    access::Peer,
    http::{Content, Options, ResponseBody},
    route::{self, Target},
    server::Core,
    user::UserInfo,
    verbs::Payload,
};

/// The header with the audit id, in requests and responses.
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// Longest audit id that is taken from a request; a longer one is replaced.
const ID_MAX: usize = 64;
/// Longest user agent in an event, in characters.
const AGENT_MAX: usize = 1024;

/// Follows a request from its arrival to its response. A trail that is dropped before
/// [`finish`](Self::finish) belongs to a client that left or a handler that panicked, and is recorded as
/// such.
pub(crate) struct Trail<'a> {
    core: &'a Core,
    parts: &'a Parts,
    /// The plane of the service, if it serves one only.
    plane: Option<&'a str>,
    /// `None` if there is no audit log, and after the last event.
    open: Option<Open>,
}

/// What the server found out about the request.
struct Open {
    audit: Arc<Audit>,
    id: String,
    received: Timestamp,
    user: Option<UserInfo>,
    impersonated: Option<UserInfo>,
    authorized: bool,
    body: Option<(Option<Content>, Bytes)>,
}

/// The verb, plane and target of a request, as its path and method name them.
struct Request<'a> {
    plane: Cow<'a, str>,
    verb: Cow<'a, str>,
    target: Target<'a>,
}

impl<'a> Trail<'a> {
    /// Begins the trail of a request to one plane or, without a name, to the plane of its path.
    pub(crate) fn begin(core: &'a Core, plane: Option<&'a str>, parts: &'a Parts) -> Self {
        let open = core.access.audit.as_ref().map(|audit| Open {
            audit: audit.clone(),
            id: requested_id(&parts.headers).unwrap_or_else(|| audit.ids.uid()),
            received: core.clock.now(),
            user: None,
            impersonated: None,
            authorized: false,
            body: None,
        });
        Self { core, parts, plane, open }
    }

    /// The request has this user.
    pub(crate) fn authenticated(&mut self, user: &UserInfo) {
        let Some(open) = &mut self.open else { return };
        open.user = Some(user.clone());
        if open.audit.policy.records_received() {
            self.record_received();
        }
    }

    /// The request acts as this user, which may be the one that was authenticated.
    pub(crate) fn impersonated(&mut self, user: &UserInfo) {
        if let Some(open) = self.open.as_mut().filter(|open| open.user.as_ref() != Some(user)) {
            open.impersonated = Some(user.clone());
        }
    }

    /// The request is authorized.
    pub(crate) fn authorized(&mut self) {
        if let Some(open) = &mut self.open {
            open.authorized = true;
        }
    }

    /// The request has this body.
    pub(crate) fn body(&mut self, payload: &Payload) {
        if let Some(open) = &mut self.open {
            open.body = Some((payload.content, payload.bytes.clone()));
        }
    }

    /// Records the response, and adds the audit id to it.
    pub(crate) fn finish(mut self, response: &mut Response<ResponseBody>) {
        let Some(open) = self.open.take() else { return };
        if let Ok(id) = HeaderValue::from_str(&open.id) {
            response.headers_mut().insert(AUDIT_ID, id);
        }
        let code = response.status().as_u16();
        let event =
            |stage| self.event(&open, stage, Some(RequestEnd::Responded(code)), Some(response.body()));
        if !response.body().is_streamed() {
            if let Some(event) = event(AuditStage::ResponseComplete) {
                open.audit.writer.send(event);
            }
            return;
        }
        if let Some(event) = event(AuditStage::ResponseStarted) {
            open.audit.writer.send(event);
        }
        if let Some(event) = event(AuditStage::ResponseComplete) {
            let clock = self.core.clock.clone();
            let completion = Completion { audit: open.audit, clock, event: Some(event) };
            response.body_mut().set_completion(completion);
        }
    }

    fn record_received(&self) {
        let Some(open) = &self.open else { return };
        if let Some(event) = self.event(open, AuditStage::RequestReceived, None, None) {
            open.audit.writer.send(event);
        }
    }

    /// The event of a stage, if the policy records it.
    fn event(
        &self,
        open: &Open,
        stage: AuditStage,
        end: Option<RequestEnd>,
        response: Option<&ResponseBody>,
    ) -> Option<Event> {
        let path = crate::service::decode_path(self.parts.uri.path()).ok()?;
        let request = self.request(&path);
        let (user, groups) =
            open.user.as_ref().map_or(("", &[][..]), |user| (user.name.as_str(), user.groups.as_slice()));
        let target = audit_target(&request.target);
        let attributes = AuditAttributes { user, groups, verb: &request.verb, target };
        let decision = open.audit.policy.decide(&attributes);
        let code = match end {
            Some(RequestEnd::Responded(code)) => code,
            _ => 0,
        };
        let decision = if matches!(code, 401 | 403 | 429) { decision.of_refusal() } else { decision };
        if !decision.records(stage) {
            return None;
        }
        let authorized = match code {
            _ if open.authorized => Some(true),
            403 => Some(false),
            _ => None,
        };
        let shown = response.filter(|body| shows(&decision, &request.verb, code) && !body.is_streamed());
        Some(Event {
            level: decision.level,
            stage,
            id: open.id.clone(),
            uri: self.parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
            user: open.user.clone(),
            impersonated: open.impersonated.clone(),
            source: self.parts.extensions.get::<Peer>().and_then(|peer| peer.address),
            agent: agent(&self.parts.headers),
            object: reference(&request.target),
            sensitive: target.is_sensitive(),
            end,
            authorized,
            omit_managed_fields: decision.omit_managed_fields,
            received: open.received,
            at: self.core.clock.now(),
            request: open.body.clone().filter(|_| decision.level >= AuditLevel::Request),
            response: shown.and_then(ResponseBody::copy),
            truncated: false,
            plane: request.plane.into_owned(),
            verb: request.verb.into_owned(),
        })
    }

    /// Derives verb, plane and target as routing does.
    fn request<'p>(&'p self, path: &'p str) -> Request<'p> {
        let (plane, path) = match self.plane {
            Some(plane) => (Cow::Borrowed(plane), path),
            None => {
                let found = route::plane_of(path);
                (found.plane, found.path)
            }
        };
        let target = route::target(path);
        let watches =
            || Options::parse(self.parts.uri.query().unwrap_or_default()).is_ok_and(|options| options.watch);
        let method = &self.parts.method;
        let verb = match &target {
            Target::Resource(found) => {
                let watch = method == Method::GET && found.name.is_none() && watches();
                route::verb(method, found, watch).map(|verb| Cow::Borrowed(verb.as_str()))
            }
            Target::NonResource(_) => None,
        };
        let verb = verb.unwrap_or_else(|| method.as_str().to_ascii_lowercase().into());
        Request { plane, verb, target }
    }
}

impl Drop for Trail<'_> {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        let (stage, end) = match std::thread::panicking() {
            true => (AuditStage::Panic, RequestEnd::Panicked),
            false => (AuditStage::ResponseComplete, RequestEnd::Aborted),
        };
        if let Some(event) = self.event(&open, stage, Some(end), None) {
            open.audit.writer.send(event);
        }
    }
}

/// Records the end of a streamed response when it is dropped with the body.
pub(crate) struct Completion {
    audit: Arc<Audit>,
    clock: Clock,
    event: Option<Event>,
}

impl Drop for Completion {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            self.audit.writer.send(Event { at: self.clock.now(), ..event });
        }
    }
}

/// Whether an event needs the response: for its body, for its error, or for the uid of the object.
fn shows(decision: &AuditDecision, verb: &str, code: u16) -> bool {
    let one_object = matches!(verb, "get" | "create" | "update" | "patch" | "delete");
    decision.level >= AuditLevel::RequestResponse || code >= 400 || one_object
}

fn audit_target<'a>(target: &Target<'a>) -> AuditTarget<'a> {
    match target {
        Target::NonResource(path) => AuditTarget::Path(path),
        Target::Resource(found) => AuditTarget::Resource {
            group: found.group,
            resource: found.resource,
            subresource: found.subresource.unwrap_or_default(),
            namespace: found.namespace.unwrap_or_default(),
            name: found.name.unwrap_or_default(),
        },
    }
}

fn reference(target: &Target<'_>) -> Option<ObjectReference> {
    let Target::Resource(found) = target else { return None };
    Some(ObjectReference {
        group: found.group.to_owned(),
        version: found.version.to_owned(),
        resource: found.resource.to_owned(),
        subresource: found.subresource.unwrap_or_default().to_owned(),
        namespace: found.namespace.unwrap_or_default().to_owned(),
        name: found.name.unwrap_or_default().to_owned(),
    })
}

/// The audit id of the request's header, if it can be used.
fn requested_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(AUDIT_ID)?.to_str().ok()?;
    (1..=ID_MAX).contains(&id.len()).then(|| id.to_owned())
}

fn agent(headers: &HeaderMap) -> String {
    let agent = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    agent.chars().take(AGENT_MAX).collect()
}
