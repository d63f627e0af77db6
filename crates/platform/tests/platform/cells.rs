//! Cells that claim quota: their controllers, a fake provider, and checks that grants match running
//! instances.

use polis_api::ObjectExt as _;
use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::names;
use polis_api::quota::{RESOURCE_INSTANCES, ResourceClaim};
use polis_cell::{CellConfig, NetworkMode, QuotaConfig, ResourceRefKind};
use polis_core::gates;
use polis_testing::builders::{condition, mk_deployment, mk_hub_namespace};
use polis_testing::{FakeProvider, PLATFORM, PlaneExt as _, ProviderBehavior, Proxy, eventually};

use crate::env::TestEnv;

impl TestEnv {
    /// Starts the controllers of a city's cell. Returns the proxy to the projects.
    pub fn start_cell(&mut self, city: &str) -> Proxy {
        let proxy = self.proxy.unrecorded();
        let cell = CellConfig {
            plane: self.at(city),
            hub: self.at("hub"),
            name: format!("{city}-1"),
            networks: NetworkMode::Disabled,
            quota: Some(QuotaConfig {
                projects: proxy.plane(PLATFORM),
                resource_ref: ResourceRefKind::Project,
            }),
            instance_finalizers: Vec::new(),
        };
        let clock = self.cluster.clock();
        self.start(&format!("cell-{city}"), |engine| polis_cell::declare(engine, clock, cell).unwrap());
        proxy
    }

    /// Starts a fake provider that sets the instances of a city without gates to `Running`.
    pub fn start_provider(&mut self, city: &str) {
        let (cell, clock) = (self.at(city), self.cluster.clock());
        self.start(&format!("provider-{city}"), |engine| {
            FakeProvider::declare(engine, clock, cell, ProviderBehavior::default());
        });
    }

    /// Creates the hub namespace of a project's namespace `default` on hub and cells, and returns its name.
    pub async fn hub_namespace(&self, project: &str, cities: &[&str]) -> String {
        let default: Namespace = self.project(project).uncached().get("default").await.unwrap().unwrap();
        let name = names::hub_namespace(default.uid());
        for plane in cities.iter().chain(&["hub"]) {
            if self.at(plane).uncached().get::<Namespace>(&name).await.unwrap().is_none() {
                let namespace = mk_hub_namespace(&name, project, "default");
                self.at(plane).create(&namespace).await.unwrap();
            }
        }
        name
    }

    /// Creates a deployment on the hub and in the cell, as the federation does.
    pub async fn deploy(&self, city: &str, hub_namespace: &str, name: &str, replicas: i32) {
        let deployment = mk_deployment(hub_namespace, name, city, replicas);
        self.at("hub").create(&deployment).await.unwrap();
        self.at(city).create(&deployment).await.unwrap();
    }

    /// Changes the replicas of a deployment, as the federation does.
    pub async fn scale(&self, city: &str, hub_namespace: &str, name: &str, replicas: i32) {
        let set =
            |deployment: &mut WorkloadDeployment| deployment.spec.scale_settings.min_replicas = replicas;
        self.at(city).change::<WorkloadDeployment>((hub_namespace, name), set).await;
    }

    /// Deletes a deployment, as the federation does.
    pub async fn undeploy(&self, city: &str, hub_namespace: &str, name: &str) {
        for plane in ["hub", city] {
            self.at(plane).remove::<WorkloadDeployment>((hub_namespace, name)).await;
        }
    }

    pub async fn instances(&self, city: &str) -> Vec<Instance> {
        self.at(city).all().await
    }

    pub async fn claims(&self, project: &str) -> Vec<ResourceClaim> {
        self.project(project).all().await
    }

    /// Waits until `QuotaGranted` of an instance has this status and reason.
    pub async fn until_quota(
        &self,
        city: &str,
        hub_namespace: &str,
        name: &str,
        status: &str,
        reason: &str,
    ) -> Instance {
        let desired = Some((status, reason));
        self.at(city)
            .eventually_has::<Instance>((hub_namespace, name), |instance| {
                let status = instance.status.as_ref();
                status.and_then(|status| condition(&status.conditions, "QuotaGranted")) == desired
            })
            .await
    }

    /// Waits until this many instances of a project run, the granted amount is the same, and every claim has
    /// an instance.
    pub async fn until_balanced(&self, project: &str, hub_namespace: &str, cities: &[&str], running: usize) {
        eventually(&format!("{running} instances running and granted in {project}"), async || {
            let mut instances = Vec::new();
            for city in cities {
                instances.extend(self.instances(city).await);
            }
            instances.retain(|instance| instance.namespace() == hub_namespace);
            let claims = self.claims(project).await;
            let granted: i64 = claims.iter().map(granted).sum();
            let runs = instances.iter().filter(|instance| gates::of(instance).is_empty()).count();
            let owned = claims.iter().all(|claim| {
                let of = |i: &Instance| names::resource_claim(i.name()) == claim.name();
                instances.iter().any(of)
            });
            (runs == running && granted == running as i64 && owned).then_some(())
        })
        .await;
    }
}

/// The number of instances that a granted claim holds.
fn granted(claim: &ResourceClaim) -> i64 {
    let Some(status) = &claim.status else { return 0 };
    if !polis_core::conditions::is_true(&status.conditions, "Granted") {
        return 0;
    }
    let of =
        status.allocations.iter().filter(|a| a.resource_type == RESOURCE_INSTANCES && a.status == "Granted");
    of.filter_map(|allocation| allocation.allocated_amount).sum()
}
