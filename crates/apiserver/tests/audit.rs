//! The audit log: which requests it records, and what their events contain.

mod common;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use common::*;
use http_body_util::{BodyExt, Full, StreamBody};
use polis_apimachinery::audit::{AuditLevel, AuditPolicy};
use polis_apiserver::{Access, Audit, AuditFile, CONTROLLERS, PlaneSpec, ResponseBody, Server, UserInfo};
use serde_json::{Value, json};

/// A server with a plane `cell`, and the events of its audit log.
struct AuditedServer {
    server: Server,
    events: Arc<Mutex<Vec<Value>>>,
}

async fn mk_audited(policy: AuditPolicy) -> AuditedServer {
    let events: Arc<Mutex<Vec<Value>>> = Arc::default();
    let sink = events.clone();
    let audit = Audit::to_sink(policy, move |lines| {
        let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let parsed = lines.map(|line| serde_json::from_slice(line).expect("JSON"));
        sink.lock().expect("unpoisoned").extend::<Vec<Value>>(parsed.collect());
        Ok(())
    });
    let access = Access::default().audit(audit.expect("an audit log"));
    let server = Server::builder().access(access).build().await.expect("a server");
    server.create_plane(PlaneSpec::standalone("cell")).await.expect("a plane");
    AuditedServer { server, events }
}

fn mk_default() -> AuditPolicy {
    AuditPolicy::standard(AuditLevel::Metadata, CONTROLLERS)
}

fn mk_policy(rules: &str) -> AuditPolicy {
    let text = format!(
        "{{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], rules: [{rules}]}}"
    );
    AuditPolicy::parse(&text).expect("a policy")
}

fn mk_admin() -> UserInfo {
    UserInfo::new("root", ["system:masters"])
}

fn mk_request(user: &UserInfo, method: &str, path: &str, body: &Value) -> http::request::Builder {
    let media = match (method, body) {
        ("PATCH", _) => "application/merge-patch+json",
        _ => "application/json",
    };
    http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", media)
        .header("user-agent", "kubectl/v1.35")
        .extension(user.clone())
}

impl AuditedServer {
    async fn send(
        &self,
        user: &UserInfo,
        method: &str,
        path: &str,
        body: Value,
    ) -> http::Response<ResponseBody> {
        let bytes = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = mk_request(user, method, path, &body).body(Full::new(bytes)).expect("a request");
        self.server.plane_service("cell").handle(request).await
    }

    /// The events so far. A last request is recorded after all earlier ones.
    async fn events(&self) -> Vec<Value> {
        let marker = UserInfo::new("marker", [] as [&str; 0]);
        let id = "marker";
        let request = mk_request(&marker, "GET", "/api/v1/namespaces/end/configmaps", &Value::Null);
        let request = request.header("audit-id", id).body(Full::new(Bytes::new())).expect("a request");
        assert_eq!(self.server.plane_service("cell").handle(request).await.status(), 403);
        let is_marker = |event: &Value| event["auditID"] == id && event["stage"] == "ResponseComplete";
        eventually("the event of the last request", || async {
            let mut events = self.events.lock().expect("unpoisoned");
            events.iter().any(is_marker).then(|| std::mem::take(&mut *events))
        })
        .await
        .into_iter()
        .filter(|event| event["auditID"] != id)
        .collect()
    }
}

fn summary(events: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    events
        .iter()
        .map(|event| {
            format!(
                "{} {} {}/{} {}",
                text(&event["user"]["username"]),
                text(&event["verb"]),
                text(&event["objectRef"]["resource"]),
                text(&event["objectRef"]["name"]),
                event["responseStatus"]["code"]
            )
        })
        .collect()
}

#[tokio::test]
async fn writes_refusals_and_reads_of_secrets_are_recorded_and_no_other_reads() {
    let audited = mk_audited(mk_default()).await;
    let (admin, guest) = (mk_admin(), UserInfo::new("guest", ["guests"]));
    let maps = "/api/v1/namespaces/default/configmaps";
    let secrets = "/api/v1/namespaces/default/secrets";
    for (user, method, path, body) in [
        (&admin, "POST", maps, json!({"metadata": {"generateName": "a-"}})),
        (&admin, "POST", maps, json!({"metadata": {"name": "b"}})),
        (&admin, "PATCH", &format!("{maps}/b"), json!({"data": {"k": "v"}})),
        (&admin, "PUT", &format!("{maps}/b"), json!({"metadata": {"name": "other"}})),
        (&admin, "GET", maps, Value::Null),
        (&admin, "GET", &format!("{maps}/b"), Value::Null),
        (&admin, "GET", "/api", Value::Null),
        (&admin, "GET", secrets, Value::Null),
        (&admin, "GET", &format!("{secrets}/none"), Value::Null),
        (&guest, "GET", maps, Value::Null),
        (&guest, "GET", "/logs", Value::Null),
        (&guest, "DELETE", &format!("{maps}/b"), Value::Null),
        (&admin, "DELETE", &format!("{maps}/b"), Value::Null),
        (&admin, "DELETE", maps, Value::Null),
    ] {
        audited.send(user, method, path, body).await;
    }
    let events = audited.events().await;
    let created = events[0]["objectRef"]["name"].as_str().expect("a name").to_owned();
    assert!(created.starts_with("a-") && created.len() > 2, "the generated name: {created}");
    assert_eq!(
        summary(&events),
        [
            &format!("root create configmaps/{created} 201"),
            "root create configmaps/b 201",
            "root patch configmaps/b 200",
            "root update configmaps/b 400",
            "root list secrets/- 200",
            "root get secrets/none 404",
            "guest list configmaps/- 403",
            "guest get -/- 403",
            "guest delete configmaps/b 403",
            "root delete configmaps/b 200",
            "root deletecollection configmaps/- 200",
        ]
    );
    let patched = &events[2];
    let uid = patched["objectRef"]["uid"].as_str().expect("a uid");
    assert_eq!(uid.len(), 36);
    assert_eq!(events[9]["objectRef"]["uid"], uid, "of the deleted object");
    assert_eq!(patched["objectRef"]["plane"], "cell");
    assert_eq!(patched["objectRef"]["namespace"], "default");
    assert_eq!(patched["userAgent"], "kubectl/v1.35");
    assert_eq!(patched["level"], "Metadata");
    assert_eq!(patched["requestObject"], Value::Null);
    assert_eq!(patched["annotations"]["authorization.k8s.io/decision"], "allow");
    let refused = &events[6];
    assert_eq!(refused["annotations"]["authorization.k8s.io/decision"], "forbid");
    assert_eq!(refused["responseStatus"]["reason"], "Forbidden");
    assert!(refused["responseStatus"]["message"].as_str().expect("a message").contains("guest"));
}

#[tokio::test]
async fn a_request_without_a_valid_user_is_recorded() {
    let audited = mk_audited(mk_default()).await;
    let request = http::Request::get("/planes/cell/api/v1/namespaces/default/configmaps/a")
        .header("authorization", "Bearer not-a-token")
        .body(Full::new(Bytes::new()))
        .expect("a request");
    assert_eq!(audited.server.service().handle(request).await.status(), 401);
    let events = audited.events().await;
    assert_eq!(summary(&events), ["- get configmaps/a 401"]);
    assert_eq!((&events[0]["user"], &events[0]["objectRef"]["plane"]), (&json!({}), &json!("cell")));
    assert!(!events[0].to_string().contains("not-a-token"));
}

#[tokio::test]
async fn an_impersonated_user_is_recorded_beside_the_user_that_impersonates() {
    let audited = mk_audited(mk_default()).await;
    let path = "/api/v1/namespaces/default/configmaps";
    let request = mk_request(&mk_admin(), "POST", path, &Value::Null)
        .header("impersonate-user", "dora")
        .header("impersonate-group", "devs");
    let body = json!({"metadata": {"name": "a"}}).to_string();
    let request = request.body(Full::new(Bytes::from(body))).expect("a request");
    assert_eq!(audited.server.plane_service("cell").handle(request).await.status(), 403);
    let events = audited.events().await;
    assert_eq!(summary(&events), ["root create configmaps/- 403"]);
    assert_eq!(
        events[0]["impersonatedUser"],
        json!({"username": "dora", "groups": ["devs", "system:authenticated"]})
    );
}

#[tokio::test]
async fn the_audit_id_of_a_request_is_kept_and_every_response_has_one() {
    let audited = mk_audited(mk_default()).await;
    let path = "/api/v1/namespaces/default/configmaps";
    let body = Bytes::from(json!({"metadata": {"name": "a"}}).to_string());
    let request = mk_request(&mk_admin(), "POST", path, &Value::Null).header("audit-id", "mine-1");
    let response =
        audited.server.plane_service("cell").handle(request.body(Full::new(body)).expect("a request")).await;
    assert_eq!(response.headers()["audit-id"], "mine-1");
    let generated = audited.send(&mk_admin(), "GET", path, Value::Null).await;
    assert_eq!(generated.headers()["audit-id"].len(), 36);
    let request = mk_request(&mk_admin(), "GET", path, &Value::Null).header("audit-id", "x".repeat(65));
    let request = request.body(Full::new(Bytes::new())).expect("a request");
    let response = audited.server.plane_service("cell").handle(request).await;
    assert_eq!(response.headers()["audit-id"].len(), 36, "too long, so it is replaced");
    assert_eq!(audited.events().await[0]["auditID"], "mine-1");
}

/// Sends requests whose bodies have a planted value; returns the log as text.
async fn log_of_planted(rules: &str) -> String {
    let audited = mk_audited(mk_policy(rules)).await;
    let secrets = "/api/v1/namespaces/default/secrets";
    let account = "/api/v1/namespaces/default/serviceaccounts";
    let planted = "cGxhbnRlZA==";
    for (method, path, body) in [
        ("POST", secrets.to_owned(), json!({"metadata": {"name": "a"}, "data": {"k": planted}})),
        ("PATCH", format!("{secrets}/a"), json!({"stringData": {"k": "planted"}})),
        ("PUT", format!("{secrets}/a"), json!({"metadata": {"name": "a"}, "data": {"k": "planted"}})),
        ("PUT", format!("{secrets}/a"), json!({"metadata": {"name": "a"}, "data": "planted"})),
        ("PUT", format!("{secrets}/a"), json!({"metadata": {"name": "a"}, "type": planted})),
        ("GET", format!("{secrets}/a"), Value::Null),
        ("GET", secrets.to_owned(), Value::Null),
        ("DELETE", format!("{secrets}/a"), Value::Null),
        ("POST", account.to_owned(), json!({"metadata": {"name": "robot"}})),
        ("POST", format!("{account}/robot/token"), json!({"spec": {}})),
        (
            "POST",
            "/apis/authentication.k8s.io/v1/tokenreviews".to_owned(),
            json!({"spec": {"token": "polis.planted"}}),
        ),
    ] {
        audited.send(&mk_admin(), method, &path, body).await;
    }
    audited
        .send(
            &mk_admin(),
            "POST",
            "/api/v1/namespaces/default/configmaps",
            json!({"metadata": {"name": "shown"}, "data": {"k": "visible"}}),
        )
        .await;
    let events = audited.events().await;
    assert_eq!(events.len(), 12, "{:?}", summary(&events));
    json!(events).to_string()
}

#[tokio::test]
async fn bodies_of_secrets_and_tokens_never_appear_unless_the_policy_names_them() {
    let log = log_of_planted("{level: RequestResponse}").await;
    assert!(log.contains("visible"), "bodies of other objects are recorded");
    assert!(!log.contains("planted") && !log.contains("cGxhbnRlZA") && !log.contains("polis.ey"), "{log}");
    let named = "{level: RequestResponse, resources: [{group: '', resources: [secrets]}]}, {level: Metadata}";
    let log = log_of_planted(named).await;
    assert!(log.contains("cGxhbnRlZA==") && !log.contains("polis.planted") && !log.contains("polis.ey"));
}

#[tokio::test]
async fn a_watch_is_recorded_when_it_begins_and_when_it_ends() {
    let audited = mk_audited(mk_default()).await;
    let path = "/api/v1/namespaces/default/secrets?watch=true";
    let response = audited.send(&mk_admin(), "GET", path, Value::Null).await;
    assert_eq!(response.status(), 200);
    let stages = |events: &[Value]| -> Vec<Value> {
        events.iter().map(|event| json!([event["verb"], event["stage"]])).collect()
    };
    assert_eq!(stages(&audited.events().await), [json!(["watch", "ResponseStarted"])]);
    drop(response);
    assert_eq!(stages(&audited.events().await), [json!(["watch", "ResponseComplete"])]);
}

#[tokio::test]
async fn a_request_whose_client_leaves_is_recorded() {
    let audited = mk_audited(mk_default()).await;
    let pending = StreamBody::new(futures::stream::pending::<Result<http_body::Frame<Bytes>, String>>());
    let request = mk_request(&mk_admin(), "POST", "/api/v1/namespaces/default/configmaps", &Value::Null);
    let service = audited.server.plane_service("cell");
    let handled = service.handle(request.body(pending.boxed()).expect("a request"));
    assert!(futures::FutureExt::now_or_never(handled).is_none(), "it waits for the body");
    let events = audited.events().await;
    assert_eq!(summary(&events), ["root create configmaps/- null"]);
    let message = events[0]["responseStatus"]["message"].as_str().expect("a message");
    assert!(message.contains("client left"), "{message}");
}

#[tokio::test]
async fn a_policy_can_ask_for_the_stage_before_the_execution() {
    let policy = "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Request, verbs: [create]}]}";
    let audited = mk_audited(AuditPolicy::parse(policy).expect("a policy")).await;
    let path = "/api/v1/namespaces/default/configmaps";
    audited.send(&mk_admin(), "POST", path, json!({"metadata": {"name": "a"}})).await;
    let events = audited.events().await;
    let stages: Vec<&Value> = events.iter().map(|event| &event["stage"]).collect();
    assert_eq!(stages, ["RequestReceived", "ResponseComplete"]);
    assert_eq!((&events[0]["responseStatus"], &events[0]["requestObject"]), (&Value::Null, &Value::Null));
    assert_eq!(events[1]["requestObject"], json!({"metadata": {"name": "a"}}));
    assert_eq!(events[1]["responseObject"], Value::Null);
    assert_eq!(events[0]["requestReceivedTimestamp"], events[1]["requestReceivedTimestamp"]);
}

#[tokio::test]
async fn a_controller_is_recorded_by_its_identity_and_its_routine_writes_are_not() {
    let audited = mk_audited(mk_default()).await;
    let controller = UserInfo::new("polis:cell-dfw", ["system:masters", CONTROLLERS]);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    audited.send(&controller, "POST", leases, json!({"metadata": {"name": "a"}})).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    audited.send(&controller, "POST", maps, json!({"metadata": {"name": "a"}})).await;
    assert_eq!(summary(&audited.events().await), ["polis:cell-dfw create configmaps/a 201"]);
}

#[tokio::test]
async fn the_file_has_one_event_per_line_and_the_metrics_count_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = AuditFile { path: folder.path().join("audit.log"), max_bytes: 1 << 20, max_backups: 1 };
    let audit = Audit::to_file(mk_default(), file.clone()).expect("an audit log");
    let server = Server::builder().access(Access::default().audit(audit)).build().await.expect("a server");
    let post = mk_request(&mk_admin(), "POST", "/api/v1/namespaces/default/configmaps", &Value::Null);
    let body = Bytes::from(json!({"metadata": {"name": "a"}}).to_string());
    server.service().handle(post.body(Full::new(body)).expect("a request")).await;
    let text = eventually("a line", || async {
        std::fs::read_to_string(&file.path).ok().filter(|text| text.ends_with('\n'))
    })
    .await;
    let event: Value = serde_json::from_str(text.trim_end()).expect("one line of JSON");
    assert_eq!((&event["kind"], &event["apiVersion"]), (&json!("Event"), &json!("audit.k8s.io/v1")));
    let metrics = || async {
        let get = mk_request(&mk_admin(), "GET", "/metrics", &Value::Null).body(Full::new(Bytes::new()));
        let response = server.service().handle(get.expect("a request")).await;
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        String::from_utf8(body.to_vec()).expect("UTF-8")
    };
    let counted = eventually("the count", || async {
        Some(metrics().await).filter(|text| text.contains("\napiserver_audit_event_total 1\n"))
    })
    .await;
    assert!(counted.contains("apiserver_audit_error_total{plugin=\"log\"} 0\n"), "{counted}");
    let guest = UserInfo::new("guest", ["guests"]);
    let get = mk_request(&guest, "GET", "/metrics", &Value::Null).body(Full::new(Bytes::new()));
    assert_eq!(server.service().handle(get.expect("a request")).await.status(), 403);
}
