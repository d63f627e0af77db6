//! Staff: the processes of Polis that a world runs, one per role and replica.
//!
//! A role is the real `polis manager` process, started with the flags and the configuration file that an operator
//! would give it. It reaches its planes over wires, under the identities that we ship. It can be killed, paused,
//! resumed and started again; it never outlives the suite.

use std::{
    fmt, fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use polis_testbed::{guard::Guard, process};
use rustix::process::Signal;

use crate::{
    Error,
    identities::{CELLS, Shipped, cell_user},
    overlays::Post,
    planes::{Identity, Layout, Planes},
    pod::{Pod, free_address, webhook_client},
    wire::{Route, Tap, Wire, project_path},
};

/// What a process of Polis is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Workloads, federation and projections of every project.
    Management,
    /// The same for the one plane named here, as its own cluster, in mode `single`.
    Single(String),
    /// Deployments and instances of a city.
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

/// How long a process may take until it is ready: lists of a few hundred objects on two busy cores.
const READY_WITHIN: Duration = Duration::from_secs(90);
/// Lines of a log that an error shows.
const TAIL: usize = 30;

/// One process of Polis, running or not.
pub struct Member {
    /// What it is for, or the first thing of several.
    pub role: Role,
    /// What it says to its planes. The replicas of a role have a tap each.
    pub tap: Arc<Tap>,
    name: String,
    folder: PathBuf,
    args: Vec<String>,
    environment: Vec<(String, String)>,
    /// Whether that is its whole environment.
    bare: bool,
    /// Whether it is for other roles as well.
    shared: bool,
    /// The role that it does without for a while.
    without: Mutex<Option<Role>>,
    health: SocketAddr,
    /// Where it judges workloads, and by which certificate it is known there.
    webhooks: Option<(SocketAddr, String)>,
    group: u32,
    child: Mutex<Option<Child>>,
    _wires: Vec<Wire>,
}

/// What a member is given beside its role.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// Which replica of the role it is.
    pub replica: usize,
    /// Stands for election by a lease of this time, instead of acting at once.
    pub elects: Option<Duration>,
    /// For a cell: the city that its credential is for, where that is not the one its plane is named after.
    pub city: Option<String>,
}

impl Member {
    /// Gives a role its wires and files. It does not run yet.
    pub async fn hire(
        planes: &dyn Planes,
        shipped: &Shipped,
        folder: &Path,
        guard: &Guard,
        role: Role,
        terms: Terms,
    ) -> Result<Member, Error> {
        let tap = Arc::new(Tap::default());
        let layout = planes.layout();
        let name = format!("{role}-{}", terms.replica);
        let folder = folder.join(&name);
        fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
        let mut wires = Vec::new();
        let credential = terms.city.clone().map_or_else(|| role.clone(), Role::Cell);
        let lay = async |plane: &str, prefix: String| -> Result<Route, Error> {
            let who = shipped.identity(layout, &credential, plane);
            let client = planes.client(plane, who.clone()).await?;
            Ok(Route { prefix, plane: plane.to_owned(), who: Arc::new(who), client })
        };
        let file = |name: &str, text: String| -> Result<PathBuf, Error> {
            let path = folder.join(name);
            fs::write(&path, text).map_err(Error::file(&path))?;
            Ok(path)
        };

        let own = match &role {
            Role::Management => layout.platform.clone(),
            Role::Single(plane) => plane.clone(),
            Role::Cell(city) => city.clone(),
        };
        let wire = Wire::lay(vec![lay(&own, String::new()).await?], tap.clone()).await?;
        let own_cluster = file("own.kubeconfig", wire.kubeconfig())?;
        wires.push(wire);

        let wire = Wire::lay(vec![lay(&layout.hub, String::new()).await?], tap.clone()).await?;
        let hub = file("hub.kubeconfig", wire.kubeconfig())?;
        wires.push(wire);

        let discovery = match &role {
            Role::Single(_) => serde_json::json!({"mode": "single"}),
            Role::Cell(city) => serde_json::json!({"mode": "single", "clusterName": city}),
            Role::Management => {
                let mut routes = Vec::new();
                for project in reachable(layout) {
                    routes.push(lay(project, project_path(project)).await?);
                }
                let wire = Wire::lay(routes, tap.clone()).await?;
                let projects = file("projects.kubeconfig", wire.kubeconfig())?;
                wires.push(wire);
                serde_json::json!({
                    "mode": "milo", "discoveryKubeconfigPath": own_cluster, "projectKubeconfigPath": projects,
                })
            }
        };
        let config = serde_json::json!({
            "apiVersion": "apiserver.config.datumapis.com/v1alpha1", "kind": "WorkloadOperator", "discovery": discovery,
        });
        // JSON is YAML.
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
        if let Some(lease) = terms.elects {
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
        Ok(Member {
            role,
            tap,
            name,
            folder,
            args,
            environment,
            bare: false,
            shared: false,
            without: Mutex::default(),
            health,
            webhooks: None,
            group,
            child: Mutex::default(),
            _wires: wires,
        })
    }

    /// Gives a Deployment its wires and files: everything else is as it was rendered. It does not run yet.
    pub async fn post(
        planes: &dyn Planes,
        shipped: &Shipped,
        folder: &Path,
        guard: &Guard,
        post: &Post,
    ) -> Result<Member, Error> {
        let (layout, tap, role) = (planes.layout(), Arc::new(Tap::default()), post.roles[0].clone());
        let name = post.roles.iter().map(ToString::to_string).collect::<Vec<_>>().join("-");
        let folder = folder.join(&name);
        fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
        let manager = Identity { user: post.rendered.user(), groups: Vec::new() };
        let city = post.roles.iter().find_map(|role| match role {
            Role::Cell(city) => Some(city),
            _ => None,
        });
        let lay = async |plane: &str, prefix: String, who: &Identity| -> Result<Route, Error> {
            let client = planes.client(plane, who.clone()).await?;
            Ok(Route { prefix, plane: plane.to_owned(), who: Arc::new(who.clone()), client })
        };
        // What a platform serves: every project below a path of its own, and the list of them.
        let platform = async |who: &Identity| -> Result<Wire, Error> {
            let mut routes = Vec::new();
            for project in reachable(layout) {
                routes.push(lay(project, project_path(project), who).await?);
            }
            routes.push(lay(&layout.platform, String::new(), who).await?);
            Wire::lay(routes, tap.clone()).await
        };
        let own = match city {
            Some(city) => Wire::lay(vec![lay(city, String::new(), &manager).await?], tap.clone()).await?,
            None => platform(&manager).await?,
        };
        // A manager that is both comes to the hub under one name.
        let on_hub = if post.roles.len() == 1 {
            shipped.identity(layout, &role, &layout.hub)
        } else {
            manager.clone()
        };
        let hub = Wire::lay(vec![lay(&layout.hub, String::new(), &on_hub).await?], tap.clone()).await?;
        let claimant = city.map_or(manager.clone(), |city| Identity {
            user: cell_user(city),
            groups: vec![CELLS.to_owned()],
        });
        let (projects, quota) = (platform(&manager).await?, platform(&claimant).await?);
        let pod = Pod::lay(&post.rendered, &folder, &own.kubeconfig(), &|object| match object {
            "" => "the-wire-has-the-identity".to_owned(),
            hub_s if hub_s.starts_with("compute-hub-kubeconfig") => {
                by_token_file(&hub.kubeconfig(), "/etc/compute/hub-token/token")
            }
            those if those.starts_with("compute-projects-kubeconfig") => {
                by_token_file(&projects.kubeconfig(), "/etc/compute/projects-token/token")
            }
            "compute-quota-credentials" => quota.kubeconfig(),
            other => panic!("nobody brings {other}"),
        });
        Ok(Member {
            role,
            tap,
            name,
            folder,
            args: pod.arguments,
            environment: pod.environment,
            bare: true,
            shared: post.roles.len() > 1,
            without: Mutex::default(),
            health: pod.health,
            webhooks: pod.certificate.map(|certificate| (pod.webhooks, certificate)),
            group: guard.group(),
            child: Mutex::default(),
            _wires: vec![own, hub, projects, quota],
        })
    }

    /// Takes a role away: ends the process, and where it is for others as well, starts it again without this one.
    pub async fn dismiss(&self, role: &Role) -> Result<(), Error> {
        self.kill();
        if !self.shared {
            return Ok(());
        }
        *self.without.lock().expect("nobody panics here") = Some(role.clone());
        self.start().await
    }

    /// Gives every role back.
    pub async fn reinstate(&self) -> Result<(), Error> {
        if self.without.lock().expect("nobody panics here").take().is_some() {
            self.kill();
        }
        if self.is_alive() { Ok(()) } else { self.start().await }
    }

    /// Starts the process and waits until it says that it is ready.
    pub async fn start(&self) -> Result<(), Error> {
        self.launch()?;
        let deadline = Instant::now() + READY_WITHIN;
        while !answers_ready(self.health) {
            if !self.is_alive() {
                return Err(self.failed("it ended before it was ready"));
            }
            if Instant::now() > deadline {
                return Err(self.failed("it was not ready in time"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Starts the process and does not wait.
    pub fn launch(&self) -> Result<(), Error> {
        let program = program()?;
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .map_err(Error::file(self.log()))?;
        let mut command = Command::new(&program);
        if self.bare {
            command.env_clear();
        }
        let off = match &*self.without.lock().expect("nobody panics here") {
            None => None,
            Some(Role::Cell(_)) => Some("ENABLE_CELL_CONTROLLERS"),
            Some(_) => Some("ENABLE_MANAGEMENT_CONTROLLERS"),
        };
        let child = command
            .args(&self.args)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .envs(off.map(|switch| (switch, "false")))
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(Error::file(self.log()))?)
            .stderr(log)
            .process_group(self.group.cast_signed())
            .spawn()
            .map_err(Error::file(&program))?;
        *self.child() = Some(child);
        Ok(())
    }

    /// Ends the process at once, without notice.
    pub fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            let _already_gone = child.kill();
            let _reaped = child.wait();
        }
    }

    /// Asks the process to end and waits until it has.
    pub fn stop(&self) {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.is_alive() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill();
    }

    /// Freezes the process: its connections stay open and it says nothing.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets a frozen process go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Whether the process runs.
    pub fn is_alive(&self) -> bool {
        self.child().as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// The process, if it was started and not killed.
    pub fn pid(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    /// What the metrics page says.
    pub fn metrics(&self) -> Option<String> {
        let answer = ask(self.health, "/metrics")?;
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    }

    /// Has it judge something, as an API server does. None where it serves no webhooks.
    pub async fn judges(&self, path: &str, review: &serde_json::Value) -> Option<serde_json::Value> {
        let (address, certificate) = self.webhooks.as_ref()?;
        let client = webhook_client(*address, certificate);
        let request = http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(review.to_string().into_bytes())
            .expect("a request");
        Some(
            client.request(request).await.unwrap_or_else(|err| panic!("{} does not judge: {err}", self.name)),
        )
    }

    /// The end of the log.
    pub fn tail(&self) -> String {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }

    /// The last lines of the log that hold any of these words.
    pub fn said_about(&self, words: &[String]) -> Vec<String> {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let about = text.lines().filter(|line| words.iter().any(|word| line.contains(word.as_str())));
        let mut lines: Vec<String> = about.rev().take(TAIL).map(str::to_owned).collect();
        lines.reverse();
        lines
    }

    fn signal(&self, signal: Signal) {
        let Some(pid) = self.child().as_ref().map(Child::id) else { return };
        if let Some(identity) = process::Identity::of(pid) {
            let _already_gone = identity.signal(signal);
        }
    }

    fn failed(&self, why: &str) -> Error {
        self.kill();
        Error::Role { role: self.name.clone(), why: why.to_owned(), log: self.log(), tail: self.tail() }
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().expect("nobody panics while starting a process")
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Every plane that may become a project. The one of the platform stands in for a project that comes late.
fn reachable(layout: &Layout) -> Vec<&str> {
    layout.projects.iter().chain([&layout.platform]).map(String::as_str).collect()
}

/// The program under test: the one beside this test program unless POLIS_BIN names another.
fn program() -> Result<PathBuf, Error> {
    let beside = || {
        let here = std::env::current_exe().ok()?;
        // target/<profile>/deps/<test>
        Some(here.parent()?.parent()?.join("polis"))
    };
    let path = std::env::var_os("POLIS_BIN").map(PathBuf::from).or_else(beside).unwrap_or_default();
    if path.is_file() { Ok(path) } else { Err(Error::NoProgram(path)) }
}

/// The same way, with a token in a file as the credential.
fn by_token_file(kubeconfig: &str, file: &str) -> String {
    let mut document: serde_json::Value = serde_json::from_str(kubeconfig).expect("ours is JSON");
    document["users"][0]["user"] = serde_json::json!({"tokenFile": file});
    document.to_string()
}

fn answers_ready(address: SocketAddr) -> bool {
    ask(address, "/readyz").is_some_and(|answer| answer.split(' ').nth(1) == Some("200"))
}

fn ask(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    let _what_came = stream.read_to_end(&mut answer);
    Some(String::from_utf8_lossy(&answer).into_owned())
}
