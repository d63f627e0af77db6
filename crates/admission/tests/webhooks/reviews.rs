//! Malformed reviews: each is denied with a clear reason.

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use polis_admission::{MUTATE_PATH, ProjectResolver, VALIDATE_PATH, Webhook};
use polis_api::networking::LocationBinding;
use polis_engine::{Engine, FixedPlanes, Plane, PlaneSet, Watch};
use polis_testing::{Cluster, eventually};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::env::{TestEnv, mk_review};
use crate::manifests::mk_sandbox;
use crate::proxy::{Authorizer, ReviewProxy};

/// Sends an HTTP request to the webhooks.
async fn send(webhook: &Webhook, method: Method, path: &str, body: Vec<u8>) -> (StatusCode, Value) {
    let mut request = Request::new(Full::new(Bytes::from(body)));
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().expect("a path");
    let response = webhook.clone().oneshot(request).await.expect("a response");
    let code = response.status();
    let bytes = response.into_body().collect().await.expect("a complete body").to_bytes();
    (code, serde_json::from_slice(&bytes).expect("JSON"))
}

/// Sends a review and returns its response.
async fn send_review(webhook: &Webhook, path: &str, review: &Value) -> Value {
    let (code, response) = send(webhook, Method::POST, path, review.to_string().into_bytes()).await;
    assert_eq!(code, StatusCode::OK, "{response}");
    assert_eq!(response["response"]["uid"], "q-1");
    response["response"].clone()
}

fn denial(response: &Value) -> (u64, String) {
    assert_eq!(response["allowed"], false, "{response}");
    let status = &response["status"];
    (status["code"].as_u64().unwrap_or_default(), status["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn both_webhooks_reject_an_unknown_kind() {
    let env = TestEnv::new().await;
    let mut review = mk_review("CREATE", &mk_sandbox("web", &["dfw"]), &Value::Null);
    review["request"]["resource"] = json!({"group": "apps", "version": "v1", "resource": "deployments"});
    for path in [MUTATE_PATH, VALIDATE_PATH] {
        let (code, message) = denial(&send_review(&env.webhook, path, &review).await);
        assert_eq!(code, 400);
        assert!(message.contains("does not handle deployments.apps/v1"), "{message}");
    }
}

#[tokio::test]
async fn a_review_of_three_mebibytes_is_rejected_and_a_smaller_one_is_handled() {
    let env = TestEnv::new().await;
    let mut review = mk_review("CREATE", &mk_sandbox("web", &["dfw"]), &Value::Null);
    let envelope = review.to_string().len() + r#","pad":"""#.len();
    for (size, read) in [(3 << 20, false), ((3 << 20) - 1, true)] {
        review["request"]["pad"] = "x".repeat(size - envelope).into();
        let body = review.to_string().into_bytes();
        assert_eq!(body.len(), size);
        let (code, response) = send(&env.webhook, Method::POST, VALIDATE_PATH, body).await;
        if read {
            assert_eq!(
                (code, &response["response"]["allowed"]),
                (StatusCode::OK, &json!(true)),
                "{response}"
            );
        } else {
            assert_eq!(
                (code, &response["reason"]),
                (StatusCode::PAYLOAD_TOO_LARGE, &json!("RequestEntityTooLarge"))
            );
            assert!(response["message"].as_str().unwrap_or_default().contains("3 MiB"), "{response}");
        }
    }
}

#[tokio::test]
async fn malformed_extras_are_denied_with_the_reason() {
    let env = TestEnv::new().await;
    let name = "iam.miloapis.com/parent-name";
    for (extra, code, why) in [
        (json!("shop"), 400, "request.userInfo.extra"),
        (json!({name: "shop"}), 400, "invalid type: string"),
        (json!({name: [7]}), 400, "invalid type: integer"),
        (json!({}), 403, "not for a project"),
        (json!({name: ["shop"], "iam.miloapis.com/parent-type": ["Organization"]}), 403, "not for a project"),
        (json!({name: ["shop", "bank"], "iam.miloapis.com/parent-type": ["Project"]}), 403, "has 2 values"),
        (json!({name: ["../bank"], "iam.miloapis.com/parent-type": ["Project"]}), 403, "is unknown"),
    ] {
        let mut review = mk_review("CREATE", &mk_sandbox("web", &["dfw"]), &Value::Null);
        review["request"]["userInfo"]["extra"] = extra.clone();
        let (got, message) = denial(&send_review(&env.webhook, VALIDATE_PATH, &review).await);
        assert_eq!(got, code, "{extra}: {message}");
        assert!(message.contains(why), "{extra}: {message}");
    }
}

#[tokio::test]
async fn a_workload_of_thousands_of_networks_is_denied_without_an_access_review() {
    let env = TestEnv::new().await;
    let mut workload = mk_sandbox("web", &["dfw"]);
    let networks: Vec<Value> =
        (0..5002).map(|index| json!({"network": {"name": format!("n{index}")}})).collect();
    workload["spec"]["template"]["spec"]["networkInterfaces"] = networks.into();
    let review = mk_review("CREATE", &workload, &Value::Null);
    env.proxy.take_reviews();
    let (code, message) = denial(&send_review(&env.webhook, VALIDATE_PATH, &review).await);
    assert_eq!(code, 422, "{message}");
    let field = "spec.template.spec.networkInterfaces: Forbidden: has 5002 distinct networks";
    assert!(message.contains(field), "{message}");
    assert_eq!(env.proxy.take_reviews(), [Value::Null; 0]);
}

#[tokio::test]
async fn a_body_that_is_not_a_review_is_an_http_error() {
    let env = TestEnv::new().await;
    for body in ["", "{", "null", "[]", "{}", r#"{"apiVersion":"v1","kind":"Pod"}"#] {
        let (code, status) = send(&env.webhook, Method::POST, VALIDATE_PATH, body.as_bytes().to_vec()).await;
        assert_eq!(
            (code, &status["kind"], &status["reason"]),
            (StatusCode::BAD_REQUEST, &json!("Status"), &json!("BadRequest")),
            "{body}"
        );
    }
    let (code, _) = send(&env.webhook, Method::GET, VALIDATE_PATH, Vec::new()).await;
    assert_eq!(code, StatusCode::METHOD_NOT_ALLOWED);
    let (code, status) = send(&env.webhook, Method::POST, "/validate", Vec::new()).await;
    assert_eq!(code, StatusCode::NOT_FOUND);
    assert!(status["message"].as_str().unwrap_or_default().contains(VALIDATE_PATH), "{status}");
}

#[tokio::test]
async fn an_object_that_is_not_a_workload_is_denied_with_the_field() {
    let env = TestEnv::new().await;
    let mut workload = mk_sandbox("web", &["dfw"]);
    workload["spec"]["template"]["spec"]["volumes"] = json!([{"name": "data", "disk": {}}]);
    let review = mk_review("CREATE", &workload, &Value::Null);
    let (code, message) = denial(&send_review(&env.webhook, VALIDATE_PATH, &review).await);
    assert_eq!(code, 400);
    assert!(message.contains("spec.template.spec.volumes[0].disk: missing field `template`"), "{message}");
    for object in [Value::Null, json!(7), json!({})] {
        let review = mk_review("CREATE", &object, &Value::Null);
        assert_eq!(denial(&send_review(&env.webhook, VALIDATE_PATH, &review).await).0, 400, "{object}");
        assert_eq!(
            send_review(&env.webhook, MUTATE_PATH, &review).await["allowed"],
            true,
            "the schema is validated later"
        );
    }
}

#[tokio::test]
async fn requests_are_denied_as_unavailable_before_the_projects_are_synced() {
    let mut engine = Engine::new();
    let no_response = tower::service_fn(|_: Request<Full<Bytes>>| async {
        std::future::pending::<Result<http::Response<Full<Bytes>>, std::convert::Infallible>>().await
    });
    let fixed = FixedPlanes::new([Plane::in_process("shop", no_response)]);
    let planes = engine.planes("project", fixed, [Watch::of::<LocationBinding>()]);
    let webhook = Webhook::new(ProjectResolver::by_parent(planes), &engine.handle().registry());
    let review = mk_review("CREATE", &mk_sandbox("web", &["dfw"]), &Value::Null);
    let (code, message) = denial(&send_review(&webhook, VALIDATE_PATH, &review).await);
    assert_eq!(code, 503);
    assert!(message.contains("retry"), "{message}");
    assert!(!engine.handle().is_ready(), "not ready, so no API server sends reviews");
}

/// An engine for the project `shop`, whose plane does not serve LocationBinding.
async fn engine_without_bindings() -> (ReviewProxy, Engine, PlaneSet) {
    let cluster = Cluster::builder().project("shop").without("locationbindings").build().await;
    let proxy = ReviewProxy::new(cluster.server(), Authorizer::ByExtras);
    let mut engine = Engine::new();
    let fixed = FixedPlanes::new([proxy.plane("shop")]);
    let planes = engine.planes("project", fixed, [Watch::of::<LocationBinding>()]);
    (proxy, engine, planes)
}

#[tokio::test]
async fn a_review_waits_for_a_project_that_is_being_synced() {
    let (_proxy, engine, planes) = engine_without_bindings().await;
    let webhook = Webhook::new(ProjectResolver::single(planes, "shop"), &engine.handle().registry());
    let review = mk_review("CREATE", &mk_sandbox("web", &["dfw"]), &Value::Null);
    let response = send_review(&webhook, VALIDATE_PATH, &review);
    tokio::pin!(response);
    // The review is sent before the engine runs.
    assert!(futures::poll!(&mut response).is_pending());
    let stop = CancellationToken::new();
    let running = tokio::spawn(engine.run(stop.clone().cancelled_owned()));
    let response = response.await;
    assert_eq!(response["allowed"], true, "{response}");
    stop.cancel();
    running.await.expect("no panic").expect("a clean end");
}

/// Reviews a workload in `dfw` on a plane that does not serve LocationBinding, once the plane is engaged.
async fn review_without_bindings(projects: impl FnOnce(PlaneSet) -> ProjectResolver) -> Value {
    let (_proxy, engine, planes) = engine_without_bindings().await;
    let webhook = Webhook::new(projects(planes), &engine.handle().registry());
    let stop = CancellationToken::new();
    let running = tokio::spawn(engine.run(stop.clone().cancelled_owned()));
    let review = mk_review("CREATE", &mk_sandbox("web", &["dfw"]), &Value::Null);
    let response = eventually("a response", async || {
        let response = send_review(&webhook, VALIDATE_PATH, &review).await;
        (response["status"]["code"] != 503).then_some(response)
    })
    .await;
    stop.cancel();
    running.await.expect("no panic").expect("a clean end");
    response
}

#[tokio::test]
async fn without_the_binding_crd_single_mode_allows_every_city_and_milo_mode_none() {
    let single = review_without_bindings(|planes| ProjectResolver::single(planes, "shop")).await;
    assert_eq!(single["allowed"], true, "{single}");
    let (code, message) = denial(&review_without_bindings(ProjectResolver::by_parent).await);
    assert_eq!(code, 422, "{message}");
    assert!(message.contains("spec.placements[0].cityCodes[0]"), "{message}");
}

#[tokio::test]
async fn reviews_are_counted() {
    let env = TestEnv::new().await;
    send_review(&env.webhook, VALIDATE_PATH, &mk_review("DELETE", &Value::Null, &json!({}))).await;
    let page = env.cluster.handle("webhooks").metrics();
    assert!(page.contains(r#"admission_reviews_total{webhook="validate",outcome="Allowed"}"#), "{page}");
}
