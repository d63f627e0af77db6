//! The processes below a shim: the program and everything that it started.

use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, wait};

use super::TerminationCause;

/// The program and its descendants.
pub(super) struct Children {
    main: Pid,
    /// The program's directory in `/proc`, open as long as the program runs. The sandbox has a rule for its
    /// inode, which the kernel would otherwise replace when it needs memory.
    _proc: Option<std::fs::File>,
}

impl Children {
    /// The processes of a child that was just started as the leader of its own group.
    pub(super) fn new(main: u32) -> Self {
        let proc = std::fs::File::open(format!("/proc/{main}")).ok();
        let main = i32::try_from(main).ok().and_then(Pid::from_raw);
        Children { main: main.expect("a child's process id is a positive i32"), _proc: proc }
    }

    pub(super) fn main(&self) -> i32 {
        self.main.as_raw_nonzero().get()
    }

    /// Reaps exited children. Sets the cause to the program's exit if it is not set; returns true while a
    /// child runs.
    pub(super) fn reap(&self, cause: &mut Option<TerminationCause>) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.main => {
                    let ended = match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => TerminationCause::Exit(code),
                        (None, Some(signal)) => TerminationCause::Signal(signal),
                        (None, None) => TerminationCause::Lost,
                    };
                    cause.get_or_insert(ended);
                }
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false, // no child is left
            }
        }
    }

    /// Sends TERM to all processes.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends KILL to all processes.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Signals the whole group at once, so that none of its processes can escape by forking, and then the
    /// children that have left the group. Only children are signalled by process id: the id is not reused
    /// before the shim reaps it.
    pub(super) fn signal(&self, signal: Signal) {
        // An error means that the processes have exited.
        _ = kill_process_group(self.main, signal);
        for child in orphans(self.main) {
            _ = kill_process(child, signal);
        }
    }
}

/// Children of this process other than the program.
#[cfg(target_os = "linux")]
fn orphans(main: Pid) -> Vec<Pid> {
    let me = rustix::process::getpid().as_raw_nonzero().get();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| parent(&stat) == Some(me))
        })
        .filter_map(Pid::from_raw)
        .filter(|pid| *pid != main)
        .collect()
}

#[cfg(not(target_os = "linux"))]
fn orphans(_: Pid) -> Vec<Pid> {
    Vec::new() // no subreapers on this system: processes that leave the group are lost
}

/// The parent's process id in a line of `/proc/<pid>/stat`. The program name before it, in parentheses, may
/// contain any character.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
fn parent(stat: &str) -> Option<i32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_parsed_after_any_program_name() {
        assert_eq!(parent("7 (sh) S 3 7 7 0 -1"), Some(3));
        assert_eq!(parent("7 (a) R 99 (b) S 3 7 7"), Some(3));
        assert_eq!(parent("7"), None);
    }
}
