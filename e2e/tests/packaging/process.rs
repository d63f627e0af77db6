//! The manager of a pod, as a process.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use polis_e2e::{pod::Pod, rendered::Rendered};
use polis_testbed::{Bed, guard::Guard, manifest, plane::LONE, process::Identity};
use rustix::process::Signal;
use tempfile::TempDir;

/// Time to list a few kinds, and to be elected after another has given its lease back.
pub const WITHIN: Duration = Duration::from_secs(120);

/// A manager as a rendered Deployment runs it.
pub struct Manager {
    pub files: TempDir,
    pub pod: Pod,
    guard: Guard,
    child: Option<Child>,
}

impl Manager {
    /// Lays out the files. What the environment of an operator brings comes from the bed: every kubeconfig leads to its one
    /// plane, as the user that the Deployment's service account is.
    pub fn of(bed: &Bed, rendered: &Rendered) -> Manager {
        let kubeconfig = bed.kubeconfig_for(LONE, &rendered.user(), &[]).expect("a kubeconfig");
        Manager::with(rendered, &kubeconfig, &|name| match name {
            "" => "not asked for".to_owned(),
            _ => kubeconfig.clone(),
        })
    }

    /// Lays out the files with kubeconfigs from elsewhere.
    pub fn with(rendered: &Rendered, own: &str, brings: &dyn Fn(&str) -> String) -> Manager {
        let files = tempfile::tempdir().expect("a folder");
        let pod = Pod::lay(rendered, files.path(), own, brings);
        Manager { pod, guard: Guard::start().expect("a guard"), child: None, files }
    }

    /// Starts the manager with the arguments and the environment of the Deployment, and with no others.
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

    /// Waits until both probes are answered and this replica leads; then gives its metrics.
    pub async fn leads(&mut self) -> String {
        let looked = manifest::until("pod", "the manager to be ready and to lead", WITHIN, async || {
            for probe in &self.pod.probes {
                let answer = self.ask(probe).ok_or_else(|| format!("{probe} is not answered"))?;
                if answer.split(' ').nth(1) != Some("200") {
                    return Err(self.ask("/readyz?verbose").unwrap_or(answer));
                }
            }
            let page = self.ask("/metrics").unwrap_or_default();
            Ok(page.lines().any(|line| line == "polis_leader 1").then_some(page))
        });
        looked.await.unwrap_or_else(|err| panic!("{err}\n{}", self.said()))
    }

    /// Waits until the process has ended by itself, and gives what it said.
    pub async fn gives_up(&mut self) -> String {
        let child = self.child.as_mut().expect("it was started");
        let ended = manifest::until("pod", "the manager to give up", WITHIN, || {
            std::future::ready(child.try_wait().map_err(|err| err.to_string()))
        });
        let status = ended.await.unwrap_or_else(|err| panic!("{err}"));
        assert!(!status.success(), "it ended as if nothing was wrong");
        self.said()
    }

    /// Asks the process to end, so that it gives its lease back, and waits for it.
    pub fn stop(&mut self) {
        self.end(Signal::TERM);
    }

    /// Ends the process, whatever it thinks of it.
    pub fn kill(&mut self) {
        self.end(Signal::KILL);
    }

    fn end(&mut self, signal: Signal) {
        let Some(mut child) = self.child.take() else { return };
        if let Some(process) = Identity::of(child.id()) {
            let _gone = process.signal(signal);
        }
        let _reaped = child.wait();
    }

    /// The process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Everything that it wrote.
    pub fn said(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// A page of the health address; the whole answer, head and all, or none if nobody is there.
    pub fn ask(&self, path: &str) -> Option<String> {
        ask(self.pod.health, path)
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

/// The program under test: the one beside this test program unless POLIS_BIN names another.
pub fn program() -> PathBuf {
    let beside = || {
        let here = std::env::current_exe().expect("this program is somewhere");
        // target/<profile>/deps/<test>
        here.ancestors().nth(2).expect("it is in a folder of a folder").join("polis")
    };
    let path = std::env::var_os("POLIS_BIN").map_or_else(beside, PathBuf::from);
    assert!(path.is_file(), "{} is not there: build it, or name another in POLIS_BIN", path.display());
    path
}

fn ask(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
