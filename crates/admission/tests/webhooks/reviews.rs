//! Reviews as no API server should send them: each is refused, clearly, and nothing is taken.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use polis_admission::{MUTATE, Projects, VALIDATE, Webhook};
use polis_api::networking::LocationBinding;
use polis_apiserver::Server;
use polis_engine::{Engine, Fixed, Plane, PlaneSet, Watch};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::line::{Authoriser, Line};
use crate::manifests::mk_sandbox;
use crate::world::{World, mk_review};

/// What the webhooks say to a request.
async fn send(webhook: &Webhook, method: Method, path: &str, body: Vec<u8>) -> (StatusCode, Value) {
    let mut request = Request::new(Full::new(Bytes::from(body)));
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().expect("a path");
    let response = webhook.clone().oneshot(request).await.expect("an answer");
    let code = response.status();
    let bytes = response.into_body().collect().await.expect("a whole answer").to_bytes();
    (code, serde_json::from_slice(&bytes).expect("JSON"))
}

/// The answer to a review.
async fn ask(webhook: &Webhook, path: &str, review: &Value) -> Value {
    let (code, answer) = send(webhook, Method::POST, path, review.to_string().into_bytes()).await;
    assert_eq!(code, StatusCode::OK, "{answer}");
    assert_eq!(answer["response"]["uid"], "q-1");
    answer["response"].clone()
}

fn refusal(response: &Value) -> (u64, String) {
    assert_eq!(response["allowed"], false, "{response}");
    let status = &response["status"];
    (status["code"].as_u64().unwrap_or_default(), status["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_kind_that_is_not_known_is_refused_by_both() {
    let world = World::new().await;
    let mut review = mk_review("CREATE", &mk_sandbox("web", &["dfw"]), &Value::Null);
    review["request"]["resource"] = json!({"group": "apps", "version": "v1", "resource": "deployments"});
    for path in [MUTATE, VALIDATE] {
        let (code, message) = refusal(&ask(&world.webhook, path, &review).await);
        assert_eq!(code, 400);
        assert!(message.contains("deployments.apps/v1 is not judged here"), "{message}");
    }
}

#[tokio::test]
async fn a_review_of_three_mebibytes_is_refused_and_one_just_below_is_read() {
    let world = World::new().await;
    let mut review = mk_review("CREATE", &mk_sandbox("web", &["dfw"]), &Value::Null);
    let bare = review.to_string().len() + r#","pad":"""#.len();
    for (size, read) in [(3 << 20, false), ((3 << 20) - 1, true)] {
        review["request"]["pad"] = "x".repeat(size - bare).into();
        let body = review.to_string().into_bytes();
        assert_eq!(body.len(), size);
        let (code, answer) = send(&world.webhook, Method::POST, VALIDATE, body).await;
        if read {
            assert_eq!((code, &answer["response"]["allowed"]), (StatusCode::OK, &json!(true)), "{answer}");
        } else {
            assert_eq!(
                (code, &answer["reason"]),
                (StatusCode::PAYLOAD_TOO_LARGE, &json!("RequestEntityTooLarge"))
            );
            assert!(answer["message"].as_str().unwrap_or_default().contains("3 MiB"), "{answer}");
        }
    }
}

#[tokio::test]
async fn malformed_extras_are_refused_each_with_what_is_wrong() {
    let world = World::new().await;
    let name = "iam.miloapis.com/parent-name";
    for (extra, code, why) in [
        (json!("shop"), 400, "request.userInfo.extra"),
        (json!({name: "shop"}), 400, "invalid type: string"),
        (json!({name: [7]}), 400, "invalid type: integer"),
        (json!({}), 403, "made in no project"),
        (json!({name: ["shop"], "iam.miloapis.com/parent-type": ["Organization"]}), 403, "not in a project"),
        (json!({name: ["shop", "bank"], "iam.miloapis.com/parent-type": ["Project"]}), 403, "has 2 values"),
        (json!({name: ["../bank"], "iam.miloapis.com/parent-type": ["Project"]}), 403, "is not known here"),
    ] {
        let mut review = mk_review("CREATE", &mk_sandbox("web", &["dfw"]), &Value::Null);
        review["request"]["userInfo"]["extra"] = extra.clone();
        let (got, message) = refusal(&ask(&world.webhook, VALIDATE, &review).await);
        assert_eq!(got, code, "{extra}: {message}");
        assert!(message.contains(why), "{extra}: {message}");
    }
}

#[tokio::test]
async fn what_is_no_review_is_refused_as_a_request() {
    let world = World::new().await;
    for body in ["", "{", "null", "[]", "{}", r#"{"apiVersion":"v1","kind":"Pod"}"#] {
        let (code, status) = send(&world.webhook, Method::POST, VALIDATE, body.as_bytes().to_vec()).await;
        assert_eq!(
            (code, &status["kind"], &status["reason"]),
            (StatusCode::BAD_REQUEST, &json!("Status"), &json!("BadRequest")),
            "{body}"
        );
    }
    let (code, _) = send(&world.webhook, Method::GET, VALIDATE, Vec::new()).await;
    assert_eq!(code, StatusCode::METHOD_NOT_ALLOWED);
    let (code, status) = send(&world.webhook, Method::POST, "/validate", Vec::new()).await;
    assert_eq!(code, StatusCode::NOT_FOUND);
    assert!(status["message"].as_str().unwrap_or_default().contains(VALIDATE), "{status}");
}

#[tokio::test]
async fn an_object_that_is_no_workload_is_refused_with_its_field() {
    let world = World::new().await;
    let mut workload = mk_sandbox("web", &["dfw"]);
    workload["spec"]["template"]["spec"]["volumes"] = json!([{"name": "data", "disk": {}}]);
    let review = mk_review("CREATE", &workload, &Value::Null);
    let (code, message) = refusal(&ask(&world.webhook, VALIDATE, &review).await);
    assert_eq!(code, 400);
    assert!(message.contains("spec.template.spec.volumes[0].disk: missing field `template`"), "{message}");
    for object in [Value::Null, json!(7), json!({})] {
        let review = mk_review("CREATE", &object, &Value::Null);
        assert_eq!(refusal(&ask(&world.webhook, VALIDATE, &review).await).0, 400, "{object}");
        assert_eq!(
            ask(&world.webhook, MUTATE, &review).await["allowed"],
            true,
            "the schema has its say after this"
        );
    }
}

#[tokio::test]
async fn before_the_projects_are_known_everything_is_refused_for_now() {
    let mut engine = Engine::new();
    let nowhere = tower::service_fn(|_: Request<Full<Bytes>>| async {
        std::future::pending::<Result<http::Response<Full<Bytes>>, std::convert::Infallible>>().await
    });
    let fixed = Fixed::new([Plane::in_process("shop", nowhere)]);
    let planes = engine.planes("project", fixed, [Watch::of::<LocationBinding>()]);
    let webhook = Webhook::new(Projects::by_parent(planes), &engine.handle().registry());
    let review = mk_review("CREATE", &mk_sandbox("web", &["dfw"]), &Value::Null);
    let (code, message) = refusal(&ask(&webhook, VALIDATE, &review).await);
    assert_eq!(code, 503);
    assert!(message.contains("try again"), "{message}");
    assert!(!engine.handle().is_ready(), "and nobody sends reviews here");
}

#[tokio::test]
async fn a_review_waits_a_moment_for_a_project_that_is_being_looked_into() {
    let server = Server::builder().build().await.expect("a server");
    let line = Line::new(server.plane_service(""), Authoriser::ByExtras);
    let mut engine = Engine::new();
    let fixed = Fixed::new([Plane::in_process("shop", line)]);
    let planes = engine.planes("project", fixed, [Watch::of::<LocationBinding>()]);
    let webhook = Webhook::new(Projects::single(planes, "shop"), &engine.handle().registry());
    let review = mk_review("CREATE", &mk_sandbox("web", &["dfw"]), &Value::Null);
    let asked = ask(&webhook, VALIDATE, &review);
    tokio::pin!(asked);
    // It is asked before the engine runs at all.
    assert!(futures::poll!(&mut asked).is_pending());
    let stop = CancellationToken::new();
    let running = tokio::spawn(engine.run(stop.clone().cancelled_owned()));
    let answer = asked.await;
    assert_eq!(answer["allowed"], true, "{answer}");
    stop.cancel();
    running.await.expect("no panic").expect("a clean end");
}

/// Asks about a workload in `dfw`, on a plane that does not serve LocationBindings, once the plane is engaged.
async fn ask_without_bindings(projects: impl FnOnce(PlaneSet) -> Projects) -> Value {
    let server = Server::builder().build().await.expect("a server");
    let line = Line::new(server.plane_service(""), Authoriser::ByExtras);
    let mut engine = Engine::new();
    let fixed = Fixed::new([Plane::in_process("shop", line)]);
    let planes = engine.planes("project", fixed, [Watch::of::<LocationBinding>()]);
    let webhook = Webhook::new(projects(planes), &engine.handle().registry());
    let stop = CancellationToken::new();
    let running = tokio::spawn(engine.run(stop.clone().cancelled_owned()));
    let review = mk_review("CREATE", &mk_sandbox("web", &["dfw"]), &Value::Null);
    let answer = async {
        loop {
            let answer = ask(&webhook, VALIDATE, &review).await;
            if answer["status"]["code"] != 503 {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let answer = tokio::time::timeout(Duration::from_secs(60), answer).await.expect("an answer in time");
    stop.cancel();
    running.await.expect("no panic").expect("a clean end");
    answer
}

#[tokio::test]
async fn without_the_kind_of_bindings_a_bare_cluster_allows_every_city_and_a_platform_none() {
    let bare = ask_without_bindings(|planes| Projects::single(planes, "shop")).await;
    assert_eq!(bare["allowed"], true, "{bare}");
    let (code, message) = refusal(&ask_without_bindings(Projects::by_parent).await);
    assert_eq!(code, 422, "{message}");
    assert!(message.contains("spec.placements[0].cityCodes[0]"), "{message}");
}

#[tokio::test]
async fn answers_are_counted() {
    let world = World::new().await;
    ask(&world.webhook, VALIDATE, &mk_review("DELETE", &Value::Null, &json!({}))).await;
    let page = world.handle.metrics();
    assert!(page.contains(r#"admission_reviews_total{webhook="validate",outcome="Allowed"}"#), "{page}");
}
