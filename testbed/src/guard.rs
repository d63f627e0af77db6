//! A process guard: kills the processes of a test cluster when their owner ends.
//!
//! All components of a test cluster are in one process group. Its leader is the guard: a shell that only
//! reads a pipe whose other end the owner holds. When the owner ends in any way, including SIGKILL, the
//! kernel closes the pipe, and the guard kills its own group.
//!
//! The guard is the group leader, not an observer with a list of process ids, because its process id cannot
//! be reused while it runs. The parent-death signal of Linux would need `unsafe`, and it fires when the
//! *thread* that started a process ends, which in a test is early. A shell exists on every machine; a program
//! of this crate would have to be located from the tests of every other crate.

use std::{
    io::Write,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

use crate::Error;

/// A line on the pipe releases the group; the end of the pipe kills it.
const SCRIPT: &str = "read -r line || kill -KILL 0";

/// Kills a process group when it is dropped and when its owner ends.
#[derive(Debug)]
pub struct Guard {
    shell: Child,
}

impl Guard {
    /// Starts a guard with a new process group.
    pub fn start() -> Result<Guard, Error> {
        let shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT, "polis-testbed-guard"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .spawn()
            .map_err(|cause| Error::Spawn {
                name: "the guard".to_owned(),
                program: "/bin/sh".into(),
                cause,
            })?;
        Ok(Guard { shell })
    }

    /// The process group in which to start processes.
    pub fn group(&self) -> u32 {
        self.shell.id()
    }

    /// Releases the group: it keeps running without an owner.
    pub fn release(mut self) {
        if let Some(mut pipe) = self.shell.stdin.take() {
            // If the guard has exited, there is nothing to release.
            let _exited = pipe.write_all(b"release\n");
        }
        let _reaped = self.shell.wait();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _reaped = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        time::{Duration, Instant},
    };

    use super::*;
    use crate::process::{ProcessId, ProcessState};

    fn mk_sleeper(group: u32) -> Child {
        Command::new("sleep").arg("600").process_group(group.cast_signed()).spawn().unwrap()
    }

    #[test]
    fn a_dropped_guard_kills_its_group() {
        let guard = Guard::start().unwrap();
        let mut inside = mk_sleeper(guard.group());
        let mut outside = mk_sleeper(0);
        drop(guard);
        assert!(!inside.wait().unwrap().success());
        assert!(outside.try_wait().unwrap().is_none(), "a process of another group was killed");
        outside.kill().unwrap();
        outside.wait().unwrap();
    }

    #[test]
    fn a_released_guard_keeps_its_group_running() {
        let guard = Guard::start().unwrap();
        let mut inside = mk_sleeper(guard.group());
        guard.release();
        assert!(inside.try_wait().unwrap().is_none());
        inside.kill().unwrap();
        inside.wait().unwrap();
    }

    const OWNER: &str = "POLIS_TESTBED_GUARD_OWNER";

    /// The test runs itself in a second process, as the owner that is killed.
    #[test]
    fn the_group_is_killed_when_its_owner_is_killed() {
        if std::env::var_os(OWNER).is_some() {
            let guard = Guard::start().unwrap();
            let mut sleeper = mk_sleeper(guard.group());
            println!("\nsleeper {}", sleeper.id());
            sleeper.wait().unwrap();
            unreachable!("the owner is killed before its sleeper wakes");
        }
        let this = "guard::tests::the_group_is_killed_when_its_owner_is_killed";
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", this, "--nocapture"])
            .env(OWNER, "yes")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
        let pid =
            lines.map_while(Result::ok).find_map(|line| line.strip_prefix("sleeper ").map(str::to_owned));
        let sleeper = ProcessId::of(pid.unwrap().parse().unwrap()).unwrap();

        owner.kill().unwrap();
        owner.wait().unwrap();

        let deadline = Instant::now() + Duration::from_secs(20);
        while sleeper.state() != ProcessState::Dead {
            assert!(Instant::now() < deadline, "the sleeper outlived its owner");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
