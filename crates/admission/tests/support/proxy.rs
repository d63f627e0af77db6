//! A proxy to project planes that records access reviews and answers them as the test configures.

use std::sync::Arc;

use http::StatusCode;
use parking_lot::Mutex;
use polis_apiserver::Server;
use polis_engine::Plane;
use polis_testing::{Proxy, RecordedRequest, RequestVerb};
use serde_json::{Value, json};
use tokio::sync::Barrier;

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

/// A proxy to the planes of a server.
pub struct ReviewProxy {
    proxy: Proxy,
    reviews: Arc<Reviews>,
}

struct Reviews {
    authorizer: Mutex<Authorizer>,
    specs: Mutex<Vec<Value>>,
    together: Barrier,
}

impl ReviewProxy {
    /// Creates a proxy to a server.
    pub fn new(server: &Server, authorizer: Authorizer) -> Self {
        let (authorizer, together) = (Mutex::new(authorizer), Barrier::new(2));
        let reviews = Arc::new(Reviews { authorizer, specs: Mutex::default(), together });
        let decider = reviews.clone();
        let proxy = Proxy::new(server.clone()).intercepted(move |request, body| {
            let decider = decider.clone();
            async move { decider.decide(&request, &body).await }
        });
        Self { proxy, reviews }
    }

    /// A plane behind the proxy.
    pub fn plane(&self, name: &str) -> Plane {
        self.proxy.plane(name)
    }

    /// Sets how the next reviews are decided.
    pub fn set_authorizer(&self, authorizer: Authorizer) {
        *self.reviews.authorizer.lock() = authorizer;
    }

    /// The specs of the access reviews since the last call, sorted by network.
    pub fn take_reviews(&self) -> Vec<Value> {
        let mut reviews = std::mem::take(&mut *self.reviews.specs.lock());
        reviews.sort_by_key(|spec| spec["resourceAttributes"].to_string());
        reviews
    }
}

impl Reviews {
    /// Records an access review and answers it; none for other requests and for the RBAC of the plane.
    async fn decide(&self, request: &RecordedRequest, body: &[u8]) -> Option<(StatusCode, Value)> {
        if request.verb != RequestVerb::Create || request.resource != "subjectaccessreviews" {
            return None;
        }
        let mut review: Value = serde_json::from_slice(body).expect("a review");
        self.specs.lock().push(review["spec"].clone());
        let authorizer = *self.authorizer.lock();
        review["status"] = match authorizer {
            Authorizer::Roles => return None,
            Authorizer::ByExtras => {
                let extra = &review["spec"]["extra"];
                let one = |key: &str| {
                    extra[key].as_array().filter(|values| values.len() == 1).map(|values| &values[0])
                };
                let complete = one("iam.miloapis.com/parent-type") == Some(&json!("Project"))
                    && one("iam.miloapis.com/parent-name").is_some();
                json!({"allowed": complete, "reason": "by the extras"})
            }
            Authorizer::Together => {
                self.together.wait().await;
                json!({"allowed": true})
            }
            Authorizer::Broken => {
                let failure = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500, "reason": "InternalError", "message": "out of order"});
                return Some((StatusCode::INTERNAL_SERVER_ERROR, failure));
            }
        };
        Some((StatusCode::CREATED, review))
    }
}
