//! Confinement: what a stolen credential of a cell can do on the hub.

use polis_api::{
    compute::{Instance, WorkloadDeployment},
    groups::ADMINISTRATORS,
    k8s_openapi::{
        NamespaceResourceScope,
        api::{
            coordination::v1::Lease,
            core::v1::{ConfigMap, Namespace, Secret},
        },
        apimachinery::pkg::apis::meta::v1::OwnerReference,
    },
    karmada::{Cluster, PropagationPolicy},
    kube::{
        self, Api, Client, Resource, ResourceExt as _,
        api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, WatchParams},
    },
    labels,
    quota::ResourceClaim,
};
use polis_core::{Time, heartbeat};
use polis_e2e::{
    builders::{deployment, mk_policy},
    identities::{CELLS, MANAGER, cell_user, city_group},
    matchers::{deployment_named, instance},
    planes::ClientIdentity,
    project::Project,
    rendered::{objects, root},
    view::TIMEOUT,
    world::{World, scenario},
};
use polis_testbed::manifest::{self, until};
use serde_json::json;

use crate::rollout;

/// What a forged copy has differently from a true one.
type Change = fn(&mut ObjectMeta);

/// A client with the credential of a city's cell.
async fn client_of_cell(world: &World, city: &str) -> Client {
    let planes = &world.fixture().planes;
    let identity = ClientIdentity { user: cell_user(city), groups: vec![CELLS.to_owned(), city_group(city)] };
    planes.client(&planes.layout().hub, identity).await.unwrap()
}

/// Asserts that the request was forbidden.
fn assert_forbidden<T>(what: &str, result: Result<T, kube::Error>) {
    match result {
        Err(kube::Error::Api(refusal)) if refusal.code == 403 => {}
        Err(other) => panic!("{what} failed for another reason: {other}"),
        Ok(_) => panic!("{what} succeeded"),
    }
}

fn api_of<K>(client: &Client, project: &Project) -> Api<K>
where
    K: polis_e2e::matchers::Matchable + Resource<Scope = NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), &project.hub_namespace())
}

#[test]
fn a_stolen_cell_credential_cannot_touch_instances_of_another_city() {
    scenario(async |world| {
        let project = world.project("bank").await;
        project.deploy(deployment("a").to("dfw")).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
        let ord = client_of_cell(world, "ord").await;
        let instances = api_of::<Instance>(&ord, &project);
        let copy = world.hub().namespace_of(&project).eventually_has(instance("a-0")).await;

        let patch = json!({"metadata": {"annotations": {"by": "a stolen credential"}}});
        assert_forbidden(
            "a patch",
            instances.patch("a-0", &PatchParams::default(), &Patch::Merge(&patch)).await,
        );
        let mut forged = copy.clone();
        forged.status.get_or_insert_default().conditions.clear();
        assert_forbidden(
            "a status update",
            instances.replace_status("a-0", &PostParams::default(), &forged).await,
        );
        assert_forbidden("a delete", instances.delete("a-0", &DeleteParams::default()).await);

        // Another instance of the deployment, with the credential's own city and with the right one.
        for city in ["ord", "dfw"] {
            let mut more = copy.clone();
            more.metadata = ObjectMeta {
                name: Some("a-1".into()),
                labels: copy.metadata.labels.clone(),
                owner_references: copy.metadata.owner_references.clone(),
                ..Default::default()
            };
            more.labels_mut().insert(labels::CITY_CODE.into(), city.into());
            assert_forbidden("another instance", instances.create(&PostParams::default(), &more).await);
        }
        world
            .hub()
            .namespace_of(&project)
            .eventually_has(instance("a-0").with_uid(&copy.uid().unwrap_or_default()).ready())
            .await;
    });
}

#[test]
fn a_stolen_cell_credential_cannot_use_a_deployment_of_another_city_in_a_shared_namespace() {
    scenario(async |world| {
        let project = world.project("bank").await;
        project.deploy(deployment("a").to("dfw")).await;
        project.deploy(deployment("b").to("ord")).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
        rollout::until_running(world, &project, "b", "ord", 1).await;
        let ord = client_of_cell(world, "ord").await;
        let instances = api_of::<Instance>(&ord, &project);
        let of_dfw = world.hub().namespace_of(&project).eventually_has(instance("a-0")).await;

        let mut forged = of_dfw.clone();
        forged.metadata = ObjectMeta {
            name: Some("a-1".into()),
            labels: of_dfw.metadata.labels.clone(),
            owner_references: of_dfw.metadata.owner_references.clone(),
            ..Default::default()
        };
        forged.labels_mut().insert(labels::CITY_CODE.into(), "ord".into());
        assert_forbidden(
            "an instance of the other city's deployment",
            instances.create(&PostParams::default(), &forged).await,
        );
        let relabel = json!({"metadata": {"labels": {labels::CITY_CODE: "ord"}}});
        assert_forbidden(
            "a new city label of the instance",
            instances.patch("a-0", &PatchParams::default(), &Patch::Merge(&relabel)).await,
        );
    });
}

/// Waits until a list of the Instances of a hub namespace is answered with this code; none for a success.
async fn until_list_is(instances: &Api<Instance>, expected: Option<u16>) {
    let answered = until("hub", "a list of the Instances", TIMEOUT, async || {
        let code = match instances.list(&ListParams::default()).await {
            Ok(_) => None,
            Err(kube::Error::Api(refusal)) => Some(refusal.code),
            Err(other) => return Err(other.to_string()),
        };
        if code == expected { Ok(Some(())) } else { Err(format!("it is answered with {code:?}")) }
    });
    answered.await.unwrap_or_else(|err| panic!("{err}"));
}

#[test]
fn a_cell_reads_only_the_hub_namespaces_where_its_city_has_deployments() {
    scenario(async |world| {
        let project = world.project("bank").await;
        let first = project.deploy(deployment("a").to("dfw")).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
        let (dfw, ord) = (client_of_cell(world, "dfw").await, client_of_cell(world, "ord").await);
        for (cell, client) in [("dfw", &dfw), ("ord", &ord)] {
            let everywhere: Api<Instance> = Api::all(client.clone());
            assert_forbidden(&format!("{cell}: a list"), everywhere.list(&ListParams::default()).await);
            let watched = everywhere.watch(&WatchParams::default(), "0").await.map(drop);
            assert_forbidden(&format!("{cell}: a watch"), watched);
        }
        let (of_dfw, of_ord) = (api_of::<Instance>(&dfw, &project), api_of::<Instance>(&ord, &project));
        until_list_is(&of_dfw, None).await;
        assert_forbidden("ord: a list in the namespace", of_ord.list(&ListParams::default()).await);
        assert_forbidden("ord: a read", of_ord.get("a-0").await);
        assert_forbidden("ord: a watch", of_ord.watch(&WatchParams::default(), "0").await.map(drop));
        assert_forbidden("ord: the deployment", api_of::<WorkloadDeployment>(&ord, &project).get("a").await);

        // The rights come with the first deployment of a city and go with the last.
        let second = project.deploy(deployment("b").to("ord")).await;
        rollout::until_running(world, &project, "b", "ord", 1).await;
        until_list_is(&of_ord, None).await;
        first.delete().await;
        until_list_is(&of_dfw, Some(403)).await;
        world.cell("dfw").namespace_of(&project).until_gone(instance("a-0")).await;
        until_list_is(&of_ord, None).await;
        second.delete().await;
        until_list_is(&of_ord, Some(403)).await;
        world.cell("ord").namespace_of(&project).until_gone(instance("b-0")).await;
    });
}

#[test]
fn a_stolen_cell_credential_leaves_no_object_that_cannot_be_deleted_and_takes_no_name() {
    scenario(async |world| {
        let project = world.project("bank").await;
        project.deploy(deployment("a").to("dfw")).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
        let dfw = client_of_cell(world, "dfw").await;
        let instances = api_of::<Instance>(&dfw, &project);
        let hub = world.hub().namespace_of(&project);
        let copy = hub.eventually_has(instance("a-0")).await;
        let mk_forged = |name: &str, change: fn(&mut ObjectMeta)| {
            let mut forged = copy.clone();
            forged.metadata = ObjectMeta {
                name: Some(name.into()),
                labels: copy.metadata.labels.clone(),
                owner_references: copy.metadata.owner_references.clone(),
                ..Default::default()
            };
            change(&mut forged.metadata);
            forged
        };
        let forged: [(&str, &str, Change); 8] = [
            ("the name of another deployment", "b-0", |_| {}),
            ("a name that only begins like its own", "a-b-0", |_| {}),
            ("a finalizer", "a-1", |meta| meta.finalizers = Some(vec!["example.com/held".into()])),
            ("no owner", "a-1", |meta| meta.owner_references = None),
            ("a second owner", "a-1", |meta| {
                let config = OwnerReference {
                    api_version: "v1".into(),
                    kind: "ConfigMap".into(),
                    name: "x".into(),
                    uid: "1".into(),
                    ..Default::default()
                };
                meta.owner_references.as_mut().unwrap().push(config);
            }),
            ("another UID of its owner", "a-1", |meta| owner_of(meta).uid = "1".into()),
            ("an owner that is not its controller", "a-1", |meta| owner_of(meta).controller = None),
            ("an owner that does not wait", "a-1", |meta| owner_of(meta).block_owner_deletion = None),
        ];
        for (what, name, change) in forged {
            let created = instances.create(&PostParams::default(), &mk_forged(name, change)).await;
            assert_forbidden(&format!("an Instance with {what}"), created);
        }
        let held = json!({"metadata": {"finalizers": ["example.com/held"]}});
        let patched = instances.patch("a-0", &PatchParams::default(), &Patch::Merge(&held)).await;
        assert_forbidden("a finalizer of an existing Instance", patched);
        let mut current = hub.eventually_has(instance("a-0")).await;
        current.finalizers_mut().push("example.com/held".into());
        let replaced = instances.replace("a-0", &PostParams::default(), &current).await;
        assert_forbidden("the same with a replace", replaced);
    });
}

fn owner_of(meta: &mut ObjectMeta) -> &mut OwnerReference {
    &mut meta.owner_references.as_mut().expect("an owner")[0]
}

#[test]
fn a_stolen_cell_credential_writes_only_instances_and_heartbeats_of_its_city() {
    scenario(async |world| {
        let project = world.project("bank").await;
        project.deploy(deployment("a").to("dfw")).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
        let dfw = client_of_cell(world, "dfw").await;
        let patch = json!({"metadata": {"annotations": {"by": "a stolen credential"}}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));

        let deployments = api_of::<WorkloadDeployment>(&dfw, &project);
        assert_forbidden("a patch of the deployment", deployments.patch("a", &params, &patch).await);
        let mut copy = world.hub().namespace_of(&project).eventually_has(deployment_named("a")).await;
        copy.status.get_or_insert_default().ready_replicas = 99;
        assert_forbidden("its status", deployments.replace_status("a", &PostParams::default(), &copy).await);
        assert_forbidden(
            "a delete of the deployment",
            deployments.delete("a", &DeleteParams::default()).await,
        );
        let more = deployment("more").labelled(labels::TOPOLOGY_CITY_CODE, "dfw").0;
        assert_forbidden("a deployment", deployments.create(&PostParams::default(), &more).await);
        let policies = api_of::<PropagationPolicy>(&dfw, &project);
        assert_forbidden("a policy", policies.create(&PostParams::default(), &mk_policy("ord")).await);
        assert_forbidden(
            "a delete of the policy",
            policies.delete("city-dfw", &DeleteParams::default()).await,
        );
        let namespaces: Api<Namespace> = Api::all(dfw.clone());
        assert_forbidden(
            "a patch of the namespace",
            namespaces.patch(&project.hub_namespace(), &params, &patch).await,
        );
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some("ns-stolen".into()), ..Default::default() },
            ..Default::default()
        };
        assert_forbidden("a namespace", namespaces.create(&PostParams::default(), &namespace).await);
        let clusters: Api<Cluster> = Api::all(dfw.clone());
        assert_forbidden("a patch of a Cluster", clusters.patch("ord", &params, &patch).await);
        assert_forbidden(
            "a list of secrets",
            Api::<Secret>::all(dfw.clone()).list(&ListParams::default()).await,
        );
        for (city, name, allowed) in [
            ("dfw", "dfw.other", true),
            ("ord", "ord.stolen", false),
            ("dfw", "ord.stolen", false),
            ("ord", "dfw.stolen", false),
        ] {
            let mut lease = heartbeat::renewed(None, city, "stolen", &Time(jiff::Timestamp::now()));
            lease.metadata.name = Some(name.into());
            let leases: Api<Lease> = Api::namespaced(dfw.clone(), heartbeat::NAMESPACE);
            match leases.create(&PostParams::default(), &lease).await {
                created if allowed => drop(created.expect("a Lease of its own city")),
                created => assert_forbidden(&format!("Lease {name} of {city}"), created),
            }
        }
        let config = ConfigMap {
            metadata: ObjectMeta { name: Some("x".into()), ..Default::default() },
            ..Default::default()
        };
        assert_forbidden(
            "a config map",
            api_of::<ConfigMap>(&dfw, &project).create(&PostParams::default(), &config).await,
        );
    });
}

/// A client of the project's plane with this identity and every right there.
async fn client_of_tenant(world: &World, project: &Project, user: &str, groups: &[&str]) -> Client {
    let (plane, admin) = (project.name(), project.recorder.client());
    for object in [
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "tenant"},
            "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": format!("tenant-{}", user.replace(':', "-"))},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tenant"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]}),
    ] {
        manifest::apply(admin, plane, &object).await.unwrap();
    }
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    let client = world.fixture().planes.client(plane, ClientIdentity { user: user.to_owned(), groups }).await;
    let client = client.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &project.namespace);
    let allowed = until(plane, "the rights of the tenant", TIMEOUT, async || {
        maps.list(&ListParams::default()).await.map(|_| Some(())).map_err(|err| err.to_string())
    });
    allowed.await.unwrap_or_else(|err| panic!("{err}"));
    client
}

#[test]
fn only_the_manager_and_administrators_write_deployments_and_instances_of_a_project() {
    scenario(async |world| {
        let project = world.project("bank").await;
        project.deploy(deployment("a").to("dfw")).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
        let post = PostParams::default();
        // The second tenant has the name of the manager's service account, which it can create on its plane.
        for user in ["ann", MANAGER] {
            let tenant = client_of_tenant(world, &project, user, &[]).await;
            let deployments: Api<WorkloadDeployment> = Api::namespaced(tenant.clone(), &project.namespace);
            let instances: Api<Instance> = Api::namespaced(tenant, &project.namespace);
            let refused = deployments.create(&post, &deployment("b").to("dfw").0).await;
            let message = refused.as_ref().map_or_else(ToString::to_string, |_| String::new());
            assert!(message.contains("written by the manager alone"), "{user}: {message}");
            assert!(message.contains("Workload"), "{user}: {message}");
            assert_forbidden(&format!("{user}: a deployment"), refused);
            let patch = json!({"spec": {"scaleSettings": {"minReplicas": 9}}});
            let patched = deployments.patch("a", &PatchParams::default(), &Patch::Merge(&patch)).await;
            assert_forbidden(&format!("{user}: a patch"), patched);
            let status = json!({"status": {"readyReplicas": 9}});
            let patched =
                deployments.patch_status("a", &PatchParams::default(), &Patch::Merge(&status)).await;
            assert_forbidden(&format!("{user}: a status"), patched);
            let deleted = instances.delete("a-0", &DeleteParams::default()).await;
            assert_forbidden(&format!("{user}: the deletion of an instance"), deleted);
        }
        let administrator = client_of_tenant(world, &project, "eve", &[ADMINISTRATORS]).await;
        let deployments: Api<WorkloadDeployment> = Api::namespaced(administrator, &project.namespace);
        deployments.create(&post, &deployment("b").to("dfw").0).await.unwrap();
        rollout::until_running(world, &project, "b", "dfw", 1).await;
    });
}

#[test]
fn a_stolen_quota_credential_claims_only_for_instances_of_its_city() {
    scenario(async |world| {
        let project = world.project("bank").await;
        project.deploy(deployment("a").to("dfw")).await;
        rollout::until_running(world, &project, "a", "dfw", 1).await;
        let plane = project.name();
        for file in ["claims.yaml", "confinement.yaml"] {
            let path = root().join("deploy/components/rbac/quota").join(file);
            for object in objects(file, &std::fs::read_to_string(path).unwrap()) {
                manifest::apply(project.recorder.client(), plane, &object).await.unwrap();
            }
        }
        let claims = async |city: &str| -> Api<ResourceClaim> {
            let identity =
                ClientIdentity { user: cell_user(city), groups: vec![CELLS.to_owned(), city_group(city)] };
            let client = world.fixture().planes.client(plane, identity).await.unwrap();
            Api::namespaced(client, &project.namespace)
        };
        let (dfw, ord) = (claims("dfw").await, claims("ord").await);
        let hub_namespace = project.hub_namespace();
        let deployments: Api<WorkloadDeployment> =
            Api::namespaced(project.recorder.client().clone(), &project.namespace);
        let uid_of_a = deployments.get("a").await.unwrap().metadata.uid.unwrap();
        let owned_by = |claim: &mut ResourceClaim, name: &str, uid: &str| {
            let owner = OwnerReference {
                api_version: "compute.datumapis.com/v1alpha".into(),
                kind: "WorkloadDeployment".into(),
                name: name.into(),
                uid: uid.into(),
                ..Default::default()
            };
            claim.metadata.owner_references = Some(vec![owner]);
        };
        let mk_claim = |name: &str, city: &str| -> ResourceClaim {
            let project =
                json!({"apiGroup": "resourcemanager.miloapis.com", "kind": "Project", "name": plane});
            let mut claim = serde_json::from_value(json!({
                "apiVersion": "quota.miloapis.com/v1alpha1", "kind": "ResourceClaim",
                "metadata": {"name": name, "labels": {
                    labels::SOURCE_CLUSTER: city, labels::INSTANCE_NAMESPACE: hub_namespace,
                    labels::CITY_CODE: city,
                }},
                "spec": {"consumerRef": project, "resourceRef": project, "requests": [
                    {"resourceType": "compute.datumapis.com/instances", "amount": 1}]},
            }))
            .unwrap();
            match name.starts_with("instance-a-") {
                true => owned_by(&mut claim, "a", &uid_of_a),
                false => owned_by(&mut claim, "b", "the-uid-of-no-deployment"),
            }
            claim
        };
        let post = PostParams::default();
        let granted = until(plane, "the rights of the cell", TIMEOUT, async || {
            let created = dfw.create(&post, &mk_claim("instance-a-7", "dfw")).await;
            created.map(|_| Some(())).map_err(|err| err.to_string())
        });
        granted.await.unwrap_or_else(|err| panic!("{err}"));

        let delete = DeleteParams::default();
        // A real API server applies a policy with parameters when it has seen them.
        let confined = until(plane, "the policy on the deployments of a namespace", TIMEOUT, async || {
            match ord.create(&post, &mk_claim("instance-a-9", "ord")).await {
                Err(kube::Error::Api(status)) if status.code == 403 => Ok(Some(())),
                Err(error) => Err(error.to_string()),
                Ok(_) => {
                    ord.delete("instance-a-9", &delete).await.map(|_| None).map_err(|err| err.to_string())
                }
            }
        });
        confined.await.unwrap_or_else(|err| panic!("{err}"));
        assert_forbidden("the deletion of a claim of dfw", ord.delete("instance-a-7", &delete).await);
        let mut unlabelled = mk_claim("instance-b-0", "ord");
        unlabelled.metadata.labels = None;
        let mut held = mk_claim("instance-b-0", "ord");
        held.metadata.finalizers = Some(vec!["example.com/held".into()]);
        let mut unowned = mk_claim("instance-b-0", "ord");
        unowned.metadata.owner_references = None;
        let mut of_another = mk_claim("instance-b-0", "ord");
        owned_by(&mut of_another, "a", &uid_of_a);
        let mut of_another_uid = mk_claim("instance-a-8", "dfw");
        owned_by(&mut of_another_uid, "a", "1");
        assert_forbidden("a claim with another UID of its owner", dfw.create(&post, &of_another_uid).await);
        for (what, claim) in [
            ("a claim for an instance of dfw", mk_claim("instance-a-8", "ord")),
            ("a claim that is labelled for dfw", mk_claim("instance-b-0", "dfw")),
            ("a claim that is not named after an instance", mk_claim("mine", "ord")),
            ("a claim without labels", unlabelled),
            ("a claim with a finalizer", held),
            ("a claim without an owner", unowned),
            ("a claim that another deployment owns", of_another),
        ] {
            assert_forbidden(what, ord.create(&post, &claim).await);
        }
        // The garbage collector deletes a claim whose owner does not exist.
        let mut by_hand = mk_claim("by-hand", "ord");
        by_hand.metadata.owner_references = None;
        let admin: Api<ResourceClaim> =
            Api::namespaced(project.recorder.client().clone(), &project.namespace);
        admin.create(&post, &by_hand).await.unwrap();
        assert_forbidden("the deletion of a claim of a user", ord.delete("by-hand", &delete).await);
        // A deployment that does not exist keeps no quota.
        ord.create(&post, &mk_claim("instance-b-0", "ord")).await.unwrap();
        let collected = until(plane, "the claim without a deployment is gone", TIMEOUT, async || {
            let found = admin.get_opt("instance-b-0").await.map_err(|err| err.to_string())?;
            Ok(found.is_none().then_some(()))
        });
        collected.await.unwrap_or_else(|err| panic!("{err}"));
        dfw.delete("instance-a-7", &delete).await.unwrap();
    });
}
