//! Test environment: a cell, its hub and a project, the cell controllers and a fake provider.

use std::time::Duration;

use polis_api::ObjectExt as _;
use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::conditions::RUNNING;
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_cell::{CellConfig, NetworkMode, QuotaConfig, ResourceRefKind};
use polis_core::{Time, metadata};
use polis_engine::Plane;
use polis_testing::builders::{self, mk_namespace};
use polis_testing::{
    Cluster, FakeProvider, HUB, PLATFORM, PlaneExt as _, PlaneRequests, ProviderBehavior, eventually,
};
use tokio::time::sleep;

/// The hub namespace of namespace `shop` in project `acme`, on hub and cell.
pub const NAMESPACE: &str = "ns-1";
/// The cell's name.
pub const CELL: &str = "dfw-1";
/// Longer than every back-off and requeue delay of the controllers.
pub const LONG: Duration = Duration::from_secs(20 * 60);
/// The city of the cell.
const CITY: &str = "dfw";
const PROVIDER: &str = "provider";

/// Options of a test environment.
#[derive(Clone, Copy, Default)]
pub struct Setup {
    /// Quota enforcement is enabled.
    pub quota: bool,
    /// The cell serves the kinds of the network service.
    pub networks: bool,
    /// The cell runs with `NetworkMode::Disabled`.
    pub networks_off: bool,
    /// Finalizers of other controllers of the cell.
    pub instance_finalizers: &'static [&'static str],
}

/// A cell, its hub and a project.
pub struct TestEnv {
    pub cluster: Cluster,
    setup: Setup,
    /// The requests of the controllers to the cell.
    pub cell: PlaneRequests,
    /// The requests of the controllers to the hub.
    pub hub: PlaneRequests,
    /// The requests of the controllers to project `acme`.
    pub project: PlaneRequests,
}

impl TestEnv {
    /// Creates planes and namespaces; no controller runs yet.
    pub async fn new(setup: Setup) -> Self {
        let mut builder = Cluster::builder().project("acme").hub().cell(CITY);
        if !setup.networks {
            builder = builder.without("networking.datumapis.com");
        }
        let cluster = builder.build().await;
        let requests = |plane| cluster.proxy.requests_to(plane);
        let (cell, hub, project) = (requests(CITY), requests(HUB), requests("acme"));
        for plane in [CITY, HUB] {
            let namespace = builders::mk_hub_namespace(NAMESPACE, "acme", "shop");
            cluster.plane(plane).create(&namespace).await.unwrap();
        }
        cluster.plane("acme").create(&mk_namespace("shop")).await.unwrap();
        Self { cluster, setup, cell, hub, project }
    }

    /// An environment with running cell controllers.
    pub async fn running(setup: Setup) -> Self {
        let mut env = Self::new(setup).await;
        env.start();
        env
    }

    /// Starts the cell controllers.
    pub fn start(&mut self) {
        let (proxy, clock) = (self.cluster.proxy.clone(), self.cluster.clock());
        let quota = QuotaConfig { projects: proxy.plane(PLATFORM), resource_ref: ResourceRefKind::Project };
        let cell = CellConfig {
            plane: proxy.plane(CITY),
            hub: proxy.plane(HUB),
            name: CELL.into(),
            networks: if self.setup.networks_off { NetworkMode::Disabled } else { NetworkMode::WhenServed },
            quota: self.setup.quota.then_some(quota),
            instance_finalizers: self.setup.instance_finalizers.to_vec(),
        };
        self.cluster.start(CELL, |engine| polis_cell::declare(engine, clock, cell).unwrap());
    }

    /// Stops the cell controllers.
    pub async fn stop(&mut self) {
        self.cluster.stop(CELL).await;
    }

    pub fn at_cell(&self) -> Plane {
        self.cluster.plane(CITY)
    }

    pub fn at_hub(&self) -> Plane {
        self.cluster.plane(HUB)
    }

    pub fn at_project(&self) -> Plane {
        self.cluster.plane("acme")
    }

    pub fn metrics(&self) -> String {
        self.cluster.handle(CELL).metrics()
    }

    pub fn now(&self) -> Time {
        self.cluster.now()
    }

    /// Starts a fake provider that sets instances without gates to `Running`.
    pub fn provider(&mut self) {
        self.provider_with_condition(RUNNING);
    }

    /// Like [`TestEnv::provider`], with another condition than `Running`.
    pub fn provider_with_condition(&mut self, running_condition: &'static str) {
        let (cell, clock) = (self.at_cell(), self.cluster.clock());
        let behavior = ProviderBehavior { running_condition, ..ProviderBehavior::default() };
        self.cluster.start(PROVIDER, |engine| _ = FakeProvider::declare(engine, clock, cell, behavior));
    }

    /// Stops the fake provider. Running instances keep their conditions.
    pub async fn stop_provider(&mut self) {
        self.cluster.stop(PROVIDER).await;
    }

    /// Creates a deployment on the hub and in the cell, as the federation does.
    pub async fn deploy(&self, deployment: &WorkloadDeployment) {
        self.at_hub().create(deployment).await.unwrap();
        self.at_cell().create(deployment).await.unwrap();
    }

    /// Changes a deployment in the cell, as the federation does.
    pub async fn change(&self, name: &str, change: impl Fn(&mut WorkloadDeployment)) {
        self.at_cell().change((NAMESPACE, name), change).await;
    }

    /// Deletes a deployment on the hub and in the cell, as the federation does.
    pub async fn undeploy(&self, name: &str) {
        for plane in [self.at_hub(), self.at_cell()] {
            if plane.read::<WorkloadDeployment>((NAMESPACE, name)).await.is_some() {
                plane.remove::<WorkloadDeployment>((NAMESPACE, name)).await;
            }
        }
    }

    pub async fn deployment(&self, name: &str) -> Option<WorkloadDeployment> {
        self.at_cell().read((NAMESPACE, name)).await
    }

    pub async fn instance(&self, name: &str) -> Option<Instance> {
        self.at_cell().read((NAMESPACE, name)).await
    }

    pub async fn copy(&self, name: &str) -> Option<Instance> {
        self.at_hub().read((NAMESPACE, name)).await
    }

    pub async fn instances(&self) -> Vec<Instance> {
        self.at_cell().all_in(NAMESPACE).await
    }

    pub async fn copies(&self) -> Vec<Instance> {
        self.at_hub().all_in(NAMESPACE).await
    }

    /// Waits until the instance has a condition with this status and reason.
    pub async fn until_condition(&self, name: &str, kind: &str, status: &str, reason: &str) -> Instance {
        let what = format!("{name}: {kind}={status}/{reason}");
        eventually(&what, async || {
            self.instance(name).await.filter(|instance| condition(instance, kind) == Some((status, reason)))
        })
        .await
    }

    /// Waits until all instances are ready, in the cell and on the hub.
    pub async fn until_ready(&self, names: &[&str]) {
        for name in names {
            let ready = |instance: &Instance| {
                condition(instance, "Ready").is_some_and(|(status, _)| status == "True")
            };
            eventually(&format!("{name} ready in the cell"), async || {
                self.instance(name).await.filter(ready)
            })
            .await;
            eventually(&format!("{name} ready on the hub"), async || self.copy(name).await.filter(ready))
                .await;
        }
    }

    /// Waits until this many instances run the current template and no other instance exists.
    pub async fn until_rolled_out(&self, name: &str, replicas: i32) {
        eventually(&format!("{name} rolled out"), async || {
            let deployment = self.deployment(name).await?;
            let status = deployment.status?;
            let current = status.observed_generation == deployment.metadata.generation;
            let all = [status.updated_replicas, Some(status.ready_replicas), Some(status.replicas)];
            (current && all == [Some(replicas); 3]).then_some(())
        })
        .await;
    }

    /// Waits until cell and hub have no instance.
    pub async fn until_empty(&self) {
        eventually("cell and hub empty", async || {
            (self.instances().await.is_empty() && self.copies().await.is_empty()).then_some(())
        })
        .await;
    }

    /// Lets time pass.
    pub async fn idle(&self, time: Duration) {
        sleep(time).await;
    }

    /// The reasons of the events of an object in the cell.
    pub async fn events(&self, name: &str) -> Vec<String> {
        let events = self.at_cell().events_of(name).await;
        events.into_iter().filter_map(|event| event.reason).collect()
    }
}

/// Status and reason of a condition.
pub fn condition<'a>(instance: &'a Instance, kind: &str) -> Option<(&'a str, &'a str)> {
    builders::condition(&instance.status.as_ref()?.conditions, kind)
}

pub fn gates(instance: &Instance) -> Vec<&str> {
    polis_core::gates::of(instance).iter().map(|gate| gate.name.as_str()).collect()
}

pub fn names(instances: &[Instance]) -> Vec<&str> {
    instances.iter().map(|instance| instance.name()).collect()
}

pub fn uids(instances: &[Instance]) -> Vec<Option<String>> {
    instances.iter().map(|instance| instance.metadata.uid.clone()).collect()
}

/// The hub namespace with these labels.
pub fn mk_namespace_labelled(pairs: &[(&str, &str)]) -> Namespace {
    let mut namespace = mk_namespace(NAMESPACE);
    namespace.metadata.labels = Some(metadata::map(pairs.iter().copied()));
    namespace
}

/// A deployment in `dfw`.
pub fn mk_deployment(name: &str, replicas: i32) -> WorkloadDeployment {
    builders::mk_deployment(NAMESPACE, name, CITY, replicas)
}
