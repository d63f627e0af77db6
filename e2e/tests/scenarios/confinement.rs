//! Confinement: what the credential of a cell can do on the hub when it is stolen.

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
    draft::{city_policy, deployment},
    identities::{CELLS, cell_user, city_group},
    planes::Identity,
    project::Project,
    seek::{deployed, instance},
    world::{World, scenario},
};
use serde_json::json;

use crate::chain;

/// The credential of the cell of a city, in the hands of somebody else.
async fn stolen(world: &World, city: &str) -> Client {
    let planes = &world.stage().planes;
    let who = Identity { user: cell_user(city), groups: vec![CELLS.to_owned(), city_group(city)] };
    planes.client(&planes.layout().hub, who).await.unwrap()
}

/// That somebody was refused, and not for another reason.
fn refused<T>(what: &str, answer: Result<T, kube::Error>) {
    match answer {
        Err(kube::Error::Api(refusal)) if refusal.code == 403 => {}
        Err(other) => panic!("{what} was refused for another reason: {other}"),
        Ok(_) => panic!("{what} went through"),
    }
}

fn of<K>(client: &Client, project: &Project) -> Api<K>
where
    K: polis_e2e::seek::Kind + Resource<Scope = NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), &project.hub_namespace())
}

#[test]
fn a_stolen_credential_of_a_cell_reaches_no_instance_of_another_city() {
    scenario(async |world| {
        let project = world.project("bank").await;
        project.deploy(deployment("a").to("dfw")).await;
        chain::runs(world, &project, "a", "dfw", 1).await;
        let ord = stolen(world, "ord").await;
        let instances = of::<Instance>(&ord, &project);
        let copy = world.hub().namespace_of(&project).has(instance("a-0")).await;

        let patch = json!({"metadata": {"annotations": {"by": "a thief"}}});
        refused("a change", instances.patch("a-0", &PatchParams::default(), &Patch::Merge(&patch)).await);
        let mut lies = copy.clone();
        lies.status.get_or_insert_default().conditions.clear();
        refused(
            "a lie about its status",
            instances.replace_status("a-0", &PostParams::default(), &lies).await,
        );
        refused("a delete", instances.delete("a-0", &DeleteParams::default()).await);

        // One more instance of the deployment, under the thief's own city and under the right one.
        for city in ["ord", "dfw"] {
            let mut more = copy.clone();
            more.metadata = ObjectMeta {
                name: Some("a-1".into()),
                labels: copy.metadata.labels.clone(),
                owner_references: copy.metadata.owner_references.clone(),
                ..Default::default()
            };
            more.labels_mut().insert(labels::CITY_CODE.into(), city.into());
            refused("an instance of its own", instances.create(&PostParams::default(), &more).await);
        }
        world
            .hub()
            .namespace_of(&project)
            .has(instance("a-0").being(&copy.uid().unwrap_or_default()).ready())
            .await;
    });
}

#[test]
fn a_stolen_credential_of_a_cell_cannot_borrow_a_deployment_of_another_city_in_a_namespace_that_has_both() {
    scenario(async |world| {
        let project = world.project("bank").await;
        project.deploy(deployment("a").to("dfw")).await;
        project.deploy(deployment("b").to("ord")).await;
        chain::runs(world, &project, "a", "dfw", 1).await;
        chain::runs(world, &project, "b", "ord", 1).await;
        let ord = stolen(world, "ord").await;
        let instances = of::<Instance>(&ord, &project);
        let theirs = world.hub().namespace_of(&project).has(instance("a-0")).await;

        let mut forged = theirs.clone();
        forged.metadata = ObjectMeta {
            name: Some("a-1".into()),
            labels: theirs.metadata.labels.clone(),
            owner_references: theirs.metadata.owner_references.clone(),
            ..Default::default()
        };
        forged.labels_mut().insert(labels::CITY_CODE.into(), "ord".into());
        refused(
            "an instance of the other city's deployment",
            instances.create(&PostParams::default(), &forged).await,
        );
        let relabel = json!({"metadata": {"labels": {labels::CITY_CODE: "ord"}}});
        refused(
            "taking the instance over",
            instances.patch("a-0", &PatchParams::default(), &Patch::Merge(&relabel)).await,
        );
    });
}

#[test]
fn a_stolen_credential_of_a_cell_writes_nothing_but_instances() {
    scenario(async |world| {
        let project = world.project("bank").await;
        project.deploy(deployment("a").to("dfw")).await;
        chain::runs(world, &project, "a", "dfw", 1).await;
        let dfw = stolen(world, "dfw").await;
        let patch = json!({"metadata": {"annotations": {"by": "a thief"}}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));

        let deployments = of::<WorkloadDeployment>(&dfw, &project);
        refused("a change of the deployment", deployments.patch("a", &params, &patch).await);
        let mut copy = world.hub().namespace_of(&project).has(deployed("a")).await;
        copy.status.get_or_insert_default().ready_replicas = 99;
        refused("its status", deployments.replace_status("a", &PostParams::default(), &copy).await);
        refused("its end", deployments.delete("a", &DeleteParams::default()).await);
        let more = deployment("more").labelled(labels::TOPOLOGY_CITY_CODE, "dfw").0;
        refused("a deployment", deployments.create(&PostParams::default(), &more).await);
        let policies = of::<PropagationPolicy>(&dfw, &project);
        refused("a policy", policies.create(&PostParams::default(), &city_policy("ord")).await);
        refused("the end of a policy", policies.delete("city-dfw", &DeleteParams::default()).await);
        let namespaces: Api<Namespace> = Api::all(dfw.clone());
        refused(
            "a change of the namespace",
            namespaces.patch(&project.hub_namespace(), &params, &patch).await,
        );
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some("ns-stolen".into()), ..Default::default() },
            ..Default::default()
        };
        refused("a namespace", namespaces.create(&PostParams::default(), &namespace).await);
        let clusters: Api<Cluster> = Api::all(dfw.clone());
        refused("a change of a member", clusters.patch("ord", &params, &patch).await);
        refused("a look at secrets", Api::<Secret>::all(dfw.clone()).list(&ListParams::default()).await);
        let config = ConfigMap {
            metadata: ObjectMeta { name: Some("x".into()), ..Default::default() },
            ..Default::default()
        };
        refused(
            "a config map",
            of::<ConfigMap>(&dfw, &project).create(&PostParams::default(), &config).await,
        );
    });
}
