//! Cells that claim quota: their controllers, a fake provider, and checks that grants match running
//! instances.

use polis_api::compute::{
    Instance, InstanceControllerStatus, InstanceNetworkInterface, InstanceSpec, InstanceTemplateSpec,
    NetworkReference, SandboxContainer, SandboxRuntime, ScaleSettings, Workload, WorkloadDeployment,
    WorkloadDeploymentSpec, WorkloadPlacement, WorkloadReference,
};
use polis_api::conditions::{PROGRAMMED, RUNNING};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::quota::{RESOURCE_INSTANCES, ResourceClaim};
use polis_api::{ObjectExt, labels, names};
use polis_cell::{CellConfig, NetworkMode, QuotaConfig, ResourceRefKind};
use polis_core::conditions::{DesiredCondition, set};
use polis_core::{Time, gates, metadata};
use polis_engine::{Action, Clock, Key, ListOptions, Plane, Reconciler, Watch};

use crate::env::{TestEnv, change, condition, mk_meta, mk_namespace};
use crate::proxy::PlaneProxy;

impl TestEnv {
    /// Starts the controllers of a city's cell. Returns the proxy to the projects.
    pub fn start_cell(&mut self, city: &str) -> PlaneProxy {
        let proxy = self.proxy.another();
        let cell = CellConfig {
            plane: self.at(city),
            hub: self.at("hub"),
            name: format!("{city}-1"),
            networks: NetworkMode::Disabled,
            quota: Some(QuotaConfig {
                projects: Plane::in_process("projects", proxy.clone()),
                resource_ref: ResourceRefKind::Project,
            }),
            instance_finalizers: Vec::new(),
        };
        let clock = self.clock.clone();
        self.start(&format!("cell-{city}"), |engine| polis_cell::declare(engine, clock, cell).unwrap());
        proxy
    }

    /// Starts a fake provider that sets the instances of a city without gates to `Running`.
    pub fn start_provider(&mut self, city: &str) {
        let (cell, clock) = (self.at(city), self.clock.clone());
        self.start(&format!("provider-{city}"), |engine| {
            let cell = engine.plane("cell", cell, [Watch::of::<Instance>()]);
            engine
                .controller("provider", &cell, FakeProvider { cell: cell.clone(), clock })
                .for_kind::<Instance>();
        });
    }

    /// Creates the hub namespace of a project's namespace `default` on hub and cells, and returns its name.
    pub async fn hub_namespace(&self, project: &str, cities: &[&str]) -> String {
        let default: Namespace = self.project(project).uncached().get("default").await.unwrap().unwrap();
        let name = names::hub_namespace(default.uid());
        for plane in cities.iter().chain(&["hub"]) {
            if self.at(plane).uncached().get::<Namespace>(&name).await.unwrap().is_none() {
                let mut namespace = mk_namespace(&name);
                namespace.metadata.labels = Some(metadata::map([
                    (labels::UPSTREAM_CLUSTER_NAME, names::cluster_label(project).unwrap().as_str()),
                    (labels::UPSTREAM_NAMESPACE, "default"),
                ]));
                self.at(plane).create(&namespace).await.unwrap();
            }
        }
        name
    }

    /// Creates a deployment on the hub and in the cell, as the federation does.
    pub async fn deploy(&self, city: &str, hub_namespace: &str, name: &str, replicas: i32) {
        let deployment = mk_deployment(city, hub_namespace, name, replicas);
        self.at("hub").create(&deployment).await.unwrap();
        self.at(city).create(&deployment).await.unwrap();
    }

    /// Changes the replicas of a deployment, as the federation does.
    pub async fn scale(&self, city: &str, hub_namespace: &str, name: &str, replicas: i32) {
        let set =
            |deployment: &mut WorkloadDeployment| deployment.spec.scale_settings.min_replicas = replicas;
        change::<WorkloadDeployment>(&self.at(city), (hub_namespace, name), set).await;
    }

    /// Deletes a deployment, as the federation does.
    pub async fn undeploy(&self, city: &str, hub_namespace: &str, name: &str) {
        for plane in ["hub", city] {
            self.delete::<WorkloadDeployment>(&self.at(plane), (hub_namespace, name)).await;
        }
    }

    pub async fn instances(&self, city: &str) -> Vec<Instance> {
        self.at(city).uncached().list(&ListOptions::all()).await.unwrap()
    }

    pub async fn claims(&self, project: &str) -> Vec<ResourceClaim> {
        self.project(project).uncached().list(&ListOptions::all()).await.unwrap()
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
        let desired = Some((status.to_owned(), reason.to_owned()));
        self.has::<Instance>(&self.at(city), (hub_namespace, name), |instance| {
            let status = instance.status.as_ref();
            status.and_then(|status| condition(&status.conditions, "QuotaGranted")) == desired
        })
        .await
    }

    /// Waits until this many instances of a project run, the granted amount is the same, and every claim has
    /// an instance.
    pub async fn until_balanced(&self, project: &str, hub_namespace: &str, cities: &[&str], running: usize) {
        self.until(&format!("{running} instances running and granted in {project}"), async || {
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

/// Sets every instance without gates to `Running`.
struct FakeProvider {
    cell: Plane,
    clock: Clock,
}

impl Reconciler for FakeProvider {
    type Error = polis_engine::Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Self::Error> {
        let Some(instance) = self.cell.get::<Instance>(key)? else { return Ok(Action::AwaitChange) };
        if gates::of(&instance).is_empty() && !instance.is_deleting() {
            let mut running = instance.clone();
            let hash = polis_core::template::instance_hash(&instance).unwrap_or_default().to_owned();
            let status = running.status.get_or_insert_default();
            status.controller = Some(InstanceControllerStatus { observed_template_hash: hash });
            for (kind, reason) in [(PROGRAMMED, "Programmed"), (RUNNING, "Running")] {
                let (condition, now) = (DesiredCondition::new_true(kind, reason, ""), Time(self.clock.now()));
                set(&mut status.conditions, &condition, instance.metadata.generation, &now);
            }
            self.cell.update_status(&instance, &running).await?;
        }
        Ok(Action::AwaitChange)
    }
}

/// A deployment of instances with 1 CPU and 2 GiB.
pub fn mk_deployment(city: &str, hub_namespace: &str, name: &str, replicas: i32) -> WorkloadDeployment {
    let mut spec = InstanceSpec::default();
    spec.runtime.resources.instance_type = "datumcloud/d1-standard-2".into();
    let container =
        SandboxContainer { name: "app".into(), image: "app:1".into(), ..SandboxContainer::default() };
    spec.runtime.sandbox = Some(SandboxRuntime { containers: vec![container], ..SandboxRuntime::default() });
    let network = NetworkReference { name: "default".into(), namespace: None };
    spec.network_interfaces = vec![InstanceNetworkInterface { network, network_policy: None }];
    let mut deployment = WorkloadDeployment::default();
    deployment.metadata.name = Some(name.into());
    deployment.metadata.namespace = Some(hub_namespace.into());
    deployment.spec = WorkloadDeploymentSpec {
        workload_ref: WorkloadReference { name: name.into(), uid: "uid-of-the-workload".into() },
        placement_name: "default".into(),
        city_code: city.into(),
        template: InstanceTemplateSpec { metadata: None, spec },
        scale_settings: ScaleSettings { min_replicas: replicas, ..ScaleSettings::default() },
        replicas: None,
    };
    deployment
}

/// A workload with one such instance in each city.
pub fn mk_workload(name: &str, cities: &[&str]) -> Workload {
    let deployment = mk_deployment("dfw", "default", name, 1).spec;
    let mut workload = Workload { metadata: mk_meta(Some("default"), name), ..Workload::default() };
    workload.spec.template = deployment.template;
    workload.spec.placements = vec![WorkloadPlacement {
        name: "main".into(),
        city_codes: cities.iter().map(|city| city.to_string()).collect(),
        scale_settings: deployment.scale_settings,
    }];
    workload
}
