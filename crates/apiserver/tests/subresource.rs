//! Subresources that the embedding program serves.

mod common;

use bytes::Bytes;
use common::*;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::api::PostParams;
use polis_apiserver::{PlaneSpec, ResponseBody, Server, Service, StatusError, SubresourceRequest, UserInfo};
use serde_json::{Value, json};

/// A log handler: each line describes the request.
async fn log(request: SubresourceRequest) -> Result<Response<ResponseBody>, StatusError> {
    let lines = request.parameter("tailLines").and_then(|lines| lines.parse().ok()).unwrap_or(2);
    let about = format!(
        "{}/{}/{} {} for {}\n",
        request.plane,
        request.namespace.unwrap_or_default(),
        request.name,
        request.object["spec"]["color"].as_str().unwrap_or("plain"),
        request.user.name
    );
    Ok(Response::new(ResponseBody::stream(futures::stream::iter(vec![Bytes::from(about); lines]))))
}

async fn mk_server_with_logs() -> Server {
    let server =
        Server::builder().subresource("example.com", "widgets", "log", log).build().await.expect("a server");
    server.create_plane(PlaneSpec::standalone("cell")).await.expect("a plane");
    server.install_crd_in("cell", &mk_widgets_crd()).await.expect("a definition");
    widgets(&mk_client(&server, "cell"))
        .create(&PostParams::default(), &mk_widget("a", json!({"color": "blue"})))
        .await
        .expect("a widget");
    server
}

async fn ask(service: &Service, method: &str, path: &str, who: Option<UserInfo>) -> (StatusCode, String) {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .body(http_body_util::Full::<Bytes>::default())
        .expect("a request");
    if let Some(who) = who {
        request.extensions_mut().insert(who);
    }
    let response = service.handle(request).await;
    let code = response.status();
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    (code, String::from_utf8_lossy(&bytes).into_owned())
}

const LOG: &str = "/planes/cell/apis/example.com/v1/namespaces/default/widgets/a/log";

#[tokio::test]
async fn the_handler_streams_a_response_for_an_existing_object() {
    let service = mk_server_with_logs().await.service();
    let (code, text) = ask(&service, "GET", &format!("{LOG}?tailLines=3"), None).await;
    assert_eq!((code, text), (StatusCode::OK, "cell/default/a blue for system:admin\n".repeat(3)));
    let (code, _) = ask(&service, "GET", &LOG.replace("/a/", "/b/"), None).await;
    assert_eq!(code, StatusCode::NOT_FOUND);
    let (code, _) = ask(&service, "GET", &LOG.replace("/log", "/smell"), None).await;
    assert_eq!(code, StatusCode::NOT_FOUND);
    let (code, _) = ask(&service, "PUT", LOG, None).await;
    assert_eq!(code, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_caller_needs_the_verb_get_on_the_subresource() {
    let server = mk_server_with_logs().await;
    let client = mk_client(&server, "cell");
    let grant = |resource: &str| {
        json!([
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "reader", "namespace": "default"}, "rules": [{"apiGroups": ["example.com"], "resources": [resource], "verbs": ["get"]}]},
            {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "reader", "namespace": "default"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}]}
        ])
    };
    let eve = || Some(UserInfo { name: "eve".into(), ..UserInfo::default() });
    for (resource, expected) in [("widgets", StatusCode::FORBIDDEN), ("widgets/log", StatusCode::OK)] {
        for object in grant(resource).as_array().expect("two objects") {
            let plural = format!("{}s", object["kind"].as_str().expect("a kind").to_lowercase());
            let path = format!(
                "/apis/rbac.authorization.k8s.io/v1/namespaces/default/{plural}/reader?fieldManager=t&force=true"
            );
            let request = Request::patch(path)
                .header("content-type", "application/apply-patch+yaml")
                .body(object.to_string().into_bytes())
                .expect("a request");
            client.request::<Value>(request).await.expect("a grant");
        }
        assert_eq!(ask(&server.service(), "GET", LOG, eve()).await.0, expected, "{resource}");
    }
}

#[tokio::test]
async fn discovery_lists_the_subresource() {
    let server = mk_server_with_logs().await;
    let (_, text) = ask(&server.service(), "GET", "/planes/cell/apis/example.com/v1", None).await;
    let found: Value = serde_json::from_str(&text).expect("a document");
    let log =
        found["resources"].as_array().expect("resources").iter().find(|one| one["name"] == "widgets/log");
    assert_eq!(log.map(|log| &log["verbs"]), Some(&json!(["get"])));
}
