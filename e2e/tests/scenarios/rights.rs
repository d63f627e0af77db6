//! Rights: the roles that we ship are what the processes need, no more and no less.

use std::collections::BTreeSet;

use polis_api::{
    compute::{Instance, WorkloadDeployment},
    finalizers,
    k8s_openapi::api::core::v1::Namespace,
    karmada::PropagationPolicy,
    kube::{
        Api,
        api::{Patch, PatchParams, PostParams},
    },
    labels,
};
use polis_e2e::{
    draft::{deployment, workload},
    identities::{Shipped, permits},
    project::insist,
    seek::{deployed, instance, namespace, policy, worked},
    staff::Role,
    wire::Call,
    world::{World, scenario},
};
use serde_json::{Value, json};

use crate::chain;

/// Rights that no request of this scenario uses, and why they are shipped.
const UNUSED: &[(&str, &str, &str)] = &[
    ("workloads/finalizers", "update", "asked for where the API server checks who may name a blocking owner"),
    ("workloaddeployments/finalizers", "update", "the same"),
    ("subjectaccessreviews", "create", "for the webhooks"),
    ("leases", "get", "with --leader-elect: see the replicas"),
    ("leases", "create", "the same"),
    ("leases", "update", "the same"),
    ("namespaces on a cell", "list", "where quota is claimed: whose a namespace is"),
    ("namespaces on a cell", "watch", "the same"),
    ("events", "update", "an event that happens again is counted, after half a minute"),
    ("events on the hub", "create", "told only of a member that loses its city, and of what is nobody's"),
];

/// A right: group, resource, verb.
type Right = (String, String, String);

fn right(call: &Call) -> Right {
    (call.group.clone(), call.resource.clone(), format!("{:?}", call.verb).to_lowercase())
}

/// Does everything that the roles are for, so that each right is used.
async fn everything(world: &World) {
    let project = world.project("rights").await;
    let (here, hub, cell) =
        (project.here(), world.hub().namespace_of(&project), world.cell("dfw").namespace_of(&project));
    let merge = PatchParams::default();
    let web = project.run(workload("web").placed("main", &["dfw"], 1)).await;
    let name = web.spreads_to(&["dfw"]).await.remove(0);
    chain::runs(world, &project, &name, "dfw", 1).await;

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
    web.delete().await;
    here.is_rid_of(worked("web")).await;
}

#[test]
fn every_right_of_the_shipped_roles_is_used_and_no_other_is_asked_for() {
    scenario(async |world| {
        everything(world).await;
        let (shipped, layout) = (Shipped::default(), world.stage().planes.layout());
        let mut exempted = BTreeSet::new();
        let mut wrong = Vec::new();
        for (role, planes) in [
            (
                Role::Management,
                vec![vec![&layout.hub], vec![&layout.platform], layout.projects.iter().collect()],
            ),
            (Role::Cell("dfw".to_owned()), vec![vec![&layout.hub], vec![&layout.cells[0]]]),
        ] {
            let calls = world.member(&role).tap.calls();
            for alike in planes {
                let plane = alike[0];
                let rules = shipped.rules(layout, &role, plane).unwrap();
                let made: BTreeSet<Right> = calls
                    .iter()
                    .filter(|call| alike.contains(&&call.plane) && !call.resource.starts_with('/'))
                    // Everybody may ask what they may do, and a start does.
                    .filter(|call| call.resource != "selfsubjectaccessreviews")
                    .map(right)
                    .collect();
                for (group, resource, verb) in &made {
                    if !rules.iter().any(|rule| permits(rule, group, resource, verb)) {
                        wrong.push(format!("{role} on {plane} may not {verb} {group}/{resource}, and does"));
                    }
                }
                // The plane of the platform stands in for a project that comes late: its rights as one are shown there.
                let own = ["resourcemanager.miloapis.com", "coordination.k8s.io"];
                let as_platform = |rule: &&Value| {
                    plane != &layout.platform || own.iter().any(|group| rule["apiGroups"][0] == *group)
                };
                for granted in rules.iter().filter(as_platform).flat_map(rights) {
                    let (_, resource, verb) = &granted;
                    let place = match plane {
                        plane if *plane == layout.hub => format!("{resource} on the hub"),
                        plane if layout.cells.contains(plane) => format!("{resource} on a cell"),
                        _ => resource.clone(),
                    };
                    let exempt = UNUSED
                        .iter()
                        .find(|(unused, of, _)| *of == verb && (*unused == *resource || *unused == place));
                    match exempt {
                        Some((unused, of, _)) => _ = exempted.insert((*unused, *of)),
                        None if made.contains(&granted) => {}
                        // Where a server does not stream a list, a watch begins with one.
                        None if verb == "list" && made.contains(&watched(&granted)) => {}
                        None => {
                            wrong.push(format!("{role} on {plane} may {verb} {resource}, and never does"))
                        }
                    }
                }
            }
        }
        for (unused, verb, _) in
            UNUSED.iter().filter(|(unused, verb, _)| !exempted.contains(&(*unused, *verb)))
        {
            wrong.push(format!("no role grants {verb} {unused} any more: take it from the list"));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

/// The right to watch what the right is about.
fn watched((group, resource, _): &Right) -> Right {
    (group.clone(), resource.clone(), "watch".to_owned())
}

/// The rights of a rule, one by one.
fn rights(rule: &Value) -> Vec<Right> {
    let words = |field: &str| -> Vec<String> {
        let list = rule[field].as_array().into_iter().flatten();
        list.filter_map(|word| word.as_str().map(str::to_owned)).collect()
    };
    let mut rights = Vec::new();
    for group in words("apiGroups") {
        for resource in words("resources") {
            rights.extend(words("verbs").into_iter().map(|verb| (group.clone(), resource.clone(), verb)));
        }
    }
    rights
}
