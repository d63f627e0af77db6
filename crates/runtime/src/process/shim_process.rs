//! A handle to a shim process: signals, and a future for its exit.

use std::io;
use std::path::PathBuf;
#[cfg(target_os = "linux")]
use std::sync::Arc;

use rustix::process::{Pid, Signal};
#[cfg(target_os = "linux")]
use tokio::io::{Interest, unix::AsyncFd};

use crate::shim;

/// A running shim. On Linux a pidfd, so a reused process id cannot be mistaken for it.
pub(super) struct ShimProcess {
    #[cfg(target_os = "linux")]
    process: Arc<AsyncFd<std::os::fd::OwnedFd>>,
    #[cfg(not(target_os = "linux"))]
    pid: Pid,
    container_dir: PathBuf,
}

#[cfg(target_os = "linux")]
impl ShimProcess {
    /// Opens a process; `None` if it does not exist. It is the shim only if [`ShimProcess::holds_lock`] is
    /// true afterwards: the process id may have been reused before the call.
    pub(super) fn open(pid: i32, container_dir: PathBuf) -> io::Result<Option<Self>> {
        use rustix::process::{PidfdFlags, pidfd_open};
        let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
        match pidfd_open(pid, PidfdFlags::NONBLOCK) {
            Ok(handle) => {
                // `with_interest` is deprecated because a type could return different descriptors. `OwnedFd`
                // does not, and the replacement is unsafe to call.
                #[allow(deprecated)]
                let process = AsyncFd::with_interest(handle, Interest::READABLE)?;
                Ok(Some(ShimProcess { process: Arc::new(process), container_dir }))
            }
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a signal. Does nothing if the process has exited.
    pub(super) fn signal(&self, signal: Signal) {
        _ = rustix::process::pidfd_send_signal(self.process.get_ref(), signal);
    }

    /// Resolves when the process has exited.
    pub(super) fn exited(&self) -> impl Future<Output = ()> + Send + use<> {
        let process = self.process.clone();
        async move {
            // An error means that the tokio runtime is shutting down; the result is not used then.
            _ = process.readable().await.map(|mut ready| ready.retain_ready());
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl ShimProcess {
    pub(super) fn open(pid: i32, container_dir: PathBuf) -> io::Result<Option<Self>> {
        Ok(Pid::from_raw(pid).map(|pid| ShimProcess { pid, container_dir }))
    }

    pub(super) fn signal(&self, signal: Signal) {
        if self.holds_lock() {
            _ = rustix::process::kill_process(self.pid, signal);
        }
    }

    /// No process handles on this system: polls the shim's lock five times a second.
    pub(super) fn exited(&self) -> impl Future<Output = ()> + Send + use<> {
        let container_dir = self.container_dir.clone();
        async move {
            while shim::try_lock(&container_dir).is_ok_and(|held| held.is_none()) {
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        }
    }
}

impl ShimProcess {
    /// Whether a shim holds the lock of the container.
    pub(super) fn holds_lock(&self) -> bool {
        shim::try_lock(&self.container_dir).is_ok_and(|free| free.is_none())
    }
}

/// The environment variable that marks all processes of a container.
pub(super) const CONTAINER_ID_VARIABLE: &str = "POLIS_SEAT";

/// Kills the processes that a killed shim left behind. Call it only while holding the container's lock: then
/// no shim runs, and every process with the mark is an orphan.
#[cfg(target_os = "linux")]
pub(super) fn kill_orphans(container_id: &str) {
    use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
    let mark = format!("{CONTAINER_ID_VARIABLE}={container_id}");
    let marked = |pid: i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
    };
    let Ok(entries) = std::fs::read_dir("/proc") else { return };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    for pid in pids.filter(|pid| marked(*pid)) {
        let Some(handle) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
        else {
            continue;
        };
        // Checked again with the handle open: the process id cannot be reused now.
        if marked(pid) {
            tracing::warn!(pid, container_id, "killed an orphaned process: its shim was killed");
            _ = pidfd_send_signal(&handle, Signal::KILL);
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn kill_orphans(_: &str) {}
