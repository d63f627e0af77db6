//! Bad input: somebody is told what is wrong, everything else goes on, and nothing foreign is deleted.

use std::{collections::BTreeMap, time::Instant};

use polis_api::{
    compute::{Instance, InstanceController, WorkloadDeployment},
    k8s_openapi::{
        api::core::v1::Namespace,
        apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time},
    },
    kube::{
        Api, ResourceExt as _,
        api::{ObjectMeta, Patch, PatchParams, PostParams},
    },
    labels, names,
    networking::Network,
};
use polis_e2e::{
    draft::{DeploymentDraft, IMAGE, deployment, template, workload},
    place::{DEADLINE, Place, quiet},
    project::{Project, insist},
    seek::{deployed, instance, namespace, worked},
    staff::Role,
    world::{Side, World, scenario},
};
use serde_json::{Value, json};

use crate::chain;

/// Waits until somebody who looks at the object is told that something is wrong: by a condition that is False, or by a
/// warning among its events.
pub(crate) async fn is_told(place: &Place, kind: &str, name: &str) {
    let told = |object: &Value| {
        let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
        conditions
            .into_iter()
            .flatten()
            .any(|c| c["status"] == "False" && c["reason"].as_str().is_some_and(|r| !r.is_empty()))
    };
    let warns = |event: &Value| {
        event["type"] == "Warning"
            && event.pointer("/involvedObject/kind").and_then(Value::as_str) == Some(kind)
            && event.pointer("/involvedObject/name").and_then(Value::as_str) == Some(name)
            && event["message"].as_str().is_some_and(|message| !message.is_empty())
    };
    let deadline = Instant::now() + DEADLINE;
    let mut changes = place.eye.changes();
    loop {
        changes.mark_unchanged();
        let there = place.eye.within(&place.namespace);
        if there.iter().any(|(key, object)| {
            (key.kind == kind && key.name == name && told(object)) || (key.kind == "Event" && warns(object))
        }) {
            return;
        }
        assert!(Instant::now() < deadline, "nobody is told what is wrong with {kind} {name} in {place}");
        let _either = tokio::time::timeout(std::time::Duration::from_millis(500), changes.changed()).await;
    }
}

/// Waits until a warning about the object gives this reason.
async fn is_warned(place: &Place, kind: &str, name: &str, reason: &str) {
    let warns = |event: &Value| {
        let of = |field: &str| event.pointer(field).and_then(Value::as_str);
        of("/type") == Some("Warning")
            && of("/reason") == Some(reason)
            && (of("/involvedObject/kind"), of("/involvedObject/name")) == (Some(kind), Some(name))
    };
    let deadline = Instant::now() + DEADLINE;
    let mut changes = place.eye.changes();
    loop {
        changes.mark_unchanged();
        let there = place.eye.within(&place.namespace);
        if there.iter().any(|(key, object)| key.kind == "Event" && warns(object)) {
            return;
        }
        assert!(Instant::now() < deadline, "nobody is warned of {reason} at {kind} {name} in {place}");
        let _either = tokio::time::timeout(std::time::Duration::from_millis(500), changes.changed()).await;
    }
}

/// A deployment that is good, to see that everything else goes on.
async fn neighbour_runs(world: &World, project: &Project) {
    project.deploy(deployment("good").to("dfw")).await;
    chain::runs(world, project, "good", "dfw", 1).await;
}

#[test]
fn a_deployment_whose_workload_does_not_exist_runs_like_any_other() {
    scenario(async |world| {
        let project = world.project("bad").await;
        let mut orphan = deployment("orphan").to("dfw");
        orphan.0.spec.workload_ref.name = "never-was".into();
        project.deploy(orphan).await;
        chain::runs(world, &project, "orphan", "dfw", 1).await;
        project.here().keeps(deployed("orphan").staying(), quiet()).await;
    });
}

#[test]
fn a_deployment_without_a_city_is_told_so_and_goes_nowhere() {
    scenario(async |world| {
        let project = world.project("bad").await;
        let lost = project.deploy(deployment("lost").to("")).await;
        is_told(&project.here(), "WorkloadDeployment", "lost").await;
        neighbour_runs(world, &project).await;
        world.hub().namespace_of(&project).lacks(deployed("lost"), quiet()).await;
        for city in world.cities() {
            world.cell(city).namespace_of(&project).lacks(deployed("lost"), quiet() / 10).await;
        }
        lost.delete().await;
        project.here().is_rid_of(deployed("lost")).await;
    });
}

#[test]
fn a_deployment_to_a_city_that_nobody_serves_is_told_so_and_can_be_deleted() {
    scenario(async |world| {
        let project = world.project("bad").await;
        let far = project.deploy(deployment("far").to("atlantis")).await;
        is_told(&project.here(), "WorkloadDeployment", "far").await;
        neighbour_runs(world, &project).await;
        for city in world.cities() {
            world.cell(city).namespace_of(&project).lacks(deployed("far"), quiet() / 10).await;
        }
        far.delete().await;
        project.here().is_rid_of(deployed("far")).await;
        world.hub().namespace_of(&project).loses(deployed("far")).await;
    });
}

#[test]
fn a_workload_in_a_city_that_nobody_serves_runs_in_the_others() {
    scenario(async |world| {
        let project = world.project("bad").await;
        let web = project.run(workload("web").placed("main", &["dfw", "atlantis"], 1)).await;
        let name = web.spreads_to(&["dfw"]).await.remove(0);
        chain::runs(world, &project, &name, "dfw", 1).await;
        project
            .here()
            .has(worked("web").counting(1, 1, 1).available("True", "AvailablePlacementFound"))
            .await;
    });
}

#[test]
fn a_workload_on_a_network_that_does_not_exist_waits_for_it() {
    scenario(async |world| {
        let project = world.project("bad").await;
        let web = project.run(workload("web").placed("main", &["dfw"], 1).on_network("missing")).await;
        project.here().has(worked("web").available("False", "NetworkNotFound")).await;
        assert!(web.deployments().is_empty());
        make_network(&project, "missing").await;
        let name = web.spreads_to(&["dfw"]).await.remove(0);
        chain::runs(world, &project, &name, "dfw", 1).await;
    });
}

async fn make_network(project: &Project, name: &str) {
    let api = project.here().api::<Network>();
    let network = Network {
        metadata: ObjectMeta { name: Some(name.into()), ..Default::default() },
        ..Default::default()
    };
    insist("create the network", async || api.create(&PostParams::default(), &network).await).await;
}

#[test]
fn a_name_at_the_length_limit_runs_and_one_beyond_it_is_told_so() {
    scenario(async |world| {
        let project = world.project("bad").await;
        // Instances add a dash and an ordinal, and the name of a deployment is the value of a label: 63 in all.
        let longest = "l".repeat(61);
        let beyond = "b".repeat(64);
        project.deploy(deployment(&longest).to("dfw")).await;
        project.deploy(deployment(&beyond).to("dfw")).await;
        chain::runs(world, &project, &longest, "dfw", 1).await;
        is_told(&project.here(), "WorkloadDeployment", &beyond).await;
        neighbour_runs(world, &project).await;
    });
}

#[test]
fn a_deployment_of_another_workload_is_not_taken_over() {
    scenario(async |world| {
        let project = world.project("bad").await;
        // Without its network the workload makes nothing yet, but has the uid that its names are made of.
        let web = project.run(workload("web").placed("main", &["dfw"], 1).on_network("later")).await;
        project.here().has(worked("web").available("False", "NetworkNotFound")).await;
        let name = names::deployment("web", &web.uid, "main", "dfw");
        let foreign = project.deploy(deployment(&name).to("dfw").image("registry.test/foreign:1")).await;
        let before = chain::read(world, &project, &foreign.name).await;

        make_network(&project, "later").await;
        is_told(&project.here(), "Workload", "web").await;
        project.here().keeps(deployed(&name).with_image("registry.test/foreign:1").staying(), quiet()).await;
        let after = chain::read(world, &project, &name).await;
        assert_eq!(after.spec, before.spec);
        assert!(after.owner_references().is_empty());
    });
}

#[test]
fn a_deployment_with_a_foreign_owner_keeps_it() {
    scenario(async |world| {
        let project = world.project("bad").await;
        let owner = project.here().api::<Network>().get(polis_e2e::draft::NETWORK).await.unwrap();
        let mut draft = deployment("a").to("dfw");
        let reference = OwnerReference {
            api_version: "networking.datumapis.com/v1alpha".into(),
            kind: "Network".into(),
            name: owner.name_any(),
            uid: owner.uid().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: None,
        };
        draft.0.metadata.owner_references = Some(vec![reference.clone()]);
        project.deploy(draft).await;
        chain::runs(world, &project, "a", "dfw", 1).await;
        assert_eq!(chain::read(world, &project, "a").await.owner_references(), [reference]);
    });
}

/// A namespace on the hub as no federator makes it, with a deployment and an instance in it.
pub(crate) async fn forged(hub: &Side, name: &str, namespace_labels: &[(&str, &str)], of: &str) -> Place {
    let api: Api<Namespace> = Api::all(hub.eye.client().clone());
    let labels: BTreeMap<String, String> =
        namespace_labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let wanted = Namespace {
        metadata: ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..Default::default() },
        ..Default::default()
    };
    insist("create the namespace", async || api.create(&PostParams::default(), &wanted).await).await;
    let place = hub.namespace(name);
    let DeploymentDraft(copy) = deployment(of).labelled(labels::TOPOLOGY_CITY_CODE, "nowhere");
    let deployments = place.api::<WorkloadDeployment>();
    let copy =
        insist("create the deployment", async || deployments.create(&PostParams::default(), &copy).await)
            .await;
    let forged = mk_instance(&copy, &format!("{of}-7"), Some("7"));
    let instances = place.api::<Instance>();
    // The hub's admission looks deployments up in a cache: it refuses until it has seen the one made just now.
    let deadline = Instant::now() + DEADLINE;
    while let Err(refusal) = instances.create(&PostParams::default(), &forged).await {
        assert!(Instant::now() < deadline, "failed to create the instance: {refusal}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    place
}

/// An instance of a deployment with all the labels that one has; `index` is what its ordinal says.
fn mk_instance(owner: &WorkloadDeployment, name: &str, index: Option<&str>) -> Instance {
    let mut made = Instance::new(name, template(IMAGE).spec);
    let uid = owner.uid().unwrap_or_default();
    made.spec.controller =
        Some(InstanceController { template_hash: "made-by-hand".into(), scheduling_gates: Vec::new() });
    let told = [
        (labels::WORKLOAD_UID, &*owner.spec.workload_ref.uid),
        (labels::WORKLOAD_NAME, &*owner.spec.workload_ref.name),
        (labels::WORKLOAD_DEPLOYMENT_UID, &*uid),
        (labels::WORKLOAD_DEPLOYMENT_NAME, &*owner.name_any()),
        (labels::PLACEMENT_NAME, &*owner.spec.placement_name),
        (labels::CITY_CODE, &*owner.spec.city_code),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()));
    let mut labels = BTreeMap::from(told);
    labels.extend(index.map(|index| (labels::INSTANCE_INDEX.to_owned(), index.to_owned())));
    made.metadata.labels = Some(labels);
    made.metadata.owner_references = Some(vec![OwnerReference {
        api_version: polis_api::compute::API_VERSION.into(),
        kind: "WorkloadDeployment".into(),
        name: owner.name_any(),
        uid,
        controller: Some(true),
        block_owner_deletion: Some(true),
    }]);
    made
}

#[test]
fn a_hub_namespace_without_labels_stays_invisible_and_untouched() {
    scenario(async |world| {
        let project = world.project("bad").await;
        neighbour_runs(world, &project).await;
        let forged =
            forged(&world.hub(), &format!("ns-unlabelled-{}", std::process::id()), &[], "good").await;
        is_told(&forged, "Instance", "good-7").await;
        is_told(&forged, "WorkloadDeployment", "good").await;
        assert!(strangers(world) >= 2.0, "they are counted");
        let here = project.here();
        tokio::join!(
            forged.keeps(instance("good-7").staying(), quiet()),
            forged.keeps(deployed("good").staying(), quiet()),
            here.lacks(instance("good-7"), quiet()),
        );
        assert!(world.member(&Role::Management).is_alive());
    });
}

/// How many objects of the hub belong to no project, by the metrics of the management process.
fn strangers(world: &World) -> f64 {
    let page = world.member(&Role::Management).metrics().unwrap_or_default();
    let line = page.lines().find_map(|line| line.strip_prefix("polis_compute_hub_objects_unresolved "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
}

#[test]
fn a_hub_namespace_of_an_unknown_project_stays_invisible_and_untouched() {
    scenario(async |world| {
        let project = world.project("bad").await;
        neighbour_runs(world, &project).await;
        let labels = [
            (labels::UPSTREAM_CLUSTER_NAME, "cluster-nobody"),
            (labels::UPSTREAM_NAMESPACE, &*project.namespace),
        ];
        let forged =
            forged(&world.hub(), &format!("ns-unknown-{}", std::process::id()), &labels, "good").await;
        // Events about what has no namespace are in the namespace `default`.
        is_told(&world.hub().namespace("default"), "Namespace", &forged.namespace).await;
        assert!(strangers(world) >= 1.0, "it is counted");
        let here = project.here();
        tokio::join!(
            forged.keeps(instance("good-7").staying(), quiet()),
            forged.keeps(deployed("good").staying(), quiet()),
            here.lacks(instance("good-7"), quiet()),
        );
        neighbour_still_runs(world, &project).await;
    });
}

async fn neighbour_still_runs(world: &World, project: &Project) {
    project.deploy(deployment("late").to("ord")).await;
    chain::runs(world, project, "late", "ord", 1).await;
}

#[test]
fn a_second_hub_namespace_that_claims_to_be_of_a_project_shows_nothing_there() {
    scenario(async |world| {
        let project = world.project("bad").await;
        neighbour_runs(world, &project).await;
        let cluster = format!("cluster-{}", project.name());
        let labels =
            [(labels::UPSTREAM_CLUSTER_NAME, &*cluster), (labels::UPSTREAM_NAMESPACE, &*project.namespace)];
        let forged =
            forged(&world.hub(), &format!("ns-second-{}", std::process::id()), &labels, "good").await;
        let here = project.here();
        tokio::join!(
            forged.keeps(instance("good-7").staying(), quiet()),
            here.lacks(instance("good-7"), quiet()),
            here.keeps(instance("good-0").ready(), quiet()),
        );
    });
}

#[test]
fn a_hub_namespace_with_the_labels_of_another_project_shows_nothing_there() {
    scenario(async |world| {
        let one = world.project("bad").await;
        let other = world.twin_of(&one).await;
        one.deploy(deployment("a").to("dfw")).await;
        other.deploy(deployment("a").to("dfw").image("registry.test/other:1")).await;
        chain::runs(world, &one, "a", "dfw", 1).await;
        chain::runs(world, &other, "a", "dfw", 1).await;

        let api: Api<Namespace> = Api::all(world.hub().eye.client().clone());
        let theirs = json!({"metadata": {"labels": {labels::UPSTREAM_CLUSTER_NAME: format!("cluster-{}", other.name())}}});
        let patch = Patch::Merge(&theirs);
        insist("relabel", async || api.patch(&one.hub_namespace(), &PatchParams::default(), &patch).await)
            .await;
        // Something to say about the instance of the one, which must not be said in the other.
        let hub = world.hub().namespace_of(&one);
        let noise = json!({"metadata": {"annotations": {"suite": "noise"}}});
        let instances = hub.api::<Instance>();
        insist("touch", async || {
            instances.patch("a-0", &PatchParams::default(), &Patch::Merge(&noise)).await
        })
        .await;
        let in_one = one.here();
        let in_other = other.here();
        is_warned(&in_one, "WorkloadDeployment", "a", "HubNamespaceTaken").await;
        tokio::join!(
            in_other.keeps(instance("a-0").with_image("registry.test/other:1").ready(), quiet()),
            in_one.keeps(instance("a-0").with_image(IMAGE).ready(), quiet()),
        );

        // The next pass of the federator puts the labels right, or somebody by hand.
        let ours = json!({"metadata": {"labels": {labels::UPSTREAM_CLUSTER_NAME: format!("cluster-{}", one.name())}}});
        let patch = Patch::Merge(&ours);
        insist("relabel", async || api.patch(&one.hub_namespace(), &PatchParams::default(), &patch).await)
            .await;
        world.hub().whole().has(namespace(&one.hub_namespace())).await;
        chain::runs(world, &one, "a", "dfw", 1).await;
    });
}

#[test]
fn an_instance_without_labels_is_nobodys_and_stays() {
    scenario(async |world| {
        let project = world.project("bad").await;
        neighbour_runs(world, &project).await;
        let cell = world.cell("dfw").namespace_of(&project);
        let api = cell.api::<Instance>();
        let stranger = Instance::new("stranger", template(IMAGE).spec);
        insist("create a stranger", async || api.create(&PostParams::default(), &stranger).await).await;
        is_warned(&cell, "Instance", "stranger", "NotShownOnHub").await;
        let here = project.here();
        let hub = world.hub().namespace_of(&project);
        tokio::join!(
            cell.keeps(instance("stranger").staying(), quiet()),
            cell.keeps(instance("good-0").ready(), quiet()),
            hub.lacks(instance("stranger"), quiet()),
            here.lacks(instance("stranger"), quiet()),
        );
        assert!(world.member(&Role::Cell("dfw".to_owned())).is_alive());
        neighbour_still_runs(world, &project).await;
    });
}

#[test]
fn an_instance_of_the_deployment_with_a_wrong_or_a_taken_ordinal_goes_and_the_right_one_stays() {
    scenario(async |world| {
        let project = world.project("bad").await;
        neighbour_runs(world, &project).await;
        let cell = world.cell("dfw").namespace_of(&project);
        let owner = cell.has(deployed("good")).await;
        let right = cell.has(instance("good-0")).await.uid().unwrap_or_default();
        let api = cell.api::<Instance>();
        let strays = [("good-seven", Some("seven")), ("good-again", Some("0")), ("good-none", None)];
        for (name, index) in strays {
            let stray = mk_instance(&owner, name, index);
            insist("create a stray", async || api.create(&PostParams::default(), &stray).await).await;
        }
        for (name, _) in strays {
            cell.is_rid_of(instance(name)).await;
        }
        is_warned(&cell, "WorkloadDeployment", "good", "InstanceDeleted").await;
        cell.keeps(instance("good-0").being(&right).ready().staying(), quiet() / 2).await;
        chain::runs(world, &project, "good", "dfw", 1).await;
    });
}

#[test]
fn an_instance_that_nobody_owns_on_the_hub_is_not_taken_for_the_copy_of_its_namesake() {
    scenario(async |world| {
        let project = world.project("bad").await;
        neighbour_runs(world, &project).await;
        let hub = world.hub().namespace_of(&project);
        let owner = hub.has(deployed("good")).await;
        let mut stranger = mk_instance(&owner, "later-0", Some("0"));
        stranger.metadata.owner_references = None;
        let api = hub.api::<Instance>();
        let stranger =
            insist("create a stranger", async || api.create(&PostParams::default(), &stranger).await).await;
        let uid = stranger.uid().unwrap_or_default();
        let untouched = || {
            let spec = stranger.spec.clone();
            instance("later-0")
                .being(&uid)
                .staying()
                .that("is as it was", move |found| found.spec == spec && found.owner_references().is_empty())
        };

        let later = project.deploy(deployment("later").to("dfw")).await;
        let cell = world.cell("dfw").namespace_of(&project);
        cell.has(instance("later-0").ready()).await;
        is_warned(&cell, "Instance", "later-0", "NotShownOnHub").await;
        hub.keeps(untouched(), quiet() / 2).await;
        // Nor is it taken away with its namesake.
        later.delete().await;
        cell.is_rid_of(instance("later-0")).await;
        project.here().is_rid_of(deployed("later")).await;
        hub.keeps(untouched(), quiet() / 2).await;
    });
}

#[test]
fn a_record_that_leads_into_the_namespace_of_another_project_takes_nothing_there() {
    scenario(async |world| {
        let victim = world.project("bad").await;
        let forger = world.twin_of(&victim).await;
        victim.deploy(deployment("a").to("dfw")).await;
        chain::runs(world, &victim, "a", "dfw", 1).await;
        let machines = chain::machines(world, &victim, "dfw");

        let mut forged = deployment("a").to("dfw");
        forged.0.metadata.annotations = Some(BTreeMap::from([(
            polis_api::annotations::FEDERATION_NAMESPACE.to_owned(),
            victim.hub_namespace(),
        )]));
        forged.0.metadata.finalizers = Some(vec![polis_api::finalizers::FEDERATOR.to_owned()]);
        let forged = forger.deploy(forged).await;
        is_warned(&forger.here(), "WorkloadDeployment", "a", "RecordContradicted").await;
        forged.delete().await;
        forger.here().is_rid_of(deployed("a")).await;
        world.hub().namespace_of(&victim).keeps(deployed("a").staying(), quiet()).await;
        chain::runs(world, &victim, "a", "dfw", 1).await;
        assert_eq!(chain::machines(world, &victim, "dfw"), machines);
    });
}

#[test]
fn a_condition_of_another_writer_is_kept_and_shown() {
    scenario(async |world| {
        let project = world.project("bad").await;
        neighbour_runs(world, &project).await;
        let cell = world.cell("dfw").namespace_of(&project);
        let foreign = Condition {
            type_: "example.com/Blessed".into(),
            status: "True".into(),
            reason: "ByHand".into(),
            message: "said by somebody else".into(),
            observed_generation: None,
            last_transition_time: Time("2026-01-02T03:04:05Z".parse().unwrap()),
        };
        let api = cell.api::<Instance>();
        insist("say something", async || {
            let mut live = api.get("good-0").await?;
            live.status.get_or_insert_default().conditions.insert(0, foreign.clone());
            api.replace_status("good-0", &PostParams::default(), &live).await
        })
        .await;
        let blessed = || instance("good-0").ready().with("example.com/Blessed", "True", "ByHand");
        world.hub().namespace_of(&project).has(blessed()).await;
        project.here().has(blessed()).await;
        cell.keeps(blessed(), quiet() / 2).await;
    });
}
