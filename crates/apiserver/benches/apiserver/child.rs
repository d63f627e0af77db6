//! The embedded server as a child process, and the memory use of processes.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use polis_apiserver::{Access, Server as Embedded, Storage, kubeconfig};
use polis_tls::{Authority, ServerTls};

/// Serves from a store in the folder until killed. Writes `kubeconfig` into the folder and prints a line when
/// ready.
pub(crate) async fn serve(folder: &Path) {
    let authority = Authority::new().expect("an authority");
    let server = Embedded::builder()
        .storage(Storage::Redb(folder.join("store.redb")))
        .access(Access::default().authority(authority.pem()))
        .build()
        .await
        .expect("a server");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    let certificate = authority.server(&["127.0.0.1"]).expect("a certificate");
    let tls = ServerTls::new(&certificate, Some(authority.pem())).expect("TLS");
    let client = authority.client("admin", &["system:masters"]).expect("a certificate");
    std::fs::write(folder.join("kubeconfig"), kubeconfig(&url, "", authority.pem(), &client))
        .expect("written");
    println!("serving");
    server.serve(listener, tls).await;
}

/// A server process. It is killed on drop.
pub(crate) struct Server {
    child: Child,
    kubeconfig: std::path::PathBuf,
    /// Time from the start of the process until it serves.
    pub(crate) ready: Duration,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs this program with other arguments.
pub(crate) fn this_program(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(arguments);
    command
}

impl Server {
    pub(crate) fn start(folder: &Path) -> Self {
        let began = Instant::now();
        let mut child = this_program(&["serve", &folder.display().to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        assert_eq!(line, "serving\n", "the server did not start");
        Self { child, kubeconfig: folder.join("kubeconfig"), ready: began.elapsed() }
    }

    /// A client with its own connections.
    pub(crate) fn client(&self) -> Client {
        let file = Kubeconfig::read_from(&self.kubeconfig).expect("a kubeconfig");
        let options = KubeConfigOptions::default();
        let config = futures::executor::block_on(Config::from_custom_kubeconfig(file, &options));
        Client::try_from(config.expect("a configuration")).expect("a client")
    }

    pub(crate) fn resident_kib(&self) -> u64 {
        resident_kib(self.child.id())
    }
}

/// Resident memory of a process, in KiB.
pub(crate) fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a running process");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}
