//! Admission of Workloads that users create and change.

use polis_api::compute::Workload;
use polis_api::kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use polis_api::kube::{self, Api};
use serde_json::{Value, json};

use crate::env::TestEnv;
use crate::manifests::{mk_machine, mk_sandbox};
use crate::proxy::Authorizer;

fn typed(workload: &Value) -> Workload {
    serde_json::from_value(workload.clone()).expect("a workload")
}

async fn create(api: &Api<Workload>, workload: &Value) -> Result<Workload, Box<kube::core::Status>> {
    status(api.create(&PostParams::default(), &typed(workload)).await)
}

async fn merge(api: &Api<Workload>, name: &str, patch: Value) -> Result<Workload, Box<kube::core::Status>> {
    status(api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await)
}

fn status<T>(result: kube::Result<T>) -> Result<T, Box<kube::core::Status>> {
    result.map_err(|error| match error {
        kube::Error::Api(status) => status,
        other => panic!("{other}"),
    })
}

/// The causes of a denial, as `field reason`.
fn causes(status: &kube::core::Status) -> Vec<String> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.map(|cause| format!("{} {}", cause.field, cause.reason)).collect()
}

#[tokio::test]
async fn a_valid_workload_of_each_runtime_is_admitted() {
    let env = TestEnv::new().await;
    let api = env.workloads("shop");
    create(&api, &mk_sandbox("web", &["dfw", "ord"])).await.expect("a sandbox is admitted");
    create(&api, &mk_machine("vm")).await.expect("a virtual machine is admitted");
}

#[tokio::test]
async fn a_missing_instance_type_is_defaulted() {
    let env = TestEnv::new().await;
    let mut workload = mk_sandbox("web", &["dfw"]);
    workload["spec"]["template"]["spec"]["runtime"]["resources"]["instanceType"] = "".into();
    let created = create(&env.workloads("shop"), &workload).await.expect("admitted");
    assert_eq!(created.spec.template.spec.runtime.resources.instance_type, "datumcloud/d1-standard-2");
}

#[tokio::test]
async fn all_errors_are_reported_at_once_with_their_fields() {
    let env = TestEnv::new().await;
    let mut workload = mk_sandbox("web", &["lhr"]);
    workload["spec"]["template"]["spec"]["runtime"]["resources"]["instanceType"] = "huge".into();
    workload["spec"]["template"]["spec"]["networkInterfaces"][0]["network"]["name"] = "green".into();
    workload["spec"]["placements"][0]["scaleSettings"]["minReplicas"] = 0.into();
    let denied = create(&env.workloads("shop"), &workload).await.expect_err("four errors");
    assert_eq!((denied.code, denied.reason.as_str()), (422, "Invalid"));
    assert!(
        denied.message.starts_with("admission webhook \"vworkload.kb.io\" denied the request: Workload.compute.datumapis.com \"web\" is invalid: ["),
        "{}",
        denied.message
    );
    assert_eq!(
        causes(&denied),
        [
            "spec.template.spec.runtime.resources.instanceType FieldValueNotSupported",
            "spec.placements[0].cityCodes[0] FieldValueNotSupported",
            "spec.placements[0].scaleSettings.minReplicas FieldValueInvalid",
            "spec.template.spec.networkInterfaces[0].network FieldValueForbidden",
        ]
    );
}

#[tokio::test]
async fn a_city_is_denied_until_it_is_bound() {
    let env = TestEnv::new().await;
    let api = env.workloads("shop");
    let denied = create(&api, &mk_sandbox("web", &["lhr"])).await.expect_err("not bound");
    assert!(denied.message.contains("\"lhr\": supported values: \"dfw\", \"ord\""), "{}", denied.message);
    env.bind("lhr").await;
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    while let Err(denied) = create(&api, &mk_sandbox("web", &["lhr"])).await {
        assert!(tokio::time::Instant::now() < deadline, "{}", denied.message);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn an_update_is_validated_by_the_same_rules() {
    let env = TestEnv::new().await;
    let api = env.workloads("shop");
    create(&api, &mk_sandbox("web", &["dfw"])).await.expect("admitted");
    let more = json!({"spec": {"placements": [{"name": "default", "cityCodes": ["dfw", "lhr"], "scaleSettings": {"minReplicas": 2000}}]}});
    let denied = merge(&api, "web", more).await.expect_err("two errors");
    assert_eq!(
        causes(&denied),
        [
            "spec.placements[0].cityCodes[1] FieldValueNotSupported",
            "spec.placements[0].scaleSettings.minReplicas FieldValueInvalid"
        ]
    );
}

#[tokio::test]
async fn each_network_is_reviewed_once_with_all_user_info() {
    let env = TestEnv::new().await;
    env.proxy.set_authorizer(Authorizer::ByExtras);
    env.proxy.take_reviews();
    let mut workload = mk_sandbox("web", &["dfw"]);
    workload["spec"]["template"]["spec"]["networkInterfaces"] = json!([
        {"network": {"name": "blue"}}, {"network": {"name": "red", "namespace": "nets"}}, {"network": {"name": "blue", "namespace": "default"}}]);
    create(&env.workloads("shop"), &workload).await.expect("allowed by the extras");
    let reviews = env.proxy.take_reviews();
    let networks: Vec<_> = reviews
        .iter()
        .map(|spec| {
            let of = &spec["resourceAttributes"];
            format!("{} {}/{} {}/{}", of["verb"], of["group"], of["resource"], of["namespace"], of["name"])
                .replace('"', "")
        })
        .collect();
    assert_eq!(
        networks,
        [
            "use networking.datumapis.com/networks default/blue",
            "use networking.datumapis.com/networks nets/red"
        ]
    );
    for spec in reviews {
        assert_eq!((&spec["user"], &spec["uid"]), (&json!("ada"), &json!("u-ada")));
        assert_eq!(spec["groups"], json!(["builders", "system:authenticated"]));
        assert_eq!(
            spec["extra"],
            json!({
                "example.com/team": ["one", "two"],
                "iam.miloapis.com/parent-api-group": ["resourcemanager.miloapis.com"],
                "iam.miloapis.com/parent-name": ["shop"],
                "iam.miloapis.com/parent-type": ["Project"],
            })
        );
    }
}

/// A workload with these sources of variables.
fn mk_user(sources: Value) -> Value {
    let mut workload = mk_sandbox("web", &["dfw"]);
    workload["spec"]["template"]["spec"]["runtime"]["sandbox"]["containers"][0]["envFrom"] = sources;
    workload
}

fn secret(name: &str) -> Value {
    json!({"secretRef": {"name": name}})
}

#[tokio::test]
async fn the_author_of_a_workload_must_have_the_right_to_read_what_it_refers_to() {
    let env = TestEnv::new().await;
    let api = env.workloads("shop");
    let large = "x".repeat(300_000);
    for (name, value) in [("open", "planted"), ("closed", "planted"), ("large", large.as_str())] {
        let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"},
            "stringData": {"key": value}});
        env.put("project:shop", &object).await;
    }
    env.proxy.take_reviews();
    let sources =
        json!([secret("closed"), secret("open"), {"configMapRef": {"name": "open", "optional": true}}]);
    let denied = create(&api, &mk_user(sources)).await.expect_err("ada may not read it");
    let at = "spec.template.spec.runtime.sandbox.containers[0].envFrom[0].secretRef";
    assert_eq!(causes(&denied), [format!("{at} FieldValueForbidden")]);
    assert!(denied.message.contains("you may not read secret closed"), "{}", denied.message);
    let reviews = env.proxy.take_reviews();
    let asked: Vec<_> = reviews.iter().map(|spec| spec["resourceAttributes"].clone()).collect();
    for (resource, name) in [("secrets", "closed"), ("secrets", "open"), ("configmaps", "open")] {
        let about = json!({"verb": "get", "group": "", "version": "v1", "resource": resource, "namespace": "default", "name": name});
        let of =
            |it: &&Value| ["verb", "resource", "namespace", "name"].iter().all(|key| it[*key] == about[*key]);
        assert_eq!(asked.iter().filter(of).count(), 1, "{resource} {name}: {asked:?}");
    }
    assert!(reviews.iter().all(|spec| spec["extra"]["example.com/team"] == json!(["one", "two"])));
    // A name that does not exist tells as much as one that the user may not read.
    let unknown = create(&api, &mk_user(json!([secret("unknown")]))).await.expect_err("no right to it");
    assert_eq!(causes(&unknown), causes(&denied));

    let denied = create(&api, &mk_user(json!([secret("large")]))).await.expect_err("too large");
    assert!(denied.message.contains("secret large has 300003 bytes"), "{}", denied.message);
    create(&api, &mk_user(json!([secret("open")]))).await.expect("ada may read it");
    env.proxy.set_authorizer(Authorizer::Broken);
    env.proxy.take_reviews();
    merge(&api, "web", json!({"spec": {"placements": [{"name": "default", "cityCodes": ["dfw"], "scaleSettings": {"minReplicas": 2}}]}}))
        .await
        .expect("an unchanged reference is not checked again");
    assert_eq!(env.proxy.take_reviews(), [Value::Null; 0]);
}

#[tokio::test]
async fn several_networks_are_reviewed_concurrently() {
    let env = TestEnv::new().await;
    env.proxy.set_authorizer(Authorizer::Together);
    env.proxy.take_reviews();
    let mut workload = mk_sandbox("web", &["dfw"]);
    workload["spec"]["template"]["spec"]["networkInterfaces"] =
        json!([{"network": {"name": "blue"}}, {"network": {"name": "red"}}]);
    create(&env.workloads("shop"), &workload).await.expect("both reviews arrive before either is answered");
}

#[tokio::test]
async fn a_failed_access_review_is_distinguished_from_a_denial() {
    let env = TestEnv::new().await;
    let api = env.workloads("shop");
    let mut workload = mk_sandbox("web", &["dfw"]);
    env.proxy.set_authorizer(Authorizer::Broken);
    let denied = create(&api, &workload).await.expect_err("the review fails");
    assert_eq!((denied.code, denied.reason.as_str()), (500, "InternalError"));
    assert!(denied.message.contains("out of order"), "{}", denied.message);
    env.proxy.set_authorizer(Authorizer::Roles);
    workload["spec"]["template"]["spec"]["networkInterfaces"][0]["network"]["name"] = "green".into();
    let denied = create(&api, &workload).await.expect_err("denied");
    assert_eq!((denied.code, denied.reason.as_str()), (422, "Invalid"));
    assert!(denied.message.contains("you may not use network default/green"), "{}", denied.message);
}

#[tokio::test]
async fn an_update_without_new_networks_needs_no_access_review() {
    let env = TestEnv::new().await;
    let api = env.workloads("shop");
    let mut workload = mk_sandbox("web", &["dfw", "ord"]);
    workload["metadata"]["finalizers"] = json!(["example.com/held"]);
    create(&api, &workload).await.expect("admitted");
    env.proxy.set_authorizer(Authorizer::Broken);
    env.proxy.take_reviews();
    merge(&api, "web", json!({"metadata": {"labels": {"a": "b"}}})).await.expect("a label");
    let fewer = json!({"spec": {"placements": [{"name": "default", "cityCodes": ["ord"], "scaleSettings": {"minReplicas": 3}}]}});
    merge(&api, "web", fewer).await.expect("scaled, and out of a city");
    api.delete("web", &DeleteParams::default()).await.expect("deletes");
    merge(&api, "web", json!({"metadata": {"finalizers": null}})).await.expect("the finalizer is removed");
    assert_eq!(env.proxy.take_reviews(), [Value::Null; 0]);
}

#[tokio::test]
async fn a_request_for_an_unknown_project_is_denied_with_the_reason() {
    let env = TestEnv::new().await;
    let denied =
        create(&env.workloads("elsewhere"), &mk_sandbox("web", &["dfw"])).await.expect_err("unknown");
    assert_eq!(denied.code, 403);
    assert!(denied.message.contains("project \"elsewhere\" is unknown"), "{}", denied.message);
}
