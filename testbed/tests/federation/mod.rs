//! Helpers for deployments on a test cluster: created on the hub, observed in cells.

use std::time::Duration;

use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use polis_api::{
    compute::{WorkloadDeployment, WorkloadDeploymentStatus},
    labels::TOPOLOGY_CITY_CODE,
};
use polis_testbed::{TestCluster, manifest, plane::HUB};
use serde_json::{Value, json};

/// Timeout of a wait; long enough for a loaded machine. Propagation takes well under a second, after an
/// outage a few.
const WITHIN: Duration = Duration::from_secs(120);

/// One namespace of the federation, the same on the hub and on cells.
pub struct Federation<'a> {
    cluster: &'a TestCluster,
    hub: Client,
    namespace: String,
}

pub fn mk_deployment(name: &str, city: &str) -> WorkloadDeployment {
    serde_json::from_value(json!({
        "apiVersion": "compute.datumapis.com/v1alpha",
        "kind": "WorkloadDeployment",
        "metadata": {"name": name, "labels": {TOPOLOGY_CITY_CODE: city}},
        "spec": {
            "workloadRef": {"name": "web", "uid": "1f0c7f5e-2f0d-4b57-8a51-0c6f7d8f3a11"},
            "placementName": "default",
            "cityCode": city,
            "scaleSettings": {"minReplicas": 2},
            "template": {"spec": {
                "runtime": {
                    "resources": {"instanceType": "datumcloud/d1-standard-2"},
                    "sandbox": {"containers": [{"name": "web", "image": "example.test/web:1"}]},
                },
                "networkInterfaces": [{"network": {"name": "default"}}],
            }},
        },
    }))
    .expect("a deployment")
}

/// A status with a value in every field.
pub fn mk_status(ready: i32) -> WorkloadDeploymentStatus {
    serde_json::from_value(json!({
        "location": {"name": "dfw-1", "namespace": "locations"},
        "cell": "dfw",
        "conditions": [
            {"type": "Available", "status": "True", "reason": "StableInstanceFound", "message": "one is ready",
             "lastTransitionTime": "2026-01-02T03:04:05Z", "observedGeneration": 7},
            {"type": "Progressing", "status": "False", "reason": "Done", "message": "",
             "lastTransitionTime": "2026-01-02T03:04:06Z"},
        ],
        "observedGeneration": 7,
        "replicas": 2,
        "currentReplicas": 0,
        "updatedReplicas": 2,
        "desiredReplicas": 2,
        "readyReplicas": ready,
        "selector": "compute.datumapis.com/workload-deployment-uid=x",
        "suspended": false,
    }))
    .expect("a status")
}

fn mk_policy(namespace: &str, city: &str) -> Value {
    let of_city = json!({"matchLabels": {TOPOLOGY_CITY_CODE: city}});
    json!({
        "apiVersion": "policy.karmada.io/v1alpha1",
        "kind": "PropagationPolicy",
        "metadata": {"name": format!("city-{city}"), "namespace": namespace},
        "spec": {
            "resourceSelectors": [{
                "apiVersion": "compute.datumapis.com/v1alpha",
                "kind": "WorkloadDeployment",
                "labelSelector": of_city,
            }],
            "placement": {"clusterAffinity": {"labelSelector": of_city}},
        },
    })
}

impl<'a> Federation<'a> {
    /// Creates the namespace of one test, with a policy for each city.
    pub async fn new(cluster: &'a TestCluster, namespace: &str, cities: &[&str]) -> Self {
        let hub = cluster.client(HUB).await.expect("a client of the hub");
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        manifest::apply(&hub, HUB, &object).await.expect("a namespace");
        for city in cities {
            manifest::apply(&hub, HUB, &mk_policy(namespace, city)).await.expect("a policy");
        }
        Federation { cluster, hub, namespace: namespace.to_owned() }
    }

    pub fn hub(&self) -> Api<WorkloadDeployment> {
        Api::namespaced(self.hub.clone(), &self.namespace)
    }

    pub async fn cell(&self, city: &str) -> Api<WorkloadDeployment> {
        Api::namespaced(self.cluster.client(city).await.expect("a client of the cell"), &self.namespace)
    }

    pub async fn create(&self, deployment: &WorkloadDeployment) {
        self.hub().create(&PostParams::default(), deployment).await.expect("the hub accepts the deployment");
    }

    pub async fn delete(&self, name: &str) {
        self.hub().delete(name, &Default::default()).await.expect("the hub deletes the deployment");
    }

    /// Writes the status in the cell, as its controller does.
    pub async fn report(&self, city: &str, name: &str, status: &WorkloadDeploymentStatus) {
        let body = json!({"status": status});
        let cell = self.cell(city).await;
        cell.patch_status(name, &PatchParams::default(), &Patch::Merge(&body))
            .await
            .expect("the cell accepts the status");
    }

    /// Waits until the deployment exists and meets the condition.
    pub async fn becomes(
        &self,
        plane: &str,
        name: &str,
        what: &str,
        is: impl Fn(&WorkloadDeployment) -> bool,
    ) -> WorkloadDeployment {
        let api: Api<WorkloadDeployment> =
            Api::namespaced(self.cluster.client(plane).await.expect("a client"), &self.namespace);
        let what = format!("{name} {what}");
        let deployment = manifest::until(plane, &what, WITHIN, async || {
            let found = manifest::retryable(api.get_opt(name).await)?;
            match found {
                Some(deployment) if is(&deployment) => Ok(Some(deployment)),
                Some(deployment) => Err(serde_json::to_string(&deployment).unwrap_or_default()),
                None => Err("it does not exist".to_owned()),
            }
        });
        deployment.await.expect("the deployment meets the condition")
    }

    pub async fn reaches(&self, city: &str, name: &str) -> WorkloadDeployment {
        self.becomes(city, name, "to exist", |_| true).await
    }

    /// Waits until the deployment is deleted.
    pub async fn leaves(&self, plane: &str, name: &str) {
        let api: Api<WorkloadDeployment> =
            Api::namespaced(self.cluster.client(plane).await.expect("a client"), &self.namespace);
        let what = format!("{name} to be deleted");
        let gone = manifest::until(plane, &what, WITHIN, async || {
            Ok(manifest::retryable(api.get_opt(name).await)?.is_none().then_some(()))
        });
        gone.await.expect("the deployment is deleted");
    }
}
