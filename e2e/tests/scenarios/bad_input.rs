//! Bad input: the problem is reported, everything else keeps working, and no foreign object is deleted.

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
    builders::{DeploymentBuilder, IMAGE, deployment, mk_template, workload},
    manager_process::Role,
    matchers::{deployment_named, instance, namespace, workload_named},
    project::{Project, retry},
    view::{NamespaceView, TIMEOUT, quiet_period},
    world::{PlaneView, World, scenario},
};
use serde_json::{Value, json};

use crate::rollout;

/// Waits until the problem is reported on the object: by a condition that is False, or by a Warning event.
pub(crate) async fn until_problem_reported(view: &NamespaceView, kind: &str, name: &str) {
    let is_reported = |object: &Value| {
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
    let deadline = Instant::now() + TIMEOUT;
    let mut changes = view.recorder.changes();
    loop {
        changes.mark_unchanged();
        let objects = view.recorder.in_namespace(&view.namespace);
        if objects.iter().any(|(key, object)| {
            (key.kind == kind && key.name == name && is_reported(object))
                || (key.kind == "Event" && warns(object))
        }) {
            return;
        }
        assert!(Instant::now() < deadline, "no problem of {kind} {name} is reported in {view}");
        let _changed = tokio::time::timeout(std::time::Duration::from_millis(500), changes.changed()).await;
    }
}

/// Waits for a Warning event about the object with this reason.
async fn until_warning(view: &NamespaceView, kind: &str, name: &str, reason: &str) {
    let warns = |event: &Value| {
        let of = |field: &str| event.pointer(field).and_then(Value::as_str);
        of("/type") == Some("Warning")
            && of("/reason") == Some(reason)
            && (of("/involvedObject/kind"), of("/involvedObject/name")) == (Some(kind), Some(name))
    };
    let deadline = Instant::now() + TIMEOUT;
    let mut changes = view.recorder.changes();
    loop {
        changes.mark_unchanged();
        let objects = view.recorder.in_namespace(&view.namespace);
        if objects.iter().any(|(key, object)| key.kind == "Event" && warns(object)) {
            return;
        }
        assert!(Instant::now() < deadline, "no warning {reason} about {kind} {name} in {view}");
        let _changed = tokio::time::timeout(std::time::Duration::from_millis(500), changes.changed()).await;
    }
}

/// Runs a valid deployment, to show that everything else keeps working.
async fn valid_deployment_runs(world: &World, project: &Project) {
    project.deploy(deployment("good").to("dfw")).await;
    rollout::until_running(world, project, "good", "dfw", 1).await;
}

#[test]
fn a_deployment_whose_workload_does_not_exist_runs() {
    scenario(async |world| {
        let project = world.project("bad").await;
        let mut orphan = deployment("orphan").to("dfw");
        orphan.0.spec.workload_ref.name = "missing".into();
        project.deploy(orphan).await;
        rollout::until_running(world, &project, "orphan", "dfw", 1).await;
        project.view().consistently_has(deployment_named("orphan").not_deleting(), quiet_period()).await;
    });
}

#[test]
fn a_deployment_without_a_city_reports_it_and_is_not_federated() {
    scenario(async |world| {
        let project = world.project("bad").await;
        let lost = project.deploy(deployment("lost").to("")).await;
        until_problem_reported(&project.view(), "WorkloadDeployment", "lost").await;
        valid_deployment_runs(world, &project).await;
        world.hub().namespace_of(&project).consistently_lacks(deployment_named("lost"), quiet_period()).await;
        for city in world.cities() {
            world
                .cell(city)
                .namespace_of(&project)
                .consistently_lacks(deployment_named("lost"), quiet_period() / 10)
                .await;
        }
        lost.delete().await;
        project.view().until_gone(deployment_named("lost")).await;
    });
}

#[test]
fn a_deployment_to_an_unserved_city_reports_it_and_can_be_deleted() {
    scenario(async |world| {
        let project = world.project("bad").await;
        let far = project.deploy(deployment("far").to("atlantis")).await;
        until_problem_reported(&project.view(), "WorkloadDeployment", "far").await;
        valid_deployment_runs(world, &project).await;
        for city in world.cities() {
            world
                .cell(city)
                .namespace_of(&project)
                .consistently_lacks(deployment_named("far"), quiet_period() / 10)
                .await;
        }
        far.delete().await;
        project.view().until_gone(deployment_named("far")).await;
        world.hub().namespace_of(&project).eventually_lacks(deployment_named("far")).await;
    });
}

#[test]
fn a_workload_with_an_unserved_city_runs_in_the_others() {
    scenario(async |world| {
        let project = world.project("bad").await;
        let web = project.run(workload("web").placed("main", &["dfw", "atlantis"], 1)).await;
        let name = web.until_deployed_to(&["dfw"]).await.remove(0);
        rollout::until_running(world, &project, &name, "dfw", 1).await;
        project
            .view()
            .eventually_has(
                workload_named("web").with_counts(1, 1, 1).available("True", "AvailablePlacementFound"),
            )
            .await;
    });
}

#[test]
fn a_workload_on_a_network_that_does_not_exist_waits_for_it() {
    scenario(async |world| {
        let project = world.project("bad").await;
        let web = project.run(workload("web").placed("main", &["dfw"], 1).on_network("missing")).await;
        project.view().eventually_has(workload_named("web").available("False", "NetworkNotFound")).await;
        assert!(web.deployments().is_empty());
        make_network(&project, "missing").await;
        let name = web.until_deployed_to(&["dfw"]).await.remove(0);
        rollout::until_running(world, &project, &name, "dfw", 1).await;
    });
}

async fn make_network(project: &Project, name: &str) {
    let api = project.view().api::<Network>();
    let network = Network {
        metadata: ObjectMeta { name: Some(name.into()), ..Default::default() },
        ..Default::default()
    };
    retry("create the network", async || api.create(&PostParams::default(), &network).await).await;
}

#[test]
fn a_name_at_the_length_limit_runs_and_a_longer_one_is_reported() {
    scenario(async |world| {
        let project = world.project("bad").await;
        // An instance name adds a dash and an ordinal, and the deployment name is a label value: at most 63
        // characters.
        let longest = "l".repeat(61);
        let too_long = "b".repeat(64);
        project.deploy(deployment(&longest).to("dfw")).await;
        project.deploy(deployment(&too_long).to("dfw")).await;
        rollout::until_running(world, &project, &longest, "dfw", 1).await;
        until_problem_reported(&project.view(), "WorkloadDeployment", &too_long).await;
        valid_deployment_runs(world, &project).await;
    });
}

#[test]
fn a_deployment_of_another_workload_is_not_adopted() {
    scenario(async |world| {
        let project = world.project("bad").await;
        // Without its network the workload creates nothing yet, but has the uid that its names derive from.
        let web = project.run(workload("web").placed("main", &["dfw"], 1).on_network("later")).await;
        project.view().eventually_has(workload_named("web").available("False", "NetworkNotFound")).await;
        let name = names::deployment("web", &web.uid, "main", "dfw");
        let foreign = project.deploy(deployment(&name).to("dfw").image("registry.test/foreign:1")).await;
        let before = rollout::deployment(world, &project, &foreign.name).await;

        make_network(&project, "later").await;
        until_problem_reported(&project.view(), "Workload", "web").await;
        project
            .view()
            .consistently_has(
                deployment_named(&name).with_image("registry.test/foreign:1").not_deleting(),
                quiet_period(),
            )
            .await;
        let after = rollout::deployment(world, &project, &name).await;
        assert_eq!(after.spec, before.spec);
        assert!(after.owner_references().is_empty());
    });
}

#[test]
fn a_deployment_keeps_its_foreign_owner() {
    scenario(async |world| {
        let project = world.project("bad").await;
        let owner = project.view().api::<Network>().get(polis_e2e::builders::NETWORK).await.unwrap();
        let mut owned = deployment("a").to("dfw");
        let reference = OwnerReference {
            api_version: "networking.datumapis.com/v1alpha".into(),
            kind: "Network".into(),
            name: owner.name_any(),
            uid: owner.uid().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: None,
        };
        owned.0.metadata.owner_references = Some(vec![reference.clone()]);
        project.deploy(owned).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
        assert_eq!(rollout::deployment(world, &project, "a").await.owner_references(), [reference]);
    });
}

/// A namespace on the hub that the federator did not create, with a deployment and an instance in it.
pub(crate) async fn forged(
    hub: &PlaneView,
    name: &str,
    namespace_labels: &[(&str, &str)],
    of: &str,
) -> NamespaceView {
    let api: Api<Namespace> = Api::all(hub.recorder.client().clone());
    let labels: BTreeMap<String, String> =
        namespace_labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let wanted = Namespace {
        metadata: ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..Default::default() },
        ..Default::default()
    };
    retry("create the namespace", async || api.create(&PostParams::default(), &wanted).await).await;
    let view = hub.namespace(name);
    let DeploymentBuilder(copy) = deployment(of).labelled(labels::TOPOLOGY_CITY_CODE, "nowhere");
    let deployments = view.api::<WorkloadDeployment>();
    let copy =
        retry("create the deployment", async || deployments.create(&PostParams::default(), &copy).await)
            .await;
    let forged = mk_instance(&copy, &format!("{of}-7"), Some("7"));
    let instances = view.api::<Instance>();
    // The hub's admission reads deployments from a cache, and rejects the instance until the cache has its
    // deployment.
    let deadline = Instant::now() + TIMEOUT;
    while let Err(refusal) = instances.create(&PostParams::default(), &forged).await {
        assert!(Instant::now() < deadline, "failed to create the instance: {refusal}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    view
}

/// An instance of a deployment with all labels; `index` is the value of the ordinal label.
fn mk_instance(owner: &WorkloadDeployment, name: &str, index: Option<&str>) -> Instance {
    let mut instance = Instance::new(name, mk_template(IMAGE).spec);
    let uid = owner.uid().unwrap_or_default();
    instance.spec.controller =
        Some(InstanceController { template_hash: "made-by-hand".into(), scheduling_gates: Vec::new() });
    let label_values = [
        (labels::WORKLOAD_UID, &*owner.spec.workload_ref.uid),
        (labels::WORKLOAD_NAME, &*owner.spec.workload_ref.name),
        (labels::WORKLOAD_DEPLOYMENT_UID, &*uid),
        (labels::WORKLOAD_DEPLOYMENT_NAME, &*owner.name_any()),
        (labels::PLACEMENT_NAME, &*owner.spec.placement_name),
        (labels::CITY_CODE, &*owner.spec.city_code),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()));
    let mut labels = BTreeMap::from(label_values);
    labels.extend(index.map(|index| (labels::INSTANCE_INDEX.to_owned(), index.to_owned())));
    instance.metadata.labels = Some(labels);
    instance.metadata.owner_references = Some(vec![OwnerReference {
        api_version: polis_api::compute::API_VERSION.into(),
        kind: "WorkloadDeployment".into(),
        name: owner.name_any(),
        uid,
        controller: Some(true),
        block_owner_deletion: Some(true),
    }]);
    instance
}

#[test]
fn a_hub_namespace_without_labels_is_not_projected_and_not_touched() {
    scenario(async |world| {
        let project = world.project("bad").await;
        valid_deployment_runs(world, &project).await;
        let forged =
            forged(&world.hub(), &format!("ns-unlabelled-{}", std::process::id()), &[], "good").await;
        until_problem_reported(&forged, "Instance", "good-7").await;
        until_problem_reported(&forged, "WorkloadDeployment", "good").await;
        assert!(unresolved_objects(world) >= 2.0, "both are counted");
        let project_view = project.view();
        tokio::join!(
            forged.consistently_has(instance("good-7").not_deleting(), quiet_period()),
            forged.consistently_has(deployment_named("good").not_deleting(), quiet_period()),
            project_view.consistently_lacks(instance("good-7"), quiet_period()),
        );
        assert!(world.process(&Role::Management).is_alive());
    });
}

/// The number of hub objects without a project, from the metrics of the management process.
fn unresolved_objects(world: &World) -> f64 {
    let page = world.process(&Role::Management).metrics().unwrap_or_default();
    let line = page.lines().find_map(|line| line.strip_prefix("polis_compute_hub_objects_unresolved "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
}

#[test]
fn a_hub_namespace_of_an_unknown_project_is_not_projected_and_not_touched() {
    scenario(async |world| {
        let project = world.project("bad").await;
        valid_deployment_runs(world, &project).await;
        let labels = [
            (labels::UPSTREAM_CLUSTER_NAME, "cluster-unknown"),
            (labels::UPSTREAM_NAMESPACE, &*project.namespace),
        ];
        let forged =
            forged(&world.hub(), &format!("ns-unknown-{}", std::process::id()), &labels, "good").await;
        // Events about cluster-scoped objects are in the namespace `default`.
        until_problem_reported(&world.hub().namespace("default"), "Namespace", &forged.namespace).await;
        assert!(unresolved_objects(world) >= 1.0, "it is counted");
        let project_view = project.view();
        tokio::join!(
            forged.consistently_has(instance("good-7").not_deleting(), quiet_period()),
            forged.consistently_has(deployment_named("good").not_deleting(), quiet_period()),
            project_view.consistently_lacks(instance("good-7"), quiet_period()),
        );
        another_deployment_runs(world, &project).await;
    });
}

async fn another_deployment_runs(world: &World, project: &Project) {
    project.deploy(deployment("late").to("ord")).await;
    rollout::until_running(world, project, "late", "ord", 1).await;
}

#[test]
fn a_second_hub_namespace_of_a_project_is_not_projected() {
    scenario(async |world| {
        let project = world.project("bad").await;
        valid_deployment_runs(world, &project).await;
        let cluster = format!("cluster-{}", project.name());
        let labels =
            [(labels::UPSTREAM_CLUSTER_NAME, &*cluster), (labels::UPSTREAM_NAMESPACE, &*project.namespace)];
        let forged =
            forged(&world.hub(), &format!("ns-second-{}", std::process::id()), &labels, "good").await;
        let project_view = project.view();
        tokio::join!(
            forged.consistently_has(instance("good-7").not_deleting(), quiet_period()),
            project_view.consistently_lacks(instance("good-7"), quiet_period()),
            project_view.consistently_has(instance("good-0").ready(), quiet_period()),
        );
    });
}

#[test]
fn a_hub_namespace_relabelled_to_another_project_is_not_projected_there() {
    scenario(async |world| {
        let one = world.project("bad").await;
        let other = world.twin_of(&one).await;
        one.deploy(deployment("a").to("dfw")).await;
        other.deploy(deployment("a").to("dfw").image("registry.test/other:1")).await;
        rollout::until_running(world, &one, "a", "dfw", 1).await;
        rollout::until_running(world, &other, "a", "dfw", 1).await;

        let api: Api<Namespace> = Api::all(world.hub().recorder.client().clone());
        let of_other = json!({"metadata": {"labels": {labels::UPSTREAM_CLUSTER_NAME: format!("cluster-{}", other.name())}}});
        let patch = Patch::Merge(&of_other);
        retry("relabel the namespace", async || {
            api.patch(&one.hub_namespace(), &PatchParams::default(), &patch).await
        })
        .await;
        // A change of the first project's instance, which must not reach the other project.
        let hub = world.hub().namespace_of(&one);
        let annotated = json!({"metadata": {"annotations": {"suite": "changed"}}});
        let instances = hub.api::<Instance>();
        retry("annotate the instance", async || {
            instances.patch("a-0", &PatchParams::default(), &Patch::Merge(&annotated)).await
        })
        .await;
        let in_one = one.view();
        let in_other = other.view();
        until_warning(&in_one, "WorkloadDeployment", "a", "HubNamespaceTaken").await;
        tokio::join!(
            in_other.consistently_has(
                instance("a-0").with_image("registry.test/other:1").ready(),
                quiet_period()
            ),
            in_one.consistently_has(instance("a-0").with_image(IMAGE).ready(), quiet_period()),
        );

        // The next reconcile of the federator or an operator corrects the label; here the test does.
        let of_one = json!({"metadata": {"labels": {labels::UPSTREAM_CLUSTER_NAME: format!("cluster-{}", one.name())}}});
        let patch = Patch::Merge(&of_one);
        retry("relabel the namespace", async || {
            api.patch(&one.hub_namespace(), &PatchParams::default(), &patch).await
        })
        .await;
        world.hub().cluster_scope().eventually_has(namespace(&one.hub_namespace())).await;
        rollout::until_running(world, &one, "a", "dfw", 1).await;
    });
}

#[test]
fn an_instance_without_labels_is_not_federated_and_stays() {
    scenario(async |world| {
        let project = world.project("bad").await;
        valid_deployment_runs(world, &project).await;
        let cell = world.cell("dfw").namespace_of(&project);
        let api = cell.api::<Instance>();
        let foreign = Instance::new("foreign", mk_template(IMAGE).spec);
        retry("create the foreign instance", async || api.create(&PostParams::default(), &foreign).await)
            .await;
        until_warning(&cell, "Instance", "foreign", "NotShownOnHub").await;
        let project_view = project.view();
        let hub = world.hub().namespace_of(&project);
        tokio::join!(
            cell.consistently_has(instance("foreign").not_deleting(), quiet_period()),
            cell.consistently_has(instance("good-0").ready(), quiet_period()),
            hub.consistently_lacks(instance("foreign"), quiet_period()),
            project_view.consistently_lacks(instance("foreign"), quiet_period()),
        );
        assert!(world.process(&Role::Cell("dfw".to_owned())).is_alive());
        another_deployment_runs(world, &project).await;
    });
}

#[test]
fn an_instance_with_an_invalid_or_duplicate_ordinal_is_deleted_and_the_valid_one_stays() {
    scenario(async |world| {
        let project = world.project("bad").await;
        valid_deployment_runs(world, &project).await;
        let cell = world.cell("dfw").namespace_of(&project);
        let owner = cell.eventually_has(deployment_named("good")).await;
        let valid = cell.eventually_has(instance("good-0")).await.uid().unwrap_or_default();
        let api = cell.api::<Instance>();
        let duplicates = [("good-seven", Some("seven")), ("good-again", Some("0")), ("good-none", None)];
        for (name, index) in duplicates {
            let duplicate = mk_instance(&owner, name, index);
            retry("create a duplicate", async || api.create(&PostParams::default(), &duplicate).await).await;
        }
        for (name, _) in duplicates {
            cell.until_gone(instance(name)).await;
        }
        until_warning(&cell, "WorkloadDeployment", "good", "InstanceDeleted").await;
        cell.consistently_has(instance("good-0").with_uid(&valid).ready().not_deleting(), quiet_period() / 2)
            .await;
        rollout::until_running(world, &project, "good", "dfw", 1).await;
    });
}

#[test]
fn an_unowned_hub_instance_of_the_same_name_is_not_treated_as_the_copy() {
    scenario(async |world| {
        let project = world.project("bad").await;
        valid_deployment_runs(world, &project).await;
        let hub = world.hub().namespace_of(&project);
        let owner = hub.eventually_has(deployment_named("good")).await;
        let mut foreign = mk_instance(&owner, "later-0", Some("0"));
        foreign.metadata.owner_references = None;
        let api = hub.api::<Instance>();
        let foreign =
            retry("create the foreign instance", async || api.create(&PostParams::default(), &foreign).await)
                .await;
        let uid = foreign.uid().unwrap_or_default();
        let unchanged = || {
            let spec = foreign.spec.clone();
            instance("later-0")
                .with_uid(&uid)
                .not_deleting()
                .that("is unchanged", move |found| found.spec == spec && found.owner_references().is_empty())
        };

        let later = project.deploy(deployment("later").to("dfw")).await;
        let cell = world.cell("dfw").namespace_of(&project);
        cell.eventually_has(instance("later-0").ready()).await;
        until_warning(&cell, "Instance", "later-0", "NotShownOnHub").await;
        hub.consistently_has(unchanged(), quiet_period() / 2).await;
        // It is not deleted with the cell instance of the same name either.
        later.delete().await;
        cell.until_gone(instance("later-0")).await;
        project.view().until_gone(deployment_named("later")).await;
        hub.consistently_has(unchanged(), quiet_period() / 2).await;
    });
}

#[test]
fn a_recorded_hub_namespace_of_another_project_is_not_touched() {
    scenario(async |world| {
        let target = world.project("bad").await;
        let other_project = world.twin_of(&target).await;
        target.deploy(deployment("a").to("dfw")).await;
        rollout::until_running(world, &target, "a", "dfw", 1).await;
        let machines = rollout::instance_uids(world, &target, "dfw");

        let mut forged = deployment("a").to("dfw");
        forged.0.metadata.annotations = Some(BTreeMap::from([(
            polis_api::annotations::FEDERATION_NAMESPACE.to_owned(),
            target.hub_namespace(),
        )]));
        forged.0.metadata.finalizers = Some(vec![polis_api::finalizers::FEDERATOR.to_owned()]);
        let forged = other_project.deploy(forged).await;
        until_warning(&other_project.view(), "WorkloadDeployment", "a", "RecordContradicted").await;
        forged.delete().await;
        other_project.view().until_gone(deployment_named("a")).await;
        world
            .hub()
            .namespace_of(&target)
            .consistently_has(deployment_named("a").not_deleting(), quiet_period())
            .await;
        rollout::until_running(world, &target, "a", "dfw", 1).await;
        assert_eq!(rollout::instance_uids(world, &target, "dfw"), machines);
    });
}

#[test]
fn a_condition_of_another_writer_is_kept_and_projected() {
    scenario(async |world| {
        let project = world.project("bad").await;
        valid_deployment_runs(world, &project).await;
        let cell = world.cell("dfw").namespace_of(&project);
        let foreign = Condition {
            type_: "example.com/Reviewed".into(),
            status: "True".into(),
            reason: "ByHand".into(),
            message: "set by another writer".into(),
            observed_generation: None,
            last_transition_time: Time("2026-01-02T03:04:05Z".parse().unwrap()),
        };
        let api = cell.api::<Instance>();
        retry("set the condition", async || {
            let mut current = api.get("good-0").await?;
            current.status.get_or_insert_default().conditions.insert(0, foreign.clone());
            api.replace_status("good-0", &PostParams::default(), &current).await
        })
        .await;
        let with_foreign_condition =
            || instance("good-0").ready().with_condition("example.com/Reviewed", "True", "ByHand");
        world.hub().namespace_of(&project).eventually_has(with_foreign_condition()).await;
        project.view().eventually_has(with_foreign_condition()).await;
        cell.consistently_has(with_foreign_condition(), quiet_period() / 2).await;
    });
}
