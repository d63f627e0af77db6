//! Workloads as users write them.

use polis_api::compute::Workload;
use polis_api::kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use polis_api::kube::{self, Api};
use serde_json::{Value, json};

use crate::line::Authoriser;
use crate::manifests::{mk_machine, mk_sandbox};
use crate::world::World;

fn typed(workload: &Value) -> Workload {
    serde_json::from_value(workload.clone()).expect("a workload")
}

async fn create(api: &Api<Workload>, workload: &Value) -> Result<Workload, Box<kube::core::Status>> {
    status(api.create(&PostParams::default(), &typed(workload)).await)
}

async fn merge(api: &Api<Workload>, name: &str, patch: Value) -> Result<Workload, Box<kube::core::Status>> {
    status(api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await)
}

fn status<T>(outcome: kube::Result<T>) -> Result<T, Box<kube::core::Status>> {
    outcome.map_err(|error| match error {
        kube::Error::Api(status) => status,
        other => panic!("{other}"),
    })
}

/// The causes of a refusal, as `field reason`.
fn causes(status: &kube::core::Status) -> Vec<String> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.map(|cause| format!("{} {}", cause.field, cause.reason)).collect()
}

#[tokio::test]
async fn a_good_workload_of_each_runtime_is_taken() {
    let world = World::new().await;
    let api = world.workloads("shop");
    create(&api, &mk_sandbox("web", &["dfw", "ord"])).await.expect("a sandbox is taken");
    create(&api, &mk_machine("vm")).await.expect("a virtual machine is taken");
}

#[tokio::test]
async fn an_instance_type_is_filled_in() {
    let world = World::new().await;
    let mut workload = mk_sandbox("web", &["dfw"]);
    workload["spec"]["template"]["spec"]["runtime"]["resources"]["instanceType"] = "".into();
    let made = create(&world.workloads("shop"), &workload).await.expect("taken");
    assert_eq!(made.spec.template.spec.runtime.resources.instance_type, "datumcloud/d1-standard-2");
}

#[tokio::test]
async fn all_that_is_wrong_is_told_at_once_with_the_fields() {
    let world = World::new().await;
    let mut workload = mk_sandbox("web", &["lhr"]);
    workload["spec"]["template"]["spec"]["runtime"]["resources"]["instanceType"] = "huge".into();
    workload["spec"]["template"]["spec"]["networkInterfaces"][0]["network"]["name"] = "green".into();
    workload["spec"]["placements"][0]["scaleSettings"]["minReplicas"] = 0.into();
    let refused = create(&world.workloads("shop"), &workload).await.expect_err("wrong in four ways");
    assert_eq!((refused.code, refused.reason.as_str()), (422, "Invalid"));
    assert!(
        refused.message.starts_with("admission webhook \"vworkload.kb.io\" denied the request: Workload.compute.datumapis.com \"web\" is invalid: ["),
        "{}",
        refused.message
    );
    assert_eq!(
        causes(&refused),
        [
            "spec.template.spec.runtime.resources.instanceType FieldValueNotSupported",
            "spec.placements[0].cityCodes[0] FieldValueNotSupported",
            "spec.placements[0].scaleSettings.minReplicas FieldValueInvalid",
            "spec.template.spec.networkInterfaces[0].network FieldValueForbidden",
        ]
    );
}

#[tokio::test]
async fn a_city_is_refused_until_it_is_bound() {
    let world = World::new().await;
    let api = world.workloads("shop");
    let refused = create(&api, &mk_sandbox("web", &["lhr"])).await.expect_err("not bound");
    assert!(refused.message.contains("\"lhr\": supported values: \"dfw\", \"ord\""), "{}", refused.message);
    world.bind("lhr").await;
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    while let Err(refused) = create(&api, &mk_sandbox("web", &["lhr"])).await {
        assert!(tokio::time::Instant::now() < deadline, "{}", refused.message);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_change_is_judged_by_the_same_rules() {
    let world = World::new().await;
    let api = world.workloads("shop");
    create(&api, &mk_sandbox("web", &["dfw"])).await.expect("taken");
    let more = json!({"spec": {"placements": [{"name": "default", "cityCodes": ["dfw", "lhr"], "scaleSettings": {"minReplicas": 2000}}]}});
    let refused = merge(&api, "web", more).await.expect_err("wrong in two ways");
    assert_eq!(
        causes(&refused),
        [
            "spec.placements[0].cityCodes[1] FieldValueNotSupported",
            "spec.placements[0].scaleSettings.minReplicas FieldValueInvalid"
        ]
    );
}

#[tokio::test]
async fn each_network_is_asked_about_once_with_all_that_is_known_of_the_user() {
    let world = World::new().await;
    *world.line.authoriser.lock() = Authoriser::ByExtras;
    world.line.asked();
    let mut workload = mk_sandbox("web", &["dfw"]);
    workload["spec"]["template"]["spec"]["networkInterfaces"] = json!([
        {"network": {"name": "blue"}}, {"network": {"name": "red", "namespace": "nets"}}, {"network": {"name": "blue", "namespace": "default"}}]);
    create(&world.workloads("shop"), &workload).await.expect("allowed by the extras");
    let asked = world.line.asked();
    let networks: Vec<_> = asked
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
    for spec in asked {
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

#[tokio::test]
async fn several_networks_are_asked_about_at_the_same_time() {
    let world = World::new().await;
    *world.line.authoriser.lock() = Authoriser::Together;
    world.line.asked();
    let mut workload = mk_sandbox("web", &["dfw"]);
    workload["spec"]["template"]["spec"]["networkInterfaces"] =
        json!([{"network": {"name": "blue"}}, {"network": {"name": "red"}}]);
    create(&world.workloads("shop"), &workload).await.expect("each is answered once both are asked about");
}

#[tokio::test]
async fn an_authoriser_that_is_out_of_order_is_told_from_one_that_denies() {
    let world = World::new().await;
    let api = world.workloads("shop");
    let mut workload = mk_sandbox("web", &["dfw"]);
    *world.line.authoriser.lock() = Authoriser::Broken;
    let refused = create(&api, &workload).await.expect_err("cannot be asked");
    assert_eq!((refused.code, refused.reason.as_str()), (500, "InternalError"));
    assert!(refused.message.contains("out of order"), "{}", refused.message);
    *world.line.authoriser.lock() = Authoriser::Roles;
    workload["spec"]["template"]["spec"]["networkInterfaces"][0]["network"]["name"] = "green".into();
    let refused = create(&api, &workload).await.expect_err("denied");
    assert_eq!((refused.code, refused.reason.as_str()), (422, "Invalid"));
    assert!(refused.message.contains("you may not use network default/green"), "{}", refused.message);
}

#[tokio::test]
async fn what_attaches_nothing_new_asks_nobody_and_works_while_nobody_answers() {
    let world = World::new().await;
    let api = world.workloads("shop");
    let mut workload = mk_sandbox("web", &["dfw", "ord"]);
    workload["metadata"]["finalizers"] = json!(["example.com/held"]);
    create(&api, &workload).await.expect("taken");
    *world.line.authoriser.lock() = Authoriser::Broken;
    world.line.asked();
    merge(&api, "web", json!({"metadata": {"labels": {"a": "b"}}})).await.expect("a label");
    let fewer = json!({"spec": {"placements": [{"name": "default", "cityCodes": ["ord"], "scaleSettings": {"minReplicas": 3}}]}});
    merge(&api, "web", fewer).await.expect("scaled, and out of a city");
    api.delete("web", &DeleteParams::default()).await.expect("deletes");
    merge(&api, "web", json!({"metadata": {"finalizers": null}})).await.expect("released");
    assert_eq!(world.line.asked(), [Value::Null; 0]);
}

#[tokio::test]
async fn a_project_that_is_not_known_is_refused_with_a_reason() {
    let world = World::new().await;
    let refused =
        create(&world.workloads("elsewhere"), &mk_sandbox("web", &["dfw"])).await.expect_err("unknown");
    assert_eq!(refused.code, 403);
    assert!(refused.message.contains("project \"elsewhere\" is not known here"), "{}", refused.message);
}
