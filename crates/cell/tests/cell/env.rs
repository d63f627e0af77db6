//! Test environment: planes, the cell controllers, a fake provider, and helpers to wait for state.

use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

use polis_api::ObjectExt;
use polis_api::compute::{
    Instance, InstanceControllerStatus, InstanceNetworkInterface, InstanceSpec, InstanceTemplateSpec,
    NetworkReference, SandboxContainer, SandboxRuntime, ScaleSettings, WorkloadDeployment,
    WorkloadDeploymentSpec, WorkloadReference,
};
use polis_api::conditions::{PROGRAMMED, RUNNING};
use polis_api::crds::{self, CrdFile};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::api::events::v1::Event;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use polis_api::k8s_openapi::jiff::Timestamp;
use polis_api::labels;
use polis_apiserver::{PlaneSpec, Server};
use polis_cell::{CellConfig, NetworkMode, QuotaConfig, ResourceRefKind};
use polis_core::conditions::{DesiredCondition, find, set};
use polis_core::{Time, metadata};
use polis_engine::{Clock, Engine, Handle, ListOptions, Object, Plane, Preconditions, Random};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::proxy::{CrashPoint, PlaneProxy};

/// The hub namespace of namespace `shop` in project `acme`, on hub and cell.
pub const NAMESPACE: &str = "ns-1";
/// The cell's name.
pub const CELL: &str = "dfw-1";
/// Longer than every back-off and requeue delay of the controllers.
pub const LONG: Duration = Duration::from_secs(20 * 60);

/// The CRDs of compute and of the platform, built once: deriving their schemas takes longer than most tests.
fn kinds() -> &'static (Vec<CrdFile>, Vec<CrdFile>) {
    static KINDS: OnceLock<(Vec<CrdFile>, Vec<CrdFile>)> = OnceLock::new();
    KINDS.get_or_init(|| {
        let quota =
            |crd: &CrdFile| crd.path().to_string_lossy().contains("quota.miloapis.com_resourceclaims");
        let networking = |crd: &CrdFile| crd.path().to_string_lossy().contains("networking.datumapis.com");
        let compute =
            crds::compute().into_iter().filter(|crd| !crd.path().to_string_lossy().contains("_workloads"));
        (
            compute.collect(),
            crds::platform().into_iter().filter(|crd| quota(crd) || networking(crd)).collect(),
        )
    })
}

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

/// A cell, its hub and its projects.
pub struct TestEnv {
    server: Server,
    setup: Setup,
    clock: Clock,
    pub cell: PlaneProxy,
    pub hub: PlaneProxy,
    pub projects: PlaneProxy,
    pub crash_point: CrashPoint,
    engine: Option<Running>,
    provider: Option<JoinHandle<()>>,
}

struct Running {
    handle: Handle,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

struct WallClock(Clock);

impl polis_apiserver::TimeSource for WallClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

impl TestEnv {
    /// Creates planes, CRDs and namespaces; no controller runs yet.
    pub async fn new(setup: Setup) -> Self {
        let clock = Clock::anchored("2026-01-01T00:00:00Z".parse().unwrap());
        let server = Server::builder().clock(WallClock(clock.clone())).build().await.unwrap();
        server.create_plane(PlaneSpec::standalone("cell")).await.unwrap();
        server.create_plane(PlaneSpec::standalone("hub")).await.unwrap();
        let (compute, platform) = kinds();
        for crd in compute {
            for plane in ["cell", "hub"] {
                server.install_crd_in(plane, &crd.crd).await.unwrap();
            }
        }
        for crd in platform {
            let networking = crd.path().to_string_lossy().contains("networking.datumapis.com");
            if networking && setup.networks {
                server.install_crd_in("cell", &crd.crd).await.unwrap();
            } else if !networking {
                server.install_crd("projects", &crd.crd).await.unwrap();
            }
        }
        server.create_plane(PlaneSpec::project("acme", "projects")).await.unwrap();
        let crash_point = CrashPoint::default();
        let env = Self {
            cell: PlaneProxy::new("cell", server.plane_service("cell"), &crash_point),
            hub: PlaneProxy::new("hub", server.plane_service("hub"), &crash_point),
            projects: PlaneProxy::new("projects", server.service(), &crash_point),
            server,
            setup,
            clock,
            crash_point,
            engine: None,
            provider: None,
        };
        for plane in [env.at_cell(), env.at_hub()] {
            plane
                .create(&mk_namespace_labelled(&[
                    (labels::UPSTREAM_CLUSTER_NAME, "cluster-acme"),
                    (labels::UPSTREAM_NAMESPACE, "shop"),
                ]))
                .await
                .unwrap();
        }
        let mut shop = Namespace::default();
        shop.metadata.name = Some("shop".into());
        env.at_project().create(&shop).await.unwrap();
        env
    }

    /// An environment with running cell controllers.
    pub async fn running(setup: Setup) -> Self {
        let mut env = Self::new(setup).await;
        env.start();
        env
    }

    /// Starts the cell controllers.
    pub fn start(&mut self) {
        let mut engine = Engine::with(self.clock.clone(), Random::from_seed(7));
        let quota = QuotaConfig {
            projects: Plane::in_process("projects", self.projects.clone()),
            resource_ref: ResourceRefKind::Project,
        };
        let cell = CellConfig {
            plane: Plane::in_process("cell", self.cell.clone()),
            hub: Plane::in_process("hub", self.hub.clone()),
            name: CELL.into(),
            networks: if self.setup.networks_off { NetworkMode::Disabled } else { NetworkMode::WhenServed },
            quota: self.setup.quota.then_some(quota),
            instance_finalizers: self.setup.instance_finalizers.to_vec(),
        };
        polis_cell::declare(&mut engine, self.clock.clone(), cell).unwrap();
        let handle = engine.handle();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            engine.run(async { _ = stopped.await }).await.unwrap();
        });
        self.engine = Some(Running { handle, stop, task });
    }

    /// Stops the cell controllers.
    pub async fn stop(&mut self) {
        if let Some(Running { stop, task, .. }) = self.engine.take() {
            _ = stop.send(());
            task.await.unwrap();
        }
    }

    /// The cell plane without the proxy: always reachable and not logged.
    pub fn at_cell(&self) -> Plane {
        Plane::in_process::<_, http_body_util::Full<bytes::Bytes>, _>(
            "cell",
            self.server.plane_service("cell"),
        )
    }

    /// The hub plane without the proxy.
    pub fn at_hub(&self) -> Plane {
        Plane::in_process::<_, http_body_util::Full<bytes::Bytes>, _>("hub", self.server.plane_service("hub"))
    }

    /// The plane of project `acme` without the proxy.
    pub fn at_project(&self) -> Plane {
        Plane::in_process::<_, http_body_util::Full<bytes::Bytes>, _>(
            "acme",
            self.server.project_service("acme"),
        )
    }

    pub fn metrics(&self) -> String {
        self.engine.as_ref().unwrap().handle.metrics()
    }

    pub fn now(&self) -> Time {
        Time(self.clock.now())
    }

    /// Starts a fake provider that sets instances without gates to `Running`.
    pub fn provider(&mut self) {
        self.provider_with_condition(RUNNING);
    }

    /// Like [`TestEnv::provider`], with another condition than `Running`.
    pub fn provider_with_condition(&mut self, running_condition: &'static str) {
        let (cell, clock) = (self.at_cell(), self.clock.clone());
        let work = async move {
            loop {
                for instance in cell.uncached().list::<Instance>(&ListOptions::all()).await.unwrap() {
                    if polis_core::gates::of(&instance).is_empty() && !instance.is_deleting() {
                        // On a conflict the next round retries.
                        _ = set_running(&cell, &instance, running_condition, &Time(clock.now())).await;
                    }
                }
                sleep(Duration::from_secs(1)).await;
            }
        };
        self.provider = Some(tokio::spawn(work));
    }

    /// Stops the fake provider. Running instances keep their conditions.
    pub fn stop_provider(&mut self) {
        if let Some(provider) = self.provider.take() {
            provider.abort();
        }
    }

    /// Creates a deployment on the hub and in the cell, as the federation does.
    pub async fn deploy(&self, deployment: &WorkloadDeployment) {
        self.at_hub().create(deployment).await.unwrap();
        self.at_cell().create(deployment).await.unwrap();
    }

    /// Changes a deployment in the cell, as the federation does.
    pub async fn change(&self, name: &str, change: impl Fn(&mut WorkloadDeployment)) {
        change_on(&self.at_cell(), name, change).await;
    }

    /// Deletes a deployment on the hub and in the cell, as the federation does.
    pub async fn undeploy(&self, name: &str) {
        for plane in [self.at_hub(), self.at_cell()] {
            if let Some(deployment) =
                plane.uncached().get::<WorkloadDeployment>((NAMESPACE, name)).await.unwrap()
            {
                plane.delete(&deployment, Preconditions::Uid).await.unwrap();
            }
        }
    }

    pub async fn deployment(&self, name: &str) -> Option<WorkloadDeployment> {
        self.at_cell().uncached().get((NAMESPACE, name)).await.unwrap()
    }

    pub async fn instance(&self, name: &str) -> Option<Instance> {
        self.at_cell().uncached().get((NAMESPACE, name)).await.unwrap()
    }

    pub async fn copy(&self, name: &str) -> Option<Instance> {
        self.at_hub().uncached().get((NAMESPACE, name)).await.unwrap()
    }

    pub async fn instances(&self) -> Vec<Instance> {
        self.at_cell().uncached().list(&ListOptions::within(NAMESPACE)).await.unwrap()
    }

    pub async fn copies(&self) -> Vec<Instance> {
        self.at_hub().uncached().list(&ListOptions::within(NAMESPACE)).await.unwrap()
    }

    /// Waits until the instance has a condition with this status and reason.
    pub async fn until_condition(&self, name: &str, kind: &str, status: &str, reason: &str) -> Instance {
        let what = format!("{name}: {kind}={status}/{reason}");
        self.until(&what, async || {
            self.instance(name)
                .await
                .filter(|instance| condition(instance, kind) == Some((status.into(), reason.into())))
        })
        .await
    }

    /// Waits until all instances are ready, in the cell and on the hub.
    pub async fn until_ready(&self, names: &[&str]) {
        for name in names {
            let ready = |instance: &Instance| {
                condition(instance, "Ready").is_some_and(|(status, _)| status == "True")
            };
            self.until(&format!("{name} ready in the cell"), async || {
                self.instance(name).await.filter(ready)
            })
            .await;
            self.until(&format!("{name} ready on the hub"), async || self.copy(name).await.filter(ready))
                .await;
        }
    }

    /// Waits until this many instances run the current template and no other instance exists.
    pub async fn until_rolled_out(&self, name: &str, replicas: i32) {
        self.until(&format!("{name} rolled out"), async || {
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
        self.until("cell and hub empty", async || {
            (self.instances().await.is_empty() && self.copies().await.is_empty()).then_some(())
        })
        .await;
    }

    /// Waits until the check returns a value, for at most one hour of the paused clock.
    pub async fn until<T, F: Future<Output = Option<T>>>(
        &self,
        what: &str,
        mut check: impl FnMut() -> F,
    ) -> T {
        let deadline = Instant::now() + Duration::from_secs(3600);
        loop {
            if let Some(found) = check().await {
                return found;
            }
            if Instant::now() > deadline {
                let statuses: Vec<_> =
                    self.instances().await.iter().map(|i| (i.name().to_owned(), i.status.clone())).collect();
                panic!(
                    "timed out waiting for {what}\ncell {:?}\nhub {:?}\ninstances {statuses:#?}",
                    self.cell.request_counts(),
                    self.hub.request_counts()
                );
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Advances the clock.
    pub async fn idle(&self, time: Duration) {
        sleep(time).await;
    }

    /// The reasons of the events of an object in the cell.
    pub async fn events(&self, name: &str) -> Vec<String> {
        let events = self.at_cell().uncached().list::<Event>(&ListOptions::within(NAMESPACE)).await.unwrap();
        let about = |event: &Event| {
            event.regarding.as_ref().and_then(|regarding| regarding.name.clone()).as_deref() == Some(name)
        };
        events.into_iter().filter(about).filter_map(|event| event.reason).collect()
    }
}

impl Drop for TestEnv {
    fn drop(&mut self) {
        self.stop_provider();
    }
}

async fn set_running(
    cell: &Plane,
    instance: &Instance,
    running_condition: &'static str,
    now: &Time,
) -> Result<(), polis_engine::Error> {
    let mut running = instance.clone();
    let hash = polis_core::template::instance_hash(instance).unwrap_or_default().to_owned();
    let status = running.status.get_or_insert_default();
    status.controller = Some(InstanceControllerStatus { observed_template_hash: hash });
    for (kind, reason) in [(PROGRAMMED, "Programmed"), (running_condition, running_condition)] {
        set(
            &mut status.conditions,
            &DesiredCondition::new_true(kind, reason, ""),
            instance.metadata.generation,
            now,
        );
    }
    cell.update_status(instance, &running).await.map(|_| ())
}

/// Updates an object; retries on conflict.
pub async fn change_on<K: Object>(plane: &Plane, name: &str, change: impl Fn(&mut K)) {
    loop {
        let current = plane.uncached().get::<K>((NAMESPACE, name)).await.unwrap().expect("the object exists");
        let mut desired = current.clone();
        change(&mut desired);
        match plane.update(&current, &desired).await {
            Err(error) if error.is_conflict() => {}
            done => {
                done.unwrap();
                return;
            }
        }
    }
}

/// Updates the status of an object; retries on conflict.
pub async fn change_status<K: Object>(plane: &Plane, name: (&str, &str), change: impl Fn(&mut K)) {
    loop {
        let current = plane.uncached().get::<K>(name).await.unwrap().expect("the object exists");
        let mut desired = current.clone();
        change(&mut desired);
        match plane.update_status(&current, &desired).await {
            Err(error) if error.is_conflict() => {}
            done => {
                done.unwrap();
                return;
            }
        }
    }
}

/// Status and reason of a condition.
pub fn condition(instance: &Instance, kind: &str) -> Option<(String, String)> {
    let condition = find(&instance.status.as_ref()?.conditions, kind)?;
    Some((condition.status.clone(), condition.reason.clone()))
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
    let metadata = ObjectMeta {
        name: Some(NAMESPACE.into()),
        labels: Some(metadata::map(pairs.iter().copied())),
        ..ObjectMeta::default()
    };
    Namespace { metadata, ..Namespace::default() }
}

/// A deployment in `dfw`.
pub fn mk_deployment(name: &str, replicas: i32) -> WorkloadDeployment {
    let mut deployment = WorkloadDeployment::default();
    deployment.metadata.name = Some(name.into());
    deployment.metadata.namespace = Some(NAMESPACE.into());
    deployment.spec = WorkloadDeploymentSpec {
        workload_ref: WorkloadReference { name: "shop".into(), uid: "uid-of-the-workload".into() },
        placement_name: "default".into(),
        city_code: "dfw".into(),
        template: mk_template("app:1"),
        scale_settings: ScaleSettings { min_replicas: replicas, ..ScaleSettings::default() },
        replicas: None,
    };
    deployment
}

/// A template of one container on `test-network`.
pub fn mk_template(image: &str) -> InstanceTemplateSpec {
    let mut spec = InstanceSpec::default();
    spec.runtime.resources.instance_type = "datumcloud/d1-standard-2".into();
    let container =
        SandboxContainer { name: "app".into(), image: image.into(), ..SandboxContainer::default() };
    spec.runtime.sandbox = Some(SandboxRuntime { containers: vec![container], ..SandboxRuntime::default() });
    let network = NetworkReference { name: "test-network".into(), namespace: None };
    spec.network_interfaces = vec![InstanceNetworkInterface { network, network_policy: None }];
    InstanceTemplateSpec { metadata: None, spec }
}

pub fn mk_condition(kind: &str, status: &str, reason: &str, now: &Time) -> Condition {
    Condition {
        type_: kind.into(),
        status: status.into(),
        reason: reason.into(),
        message: String::new(),
        observed_generation: None,
        last_transition_time: now.clone(),
    }
}
