//! Resolver: companions of config maps and secrets, their list on the hub copy, and their removal.

use polis_api::ObjectExt as _;
use polis_api::compute::WorkloadDeployment;
use polis_api::k8s_openapi::ByteString;
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use polis_api::{annotations, names};
use polis_core::metadata;
use polis_testing::builders::mk_deployment;
use polis_testing::{PlaneExt as _, eventually};
use serde_json::{Value, json};

use crate::env::{LONG, NAMESPACE, TestEnv};

pub fn mk_secret(namespace: &str, name: &str, key: &str, value: &str) -> Secret {
    let data = [(key.to_owned(), ByteString(value.as_bytes().into()))].into();
    let mut secret = Secret { data: Some(data), ..Secret::default() };
    secret.metadata.name = Some(name.into());
    secret.metadata.namespace = Some(namespace.into());
    secret
}

fn mk_map(name: &str) -> ConfigMap {
    let data = [("level".to_owned(), "debug".to_owned())].into();
    let mut map = ConfigMap { data: Some(data), ..ConfigMap::default() };
    map.metadata.name = Some(name.into());
    map.metadata.namespace = Some(NAMESPACE.into());
    map
}

/// A deployment whose container has these sources of variables.
pub fn mk_user(name: &str, city: &str, env_from: Value) -> WorkloadDeployment {
    let mut deployment = mk_deployment(NAMESPACE, name, city, 1);
    set_sources(&mut deployment, env_from);
    deployment
}

fn set_sources(deployment: &mut WorkloadDeployment, env_from: Value) {
    let sandbox = deployment.spec.template.spec.runtime.sandbox.as_mut().unwrap();
    sandbox.containers[0].env_from = serde_json::from_value(env_from).unwrap();
}

pub fn db() -> Value {
    json!([{"secretRef": {"name": "db"}}])
}

async fn secrets(env: &TestEnv) -> Vec<Secret> {
    env.hub().all_in(&env.hub_namespace).await
}

fn value(secret: &Secret) -> Option<String> {
    let value = secret.data.as_ref()?.get("password")?;
    String::from_utf8(value.0.clone()).ok()
}

/// Waits until the hub has the companion of secret `db` with this value, and the hub copy lists its hash.
pub async fn until_delivered(env: &TestEnv, deployment: &str, expected: &str) -> WorkloadDeployment {
    eventually(&format!("{deployment} lists db with {expected}"), async || {
        let companion = secrets(env).await.into_iter().find(|it| value(it).as_deref() == Some(expected))?;
        let hash = companion.annotation(annotations::CONTENT_HASH)?;
        let token = format!("Secret/{}@{hash}", companion.name());
        env.copy(deployment).await.filter(|copy| listed(copy).contains(&token))
    })
    .await
}

fn listed(copy: &WorkloadDeployment) -> Vec<String> {
    let list = copy.annotation(annotations::EXPECTED_REFERENCED_DATA);
    list.map(|list| serde_json::from_str(list).unwrap()).unwrap_or_default()
}

fn reason(copy: &WorkloadDeployment) -> Option<String> {
    let error: Value = serde_json::from_str(copy.annotation(annotations::REFERENCED_DATA_ERROR)?).unwrap();
    Some(error["reason"].as_str().unwrap().to_owned())
}

async fn until_reason(env: &TestEnv, deployment: &str, expected: Option<&str>) -> WorkloadDeployment {
    eventually(&format!("{deployment}: {expected:?}"), async || {
        env.copy(deployment).await.filter(|copy| reason(copy).as_deref() == expected)
    })
    .await
}

pub async fn until_clean(env: &TestEnv) {
    eventually("the hub has no companion", async || {
        let maps = env.hub().all_in::<ConfigMap>(&env.hub_namespace).await;
        (secrets(env).await.is_empty() && maps.is_empty()).then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn companions_are_on_the_hub_before_the_copy_that_lists_them() {
    let env = TestEnv::running().await;
    env.acme().create(&mk_secret(NAMESPACE, "db", "password", "one")).await.unwrap();
    env.acme().create(&mk_map("settings")).await.unwrap();
    let both = json!([{"secretRef": {"name": "db"}}, {"configMapRef": {"name": "settings"}}]);
    env.acme().create(&mk_user("web", "dfw", both)).await.unwrap();
    let copy = until_delivered(&env, "web", "one").await;
    assert_eq!((listed(&copy).len(), reason(&copy)), (2, None));
    env.idle(LONG).await;
    let expected = [
        "acme: update workloaddeployments/web",
        "hub: create namespaces",
        "hub: create propagationpolicies",
        "hub: create configmaps",
        "hub: create secrets",
        "hub: create workloaddeployments",
        "hub: create rolebindings",
    ];
    assert_eq!(env.writes(), expected);
    let companion = &secrets(&env).await[0];
    assert_eq!(companion.name(), names::companion("Secret", "db"));
    assert!(!env.metrics().contains("one\""));
}

#[tokio::test(start_paused = true)]
async fn deployments_share_a_companion_and_the_last_one_removes_it() {
    let env = TestEnv::running().await;
    env.acme().create(&mk_secret(NAMESPACE, "db", "password", "one")).await.unwrap();
    for (name, city) in [("web", "dfw"), ("api", "ord")] {
        env.acme().create(&mk_user(name, city, db())).await.unwrap();
        until_delivered(&env, name, "one").await;
    }
    assert_eq!(secrets(&env).await.len(), 1);
    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "web")).await;
    env.acme().eventually_lacks::<WorkloadDeployment>((NAMESPACE, "web")).await;
    env.idle(LONG).await;
    assert_eq!(secrets(&env).await.len(), 1, "api needs it");
    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "api")).await;
    env.acme().eventually_lacks::<WorkloadDeployment>((NAMESPACE, "api")).await;
    until_clean(&env).await;
    let source: Option<Secret> = env.acme().read((NAMESPACE, "db")).await;
    assert!(source.is_some(), "the source stays");
}

#[tokio::test(start_paused = true)]
async fn deployments_that_leave_at_the_same_time_do_not_keep_a_companion_for_each_other() {
    let env = TestEnv::running().await;
    env.acme().create(&mk_secret(NAMESPACE, "db", "password", "one")).await.unwrap();
    for name in ["web", "api"] {
        env.acme().create(&mk_user(name, "dfw", db())).await.unwrap();
        until_delivered(&env, name, "one").await;
        // Another controller keeps the deployment in the project after its hub copy has gone.
        let hold =
            |it: &mut WorkloadDeployment| _ = metadata::add_finalizer(&mut it.metadata, "example.com/held");
        env.acme().change((NAMESPACE, name), hold).await;
    }
    for name in ["web", "api"] {
        env.acme().remove::<WorkloadDeployment>((NAMESPACE, name)).await;
    }
    until_clean(&env).await;
    let left: Vec<WorkloadDeployment> = env.acme().all_in(NAMESPACE).await;
    assert_eq!(left.len(), 2, "both are still there");
}

#[tokio::test(start_paused = true)]
async fn a_reference_that_is_removed_from_the_template_removes_its_companion() {
    let env = TestEnv::running().await;
    env.acme().create(&mk_secret(NAMESPACE, "db", "password", "one")).await.unwrap();
    env.acme().create(&mk_user("web", "dfw", db())).await.unwrap();
    until_delivered(&env, "web", "one").await;
    let clear = |deployment: &mut WorkloadDeployment| set_sources(deployment, json!([]));
    env.acme().change((NAMESPACE, "web"), clear).await;
    until_clean(&env).await;
    let copy = env.copy("web").await.unwrap();
    assert_eq!(copy.annotation(annotations::EXPECTED_REFERENCED_DATA), None);
}

#[tokio::test(start_paused = true)]
async fn a_changed_source_changes_its_companion_and_the_list() {
    let env = TestEnv::running().await;
    env.acme().create(&mk_secret(NAMESPACE, "db", "password", "one")).await.unwrap();
    env.acme().create(&mk_user("web", "dfw", db())).await.unwrap();
    until_delivered(&env, "web", "one").await;
    let two = |secret: &mut Secret| secret.data = mk_secret("", "", "password", "two").data;
    env.acme().change((NAMESPACE, "db"), two).await;
    until_delivered(&env, "web", "two").await;
    // A touch of the metadata writes nothing.
    env.idle(LONG).await;
    let before = env.writes().len();
    let label = |secret: &mut Secret| {
        secret.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    };
    env.acme().change::<Secret>((NAMESPACE, "db"), label).await;
    env.idle(LONG).await;
    assert_eq!(env.writes().len(), before);
}

#[tokio::test(start_paused = true)]
async fn a_missing_source_is_reported_and_its_arrival_is_noticed() {
    let env = TestEnv::running().await;
    env.acme().create(&mk_user("web", "dfw", db())).await.unwrap();
    until_reason(&env, "web", Some("SourceNotFound")).await;
    env.acme().create(&mk_secret(NAMESPACE, "db", "password", "one")).await.unwrap();
    until_delivered(&env, "web", "one").await;
    until_reason(&env, "web", None).await;
    // What runs keeps its data when the source is deleted.
    env.acme().remove::<Secret>((NAMESPACE, "db")).await;
    let copy = until_reason(&env, "web", Some("SourceNotFound")).await;
    assert_eq!(listed(&copy).len(), 1);
    env.idle(LONG).await;
    assert_eq!(secrets(&env).await.len(), 1);
    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "web")).await;
    until_clean(&env).await;
}

#[tokio::test(start_paused = true)]
async fn a_companion_that_is_changed_or_deleted_by_hand_is_restored() {
    let env = TestEnv::running().await;
    env.acme().create(&mk_secret(NAMESPACE, "db", "password", "one")).await.unwrap();
    env.acme().create(&mk_user("web", "dfw", db())).await.unwrap();
    until_delivered(&env, "web", "one").await;
    let name = names::companion("Secret", "db");
    env.hub()
        .change::<Secret>((env.hub_namespace.as_str(), name.as_str()), |secret| secret.data = None)
        .await;
    until_delivered(&env, "web", "one").await;
    env.hub().remove::<Secret>((env.hub_namespace.as_str(), name.as_str())).await;
    until_delivered(&env, "web", "one").await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_no_companion_is_never_changed() {
    let mut env = TestEnv::new().await;
    let (hub_namespace, name) = (env.hub_namespace.clone(), names::companion("Secret", "db"));
    env.start();
    env.federate("first", "dfw").await; // creates the hub namespace
    let foreign = mk_secret(&hub_namespace, &name, "password", "foreign");
    env.hub().create(&foreign).await.unwrap();
    env.acme().create(&mk_secret(NAMESPACE, "db", "password", "one")).await.unwrap();
    env.acme().create(&mk_user("web", "dfw", db())).await.unwrap();
    until_reason(&env, "web", Some("SourceUnauthorized")).await;
    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "web")).await;
    env.acme().eventually_lacks::<WorkloadDeployment>((NAMESPACE, "web")).await;
    env.idle(LONG).await;
    let found: Secret = env.hub().read((hub_namespace.as_str(), name.as_str())).await.unwrap();
    assert_eq!(value(&found).as_deref(), Some("foreign"));
}

#[tokio::test(start_paused = true)]
async fn a_tenant_obtains_no_secret_of_another_by_names_annotations_or_labels() {
    let env = TestEnv::running().await;
    env.globex().create(&mk_secret(NAMESPACE, "db", "password", "planted")).await.unwrap();
    let mut theirs = mk_user("theirs", "dfw", db());
    env.globex().create(&theirs).await.unwrap();
    let globex = env.hub_namespace_of("globex").await;
    eventually("the companion of globex", async || env.hub().all_in::<Secret>(&globex).await.pop()).await;
    // An object that looks like a companion, and a deployment that claims to expect that of globex.
    let name = names::companion("Secret", "db");
    let mut forged = mk_secret(NAMESPACE, &name, "password", "own");
    forged.metadata.labels =
        Some([(polis_api::labels::REFERENCED_DATA.to_owned(), "true".to_owned())].into());
    forged.metadata.annotations = Some([(annotations::SOURCE_NAME.to_owned(), "db".to_owned())].into());
    env.acme().create(&forged).await.unwrap();
    theirs = mk_user("web", "dfw", json!([{"secretRef": {"name": &name}}]));
    let claim = format!(r#"["Secret/{globex}/{name}@0","Secret/{name}@0"]"#);
    theirs.metadata.annotations = Some([(annotations::EXPECTED_REFERENCED_DATA.to_owned(), claim)].into());
    env.acme().create(&theirs).await.unwrap();
    let copy = until_delivered(&env, "web", "own").await;
    assert_eq!(listed(&copy).len(), 1, "{copy:?}");
    env.idle(LONG).await;
    for secret in secrets(&env).await {
        assert_ne!(value(&secret).as_deref(), Some("planted"));
    }
    // A source in another namespace of the same project is none of the workload's either.
    env.acme().create(&polis_testing::builders::mk_namespace("other")).await.unwrap();
    env.acme().create(&mk_secret("other", "db", "password", "elsewhere")).await.unwrap();
    env.acme().create(&mk_user("api", "dfw", db())).await.unwrap();
    until_reason(&env, "api", Some("SourceNotFound")).await;
}

#[tokio::test(start_paused = true)]
async fn a_project_is_watched_only_while_something_refers_to_its_data() {
    let env = TestEnv::running().await;
    env.federate("plain", "dfw").await;
    env.idle(LONG).await;
    let requests = || {
        let all = env.cluster.proxy.requests().all();
        all.iter().filter(|it| it.plane == "acme" && it.resource == "secrets").count()
    };
    assert_eq!(requests(), 0, "nothing refers to a secret");
    env.acme().create(&mk_secret(NAMESPACE, "db", "password", "one")).await.unwrap();
    env.acme().create(&mk_user("web", "dfw", db())).await.unwrap();
    until_delivered(&env, "web", "one").await;
    env.idle(LONG).await;
    assert!(requests() > 0);
    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "web")).await;
    env.acme().eventually_lacks::<WorkloadDeployment>((NAMESPACE, "web")).await;
    env.idle(LONG).await;
    let before = requests();
    env.idle(LONG * 3).await;
    assert_eq!(requests(), before, "the watch has ended");
}
