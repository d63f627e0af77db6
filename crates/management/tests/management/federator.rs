//! Federator: the record, the hub namespace, the policy of a city, the hub copy, its status, and deletion.

use std::time::Duration;

use polis_api::ObjectExt as _;
use polis_api::compute::WorkloadDeployment;
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::karmada::PropagationPolicy;
use polis_api::{annotations, finalizers, labels};
use polis_core::tenant::Tenant;
use polis_core::{metadata, policy};
use polis_testing::builders::{
    condition, mk_deployment, mk_hub_namespace, mk_member, mk_namespace, mk_template,
};
use polis_testing::{PlaneExt as _, RecordedRequest, RequestFault, RequestVerb, consistently, eventually};

use crate::env::{LONG, NAMESPACE, TestEnv};

/// The finalizer of another controller.
const HELD: &str = "example.com/held";

fn hold(meta: &mut polis_api::kube::api::ObjectMeta) {
    metadata::add_finalizer(meta, HELD);
}

fn release(meta: &mut polis_api::kube::api::ObjectMeta) {
    metadata::remove_finalizer(meta, HELD);
}

async fn policies(env: &TestEnv) -> Vec<String> {
    let policies = env.hub().all::<PropagationPolicy>().await;
    policies.iter().map(|policy| policy.name().to_owned()).collect()
}

async fn until_policies(env: &TestEnv, names: &[&str]) {
    eventually(&format!("policies {names:?}"), async || (policies(env).await == names).then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn a_deployment_is_recorded_then_its_namespace_policy_and_copy_are_written() {
    let env = TestEnv::running().await;
    env.federate("web", "dfw").await;
    env.idle(Duration::from_secs(10)).await;
    let expected = [
        "acme: update workloaddeployments/web",
        "hub: create namespaces",
        "hub: create propagationpolicies",
        "hub: create workloaddeployments",
        "hub: create rolebindings",
    ];
    assert_eq!(env.writes(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_deployment_is_recorded_while_the_hub_is_away() {
    let env = TestEnv::running().await;
    let hub = env.requests_to("hub");
    hub.fail(RequestFault::Refuse);
    env.deploy("web", "dfw").await;
    let deployment = env
        .acme()
        .eventually_has((NAMESPACE, "web"), |d: &WorkloadDeployment| d.has_finalizer(finalizers::FEDERATOR))
        .await;
    let recorded = deployment.annotation(annotations::FEDERATION_NAMESPACE);
    assert_eq!(recorded, Some(env.hub_namespace.as_str()));
    env.idle(LONG).await;
    assert_eq!(env.copy("web").await, None);
    hub.restore();
    env.until_copied("web").await;
}

#[tokio::test(start_paused = true)]
async fn the_copy_has_the_spec_and_the_city_and_its_namespace_names_the_project() {
    let env = TestEnv::running().await;
    let copy = env.federate("web", "dfw").await;
    assert_eq!(copy.spec, env.deployment("web").await.spec);
    assert_eq!(copy.label(labels::TOPOLOGY_CITY_CODE), Some("dfw"));
    assert_eq!(copy.metadata.finalizers, None);
    let namespace: Namespace = env.hub().read(&env.hub_namespace).await.unwrap();
    assert_eq!(Tenant::of(&namespace).unwrap(), Tenant::new("acme", NAMESPACE).unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_deployment_reaches_its_copy_in_one_write() {
    let env = TestEnv::running().await;
    env.federate("web", "dfw").await;
    let hub = env.requests_to("hub");
    hub.clear();
    let edit = |deployment: &mut WorkloadDeployment| deployment.spec.template = mk_template("app:2");
    env.acme().change((NAMESPACE, "web"), edit).await;
    let copy = (env.hub_namespace.as_str(), "web");
    env.hub().eventually_has(copy, |d: &WorkloadDeployment| d.spec.template == mk_template("app:2")).await;
    env.idle(Duration::from_secs(10)).await;
    assert_eq!(hub.log(), ["update workloaddeployments/web"]);
}

#[tokio::test(start_paused = true)]
async fn a_policy_lives_as_long_as_the_last_deployment_of_its_city() {
    let env = TestEnv::running().await;
    env.federate("first", "dfw").await;
    env.federate("second", "dfw").await;
    until_policies(&env, &["city-dfw"]).await;
    let uid = env.hub().all::<PropagationPolicy>().await[0].metadata.uid.clone();

    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "first")).await;
    env.acme().eventually_lacks::<WorkloadDeployment>((NAMESPACE, "first")).await;
    env.idle(LONG).await;
    assert_eq!(env.hub().all::<PropagationPolicy>().await[0].metadata.uid, uid);

    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "second")).await;
    until_policies(&env, &[]).await;
    assert_eq!(env.requests_to("hub").logged("create propagationpolicies").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_terminating_policy_is_awaited_and_never_written() {
    let env = TestEnv::running().await;
    env.federate("old", "dfw").await;
    let name = (env.hub_namespace.as_str(), "city-dfw");
    env.hub().change::<PropagationPolicy>(name, |policy| hold(&mut policy.metadata)).await;
    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "old")).await;
    let terminating: PropagationPolicy =
        env.hub().eventually_has(name, |p: &PropagationPolicy| p.is_deleting()).await;

    env.deploy("new", "dfw").await;
    consistently("the copy waits", LONG, async || env.copy("new").await.is_none()).await;
    let found: PropagationPolicy = env.hub().read(name).await.unwrap();
    assert_eq!(found.metadata.resource_version, terminating.metadata.resource_version);

    env.hub().change::<PropagationPolicy>(name, |policy| release(&mut policy.metadata)).await;
    env.until_copied("new").await;
    let created: PropagationPolicy = env.hub().read(name).await.unwrap();
    assert_ne!(created.metadata.uid, terminating.metadata.uid);
}

#[tokio::test(start_paused = true)]
async fn a_changed_policy_is_restored() {
    let env = TestEnv::running().await;
    env.federate("web", "dfw").await;
    let name = (env.hub_namespace.as_str(), "city-dfw");
    env.hub()
        .change::<PropagationPolicy>(name, |policy| policy.spec.preserve_resources_on_deletion = Some(true))
        .await;
    let desired = policy::desired(&env.hub_namespace, "dfw");
    env.hub().eventually_has(name, |found: &PropagationPolicy| found.spec == desired.spec).await;
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_moves_to_another_city_takes_its_policy_along() {
    let env = TestEnv::running().await;
    env.federate("web", "dfw").await;
    let edit = |deployment: &mut WorkloadDeployment| deployment.spec.city_code = "ord".into();
    env.acme().change((NAMESPACE, "web"), edit).await;
    until_policies(&env, &["city-ord"]).await;
}

#[tokio::test(start_paused = true)]
async fn the_second_of_two_cities_that_differ_in_case_is_reported() {
    let env = TestEnv::running().await;
    env.federate("first", "dfw").await;
    env.deploy("second", "DFW").await;
    let note = env.acme().eventually_event("second", "CityContested").await;
    assert!(note.contains("DFW") && note.contains("dfw"), "{note}");
    env.idle(LONG).await;
    assert_eq!(env.copy("second").await, None);
    assert_eq!(policies(&env).await, ["city-dfw"]);
}

#[tokio::test(start_paused = true)]
async fn a_city_that_cannot_be_a_label_is_reported_and_can_be_deleted() {
    let env = TestEnv::running().await;
    env.deploy("web", "no label!").await;
    env.acme().eventually_event("web", "CityInvalid").await;
    env.idle(LONG).await;
    assert_eq!(env.requests_to("hub").log(), [""; 0]);
    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "web")).await;
    env.acme().eventually_lacks::<WorkloadDeployment>((NAMESPACE, "web")).await;
}

#[tokio::test(start_paused = true)]
async fn a_hub_namespace_of_another_project_is_reported_and_not_used() {
    let mut env = TestEnv::new().await;
    let foreign = mk_hub_namespace(&env.hub_namespace, "globex", "payments");
    let foreign = env.hub().create(&foreign).await.unwrap();
    env.start();
    env.deploy("web", "dfw").await;
    let note = env.acme().eventually_event("web", "HubNamespaceTaken").await;
    assert!(note.contains("globex"), "{note}");
    let reported = |d: &WorkloadDeployment| is_unfederated(d, "HubNamespaceTaken");
    env.acme().eventually_has((NAMESPACE, "web"), reported).await;
    env.idle(LONG).await;
    assert_eq!(env.copy("web").await, None);
    assert_eq!(policies(&env).await, [""; 0]);
    let found: Namespace = env.hub().read(&env.hub_namespace).await.unwrap();
    assert_eq!(found.metadata.labels, foreign.metadata.labels);
}

fn is_unfederated(deployment: &WorkloadDeployment, reason: &str) -> bool {
    deployment.status.as_ref().is_some_and(|status| {
        condition(&status.conditions, "Federated") == Some(("False", reason))
            && condition(&status.conditions, "Stalled") == Some(("True", reason))
    })
}

#[tokio::test(start_paused = true)]
async fn a_terminating_hub_namespace_is_reported_until_it_is_gone() {
    let env = TestEnv::running().await;
    env.federate("web", "dfw").await;
    let held = (env.hub_namespace.as_str(), "web");
    env.hub().change::<WorkloadDeployment>(held, |copy| hold(&mut copy.metadata)).await;
    env.hub().remove::<Namespace>(&env.hub_namespace).await;
    let reported = |d: &WorkloadDeployment| is_unfederated(d, "HubNamespaceTerminating");
    env.acme().eventually_has((NAMESPACE, "web"), reported).await;
    let note = env.acme().eventually_event("web", "HubNamespaceTerminating").await;
    assert!(note.contains(&env.hub_namespace), "{note}");
    let terminating = env.copy("web").await.unwrap();
    env.hub().change::<WorkloadDeployment>(held, |copy| release(&mut copy.metadata)).await;
    let is_new = |copy: &WorkloadDeployment| copy.metadata.uid != terminating.metadata.uid;
    env.hub().eventually_has(held, is_new).await;
}

#[tokio::test(start_paused = true)]
async fn a_write_that_the_hub_refuses_is_reported_until_it_is_allowed() {
    let mut env = TestEnv::new().await;
    let hub = env.requests_to("hub");
    let is_copy = |request: &RecordedRequest| {
        request.verb == RequestVerb::Create && request.resource == "workloaddeployments"
    };
    hub.inject(RequestFault::Status(http::StatusCode::FORBIDDEN), is_copy);
    env.start();
    env.deploy("web", "dfw").await;
    let reported = |d: &WorkloadDeployment| is_unfederated(d, "HubRefused");
    let stuck: WorkloadDeployment = env.acme().eventually_has((NAMESPACE, "web"), reported).await;
    let note = env.acme().eventually_event("web", "HubRefused").await;
    assert!(note.contains("on plane hub"), "{note}");
    // The same refusal is written once.
    env.idle(LONG).await;
    let found: WorkloadDeployment = env.acme().read((NAMESPACE, "web")).await.unwrap();
    assert_eq!(found.metadata.resource_version, stuck.metadata.resource_version);
    hub.restore();
    env.until_copied("web").await;
}

#[tokio::test(start_paused = true)]
async fn a_hub_namespace_without_labels_is_seen_labelled_and_reported() {
    let mut env = TestEnv::new().await;
    env.hub().create(&mk_namespace(&env.hub_namespace)).await.unwrap();
    env.start();
    env.federate("web", "dfw").await;
    env.acme().eventually_event("web", "HubNamespaceRelabelled").await;
    let unlabel = |namespace: &mut Namespace| namespace.metadata.labels = None;
    env.hub().change::<Namespace>(&env.hub_namespace, unlabel).await;
    env.federate("other", "dfw").await;
    let found: Namespace = env.hub().read(&env.hub_namespace).await.unwrap();
    assert_eq!(Tenant::of(&found).unwrap(), Tenant::new("acme", NAMESPACE).unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_record_that_names_another_namespace_is_reported_and_not_followed() {
    let mut env = TestEnv::new().await;
    let mut deployment = mk_deployment(NAMESPACE, "web", "dfw", 1);
    deployment.metadata.annotations = Some(metadata::map([(annotations::FEDERATION_NAMESPACE, "ns-other")]));
    env.acme().create(&deployment).await.unwrap();
    env.start();
    let note = env.acme().eventually_event("web", "RecordContradicted").await;
    assert!(note.contains("ns-other"), "{note}");
    env.idle(LONG).await;
    assert_eq!(env.requests_to("hub").log(), [""; 0]);

    let correct = |deployment: &mut WorkloadDeployment| deployment.metadata.annotations = None;
    env.acme().change((NAMESPACE, "web"), correct).await;
    env.until_copied("web").await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_copy_is_restored() {
    let env = TestEnv::running().await;
    let copy = env.federate("web", "dfw").await;
    let name = (env.hub_namespace.as_str(), "web");
    env.hub()
        .change::<WorkloadDeployment>(name, |copy| {
            copy.spec.scale_settings.min_replicas = 9;
            copy.metadata.labels = Some(metadata::map([("note", "kept")]));
        })
        .await;
    let restored: WorkloadDeployment = env
        .hub()
        .eventually_has(name, |found: &WorkloadDeployment| {
            found.label(labels::TOPOLOGY_CITY_CODE) == Some("dfw")
        })
        .await;
    assert_eq!(restored.spec, copy.spec);
    assert_eq!(restored.label("note"), Some("kept"));
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_is_deleted_on_the_hub_is_created_again() {
    let env = TestEnv::running().await;
    let copy = env.federate("web", "dfw").await;
    let name = (env.hub_namespace.as_str(), "web");
    env.hub().remove::<WorkloadDeployment>(name).await;
    env.hub()
        .eventually_has(name, |found: &WorkloadDeployment| found.metadata.uid != copy.metadata.uid)
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_status_of_the_copy_reaches_the_project() {
    let env = TestEnv::running().await;
    env.federate("web", "dfw").await;
    env.report_ready("web", 2).await;
    let deployment: WorkloadDeployment = env
        .acme()
        .eventually_has((NAMESPACE, "web"), |d: &WorkloadDeployment| {
            d.status.as_ref().is_some_and(|status| status.ready_replicas == 2)
        })
        .await;
    let status = deployment.status.unwrap();
    assert_eq!(condition(&status.conditions, "Available"), Some(("True", "StableInstanceFound")));
    assert_eq!(status.observed_generation, None, "generations of the hub mean nothing in the project");
}

#[tokio::test(start_paused = true)]
async fn a_deployment_in_a_city_without_a_cell_says_so_until_one_joins() {
    let env = TestEnv::running().await;
    env.federate("web", "lhr").await;
    let reason = |d: &WorkloadDeployment| {
        d.status.as_ref().and_then(|s| condition(&s.conditions, "Available")).map(|(_, why)| why.to_owned())
    };
    env.acme()
        .eventually_has((NAMESPACE, "web"), |d: &WorkloadDeployment| {
            reason(d).as_deref() == Some("NoMatchingLocation")
        })
        .await;
    env.hub().create(&mk_member("lhr", Some("lhr"))).await.unwrap();
    env.report_ready("web", 1).await;
    env.acme()
        .eventually_has((NAMESPACE, "web"), |d: &WorkloadDeployment| {
            reason(d).as_deref() == Some("StableInstanceFound")
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn deletion_removes_the_copy_then_the_policy_then_the_finalizer() {
    let env = TestEnv::running().await;
    env.federate("web", "dfw").await;
    let before = env.writes().len();
    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "web")).await;
    env.acme().eventually_lacks::<WorkloadDeployment>((NAMESPACE, "web")).await;
    // The rights of the city's cells are withdrawn at the same time.
    let of_access = |write: &String| write.contains("rolebindings") || write.contains("namespaces");
    let writes: Vec<_> =
        env.writes().split_off(before).into_iter().filter(|write| !of_access(write)).collect();
    let expected = ["hub: delete workloaddeployments/web", "hub: delete propagationpolicies/city-dfw"];
    assert_eq!((writes.len(), &writes[..2]), (3, &expected.map(str::to_owned)[..]));
    assert!(writes[2].ends_with("workloaddeployments/web"), "the finalizer: {writes:?}");
}

#[tokio::test(start_paused = true)]
async fn deletion_waits_for_the_finalizers_of_the_copy() {
    let env = TestEnv::running().await;
    env.federate("web", "dfw").await;
    let name = (env.hub_namespace.as_str(), "web");
    env.hub().change::<WorkloadDeployment>(name, |copy| hold(&mut copy.metadata)).await;
    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "web")).await;
    env.hub().eventually_has(name, |copy: &WorkloadDeployment| copy.is_deleting()).await;
    consistently("the deployment waits", LONG, async || {
        env.deployment("web").await.has_finalizer(finalizers::FEDERATOR)
    })
    .await;
    env.hub().change::<WorkloadDeployment>(name, |copy| release(&mut copy.metadata)).await;
    env.acme().eventually_lacks::<WorkloadDeployment>((NAMESPACE, "web")).await;
    until_policies(&env, &[]).await;
}

#[tokio::test(start_paused = true)]
async fn deletion_waits_for_a_hub_that_is_away() {
    let env = TestEnv::running().await;
    env.federate("web", "dfw").await;
    let hub = env.requests_to("hub");
    hub.fail(RequestFault::Refuse);
    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "web")).await;
    env.acme().eventually_event("web", "HubCleanupFailed").await;
    consistently("the deployment waits", LONG, async || {
        env.deployment("web").await.has_finalizer(finalizers::FEDERATOR)
    })
    .await;
    assert!(env.copy("web").await.is_some());
    hub.restore();
    env.acme().eventually_lacks::<WorkloadDeployment>((NAMESPACE, "web")).await;
    assert_eq!((env.copy("web").await, policies(&env).await), (None, vec![]));
}

#[tokio::test(start_paused = true)]
async fn deletion_never_touches_the_namespace_of_another_project() {
    let env = TestEnv::running().await;
    let globex = env.hub_namespace_of("globex").await;
    env.globex().create(&mk_deployment(NAMESPACE, "web", "dfw", 1)).await.unwrap();
    let victim: WorkloadDeployment = env.hub().eventually_has((globex.as_str(), "web"), |_| true).await;
    env.federate("web", "dfw").await;
    // A user of acme changes the record so that it names the namespace of globex.
    let redirect = |deployment: &mut WorkloadDeployment| {
        let record = metadata::map([(annotations::FEDERATION_NAMESPACE, globex.as_str())]);
        metadata::merge_annotations(&mut deployment.metadata, &record, &[]);
    };
    env.acme().change((NAMESPACE, "web"), redirect).await;
    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "web")).await;
    env.acme().eventually_lacks::<WorkloadDeployment>((NAMESPACE, "web")).await;
    let note = env.acme().eventually_event("web", "RecordContradicted").await;
    assert!(note.contains(&globex), "{note}");
    env.idle(LONG).await;
    assert_eq!(env.hub().read::<WorkloadDeployment>((globex.as_str(), "web")).await, Some(victim));
}

async fn relabel_hub_namespace(env: &TestEnv, pairs: &[(&str, &str)]) {
    let relabel = |namespace: &mut Namespace| namespace.metadata.labels = Some(metadata::map(pairs.to_vec()));
    env.hub().change(&env.hub_namespace, relabel).await;
}

#[tokio::test(start_paused = true)]
async fn deletion_checks_whose_the_hub_namespace_is_and_not_only_its_name() {
    let env = TestEnv::running().await;
    env.federate("web", "dfw").await;
    // As if acme's plane showed the UID of a namespace of globex.
    let globex = [(labels::UPSTREAM_CLUSTER_NAME, "cluster-globex"), (labels::UPSTREAM_NAMESPACE, NAMESPACE)];
    relabel_hub_namespace(&env, &globex).await;
    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "web")).await;
    env.acme().eventually_lacks::<WorkloadDeployment>((NAMESPACE, "web")).await;
    let note = env.acme().eventually_event("web", "RecordContradicted").await;
    assert!(note.contains(&env.hub_namespace), "{note}");
    env.idle(LONG).await;
    assert!(env.copy("web").await.is_some(), "the copy in the namespace of globex stays");
    assert_eq!(policies(&env).await, ["city-dfw"]);
}

#[tokio::test(start_paused = true)]
async fn deletion_waits_while_the_hub_namespace_has_no_labels() {
    let mut env = TestEnv::running().await;
    env.federate("web", "dfw").await;
    env.stop().await;
    relabel_hub_namespace(&env, &[]).await;
    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "web")).await;
    env.start();
    let note = env.acme().eventually_event("web", "HubCleanupFailed").await;
    assert!(note.contains(labels::UPSTREAM_CLUSTER_NAME), "{note}");
    env.idle(LONG).await;
    assert!(env.deployment("web").await.has_finalizer(finalizers::FEDERATOR));
    assert!(env.copy("web").await.is_some());
    let acme = [(labels::UPSTREAM_CLUSTER_NAME, "cluster-acme"), (labels::UPSTREAM_NAMESPACE, NAMESPACE)];
    relabel_hub_namespace(&env, &acme).await;
    env.acme().eventually_lacks::<WorkloadDeployment>((NAMESPACE, "web")).await;
    assert_eq!(env.copy("web").await, None);
}

#[tokio::test(start_paused = true)]
async fn deployments_of_one_name_in_two_projects_are_independent() {
    let env = TestEnv::running().await;
    env.globex().create(&mk_deployment(NAMESPACE, "web", "dfw", 5)).await.unwrap();
    let globex = env.hub_namespace_of("globex").await;
    env.federate("web", "dfw").await;
    let other: WorkloadDeployment = env.hub().eventually_has((globex.as_str(), "web"), |_| true).await;
    assert_eq!(other.spec.scale_settings.min_replicas, 5);
    env.acme().remove::<WorkloadDeployment>((NAMESPACE, "web")).await;
    env.acme().eventually_lacks::<WorkloadDeployment>((NAMESPACE, "web")).await;
    env.idle(LONG).await;
    assert_eq!(env.hub().read::<WorkloadDeployment>((globex.as_str(), "web")).await, Some(other));
    assert!(env.hub().read::<PropagationPolicy>((globex.as_str(), "city-dfw")).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_hub_namespace_is_labelled_with_each_city_of_its_deployments() {
    let env = TestEnv::running().await;
    env.federate("first", "dfw").await;
    env.federate("second", "ord").await;
    let namespace: Namespace = env.hub().read(&env.hub_namespace).await.unwrap();
    let cities = namespace
        .metadata
        .labels
        .unwrap()
        .into_keys()
        .filter(|key| key.ends_with("dfw") || key.ends_with("ord"));
    assert_eq!(cities.count(), 2);
    assert_eq!(env.requests_to("hub").logged("create namespaces").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_moves_to_another_cell_is_an_event_and_its_generation_is_the_projects() {
    let env = TestEnv::running().await;
    env.federate("web", "dfw").await;
    let copy = env.until_copied("web").await;
    let revision = copy.annotation(annotations::SOURCE_REVISION).map(str::to_owned);
    for cell in ["dfw-1", "dfw-2"] {
        env.report_ready("web", 1).await;
        env.report("web", |status| {
            status.cell = Some(cell.into());
            status.observed_generation = Some(77);
            status.source_revision.clone_from(&revision);
        })
        .await;
        let shown = |deployment: &WorkloadDeployment| {
            deployment.status.as_ref().is_some_and(|status| status.cell.as_deref() == Some(cell))
        };
        let deployment = env.acme().eventually_has((NAMESPACE, "web"), shown).await;
        assert_eq!(deployment.status.unwrap().observed_generation, deployment.metadata.generation);
    }
    let note = env.acme().eventually_event("web", "DeploymentMoved").await;
    assert!(note.contains("from cell dfw-1 to cell dfw-2"), "{note}");
}
