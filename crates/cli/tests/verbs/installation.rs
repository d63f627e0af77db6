//! Fixture: an installation for the real binary, with the embedded API server over TLS, a project with cities
//! and quota, and fake controllers that write deployments, instances and their status.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use polis_api::kube::{Api, Client};
use polis_api::{crds, k8s_openapi::api::core::v1::Namespace};
use polis_apiserver::{Access, PlaneSpec, Server, project_plane};
use polis_testing::{TlsSocket, create_untyped};
use polis_tls::Authority;
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::JoinHandle;

use crate::{fake_controllers, log_server};

/// Timeout of a command, on two cores that also build.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// The index of the fake controllers in the tasks.
const CONTROLLERS: usize = 1;

/// An embedded API server with projects, hub and cell, and a directory with its kubeconfig.
pub struct Installation {
    server: Server,
    dir: TempDir,
    tasks: Vec<JoinHandle<()>>,
    _socket: TlsSocket,
}

impl Drop for Installation {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Exit code and output of a command.
#[derive(Debug)]
pub struct CommandResult {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl CommandResult {
    /// Asserts success and returns stdout.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}\n{}", self.stdout, self.stderr);
        self.stdout
    }

    /// Asserts the exit code and returns stderr.
    #[track_caller]
    pub fn error(self, code: i32) -> String {
        assert_eq!(self.code, code, "{}\n{}", self.stdout, self.stderr);
        self.stderr
    }

    /// Asserts success and decodes stdout as JSON.
    #[track_caller]
    pub fn json(self) -> Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
    }
}

impl From<Output> for CommandResult {
    fn from(output: Output) -> Self {
        CommandResult {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Installation {
    /// An installation with the projects `default` and `shop`, a hub and a cell. The fake controllers run in
    /// `default`.
    pub async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new().unwrap();
        let access = Access::default().authority(authority.pem());
        let server = Server::builder().access(access).build().await.unwrap();
        install_objects(&server).await;
        let socket = TlsSocket::with_authority(&server, authority).await;
        let authority = &socket.authority;
        let plain = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let plain_url = format!("http://{}", plain.local_addr().unwrap());
        let admin = authority.client("admin", &["system:masters"]).unwrap();
        let unprivileged = authority.client("unprivileged", &[]).unwrap();
        for (name, text) in [
            ("ca.pem", authority.pem()),
            ("admin.pem", admin.cert.as_str()),
            ("admin.key", admin.key.as_str()),
            ("unprivileged.pem", unprivileged.cert.as_str()),
            ("unprivileged.key", unprivileged.key.as_str()),
        ] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        std::fs::write(dir.path().join("kubeconfig"), kubeconfig(&socket.address, &plain_url)).unwrap();
        let client = Client::new(server.plane_service(&project_plane("default")), "default");
        let tasks = vec![
            tokio::spawn(log_server::serve(server.clone(), plain)),
            tokio::spawn(fake_controllers::run(client)),
        ];
        Installation { server, dir, tasks, _socket: socket }
    }

    /// Stops the fake controllers: what is written to a status stays.
    pub fn stop_controllers(&self) {
        self.tasks[CONTROLLERS].abort();
    }

    /// Runs `polis` with a line of arguments, without a terminal.
    pub async fn polis(&self, line: &str) -> CommandResult {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        self.polis_with(&arguments, &[]).await
    }

    /// Runs `polis` with arguments and additional environment variables.
    pub async fn polis_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> CommandResult {
        let mut command = self.command(arguments);
        command.envs(environment.iter().copied());
        let output = tokio::time::timeout(COMMAND_TIMEOUT, command.output()).await;
        output
            .unwrap_or_else(|_| panic!("polis {} did not exit before the timeout", arguments.join(" ")))
            .unwrap()
            .into()
    }

    /// Runs `polis` until its output contains a text, sends it SIGINT, and waits for its end.
    pub async fn interrupted(&self, line: &str, until: &str) -> CommandResult {
        let mut child = self
            .command(&line.split_whitespace().collect::<Vec<_>>())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut printed = BufReader::new(child.stdout.take().unwrap()).lines();
        let shown = async {
            while let Some(line) = printed.next_line().await.unwrap() {
                if line.contains(until) {
                    return;
                }
            }
            panic!("polis {line} ended without {until:?}");
        };
        tokio::time::timeout(COMMAND_TIMEOUT, shown).await.expect("printed before the timeout");
        let pid = Pid::from_raw(child.id().unwrap().try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::INT).unwrap();
        child.wait_with_output().await.unwrap().into()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_polis"));
        command.args(arguments).current_dir(self.dir.path()).stdin(Stdio::null()).kill_on_drop(true);
        command.env_remove("KUBECONFIG").env("HOME", self.dir.path()).env("POLIS_DATA_DIR", self.dir.path());
        command
    }

    /// Writes a file beside the kubeconfig.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// The directory of the files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A client of a project with the rights of an administrator.
    pub fn project(&self, name: &str) -> Client {
        Client::new(self.server.plane_service(&project_plane(name)), "default")
    }

    /// A client of the hub or a cell with the rights of an administrator.
    pub fn plane(&self, name: &str) -> Client {
        Client::new(self.server.plane_service(name), "default")
    }
}

/// Creates the planes, kinds, cities, networks and quota.
async fn install_objects(server: &Server) {
    for file in [crds::compute(), crds::platform()].concat() {
        server.install_crd("projects", &file.crd).await.unwrap();
    }
    for project in ["default", "shop"] {
        server.create_plane(PlaneSpec::project(project, "projects")).await.unwrap();
        let client = Client::new(server.plane_service(&project_plane(project)), "default");
        apply(
            &client,
            "networking.datumapis.com/v1alpha",
            "Network",
            true,
            json!({
                "metadata": {"name": "default"}, "spec": {"ipam": {"mode": "Auto"}},
            }),
        )
        .await;
        for (city, name) in [("dfw", "Dallas"), ("ord", "Chicago")] {
            apply(
                &client,
                "networking.datumapis.com/v1alpha",
                "LocationBinding",
                false,
                json!({
                    "metadata": {"name": city},
                    "spec": {
                        "locationRef": {"name": city}, "displayName": name,
                        "topology": {"topology.datum.net/city-code": city, "topology.datum.net/region": "us"},
                    },
                }),
            )
            .await;
        }
        apply(&client, "quota.miloapis.com/v1alpha1", "AllowanceBucket", true, json!({
            "metadata": {"name": "instances"},
            "spec": {"consumerRef": {"kind": "Project", "name": project}, "resourceType": "compute.datumapis.com/instances"},
            "status": {"limit": 20, "allocated": 3, "available": 17, "claimCount": 3, "grantCount": 1},
        })).await;
    }
    for plane in ["hub", "cell-dfw"] {
        server.create_plane(PlaneSpec::standalone(plane)).await.unwrap();
        for file in [crds::compute(), crds::karmada()].concat() {
            server.install_crd_in(plane, &file.crd).await.unwrap();
        }
    }
    let root = Client::new(server.plane_service(""), "default");
    let projects =
        crds::platform().into_iter().find(|file| file.crd["spec"]["names"]["kind"] == "Project").unwrap();
    server.install_crd_in("", &projects.crd).await.unwrap();
    for project in ["default", "shop"] {
        apply(&root, "resourcemanager.miloapis.com/v1alpha1", "Project", false, json!({
            "metadata": {"name": project}, "spec": {"ownerRef": {"kind": "Organization", "name": "acme"}},
            "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        })).await;
    }
}

/// Creates an object and its status.
pub async fn apply(client: &Client, version: &str, kind: &str, namespaced: bool, mut object: Value) {
    object["apiVersion"] = json!(version);
    object["kind"] = json!(kind);
    if namespaced {
        object["metadata"]["namespace"] = json!("default");
    }
    create_untyped(client, &object).await;
}

/// The hub namespace of namespace `default` of a project.
pub async fn hub_namespace(project: &Client) -> String {
    let namespace = Api::<Namespace>::all(project.clone()).get("default").await.unwrap();
    polis_api::names::hub_namespace(&namespace.metadata.uid.unwrap())
}

/// The kubeconfig of `polis up`, with additional contexts.
fn kubeconfig(url: &str, plain: &str) -> String {
    let project = |name| format!("/apis/resourcemanager.miloapis.com/v1alpha1/projects/{name}/control-plane");
    let contexts = [
        ("local", format!("{url}{}", project("default")), "admin"),
        ("polis-default", format!("{url}{}", project("default")), "admin"),
        ("polis-shop", format!("{url}{}", project("shop")), "admin"),
        ("polis-hub", format!("{url}/planes/hub"), "admin"),
        ("polis-cell-dfw", format!("{url}/planes/cell-dfw"), "admin"),
        ("root", url.to_owned(), "admin"),
        ("unprivileged", format!("{url}{}", project("default")), "unprivileged"),
        ("with-logs", format!("{plain}{}", project("default")), "admin"),
        ("nowhere", "https://127.0.0.1:1".to_owned(), "admin"),
    ];
    let mut text = String::from("apiVersion: v1\nkind: Config\ncurrent-context: local\nclusters:\n");
    for (name, server, _) in &contexts {
        let ca = if server.starts_with("https") { "\n    certificate-authority: ca.pem" } else { "" };
        text.push_str(&format!("- name: {name}\n  cluster:\n    server: {server}{ca}\n"));
    }
    text.push_str("users:\n");
    for user in ["admin", "unprivileged"] {
        text.push_str(&format!(
            "- name: {user}\n  user: {{client-certificate: {user}.pem, client-key: {user}.key}}\n"
        ));
    }
    text.push_str("contexts:\n");
    for (name, _, user) in &contexts {
        text.push_str(&format!("- name: {name}\n  context: {{cluster: {name}, user: {user}}}\n"));
    }
    text
}
