//! No process outlives its owner.
//!
//! All components of a bed are in one process group. Its leader is a guard: a shell that does nothing but
//! read a pipe whose other end its owner holds. When the owner ends, in whatever way (even by SIGKILL, when
//! nothing of ours can run any more), the kernel closes the pipe, and the guard kills its own group.
//!
//! A group is killed without naming a process: while the guard lives nobody else can have its number. That
//! is why it is the leader and not a bystander with a list of process ids. The parent-death signal of Linux
//! would need `unsafe`, and it fires when the *thread* that started a process ends, which in a test is soon.
//! A shell is on every machine; a program of ours would have to be found from the tests of any crate.

use std::{
    io::Write,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

use crate::Error;

/// A line on the pipe lets the group live on; its end kills it.
const SCRIPT: &str = "read -r line || kill -KILL 0";

/// Ends a group of processes when it is dropped, and when its owner dies.
#[derive(Debug)]
pub struct Guard {
    shell: Child,
}

impl Guard {
    /// Starts a guard with a group of its own.
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

    /// The group to start processes in.
    pub fn group(&self) -> u32 {
        self.shell.id()
    }

    /// Lets the group live on without an owner.
    pub fn release(mut self) {
        if let Some(mut pipe) = self.shell.stdin.take() {
            // A guard that is gone holds nobody; there is nothing to release.
            let _gone = pipe.write_all(b"live on\n");
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
    use crate::process::{Condition, Identity};

    fn mk_sleeper(group: u32) -> Child {
        Command::new("sleep").arg("600").process_group(group.cast_signed()).spawn().unwrap()
    }

    #[test]
    fn a_dropped_guard_takes_its_group_with_it() {
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
    fn a_released_guard_lets_its_group_live_on() {
        let guard = Guard::start().unwrap();
        let mut inside = mk_sleeper(guard.group());
        guard.release();
        assert!(inside.try_wait().unwrap().is_none());
        inside.kill().unwrap();
        inside.wait().unwrap();
    }

    const OWNER: &str = "POLIS_TESTBED_GUARD_OWNER";

    /// Runs itself as the owner, in a second process that can be killed.
    #[test]
    fn the_group_goes_when_its_owner_is_killed_and_can_do_nothing_more() {
        if std::env::var_os(OWNER).is_some() {
            let guard = Guard::start().unwrap();
            let mut sleeper = mk_sleeper(guard.group());
            println!("\nsleeper {}", sleeper.id());
            sleeper.wait().unwrap();
            unreachable!("the owner is killed before its sleeper wakes");
        }
        let this = "guard::tests::the_group_goes_when_its_owner_is_killed_and_can_do_nothing_more";
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", this, "--nocapture"])
            .env(OWNER, "yes")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
        let said =
            lines.map_while(Result::ok).find_map(|line| line.strip_prefix("sleeper ").map(str::to_owned));
        let sleeper = Identity::of(said.unwrap().parse().unwrap()).unwrap();

        owner.kill().unwrap();
        owner.wait().unwrap();

        let deadline = Instant::now() + Duration::from_secs(20);
        while sleeper.condition() != Condition::Dead {
            assert!(Instant::now() < deadline, "the sleeper outlived its owner");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
