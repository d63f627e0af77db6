//! Cells that claim quota: their controllers, something that runs instances, and the sums that must always be right.

use polis_api::compute::{
    Instance, InstanceControllerStatus, InstanceNetworkInterface, InstanceSpec, InstanceTemplateSpec,
    NetworkReference, SandboxContainer, SandboxRuntime, ScaleSettings, Workload, WorkloadDeployment,
    WorkloadDeploymentSpec, WorkloadPlacement, WorkloadReference,
};
use polis_api::conditions::{PROGRAMMED, RUNNING};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::quota::{RESOURCE_INSTANCES, ResourceClaim};
use polis_api::{labels, names};
use polis_cell::{Cell, Networks, Quota, ResourceRefKind};
use polis_core::conditions::{Verdict, set};
use polis_core::{Time, gates, metadata, owner};
use polis_engine::{Clock, Key, Outcome, Plane, Query, Reconciler, Watch};

use crate::line::Line;
use crate::world::{World, change, mk_meta, mk_namespace, told};

impl World {
    /// The controllers of a city's cell run, and something runs its instances. The line is the one to the projects.
    pub fn start_cell(&mut self, city: &str) -> Line {
        let line = self.line.another();
        let cell = Cell {
            plane: self.at(city),
            hub: self.at("hub"),
            name: format!("{city}-1"),
            networks: Networks::Off,
            quota: Some(Quota {
                projects: Plane::in_process("projects", line.clone()),
                resource_ref: ResourceRefKind::Project,
            }),
        };
        let clock = self.clock.clone();
        self.start(&format!("cell-{city}"), |engine| polis_cell::declare(engine, clock, cell).unwrap());
        line
    }

    /// Something runs the instances of a city whose gates are gone.
    pub fn start_provider(&mut self, city: &str) {
        let (cell, clock) = (self.at(city), self.clock.clone());
        self.start(&format!("provider-{city}"), |engine| {
            let cell = engine.plane("cell", cell, [Watch::of::<Instance>()]);
            engine.controller("provider", &cell, Runs { cell: cell.clone(), clock }).on::<Instance>();
        });
    }

    /// The namespace of hub and cells that belongs to a project's namespace `default`, which is made if need be.
    pub async fn home(&self, project: &str, cities: &[&str]) -> String {
        let default: Namespace = self.project(project).live().get("default").await.unwrap().unwrap();
        let name = names::hub_namespace(owner::uid(&default.metadata));
        for plane in cities.iter().chain(&["hub"]) {
            if self.at(plane).live().get::<Namespace>(&name).await.unwrap().is_none() {
                let mut home = mk_namespace(&name);
                home.metadata.labels = Some(metadata::map([
                    (labels::UPSTREAM_CLUSTER_NAME, names::cluster_label(project).unwrap().as_str()),
                    (labels::UPSTREAM_NAMESPACE, "default"),
                ]));
                self.at(plane).create(&home).await.unwrap();
            }
        }
        name
    }

    /// The federation brings a deployment of so many replicas: the hub has it, then the cell.
    pub async fn deploy(&self, city: &str, home: &str, name: &str, replicas: i32) {
        let deployment = mk_deployment(city, home, name, replicas);
        self.at("hub").create(&deployment).await.unwrap();
        self.at(city).create(&deployment).await.unwrap();
    }

    /// The federation brings another number of replicas.
    pub async fn scale(&self, city: &str, home: &str, name: &str, replicas: i32) {
        let set =
            |deployment: &mut WorkloadDeployment| deployment.spec.scale_settings.min_replicas = replicas;
        change::<WorkloadDeployment>(&self.at(city), (home, name), set).await;
    }

    /// The federation takes a deployment away.
    pub async fn undeploy(&self, city: &str, home: &str, name: &str) {
        for plane in ["hub", city] {
            self.delete::<WorkloadDeployment>(&self.at(plane), (home, name)).await;
        }
    }

    pub async fn instances(&self, city: &str) -> Vec<Instance> {
        self.at(city).live().list(&Query::all()).await.unwrap()
    }

    pub async fn claims(&self, project: &str) -> Vec<ResourceClaim> {
        self.project(project).live().list(&Query::all()).await.unwrap()
    }

    /// Waits until the quota of an instance says so.
    pub async fn quota_says(
        &self,
        city: &str,
        home: &str,
        name: &str,
        status: &str,
        reason: &str,
    ) -> Instance {
        let wanted = Some((status.to_owned(), reason.to_owned()));
        self.has::<Instance>(&self.at(city), (home, name), |instance| {
            let status = instance.status.as_ref();
            status.and_then(|status| told(&status.conditions, "QuotaGranted")) == wanted
        })
        .await
    }

    /// Waits until so many instances of a project run, and the sums are right: what is granted is what runs, and no claim
    /// is without an instance.
    pub async fn balances(&self, project: &str, home: &str, cities: &[&str], running: usize) {
        self.until(&format!("{running} running in {project}, and as many granted"), async || {
            let mut instances = Vec::new();
            for city in cities {
                instances.extend(self.instances(city).await);
            }
            instances.retain(|instance| instance.metadata.namespace.as_deref() == Some(home));
            let claims = self.claims(project).await;
            let granted: i64 = claims.iter().map(granted).sum();
            let runs = instances.iter().filter(|instance| gates::of(instance).is_empty()).count();
            let owned = claims.iter().all(|claim| {
                let of = |i: &Instance| {
                    names::resource_claim(owner::name(&i.metadata)) == owner::name(&claim.metadata)
                };
                instances.iter().any(of)
            });
            (runs == running && granted == running as i64 && owned).then_some(())
        })
        .await;
    }
}

/// How many instances a claim was granted, as a whole.
fn granted(claim: &ResourceClaim) -> i64 {
    let Some(status) = &claim.status else { return 0 };
    if !polis_core::conditions::is_true(&status.conditions, "Granted") {
        return 0;
    }
    let of =
        status.allocations.iter().filter(|a| a.resource_type == RESOURCE_INSTANCES && a.status == "Granted");
    of.filter_map(|allocation| allocation.allocated_amount).sum()
}

/// Says of every instance that may run that it does.
struct Runs {
    cell: Plane,
    clock: Clock,
}

impl Reconciler for Runs {
    type Error = polis_engine::Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Self::Error> {
        let Some(instance) = self.cell.get::<Instance>(key)? else { return Ok(Outcome::Settled) };
        if gates::of(&instance).is_empty() && !owner::is_deleting(&instance.metadata) {
            let mut working = instance.clone();
            let hash = polis_core::template::fingerprint(&instance).unwrap_or_default().to_owned();
            let status = working.status.get_or_insert_default();
            status.controller = Some(InstanceControllerStatus { observed_template_hash: hash });
            for (kind, reason) in [(PROGRAMMED, "Programmed"), (RUNNING, "Running")] {
                let (verdict, now) = (Verdict::yes(kind, reason, ""), Time(self.clock.now()));
                set(&mut status.conditions, &verdict, instance.metadata.generation, &now);
            }
            self.cell.update_status(&instance, &working).await?;
        }
        Ok(Outcome::Settled)
    }
}

/// A deployment of so many replicas of one processor and 2 GiB.
pub fn mk_deployment(city: &str, home: &str, name: &str, replicas: i32) -> WorkloadDeployment {
    let mut spec = InstanceSpec::default();
    spec.runtime.resources.instance_type = "datumcloud/d1-standard-2".into();
    let container =
        SandboxContainer { name: "app".into(), image: "app:1".into(), ..SandboxContainer::default() };
    spec.runtime.sandbox = Some(SandboxRuntime { containers: vec![container], ..SandboxRuntime::default() });
    let network = NetworkReference { name: "default".into(), namespace: None };
    spec.network_interfaces = vec![InstanceNetworkInterface { network, network_policy: None }];
    let mut deployment = WorkloadDeployment::default();
    deployment.metadata.name = Some(name.into());
    deployment.metadata.namespace = Some(home.into());
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

/// A workload of one such replica in each of some cities.
pub fn mk_workload(name: &str, cities: &[&str]) -> Workload {
    let like = mk_deployment("dfw", "default", name, 1).spec;
    let mut workload = Workload { metadata: mk_meta(Some("default"), name), ..Workload::default() };
    workload.spec.template = like.template;
    workload.spec.placements = vec![WorkloadPlacement {
        name: "main".into(),
        city_codes: cities.iter().map(|city| city.to_string()).collect(),
        scale_settings: like.scale_settings,
    }];
    workload
}
