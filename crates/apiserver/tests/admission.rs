//! Admission policies and webhooks.

mod common;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use common::*;
use futures::future::BoxFuture;
use k8s_openapi::api::{
    admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
        ValidatingWebhookConfiguration,
    },
    core::v1::ConfigMap,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use polis_apiserver::{PlaneSpec, Server, Storage, WebhookCall, WebhookTransport, project_plane};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn mk<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object")
}

/// A webhook transport without a network. The URL path selects the response.
struct Canned;

impl WebhookTransport for Canned {
    fn post(&self, call: WebhookCall, review: Bytes) -> BoxFuture<'static, Result<Bytes, String>> {
        Box::pin(async move {
            let review: Value = serde_json::from_slice(&review).map_err(|error| error.to_string())?;
            let request = &review["request"];
            let mut response = json!({"uid": request["uid"], "allowed": true});
            match call.url.rsplit('/').next() {
                Some("label") => {
                    let patch =
                        json!([{"op": "add", "path": "/metadata/labels", "value": {"seen-by": "webhook"}}]);
                    response["patchType"] = "JSONPatch".into();
                    response["patch"] = STANDARD.encode(patch.to_string()).into();
                }
                Some("no-deletes") if request["operation"] == "DELETE" => {
                    response["allowed"] = false.into();
                    response["status"] =
                        json!({"code": 403, "reason": "Forbidden", "message": "it is precious"});
                }
                Some("down") => return Err("connection refused".into()),
                Some("never") => std::future::pending::<()>().await,
                _ => {}
            }
            Ok(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
                .to_string()
                .into())
        })
    }
}

async fn mk_admitting_server() -> (Server, Client) {
    let server = Server::builder().webhooks(Canned).build().await.expect("a server");
    server.create_plane(PlaneSpec::standalone("cell")).await.expect("a plane");
    server.install_crd_in("cell", &mk_widgets_crd()).await.expect("a definition");
    let client = mk_client(&server, "cell");
    (server, client)
}

fn mk_hook(name: &str, path: &str, operations: &[&str], extra: Value) -> Value {
    let mut hook = json!({"name": name, "clientConfig": {"url": format!("https://hooks.example.com/{path}")}, "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "rules": [{"operations": operations, "apiGroups": ["example.com"], "apiVersions": ["*"], "resources": ["widgets"]}]});
    for (key, value) in extra.as_object().expect("fields") {
        hook[key] = value.clone();
    }
    hook
}

#[tokio::test]
async fn a_mutating_webhook_changes_objects_and_a_validating_webhook_denies_requests() {
    let (_server, client) = mk_admitting_server().await;
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    mutating.create(&PostParams::default(), &mk(json!({"metadata": {"name": "m"}, "webhooks": [mk_hook("label.example.com", "label", &["CREATE"], json!({}))]}))).await.expect("a configuration");
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    validating.create(&PostParams::default(), &mk(json!({"metadata": {"name": "v"}, "webhooks": [mk_hook("deletes.example.com", "no-deletes", &["*"], json!({}))]}))).await.expect("a configuration");
    let api = widgets(&client);
    let created = api.create(&PostParams::default(), &mk_widget("a", json!({}))).await.expect("creates");
    assert_eq!(created.metadata.labels.expect("labels")["seen-by"], "webhook");
    let refused = api.delete("a", &DeleteParams::default()).await.expect_err("precious");
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert_eq!(
        (status.code, status.message.as_str()),
        (403, "admission webhook \"deletes.example.com\" denied the request: it is precious")
    );
}

#[tokio::test]
async fn the_failure_policy_determines_the_result_of_an_unreachable_webhook() {
    let (_server, client) = mk_admitting_server().await;
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let api = widgets(&client);
    for (path, policy, passes) in [
        ("down", "Fail", false),
        ("down", "Ignore", true),
        ("never", "Fail", false),
        ("never", "Ignore", true),
    ] {
        let hook = mk_hook(
            "h.example.com",
            path,
            &["CREATE"],
            json!({"failurePolicy": policy, "timeoutSeconds": 1}),
        );
        validating
            .create(&PostParams::default(), &mk(json!({"metadata": {"name": "v"}, "webhooks": [hook]})))
            .await
            .expect("a configuration");
        match api.create(&PostParams::default(), &mk_widget("a", json!({}))).await {
            Ok(_) => {
                assert!(passes, "{path} {policy}");
                api.delete("a", &DeleteParams::default()).await.expect("deletes");
            }
            Err(kube::Error::Api(status)) => {
                assert!(!passes && status.code == 500, "{path} {policy}: {status:?}")
            }
            Err(other) => panic!("{other}"),
        }
        validating.delete("v", &DeleteParams::default()).await.expect("deletes");
    }
}

async fn mk_policy(client: &Client, validations: Value, actions: Value) {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let policy = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": ["example.com"], "apiVersions": ["v1"], "resources": ["widgets"]}]}, "validations": validations}});
    policies.create(&PostParams::default(), &mk(policy)).await.expect("a policy");
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    bindings
        .create(
            &PostParams::default(),
            &mk(
                json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": actions}}),
            ),
        )
        .await
        .expect("a binding");
}

#[tokio::test]
async fn a_policy_denies_by_object_old_object_and_user() {
    let (_server, client) = mk_admitting_server().await;
    let validations = json!([
        {"expression": "object.spec.size <= 5", "message": "too large"},
        {"expression": "oldObject == null || object.spec.size >= oldObject.spec.size", "messageExpression": "'may not shrink from ' + string(oldObject.spec.size)", "reason": "Forbidden"},
        {"expression": "request.userInfo.username != 'mallory'"}
    ]);
    mk_policy(&client, validations, json!(["Deny"])).await;
    let api = widgets(&client);
    let refused =
        api.create(&PostParams::default(), &mk_widget("a", json!({"size": 9}))).await.expect_err("too large");
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
    assert!(
        status.message.ends_with("ValidatingAdmissionPolicy 'p' with binding 'b' denied request: too large"),
        "{}",
        status.message
    );
    api.create(&PostParams::default(), &mk_widget("a", json!({"size": 4}))).await.expect("fits");
    let refused = api
        .patch("a", &PatchParams::default(), &Patch::Merge(json!({"spec": {"size": 3}})))
        .await
        .expect_err("shrinks");
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert!(status.code == 403 && status.message.ends_with("may not shrink from 4"), "{status:?}");
}

#[tokio::test]
async fn a_policy_in_the_plane_of_a_catalogue_applies_to_all_planes_that_share_it() {
    let server = Server::builder().build().await.expect("a server");
    server.install_crd("projects", &mk_widgets_crd()).await.expect("installs");
    server.create_plane(PlaneSpec::project("shop", "projects")).await.expect("a plane");
    mk_policy(
        &mk_client(&server, "@projects"),
        json!([{"expression": "object.spec.size < 3"}]),
        json!(["Deny"]),
    )
    .await;
    let shop = widgets(&Client::new(server.plane_service(&project_plane("shop")), "default"));
    shop.create(&PostParams::default(), &mk_widget("small", json!({"size": 2}))).await.expect("fits");
    shop.create(&PostParams::default(), &mk_widget("large", json!({"size": 3}))).await.expect_err("refused");
    let elsewhere: Api<ConfigMap> = Api::namespaced(mk_client(&server, ""), "default");
    elsewhere
        .create(&PostParams::default(), &mk(json!({"metadata": {"name": "free"}})))
        .await
        .expect("another catalogue");
}

#[tokio::test]
async fn a_hostile_policy_fails_writes_of_its_plane_and_can_be_deleted_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("polis.redb");
    let start = || Server::builder().storage(Storage::Redb(file.clone())).build();
    let configmap = |name: &str| mk::<ConfigMap>(json!({"metadata": {"name": name}}));
    let write = PostParams::default();
    {
        let server = start().await.expect("a server");
        for plane in ["hostile", "neighbour"] {
            server.create_plane(PlaneSpec::standalone(plane)).await.expect("a plane");
        }
        let client = mk_client(&server, "hostile");
        let everything =
            json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]});
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
        let policy = json!({"metadata": {"name": "p"}, "spec": {"failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [everything]},
            "validations": [{"expression": "lists.range(2000000000).size() > 0"}]}});
        policies.create(&write, &mk(policy)).await.expect("a policy");
        let binding =
            json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client);
        bindings.create(&write, &mk(binding)).await.expect("a binding");
        assert_denied_by_cost(&server, &configmap("first")).await;
    }
    let server = eventually("the store to be closed", || async { start().await.ok() }).await;
    assert_denied_by_cost(&server, &configmap("second")).await;
    let neighbour: Api<ConfigMap> = Api::default_namespaced(mk_client(&server, "neighbour"));
    neighbour.create(&write, &configmap("free")).await.expect("another plane is not affected");
    let client = mk_client(&server, "hostile");
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    policies.delete("p", &DeleteParams::default()).await.expect("policies do not apply to policies");
    let own: Api<ConfigMap> = Api::default_namespaced(client);
    own.create(&write, &configmap("third")).await.expect("the policy is gone");
}

async fn assert_denied_by_cost(server: &Server, configmap: &ConfigMap) {
    let api: Api<ConfigMap> = Api::default_namespaced(mk_client(server, "hostile"));
    let refused = api.create(&PostParams::default(), configmap).await.expect_err("the policy fails");
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert_eq!(status.code, 422, "{status:?}");
    assert!(status.message.contains("running out of cost budget"), "{}", status.message);
    api.list(&ListParams::default()).await.expect("the server still serves");
}
