//! Service account tokens: what a TokenRequest returns, and what ends a token.

mod common;

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use bytes::Bytes;
use common::{eventually, mk_server};
use http_body_util::{BodyExt, Full};
use polis_apiserver::{Access, PlaneSpec, Revocation, Server, Storage, TokenKeys, UserInfo};
use serde_json::{Value, json};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The response to a request: its code, its body and its warnings.
struct Response {
    code: u16,
    body: Value,
    warnings: Vec<String>,
}

impl Response {
    #[track_caller]
    fn ok(self) -> Value {
        assert!((200..300).contains(&self.code), "{}: {}", self.code, self.body);
        self.body
    }
}

/// Sends a request to a plane, with a token or as the administrator.
async fn send(
    server: &Server,
    plane: &str,
    token: Option<&str>,
    method: &str,
    path: &str,
    body: Value,
) -> Response {
    let mut request =
        http::Request::builder().method(method).uri(path).header("content-type", "application/json");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(Full::new(Bytes::from(body.to_string()))).expect("a request");
    let response = server.plane_service(plane).handle(request).await;
    let code = response.status().as_u16();
    let texts = response.headers().get_all("warning").iter();
    let warnings = texts.map(|value| value.to_str().expect("text").to_owned()).collect();
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    Response { code, body: serde_json::from_slice(&bytes).unwrap_or(Value::Null), warnings }
}

/// As the administrator of plane `cell`.
async fn admin(server: &Server, method: &str, path: &str, body: Value) -> Response {
    send(server, "cell", None, method, path, body).await
}

async fn create_account(server: &Server, name: &str) {
    admin(server, "POST", ACCOUNTS, json!({"metadata": {"name": name}})).await.ok();
}

async fn create_secret(server: &Server, name: &str) -> Value {
    admin(server, "POST", SECRETS, json!({"metadata": {"name": name}})).await.ok()
}

/// Requests a token of the service account `bot`.
async fn request_token(server: &Server, spec: Value) -> Response {
    admin(server, "POST", &format!("{ACCOUNTS}/bot/token"), json!({"spec": spec})).await
}

async fn token(server: &Server, spec: Value) -> String {
    token_in(&request_token(server, spec).await.ok())
}

fn token_in(request: &Value) -> String {
    request["status"]["token"].as_str().expect("a token").to_owned()
}

fn part(token: &str, n: usize) -> Value {
    let part = token.split('.').nth(n).expect("three parts");
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).expect("base64")).expect("JSON")
}

/// The code of the response to a request with the token, which every authenticated user may send.
async fn code(server: &Server, plane: &str, token: &str) -> u16 {
    send(server, plane, Some(token), "POST", WHO_AM_I, json!({})).await.code
}

/// The status of a TokenReview.
async fn review(server: &Server, token: &str, audiences: Value) -> Value {
    let spec = json!({"spec": {"token": token, "audiences": audiences}});
    admin(server, "POST", TOKEN_REVIEWS, spec).await.ok()["status"].clone()
}

/// A server with the service account `bot`.
async fn mk_bot_server() -> Server {
    let server = mk_server().await;
    create_account(&server, "bot").await;
    server
}

#[tokio::test]
async fn a_token_has_the_claims_of_kubernetes_and_identifies_its_service_account() {
    let server = mk_bot_server().await;
    let secret = create_secret(&server, "s").await;
    let reference =
        json!({"apiVersion": "v1", "kind": "Secret", "name": "s", "uid": secret["metadata"]["uid"]});
    let issued = request_token(&server, json!({"boundObjectRef": reference})).await.ok();
    let issuer = format!("{ISSUER}/planes/cell");
    assert_eq!(issued["kind"], "TokenRequest");
    assert_eq!(issued["spec"]["expirationSeconds"], 3600);
    assert_eq!(issued["spec"]["audiences"], json!([issuer]));
    let token = token_in(&issued);
    let claims = part(&token, 1);
    assert_eq!(part(&token, 0)["alg"], "ES256");
    assert_eq!((&claims["iss"], &claims["aud"]), (&json!(issuer), &json!([issuer])));
    assert_eq!(claims["sub"], "system:serviceaccount:default:bot");
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 3600);
    assert_eq!(claims["nbf"], claims["iat"]);
    let account = admin(&server, "GET", &format!("{ACCOUNTS}/bot"), json!(null)).await.ok();
    let uid = &account["metadata"]["uid"];
    assert_eq!(
        claims["kubernetes.io"],
        json!({"namespace": "default", "serviceaccount": {"name": "bot", "uid": uid}, "secret": {"name": "s", "uid": secret["metadata"]["uid"]}})
    );
    let user = send(&server, "cell", Some(&token), "POST", WHO_AM_I, json!({})).await.ok();
    let user = &user["status"]["userInfo"];
    assert_eq!((&user["username"], &user["uid"]), (&claims["sub"], uid));
    let id = format!("JTI={}", claims["jti"].as_str().unwrap());
    assert_eq!(user["extra"]["authentication.kubernetes.io/credential-id"], json!([id]));
}

#[tokio::test]
async fn others_verify_a_token_with_the_published_keys() {
    let server = mk_bot_server().await;
    let token = token(&server, json!({})).await;
    let get = async |path: &str| send(&server, "cell", Some(&token), "GET", path, json!(null)).await;
    let configuration = get("/.well-known/openid-configuration").await.ok();
    assert_eq!(configuration["issuer"], part(&token, 1)["iss"]);
    assert_eq!(configuration["jwks_uri"], format!("{ISSUER}/planes/cell/openid/v1/jwks"));
    let keys = get("/openid/v1/jwks").await.ok();
    assert_eq!(keys["keys"][0]["kid"], part(&token, 0)["kid"]);
}

#[tokio::test]
async fn a_token_is_valid_for_its_audiences_only() {
    let server = mk_bot_server().await;
    let vault = token(&server, json!({"audiences": ["vault", "db"]})).await;
    assert_eq!(code(&server, "cell", &vault).await, 401);
    assert_eq!(review(&server, &vault, json!([])).await["authenticated"], json!(null));
    let found = review(&server, &vault, json!(["x", "db", "vault"])).await;
    assert_eq!((&found["authenticated"], &found["audiences"]), (&json!(true), &json!(["vault", "db"])));
    assert_eq!(found["user"]["username"], "system:serviceaccount:default:bot");
    let own = token(&server, json!({})).await;
    assert_eq!(code(&server, "cell", &own).await, 201);
    let refused = review(&server, &own, json!(["vault"])).await;
    assert!(refused["error"].as_str().unwrap().contains("is invalid for the target audiences"), "{refused}");
}

#[tokio::test]
async fn a_token_is_valid_on_its_plane_only() {
    let server = mk_bot_server().await;
    server.create_plane(PlaneSpec::standalone("other")).await.unwrap();
    send(&server, "other", None, "POST", ACCOUNTS, json!({"metadata": {"name": "bot"}})).await.ok();
    let both = json!({"audiences": [format!("{ISSUER}/planes/cell"), format!("{ISSUER}/planes/other")]});
    let token = token(&server, both).await;
    assert_eq!(code(&server, "cell", &token).await, 201);
    assert_eq!(code(&server, "other", &token).await, 401);
}

#[tokio::test]
async fn a_lifetime_has_at_least_ten_minutes_and_is_shortened_to_a_day() {
    let server = mk_bot_server().await;
    for (seconds, why) in [(599_i64, "less than 10 minutes"), ((1 << 32) + 1, "larger than 2^32 seconds")] {
        let refused = request_token(&server, json!({"expirationSeconds": seconds})).await;
        assert_eq!(refused.code, 422, "{}", refused.body);
        assert!(refused.body["message"].as_str().unwrap().contains(why), "{}", refused.body);
    }
    let year = request_token(&server, json!({"expirationSeconds": 365 * 24 * 3600})).await;
    assert!(year.warnings[0].contains("shortened to 86400 seconds"), "{:?}", year.warnings);
    let issued = year.ok();
    assert_eq!(issued["spec"]["expirationSeconds"], 86400);
    let claims = part(&token_in(&issued), 1);
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 86400);
}

#[tokio::test]
async fn a_token_ends_with_the_object_that_it_is_bound_to() {
    let server = mk_bot_server().await;
    let secret = create_secret(&server, "s").await;
    let bind = |kind: &str, name: &str, uid: &str| json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}});
    for (spec, code, why) in [
        (bind("Secret", "missing", ""), 404, "secrets \"missing\" not found"),
        (bind("Pod", "missing", ""), 404, "pods \"missing\" not found"),
        (bind("Secret", "s", "other"), 409, "does not match the UID in record"),
        (bind("ConfigMap", "s", ""), 400, "cannot bind token to object of type /v1, Kind=ConfigMap"),
    ] {
        let refused = request_token(&server, spec).await;
        assert_eq!(refused.code, code, "{}", refused.body);
        assert!(refused.body["message"].as_str().unwrap().contains(why), "{}", refused.body);
    }
    let bound = token(&server, bind("Secret", "s", secret["metadata"]["uid"].as_str().unwrap())).await;
    assert_eq!(code(&server, "cell", &bound).await, 201);
    admin(&server, "DELETE", &format!("{SECRETS}/s"), json!(null)).await.ok();
    assert_eq!(code(&server, "cell", &bound).await, 401);
    create_secret(&server, "s").await;
    assert_eq!(code(&server, "cell", &bound).await, 401, "the new object has another UID");
}

#[tokio::test]
async fn a_token_ends_with_its_service_account() {
    let server = mk_bot_server().await;
    let token = token(&server, json!({})).await;
    admin(&server, "DELETE", &format!("{ACCOUNTS}/bot"), json!(null)).await.ok();
    assert_eq!(code(&server, "cell", &token).await, 401);
    create_account(&server, "bot").await;
    assert_eq!(code(&server, "cell", &token).await, 401, "the new account has another UID");
    assert_eq!(request_token(&server, json!({})).await.code, 201);
}

#[tokio::test]
async fn a_token_request_passes_admission() {
    let server = mk_bot_server().await;
    let base = "/apis/admissionregistration.k8s.io/v1";
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["serviceaccounts/token"]}]);
    let expression = "request.kind.kind == 'TokenRequest' && request.kind.group == 'authentication.k8s.io' && request.name == 'bot' && object.spec.audiences.all(a, a != 'vault')";
    let policy = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": rules}, "validations": [{"expression": expression}]}});
    admin(&server, "POST", &format!("{base}/validatingadmissionpolicies"), policy).await.ok();
    let binding =
        json!({"metadata": {"name": "p"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    admin(&server, "POST", &format!("{base}/validatingadmissionpolicybindings"), binding).await.ok();
    assert_eq!(request_token(&server, json!({"audiences": ["db"]})).await.code, 201);
    let refused = request_token(&server, json!({"audiences": ["vault"]})).await;
    assert_eq!(refused.code, 422, "{}", refused.body);
}

/// The token in the secret `name`, once it is not `before`.
async fn secret_token(server: &Server, name: &str, before: &str) -> String {
    eventually("a token in the secret", || async {
        let secret = admin(server, "GET", &format!("{SECRETS}/{name}"), json!(null)).await.ok();
        let token = STANDARD.decode(secret["data"]["token"].as_str()?).ok()?;
        Some(String::from_utf8(token).expect("text")).filter(|token| token != before)
    })
    .await
}

async fn create_token_secret(server: &Server, name: &str, data: Value) {
    let secret = json!({"metadata": {"name": name, "annotations": {"kubernetes.io/service-account.name": "bot"}}, "type": "kubernetes.io/service-account-token", "data": data});
    admin(server, "POST", SECRETS, secret).await.ok();
}

#[tokio::test]
async fn the_token_of_a_secret_ends_with_the_secret() {
    let server = mk_bot_server().await;
    create_token_secret(&server, "t", json!({})).await;
    let first = secret_token(&server, "t", "").await;
    assert_eq!(part(&first, 1)["exp"], json!(null));
    assert_eq!(code(&server, "cell", &first).await, 201);
    let removed = json!({"metadata": {"name": "t", "annotations": {"kubernetes.io/service-account.name": "bot"}}, "type": "kubernetes.io/service-account-token"});
    admin(&server, "PUT", &format!("{SECRETS}/t"), removed).await.ok();
    let second = secret_token(&server, "t", &first).await;
    assert_eq!(code(&server, "cell", &first).await, 401, "the secret holds another token");
    assert_eq!(code(&server, "cell", &second).await, 201);
    admin(&server, "DELETE", &format!("{SECRETS}/t"), json!(null)).await.ok();
    assert_eq!(code(&server, "cell", &second).await, 401);
}

#[tokio::test]
async fn a_secret_with_a_token_of_an_earlier_release_gets_a_new_one() {
    let server = mk_bot_server().await;
    let old = "polis.eyJwbGFuZSI6ImNlbGwifQ.EFr9jmr93ebJHpTtnv0r28paB4dYy5XDnk8_xl_eJ14";
    create_token_secret(&server, "t", json!({"token": STANDARD.encode(old)})).await;
    let new = secret_token(&server, "t", old).await;
    assert_eq!(code(&server, "cell", &new).await, 201);
    assert_eq!(code(&server, "cell", old).await, 401);
}

/// A server on a store in a file, with these token keys.
async fn mk_stored_server(folder: &std::path::Path, keys: &[&str]) -> Server {
    let server = eventually("the store is free", || async {
        let mut access = Access::default();
        access.token_keys = TokenKeys::from_pem(&keys.concat()).unwrap();
        let storage = Storage::Redb(folder.join("store.redb"));
        Server::builder().storage(storage).access(access).build().await.ok()
    })
    .await;
    if !server.has_plane("cell") {
        server.create_plane(PlaneSpec::standalone("cell")).await.unwrap();
        create_account(&server, "bot").await;
    }
    server
}

#[tokio::test]
async fn keys_are_rotated_without_an_outage() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (TokenKeys::new_key().unwrap(), TokenKeys::new_key().unwrap());
    let server = mk_stored_server(folder.path(), &[&old]).await;
    create_token_secret(&server, "t", json!({})).await;
    let of_secret = secret_token(&server, "t", "").await;
    let requested = token(&server, json!({})).await;
    drop(server);
    let server = mk_stored_server(folder.path(), &[&new, &old]).await;
    assert_eq!(code(&server, "cell", &requested).await, 201);
    let renewed = secret_token(&server, "t", &of_secret).await;
    assert_eq!(part(&renewed, 0)["kid"], part(&token(&server, json!({})).await, 0)["kid"]);
    drop(server);
    let server = mk_stored_server(folder.path(), &[&new]).await;
    assert_eq!(code(&server, "cell", &requested).await, 401);
    assert_eq!(code(&server, "cell", &renewed).await, 201);
}

#[tokio::test]
async fn a_revocation_is_stored_and_ends_a_token_at_its_next_request() {
    let folder = tempfile::tempdir().unwrap();
    let key = TokenKeys::new_key().unwrap();
    let server = mk_stored_server(folder.path(), &[&key]).await;
    create_token_secret(&server, "t", json!({})).await;
    let of_secret = secret_token(&server, "t", "").await;
    let (first, second) = (token(&server, json!({})).await, token(&server, json!({})).await);
    let id = part(&first, 1)["jti"].as_str().unwrap().to_owned();
    assert_eq!(server.credentials().len(), 3);
    let ended = server.revoke(&Revocation::Id(id.clone())).await.unwrap();
    assert_eq!((ended.len(), ended[0].id.as_str()), (1, id.as_str()));
    drop(server);
    let server = mk_stored_server(folder.path(), &[&key]).await;
    for (token, expected) in [(&first, 401), (&second, 201), (&of_secret, 201)] {
        assert_eq!(code(&server, "cell", token).await, expected);
    }
    assert_eq!(server.credentials().len(), 2);
    let subject = "system:serviceaccount:default:bot";
    let body = json!({"subject": subject});
    let path = "/polis/credentials";
    let ended = send(&server, "", None, "POST", path, body).await.ok();
    assert_eq!(ended["items"].as_array().map(Vec::len), Some(2), "{ended}");
    for token in [&second, &of_secret] {
        assert_eq!(code(&server, "cell", token).await, 401);
    }
    assert_eq!(send(&server, "", None, "GET", path, json!(null)).await.ok()["items"], json!([]));
}

#[tokio::test]
async fn a_watch_sends_nothing_after_the_service_account_of_its_token_is_deleted() {
    let server = mk_bot_server().await;
    let binding = json!({"metadata": {"name": "bot"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "bot", "namespace": "default"}]});
    let rules = json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["watch"]}]);
    for (plural, object) in [
        ("clusterroles", json!({"metadata": {"name": "reader"}, "rules": rules})),
        ("clusterrolebindings", binding),
    ] {
        admin(&server, "POST", &format!("/apis/rbac.authorization.k8s.io/v1/{plural}"), object).await.ok();
    }
    let token = token(&server, json!({})).await;
    let request = http::Request::get(format!("{SECRETS}?watch=true&resourceVersion=0"))
        .header("authorization", format!("Bearer {token}"))
        .body(Full::new(Bytes::new()))
        .unwrap();
    let mut watch = server.plane_service("cell").handle(request).await.into_body();
    create_secret(&server, "before").await;
    assert!(watch.frame().await.is_some());
    admin(&server, "DELETE", &format!("{ACCOUNTS}/bot"), json!(null)).await.ok();
    create_secret(&server, "after").await;
    assert!(watch.frame().await.is_none());
}

#[tokio::test]
async fn only_administrators_of_the_root_plane_see_and_revoke_credentials() {
    let server = mk_bot_server().await;
    let path = "/polis/credentials";
    let ann = |method: &str| {
        http::Request::builder()
            .method(method)
            .uri(path)
            .extension(UserInfo::new("ann", [""; 0]))
            .body(Full::new(Bytes::new()))
            .unwrap()
    };
    for method in ["GET", "POST"] {
        assert_eq!(server.plane_service("").handle(ann(method)).await.status().as_u16(), 403);
    }
    assert_eq!(admin(&server, "GET", path, json!(null)).await.code, 404, "it is on the root plane only");
    assert_eq!(send(&server, "", None, "POST", path, json!({"all": true})).await.code, 400);
}
