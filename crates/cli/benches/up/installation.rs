//! Fixture: a `polis up` process, clients of its planes, and its resident memory.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use polis_api::compute::Workload;
use polis_api::kube::api::PostParams;
use polis_api::kube::config::{KubeConfigOptions, Kubeconfig};
use polis_api::kube::{Api, Client, Config};
use polis_api::milo::Project;
use polis_api::quota::ResourceGrant;
use serde_json::json;

/// Timeout of every wait.
const TIMEOUT: Duration = Duration::from_secs(900);

/// A running `polis up`. Dropping it stops the process and its instances.
pub(crate) struct Installation {
    child: Child,
    config: Config,
    /// Time from the start of the process until it printed that it is up.
    pub(crate) took: Duration,
}

impl Drop for Installation {
    fn drop(&mut self) {
        // SIGINT stops the instances too. A process that still runs after a minute is killed.
        let _signalled = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status();
        let until = Instant::now() + Duration::from_secs(60);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _gone = self.child.kill();
        let _waited = self.child.wait();
    }
}

impl Installation {
    pub(crate) async fn start(data: &Path, cities: &str) -> Self {
        let began = Instant::now();
        let mut child = Command::new(env!("CARGO_BIN_EXE_polis"))
            .args(["up", "--listen", "127.0.0.1:0", "--cities", cities, "--data-dir"])
            .arg(data)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("polis starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        let up = lines.next().is_some_and(|line| line.starts_with("Polis is up"));
        let took = began.elapsed();
        assert!(up, "polis up is not ready");
        std::thread::spawn(move || lines.for_each(drop)); // a full pipe would block the process
        let kubeconfig = Kubeconfig::read_from(data.join("kubeconfig")).expect("a kubeconfig");
        let options = KubeConfigOptions { context: Some("polis-platform".to_owned()), ..Default::default() };
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.expect("a context");
        Self { child, config, took }
    }

    /// A client with its own connections: of a project, or of the platform with `None`.
    pub(crate) fn client(&self, project: Option<&str>) -> Client {
        let mut config = self.config.clone();
        if let Some(project) = project {
            let path =
                format!("/apis/resourcemanager.miloapis.com/v1alpha1/projects/{project}/control-plane");
            let url = format!("{}{path}", config.cluster_url.to_string().trim_end_matches('/'));
            config.cluster_url = url.parse().expect("a URL");
        }
        Client::try_from(config).expect("a client")
    }

    /// Creates a project.
    pub(crate) async fn create_project(&self, platform: &Client, name: &str) {
        let project: Project = serde_json::from_value(json!({
            "apiVersion": "resourcemanager.miloapis.com/v1alpha1", "kind": "Project", "metadata": {"name": name},
            "spec": {"ownerRef": {"kind": "Organization", "name": "local"}},
        }))
        .expect("a project");
        Api::all(platform.clone())
            .create(&PostParams::default(), &project)
            .await
            .expect("creates the project");
    }

    /// Waits for the default grant of a project and raises it above the use of any benchmark.
    pub(crate) async fn raise_quota(&self, project: &str) {
        let api: Api<ResourceGrant> = Api::namespaced(self.client(Some(project)), "milo-system");
        eventually("the project has more quota", async || {
            let mut grant = api.get("compute-default").await.ok()?;
            let amounts = grant.spec.allowances.iter_mut().flat_map(|allowance| &mut allowance.buckets);
            amounts.for_each(|bucket| bucket.amount *= 100_000);
            api.replace("compute-default", &PostParams::default(), &grant).await.ok()
        })
        .await;
    }

    /// Waits until a project accepts a workload in every city, with dry runs.
    pub(crate) async fn until_usable(&self, project: &str, cities: &[&str]) {
        let api: Api<Workload> = Api::namespaced(self.client(Some(project)), "default");
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        for city in cities {
            let probe = crate::mk_workload("probe", city, "bench.invalid/none");
            eventually("the project accepts workloads", async || api.create(&dry_run, &probe).await.ok())
                .await;
        }
    }

    /// Resident memory of the process, in MiB.
    pub(crate) fn resident(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("Linux");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a running process");
        let kib: f64 = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number");
        kib / 1024.0
    }
}

/// Polls until the closure returns a value.
pub(crate) async fn eventually<T>(what: &str, mut poll: impl AsyncFnMut() -> Option<T>) -> T {
    let until = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = poll().await {
            return found;
        }
        assert!(Instant::now() < until, "not within {TIMEOUT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
