//! Everything that runs beneath a shim: the program, and whatever it started.

use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, wait};

use super::How;

/// The program and its offspring.
pub(super) struct Children {
    main: Pid,
}

impl Children {
    /// The offspring of a child that was just started, leader of its own group.
    pub(super) fn new(main: u32) -> Self {
        let main = i32::try_from(main).ok().and_then(Pid::from_raw);
        Children { main: main.expect("the system gave it to a child of ours") }
    }

    pub(super) fn main(&self) -> i32 {
        self.main.as_raw_nonzero().get()
    }

    /// Buries the dead. Notes how the program ended unless something is noted already; true while anybody lives.
    pub(super) fn reap(&self, how: &mut Option<How>) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.main => {
                    let ended = match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => How::Exit(code),
                        (None, Some(signal)) => How::Signal(signal),
                        (None, None) => How::Lost,
                    };
                    how.get_or_insert(ended);
                }
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false, // no child is left
            }
        }
    }

    /// Asks everybody to end.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Ends everybody that is a child of ours by now, and the group.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// The group at once, so that nobody in it can fork his way out; then those who have left it. Only children of ours
    /// are named by process id: such an id cannot be given to somebody else before we have buried its owner.
    fn signal(&self, signal: Signal) {
        // An error says that they are gone.
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
    Vec::new() // no system call makes us their parent there: those who leave the group are lost
}

/// The parent in a line of `/proc/<pid>/stat`. The name of the program comes before it, in parentheses, and may hold
/// anything.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
fn parent(stat: &str) -> Option<i32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_found_behind_any_program_name() {
        assert_eq!(parent("7 (sh) S 3 7 7 0 -1"), Some(3));
        assert_eq!(parent("7 (a) R 99 (b) S 3 7 7"), Some(3));
        assert_eq!(parent("7"), None);
    }
}
