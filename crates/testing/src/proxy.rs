//! A proxy to the planes of a process: it records every request and can inject faults.
//!
//! Controllers under test reach planes only through a proxy. Each process of a test has its own, so that a
//! fault between one process and a plane does not affect the others.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt as _, stream};
use http::{Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use parking_lot::Mutex;
use polis_api::kube::Client;
use polis_apiserver::{Server, Service, UserInfo, project_plane};
use polis_engine::Plane;
use polis_engine::transport::{BoxError, TransportError};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::request::{RecordedRequest, split_project_path};
use crate::request_log::{PlaneRequests, RequestFault, RequestLog, StreamFaults};

/// The name of the root plane in recorded requests.
pub const PLATFORM: &str = "platform";

/// Clients of planes that another server serves, by the name of the plane.
type ExternalPlanes = Arc<Mutex<BTreeMap<String, Client>>>;

/// Sees each request before the plane, and may answer in its place.
pub type Interceptor =
    Arc<dyn Fn(RecordedRequest, Bytes) -> BoxFuture<'static, Option<(StatusCode, Value)>> + Send + Sync>;

/// The planes of a server as one process reaches them. Clones share their log and faults.
#[derive(Clone)]
pub struct Proxy {
    server: Server,
    external: ExternalPlanes,
    log: Arc<RequestLog>,
    interceptor: Option<Interceptor>,
}

impl Proxy {
    /// A proxy to the planes of an embedded API server.
    pub fn new(server: Server) -> Self {
        Self { server, external: ExternalPlanes::default(), log: Arc::default(), interceptor: None }
    }

    /// The same planes with other faults and without a record of the requests: for the test itself, or for
    /// another process.
    pub fn unrecorded(&self) -> Self {
        Self { log: Arc::new(RequestLog::without_history()), ..self.clone() }
    }

    /// Uses this client for a plane of another server: a project, the hub or a cell. Call it before any
    /// controller starts.
    pub fn serve_from(&self, plane: &str, client: Client) {
        self.external.lock().insert(plane.to_owned(), client);
    }

    /// The same proxy with a function that sees each request before the plane.
    pub fn intercepted<F>(
        &self,
        function: impl Fn(RecordedRequest, Bytes) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Option<(StatusCode, Value)>> + Send + 'static,
    {
        let function: Interceptor = Arc::new(move |request, body| Box::pin(function(request, body)));
        Self { interceptor: Some(function), ..self.clone() }
    }

    /// A plane by its name: [`PLATFORM`], a standalone plane or a project.
    pub fn plane(&self, name: &str) -> Plane {
        if name == PLATFORM || self.is_standalone(name) {
            return Plane::in_process::<_, Full<Bytes>, _>(name, self.service(name, None));
        }
        Plane::in_process::<_, Full<Bytes>, _>(PLATFORM, self.service(PLATFORM, None)).of_project(name)
    }

    /// A client of a plane, with this user or as the administrator.
    pub fn client(&self, name: &str, user: Option<UserInfo>) -> Client {
        Client::new(self.service(name, user), "default")
    }

    fn service(&self, name: &str, user: Option<UserInfo>) -> PlaneProxy {
        let service = match name {
            name if self.is_standalone(name) => self.server.plane_service(name),
            PLATFORM => self.server.service(),
            project => self.server.plane_service(&project_plane(project)),
        };
        PlaneProxy { plane: name.into(), user, service, proxy: self.clone() }
    }

    fn is_standalone(&self, name: &str) -> bool {
        self.server.has_plane(name) || self.external.lock().contains_key(name)
    }

    /// The requests of the process to all planes, and the faults in them.
    pub fn requests(&self) -> &Arc<RequestLog> {
        &self.log
    }

    /// The requests of the process to one plane, and the faults between them.
    pub fn requests_to(&self, plane: &str) -> PlaneRequests {
        PlaneRequests::new(self.log.clone(), plane)
    }
}

/// The service of one plane behind a proxy.
#[derive(Clone)]
pub struct PlaneProxy {
    plane: Arc<str>,
    user: Option<UserInfo>,
    service: Service,
    proxy: Proxy,
}

/// The body of a response through a proxy.
pub type ProxiedBody = UnsyncBoxBody<Bytes, BoxError>;

impl PlaneProxy {
    async fn forward(
        self,
        mut head: http::request::Parts,
        body: Bytes,
    ) -> Result<Response<ProxiedBody>, BoxError> {
        let uri = head.uri.clone();
        let (path, query) = (uri.path(), uri.query().unwrap_or_default());
        let (plane, rest) = match split_project_path(path).filter(|_| &*self.plane == PLATFORM) {
            Some((project, rest)) => (project, rest),
            None => (&*self.plane, path),
        };
        let request = RecordedRequest::parse(plane, &head.method, rest, query, &body);
        let (number, fault) = self.proxy.log.record(request.clone());
        match fault {
            None => {}
            Some(RequestFault::Refuse) => return Err(refused(plane)),
            Some(RequestFault::Hang) => return std::future::pending().await,
            Some(RequestFault::Status(code)) => return Ok(respond(code, &status_object(code))),
            Some(RequestFault::Delay(by)) => tokio::time::sleep(by).await,
        }
        if let Some(interceptor) = &self.proxy.interceptor
            && let Some((code, object)) = interceptor(request.clone(), body.clone()).await
        {
            return Ok(respond(code, &object));
        }
        let external = self.proxy.external.lock().get(plane).cloned();
        let mut faults = self.proxy.log.stream_faults(request.clone());
        let responding = async {
            if let Some(client) = external {
                head.uri =
                    if query.is_empty() { rest.parse()? } else { format!("{rest}?{query}").parse()? };
                head.headers.remove(header::HOST);
                let response = client.send(Request::from_parts(head, body.into())).await?;
                return Ok(response.map(|body| body.map_err(BoxError::from).boxed_unsync()));
            }
            if let Some(user) = self.user {
                head.extensions.insert(user);
            }
            let request = Request::from_parts(head, Full::new(body));
            let response = self.service.oneshot(request).await.unwrap_or_else(|never| match never {});
            Ok(response.map(|body| body.map_err(BoxError::from).boxed_unsync()))
        };
        let response: Result<Response<ProxiedBody>, BoxError> = tokio::select! {
            biased;
            fault = interruption(&mut faults) => return fail(fault, &request.plane).await,
            response = responding => response,
        };
        let response = response?;
        self.proxy.log.record_status(number, response.status());
        Ok(response.map(|body| interruptible(body, faults, request.plane)))
    }
}

impl<B> tower::Service<Request<B>> for PlaneProxy
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<ProxiedBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ProxiedBody>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let proxy = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map_err(Into::into)?.to_bytes();
            proxy.forward(head, body).await
        })
    }
}

/// A connection error, as the engine's transport reports it.
fn refused(plane: &str) -> BoxError {
    let (host, why) = (plane.into(), "connection refused by the proxy".into());
    Box::new(TransportError::Connect { host, why })
}

/// Completes with the fault that ends a request in flight or an open stream.
async fn interruption(faults: &mut StreamFaults) -> RequestFault {
    loop {
        match faults.current() {
            Some(fault @ (RequestFault::Refuse | RequestFault::Hang)) => return fault,
            _ => faults.changed().await,
        }
    }
}

async fn fail<T>(fault: RequestFault, plane: &str) -> Result<T, BoxError> {
    match fault {
        RequestFault::Hang => std::future::pending().await,
        _ => Err(refused(plane)),
    }
}

/// A body whose frames are delayed, and which ends or becomes silent, as the faults of its request say.
fn interruptible(body: ProxiedBody, faults: StreamFaults, plane: String) -> ProxiedBody {
    let frames = stream::unfold(Some((body, faults)), move |rest| {
        let plane = plane.clone();
        async move {
            let (mut body, mut faults) = rest?;
            let frame = tokio::select! {
                biased;
                fault = interruption(&mut faults) => return Some((fail(fault, &plane).await, None)),
                frame = body.frame() => frame?,
            };
            if let Some(RequestFault::Delay(by)) = faults.current() {
                tokio::time::sleep(by).await;
            }
            Some((frame, Some((body, faults))))
        }
    });
    StreamBody::new(frames.boxed()).boxed_unsync()
}

fn respond(code: StatusCode, object: &Value) -> Response<ProxiedBody> {
    let body = Full::from(object.to_string()).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

/// The error of an API server.
fn status_object(code: StatusCode) -> Value {
    let reason = match code {
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::CONFLICT => "Conflict",
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::UNPROCESSABLE_ENTITY => "Invalid",
        _ => "InternalError",
    };
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code.as_u16(),
        "message": "injected by the proxy"})
}
