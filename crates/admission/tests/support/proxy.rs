//! A proxy to a project's plane that records access reviews and answers them as the test configures.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use parking_lot::Mutex;
use polis_apiserver::ResponseBody;
use serde_json::{Value, json};
use tower::Service;

/// How access reviews are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authorizer {
    /// By the RBAC of the plane.
    #[allow(dead_code, reason = "used by one of the suites")]
    Roles,
    /// Like the platform's authorizer: denied without the extras of a project.
    ByExtras,
    /// Allowed, but only after two reviews have arrived.
    #[allow(dead_code, reason = "used by one of the suites")]
    Together,
    /// Every review fails.
    Broken,
}

/// A proxy to a project's plane.
#[derive(Clone)]
pub struct PlaneProxy {
    service: polis_apiserver::Service,
    pub authorizer: Arc<Mutex<Authorizer>>,
    reviews: Arc<Mutex<Vec<Value>>>,
}

impl PlaneProxy {
    /// Creates a proxy to a plane.
    pub fn new(service: polis_apiserver::Service, authorizer: Authorizer) -> Self {
        Self { service, authorizer: Arc::new(Mutex::new(authorizer)), reviews: Arc::default() }
    }

    /// The specs of the access reviews since the last call, sorted by network.
    pub fn take_reviews(&self) -> Vec<Value> {
        let mut reviews = std::mem::take(&mut *self.reviews.lock());
        reviews.sort_by_key(|spec| spec["resourceAttributes"].to_string());
        reviews
    }

    async fn handle(self, request: Request<Full<Bytes>>) -> Response<ResponseBody> {
        let review =
            request.method() == Method::POST && request.uri().path().ends_with("/subjectaccessreviews");
        if !review {
            return self.service.handle(request).await;
        }
        let (parts, body) = request.into_parts();
        let bytes = body.collect().await.expect("a whole body").to_bytes();
        let mut value: Value = serde_json::from_slice(&bytes).expect("a review");
        self.reviews.lock().push(value["spec"].clone());
        let authorizer = *self.authorizer.lock();
        let (code, response_body) = match authorizer {
            Authorizer::Roles => {
                return self.service.handle(Request::from_parts(parts, Full::new(bytes))).await;
            }
            Authorizer::ByExtras => {
                let extra = &value["spec"]["extra"];
                let one = |key: &str| {
                    extra[key].as_array().filter(|values| values.len() == 1).map(|values| &values[0])
                };
                let complete = one("iam.miloapis.com/parent-type") == Some(&json!("Project"))
                    && one("iam.miloapis.com/parent-name").is_some();
                value["status"] = json!({"allowed": complete, "reason": "by the extras"});
                (StatusCode::CREATED, value)
            }
            Authorizer::Together => {
                while self.reviews.lock().len() < 2 {
                    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                }
                value["status"] = json!({"allowed": true});
                (StatusCode::CREATED, value)
            }
            Authorizer::Broken => (
                StatusCode::INTERNAL_SERVER_ERROR,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500, "reason": "InternalError", "message": "out of order"}),
            ),
        };
        let mut response = Response::new(ResponseBody::full(response_body.to_string()));
        *response.status_mut() = code;
        response
    }
}

impl Service<Request<Full<Bytes>>> for PlaneProxy {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let proxy = self.clone();
        Box::pin(async move { Ok(proxy.handle(request).await) })
    }
}
