//! RBAC: the shipped roles grant exactly the permissions that the processes need.
//!
//! The scenario exercises every feature of the roles and records all requests. Then each permission must be
//! needed by at least one request, and every request must be granted.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use polis_api::{
    compute::{API_VERSION, Instance, WorkloadDeployment},
    finalizers,
    k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret},
    karmada::{PropagationPolicy, Work, WorkSpec, names as karmada},
    kube::{
        Api,
        api::{ObjectMeta, Patch, PatchParams, PostParams},
    },
    labels,
    milo::{EXTRA_PARENT_NAME, EXTRA_PARENT_TYPE, PROJECT_KIND},
    names,
};
use polis_e2e::{
    builders::{deployment, workload},
    identities::city_group,
    manager_process::Role,
    matchers::{deployment_named, instance, namespace, policy, workload_named},
    overlays::DeploymentMode,
    planes::{ClientIdentity, PlaneLayout},
    project::{AppliedDeployment, Project, retry},
    proxy::{RecordedRequest, RequestVerb},
    rbac::{self, Permission},
    rendered::{objects, root},
    view::TIMEOUT,
    world::{World, disruptive_scenario},
};
use polis_testbed::manifest::until;
use serde_json::{Value, json};

use crate::{bad_input, rollout};

/// Permissions that the processes of the harness do not need, because it disables leader election, webhooks
/// and quota. In the other deployment modes, which enable them, no permission is exempt.
const NOT_ENABLED: &[(PlaneType, &str, &str)] = &[
    (PlaneType::Platform, "leases", "get"),
    (PlaneType::Platform, "leases", "create"),
    (PlaneType::Platform, "leases", "update"),
    (PlaneType::Cell, "leases", "get"),
    (PlaneType::Cell, "leases", "create"),
    (PlaneType::Cell, "leases", "update"),
    (PlaneType::Project, "subjectaccessreviews", "create"),
    // Tenants of namespaces, needed for quota claims.
    (PlaneType::Cell, "namespaces", "list"),
    (PlaneType::Cell, "namespaces", "watch"),
];

/// Types of planes, by the manifests that are applied to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PlaneType {
    Platform,
    Project,
    Hub,
    Cell,
}

impl PlaneType {
    fn of(layout: &PlaneLayout, plane: &str) -> PlaneType {
        match plane {
            plane if plane == layout.platform => PlaneType::Platform,
            plane if plane == layout.hub => PlaneType::Hub,
            plane if layout.cells.iter().any(|cell| cell == plane) => PlaneType::Cell,
            _ => PlaneType::Project,
        }
    }

    /// The first plane of this type.
    fn example(self, layout: &PlaneLayout) -> &str {
        match self {
            PlaneType::Platform => &layout.platform,
            PlaneType::Project => &layout.projects[0],
            PlaneType::Hub => &layout.hub,
            PlaneType::Cell => &layout.cells[0],
        }
    }
}

/// Restarts every process with API servers that reject streaming lists, as older ones do; runs a workload;
/// and restarts the processes as before.
async fn list_in_pages(world: &World) {
    let restart = async || {
        for process in world.processes() {
            process.stop();
            process.start().await.unwrap_or_else(|err| panic!("{err}"));
        }
    };
    world.processes().iter().for_each(|process| process.requests.list_in_pages());
    restart().await;
    let project = world.project("pages").await;
    let web = project.run(workload("web").placed("main", &["dfw"], 1)).await;
    let name = web.until_deployed_to(&["dfw"]).await.remove(0);
    rollout::until_running(world, &project, &name, "dfw", 1).await;
    use_data(world, &project).await;
    world.processes().iter().for_each(|process| process.requests.clear_faults());
    restart().await;
}

/// Exercises every feature of the roles.
async fn exercise_everything(world: &World) {
    let project = world.project("rbac").await;
    let (view, hub, cell) =
        (project.view(), world.hub().namespace_of(&project), world.cell("dfw").namespace_of(&project));
    let merge = PatchParams::default();
    let web = project.run(workload("web").placed("main", &["dfw", "ord"], 1)).await;
    let name = web.until_deployed_to(&["dfw", "ord"]).await.remove(0);
    rollout::until_running(world, &project, &name, "dfw", 1).await;
    review(world, &project).await;
    use_data(world, &project).await;

    // Changes by others are reverted.
    let first = format!("{name}-0");
    let relabelled =
        Patch::Merge(json!({"metadata": {"labels": {labels::WORKLOAD_DEPLOYMENT_UID: "relabelled"}}}));
    for view in [&view, &hub] {
        let api = view.api::<Instance>();
        retry("relabel an instance", async || api.patch(&first, &merge, &relabelled).await).await;
        let uid = cell.eventually_has(deployment_named(&name)).await.metadata.uid.unwrap_or_default();
        view.eventually_has(instance(&first).labelled(labels::WORKLOAD_DEPLOYMENT_UID, &uid)).await;
    }
    let hub_namespace = project.hub_namespace();
    unlabel(world, &hub_namespace, labels::UPSTREAM_NAMESPACE).await;
    let preserving = Patch::Merge(json!({"spec": {"preserveResourcesOnDeletion": true}}));
    let policies = hub.api::<PropagationPolicy>();
    retry("change the policy", async || policies.patch("city-dfw", &merge, &preserving).await).await;
    web.edit(|spec| spec.template = polis_e2e::builders::mk_template("registry.test/app:2")).await;
    world
        .hub()
        .cluster_scope()
        .eventually_has(namespace(&hub_namespace).labelled(labels::UPSTREAM_NAMESPACE, &project.namespace))
        .await;
    let restored = |policy: &PropagationPolicy| policy.spec.preserve_resources_on_deletion != Some(true);
    hub.eventually_has(policy("city-dfw").that("preserves nothing", restored)).await;
    view.eventually_has(instance(&first).ready().with_image("registry.test/app:2")).await;

    // A name that is taken on the hub makes the cell read the existing object.
    let mut taken = hub.eventually_has(instance(&first)).await;
    taken.metadata = polis_api::kube::api::ObjectMeta {
        name: Some("other-0".to_owned()),
        namespace: Some(hub_namespace.clone()),
        ..Default::default()
    };
    let instances = hub.api::<Instance>();
    retry("take the name", async || instances.create(&PostParams::default(), &taken).await).await;
    let other = project.deploy(deployment("other").to("dfw")).await;
    cell.eventually_has(instance("other-0").ready()).await;

    // A finalizer that another implementation left on a deployment of the cell.
    let with_finalizer = Patch::Merge(json!({"metadata": {"finalizers": [finalizers::DEPLOYMENT]}}));
    let deployments = cell.api::<WorkloadDeployment>();
    retry("set the finalizer", async || deployments.patch("other", &merge, &with_finalizer).await).await;
    other.delete().await;
    cell.until_gone(deployment_named("other")).await;
    unlabel_and_orphan(world, &project).await;
    repeat_events(world, &project).await;
    web.delete().await;
    view.until_gone(workload_named("web")).await;
}

/// Runs a workload that refers to a config map and a secret, changes both, and deletes it.
async fn use_data(world: &World, project: &Project) {
    let (view, hub) = (project.view(), world.hub().namespace_of(project));
    let (maps, secrets) = (view.api::<ConfigMap>(), view.api::<Secret>());
    let set = async |value: &str| {
        let apply = PatchParams::apply("test").force();
        let object = |kind: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "shared"}, "immutable": false});
        let (mut map, mut secret) = (object("ConfigMap"), object("Secret"));
        (map["data"], secret["stringData"]) = (json!({"KEY": value}), json!({"TOKEN": value}));
        retry("the config map", async || maps.patch("shared", &apply, &Patch::Apply(&map)).await).await;
        retry("the secret", async || secrets.patch("shared", &apply, &Patch::Apply(&secret)).await).await;
    };
    set("one").await;
    let mut uses = workload("uses-data").placed("main", &["dfw"], 1);
    let sandbox = uses.0.spec.template.spec.runtime.sandbox.as_mut().expect("a sandbox");
    let sources = json!([{"configMapRef": {"name": "shared"}}, {"secretRef": {"name": "shared"}}]);
    sandbox.containers[0].env_from = serde_json::from_value(sources).expect("sources");
    let uses = project.run(uses).await;
    let name = uses.until_deployed_to(&["dfw"]).await.remove(0);
    rollout::until_running(world, project, &name, "dfw", 1).await;
    let (map, secret) = (names::companion("ConfigMap", "shared"), names::companion("Secret", "shared"));
    let (map_copies, secret_copies) = (hub.api::<ConfigMap>(), hub.api::<Secret>());
    let hashes = async || {
        let map = map_copies.get_opt(&map).await?.and_then(|it| it.metadata.annotations);
        let secret = secret_copies.get_opt(&secret).await?.and_then(|it| it.metadata.annotations);
        Ok::<_, polis_api::kube::Error>((map, secret))
    };
    let (map_before, secret_before) = retry("read the companions", &hashes).await;
    assert!(map_before.is_some() && secret_before.is_some(), "the companions are on the hub");
    set("two").await;
    let changed = until("the companions", "a change", TIMEOUT, async || {
        let (map, secret) = retry("read the companions", &hashes).await;
        Ok::<_, String>((map != map_before && secret != secret_before).then_some(()))
    });
    changed.await.unwrap_or_else(|err| panic!("{err}"));
    uses.delete().await;
    view.until_gone(workload_named("uses-data")).await;
    let left = retry("read the companions", &hashes).await;
    assert_eq!(left, (None, None), "the companions are gone with the workload");
}

/// Removes a label from a hub namespace, and lets the federator restore it once the cells have lost it, too.
/// Karmada drops a change that is reverted within milliseconds: it compares the second change with a cached
/// Work from before the first one, and the cells keep the first.
async fn unlabel(world: &World, hub_namespace: &str, label: &'static str) {
    let management = world.process(&Role::Management);
    management.pause();
    let unlabelled = Patch::Merge(json!({"metadata": {"labels": {label: null}}}));
    let namespaces: Api<Namespace> = Api::all(world.hub().recorder.client().clone());
    let merge = PatchParams::default();
    retry("remove a label", async || namespaces.patch(hub_namespace, &merge, &unlabelled).await).await;
    let lost = move |namespace: &Namespace| {
        namespace.metadata.labels.as_ref().is_none_or(|labels| !labels.contains_key(label))
    };
    for city in world.cities() {
        let lost = namespace(hub_namespace).that("has lost the label", lost);
        world.cell(city).cluster_scope().eventually_has(lost).await;
    }
    management.resume();
}

/// A hub namespace without its project label, which the federator reads uncached; and a Work without a
/// binding, which it deletes.
async fn unlabel_and_orphan(world: &World, project: &Project) {
    let (client, hub_namespace) = (world.hub().recorder.client().clone(), project.hub_namespace());
    unlabel(world, &hub_namespace, labels::UPSTREAM_CLUSTER_NAME).await;
    let lone = project.deploy(deployment("lone").to("dfw")).await;
    let labelled = namespace(&hub_namespace)
        .labelled(labels::UPSTREAM_CLUSTER_NAME, &format!("cluster-{}", project.name()));
    world.hub().cluster_scope().eventually_has(labelled).await;
    rollout::until_running(world, project, "lone", "dfw", 1).await;

    let name = karmada::work("WorkloadDeployment", &hub_namespace, "lone");
    let orphan = Work {
        metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
        spec: WorkSpec { suspend_dispatching: Some(true), ..WorkSpec::default() },
        ..Work::default()
    };
    let works: Api<Work> = Api::namespaced(client, &karmada::execution_namespace("ord"));
    retry("create a Work", async || works.create(&PostParams::default(), &orphan).await).await;
    lone.delete().await;
    project.view().until_gone(deployment_named("lone")).await;
    let left = retry("read the Work", async || works.get_opt(&name).await).await;
    assert!(left.is_none(), "the Work without a binding is deleted");
}

/// Sends a workload to the webhook, if the process serves one: the webhook checks the permissions of the
/// author.
async fn review(world: &World, project: &Project) {
    let extra = json!({EXTRA_PARENT_TYPE: [PROJECT_KIND], EXTRA_PARENT_NAME: [project.name()]});
    let (group, version) = API_VERSION.split_once('/').expect("a group");
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "one", "operation": "CREATE", "name": "web", "namespace": project.namespace,
        "kind": {"group": group, "version": version, "kind": "Workload"},
        "resource": {"group": group, "version": version, "resource": "workloads"},
        "userInfo": {"username": "ann", "groups": ["system:authenticated"], "extra": extra},
        "object": workload("web").placed("main", &["dfw"], 1).0,
    }});
    let process = world.process(&Role::Management);
    let reviewed = process.review("/validate-compute-datumapis-com-v1alpha-workload", &review).await;
    assert_eq!(reviewed.is_some(), world.fixture().deployment_mode() != DeploymentMode::Plain);
    if let Some(reviewed) = reviewed {
        assert_eq!(reviewed["response"]["uid"], "one", "{reviewed}");
    }
}

/// Repeats events on every plane until their counts are updated, which happens at most twice a minute. One
/// event on the cell is already repeated: an instance of the same name was created a second time.
async fn repeat_events(world: &World, project: &Project) {
    let lost = project.deploy(deployment("lost").to("")).await;
    let origin = [
        (labels::UPSTREAM_CLUSTER_NAME, "cluster-unknown"),
        (labels::UPSTREAM_NAMESPACE, &*project.namespace),
    ];
    let forged = format!("ns-rbac-{}", std::process::id());
    bad_input::forged(&world.hub(), &forged, &origin, "good").await;
    let namespaces: Api<Namespace> = Api::all(world.hub().recorder.client().clone());
    let rounds = Cell::new(0_usize);
    let again = until("all planes", "updates of event counts", 2 * TIMEOUT, async || {
        let round = rounds.replace(rounds.get() + 1);
        touch(&lost, round).await;
        let known = format!("cluster-{}", project.name());
        let name = if round.is_multiple_of(2) { "cluster-unknown" } else { &known };
        let label = Patch::Merge(json!({"metadata": {"labels": {labels::UPSTREAM_CLUSTER_NAME: name}}}));
        retry("rename", async || namespaces.patch(&forged, &PatchParams::default(), &label).await).await;
        let layout = world.fixture().planes.layout();
        let counted: BTreeSet<PlaneType> = requests(world)
            .iter()
            .filter(|request| request.resource == "events" && request.verb == RequestVerb::Update)
            .map(|request| PlaneType::of(layout, &request.plane))
            .collect();
        let wanted = BTreeSet::from([PlaneType::Project, PlaneType::Hub, PlaneType::Cell]);
        if wanted.is_subset(&counted) {
            return Ok(Some(()));
        }
        // Slow enough for controllers to observe both states.
        tokio::time::sleep(Duration::from_secs(1)).await;
        Err(format!("so far on {counted:?}"))
    });
    again.await.unwrap_or_else(|err| panic!("{err}"));
    lost.delete().await;
}

async fn touch(deployment: &AppliedDeployment, round: usize) {
    deployment.merge(json!({"metadata": {"annotations": {"round": round.to_string()}}})).await;
}

/// All requests of the shared processes.
fn requests(world: &World) -> Vec<RecordedRequest> {
    world.processes().iter().flat_map(|process| process.requests.all()).collect()
}

#[test]
fn every_permission_of_the_shipped_roles_is_needed_and_sufficient() {
    disruptive_scenario(async |world| {
        list_in_pages(world).await;
        exercise_everything(world).await;
        let (fixture, layout) = (world.fixture(), world.fixture().planes.layout());
        let mut requests_by_client: BTreeMap<(PlaneType, Arc<ClientIdentity>), Vec<RecordedRequest>> =
            BTreeMap::new();
        for request in requests(world) {
            requests_by_client
                .entry((PlaneType::of(layout, &request.plane), request.identity.clone()))
                .or_default()
                .push(request);
        }
        let mut wrong = Vec::new();
        let mut exempted = BTreeSet::new();
        for ((plane_type, identity), requests) in &requests_by_client {
            let plane = plane_type.example(layout);
            let mut objects = fixture.manifests(plane).unwrap();
            if *plane_type == PlaneType::Hub {
                objects.extend(layout.cells.iter().map(|city| generated_binding(city)));
            }
            let granted = rbac::granted(&objects, identity);
            // Discovery and self-reviews are allowed for every user.
            let reviewed = |request: &&RecordedRequest| {
                !request.resource.starts_with('/') && request.resource != "selfsubjectaccessreviews"
            };
            let requests = requests.iter().filter(reviewed).flat_map(rbac::requests).collect();
            let audit = rbac::audit(&granted, &requests);
            wrong.extend(
                audit.forbidden.iter().map(|it| format!("{plane_type:?}: {} may not {it}", identity.user)),
            );
            for unused in audit
                .unused
                .iter()
                .filter(|permission| is_superfluous(world, *plane_type, identity, permission))
            {
                let is_exempt = |off: &&(PlaneType, &str, &str)| {
                    fixture.deployment_mode() == DeploymentMode::Plain
                        && **off == (*plane_type, &*unused.resource, &*unused.verb)
                };
                match NOT_ENABLED.iter().find(is_exempt) {
                    Some(off) => _ = exempted.insert(off),
                    None => {
                        wrong.push(format!("{plane_type:?}: {} may {unused} without need", identity.user))
                    }
                }
            }
        }
        if fixture.deployment_mode() == DeploymentMode::Plain {
            let used = NOT_ENABLED.iter().filter(|off| !exempted.contains(off));
            wrong.extend(
                used.map(|off| format!("{off:?} is not granted or is used: remove it from the list")),
            );
        }
        for plane_type in [PlaneType::Platform, PlaneType::Project, PlaneType::Hub, PlaneType::Cell] {
            let identity: Vec<&ClientIdentity> =
                requests_by_client.keys().filter(|key| key.0 == plane_type).map(|key| &*key.1).collect();
            let has_client =
                |binding: &Value| identity.iter().any(|identity| rbac::is_for(binding, identity));
            let objects = fixture.manifests(plane_type.example(layout)).unwrap();
            let without_client = objects.iter().filter(|it| rbac::is_binding(it) && !has_client(it));
            // Quota is claimed in projects, and the platform's plane is a project only temporarily.
            let without_client = without_client
                .filter(|it| plane_type != PlaneType::Platform || !names(it, "compute-cell-quota"));
            wrong.extend(without_client.map(|it| format!("{plane_type:?}: no client is {}", it["subjects"])));
        }
        if fixture.deployment_mode() != DeploymentMode::Plain {
            let planes = layout.all().into_iter().flat_map(|plane| fixture.manifests(plane).unwrap());
            let applied: BTreeSet<String> = planes.filter_map(|object| role(&object)).collect();
            let shipped = roles_below(&root().join("deploy")).into_iter();
            let missing =
                shipped.filter(|role| !applied.contains(role) && !IN_NO_OVERLAY.contains(&role.as_str()));
            wrong.extend(missing.map(|role| format!("no process has used {role}")));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

/// Roles in no overlay that scenarios run: the suite `packaging` covers them. The last one is for scrapers.
const IN_NO_OVERLAY: [&str; 6] = [
    "Role compute-webhook-secret",
    "ClusterRole compute-pod-runtime",
    "ClusterRole compute-pod-runtime-cell",
    "ClusterRole compute-pod-runtime-namespaces",
    "ClusterRole compute-metrics-access",
    "ClusterRole compute-metrics-reader",
];

/// The RoleBindings that the management role generates for a city, as one for all namespaces: the scenarios
/// `confinement` test where they are.
fn generated_binding(city: &str) -> Value {
    json!({
        "kind": "ClusterRoleBinding",
        "metadata": {"name": city},
        "roleRef": {"kind": "ClusterRole", "name": "compute-cell-city"},
        "subjects": [{"kind": "Group", "name": city_group(city)}],
    })
}

/// Kind and name of an RBAC role; `None` for other objects.
fn role(object: &Value) -> Option<String> {
    let kind = object["kind"].as_str().filter(|kind| matches!(*kind, "Role" | "ClusterRole"))?;
    let ours = object["apiVersion"].as_str()?.starts_with("rbac.authorization.k8s.io/");
    ours.then(|| format!("{kind} {}", object["metadata"]["name"].as_str().unwrap_or_default()))
}

/// All roles in the manifests below a directory. The templates of the chart have the same ones.
fn roles_below(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).expect("a dir").filter_map(Result::ok).map(|entry| entry.path());
    let of = |path: PathBuf| match path.extension().and_then(|extension| extension.to_str()) {
        _ if path.ends_with("deploy/chart") => BTreeSet::new(),
        _ if path.is_dir() => roles_below(&path),
        Some("yaml") => {
            let text = fs::read_to_string(&path).expect("a text");
            objects(&path.display().to_string(), &text).iter().filter_map(role).collect()
        }
        _ => BTreeSet::new(),
    };
    entries.flat_map(of).collect()
}

/// Whether an unused permission counts as superfluous on this type of plane. The platform's plane also serves
/// as a late project, and project permissions are covered on projects. Only the first city is exercised.
fn is_superfluous(
    world: &World,
    plane_type: PlaneType,
    identity: &ClientIdentity,
    permission: &Permission,
) -> bool {
    let other_cities = world.fixture().planes.layout().cells.iter().skip(1);
    let own = ["resourcemanager.miloapis.com", "coordination.k8s.io"];
    !other_cities.into_iter().any(|city| identity.user == polis_e2e::identities::cell_user(city))
        && (plane_type != PlaneType::Platform || own.contains(&&*permission.group))
}

fn names(binding: &Value, role: &str) -> bool {
    binding["roleRef"]["name"] == role
}
