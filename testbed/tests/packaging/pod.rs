//! A pod, played: the files and the environment that a rendered Deployment gives to the manager, and the process.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use polis_testbed::{Bed, guard::Guard, manifest, plane::LONE, process::Identity};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::render::Rendered;

/// Where everything that is mounted lies.
const MOUNTS: &str = "/etc/compute/";
/// Time to list a few kinds, and to be elected after another has given its lease back.
const WITHIN: Duration = Duration::from_secs(90);

/// The pod of a rendered Deployment.
pub struct Pod {
    files: TempDir,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    probes: Vec<String>,
    health: SocketAddr,
    guard: Guard,
    child: Option<Child>,
}

impl Pod {
    /// Lays out the files. What the environment of an operator brings comes from the bed: every kubeconfig leads to its one
    /// plane, as the user that the Deployment's service account is.
    pub fn of(bed: &Bed, rendered: &Rendered) -> Pod {
        let deployment = rendered.deployment().expect("a Deployment");
        let pod = &deployment["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let files = tempfile::tempdir().expect("a folder");
        let inside = format!("{}{MOUNTS}", files.path().display());
        let webhooks = free_address();

        let namespace = word(&deployment["metadata"]["namespace"]);
        let user = format!("system:serviceaccount:{namespace}:{}", word(&pod["serviceAccountName"]));
        let kubeconfig = bed.kubeconfig_for(LONE, &user, &[]).expect("a kubeconfig");
        fs::write(files.path().join("own.kubeconfig"), &kubeconfig).expect("a file");
        for mount in each(&container["volumeMounts"]) {
            let path = word(&mount["mountPath"]);
            let folder = PathBuf::from(path.replacen(MOUNTS, &inside, 1));
            assert!(folder.starts_with(files.path()), "{path} is not below {MOUNTS}");
            fs::create_dir_all(&folder).expect("a folder");
            let volume = each(&pod["volumes"]).find(|volume| volume["name"] == mount["name"]);
            let volume = volume.unwrap_or_else(|| panic!("nothing is mounted at {path}"));
            let put = |name: &str, text: &str| fs::write(folder.join(name), text).expect("a file");
            let map = volume["configMap"]["name"].as_str();
            match map.filter(|map| !map.contains("-kubeconfig")) {
                Some(map) => {
                    let map = rendered.find("ConfigMap", map).unwrap_or_else(|| panic!("no ConfigMap {map}"));
                    for (name, text) in map["data"].as_object().expect("data") {
                        let text = word(text).replace(MOUNTS, &inside).replace(
                            "webhookServer:",
                            &format!(
                                "webhookServer:\n  host: {}\n  port: {}",
                                webhooks.ip(),
                                webhooks.port()
                            ),
                        );
                        put(name, &text);
                    }
                }
                None if volume["csi"].is_object() => {
                    let names = vec!["compute-webhook.compute-system.svc".to_owned()];
                    let issued = rcgen::generate_simple_self_signed(names).expect("a certificate");
                    put("tls.crt", &issued.cert.pem());
                    put("tls.key", &issued.signing_key.serialize_pem());
                }
                None if volume["projected"].is_object() => put("token", "not asked for"),
                None => put("kubeconfig", &kubeconfig),
            }
        }

        let environment = each(&container["env"]).map(|variable| {
            let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                Some("metadata.namespace") => namespace.to_owned(),
                Some(other) => panic!("the suite plays no {other}"),
                None => word(&variable["value"]).replace(MOUNTS, &inside),
            };
            (word(&variable["name"]).to_owned(), value)
        });
        let probes = ["livenessProbe", "readinessProbe"].map(|probe| {
            assert_eq!(container[probe]["httpGet"]["port"], "health", "{probe}");
            word(&container[probe]["httpGet"]["path"]).to_owned()
        });
        Pod {
            environment: environment.collect(),
            arguments: each(&container["args"]).map(|argument| word(argument).to_owned()).collect(),
            probes: probes.to_vec(),
            health: free_address(),
            guard: Guard::start().expect("a guard"),
            child: None,
            files,
        }
    }

    /// Starts the manager with the arguments and the environment of the Deployment, and with no others. Two things stand in
    /// for what a pod has of its own: the address that probes ask, and the way to its own cluster.
    pub fn start(&mut self) {
        let log = fs::File::create(self.log()).expect("a log");
        let child = Command::new(program())
            .args(&self.arguments)
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env("HEALTH_PROBE_BIND_ADDRESS", self.health.to_string())
            .env("KUBECONFIG", self.files.path().join("own.kubeconfig"))
            .current_dir(self.files.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(self.guard.group().cast_signed())
            .spawn();
        self.child = Some(child.expect("the manager starts"));
    }

    /// Waits until both probes are answered and this replica leads; then gives its metrics.
    pub async fn leads(&mut self) -> String {
        let looked = manifest::until(LONE, "the manager to be ready and to lead", WITHIN, async || {
            for probe in &self.probes {
                let answer = ask(self.health, probe).ok_or_else(|| format!("{probe} is not answered"))?;
                if answer.split(' ').nth(1) != Some("200") {
                    return Err(ask(self.health, "/readyz?verbose").unwrap_or(answer));
                }
            }
            let page = ask(self.health, "/metrics").unwrap_or_default();
            Ok(page.lines().any(|line| line == "polis_leader 1").then_some(page))
        });
        looked.await.unwrap_or_else(|err| panic!("{err}\n{}", self.said()))
    }

    /// Waits until the process has ended by itself, and gives what it said.
    pub async fn gives_up(&mut self) -> String {
        let child = self.child.as_mut().expect("it was started");
        let ended = manifest::until(LONE, "the manager to give up", WITHIN, || {
            std::future::ready(child.try_wait().map_err(|err| err.to_string()))
        });
        let status = ended.await.unwrap_or_else(|err| panic!("{err}"));
        assert!(!status.success(), "it ended as if nothing was wrong");
        self.said()
    }

    /// Asks the process to end, so that it gives its lease back, and waits for it.
    pub fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        if let Some(process) = Identity::of(child.id()) {
            let _gone = process.signal(Signal::TERM);
        }
        let _reaped = child.wait();
    }

    fn said(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    fn log(&self) -> PathBuf {
        Path::new(self.files.path()).join("log")
    }
}

/// The program under test: the one beside this test program unless POLIS_BIN names another.
fn program() -> PathBuf {
    let beside = || {
        let here = std::env::current_exe().expect("this program is somewhere");
        // target/<profile>/deps/<test>
        here.ancestors().nth(2).expect("it is in a folder of a folder").join("polis")
    };
    let path = std::env::var_os("POLIS_BIN").map_or_else(beside, PathBuf::from);
    assert!(path.is_file(), "{} is not there: build it, or name another in POLIS_BIN", path.display());
    path
}

/// An address that nobody listens on now.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("it has an address")
}

/// Asks for a page; the whole answer, head and all, or none if nobody is there.
fn ask(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The items of a list; none where there is no list.
pub fn each(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// A text; empty where there is none.
pub fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
