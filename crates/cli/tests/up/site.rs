//! A site: one `polis up` in a process of its own, and the ways to look at it.

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
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Time for anything that must happen, on two cores that build something else.
const DEADLINE: Duration = Duration::from_secs(180);

/// A running `polis up`. It ends with the test, and so do its instances.
pub struct Site {
    child: Child,
    kubeconfig: PathBuf,
    /// What it said when it was up.
    pub summary: String,
}

fn polis(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_polis"));
    command
        .arg("up")
        .args(args)
        .env_remove("POLIS_DATA_DIR")
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

/// `polis up` under a limit to the length of files, in blocks of 512 or 1024 bytes, whichever the shell counts in. The
/// kernel refuses a longer write as it refuses one to a full disk, and needs nobody's rights for it.
fn on_a_small_disk(blocks: u32, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let limited = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" up --listen 127.0.0.1:0 \"$@\"");
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_polis")]).args(args);
    command
        .env_remove("POLIS_DATA_DIR")
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

impl Site {
    /// Starts `polis up` on a free port and waits for its summary.
    pub async fn start(args: &[&str]) -> Site {
        let args: Vec<&str> = args.iter().copied().chain(["--listen", "127.0.0.1:0"]).collect();
        Self::launch(polis(&args)).await
    }

    /// Starts it for a user with this home, as one who says no more than that starts it, but on a free port.
    pub async fn start_at(home: &Path, args: &[&str]) -> Site {
        let args: Vec<&str> = args.iter().copied().chain(["--listen", "127.0.0.1:0"]).collect();
        let mut command = polis(&args);
        command.env("HOME", home).env_remove("KUBECONFIG").env_remove("XDG_DATA_HOME");
        Self::launch(command).await
    }

    /// Starts it where no file may be longer than so many blocks, as on a disk that is soon full; complaints go to a file.
    pub async fn start_on_a_small_disk(blocks: u32, complaints: &Path, args: &[&str]) -> Site {
        let mut command = on_a_small_disk(blocks, args);
        command.stderr(fs::File::create(complaints).expect("a file for complaints"));
        Self::launch(command).await
    }

    /// What a start says for which such a disk is too small.
    pub async fn refused_on_a_small_disk(blocks: u32, args: &[&str]) -> String {
        Self::refusal(on_a_small_disk(blocks, args)).await
    }

    async fn launch(mut command: Command) -> Site {
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
            // Read on, or the process is stopped by a full pipe.
            std::thread::spawn(move || lines.for_each(drop));
            summary
        });
        let summary = tokio::time::timeout(DEADLINE, summary).await.expect("up in time").expect("a reader");
        let named =
            summary.lines().find_map(|line| line.trim().strip_prefix("kubeconfig  ").map(PathBuf::from));
        Site { child, kubeconfig: named.expect("a summary that names the kubeconfig"), summary }
    }

    /// Starts it and ends it without notice before it is up, or soon after.
    pub async fn killed_while_starting(args: &[&str], after: Duration) {
        let args: Vec<&str> = args.iter().copied().chain(["--listen", "127.0.0.1:0"]).collect();
        let mut child = polis(&args).stdout(Stdio::null()).spawn().expect("polis starts");
        tokio::time::sleep(after).await;
        child.kill().expect("it can be ended");
        child.wait().expect("it ends");
    }

    /// What a start says that cannot be.
    pub async fn refused(args: &[&str]) -> String {
        let args: Vec<&str> = args.iter().copied().chain(["--listen", "127.0.0.1:0"]).collect();
        Self::refused_as_given(&args).await
    }

    /// The same, with no flag added.
    pub async fn refused_as_given(args: &[&str]) -> String {
        Self::refusal(polis(args)).await
    }

    async fn refusal(mut command: Command) -> String {
        let ended = tokio::task::spawn_blocking(move || command.stderr(Stdio::piped()).output());
        let ended = tokio::time::timeout(DEADLINE, ended)
            .await
            .expect("it ends")
            .expect("a task")
            .expect("polis starts");
        assert!(!ended.status.success(), "a start that must be refused");
        String::from_utf8_lossy(&ended.stderr).into_owned()
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A client of the plane of a context.
    pub async fn client(&self, context: &str) -> Client {
        Client::try_from(self.config(context).await).expect("a client")
    }

    /// A client of the plane of a project that has no context.
    pub async fn project(&self, project: &str) -> Client {
        let mut config = self.config("polis-platform").await;
        let path = format!("/apis/resourcemanager.miloapis.com/v1alpha1/projects/{project}/control-plane");
        config.cluster_url =
            format!("{}{path}", config.cluster_url.to_string().trim_end_matches('/')).parse().expect("a URL");
        Client::try_from(config).expect("a client")
    }

    async fn config(&self, context: &str) -> Config {
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig).expect("a kubeconfig");
        let options = KubeConfigOptions { context: Some(context.to_owned()), ..Default::default() };
        Config::from_custom_kubeconfig(kubeconfig, &options).await.expect("a context")
    }

    /// Gives the project a hundred times the quota that projects begin with.
    pub async fn give_plenty(&self, context: &str) {
        let api: Api<ResourceGrant> = Api::namespaced(self.client(context).await, "milo-system");
        eventually("the project has more quota", async || {
            let mut grant = api.get("compute-default").await.ok()?;
            let amounts = grant.spec.allowances.iter_mut().flat_map(|allowance| &mut allowance.buckets);
            amounts.for_each(|bucket| bucket.amount *= 100);
            api.replace("compute-default", &PostParams::default(), &grant).await.ok()
        })
        .await;
    }

    /// What an instance has written.
    pub async fn log_of(&self, context: &str, namespace: &str, name: &str) -> String {
        let path = format!(
            "/apis/compute.datumapis.com/v1alpha/namespaces/{namespace}/instances/{name}/log?tailLines=10"
        );
        let request = http::Request::get(path).body(Vec::new()).expect("a request");
        self.client(context).await.request_text(request).await.expect("a log")
    }

    /// A verb, as a user of this site types it.
    pub fn verb(&self, words: &str) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_polis"));
        command.args(words.split_whitespace()).env("KUBECONFIG", &self.kubeconfig).stdin(Stdio::null());
        command.kill_on_drop(true);
        command
    }

    /// The shims of this site, by pid.
    pub fn shims(&self) -> Vec<u32> {
        Self::shims_in(self.kubeconfig.parent().expect("a data directory"))
    }

    /// The shims whose files are in a data directory, by pid.
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

    /// Ends it at once, without notice.
    pub fn kill(&mut self) {
        self.child.kill().expect("it ran");
        self.child.wait().expect("it ends");
    }

    /// Waits until it ends by itself.
    pub async fn ends(mut self) -> std::process::ExitStatus {
        eventually("it ends by itself", async || self.child.try_wait().ok().flatten()).await
    }

    /// Asks it to stop, as Ctrl-C does, and sees that it does.
    pub async fn stop(mut self) {
        let told = Command::new("kill").args(["-INT", &self.pid().to_string()]).status();
        assert!(told.is_ok_and(|status| status.success()), "it can be told");
        let ended = eventually("it stops", async || self.child.try_wait().ok().flatten()).await;
        assert!(ended.success(), "it stops cleanly: {ended}");
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // A test failed. Instances are ended by whoever started them, so let it.
            let _told = Command::new("kill").args(["-TERM", &self.pid().to_string()]).status();
            let until = Instant::now() + Duration::from_secs(20);
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(50));
            }
            let _gone = self.child.kill();
        }
    }
}

/// Waits until the look gives something.
pub async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < until, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The body of a plain HTTP answer.
pub async fn get(url: &str) -> String {
    let (host, path) = url.trim_start_matches("http://").split_once('/').expect("a URL");
    eventually(&format!("{url} answers"), async || {
        let mut stream = tokio::net::TcpStream::connect(host).await.ok()?;
        let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
    })
    .await
}

/// A workload of the built-in program that says hello.
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
