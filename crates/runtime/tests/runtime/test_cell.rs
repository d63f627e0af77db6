//! A test cell: an embedded API server with a runtime, and helpers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use polis_api::ObjectExt;
use polis_api::compute::{Instance, InstanceController, NamedPort, SandboxContainer, SchedulingGate};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::{labels, names};
use polis_apiserver::{Builder as ServerBuilder, ResponseBody, StatusError, SubresourceRequest};
use polis_core::{conditions, metadata};
use polis_engine::{Clock, Object, Plane};
use polis_runtime::logs::{LogLine, LogQuery, LogReader, LogRequest};
use polis_runtime::{Isolation, ProcessProvider, ProcessSettings, RestartBackoff, RuntimeConfig, ShimState};
use polis_testing::builders::{mk_hub_namespace, mk_template};
use polis_testing::{Cluster, PlaneExt as _, eventually};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// The cell's namespace of project `acme`, namespace `shop`.
pub const NAMESPACE: &str = "ns-1";
/// A cell that runs its instances as processes.
pub struct TestCell {
    cluster: Cluster,
    dir: TempDir,
    settings: ProcessSettings,
    process: Option<ProcessProvider>,
}

impl TestCell {
    /// A cell with a runtime with short back-offs.
    pub async fn new() -> Self {
        TestCell::with(|_| {}).await
    }

    /// As [`TestCell::new`], with other settings.
    pub async fn with(change: impl FnOnce(&mut ProcessSettings)) -> Self {
        TestCell::built(Clock::system(), change).await
    }

    /// As [`TestCell::new`], with this clock for the server and the engine.
    pub async fn at(clock: Clock) -> Self {
        TestCell::built(clock, |_| {}).await
    }

    async fn built(clock: Clock, change: impl FnOnce(&mut ProcessSettings)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut settings =
            ProcessSettings::new(dir.path().join("dfw"), env!("CARGO_BIN_EXE_polis-shim"), "dfw");
        let logs = LogReader::new(&settings.dir);
        let log = move |request| serve_log(logs.clone(), request);
        let builder = Cluster::builder().cell("cell").clock(clock);
        let logged =
            |server: ServerBuilder| server.subresource("compute.datumapis.com", "instances", "log", log);
        let cluster = builder.server(logged).build().await;
        settings.restart_backoff = RestartBackoff {
            initial: Duration::from_millis(20),
            max: Duration::from_millis(100),
            reset_after: Duration::from_secs(600),
        };
        settings.host_programs = true;
        change(&mut settings);
        let mut cell = TestCell { cluster, dir, settings, process: None };
        cell.plane().create(&mk_hub_namespace(NAMESPACE, "acme", "shop")).await.unwrap();
        cell.start();
        cell
    }

    /// Starts the runtime in this process.
    pub fn start(&mut self) {
        let process = ProcessProvider::open(self.settings.clone()).unwrap();
        let (plane, clock) = (self.plane(), self.cluster.clock());
        let runtime = RuntimeConfig { plane, city: "dfw".into(), provider: process.clone() };
        self.cluster.start("runtime", |engine| {
            engine.shutdown_grace_period(Duration::ZERO); // reconciles in flight are dropped, as by a kill
            polis_runtime::declare(engine, clock, runtime);
        });
        self.process = Some(process);
    }

    /// Stops the runtime as a kill does: containers and state files stay.
    pub async fn kill(&mut self) {
        self.cluster.stop("runtime").await;
        self.process = None;
    }

    pub fn process(&self) -> &ProcessProvider {
        self.process.as_ref().unwrap()
    }

    pub fn plane(&self) -> Plane {
        self.cluster.plane("cell")
    }

    /// A directory outside of the runtime's state directory.
    pub fn outside(&self) -> &Path {
        self.dir.path()
    }

    pub async fn create(&self, instance: &Instance) -> String {
        self.plane().create(instance).await.unwrap().uid().to_owned()
    }

    pub async fn instance(&self, name: &str) -> Option<Instance> {
        self.plane().read((NAMESPACE, name)).await
    }

    pub async fn delete(&self, name: &str) {
        self.plane().remove::<Instance>((NAMESPACE, name)).await;
    }

    /// Changes an instance and its status; retries on conflicts.
    pub async fn change(&self, name: &str, change: impl Fn(&mut Instance)) {
        self.plane().change((NAMESPACE, name), &change).await;
        // Without its last finalizer a terminating instance is gone.
        if self.instance(name).await.is_some() {
            self.plane().change_status((NAMESPACE, name), &change).await;
        }
    }

    pub async fn put<K: Object>(&self, object: &K) {
        self.plane().create(object).await.unwrap();
    }

    /// Changes the status of an object.
    pub async fn change_status<K: Object>(&self, object: &K, change: impl Fn(&mut K)) {
        self.plane().change_status((NAMESPACE, object.name()), change).await;
    }

    /// Waits until the condition has this status and reason; returns its message.
    pub async fn until_condition(&self, name: &str, kind: &str, status: &str, reason: &str) -> String {
        self.until(&format!("{name}: {kind}={status}/{reason}"), async || {
            self.message(name, kind, status, reason).await
        })
        .await
    }

    /// The message of a condition, if it has this status and reason.
    pub async fn message(&self, name: &str, kind: &str, status: &str, reason: &str) -> Option<String> {
        let instance = self.instance(name).await?;
        let condition = conditions::find(&instance.status.as_ref()?.conditions, kind)?;
        (condition.status == status && condition.reason == reason).then(|| condition.message.clone())
    }

    pub async fn until_running(&self, name: &str) -> Instance {
        self.until_condition(name, "Running", "True", "Running").await;
        self.instance(name).await.unwrap()
    }

    pub async fn until_gone(&self, name: &str) {
        self.plane().eventually_lacks::<Instance>((NAMESPACE, name)).await;
    }

    /// The current or last run of the instance's only container.
    pub fn state(&self, uid: &str) -> Option<ShimState> {
        self.process().states(uid).unwrap().into_values().next()
    }

    /// Waits for an output line with this prefix; returns the rest of the line.
    pub async fn until_writes(&self, uid: &str, prefix: &str) -> String {
        self.until(&format!("output {prefix:?}"), async || {
            let lines = self.lines(uid, &LogQuery::default()).await;
            lines.iter().find_map(|line| line.text.strip_prefix(prefix).map(str::to_owned))
        })
        .await
    }

    /// The log of an instance, through the cell's API server.
    pub async fn log(&self, name: &str, query: &str) -> Result<String, String> {
        let path = format!(
            "/apis/compute.datumapis.com/v1alpha/namespaces/{NAMESPACE}/instances/{name}/log?{query}"
        );
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        self.plane().kube_client().request_text(request).await.map_err(|error| error.to_string())
    }

    /// The output of an instance; empty if it has not started.
    pub async fn lines(&self, uid: &str, query: &LogQuery) -> Vec<LogLine> {
        self.process().logs().lines(uid, query).await.unwrap_or_default()
    }

    pub async fn until<T>(&self, what: &str, check: impl AsyncFnMut() -> Option<T>) -> T {
        eventually(what, check).await
    }
}

fn refused(message: String) -> StatusError {
    StatusError::new(400, "BadRequest", message)
}

/// The `log` subresource, as a program with server and runtime embeds it.
async fn serve_log(
    logs: LogReader,
    request: SubresourceRequest,
) -> Result<http::Response<ResponseBody>, StatusError> {
    let uid = request.object["metadata"]["uid"].as_str().unwrap_or_default();
    let log_request =
        LogRequest::from_parameters(|name| request.parameter(name), Timestamp::now()).map_err(refused)?;
    let text = logs.respond(uid, &log_request).await.map_err(|error| refused(error.to_string()))?;
    Ok(http::Response::new(ResponseBody::stream(text)))
}

/// Kills all processes of the test, even if it failed.
impl Drop for TestCell {
    fn drop(&mut self) {
        // The runtime first: it would restart what is killed.
        if self.process.is_some() {
            tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(self.kill()));
        }
        let Ok(instance_dirs) = std::fs::read_dir(&self.settings.dir) else { return };
        for instance_dir in instance_dirs.flatten() {
            let uid = instance_dir.file_name().to_string_lossy().into_owned();
            let Ok(process) = ProcessProvider::open(self.settings.clone()) else { continue };
            for state in process.states(&uid).unwrap_or_default().into_values() {
                if state.termination.is_none() {
                    _ = Pid::from_raw(state.shim).map(|pid| kill_process(pid, Signal::KILL));
                }
            }
            for pid in processes_of(&uid) {
                _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
            }
        }
    }
}

/// What this machine gives to isolate instances.
pub fn isolation() -> Isolation {
    Isolation::of_host(Path::new(env!("CARGO_BIN_EXE_polis-shim")))
}

/// All processes of an instance on this host.
pub fn processes_of(uid: &str) -> Vec<i32> {
    let mark = format!("POLIS_SEAT={uid}/");
    let marked = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry.starts_with(mark.as_bytes()))
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(marked).collect()
}

/// All files below a directory.
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

/// An instance without gates and with one container.
pub fn mk_instance(name: &str, image: &str, args: &[&str]) -> Instance {
    let mut instance = Instance::default();
    instance.metadata.name = Some(name.into());
    instance.metadata.namespace = Some(NAMESPACE.into());
    instance.metadata.labels =
        Some(metadata::map([(labels::WORKLOAD_NAME, "web"), (labels::CITY_CODE, "dfw")]));
    instance.spec = mk_template(image).spec;
    container(&mut instance).args = args.iter().map(|&arg| arg.into()).collect();
    instance.spec.controller =
        Some(InstanceController { template_hash: "0123456789".into(), scheduling_gates: Vec::new() });
    instance
}

/// An instance that runs a shell script.
pub fn mk_script(name: &str, script: &str) -> Instance {
    mk_instance(name, "process:sh", &["-c", script])
}

/// Adds a port to the only container.
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

/// The address of an instance.
pub fn address(instance: &Instance) -> String {
    let interface = instance.status.as_ref().unwrap().network_interfaces.first().cloned();
    interface.and_then(|interface| interface.assignments?.network_ip).expect("the instance has an address")
}

/// Sends an HTTP GET to an instance; returns the response.
pub async fn http_get(address: &str, port: u16) -> String {
    polis_testing::http_get((address.to_owned(), port), "/").await.expect("a response")
}

/// Metadata of the companion of a config map or secret, as the federation brings it to the cell.
pub fn mk_companion(kind: &str, source: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(names::companion(kind, source)),
        namespace: Some(NAMESPACE.into()),
        labels: Some([(labels::REFERENCED_DATA.to_owned(), "true".to_owned())].into()),
        ..ObjectMeta::default()
    }
}
