//! The world of these tests, and the words to speak about it.

use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

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
use polis_cell::{Cell, Networks, Quota, ResourceRefKind};
use polis_core::conditions::{Verdict, find, set};
use polis_core::{Time, metadata, owner};
use polis_engine::{Clock, Engine, Exactly, Handle, Object, Plane, Query, Random};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::line::{Fuse, Line};

/// The namespace of project `acme`, namespace `shop`, on hub and cell.
pub const HOME: &str = "ns-1";
/// The cell's name.
pub const CELL: &str = "dfw-1";
/// Longer than every pause that the controllers keep on purpose.
pub const LONG: Duration = Duration::from_secs(20 * 60);

/// The kinds of compute, and of the platform. Deriving their schemas takes longer than most tests.
fn kinds() -> &'static (Vec<CrdFile>, Vec<CrdFile>) {
    static KINDS: OnceLock<(Vec<CrdFile>, Vec<CrdFile>)> = OnceLock::new();
    KINDS.get_or_init(|| {
        let quota =
            |crd: &CrdFile| crd.path().to_string_lossy().contains("quota.miloapis.com_resourceclaims");
        let networking = |crd: &CrdFile| crd.path().to_string_lossy().contains("networking.datumapis.com");
        let ours =
            crds::compute().into_iter().filter(|crd| !crd.path().to_string_lossy().contains("_workloads"));
        (ours.collect(), crds::platform().into_iter().filter(|crd| quota(crd) || networking(crd)).collect())
    })
}

/// What differs from test to test.
#[derive(Clone, Copy, Default)]
pub struct Setup {
    /// Claims are made in the projects.
    pub quota: bool,
    /// The cell serves the kinds of the network service.
    pub networks: bool,
    /// The cell is told to keep none, whatever it serves.
    pub networks_off: bool,
}

/// A cell, its hub and its projects.
pub struct World {
    server: Server,
    setup: Setup,
    clock: Clock,
    pub cell: Line,
    pub hub: Line,
    pub projects: Line,
    pub fuse: Fuse,
    engine: Option<Running>,
    provider: Option<JoinHandle<()>>,
}

struct Running {
    handle: Handle,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

struct WallClock(Clock);

impl polis_apiserver::Clock for WallClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

impl World {
    /// Planes, kinds and namespaces; no controller runs yet.
    pub async fn new(setup: Setup) -> Self {
        let clock = Clock::anchored("2026-01-01T00:00:00Z".parse().unwrap());
        let server = Server::builder().clock(WallClock(clock.clone())).build().await.unwrap();
        server.create_plane(PlaneSpec::own("cell")).await.unwrap();
        server.create_plane(PlaneSpec::own("hub")).await.unwrap();
        let (ours, theirs) = kinds();
        for crd in ours {
            for plane in ["cell", "hub"] {
                server.install_crd_in(plane, &crd.crd).await.unwrap();
            }
        }
        for crd in theirs {
            let networking = crd.path().to_string_lossy().contains("networking.datumapis.com");
            if networking && setup.networks {
                server.install_crd_in("cell", &crd.crd).await.unwrap();
            } else if !networking {
                server.install_crd("projects", &crd.crd).await.unwrap();
            }
        }
        server.create_plane(PlaneSpec::project("acme", "projects")).await.unwrap();
        let fuse = Fuse::default();
        let world = Self {
            cell: Line::new("cell", server.plane_service("cell"), &fuse),
            hub: Line::new("hub", server.plane_service("hub"), &fuse),
            projects: Line::new("projects", server.service(), &fuse),
            server,
            setup,
            clock,
            fuse,
            engine: None,
            provider: None,
        };
        for plane in [world.at_cell(), world.at_hub()] {
            plane
                .create(&mk_home(&[
                    (labels::UPSTREAM_CLUSTER_NAME, "cluster-acme"),
                    (labels::UPSTREAM_NAMESPACE, "shop"),
                ]))
                .await
                .unwrap();
        }
        let mut shop = Namespace::default();
        shop.metadata.name = Some("shop".into());
        world.at_project().create(&shop).await.unwrap();
        world
    }

    /// A world in which the cell's controllers run.
    pub async fn running(setup: Setup) -> Self {
        let mut world = Self::new(setup).await;
        world.start();
        world
    }

    /// Starts the controllers of the cell, as a process does.
    pub fn start(&mut self) {
        let mut engine = Engine::with(self.clock.clone(), Random::from_seed(7));
        let quota = Quota {
            projects: Plane::in_process("projects", self.projects.clone()),
            resource_ref: ResourceRefKind::Project,
        };
        let cell = Cell {
            plane: Plane::in_process("cell", self.cell.clone()),
            hub: Plane::in_process("hub", self.hub.clone()),
            name: CELL.into(),
            networks: if self.setup.networks_off { Networks::Off } else { Networks::WhereServed },
            quota: self.setup.quota.then_some(quota),
        };
        polis_cell::declare(&mut engine, self.clock.clone(), cell).unwrap();
        let handle = engine.handle();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            engine.run(async { _ = stopped.await }).await.unwrap();
        });
        self.engine = Some(Running { handle, stop, task });
    }

    /// Ends the process.
    pub async fn stop(&mut self) {
        if let Some(Running { stop, task, .. }) = self.engine.take() {
            _ = stop.send(());
            task.await.unwrap();
        }
    }

    /// The test's own view of the cell: neither cut nor counted.
    pub fn at_cell(&self) -> Plane {
        Plane::in_process::<_, http_body_util::Full<bytes::Bytes>, _>(
            "cell",
            self.server.plane_service("cell"),
        )
    }

    /// The test's own view of the hub.
    pub fn at_hub(&self) -> Plane {
        Plane::in_process::<_, http_body_util::Full<bytes::Bytes>, _>("hub", self.server.plane_service("hub"))
    }

    /// The test's own view of project `acme`.
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

    /// Something runs instances whose gates are gone, in the words of current providers.
    pub fn provider(&mut self) {
        self.provider_saying(RUNNING);
    }

    /// As [`World::provider`], with another condition for "it runs".
    pub fn provider_saying(&mut self, runs: &'static str) {
        let (cell, clock) = (self.at_cell(), self.clock.clone());
        let work = async move {
            loop {
                for instance in cell.live().list::<Instance>(&Query::all()).await.unwrap() {
                    if polis_core::gates::of(&instance).is_empty() && !owner::is_deleting(&instance.metadata)
                    {
                        // A conflict is somebody else's change: the next round sees it.
                        _ = put_to_work(&cell, &instance, runs, &Time(clock.now())).await;
                    }
                }
                sleep(Duration::from_secs(1)).await;
            }
        };
        self.provider = Some(tokio::spawn(work));
    }

    /// Nothing runs what comes from now on; what runs, runs.
    pub fn no_provider(&mut self) {
        if let Some(provider) = self.provider.take() {
            provider.abort();
        }
    }

    /// The federation brings a deployment: the hub has it, then the cell.
    pub async fn deploy(&self, deployment: &WorkloadDeployment) {
        self.at_hub().create(deployment).await.unwrap();
        self.at_cell().create(deployment).await.unwrap();
    }

    /// The federation brings a change of a deployment to the cell.
    pub async fn change(&self, name: &str, change: impl Fn(&mut WorkloadDeployment)) {
        change_on(&self.at_cell(), name, change).await;
    }

    /// The federation takes the deployment away: first the hub has it no more, then the cell.
    pub async fn undeploy(&self, name: &str) {
        for plane in [self.at_hub(), self.at_cell()] {
            if let Some(deployment) = plane.live().get::<WorkloadDeployment>((HOME, name)).await.unwrap() {
                plane.delete(&deployment, Exactly::Object).await.unwrap();
            }
        }
    }

    pub async fn deployment(&self, name: &str) -> Option<WorkloadDeployment> {
        self.at_cell().live().get((HOME, name)).await.unwrap()
    }

    pub async fn instance(&self, name: &str) -> Option<Instance> {
        self.at_cell().live().get((HOME, name)).await.unwrap()
    }

    pub async fn copy(&self, name: &str) -> Option<Instance> {
        self.at_hub().live().get((HOME, name)).await.unwrap()
    }

    pub async fn instances(&self) -> Vec<Instance> {
        self.at_cell().live().list(&Query::within(HOME)).await.unwrap()
    }

    pub async fn copies(&self) -> Vec<Instance> {
        self.at_hub().live().list(&Query::within(HOME)).await.unwrap()
    }

    /// Waits until the instance says so.
    pub async fn until_says(&self, name: &str, kind: &str, status: &str, reason: &str) -> Instance {
        let what = format!("{name}: {kind}={status}/{reason}");
        self.until(&what, async || {
            self.instance(name)
                .await
                .filter(|instance| says(instance, kind) == Some((status.into(), reason.into())))
        })
        .await
    }

    /// Waits until every one of these instances is ready, in the cell and on the hub.
    pub async fn until_ready(&self, names: &[&str]) {
        for name in names {
            let ready =
                |instance: &Instance| says(instance, "Ready").is_some_and(|(status, _)| status == "True");
            self.until(&format!("{name} ready in the cell"), async || {
                self.instance(name).await.filter(ready)
            })
            .await;
            self.until(&format!("{name} ready on the hub"), async || self.copy(name).await.filter(ready))
                .await;
        }
    }

    /// Waits until so many instances run the newest template, and no other is left.
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

    /// Waits until no instance and no copy is left.
    pub async fn until_empty(&self) {
        self.until("cell and hub empty", async || {
            (self.instances().await.is_empty() && self.copies().await.is_empty()).then_some(())
        })
        .await;
    }

    /// Waits, an hour of the paused clock at most.
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
                let told: Vec<_> = self
                    .instances()
                    .await
                    .iter()
                    .map(|i| (owner::name(&i.metadata).to_owned(), i.status.clone()))
                    .collect();
                panic!(
                    "gave up waiting for {what}\ncell {:?}\nhub {:?}\ninstances {told:#?}",
                    self.cell.census(),
                    self.hub.census()
                );
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Lets time pass in which nothing happens that has to.
    pub async fn quiet(&self, time: Duration) {
        sleep(time).await;
    }

    /// Reasons of the events about an object of the cell.
    pub async fn events(&self, name: &str) -> Vec<String> {
        let events = self.at_cell().live().list::<Event>(&Query::within(HOME)).await.unwrap();
        let about = |event: &Event| {
            event.regarding.as_ref().and_then(|regarding| regarding.name.clone()).as_deref() == Some(name)
        };
        events.into_iter().filter(about).filter_map(|event| event.reason).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.no_provider();
    }
}

async fn put_to_work(
    cell: &Plane,
    instance: &Instance,
    runs: &'static str,
    now: &Time,
) -> Result<(), polis_engine::Error> {
    let mut working = instance.clone();
    let hash = polis_core::template::fingerprint(instance).unwrap_or_default().to_owned();
    let status = working.status.get_or_insert_default();
    status.controller = Some(InstanceControllerStatus { observed_template_hash: hash });
    for (kind, reason) in [(PROGRAMMED, "Programmed"), (runs, runs)] {
        set(&mut status.conditions, &Verdict::yes(kind, reason, ""), instance.metadata.generation, now);
    }
    cell.update_status(instance, &working).await.map(|_| ())
}

/// Changes an object, again and again until nobody else was faster.
pub async fn change_on<K: Object>(plane: &Plane, name: &str, change: impl Fn(&mut K)) {
    loop {
        let current = plane.live().get::<K>((HOME, name)).await.unwrap().expect("it is there");
        let mut wanted = current.clone();
        change(&mut wanted);
        match plane.update(&current, &wanted).await {
            Err(error) if error.is_conflict() => {}
            done => {
                done.unwrap();
                return;
            }
        }
    }
}

/// Changes the status of an object, again and again until nobody else was faster.
pub async fn change_status<K: Object>(plane: &Plane, place: (&str, &str), change: impl Fn(&mut K)) {
    loop {
        let current = plane.live().get::<K>(place).await.unwrap().expect("it is there");
        let mut wanted = current.clone();
        change(&mut wanted);
        match plane.update_status(&current, &wanted).await {
            Err(error) if error.is_conflict() => {}
            done => {
                done.unwrap();
                return;
            }
        }
    }
}

/// Status and reason of a condition.
pub fn says(instance: &Instance, kind: &str) -> Option<(String, String)> {
    let condition = find(&instance.status.as_ref()?.conditions, kind)?;
    Some((condition.status.clone(), condition.reason.clone()))
}

pub fn gates(instance: &Instance) -> Vec<&str> {
    polis_core::gates::of(instance).iter().map(|gate| gate.name.as_str()).collect()
}

pub fn names(instances: &[Instance]) -> Vec<&str> {
    instances.iter().map(|instance| owner::name(&instance.metadata)).collect()
}

pub fn uids(instances: &[Instance]) -> Vec<Option<String>> {
    instances.iter().map(|instance| instance.metadata.uid.clone()).collect()
}

/// The namespace of hub and cell with these labels.
pub fn mk_home(pairs: &[(&str, &str)]) -> Namespace {
    let metadata = ObjectMeta {
        name: Some(HOME.into()),
        labels: Some(metadata::map(pairs.iter().copied())),
        ..ObjectMeta::default()
    };
    Namespace { metadata, ..Namespace::default() }
}

/// A deployment of so many replicas in `dfw`.
pub fn mk_deployment(name: &str, replicas: i32) -> WorkloadDeployment {
    let mut deployment = WorkloadDeployment::default();
    deployment.metadata.name = Some(name.into());
    deployment.metadata.namespace = Some(HOME.into());
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
