//! A plane over TLS, and kubectl commands against it.

use std::{path::PathBuf, process::Stdio, sync::Arc};

use polis_apiserver::{Access, Server, kubeconfig};
use polis_testbed::{ProgressFn, binaries::Binaries, pins};
use polis_testing::TlsSocket;
use polis_tls::Authority;
use tempfile::TempDir;
use tokio::{io::AsyncWriteExt, process::Command};

use crate::common::mk_widgets_crd;

/// A server on a free port that serves widgets, and a home directory for kubectl. Both are removed on drop.
pub struct Plane {
    pub socket: TlsSocket,
    pub state_dir: TempDir,
    kubectl: PathBuf,
}

/// The result of a kubectl command.
#[derive(Debug)]
pub struct KubectlOutput {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl KubectlOutput {
    /// The standard output of a successful command.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "kubectl failed\nout: {}\nerr: {}", self.out, self.err);
        self.out
    }

    /// The standard error of a failed command, which must contain `why`.
    #[track_caller]
    pub fn refused(self, why: &str) -> String {
        assert_ne!(self.code, 0, "kubectl succeeded: {}", self.out);
        assert!(self.err.contains(why), "{why:?} is not in: {}", self.err);
        self.err
    }
}

impl Plane {
    pub async fn new() -> Self {
        let kubectl = Binaries::ensure(&(Arc::new(|_: &str| {}) as ProgressFn))
            .expect("the programs of the test bed")
            .path(pins::KUBECTL);
        let authority = Authority::new().expect("an authority");
        let server = Server::builder()
            .access(Access::default().authority(authority.pem()))
            .build()
            .await
            .expect("a server");
        server.install_crd_in("", &mk_widgets_crd()).await.expect("a definition");
        let socket = TlsSocket::with_authority(&server, authority).await;
        let state_dir = tempfile::tempdir().expect("a folder");
        let plane = Self { socket, state_dir, kubectl };
        plane.login("admin", &["system:masters"]);
        plane
    }

    /// Writes the kubeconfig of a user.
    pub fn login(&self, user: &str, groups: &[&str]) {
        let TlsSocket { authority, address, .. } = &self.socket;
        let certificate = authority.client(user, groups).expect("a certificate");
        let config = kubeconfig(address, "", authority.pem(), &certificate);
        std::fs::write(self.state_dir.path().join(user), config).expect("a kubeconfig");
    }

    /// A kubectl command as a user, in a clean environment.
    pub fn command(&self, user: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.kubectl);
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.state_dir.path())
            .env("KUBECONFIG", self.state_dir.path().join(user))
            .current_dir(self.state_dir.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    pub async fn as_user(&self, user: &str, arguments: &[&str]) -> KubectlOutput {
        finish(self.command(user, arguments).output().await)
    }

    /// Runs kubectl as the administrator, with the words of a line as arguments.
    pub async fn run(&self, line: &str) -> KubectlOutput {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        self.as_user("admin", &arguments).await
    }

    /// Runs kubectl with arguments that contain spaces.
    pub async fn args(&self, arguments: &[&str]) -> KubectlOutput {
        self.as_user("admin", arguments).await
    }

    /// Runs kubectl with standard input.
    pub async fn feed(&self, line: &str, input: &str) -> KubectlOutput {
        let arguments: Vec<&str> = line.split_whitespace().collect();
        let mut child = self
            .command("admin", &arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(input.as_bytes()).await.expect("kubectl reads");
        drop(stdin);
        finish(child.wait_with_output().await)
    }

    /// Writes a file into kubectl's home directory.
    pub fn file(&self, name: &str, text: &str) {
        std::fs::write(self.state_dir.path().join(name), text).expect("a file");
    }
}

pub fn finish(output: std::io::Result<std::process::Output>) -> KubectlOutput {
    let output = output.expect("kubectl runs");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    KubectlOutput {
        code: output.status.code().unwrap_or(-1),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}
