//! A line to a project's plane, on which access reviews are seen, and answered as a test wants.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use parking_lot::Mutex;
use polis_apiserver::Body;
use serde_json::{Value, json};
use tower::Service;

/// How access reviews are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authoriser {
    /// By the plane's own roles.
    #[allow(dead_code, reason = "one of the suites has roles elsewhere")]
    Roles,
    /// As the platform's: whoever comes without the extras of a project is denied.
    ByExtras,
    /// Favourably, and nobody before two have asked.
    #[allow(dead_code, reason = "one of the suites asks about one at a time")]
    Together,
    /// Not at all.
    Broken,
}

/// A line to the project's plane, on which access reviews are seen.
#[derive(Clone)]
pub struct Line {
    service: polis_apiserver::Service,
    pub authoriser: Arc<Mutex<Authoriser>>,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl Line {
    /// A line to the plane behind a service.
    pub fn new(service: polis_apiserver::Service, authoriser: Authoriser) -> Self {
        Self { service, authoriser: Arc::new(Mutex::new(authoriser)), asked: Arc::default() }
    }

    /// What was asked since the last look, sorted by network.
    pub fn asked(&self) -> Vec<Value> {
        let mut asked = std::mem::take(&mut *self.asked.lock());
        asked.sort_by_key(|spec| spec["resourceAttributes"].to_string());
        asked
    }

    async fn answer(self, request: Request<Full<Bytes>>) -> Response<Body> {
        let review =
            request.method() == Method::POST && request.uri().path().ends_with("/subjectaccessreviews");
        if !review {
            return self.service.handle(request).await;
        }
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await.expect("a whole body").to_bytes();
        let mut value: Value = serde_json::from_slice(&bytes).expect("a review");
        self.asked.lock().push(value["spec"].clone());
        let authoriser = *self.authoriser.lock();
        let (code, answer) = match authoriser {
            Authoriser::Roles => {
                return self.service.handle(Request::from_parts(parts, Full::new(bytes))).await;
            }
            Authoriser::ByExtras => {
                let extra = &value["spec"]["extra"];
                let one = |key: &str| {
                    extra[key].as_array().filter(|values| values.len() == 1).map(|values| &values[0])
                };
                let known = one("iam.miloapis.com/parent-type") == Some(&json!("Project"))
                    && one("iam.miloapis.com/parent-name").is_some();
                value["status"] = json!({"allowed": known, "reason": "by the extras"});
                (StatusCode::CREATED, value)
            }
            Authoriser::Together => {
                while self.asked.lock().len() < 2 {
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
                value["status"] = json!({"allowed": true});
                (StatusCode::CREATED, value)
            }
            Authoriser::Broken => (
                StatusCode::INTERNAL_SERVER_ERROR,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500, "reason": "InternalError", "message": "out of order"}),
            ),
        };
        let mut response = Response::new(Body::full(answer.to_string()));
        *response.status_mut() = code;
        response
    }
}

impl Service<Request<Full<Bytes>>> for Line {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let line = self.clone();
        Box::pin(async move { Ok(line.answer(request).await) })
    }
}
