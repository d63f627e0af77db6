//! What a federation does by itself, without any process of Polis: the ground that the controllers stand on.
//!
//! Objects are made by hand on the hub. Real Karmada and the embedded federation must pass the same lines.

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
    draft::{city_policy, deployment, template},
    place::{DEADLINE, Place, quiet},
    project::insist,
    seek::{Seek, binding_of, deployed, instance, namespace, policy},
    world::{World, unstaffed},
};
use serde_json::{Value, json};

/// A namespace on the hub, made by hand, with a label.
async fn home(world: &World, name: &str) -> Place {
    let name = format!("{name}-{}", std::process::id());
    let hub = world.hub();
    let api: Api<Namespace> = Api::all(hub.eye.client().clone());
    let labels = BTreeMap::from([("suite".to_owned(), "by-hand".to_owned())]);
    let wanted = Namespace {
        metadata: ObjectMeta { name: Some(name.clone()), labels: Some(labels), ..Default::default() },
        ..Default::default()
    };
    insist("create the namespace", async || api.create(&PostParams::default(), &wanted).await).await;
    hub.namespace(&name)
}

/// The same namespace in a cell.
fn there(world: &World, city: &str, home: &Place) -> Place {
    world.cell(city).namespace(&home.namespace)
}

async fn put_policy(home: &Place, wanted: PropagationPolicy) {
    let api = home.api::<PropagationPolicy>();
    insist("create the policy", async || api.create(&PostParams::default(), &wanted).await).await;
}

/// A deployment on the hub, with the label of its city as the federator sets it.
async fn put_deployment(home: &Place, name: &str, city: &str) -> WorkloadDeployment {
    let wanted = deployment(name).to(city).labelled(labels::TOPOLOGY_CITY_CODE, city).0;
    let api = home.api::<WorkloadDeployment>();
    insist("create the deployment", async || api.create(&PostParams::default(), &wanted).await).await
}

async fn change(place: &Place, name: &str, patch: Value) {
    let api = place.api::<WorkloadDeployment>();
    insist("change the deployment", async || {
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await
    })
    .await;
}

async fn remove<K>(place: &Place, name: &str)
where
    K: polis_e2e::seek::Kind + Resource<Scope = polis_api::k8s_openapi::NamespaceResourceScope>,
{
    let api = place.api::<K>();
    drop(insist("delete it", async || api.delete(name, &DeleteParams::default()).await).await);
}

#[test]
fn a_matched_object_reaches_the_members_that_match_and_no_other() {
    unstaffed(async |world| {
        let hub = home(world, "match").await;
        put_policy(&hub, city_policy("dfw")).await;
        put_deployment(&hub, "a", "dfw").await;

        there(world, "dfw", &hub).has(deployed("a").labelled(labels::karmada::MANAGED, "true")).await;
        there(world, "ord", &hub).lacks(deployed("a"), quiet()).await;
    });
}

#[test]
fn a_policy_that_comes_after_its_objects_finds_them() {
    unstaffed(async |world| {
        let hub = home(world, "late").await;
        put_deployment(&hub, "a", "ord").await;
        put_policy(&hub, city_policy("ord")).await;

        there(world, "ord", &hub).has(deployed("a")).await;
    });
}

#[test]
fn a_namespace_goes_to_every_member_with_its_labels() {
    unstaffed(async |world| {
        let hub = home(world, "everywhere").await;
        for city in world.cities() {
            world.cell(city).whole().has(namespace(&hub.namespace).labelled("suite", "by-hand")).await;
        }
    });
}

#[test]
fn spec_labels_and_annotations_travel_and_nothing_else_does() {
    unstaffed(async |world| {
        let hub = home(world, "travel").await;
        put_policy(&hub, city_policy("dfw")).await;
        let config = hub.api::<ConfigMap>();
        let owner = ConfigMap {
            metadata: ObjectMeta { name: Some("owner".into()), ..Default::default() },
            ..Default::default()
        };
        let owner =
            insist("create an owner", async || config.create(&PostParams::default(), &owner).await).await;

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
        let mut made = insist("create it", async || api.create(&PostParams::default(), &wanted).await).await;
        made.status = Some(status(9));
        let uid = made.uid().unwrap_or_default();
        let made = json!({"status": status(9)});
        insist("write its status", async || {
            api.patch_status("a", &PatchParams::default(), &Patch::Merge(&made)).await
        })
        .await;

        let copy = there(world, "dfw", &hub)
            .has(deployed("a").wanting(2).labelled("x", "y").annotated("note", "for the cell"))
            .await;
        assert_eq!(copy.spec, wanted.spec);
        assert_eq!(copy.metadata.finalizers.unwrap_or_default(), Vec::<String>::new());
        assert_eq!(copy.metadata.owner_references.unwrap_or_default(), Vec::new());
        assert_ne!(copy.metadata.uid, Some(uid));
        assert_eq!(copy.status, None, "status goes from the cell to the hub, never the other way");
        change(&hub, "a", json!({"metadata": {"finalizers": null}})).await;
    });
}

#[test]
fn a_change_of_spec_label_or_annotation_follows_and_a_key_taken_away_goes() {
    unstaffed(async |world| {
        let hub = home(world, "follow").await;
        let cell = there(world, "dfw", &hub);
        put_policy(&hub, city_policy("dfw")).await;
        put_deployment(&hub, "a", "dfw").await;
        cell.has(deployed("a")).await;

        change(
            &hub,
            "a",
            json!({"metadata": {"labels": {"x": "1"}, "annotations": {"n": "1"}},
            "spec": {"scaleSettings": {"minReplicas": 5}, "template": template("registry.test/app:2")}}),
        )
        .await;
        cell.has(
            deployed("a").wanting(5).with_image("registry.test/app:2").labelled("x", "1").annotated("n", "1"),
        )
        .await;

        change(&hub, "a", json!({"metadata": {"labels": {"x": null}, "annotations": {"n": null}}})).await;
        cell.has(deployed("a").that("has lost both keys", |d| {
            !d.labels().contains_key("x") && !d.annotations().contains_key("n")
        }))
        .await;
    });
}

#[test]
fn a_copy_goes_when_the_hub_object_goes() {
    unstaffed(async |world| {
        let hub = home(world, "gone").await;
        let cell = there(world, "dfw", &hub);
        put_policy(&hub, city_policy("dfw")).await;
        put_deployment(&hub, "a", "dfw").await;
        cell.has(deployed("a")).await;

        remove::<WorkloadDeployment>(&hub, "a").await;
        cell.loses(deployed("a")).await;
        hub.is_clear_of(&["WorkloadDeployment", "ResourceBinding"]).await;
    });
}

#[test]
fn a_copy_moves_when_the_match_moves() {
    unstaffed(async |world| {
        let hub = home(world, "moved").await;
        put_policy(&hub, city_policy("dfw")).await;
        put_deployment(&hub, "a", "dfw").await;
        there(world, "dfw", &hub).has(deployed("a")).await;

        let api = hub.api::<PropagationPolicy>();
        let elsewhere = json!({"spec": {"placement": city_policy("ord").spec.placement}});
        let patch = Patch::Merge(&elsewhere);
        insist("change the policy", async || api.patch("city-dfw", &PatchParams::default(), &patch).await)
            .await;
        there(world, "ord", &hub).has(deployed("a")).await;
        there(world, "dfw", &hub).loses(deployed("a")).await;
    });
}

#[test]
fn a_policy_that_goes_leaves_what_it_has_sent() {
    unstaffed(async |world| {
        let hub = home(world, "left").await;
        let cell = there(world, "dfw", &hub);
        put_policy(&hub, city_policy("dfw")).await;
        put_deployment(&hub, "a", "dfw").await;
        cell.has(deployed("a")).await;

        remove::<PropagationPolicy>(&hub, "city-dfw").await;
        hub.is_rid_of(policy("city-dfw")).await;
        hub.has(
            deployed("a").that("bears no claim", |d| !d.labels().contains_key(labels::karmada::POLICY_ID)),
        )
        .await;
        cell.keeps(deployed("a"), quiet()).await;
    });
}

#[test]
fn a_copy_deleted_by_hand_comes_back() {
    unstaffed(async |world| {
        let hub = home(world, "back").await;
        let cell = there(world, "dfw", &hub);
        put_policy(&hub, city_policy("dfw")).await;
        put_deployment(&hub, "a", "dfw").await;
        let first = cell.has(deployed("a")).await.uid().unwrap_or_default();

        remove::<WorkloadDeployment>(&cell, "a").await;
        cell.has(
            deployed("a")
                .staying()
                .that("is another object", move |d| d.uid().is_some_and(|uid| uid != first)),
        )
        .await;
    });
}

#[test]
fn an_edit_by_hand_is_undone_except_what_the_cell_owns() {
    unstaffed(async |world| {
        let hub = home(world, "undone").await;
        let cell = there(world, "dfw", &hub);
        put_policy(&hub, city_policy("dfw")).await;
        put_deployment(&hub, "a", "dfw").await;
        cell.has(deployed("a")).await;

        // The number of replicas wanted now, a finalizer and a label of its own belong to the cell; the template does not.
        change(
            &cell,
            "a",
            json!({
                "metadata": {"finalizers": ["suite.test/cell"], "labels": {"cell": "own"}},
                "spec": {"replicas": 4, "template": template("registry.test/forged:1")},
            }),
        )
        .await;
        let undone = deployed("a")
            .with_image("registry.test/app:1")
            .held_by("suite.test/cell")
            .labelled("cell", "own")
            .that("keeps its 4 replicas", |d| d.spec.replicas == Some(4));
        cell.has(undone.clone()).await;

        // And a change from the hub does not take them away.
        change(&hub, "a", json!({"spec": {"scaleSettings": {"minReplicas": 2}}})).await;
        cell.has(undone.wanting(2)).await;
        change(&cell, "a", json!({"metadata": {"finalizers": null}})).await;
    });
}

fn status(replicas: i32) -> WorkloadDeploymentStatus {
    let condition = Condition {
        type_: "Available".into(),
        status: "True".into(),
        reason: "StableInstanceFound".into(),
        message: "said by hand".into(),
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
fn the_whole_status_of_the_one_member_comes_back_zeros_included() {
    unstaffed(async |world| {
        let hub = home(world, "status").await;
        let cell = there(world, "dfw", &hub);
        put_policy(&hub, city_policy("dfw")).await;
        put_deployment(&hub, "a", "dfw").await;
        cell.has(deployed("a")).await;

        for replicas in [3, 0] {
            let api = cell.api::<WorkloadDeployment>();
            insist("write the status", async || {
                let mut copy = api.get("a").await?;
                copy.status = Some(status(replicas));
                api.replace_status("a", &PostParams::default(), &copy).await
            })
            .await;
            let whole = status(replicas);
            hub.has(deployed("a").that(format!("has the whole status, with {replicas}"), move |d| {
                d.status.as_ref() == Some(&whole)
            }))
            .await;
        }
    });
}

#[test]
fn a_claimed_object_bears_the_marks_of_its_policy() {
    unstaffed(async |world| {
        let hub = home(world, "claim").await;
        put_policy(&hub, city_policy("dfw")).await;
        put_deployment(&hub, "a", "dfw").await;

        let claim = hub.has(policy("city-dfw").held_by("karmada.io/propagation-policy-controller")).await;
        let id = claim.labels()[labels::karmada::POLICY_ID].clone();
        hub.has(
            deployed("a")
                .labelled(labels::karmada::POLICY_ID, &id)
                .annotated(annotations::karmada::POLICY_NAME, "city-dfw")
                .annotated(annotations::karmada::POLICY_NAMESPACE, &hub.namespace),
        )
        .await;
        hub.has(binding_of("a").labelled(labels::karmada::POLICY_ID, &id)).await;
    });
}

#[test]
fn a_claim_is_exclusive_and_a_second_policy_takes_nothing_over() {
    unstaffed(async |world| {
        let hub = home(world, "first").await;
        put_policy(&hub, city_policy("dfw")).await;
        put_deployment(&hub, "a", "dfw").await;
        there(world, "dfw", &hub).has(deployed("a")).await;

        let mut second = city_policy("dfw");
        second.metadata.name = Some("a-better-one".into());
        second.spec.priority = Some(100);
        second.spec.placement = city_policy("ord").spec.placement;
        put_policy(&hub, second).await;
        let mark =
            Seek::<WorkloadDeployment>::named("a").annotated(annotations::karmada::POLICY_NAME, "city-dfw");
        hub.keeps(mark, quiet()).await;
        there(world, "ord", &hub).lacks(deployed("a"), quiet()).await;
    });
}

#[test]
fn the_hub_collects_what_an_object_owned() {
    unstaffed(async |world| {
        let hub = home(world, "garbage").await;
        let owner = put_deployment(&hub, "a", "nowhere").await;
        let mut owned = Instance::new("a-0", template("registry.test/app:1").spec);
        owned.metadata.owner_references = Some(vec![OwnerReference {
            api_version: polis_api::compute::API_VERSION.into(),
            kind: "WorkloadDeployment".into(),
            name: "a".into(),
            uid: owner.uid().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]);
        let api = hub.api::<Instance>();
        insist("create the instance", async || api.create(&PostParams::default(), &owned).await).await;
        let mut orphan = Instance::new("b-0", template("registry.test/app:1").spec);
        orphan.metadata.owner_references = owned
            .metadata
            .owner_references
            .clone()
            .map(|o| vec![OwnerReference { uid: "nobody".into(), ..o[0].clone() }]);
        insist("create an orphan", async || api.create(&PostParams::default(), &orphan).await).await;

        hub.has_within(deployed("a"), DEADLINE).await;
        remove::<WorkloadDeployment>(&hub, "a").await;
        hub.loses(instance("a-0")).await;
        hub.loses(instance("b-0")).await;
    });
}
