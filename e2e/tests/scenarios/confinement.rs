//! Confinement: what a stolen credential of a cell can do on the hub.

use polis_api::{
    compute::{Instance, WorkloadDeployment},
    k8s_openapi::{
        NamespaceResourceScope,
        api::core::v1::{ConfigMap, Namespace, Secret},
    },
    karmada::{Cluster, PropagationPolicy},
    kube::{
        self, Api, Client, Resource, ResourceExt as _,
        api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
    },
    labels,
};
use polis_e2e::{
    builders::{deployment, mk_policy},
    identities::{CELLS, cell_user, city_group},
    matchers::{deployment_named, instance},
    planes::ClientIdentity,
    project::Project,
    world::{World, scenario},
};
use serde_json::json;

use crate::rollout;

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

#[test]
fn a_stolen_cell_credential_writes_only_instances() {
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
