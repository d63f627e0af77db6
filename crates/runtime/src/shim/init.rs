//! Process 1 of a container: starts the program and reaps all processes of the namespace.
//!
//! It has no signal handlers, so the kernel does not deliver signals of the container to it. TERM reaches the
//! program directly, which is in the same process group. When the program has exited, the processes that it
//! left behind get TERM, and KILL after [`LEFT_BEHIND_TIMEOUT`], when this process exits.

use std::fs;
use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, wait};

use super::TerminationCause;

/// Time for processes that the program left behind.
const LEFT_BEHIND_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval in which they are reaped.
const REAP_INTERVAL: Duration = Duration::from_millis(5);

/// Runs the program until it and all processes that it started have exited.
pub(super) fn run(program: &mut Command) -> io::Result<TerminationCause> {
    let main = i32::try_from(program.spawn()?.id()).ok().and_then(Pid::from_raw);
    let cause = loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if Some(pid) == main => break cause(status),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    for other in others() {
        _ = kill_process(other, Signal::TERM);
    }
    let start = Instant::now();
    while start.elapsed() < LEFT_BEHIND_TIMEOUT {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => std::thread::sleep(REAP_INTERVAL),
            Err(_) => break, // none is left
        }
    }
    Ok(cause)
}

fn cause(status: WaitStatus) -> TerminationCause {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => TerminationCause::Exit(code),
        (None, Some(signal)) => TerminationCause::Signal(signal),
        (None, None) => TerminationCause::Lost,
    }
}

/// The other processes of the namespace.
fn others() -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    pids.filter(|pid| *pid != getpid()).collect()
}
