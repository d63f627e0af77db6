//! Fixture: a `polis up` process, and clients of its planes.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use polis_api::compute::Workload;
use polis_api::kube::api::PostParams;
use polis_api::kube::config::{KubeConfigOptions, Kubeconfig};
use polis_api::kube::{Api, Client, Config};
use polis_api::quota::ResourceGrant;
pub use polis_testing::eventually;
use polis_testing::http_get;
use serde_json::json;

/// Timeout of every wait, on two cores that also build.
const DEADLINE: Duration = Duration::from_secs(180);

/// A running `polis up`. Dropping it stops the process and its instances.
pub struct Installation {
    child: Child,
    kubeconfig: PathBuf,
    /// The summary that it printed.
    pub summary: String,
}

/// `polis up` with these arguments and on a free port.
fn polis(args: &[&str]) -> Command {
    let mut command = polis_as_given(args);
    command.args(["--listen", "127.0.0.1:0"]);
    command
}

fn polis_as_given(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_polis"));
    command.arg("up").args(args);
    in_test(command)
}

/// A command without the environment of the developer, and with a pipe for the summary.
fn in_test(mut command: Command) -> Command {
    command
        .env_remove("POLIS_DATA_DIR")
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

/// `polis up` with a file size limit in blocks of 512 or 1024 bytes, depending on the shell. The kernel fails
/// longer writes as it does on a full disk, and the limit needs no privileges.
fn on_small_disk(blocks: u32, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let limited = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" up --listen 127.0.0.1:0 \"$@\"");
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_polis")]).args(args);
    in_test(command)
}

/// A file system of a fixed size, in a mount namespace of its own that ends with this process.
pub struct SmallDisk {
    /// A process in the namespace.
    holder: Child,
    /// The path of the data directory on it, in the namespace.
    data: PathBuf,
    _folder: tempfile::TempDir,
}

impl SmallDisk {
    /// Mounts one of this many mebibytes; `None` without the right to do it.
    pub fn mount(mebibytes: u32) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("unshare");
        let script = format!(
            "mount -t tmpfs -o size={mebibytes}m none \"$0\" && mkdir -m 700 \"$0/data\" && echo mounted && exec sleep 3600"
        );
        command.args(["--mount", "sh", "-c", &script]).arg(folder.path()).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut holder = command.spawn().ok()?;
        let mut line = String::new();
        let _none = BufReader::new(holder.stdout.take()?).read_line(&mut line);
        let disk = SmallDisk { holder, data: folder.path().join("data"), _folder: folder };
        (line.trim() == "mounted").then_some(disk)
    }

    /// The data directory, as a path in the namespace.
    pub fn data(&self) -> String {
        self.data.display().to_string()
    }

    /// A path on the disk, as this process sees it.
    pub fn path(&self, name: &str) -> PathBuf {
        let folder = self.data.parent().expect("a parent").strip_prefix("/").expect("an absolute path");
        Path::new("/proc").join(self.holder.id().to_string()).join("root").join(folder).join(name)
    }

    /// Fills it up with a file, to the last block.
    pub fn fill(&self) {
        let mut file = fs::File::create(self.path("ballast")).expect("a file");
        for size in [1 << 20, 4096] {
            while std::io::Write::write_all(&mut file, &vec![1; size]).is_ok() {}
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ended = self.holder.kill();
        let _exited = self.holder.wait();
    }
}

impl Installation {
    /// Starts `polis up` on a small disk.
    pub async fn start_on(disk: &SmallDisk, args: &[&str]) -> Installation {
        let mut command = Command::new("nsenter");
        let holder = disk.holder.id().to_string();
        command.args(["--target", &holder, "--mount", env!("CARGO_BIN_EXE_polis"), "up"]);
        command.args(["--listen", "127.0.0.1:0", "--data-dir", &disk.data()]).args(args);
        let mut installation = Self::launch(in_test(command)).await;
        installation.kubeconfig = disk.path("data/kubeconfig");
        installation
    }

    /// Starts `polis up` on a free port and waits for its summary.
    pub async fn start(args: &[&str]) -> Installation {
        Self::launch(polis(args)).await
    }

    /// Starts it with this home directory and without further flags except a free port.
    pub async fn start_at(home: &Path, args: &[&str]) -> Installation {
        let mut command = polis(args);
        command.env("HOME", home).env_remove("KUBECONFIG").env_remove("XDG_DATA_HOME");
        Self::launch(command).await
    }

    /// Starts it with this log filter; the log goes to a file.
    pub async fn start_logging(filter: &str, log: &Path, args: &[&str]) -> Installation {
        let mut command = polis(args);
        command.env("RUST_LOG", filter).stderr(fs::File::create(log).expect("a file for stderr"));
        Self::launch(command).await
    }

    /// Starts it with a file size limit, as on a disk that becomes full; stderr goes to a file.
    pub async fn start_on_small_disk(blocks: u32, stderr: &Path, args: &[&str]) -> Installation {
        let mut command = on_small_disk(blocks, args);
        command.stderr(fs::File::create(stderr).expect("a file for stderr"));
        Self::launch(command).await
    }

    /// The error of a start with a file size limit.
    pub async fn start_error_on_small_disk(blocks: u32, args: &[&str]) -> String {
        Self::refusal(on_small_disk(blocks, args)).await
    }

    async fn launch(mut command: Command) -> Installation {
        let mut child = command.spawn().expect("polis starts");
        let out = child.stdout.take().expect("piped");
        let summary = tokio::task::spawn_blocking(move || {
            let mut lines = BufReader::new(out).lines().map_while(Result::ok);
            let mut summary = String::new();
            for line in lines.by_ref() {
                summary.push_str(&line);
                summary.push('\n');
                if line.starts_with("Ctrl-C") {
                    break;
                }
            }
            // Continue to read, because a full pipe would block the process.
            std::thread::spawn(move || lines.for_each(drop));
            summary
        });
        let summary = tokio::time::timeout(DEADLINE, summary).await.expect("up in time").expect("a reader");
        let named =
            summary.lines().find_map(|line| line.trim().strip_prefix("kubeconfig  ").map(PathBuf::from));
        Installation { child, kubeconfig: named.expect("the summary has the kubeconfig"), summary }
    }

    /// Starts it and kills it after this time, before it is ready or soon after.
    pub async fn killed_while_starting(args: &[&str], after: Duration) {
        let mut child = polis(args).stdout(Stdio::null()).spawn().expect("polis starts");
        tokio::time::sleep(after).await;
        child.kill().expect("kill");
        child.wait().expect("an exit status");
    }

    /// The error of a start that must fail.
    pub async fn start_error(args: &[&str]) -> String {
        Self::refusal(polis(args)).await
    }

    /// The error of a start that must fail, without the flag for a free port.
    pub async fn start_error_as_given(args: &[&str]) -> String {
        Self::refusal(polis_as_given(args)).await
    }

    async fn refusal(mut command: Command) -> String {
        let ended = tokio::task::spawn_blocking(move || command.stderr(Stdio::piped()).output());
        let ended = tokio::time::timeout(DEADLINE, ended)
            .await
            .expect("an exit before the timeout")
            .expect("a task")
            .expect("polis starts");
        assert!(!ended.status.success(), "the start must fail");
        String::from_utf8_lossy(&ended.stderr).into_owned()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A client of the plane of a context.
    pub async fn client(&self, context: &str) -> Client {
        Client::try_from(self.config(context).await).expect("a client")
    }

    /// A client of the plane of a project without a context.
    pub async fn project(&self, project: &str) -> Client {
        let mut config = self.config("polis-platform").await;
        let path = format!("/apis/resourcemanager.miloapis.com/v1alpha1/projects/{project}/control-plane");
        config.cluster_url =
            format!("{}{path}", config.cluster_url.to_string().trim_end_matches('/')).parse().expect("a URL");
        Client::try_from(config).expect("a client")
    }

    /// The URL of the API server: that of a context whose plane has no path.
    pub async fn url(&self, context: &str) -> String {
        self.config(context).await.cluster_url.to_string().trim_end_matches('/').to_owned()
    }

    async fn config(&self, context: &str) -> Config {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig).expect("a kubeconfig");
        let options = KubeConfigOptions { context: Some(context.to_owned()), ..Default::default() };
        Config::from_custom_kubeconfig(kubeconfig, &options).await.expect("a context")
    }

    /// Multiplies the default quota of the project by 100.
    pub async fn raise_quota(&self, context: &str) {
        let api: Api<ResourceGrant> = Api::namespaced(self.client(context).await, "milo-system");
        eventually("the project has more quota", async || {
            let mut grant = api.get("compute-default").await.ok()?;
            let amounts = grant.spec.allowances.iter_mut().flat_map(|allowance| &mut allowance.buckets);
            amounts.for_each(|bucket| bucket.amount *= 100);
            api.replace("compute-default", &PostParams::default(), &grant).await.ok()
        })
        .await;
    }

    /// The log of an instance.
    pub async fn log_of(&self, context: &str, namespace: &str, name: &str) -> String {
        let path = format!(
            "/apis/compute.datumapis.com/v1alpha/namespaces/{namespace}/instances/{name}/log?tailLines=10"
        );
        let request = http::Request::get(path).body(Vec::new()).expect("a request");
        self.client(context).await.request_text(request).await.expect("a log")
    }

    /// A `polis` command with the kubeconfig of this installation.
    pub fn verb(&self, words: &str) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_polis"));
        command.args(words.split_whitespace()).env("KUBECONFIG", &self.kubeconfig).stdin(Stdio::null());
        command.kill_on_drop(true);
        command
    }

    /// Process ids of the shims of this installation.
    pub fn shims(&self) -> Vec<u32> {
        Self::shims_in(self.kubeconfig.parent().expect("a data directory"))
    }

    /// Process ids of the shims of a data directory.
    pub fn shims_in(data: &Path) -> Vec<u32> {
        let data = data.display().to_string();
        let mut found: Vec<u32> = fs::read_dir("/proc")
            .expect("a Linux host")
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
            .filter(|pid| {
                let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let command = String::from_utf8_lossy(&command);
                command.contains("__shim") && command.contains(&data)
            })
            .collect();
        found.sort_unstable();
        found
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("an exit status");
    }

    /// Waits until it exits without a signal.
    pub async fn ends(mut self) -> std::process::ExitStatus {
        eventually("polis up exits", async || self.child.try_wait().ok().flatten()).await
    }

    /// Sends SIGINT and waits for a clean exit.
    pub async fn stop(mut self) {
        let signalled = Command::new("kill").args(["-INT", &self.pid().to_string()]).status();
        assert!(signalled.is_ok_and(|status| status.success()), "kill -INT");
        let ended = eventually("polis up stops", async || self.child.try_wait().ok().flatten()).await;
        assert!(ended.success(), "exit status: {ended}");
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // A test failed. SIGTERM, so that the process stops its instances.
            let _signalled = Command::new("kill").args(["-TERM", &self.pid().to_string()]).status();
            let until = Instant::now() + Duration::from_secs(20);
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(50));
            }
            let _gone = self.child.kill();
        }
    }
}

/// The body of an HTTP response.
pub async fn get(url: &str) -> String {
    let (host, path) = url.trim_start_matches("http://").split_once('/').expect("a URL");
    eventually(&format!("{url} answers"), async || {
        let response = http_get(host.to_owned(), &format!("/{path}")).await?;
        response.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    })
    .await
}

/// A workload with the built-in image `polis.local/hello`.
pub fn mk_workload(name: &str, cities: &[&str], replicas: i32) -> Workload {
    serde_json::from_value(json!({
        "apiVersion": "compute.datumapis.com/v1alpha", "kind": "Workload", "metadata": {"name": name},
        "spec": {
            "template": {"spec": {
                "runtime": {
                    "resources": {"instanceType": "datumcloud/d1-standard-2"},
                    "sandbox": {"containers": [
                        {"name": "app", "image": "polis.local/hello", "ports": [{"name": "http", "port": 8080}]},
                    ]},
                },
                "networkInterfaces": [{"network": {"name": "default"}}],
            }},
            "placements": [{"name": "main", "cityCodes": cities, "scaleSettings": {"minReplicas": replicas}}],
        },
    }))
    .expect("a workload")
}
