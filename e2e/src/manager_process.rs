//! The processes under test: `polis manager`, one per role and replica.
//!
//! A process runs with the flags and the configuration file of a real installation. It connects to its planes
//! through proxies, under the shipped identities. Scenarios can kill, pause, resume and restart it. It ends
//! with the suite at the latest.

use std::{
    fmt, fs,
    net::SocketAddr,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use polis_testbed::{guard::Guard, process};
use polis_testing::{free_address, http_get_blocking};
use rustix::process::Signal;

use crate::{
    Error,
    identities::{self, CELLS, ShippedRoles, cell_user, city_group},
    overlays::ManagerDeployment,
    planes::{ClientIdentity, PlaneLayout, TestPlanes},
    pod::{SimulatedPod, webhook_client},
    proxy::{ProxyRoute, RequestLog, TlsProxy, project_path},
};

/// The role of a process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The management controllers, for all projects.
    Management,
    /// The management controllers in mode `single`, with this plane as their own cluster.
    Single(String),
    /// The cell controllers of a city.
    Cell(String),
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Management => write!(f, "management"),
            Role::Single(plane) => write!(f, "single-{plane}"),
            Role::Cell(city) => write!(f, "cell-{city}"),
        }
    }
}

/// Time for a process to become ready: it lists a few hundred objects on two busy cores.
const READY_TIMEOUT: Duration = Duration::from_secs(90);
/// Number of log lines in an error.
const LOG_TAIL_LINES: usize = 30;

/// A `polis manager` process, running or not.
pub struct ManagerProcess {
    /// Its role, or the first of several.
    pub role: Role,
    /// Its requests to all planes.
    pub requests: Arc<RequestLog>,
    name: String,
    dir: PathBuf,
    args: Vec<String>,
    environment: Vec<(String, String)>,
    /// Whether it inherits no other environment variables.
    clean_environment: bool,
    /// Whether it has several roles.
    shared: bool,
    /// The role that is disabled until [`ManagerProcess::restore_roles`].
    disabled_role: Mutex<Option<Role>>,
    health: SocketAddr,
    /// Address and certificate of its webhooks.
    webhooks: Option<(SocketAddr, String)>,
    group: u32,
    child: Mutex<Option<Child>>,
    _proxies: Vec<TlsProxy>,
}

/// Options of a process besides its role.
#[derive(Debug, Clone, Default)]
pub struct ProcessOptions {
    /// The number of the replica.
    pub replica: usize,
    /// Enables leader election with this lease duration.
    pub leader_election: Option<Duration>,
    /// For a cell: the city of its credential, if it differs from the name of its plane.
    pub city: Option<String>,
}

impl ManagerProcess {
    /// Creates the proxies and files of a process without starting it.
    pub async fn prepare(
        planes: &dyn TestPlanes,
        shipped: &ShippedRoles,
        dir: &Path,
        guard: &Guard,
        role: Role,
        options: ProcessOptions,
    ) -> Result<ManagerProcess, Error> {
        let requests = Arc::new(RequestLog::default());
        let layout = planes.layout();
        let name = format!("{role}-{}", options.replica);
        let dir = dir.join(&name);
        fs::create_dir_all(&dir).map_err(Error::file(&dir))?;
        let mut proxies = Vec::new();
        let credential = options.city.clone().map_or_else(|| role.clone(), Role::Cell);
        let route = async |plane: &str, prefix: String| -> Result<ProxyRoute, Error> {
            let identity = shipped.identity(layout, &credential, plane);
            let client = planes.client(plane, identity.clone()).await?;
            Ok(ProxyRoute { prefix, plane: plane.to_owned(), identity: Arc::new(identity), client })
        };
        let file = |name: &str, text: String| -> Result<PathBuf, Error> {
            let path = dir.join(name);
            fs::write(&path, text).map_err(Error::file(&path))?;
            Ok(path)
        };

        let own = match &role {
            Role::Management => layout.platform.clone(),
            Role::Single(plane) => plane.clone(),
            Role::Cell(city) => city.clone(),
        };
        let proxy = TlsProxy::start(vec![route(&own, String::new()).await?], requests.clone()).await?;
        let own_cluster = file("own.kubeconfig", proxy.kubeconfig())?;
        proxies.push(proxy);

        let proxy = TlsProxy::start(vec![route(&layout.hub, String::new()).await?], requests.clone()).await?;
        let hub = file("hub.kubeconfig", proxy.kubeconfig())?;
        proxies.push(proxy);

        let discovery = match &role {
            Role::Single(_) => serde_json::json!({"mode": "single"}),
            Role::Cell(city) => serde_json::json!({"mode": "single", "clusterName": city}),
            Role::Management => {
                let mut routes = Vec::new();
                for project in reachable(layout) {
                    routes.push(route(project, project_path(project)).await?);
                }
                let proxy = TlsProxy::start(routes, requests.clone()).await?;
                let projects = file("projects.kubeconfig", proxy.kubeconfig())?;
                proxies.push(proxy);
                serde_json::json!({
                    "mode": "milo", "discoveryKubeconfigPath": own_cluster, "projectKubeconfigPath": projects,
                })
            }
        };
        let config = serde_json::json!({
            "apiVersion": "apiserver.config.datumapis.com/v1alpha1", "kind": "WorkloadOperator", "discovery": discovery,
        });
        // JSON is valid YAML.
        let config = file("manager.yaml", config.to_string())?;

        let health = free_address();
        let group = match &role {
            Role::Management | Role::Single(_) => "--enable-management-controllers",
            Role::Cell(_) => "--enable-cell-controllers",
        };
        let mut args = vec![
            "manager".to_owned(),
            group.to_owned(),
            format!("--server-config={}", config.display()),
            format!("--federation-kubeconfig={}", hub.display()),
            format!("--health-probe-bind-address={health}"),
        ];
        if let Some(lease) = options.leader_election {
            args.push("--leader-elect".to_owned());
            args.push(format!("--leader-elect-lease-duration={}s", lease.as_secs()));
        }
        let log = std::env::var("POLIS_E2E_LOG").unwrap_or_else(|_| "info,polis=debug".to_owned());
        let environment = vec![
            ("KUBECONFIG".to_owned(), own_cluster.display().to_string()),
            ("RUST_LOG".to_owned(), log),
            ("POD_NAME".to_owned(), name.clone()),
        ];
        let group = guard.group();
        Ok(ManagerProcess {
            role,
            requests,
            name,
            dir,
            args,
            environment,
            clean_environment: false,
            shared: false,
            disabled_role: Mutex::default(),
            health,
            webhooks: None,
            group,
            child: Mutex::default(),
            _proxies: proxies,
        })
    }

    /// Creates the proxies and files of a rendered Deployment without starting it.
    pub async fn from_deployment(
        planes: &dyn TestPlanes,
        shipped: &ShippedRoles,
        dir: &Path,
        guard: &Guard,
        deployment: &ManagerDeployment,
    ) -> Result<ManagerProcess, Error> {
        let (layout, requests, role) =
            (planes.layout(), Arc::new(RequestLog::default()), deployment.roles[0].clone());
        let name = deployment.roles.iter().map(ToString::to_string).collect::<Vec<_>>().join("-");
        let dir = dir.join(&name);
        fs::create_dir_all(&dir).map_err(Error::file(&dir))?;
        let manager = identities::manager(&deployment.rendered.user());
        let city = deployment.roles.iter().find_map(|role| match role {
            Role::Cell(city) => Some(city),
            _ => None,
        });
        let route = async |plane: &str,
                           prefix: String,
                           identity: &ClientIdentity|
               -> Result<ProxyRoute, Error> {
            let client = planes.client(plane, identity.clone()).await?;
            Ok(ProxyRoute { prefix, plane: plane.to_owned(), identity: Arc::new(identity.clone()), client })
        };
        // The platform serves the list of projects, and each project below its own path.
        let platform = async |identity: &ClientIdentity| -> Result<TlsProxy, Error> {
            let mut routes = Vec::new();
            for project in reachable(layout) {
                routes.push(route(project, project_path(project), identity).await?);
            }
            routes.push(route(&layout.platform, String::new(), identity).await?);
            TlsProxy::start(routes, requests.clone()).await
        };
        let own = match city {
            Some(city) => {
                TlsProxy::start(vec![route(city, String::new(), &manager).await?], requests.clone()).await?
            }
            None => platform(&manager).await?,
        };
        // A manager with both roles has one identity on the hub.
        let on_hub = if deployment.roles.len() == 1 {
            shipped.identity(layout, &role, &layout.hub)
        } else {
            manager.clone()
        };
        let hub = TlsProxy::start(vec![route(&layout.hub, String::new(), &on_hub).await?], requests.clone())
            .await?;
        let claimant = city.map_or(manager.clone(), |city| ClientIdentity {
            user: cell_user(city),
            groups: vec![CELLS.to_owned(), city_group(city)],
        });
        let (projects, quota) = (platform(&manager).await?, platform(&claimant).await?);
        let pod =
            SimulatedPod::create(&deployment.rendered, &dir, &own.kubeconfig(), &|object| match object {
                "" => "the-proxy-has-the-identity".to_owned(),
                name if name.starts_with("compute-hub-kubeconfig") => {
                    with_token_file(&hub.kubeconfig(), "/etc/compute/hub-token/token")
                }
                name if name.starts_with("compute-projects-kubeconfig") => {
                    with_token_file(&projects.kubeconfig(), "/etc/compute/projects-token/token")
                }
                "compute-quota-credentials" => quota.kubeconfig(),
                other => panic!("no credential for {other}"),
            });
        Ok(ManagerProcess {
            role,
            requests,
            name,
            dir,
            args: pod.arguments,
            environment: pod.environment,
            clean_environment: true,
            shared: deployment.roles.len() > 1,
            disabled_role: Mutex::default(),
            health: pod.health,
            webhooks: pod.certificate.map(|certificate| (pod.webhooks, certificate)),
            group: guard.group(),
            child: Mutex::default(),
            _proxies: vec![own, hub, projects, quota],
        })
    }

    /// Kills the process. If it has several roles, restarts it without this one.
    pub async fn stop_role(&self, role: &Role) -> Result<(), Error> {
        self.kill();
        if !self.shared {
            return Ok(());
        }
        *self.disabled_role.lock().expect("the lock is not poisoned") = Some(role.clone());
        self.start().await
    }

    /// Restarts the process with all its roles, unless it already runs with them.
    pub async fn restore_roles(&self) -> Result<(), Error> {
        if self.disabled_role.lock().expect("the lock is not poisoned").take().is_some() {
            self.kill();
        }
        if self.is_alive() { Ok(()) } else { self.start().await }
    }

    /// Starts the process and waits until it is ready.
    pub async fn start(&self) -> Result<(), Error> {
        self.launch()?;
        let deadline = Instant::now() + READY_TIMEOUT;
        while !is_ready(self.health) {
            if !self.is_alive() {
                return Err(self.failed("it exited before it was ready"));
            }
            if Instant::now() > deadline {
                return Err(self.failed("it was not ready in time"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Starts the process without waiting.
    pub fn launch(&self) -> Result<(), Error> {
        let program = program()?;
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .map_err(Error::file(self.log()))?;
        let mut command = Command::new(&program);
        if self.clean_environment {
            command.env_clear();
        }
        let disabled = match &*self.disabled_role.lock().expect("the lock is not poisoned") {
            None => None,
            Some(Role::Cell(_)) => Some("ENABLE_CELL_CONTROLLERS"),
            Some(_) => Some("ENABLE_MANAGEMENT_CONTROLLERS"),
        };
        let child = command
            .args(&self.args)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .envs(disabled.map(|switch| (switch, "false")))
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(Error::file(self.log()))?)
            .stderr(log)
            .process_group(self.group.cast_signed())
            .spawn()
            .map_err(Error::file(&program))?;
        *self.child() = Some(child);
        Ok(())
    }

    /// Kills the process.
    pub fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            let _already_exited = child.kill();
            let _reaped = child.wait();
        }
    }

    /// Sends TERM and waits for the exit; kills the process after ten seconds.
    pub fn stop(&self) {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.is_alive() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill();
    }

    /// Stops the process with SIGSTOP; its connections stay open.
    pub fn pause(&self) {
        if let Some(process) = self.pid().and_then(process::ProcessId::of) {
            let _already_exited = process.pause();
        }
    }

    /// Resumes a paused process.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Whether the process runs.
    pub fn is_alive(&self) -> bool {
        self.child().as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// The process id, if it was started and not killed.
    pub fn pid(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// The metrics page.
    pub fn metrics(&self) -> Option<String> {
        let response = http_get_blocking(self.health, "/metrics")?;
        response.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    }

    /// Sends an AdmissionReview, as an API server does; `None` if the process serves no webhooks.
    pub async fn review(&self, path: &str, review: &serde_json::Value) -> Option<serde_json::Value> {
        let (address, certificate) = self.webhooks.as_ref()?;
        let client = webhook_client(*address, certificate);
        let request = http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(review.to_string().into_bytes())
            .expect("a request");
        Some(
            client
                .request(request)
                .await
                .unwrap_or_else(|err| panic!("{} failed to review: {err}", self.name)),
        )
    }

    /// The last lines of the log.
    pub fn tail(&self) -> String {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    /// The last lines of the log that contain one of these texts.
    pub fn log_lines_about(&self, texts: &[String]) -> Vec<String> {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let about = text.lines().filter(|line| texts.iter().any(|text| line.contains(text.as_str())));
        let mut lines: Vec<String> = about.rev().take(LOG_TAIL_LINES).map(str::to_owned).collect();
        lines.reverse();
        lines
    }

    fn signal(&self, signal: Signal) {
        let Some(pid) = self.child().as_ref().map(Child::id) else { return };
        if let Some(identity) = process::ProcessId::of(pid) {
            let _already_exited = identity.signal(signal);
        }
    }

    fn failed(&self, why: &str) -> Error {
        self.kill();
        Error::Role { role: self.name.clone(), why: why.to_owned(), log: self.log(), tail: self.tail() }
    }

    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().expect("the lock is not poisoned")
    }
}

impl Drop for ManagerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The planes that can be projects. The platform's plane serves as a project that is opened late.
fn reachable(layout: &PlaneLayout) -> Vec<&str> {
    layout.projects.iter().chain([&layout.platform]).map(String::as_str).collect()
}

/// The binary under test: the one next to this test program, or POLIS_BIN.
pub fn program() -> Result<PathBuf, Error> {
    let next_to_test = || {
        let here = std::env::current_exe().ok()?;
        // target/<profile>/deps/<test>
        Some(here.parent()?.parent()?.join("polis"))
    };
    let path = std::env::var_os("POLIS_BIN").map(PathBuf::from).or_else(next_to_test).unwrap_or_default();
    if path.is_file() { Ok(path) } else { Err(Error::NoProgram(path)) }
}

/// Replaces the credential of a kubeconfig by a token file.
fn with_token_file(kubeconfig: &str, file: &str) -> String {
    let mut document: serde_json::Value =
        serde_json::from_str(kubeconfig).expect("a proxy's kubeconfig is JSON");
    document["users"][0]["user"] = serde_json::json!({"tokenFile": file});
    document.to_string()
}

fn is_ready(address: SocketAddr) -> bool {
    http_get_blocking(address, "/readyz").is_some_and(|response| response.split(' ').nth(1) == Some("200"))
}
