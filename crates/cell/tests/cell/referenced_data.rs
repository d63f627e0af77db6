//! Referenced data: instances wait for the companions that their deployment expects.

use polis_api::compute::WorkloadDeployment;
use polis_api::k8s_openapi::ByteString;
use polis_api::k8s_openapi::api::core::v1::Secret;
use polis_api::{annotations, names};
use polis_core::referenced_data::{CompanionAction, DataObject as _, plan_companion};
use polis_testing::{PlaneExt as _, builders, eventually};
use serde_json::json;

use crate::env::{LONG, NAMESPACE, Setup, TestEnv, condition, gates, mk_deployment};

/// The companion of secret `db` with this value, and its token.
fn mk_companion(value: &str) -> (Secret, String) {
    let data = [("password".to_owned(), ByteString(value.as_bytes().into()))].into();
    let mut source = Secret { data: Some(data), ..Secret::default() };
    source.metadata.name = Some("db".into());
    source.metadata.uid = Some("uid-db".into());
    let CompanionAction::Create(companion) = plan_companion(&source, NAMESPACE, None) else { panic!() };
    let hash = companion.metadata.annotations.as_ref().unwrap()[annotations::CONTENT_HASH].clone();
    let token = Secret::KIND.token(&names::companion("Secret", "db"));
    (*companion, format!("{token}@{hash}"))
}

fn expect(deployment: &mut WorkloadDeployment, tokens: &[&str]) {
    let list = serde_json::to_string(tokens).unwrap();
    let annotations = deployment.metadata.annotations.get_or_insert_default();
    annotations.insert(annotations::EXPECTED_REFERENCED_DATA.to_owned(), list);
}

/// A deployment that refers to secret `db`, as a federator of an earlier version copies it.
fn mk_user(replicas: i32) -> WorkloadDeployment {
    let mut deployment = mk_deployment("web", replicas);
    let sandbox = deployment.spec.template.spec.runtime.sandbox.as_mut().unwrap();
    sandbox.containers[0].env_from = serde_json::from_value(json!([{"secretRef": {"name": "db"}}])).unwrap();
    deployment
}

fn of_deployment(deployment: &WorkloadDeployment) -> Option<(&str, &str)> {
    builders::condition(&deployment.status.as_ref()?.conditions, "ReferencedDataReady")
}

async fn until_reported(env: &TestEnv, status: &str, reason: &str) {
    eventually(&format!("the deployment reports {reason}"), async || {
        let deployment = env.deployment("web").await?;
        (of_deployment(&deployment) == Some((status, reason))).then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_starts_when_the_companions_of_its_deployment_have_arrived() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    let (companion, token) = mk_companion("one");
    env.deploy(&mk_user(1)).await;
    let waiting = env.until_condition("web-0", "ReferencedDataReady", "False", "Resolving").await;
    assert_eq!(gates(&waiting), ["ReferencedData"]);
    env.change("web", |deployment| expect(deployment, &[&token])).await;
    env.until_condition("web-0", "ReferencedDataReady", "False", "AwaitingPropagation").await;
    env.until_condition("web-0", "Ready", "False", "AwaitingPropagation").await;
    until_reported(&env, "False", "AwaitingPropagation").await;
    env.at_cell().create(&companion).await.unwrap();
    env.until_ready(&["web-0"]).await;
    env.until_condition("web-0", "ReferencedDataReady", "True", "Ready").await;
    until_reported(&env, "True", "Ready").await;
    let copy = env.copy("web-0").await.unwrap();
    assert_eq!(condition(&copy, "ReferencedDataReady"), Some(("True", "Ready")));
}

#[tokio::test(start_paused = true)]
async fn a_new_spec_waits_for_the_content_that_it_expects() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    let (old, old_token) = mk_companion("one");
    let (new, new_token) = mk_companion("two");
    env.at_cell().create(&old).await.unwrap();
    let mut deployment = mk_user(1);
    expect(&mut deployment, &[&old_token]);
    env.deploy(&deployment).await;
    env.until_ready(&["web-0"]).await;
    let first = env.instance("web-0").await.unwrap();
    // Newer data alone neither stops nor replaces what runs.
    env.change("web", |deployment| expect(deployment, &[&new_token])).await;
    env.idle(LONG).await;
    let same = env.instance("web-0").await.unwrap();
    assert_eq!((&same.metadata.uid, condition(&same, "Ready").unwrap().0), (&first.metadata.uid, "True"));
    assert_eq!(condition(&same, "ReferencedDataReady"), Some(("True", "Ready")));
    let restart = |deployment: &mut WorkloadDeployment| {
        let metadata = deployment.spec.template.metadata.get_or_insert_default();
        metadata.annotations.insert(annotations::RESTARTED_AT.to_owned(), "now".to_owned());
    };
    env.change("web", restart).await;
    let replaced = env.until_condition("web-0", "ReferencedDataReady", "False", "AwaitingPropagation").await;
    assert_ne!(replaced.metadata.uid, first.metadata.uid);
    assert_eq!(gates(&replaced), ["ReferencedData"]);
    let name = names::companion("Secret", "db");
    let follow = |secret: &mut Secret| {
        secret.data = new.data.clone();
        secret.metadata.annotations = new.metadata.annotations.clone();
    };
    env.at_cell().change::<Secret>((NAMESPACE, name.as_str()), follow).await;
    env.until_ready(&["web-0"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_lost_holds_new_instances_and_not_those_that_run() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    let (companion, token) = mk_companion("one");
    env.at_cell().create(&companion).await.unwrap();
    let mut deployment = mk_user(1);
    expect(&mut deployment, &[&token]);
    env.deploy(&deployment).await;
    env.until_ready(&["web-0"]).await;
    let lose = |deployment: &mut WorkloadDeployment| {
        let annotations = deployment.metadata.annotations.get_or_insert_default();
        let error = r#"{"reason":"SourceNotFound","message":"secret db does not exist"}"#;
        annotations.insert(annotations::REFERENCED_DATA_ERROR.to_owned(), error.to_owned());
        deployment.spec.scale_settings.min_replicas = 2;
    };
    env.change("web", lose).await;
    let held = env.until_condition("web-1", "Ready", "False", "SourceNotFound").await;
    assert_eq!(gates(&held), ["ReferencedData"]);
    let running = env.until_condition("web-0", "ReferencedDataReady", "False", "SourceNotFound").await;
    assert_eq!(condition(&running, "Ready").unwrap().0, "True");
    until_reported(&env, "False", "SourceNotFound").await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_without_references_has_neither_gate_nor_condition() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    env.deploy(&mk_deployment("web", 1)).await;
    env.until_ready(&["web-0"]).await;
    let instance = env.instance("web-0").await.unwrap();
    assert_eq!(condition(&instance, "ReferencedDataReady"), None);
    assert_eq!(of_deployment(&env.deployment("web").await.unwrap()), None);
}
