//! Test environment: projects `acme` and `globex`, a hub with members in `dfw` and `ord`, the controllers.

use std::time::Duration;

use polis_api::ObjectExt as _;
use polis_api::compute::{Instance, Workload, WorkloadDeployment, WorkloadDeploymentStatus};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::names;
use polis_core::cities::TenancyMode;
use polis_core::owner;
use polis_engine::{FixedPlanes, Plane};
use polis_testing::builders::{
    NETWORK, mk_condition, mk_deployment, mk_instance, mk_location_binding, mk_member, mk_network,
    mk_workload,
};
use polis_testing::{Cluster, HUB, PlaneExt as _, PlaneRequests, eventually};

/// Longer than every back-off and requeue delay of the controllers.
pub const LONG: Duration = Duration::from_secs(20 * 60);
/// The namespace of the tests in each project.
pub const NAMESPACE: &str = "default";
const ENGINE: &str = "management";

/// Two projects and a hub.
pub struct TestEnv {
    pub cluster: Cluster,
    /// The hub namespace of namespace `default` in `acme`.
    pub hub_namespace: String,
    tenancy: TenancyMode,
}

impl TestEnv {
    /// Planes with members, bindings and networks; no controller runs yet.
    pub async fn new() -> Self {
        let cluster = Cluster::builder().project("acme").project("globex").hub().build().await;
        for city in ["dfw", "ord"] {
            cluster.plane(HUB).create(&mk_member(city, Some(city))).await.unwrap();
            cluster.plane("acme").create(&mk_location_binding(city)).await.unwrap();
        }
        cluster.plane("acme").create(&mk_network(NAMESPACE, NETWORK)).await.unwrap();
        Self::with(cluster, TenancyMode::Milo).await
    }

    /// An environment on other planes; it needs `acme` and a hub.
    pub async fn with(cluster: Cluster, tenancy: TenancyMode) -> Self {
        let mut env = Self { cluster, hub_namespace: String::new(), tenancy };
        env.hub_namespace = env.hub_namespace_of("acme").await;
        env
    }

    /// An environment with running controllers.
    pub async fn running() -> Self {
        let mut env = Self::new().await;
        env.start();
        let handle = env.cluster.handle(ENGINE);
        eventually("every plane is watched", async || handle.is_ready().then_some(())).await;
        env
    }

    /// Starts the controllers.
    pub fn start(&mut self) {
        let proxy = self.cluster.proxy.clone();
        let known = ["acme", "globex"].map(|project| proxy.plane(project));
        let (clock, tenancy) = (self.cluster.clock(), self.tenancy);
        self.cluster.start(ENGINE, |engine| {
            polis_management::declare(engine, clock, FixedPlanes::new(known), tenancy, proxy.plane(HUB));
        });
    }

    /// Stops the controllers.
    pub async fn stop(&mut self) {
        self.cluster.stop(ENGINE).await;
    }

    pub fn acme(&self) -> Plane {
        self.cluster.plane("acme")
    }

    pub fn globex(&self) -> Plane {
        self.cluster.plane("globex")
    }

    pub fn hub(&self) -> Plane {
        self.cluster.plane(HUB)
    }

    /// The requests of the controllers to a plane.
    pub fn requests_to(&self, plane: &str) -> PlaneRequests {
        self.cluster.proxy.requests_to(plane)
    }

    /// The writes of the controllers on all planes, in order.
    pub fn writes(&self) -> Vec<String> {
        self.cluster.proxy.requests().writes()
    }

    pub fn metrics(&self) -> String {
        self.cluster.handle(ENGINE).metrics()
    }

    pub async fn hub_namespace_of(&self, project: &str) -> String {
        let namespace: Namespace = self.cluster.plane(project).read(NAMESPACE).await.unwrap();
        names::hub_namespace(namespace.uid())
    }

    /// Creates a workload in `acme`.
    pub async fn run(&self, name: &str, cities: &[&str]) -> Workload {
        self.acme().create(&mk_workload(NAMESPACE, name, cities)).await.unwrap()
    }

    /// Waits until the workload matches.
    pub async fn until_workload(&self, name: &str, matches: impl Fn(&Workload) -> bool) -> Workload {
        self.acme().eventually_has((NAMESPACE, name), matches).await
    }

    /// Waits until the workload has deployments in exactly these cities, and returns them in that order.
    pub async fn until_deployed(&self, cities: &[&str]) -> Vec<WorkloadDeployment> {
        eventually(&format!("deployments in {cities:?}"), async || {
            let mut all = self.acme().all::<WorkloadDeployment>().await;
            all.sort_by(|a, b| a.spec.city_code.cmp(&b.spec.city_code));
            all.iter()
                .map(|deployment| deployment.spec.city_code.as_str())
                .eq(cities.iter().copied())
                .then_some(all)
        })
        .await
    }

    /// Creates a deployment in `acme` without a workload, and waits for its hub copy.
    pub async fn federate(&self, name: &str, city: &str) -> WorkloadDeployment {
        self.deploy(name, city).await;
        self.until_copied(name).await
    }

    /// Creates a deployment in `acme` without a workload.
    pub async fn deploy(&self, name: &str, city: &str) -> WorkloadDeployment {
        self.acme().create(&mk_deployment(NAMESPACE, name, city, 1)).await.unwrap()
    }

    pub async fn deployment(&self, name: &str) -> WorkloadDeployment {
        self.acme().read((NAMESPACE, name)).await.unwrap()
    }

    /// The hub copy of a deployment of `acme`.
    pub async fn copy(&self, name: &str) -> Option<WorkloadDeployment> {
        self.hub().read((self.hub_namespace.as_str(), name)).await
    }

    pub async fn until_copied(&self, name: &str) -> WorkloadDeployment {
        self.hub().eventually_has((self.hub_namespace.as_str(), name), |_| true).await
    }

    /// Writes the status of a hub copy, as the federation does.
    pub async fn report(&self, name: &str, change: impl Fn(&mut WorkloadDeploymentStatus)) {
        let copy = (self.hub_namespace.as_str(), name);
        let set = |copy: &mut WorkloadDeployment| change(copy.status.get_or_insert_default());
        self.hub().change_status::<WorkloadDeployment>(copy, set).await;
    }

    /// Reports a deployment with all its instances ready.
    pub async fn report_ready(&self, name: &str, ready: i32) {
        let available = mk_condition("Available", "True", "StableInstanceFound", &self.cluster.now());
        self.report(name, |status| {
            (status.replicas, status.desired_replicas, status.ready_replicas) = (ready, ready, ready);
            status.conditions = vec![available.clone()];
        })
        .await;
    }

    /// Writes an instance of a hub copy to the hub, as the write-back of a cell does.
    pub async fn write_back(&self, copy: &WorkloadDeployment, ordinal: u32) -> Instance {
        let mut instance = mk_instance(copy, ordinal);
        instance.metadata.owner_references = Some(vec![owner::controller_reference(copy)]);
        self.hub().create(&instance).await.unwrap()
    }

    /// Writes a condition of an instance on the hub, as the write-back of a cell does.
    pub async fn report_instance(&self, name: &str, kind: &str, status: &str, reason: &str) {
        let condition = mk_condition(kind, status, reason, &self.cluster.now());
        let set = |instance: &mut Instance| {
            let status = instance.status.get_or_insert_default();
            status.conditions.retain(|existing| existing.type_ != condition.type_);
            status.conditions.push(condition.clone());
        };
        self.hub().change_status::<Instance>((self.hub_namespace.as_str(), name), set).await;
    }

    /// Lets time pass.
    pub async fn idle(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}
