//! A line to the platform and the planes of its projects: it can be cut, a project can fall silent on it or be served by
//! somebody else, and it notes what is said in one project about another.

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

/// What the names of projects begin with whose strays are noted.
pub const TENANT: &str = "tenant-";

/// See the head of this file. Clones are the same line.
#[derive(Clone)]
pub struct Line {
    service: Service,
    cut: Arc<AtomicBool>,
    silent: Arc<Mutex<BTreeSet<String>>>,
    /// Projects whose planes are elsewhere.
    elsewhere: BTreeMap<String, Client>,
    strays: Arc<Mutex<Vec<String>>>,
}

impl Line {
    pub fn new(service: Service) -> Self {
        Self {
            service,
            cut: Arc::default(),
            silent: Arc::default(),
            elsewhere: BTreeMap::new(),
            strays: Arc::default(),
        }
    }

    /// A line of its own to the same places.
    pub fn another(&self) -> Self {
        Self { elsewhere: self.elsewhere.clone(), ..Self::new(self.service.clone()) }
    }

    /// The plane of a project is behind this client. Said before anybody uses the line.
    #[allow(dead_code, reason = "for the suite with a real plane")]
    pub fn lead(&mut self, project: &str, client: Client) {
        self.elsewhere.insert(project.to_owned(), client);
    }

    /// New requests fail, or no longer do.
    pub fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }

    /// New requests to a project are never answered, or are again.
    pub fn silence(&self, project: &str, silent: bool) {
        let mut all = self.silent.lock();
        _ = if silent { all.insert(project.to_owned()) } else { all.remove(project) };
    }

    /// The requests so far that named a tenant in the plane of another.
    pub fn strays(&self) -> Vec<String> {
        self.strays.lock().clone()
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

impl tower::Service<Request<Full<Bytes>>> for Line {
    type Response = Response<UnsyncBoxBody<Bytes, BoxError>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let mut line = self.clone();
        Box::pin(async move {
            if line.cut.load(Ordering::SeqCst) {
                let (host, why) = ("platform".into(), "the line is cut".into());
                return Err(Box::new(TransportError::Connect { host, why }) as BoxError);
            }
            let (mut parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            if let Some(project) = project_of(parts.uri.path()) {
                let project = project.to_owned();
                if line.silent.lock().contains(&project) {
                    std::future::pending::<()>().await;
                }
                let named = String::from_utf8_lossy(&body);
                if tenants(&named).iter().any(|tenant| *tenant != project) {
                    line.strays.lock().push(format!("{} {}: {named}", parts.method, parts.uri));
                }
                if let Some(client) = line.elsewhere.get(&project) {
                    let (_, path) = parts
                        .uri
                        .path_and_query()
                        .map_or("", |p| p.as_str())
                        .split_once("/control-plane")
                        .expect("the path of a project");
                    parts.uri = path.parse()?;
                    let answer = client.send(Request::from_parts(parts, body.into())).await?;
                    return Ok(answer.map(|body| body.map_err(BoxError::from).boxed_unsync()));
                }
            }
            let answer = line.service.call(Request::from_parts(parts, Full::new(body))).await?;
            Ok(answer.map(|body| body.map_err(BoxError::from).boxed_unsync()))
        })
    }
}
