//! A proxy to the platform and the planes of its projects. It can refuse connections, hang for one project,
//! forward one project to another client, and it records requests that name one tenant on the plane of
//! another.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use parking_lot::Mutex;
use polis_api::kube::Client;
use polis_apiserver::Service;
use polis_engine::transport::{BoxError, TransportError};

/// Name prefix of the projects whose cross-tenant requests are recorded.
pub const TENANT: &str = "tenant-";

/// A proxy to the platform. Clones share their state.
#[derive(Clone)]
pub struct PlaneProxy {
    service: Service,
    refuse: Arc<AtomicBool>,
    hanging: Arc<Mutex<BTreeSet<String>>>,
    /// Projects whose planes other clients serve.
    external: BTreeMap<String, Client>,
    leaks: Arc<Mutex<Vec<String>>>,
}

impl PlaneProxy {
    pub fn new(service: Service) -> Self {
        Self {
            service,
            refuse: Arc::default(),
            hanging: Arc::default(),
            external: BTreeMap::new(),
            leaks: Arc::default(),
        }
    }

    /// Another proxy to the same planes, with its own state.
    pub fn another(&self) -> Self {
        Self { external: self.external.clone(), ..Self::new(self.service.clone()) }
    }

    /// Forwards the plane of a project to this client. Call it before the proxy is used.
    #[allow(dead_code, reason = "used by the suite with external planes")]
    pub fn serve_from(&mut self, project: &str, client: Client) {
        self.external.insert(project.to_owned(), client);
    }

    /// Sets whether new requests fail with a connection error.
    pub fn set_refused(&self, refused: bool) {
        self.refuse.store(refused, Ordering::SeqCst);
    }

    /// Sets whether new requests to a project hang.
    pub fn set_hanging(&self, project: &str, hanging: bool) {
        let mut all = self.hanging.lock();
        _ = if hanging { all.insert(project.to_owned()) } else { all.remove(project) };
    }

    /// The requests so far that named a tenant on the plane of another.
    pub fn leaks(&self) -> Vec<String> {
        self.leaks.lock().clone()
    }
}

/// The project whose plane a path leads to.
fn project_of(path: &str) -> Option<&str> {
    path.split_once("/projects/")?.1.split_once("/control-plane/").map(|(project, _)| project)
}

/// The tenants that a text names.
pub fn tenants(text: &str) -> BTreeSet<&str> {
    let digits = |rest: &str| rest.bytes().take_while(u8::is_ascii_digit).count();
    let all = text.match_indices(TENANT).map(|(at, word)| {
        let end = at + word.len() + digits(&text[at + word.len()..]);
        &text[at..end]
    });
    all.collect()
}

impl tower::Service<Request<Full<Bytes>>> for PlaneProxy {
    type Response = Response<UnsyncBoxBody<Bytes, BoxError>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let mut proxy = self.clone();
        Box::pin(async move {
            if proxy.refuse.load(Ordering::SeqCst) {
                let (host, why) = ("platform".into(), "connection refused by the proxy".into());
                return Err(Box::new(TransportError::Connect { host, why }) as BoxError);
            }
            let (mut parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            if let Some(project) = project_of(parts.uri.path()) {
                let project = project.to_owned();
                if proxy.hanging.lock().contains(&project) {
                    std::future::pending::<()>().await;
                }
                let named = String::from_utf8_lossy(&body);
                if tenants(&named).iter().any(|tenant| *tenant != project) {
                    proxy.leaks.lock().push(format!("{} {}: {named}", parts.method, parts.uri));
                }
                if let Some(client) = proxy.external.get(&project) {
                    let (_, path) = parts
                        .uri
                        .path_and_query()
                        .map_or("", |p| p.as_str())
                        .split_once("/control-plane")
                        .expect("a project path");
                    parts.uri = path.parse()?;
                    let response = client.send(Request::from_parts(parts, body.into())).await?;
                    return Ok(response.map(|body| body.map_err(BoxError::from).boxed_unsync()));
                }
            }
            let response = proxy.service.call(Request::from_parts(parts, Full::new(body))).await?;
            Ok(response.map(|body| body.map_err(BoxError::from).boxed_unsync()))
        })
    }
}
