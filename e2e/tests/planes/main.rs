//! The behaviour of the federation alone, without processes of Polis: what the controllers rely on.
//!
//! The tests create objects directly on the hub. Karmada and the embedded federation must pass the same
//! tests.

use std::collections::BTreeMap;

use polis_api::{
    annotations,
    compute::{Instance, WorkloadDeployment, WorkloadDeploymentStatus},
    k8s_openapi::{
        api::core::v1::{ConfigMap, Namespace},
        apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time},
    },
    karmada::PropagationPolicy,
    kube::{
        Api, Resource, ResourceExt as _,
        api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
    },
    labels,
};
use polis_e2e::{
    builders::{deployment, mk_policy, mk_template},
    matchers::{Matcher, binding_of, deployment_named, instance, namespace, policy},
    project::retry,
    view::{NamespaceView, TIMEOUT, quiet_period},
    world::{World, planes_only_scenario},
};
use serde_json::{Value, json};

/// A namespace on the hub with a label.
async fn hub_namespace(world: &World, name: &str) -> NamespaceView {
    let name = format!("{name}-{}", std::process::id());
    let hub = world.hub();
    let api: Api<Namespace> = Api::all(hub.recorder.client().clone());
    let labels = BTreeMap::from([("suite".to_owned(), "by-hand".to_owned())]);
    let wanted = Namespace {
        metadata: ObjectMeta { name: Some(name.clone()), labels: Some(labels), ..Default::default() },
        ..Default::default()
    };
    retry("create the namespace", async || api.create(&PostParams::default(), &wanted).await).await;
    hub.namespace(&name)
}

/// The same namespace in a cell.
fn in_cell(world: &World, city: &str, hub_namespace: &NamespaceView) -> NamespaceView {
    world.cell(city).namespace(&hub_namespace.namespace)
}

async fn create_policy(hub_namespace: &NamespaceView, wanted: PropagationPolicy) {
    let api = hub_namespace.api::<PropagationPolicy>();
    retry("create the policy", async || api.create(&PostParams::default(), &wanted).await).await;
}

/// A deployment on the hub, with the label of its city as the federator sets it.
async fn create_deployment(hub_namespace: &NamespaceView, name: &str, city: &str) -> WorkloadDeployment {
    let wanted = deployment(name).to(city).labelled(labels::TOPOLOGY_CITY_CODE, city).0;
    let api = hub_namespace.api::<WorkloadDeployment>();
    retry("create the deployment", async || api.create(&PostParams::default(), &wanted).await).await
}

async fn change(view: &NamespaceView, name: &str, patch: Value) {
    let api = view.api::<WorkloadDeployment>();
    retry("change the deployment", async || {
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await
    })
    .await;
}

async fn remove<K>(view: &NamespaceView, name: &str)
where
    K: polis_e2e::matchers::Matchable + Resource<Scope = polis_api::k8s_openapi::NamespaceResourceScope>,
{
    let api = view.api::<K>();
    drop(retry("delete the object", async || api.delete(name, &DeleteParams::default()).await).await);
}

#[test]
fn a_matching_object_reaches_exactly_the_matching_members() {
    planes_only_scenario(async |world| {
        let hub = hub_namespace(world, "match").await;
        create_policy(&hub, mk_policy("dfw")).await;
        create_deployment(&hub, "a", "dfw").await;

        in_cell(world, "dfw", &hub)
            .eventually_has(deployment_named("a").labelled(labels::karmada::MANAGED, "true"))
            .await;
        in_cell(world, "ord", &hub).consistently_lacks(deployment_named("a"), quiet_period()).await;
    });
}

#[test]
fn a_policy_created_after_its_objects_matches_them() {
    planes_only_scenario(async |world| {
        let hub = hub_namespace(world, "late").await;
        create_deployment(&hub, "a", "ord").await;
        create_policy(&hub, mk_policy("ord")).await;

        in_cell(world, "ord", &hub).eventually_has(deployment_named("a")).await;
    });
}

#[test]
fn a_namespace_propagates_to_every_member_with_its_labels() {
    planes_only_scenario(async |world| {
        let hub = hub_namespace(world, "everywhere").await;
        for city in world.cities() {
            world
                .cell(city)
                .cluster_scope()
                .eventually_has(namespace(&hub.namespace).labelled("suite", "by-hand"))
                .await;
        }
    });
}

#[test]
fn only_spec_labels_and_annotations_propagate() {
    planes_only_scenario(async |world| {
        let hub = hub_namespace(world, "travel").await;
        create_policy(&hub, mk_policy("dfw")).await;
        let config = hub.api::<ConfigMap>();
        let owner = ConfigMap {
            metadata: ObjectMeta { name: Some("owner".into()), ..Default::default() },
            ..Default::default()
        };
        let owner =
            retry("create an owner", async || config.create(&PostParams::default(), &owner).await).await;

        let mut wanted =
            deployment("a").replicas(2).labelled(labels::TOPOLOGY_CITY_CODE, "dfw").labelled("x", "y").0;
        wanted.annotations_mut().insert("note".into(), "for the cell".into());
        wanted.metadata.finalizers = Some(vec!["suite.test/hold".into()]);
        wanted.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            name: "owner".into(),
            uid: owner.uid().unwrap_or_default(),
            ..Default::default()
        }]);
        let api = hub.api::<WorkloadDeployment>();
        let mut created =
            retry("create the deployment", async || api.create(&PostParams::default(), &wanted).await).await;
        created.status = Some(status(9));
        let uid = created.uid().unwrap_or_default();
        let created = json!({"status": status(9)});
        retry("write the status", async || {
            api.patch_status("a", &PatchParams::default(), &Patch::Merge(&created)).await
        })
        .await;

        let copy = in_cell(world, "dfw", &hub)
            .eventually_has(
                deployment_named("a")
                    .with_min_replicas(2)
                    .labelled("x", "y")
                    .annotated("note", "for the cell"),
            )
            .await;
        assert_eq!(copy.spec, wanted.spec);
        assert_eq!(copy.metadata.finalizers.unwrap_or_default(), Vec::<String>::new());
        assert_eq!(copy.metadata.owner_references.unwrap_or_default(), Vec::new());
        assert_ne!(copy.metadata.uid, Some(uid));
        assert_eq!(copy.status, None, "status propagates only from the cell to the hub");
        change(&hub, "a", json!({"metadata": {"finalizers": null}})).await;
    });
}

#[test]
fn changes_and_removals_of_spec_labels_and_annotations_propagate() {
    planes_only_scenario(async |world| {
        let hub = hub_namespace(world, "follow").await;
        let cell = in_cell(world, "dfw", &hub);
        create_policy(&hub, mk_policy("dfw")).await;
        create_deployment(&hub, "a", "dfw").await;
        cell.eventually_has(deployment_named("a")).await;

        change(
            &hub,
            "a",
            json!({"metadata": {"labels": {"x": "1"}, "annotations": {"n": "1"}},
            "spec": {"scaleSettings": {"minReplicas": 5}, "template": mk_template("registry.test/app:2")}}),
        )
        .await;
        cell.eventually_has(
            deployment_named("a")
                .with_min_replicas(5)
                .with_image("registry.test/app:2")
                .labelled("x", "1")
                .annotated("n", "1"),
        )
        .await;

        change(&hub, "a", json!({"metadata": {"labels": {"x": null}, "annotations": {"n": null}}})).await;
        cell.eventually_has(deployment_named("a").that("has neither key", |d| {
            !d.labels().contains_key("x") && !d.annotations().contains_key("n")
        }))
        .await;
    });
}

#[test]
fn a_copy_is_deleted_with_its_hub_object() {
    planes_only_scenario(async |world| {
        let hub = hub_namespace(world, "gone").await;
        let cell = in_cell(world, "dfw", &hub);
        create_policy(&hub, mk_policy("dfw")).await;
        create_deployment(&hub, "a", "dfw").await;
        cell.eventually_has(deployment_named("a")).await;

        remove::<WorkloadDeployment>(&hub, "a").await;
        cell.eventually_lacks(deployment_named("a")).await;
        hub.eventually_empty_of(&["WorkloadDeployment", "ResourceBinding"]).await;
    });
}

#[test]
fn a_copy_moves_when_the_placement_changes() {
    planes_only_scenario(async |world| {
        let hub = hub_namespace(world, "moved").await;
        create_policy(&hub, mk_policy("dfw")).await;
        create_deployment(&hub, "a", "dfw").await;
        in_cell(world, "dfw", &hub).eventually_has(deployment_named("a")).await;

        let api = hub.api::<PropagationPolicy>();
        let moved = json!({"spec": {"placement": mk_policy("ord").spec.placement}});
        let patch = Patch::Merge(&moved);
        retry("change the policy", async || api.patch("city-dfw", &PatchParams::default(), &patch).await)
            .await;
        in_cell(world, "ord", &hub).eventually_has(deployment_named("a")).await;
        in_cell(world, "dfw", &hub).eventually_lacks(deployment_named("a")).await;
    });
}

#[test]
fn copies_stay_when_their_policy_is_deleted() {
    planes_only_scenario(async |world| {
        let hub = hub_namespace(world, "left").await;
        let cell = in_cell(world, "dfw", &hub);
        create_policy(&hub, mk_policy("dfw")).await;
        create_deployment(&hub, "a", "dfw").await;
        cell.eventually_has(deployment_named("a")).await;

        remove::<PropagationPolicy>(&hub, "city-dfw").await;
        hub.until_gone(policy("city-dfw")).await;
        hub.eventually_has(
            deployment_named("a")
                .that("has no policy id", |d| !d.labels().contains_key(labels::karmada::POLICY_ID)),
        )
        .await;
        cell.consistently_has(deployment_named("a"), quiet_period()).await;
    });
}

#[test]
fn a_copy_deleted_in_the_cell_is_recreated() {
    planes_only_scenario(async |world| {
        let hub = hub_namespace(world, "back").await;
        let cell = in_cell(world, "dfw", &hub);
        create_policy(&hub, mk_policy("dfw")).await;
        create_deployment(&hub, "a", "dfw").await;
        let first = cell.eventually_has(deployment_named("a")).await.uid().unwrap_or_default();

        remove::<WorkloadDeployment>(&cell, "a").await;
        cell.eventually_has(
            deployment_named("a")
                .not_deleting()
                .that("is another object", move |d| d.uid().is_some_and(|uid| uid != first)),
        )
        .await;
    });
}

#[test]
fn a_change_in_the_cell_is_reverted_except_for_fields_of_the_cell() {
    planes_only_scenario(async |world| {
        let hub = hub_namespace(world, "reverted").await;
        let cell = in_cell(world, "dfw", &hub);
        create_policy(&hub, mk_policy("dfw")).await;
        create_deployment(&hub, "a", "dfw").await;
        cell.eventually_has(deployment_named("a")).await;

        // The current replicas, finalizers and other labels belong to the cell; the template does not.
        change(
            &cell,
            "a",
            json!({
                "metadata": {"finalizers": ["suite.test/cell"], "labels": {"cell": "own"}},
                "spec": {"replicas": 4, "template": mk_template("registry.test/forged:1")},
            }),
        )
        .await;
        let reverted = deployment_named("a")
            .with_image("registry.test/app:1")
            .with_finalizer("suite.test/cell")
            .labelled("cell", "own")
            .that("keeps its 4 replicas", |d| d.spec.replicas == Some(4));
        cell.eventually_has(reverted.clone()).await;

        // A change on the hub does not remove them.
        change(&hub, "a", json!({"spec": {"scaleSettings": {"minReplicas": 2}}})).await;
        cell.eventually_has(reverted.with_min_replicas(2)).await;
        change(&cell, "a", json!({"metadata": {"finalizers": null}})).await;
    });
}

fn status(replicas: i32) -> WorkloadDeploymentStatus {
    let condition = Condition {
        type_: "Available".into(),
        status: "True".into(),
        reason: "StableInstanceFound".into(),
        message: "set by the test".into(),
        observed_generation: Some(1),
        last_transition_time: Time("2026-01-02T03:04:05Z".parse().expect("a time")),
    };
    WorkloadDeploymentStatus {
        conditions: vec![condition],
        replicas,
        current_replicas: 0,
        desired_replicas: replicas,
        ready_replicas: 0,
        observed_generation: Some(1),
        cell: Some("dfw".into()),
        ..Default::default()
    }
}

#[test]
fn the_complete_status_of_the_only_member_is_aggregated_including_zeros() {
    planes_only_scenario(async |world| {
        let hub = hub_namespace(world, "status").await;
        let cell = in_cell(world, "dfw", &hub);
        create_policy(&hub, mk_policy("dfw")).await;
        create_deployment(&hub, "a", "dfw").await;
        cell.eventually_has(deployment_named("a")).await;

        for replicas in [3, 0] {
            let api = cell.api::<WorkloadDeployment>();
            retry("write the status", async || {
                let mut copy = api.get("a").await?;
                copy.status = Some(status(replicas));
                api.replace_status("a", &PostParams::default(), &copy).await
            })
            .await;
            let whole = status(replicas);
            hub.eventually_has(
                deployment_named("a").that(format!("has the complete status, with {replicas}"), move |d| {
                    d.status.as_ref() == Some(&whole)
                }),
            )
            .await;
        }
    });
}

#[test]
fn a_claimed_object_has_the_labels_and_annotations_of_its_policy() {
    planes_only_scenario(async |world| {
        let hub = hub_namespace(world, "claim").await;
        create_policy(&hub, mk_policy("dfw")).await;
        create_deployment(&hub, "a", "dfw").await;

        let claim = hub
            .eventually_has(policy("city-dfw").with_finalizer("karmada.io/propagation-policy-controller"))
            .await;
        let id = claim.labels()[labels::karmada::POLICY_ID].clone();
        hub.eventually_has(
            deployment_named("a")
                .labelled(labels::karmada::POLICY_ID, &id)
                .annotated(annotations::karmada::POLICY_NAME, "city-dfw")
                .annotated(annotations::karmada::POLICY_NAMESPACE, &hub.namespace),
        )
        .await;
        hub.eventually_has(binding_of("a").labelled(labels::karmada::POLICY_ID, &id)).await;
    });
}

#[test]
fn a_claim_is_exclusive_and_a_second_policy_does_not_preempt_it() {
    planes_only_scenario(async |world| {
        let hub = hub_namespace(world, "first").await;
        create_policy(&hub, mk_policy("dfw")).await;
        create_deployment(&hub, "a", "dfw").await;
        in_cell(world, "dfw", &hub).eventually_has(deployment_named("a")).await;

        let mut second = mk_policy("dfw");
        second.metadata.name = Some("a-better-one".into());
        second.spec.priority = Some(100);
        second.spec.placement = mk_policy("ord").spec.placement;
        create_policy(&hub, second).await;
        let claimed = Matcher::<WorkloadDeployment>::named("a")
            .annotated(annotations::karmada::POLICY_NAME, "city-dfw");
        hub.consistently_has(claimed, quiet_period()).await;
        in_cell(world, "ord", &hub).consistently_lacks(deployment_named("a"), quiet_period()).await;
    });
}

#[test]
fn the_hub_garbage_collects_owned_objects() {
    planes_only_scenario(async |world| {
        let hub = hub_namespace(world, "garbage").await;
        let owner = create_deployment(&hub, "a", "nowhere").await;
        let mut owned = Instance::new("a-0", mk_template("registry.test/app:1").spec);
        owned.metadata.owner_references = Some(vec![OwnerReference {
            api_version: polis_api::compute::API_VERSION.into(),
            kind: "WorkloadDeployment".into(),
            name: "a".into(),
            uid: owner.uid().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]);
        let api = hub.api::<Instance>();
        retry("create the instance", async || api.create(&PostParams::default(), &owned).await).await;
        let mut orphan = Instance::new("b-0", mk_template("registry.test/app:1").spec);
        orphan.metadata.owner_references = owned
            .metadata
            .owner_references
            .clone()
            .map(|o| vec![OwnerReference { uid: "unknown".into(), ..o[0].clone() }]);
        retry("create an orphan", async || api.create(&PostParams::default(), &orphan).await).await;

        hub.eventually_has_within(deployment_named("a"), TIMEOUT).await;
        remove::<WorkloadDeployment>(&hub, "a").await;
        hub.eventually_lacks(instance("a-0")).await;
        hub.eventually_lacks(instance("b-0")).await;
    });
}
