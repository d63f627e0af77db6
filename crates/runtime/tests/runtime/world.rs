//! The world of these tests, and the words to speak about it.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use jiff::Timestamp;
use polis_api::compute::{
    Instance, InstanceController, InstanceNetworkInterface, NamedPort, NetworkReference, SandboxContainer,
    SandboxRuntime, SchedulingGate,
};
use polis_api::crds::{self, CrdFile};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::labels;
use polis_apiserver::{Body, Extended, Failure, PlaneSpec, Server};
use polis_core::{conditions, metadata, owner};
use polis_engine::{Clock, Engine, Exactly, Object, Plane, Random};
use polis_runtime::logs::{Ask, Line, Logs, Query};
use polis_runtime::{Process, Restarts, Runtime, Settings, State};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// The namespace of project `acme`, namespace `shop`, on the cell.
pub const HOME: &str = "ns-1";
/// Longer than anything here takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// The kinds of the cell. Deriving their schemas takes longer than most tests.
fn kinds() -> &'static [CrdFile] {
    static KINDS: OnceLock<Vec<CrdFile>> = OnceLock::new();
    KINDS.get_or_init(|| {
        let needed = ["_instances", "_networkbindings", "_subnetclaims"];
        let served = |crd: &CrdFile| needed.iter().any(|kind| crd.path().to_string_lossy().contains(kind));
        crds::compute().into_iter().chain(crds::platform()).filter(served).collect()
    })
}

/// A cell whose instances run as processes.
pub struct World {
    server: Server,
    dir: TempDir,
    settings: Settings,
    clock: Clock,
    runtime: Option<Running>,
}

/// The clock of the engine, as the server sees it.
struct ServerClock(Clock);

impl polis_apiserver::Clock for ServerClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }
}

struct Running {
    process: Process,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl World {
    /// A cell with a runtime that does not wait long.
    pub async fn new() -> Self {
        World::with(|_| {}).await
    }

    /// As [`World::new`], with other settings.
    pub async fn with(change: impl FnOnce(&mut Settings)) -> Self {
        World::built(Clock::system(), change).await
    }

    /// As [`World::new`], where everybody reads the time from this clock.
    pub async fn at(clock: Clock) -> Self {
        World::built(clock, |_| {}).await
    }

    async fn built(clock: Clock, change: impl FnOnce(&mut Settings)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = Settings::new(dir.path().join("dfw"), env!("CARGO_BIN_EXE_polis-shim"), "dfw");
        let logs = Logs::of(&settings.dir);
        let log = move |request| serve_log(logs.clone(), request);
        let builder = Server::builder().subresource("compute.datumapis.com", "instances", "log", log);
        let server = builder.clock(ServerClock(clock.clone())).build().await.unwrap();
        server.create_plane(PlaneSpec::own("cell")).await.unwrap();
        for crd in kinds() {
            server.install_crd_in("cell", &crd.crd).await.unwrap();
        }
        settings.restarts = Restarts {
            first: Duration::from_millis(20),
            cap: Duration::from_millis(100),
            forgiven_after: Duration::from_secs(600),
        };
        change(&mut settings);
        let mut world = World { server, dir, settings, clock, runtime: None };
        let mut home = Namespace::default();
        home.metadata.name = Some(HOME.into());
        home.metadata.labels = Some(metadata::map([
            (labels::UPSTREAM_CLUSTER_NAME, "cluster-acme"),
            (labels::UPSTREAM_NAMESPACE, "shop"),
        ]));
        world.cell().create(&home).await.unwrap();
        world.start();
        world
    }

    /// Starts the runtime, as a process does.
    pub fn start(&mut self) {
        let mut engine = Engine::with(self.clock.clone(), Random::from_seed(7));
        engine.grace(Duration::ZERO); // whatever is under way is dropped where it stands
        let process = Process::open(self.settings.clone()).unwrap();
        let runtime = Runtime { plane: self.cell(), city: "dfw".into(), provider: process.clone() };
        polis_runtime::declare(&mut engine, self.clock.clone(), runtime);
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move { engine.run(async { _ = stopped.await }).await.unwrap() });
        self.runtime = Some(Running { process, stop, task });
    }

    /// Ends the runtime and leaves everything as it is, as a process does that is killed.
    pub async fn kill(&mut self) {
        let Running { process, stop, task } = self.runtime.take().unwrap();
        _ = stop.send(());
        task.await.unwrap();
        drop(process);
    }

    pub fn process(&self) -> &Process {
        &self.runtime.as_ref().unwrap().process
    }

    pub fn cell(&self) -> Plane {
        Plane::in_process::<_, http_body_util::Full<bytes::Bytes>, _>(
            "cell",
            self.server.plane_service("cell"),
        )
    }

    /// Where nothing of Polis is.
    pub fn outside(&self) -> &Path {
        self.dir.path()
    }

    pub async fn create(&self, instance: &Instance) -> String {
        owner::uid(&self.cell().create(instance).await.unwrap().metadata).to_owned()
    }

    pub async fn instance(&self, name: &str) -> Option<Instance> {
        self.cell().live().get((HOME, name)).await.unwrap()
    }

    pub async fn delete(&self, name: &str) {
        let instance = self.instance(name).await.unwrap();
        self.cell().delete(&instance, Exactly::Object).await.unwrap();
    }

    /// Changes an instance, again and again until nobody else was faster.
    pub async fn change(&self, name: &str, change: impl Fn(&mut Instance)) {
        loop {
            let current = self.instance(name).await.unwrap();
            let mut wanted = current.clone();
            change(&mut wanted);
            let cell = self.cell();
            let done = match cell.update(&current, &wanted).await {
                Ok(written) => {
                    let current = written.into_object().unwrap_or(current);
                    cell.update_status(&current, &wanted).await
                }
                Err(error) => Err(error),
            };
            match done {
                Err(error) if error.is_conflict() => {}
                done => {
                    done.unwrap();
                    return;
                }
            }
        }
    }

    pub async fn put<K: Object>(&self, object: &K) {
        self.cell().create(object).await.unwrap();
    }

    /// Changes the status of an object that nobody else writes.
    pub async fn change_status<K: Object>(&self, object: &K, change: impl Fn(&mut K)) {
        let place = (HOME, owner::name(object.meta()));
        let current = self.cell().live().get::<K>(place).await.unwrap().unwrap();
        let mut wanted = current.clone();
        change(&mut wanted);
        self.cell().update_status(&current, &wanted).await.unwrap();
    }

    /// Waits until the instance says so; gives the message.
    pub async fn until_says(&self, name: &str, kind: &str, status: &str, reason: &str) -> String {
        self.until(&format!("{name}: {kind}={status}/{reason}"), async || {
            self.message(name, kind, status, reason).await
        })
        .await
    }

    /// The message of a condition, if it says so.
    pub async fn message(&self, name: &str, kind: &str, status: &str, reason: &str) -> Option<String> {
        let instance = self.instance(name).await?;
        let condition = conditions::find(&instance.status.as_ref()?.conditions, kind)?;
        (condition.status == status && condition.reason == reason).then(|| condition.message.clone())
    }

    pub async fn until_running(&self, name: &str) -> Instance {
        self.until_says(name, "Running", "True", "Running").await;
        self.instance(name).await.unwrap()
    }

    pub async fn until_gone(&self, name: &str) {
        self.until(&format!("{name} gone"), async || self.instance(name).await.is_none().then_some(())).await;
    }

    /// What its only container runs or ran last.
    pub fn state(&self, uid: &str) -> Option<State> {
        self.process().states(uid).unwrap().into_values().next()
    }

    /// Waits until one of the lines that an instance wrote is this; what is behind it, if it only begins so.
    pub async fn until_writes(&self, uid: &str, words: &str) -> String {
        self.until(&format!("output {words:?}"), async || {
            let lines = self.lines(uid, &Query::default()).await;
            lines.iter().find_map(|line| line.text.strip_prefix(words).map(str::to_owned))
        })
        .await
    }

    /// The log of an instance, as the API server of the cell serves it.
    pub async fn log(&self, name: &str, query: &str) -> Result<String, String> {
        let path =
            format!("/apis/compute.datumapis.com/v1alpha/namespaces/{HOME}/instances/{name}/log?{query}");
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        self.cell().kube_client().request_text(request).await.map_err(|error| error.to_string())
    }

    /// What an instance wrote; nothing if it has not begun.
    pub async fn lines(&self, uid: &str, query: &Query) -> Vec<Line> {
        self.process().logs().lines(uid, query).await.unwrap_or_default()
    }

    pub async fn until<T, F: Future<Output = Option<T>>>(
        &self,
        what: &str,
        mut check: impl FnMut() -> F,
    ) -> T {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(found) = check().await {
                return found;
            }
            if Instant::now() > deadline {
                let instances = self.cell().live().list::<Instance>(&polis_engine::Query::within(HOME)).await;
                let told: Vec<_> =
                    instances.unwrap().into_iter().map(|i| (i.metadata.name, i.status)).collect();
                panic!("gave up waiting for {what}\n{told:#?}");
            }
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// What a program does that embeds both the server and the runtime.
async fn serve_log(logs: Logs, request: Extended) -> Result<http::Response<Body>, Failure> {
    let uid = request.object["metadata"]["uid"].as_str().unwrap_or_default();
    let ask = Ask::read(|name| request.parameter(name), Timestamp::now()).map_err(Failure::bad_request)?;
    let text = logs.answer(uid, &ask).await.map_err(|error| Failure::bad_request(error.to_string()))?;
    Ok(http::Response::new(Body::stream(text)))
}

/// Whatever is left dies with the test, also with one that failed.
impl Drop for World {
    fn drop(&mut self) {
        // First the runtime, which would start again what is killed.
        if self.runtime.is_some() {
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(self.kill()));
        }
        let Ok(seats) = std::fs::read_dir(&self.settings.dir) else { return };
        for seat in seats.flatten() {
            let uid = seat.file_name().to_string_lossy().into_owned();
            let Ok(process) = Process::open(self.settings.clone()) else { continue };
            for state in process.states(&uid).unwrap_or_default().into_values() {
                if state.ending.is_none() {
                    _ = Pid::from_raw(state.shim).map(|pid| kill_process(pid, Signal::KILL));
                }
            }
            for pid in processes_of(&uid) {
                _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
            }
        }
    }
}

/// Everything on this host that runs for an instance.
pub fn processes_of(uid: &str) -> Vec<i32> {
    let mark = format!("POLIS_SEAT={uid}/");
    let marked = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry.starts_with(mark.as_bytes()))
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(marked).collect()
}

/// Everything that a directory holds, by path.
pub fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(content) = std::fs::read(&path) {
                found.insert(path, content);
            }
        }
    }
    found
}

/// An instance that may run, of one container.
pub fn mk_instance(name: &str, image: &str, args: &[&str]) -> Instance {
    let mut instance = Instance::default();
    instance.metadata.name = Some(name.into());
    instance.metadata.namespace = Some(HOME.into());
    instance.metadata.labels =
        Some(metadata::map([(labels::WORKLOAD_NAME, "web"), (labels::CITY_CODE, "dfw")]));
    instance.spec.runtime.resources.instance_type = "datumcloud/d1-standard-2".into();
    let container = SandboxContainer {
        name: "app".into(),
        image: image.into(),
        args: args.iter().map(|&arg| arg.into()).collect(),
        ..SandboxContainer::default()
    };
    instance.spec.runtime.sandbox =
        Some(SandboxRuntime { containers: vec![container], ..SandboxRuntime::default() });
    let network = NetworkReference { name: "default".into(), namespace: None };
    instance.spec.network_interfaces = vec![InstanceNetworkInterface { network, network_policy: None }];
    instance.spec.controller =
        Some(InstanceController { template_hash: "0123456789".into(), scheduling_gates: Vec::new() });
    instance
}

/// An instance that runs a script of the shell.
pub fn mk_script(name: &str, script: &str) -> Instance {
    mk_instance(name, "process:sh", &["-c", script])
}

/// With a port for its only container.
pub fn with_port(mut instance: Instance, port: i32) -> Instance {
    container(&mut instance).ports = vec![NamedPort { name: "http".into(), port, protocol: None }];
    instance
}

pub fn with_gate(mut instance: Instance, gate: &str) -> Instance {
    instance.spec.controller.as_mut().unwrap().scheduling_gates = vec![SchedulingGate { name: gate.into() }];
    instance
}

pub fn container(instance: &mut Instance) -> &mut SandboxContainer {
    &mut instance.spec.runtime.sandbox.as_mut().unwrap().containers[0]
}

/// The address that an instance was given.
pub fn address(instance: &Instance) -> String {
    let interface = instance.status.as_ref().unwrap().network_interfaces.first().cloned();
    interface.and_then(|interface| interface.assignments?.network_ip).expect("it has an address")
}

/// Asks an instance over HTTP.
pub async fn ask(address: &str, port: u16) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect((address, port)).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}
