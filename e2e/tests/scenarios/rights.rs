//! Rights: the roles that we ship are what the processes need, no more and no less.
//!
//! Everything that the roles are for is done, and every request is written down. Then each right is taken away, one at a
//! time, and some request must be forbidden by that; and nothing may have been asked for that is not granted.

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
    k8s_openapi::api::core::v1::Namespace,
    karmada::PropagationPolicy,
    kube::{
        Api,
        api::{Patch, PatchParams, PostParams},
    },
    labels,
    milo::{EXTRA_PARENT_NAME, EXTRA_PARENT_TYPE, PROJECT_KIND},
};
use polis_e2e::{
    draft::{deployment, workload},
    overlays::Manning,
    place::DEADLINE,
    planes::{Identity, Layout},
    project::{Deployed, Project, insist},
    rendered::{objects, root},
    rights::{self, Right},
    seek::{deployed, instance, namespace, policy, worked},
    staff::Role,
    wire::{Call, Verb},
    world::{World, alone},
};
use polis_testbed::manifest::until;
use serde_json::{Value, json};

use crate::{bad_input, chain};

/// Rights that the staff of the harness has no use for, because it is not switched on there: it stands for no election,
/// serves no webhooks and claims no quota. Under the overlays, where it is, no right is exempt.
const SWITCHED_OFF: &[(Sort, &str, &str)] = &[
    (Sort::Platform, "leases", "get"),
    (Sort::Platform, "leases", "create"),
    (Sort::Platform, "leases", "update"),
    (Sort::Cell, "leases", "get"),
    (Sort::Cell, "leases", "create"),
    (Sort::Cell, "leases", "update"),
    (Sort::Project, "subjectaccessreviews", "create"),
    // Whose a namespace is: claims are made for projects.
    (Sort::Cell, "namespaces", "list"),
    (Sort::Cell, "namespaces", "watch"),
];

/// Planes that are alike in what is applied to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sort {
    Platform,
    Project,
    Hub,
    Cell,
}

impl Sort {
    fn of(layout: &Layout, plane: &str) -> Sort {
        match plane {
            plane if plane == layout.platform => Sort::Platform,
            plane if plane == layout.hub => Sort::Hub,
            plane if layout.cells.iter().any(|cell| cell == plane) => Sort::Cell,
            _ => Sort::Project,
        }
    }

    /// The first plane of this sort.
    fn example(self, layout: &Layout) -> &str {
        match self {
            Sort::Platform => &layout.platform,
            Sort::Project => &layout.projects[0],
            Sort::Hub => &layout.hub,
            Sort::Cell => &layout.cells[0],
        }
    }
}

/// Starts every process in front of servers that cannot stream lists, as older ones, lets it work, and starts it again as
/// it was.
async fn list_in_pages(world: &World) {
    let restart = async || {
        for member in world.staff() {
            member.stop();
            member.start().await.unwrap_or_else(|err| panic!("{err}"));
        }
    };
    world.staff().iter().for_each(|member| member.tap.list_in_pages());
    restart().await;
    let project = world.project("pages").await;
    let web = project.run(workload("web").placed("main", &["dfw"], 1)).await;
    let name = web.spreads_to(&["dfw"]).await.remove(0);
    chain::runs(world, &project, &name, "dfw", 1).await;
    world.staff().iter().for_each(|member| member.tap.mend());
    restart().await;
}

/// Does everything that the roles are for, so that each right is used.
async fn everything(world: &World) {
    let project = world.project("rights").await;
    let (here, hub, cell) =
        (project.here(), world.hub().namespace_of(&project), world.cell("dfw").namespace_of(&project));
    let merge = PatchParams::default();
    let web = project.run(workload("web").placed("main", &["dfw", "ord"], 1)).await;
    let name = web.spreads_to(&["dfw", "ord"]).await.remove(0);
    chain::runs(world, &project, &name, "dfw", 1).await;
    judge(world, &project).await;

    // What somebody has put out of order is put right again.
    let first = format!("{name}-0");
    let astray = Patch::Merge(json!({"metadata": {"labels": {labels::WORKLOAD_DEPLOYMENT_UID: "astray"}}}));
    for place in [&here, &hub] {
        let api = place.api::<Instance>();
        insist("lead an instance astray", async || api.patch(&first, &merge, &astray).await).await;
        let uid = cell.has(deployed(&name)).await.metadata.uid.unwrap_or_default();
        place.has(instance(&first).labelled(labels::WORKLOAD_DEPLOYMENT_UID, &uid)).await;
    }
    let unlabelled = Patch::Merge(json!({"metadata": {"labels": {labels::UPSTREAM_NAMESPACE: null}}}));
    let namespaces: Api<Namespace> = Api::all(world.hub().eye.client().clone());
    let home = project.hub_namespace();
    insist("take a label", async || namespaces.patch(&home, &merge, &unlabelled).await).await;
    let preserving = Patch::Merge(json!({"spec": {"preserveResourcesOnDeletion": true}}));
    let policies = hub.api::<PropagationPolicy>();
    insist("change the policy", async || policies.patch("city-dfw", &merge, &preserving).await).await;
    web.edit(|spec| spec.template = polis_e2e::draft::template("registry.test/app:2")).await;
    world.hub().whole().has(namespace(&home).labelled(labels::UPSTREAM_NAMESPACE, &project.namespace)).await;
    let restored = |policy: &PropagationPolicy| policy.spec.preserve_resources_on_deletion != Some(true);
    hub.has(policy("city-dfw").that("preserves nothing", restored)).await;
    here.has(instance(&first).ready().with_image("registry.test/app:2")).await;

    // A name that is taken on the hub makes a cell look there.
    let mut taken = hub.has(instance(&first)).await;
    taken.metadata = polis_api::kube::api::ObjectMeta {
        name: Some("other-0".to_owned()),
        namespace: Some(home.clone()),
        ..Default::default()
    };
    let instances = hub.api::<Instance>();
    insist("take a name", async || instances.create(&PostParams::default(), &taken).await).await;
    let other = project.deploy(deployment("other").to("dfw")).await;
    cell.has(instance("other-0").ready()).await;

    // Another implementation has left its finalizer on a deployment of the cell.
    let held = Patch::Merge(json!({"metadata": {"finalizers": [finalizers::DEPLOYMENT]}}));
    let deployments = cell.api::<WorkloadDeployment>();
    insist("hold the deployment", async || deployments.patch("other", &merge, &held).await).await;
    other.delete().await;
    cell.is_rid_of(deployed("other")).await;
    happen_again(world, &project).await;
    web.delete().await;
    here.is_rid_of(worked("web")).await;
}

/// A workload is judged, as far as anybody judges: its author is asked about.
async fn judge(world: &World, project: &Project) {
    let extra = json!({EXTRA_PARENT_TYPE: [PROJECT_KIND], EXTRA_PARENT_NAME: [project.name()]});
    let (group, version) = API_VERSION.split_once('/').expect("a group");
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "one", "operation": "CREATE", "name": "web", "namespace": project.namespace,
        "kind": {"group": group, "version": version, "kind": "Workload"},
        "resource": {"group": group, "version": version, "resource": "workloads"},
        "userInfo": {"username": "ann", "groups": ["system:authenticated"], "extra": extra},
        "object": workload("web").placed("main", &["dfw"], 1).0,
    }});
    let member = world.member(&Role::Management);
    let judged = member.judges("/validate-compute-datumapis-com-v1alpha-workload", &review).await;
    assert_eq!(judged.is_some(), world.stage().manning() != Manning::Plain);
    if let Some(judged) = judged {
        assert_eq!(judged["response"]["uid"], "one", "{judged}");
    }
}

/// What has happened happens again, on every plane that is told of it: it is counted there, at most twice a minute. On the
/// cell it has happened already: an instance of the same name was made a second time.
async fn happen_again(world: &World, project: &Project) {
    let lost = project.deploy(deployment("lost").to("")).await;
    let origin = [
        (labels::UPSTREAM_CLUSTER_NAME, "cluster-nobody"),
        (labels::UPSTREAM_NAMESPACE, &*project.namespace),
    ];
    let forged = format!("ns-rights-{}", std::process::id());
    bad_input::forged(&world.hub(), &forged, &origin, "good").await;
    let namespaces: Api<Namespace> = Api::all(world.hub().eye.client().clone());
    let rounds = Cell::new(0_usize);
    let again = until("all planes", "events to be counted", 2 * DEADLINE, async || {
        let round = rounds.replace(rounds.get() + 1);
        touch(&lost, round).await;
        let known = format!("cluster-{}", project.name());
        let name = if round.is_multiple_of(2) { "cluster-nobody" } else { &known };
        let label = Patch::Merge(json!({"metadata": {"labels": {labels::UPSTREAM_CLUSTER_NAME: name}}}));
        insist("rename", async || namespaces.patch(&forged, &PatchParams::default(), &label).await).await;
        let layout = world.stage().planes.layout();
        let counted: BTreeSet<Sort> = calls(world)
            .iter()
            .filter(|call| call.resource == "events" && call.verb == Verb::Update)
            .map(|call| Sort::of(layout, &call.plane))
            .collect();
        let wanted = BTreeSet::from([Sort::Project, Sort::Hub, Sort::Cell]);
        if wanted.is_subset(&counted) {
            return Ok(Some(()));
        }
        // Not more often than controllers can see both states.
        tokio::time::sleep(Duration::from_secs(1)).await;
        Err(format!("so far on {counted:?}"))
    });
    again.await.unwrap_or_else(|err| panic!("{err}"));
    lost.delete().await;
}

async fn touch(deployment: &Deployed, round: usize) {
    deployment.merge(json!({"metadata": {"annotations": {"round": round.to_string()}}})).await;
}

/// Every request of the processes of this stage.
fn calls(world: &World) -> Vec<Call> {
    world.staff().iter().flat_map(|member| member.tap.calls()).collect()
}

#[test]
fn every_right_of_the_shipped_roles_is_used_and_no_other_is_asked_for() {
    alone(async |world| {
        list_in_pages(world).await;
        everything(world).await;
        let (stage, layout) = (world.stage(), world.stage().planes.layout());
        let mut came: BTreeMap<(Sort, Arc<Identity>), Vec<Call>> = BTreeMap::new();
        for call in calls(world) {
            came.entry((Sort::of(layout, &call.plane), call.who.clone())).or_default().push(call);
        }
        let mut wrong = Vec::new();
        let mut exempted = BTreeSet::new();
        for ((sort, who), calls) in &came {
            let plane = sort.example(layout);
            let granted = rights::granted(&stage.manifests(plane).unwrap(), who);
            // Documents of the server are for everybody, and so is what one may do oneself.
            let judged =
                |call: &&Call| !call.resource.starts_with('/') && call.resource != "selfsubjectaccessreviews";
            let requests = calls.iter().filter(judged).flat_map(rights::requests).collect();
            let audit = rights::audit(&granted, &requests);
            wrong.extend(audit.forbidden.iter().map(|it| format!("{sort:?}: {} may not {it}", who.user)));
            for needless in audit.needless.iter().filter(|right| is_shown_here(world, *sort, who, right)) {
                let off = |off: &&(Sort, &str, &str)| {
                    stage.manning() == Manning::Plain
                        && **off == (*sort, &*needless.resource, &*needless.verb)
                };
                match SWITCHED_OFF.iter().find(off) {
                    Some(off) => _ = exempted.insert(off),
                    None => wrong.push(format!("{sort:?}: {} may {needless}, and needs not", who.user)),
                }
            }
        }
        if stage.manning() == Manning::Plain {
            let used = SWITCHED_OFF.iter().filter(|off| !exempted.contains(off));
            wrong
                .extend(used.map(|off| format!("{off:?} is not granted, or is used: take it from the list")));
        }
        for sort in [Sort::Platform, Sort::Project, Sort::Hub, Sort::Cell] {
            let who: Vec<&Identity> = came.keys().filter(|key| key.0 == sort).map(|key| &*key.1).collect();
            let is_for_one = |binding: &Value| who.iter().any(|who| rights::is_for(binding, who));
            let objects = stage.manifests(sort.example(layout)).unwrap();
            let for_nobody = objects.iter().filter(|it| rights::is_binding(it) && !is_for_one(it));
            // Quota is claimed in projects, and the plane of the platform is one only for a while.
            let for_nobody =
                for_nobody.filter(|it| sort != Sort::Platform || !names(it, "compute-cell-quota"));
            wrong.extend(for_nobody.map(|it| format!("{sort:?}: nobody is {}", it["subjects"])));
        }
        if stage.manning() != Manning::Plain {
            let planes = layout.all().into_iter().flat_map(|plane| stage.manifests(plane).unwrap());
            let shown: BTreeSet<String> = planes.filter_map(|object| role(&object)).collect();
            let shipped = roles_below(&root().join("deploy")).into_iter();
            let unseen =
                shipped.filter(|role| !shown.contains(role) && !SHOWN_ELSEWHERE.contains(&role.as_str()));
            wrong.extend(unseen.map(|role| format!("nobody has been seen with {role}")));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

/// In no overlay: managers with these are among those of the packaging. The last one is for scrapers.
const SHOWN_ELSEWHERE: [&str; 3] = [
    "Role compute-webhook-secret",
    "ClusterRole compute-metrics-access",
    "ClusterRole compute-metrics-reader",
];

/// What a role is called; none for other objects.
fn role(object: &Value) -> Option<String> {
    let kind = object["kind"].as_str().filter(|kind| matches!(*kind, "Role" | "ClusterRole"))?;
    let ours = object["apiVersion"].as_str()?.starts_with("rbac.authorization.k8s.io/");
    ours.then(|| format!("{kind} {}", object["metadata"]["name"].as_str().unwrap_or_default()))
}

/// Every role that a file below a folder holds.
fn roles_below(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("a folder").filter_map(Result::ok).map(|entry| entry.path());
    let of = |path: PathBuf| match path.extension().and_then(|ending| ending.to_str()) {
        _ if path.is_dir() => roles_below(&path),
        Some("yaml") => {
            let text = fs::read_to_string(&path).expect("a text");
            objects(&path.display().to_string(), &text).iter().filter_map(role).collect()
        }
        _ => BTreeSet::new(),
    };
    entries.flat_map(of).collect()
}

/// Whether what somebody does not need here has to be taken away. The plane of the platform stands in for a project that
/// comes late: what is needed in projects is shown there. And everything is done in the first city only.
fn is_shown_here(world: &World, sort: Sort, who: &Identity, right: &Right) -> bool {
    let elsewhere = world.stage().planes.layout().cells.iter().skip(1);
    let own = ["resourcemanager.miloapis.com", "coordination.k8s.io"];
    !elsewhere.into_iter().any(|city| who.user == polis_e2e::identities::cell_user(city))
        && (sort != Sort::Platform || own.contains(&&*right.group))
}

fn names(binding: &Value, role: &str) -> bool {
    binding["roleRef"]["name"] == role
}
