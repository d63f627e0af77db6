//! The manager process of a simulated pod.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use polis_e2e::{identities::MANAGERS, manager_process, pod::SimulatedPod, rendered::RenderedManifests};
use polis_testbed::{TestCluster, guard::Guard, manifest, plane::SINGLE_PLANE, process::ProcessId};
use polis_testing::http_get_blocking;
use rustix::process::Signal;
use tempfile::TempDir;

/// Time to list a few kinds, and to become leader after another manager has released the lease.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// The manager of a rendered Deployment.
pub struct Manager {
    pub files: TempDir,
    pub pod: SimulatedPod,
    guard: Guard,
    child: Option<Child>,
}

impl Manager {
    /// Creates the files. Every kubeconfig is for the only plane of the test cluster, as the user of the
    /// Deployment's service account.
    pub fn of(cluster: &TestCluster, rendered: &RenderedManifests) -> Manager {
        let kubeconfig =
            cluster.kubeconfig_for(SINGLE_PLANE, &rendered.user(), &[MANAGERS]).expect("a kubeconfig");
        Manager::with(rendered, &kubeconfig, &|name| match name {
            "" => "unused".to_owned(),
            _ => kubeconfig.clone(),
        })
    }

    /// Creates the files with other kubeconfigs.
    pub fn with(rendered: &RenderedManifests, own: &str, kubeconfig_of: &dyn Fn(&str) -> String) -> Manager {
        let files = tempfile::tempdir().expect("a directory");
        let pod = SimulatedPod::create(rendered, files.path(), own, kubeconfig_of);
        Manager { pod, guard: Guard::start().expect("a guard"), child: None, files }
    }

    /// Starts the manager with only the arguments and the environment of the Deployment.
    pub fn start(&mut self) {
        let log = fs::File::options().create(true).append(true).open(self.log()).expect("a log");
        let child = Command::new(program())
            .args(&self.pod.arguments)
            .env_clear()
            .envs(self.pod.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(self.files.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .process_group(self.guard.group().cast_signed())
            .spawn();
        self.child = Some(child.expect("the manager starts"));
    }

    /// Waits until both probes succeed and this replica leads; returns its metrics.
    pub async fn until_leading(&mut self) -> String {
        let leading = manifest::until("pod", "the manager to be ready and to lead", TIMEOUT, async || {
            for probe in &self.pod.probes {
                let response = self.http_get(probe).ok_or_else(|| format!("{probe} does not respond"))?;
                if response.split(' ').nth(1) != Some("200") {
                    return Err(self.http_get("/readyz?verbose").unwrap_or(response));
                }
            }
            let page = self.http_get("/metrics").unwrap_or_default();
            Ok(page.lines().any(|line| line == "polis_leader 1").then_some(page))
        });
        leading.await.unwrap_or_else(|err| panic!("{err}\n{}", self.log_text()))
    }

    /// Waits until the process exits with an error; returns its log.
    pub async fn until_failed(&mut self) -> String {
        let child = self.child.as_mut().expect("it was started");
        let exited = manifest::until("pod", "the manager to exit", TIMEOUT, || {
            std::future::ready(child.try_wait().map_err(|err| err.to_string()))
        });
        let status = exited.await.unwrap_or_else(|err| panic!("{err}"));
        assert!(!status.success(), "it exited with success");
        self.log_text()
    }

    /// Sends TERM, so that the process releases its lease, and waits for its exit.
    pub fn stop(&mut self) {
        self.end(Signal::TERM);
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        self.end(Signal::KILL);
    }

    fn end(&mut self, signal: Signal) {
        let Some(mut child) = self.child.take() else { return };
        if let Some(process) = ProcessId::of(child.id()) {
            let _gone = process.signal(signal);
        }
        let _reaped = child.wait();
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The log.
    pub fn log_text(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// A response of the health address with its headers; `None` if it does not respond.
    pub fn http_get(&self, path: &str) -> Option<String> {
        http_get_blocking(self.pod.health, path)
    }

    fn log(&self) -> PathBuf {
        self.files.path().join("log")
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The binary under test: the one next to this test program, or POLIS_BIN.
pub fn program() -> PathBuf {
    manager_process::program().unwrap_or_else(|err| panic!("{err}"))
}
