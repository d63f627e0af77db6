//! A shim as seen from the runtime: whether it lives, and how to ask it to stop.

use std::io;
use std::path::PathBuf;
#[cfg(target_os = "linux")]
use std::sync::Arc;

use rustix::process::{Pid, Signal};
#[cfg(target_os = "linux")]
use tokio::io::{Interest, unix::AsyncFd};

use crate::shim;

/// A live shim. On Linux a handle of the kernel's, which never means another process.
pub(super) struct ShimProcess {
    #[cfg(target_os = "linux")]
    process: Arc<AsyncFd<std::os::fd::OwnedFd>>,
    #[cfg(not(target_os = "linux"))]
    pid: Pid,
    folder: PathBuf,
}

#[cfg(target_os = "linux")]
impl ShimProcess {
    /// Takes hold of a process, which is only then sure to be the shim if it holds its place afterwards; none if it is
    /// not there.
    pub(super) fn open(pid: i32, folder: PathBuf) -> io::Result<Option<Self>> {
        use rustix::process::{PidfdFlags, pidfd_open};
        let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
        match pidfd_open(pid, PidfdFlags::NONBLOCK) {
            Ok(handle) => {
                // Deprecated because a type might lie about its descriptor. `OwnedFd` does not; and what replaces it
                // cannot be called from safe code.
                #[allow(deprecated)]
                let process = AsyncFd::with_interest(handle, Interest::READABLE)?;
                Ok(Some(ShimProcess { process: Arc::new(process), folder }))
            }
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a signal. One that has ended has ended.
    pub(super) fn signal(&self, signal: Signal) {
        _ = rustix::process::pidfd_send_signal(self.process.get_ref(), signal);
    }

    /// Ready when it has ended.
    pub(super) fn gone(&self) -> impl Future<Output = ()> + Send + use<> {
        let process = self.process.clone();
        async move {
            // An error would mean that tokio is shutting down: then nobody asks.
            _ = process.readable().await.map(|mut ready| ready.retain_ready());
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl ShimProcess {
    pub(super) fn open(pid: i32, folder: PathBuf) -> io::Result<Option<Self>> {
        Ok(Pid::from_raw(pid).map(|pid| ShimProcess { pid, folder }))
    }

    pub(super) fn signal(&self, signal: Signal) {
        if self.holds() {
            _ = rustix::process::kill_process(self.pid, signal);
        }
    }

    /// The system has no handle to wait on: its place is looked at a few times a second.
    pub(super) fn gone(&self) -> impl Future<Output = ()> + Send + use<> {
        let folder = self.folder.clone();
        async move {
            while shim::hold(&folder).is_ok_and(|held| held.is_none()) {
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
        }
    }
}

impl ShimProcess {
    /// Whether some shim holds the place.
    pub(super) fn holds(&self) -> bool {
        shim::hold(&self.folder).is_ok_and(|free| free.is_none())
    }
}

/// The variable by which everything that runs for a container is known.
pub(super) const MARK: &str = "POLIS_SEAT";

/// Ends what a shim that was killed has left behind. Only called while no shim has the place, so whatever carries the
/// mark belongs to nobody.
#[cfg(target_os = "linux")]
pub(super) fn sweep(seat: &str) {
    use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
    let mark = format!("{MARK}={seat}");
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
        // Looked at again: the number cannot change hands while we have the handle.
        if marked(pid) {
            tracing::warn!(pid, seat, "left behind by a shim that was killed: ended");
            _ = pidfd_send_signal(&handle, Signal::KILL);
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn sweep(_: &str) {}
