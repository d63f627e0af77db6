//! One component of the bed: a process that is started, watched, stopped, killed, paused and resumed.
//!
//! A process is known by its number, the tick at which it started and the boot of the machine. Only that very
//! process is ever signalled: a number that was given to somebody else since is not it, and is left alone.
//! Records are files, so that a component can be stopped and restarted by another process than its starter.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::{
    Error,
    home::{Home, write_whole},
};

/// How a component is started, and how one knows that it is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Its name in the bed.
    pub name: String,
    /// Its program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// The ports that it listens on once it is ready.
    pub ports: Vec<u16>,
    /// The address that answers 200 once it is ready.
    pub ready: String,
}

/// One process, told from every other that has or had its number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub started: u64,
    /// Which boot.
    pub boot: String,
}

/// What a process is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// It runs.
    Running,
    /// It was stopped by a signal and can be resumed.
    Paused,
    /// It is gone. One that nobody has reaped yet is gone too.
    Dead,
}

impl Identity {
    /// The process that has this number now; none if there is none.
    pub fn of(pid: u32) -> Option<Identity> {
        let (_, started) = read_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        Some(Identity { pid, started, boot: boot() })
    }

    /// What it is doing.
    pub fn condition(&self) -> Condition {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        match read_stat(&stat) {
            Some((state, started)) if started == self.started && boot() == self.boot => match state {
                'Z' | 'X' if threads(self.pid) <= 1 => Condition::Dead,
                'T' | 't' => Condition::Paused,
                _ => Condition::Running,
            },
            _ => Condition::Dead,
        }
    }

    /// Sends a signal to this very process; false if it is gone.
    pub fn signal(&self, signal: Signal) -> io::Result<bool> {
        let Some(pid) = Pid::from_raw(self.pid.cast_signed()) else { return Ok(false) };
        // The descriptor is opened first and compared afterwards: it cannot come to mean another process.
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(rustix::io::Errno::SRCH) => return Ok(false),
            Err(err) => return Err(err.into()),
        };
        if self.condition() == Condition::Dead {
            return Ok(false);
        }
        match pidfd_send_signal(process, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(err) => Err(err.into()),
        }
    }

    /// Its resident memory in KiB.
    pub fn resident_kib(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().trim_end_matches("kB").trim().parse().ok()
    }
}

/// The first thread of a killed process is gone before the others, which still hold its ports for a moment.
fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// State and start tick from `/proc/<pid>/stat`. The name in it may hold blanks and brackets of its own.
fn read_stat(stat: &str) -> Option<(char, u64)> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // Field 22 of the line; the state is field 3.
    let started = fields.nth(22 - 4)?.parse().ok()?;
    Some((state, started))
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// How a component was last started, and as which process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// What was started.
    pub spec: Spec,
    /// As which process.
    pub identity: Identity,
    /// Where in its log this start begins.
    pub log_from: u64,
}

/// Longest time a killed process may take to vanish: the kernel has to free up to a gigabyte.
const GONE_WITHIN: Duration = Duration::from_secs(20);
/// How long a component may take to stop by itself before it is killed.
const STOPPED_WITHIN: Duration = Duration::from_secs(10);
const TAIL_LINES: usize = 12;
const TAIL_WIDTH: usize = 300;

/// All components of one bed.
#[derive(Debug)]
pub struct Processes {
    home: Home,
    group: u32,
    /// Those that this process started, to reap them.
    children: Mutex<BTreeMap<String, Child>>,
}

impl Processes {
    /// The components in a directory; new ones join the process group.
    pub fn new(home: &Home, group: u32) -> Self {
        Processes { home: home.clone(), group, children: Mutex::default() }
    }

    /// Starts a component. It is not ready yet.
    pub fn start(&self, spec: &Spec) -> Result<Record, Error> {
        let path = self.home.log(&spec.name);
        let log =
            File::options().create(true).append(true).open(&path).map_err(Error::file("open", &path))?;
        let log_from = log.metadata().map_err(Error::file("read", &path))?.len();
        let child = self.spawn(spec, &log).map_err(|cause| Error::Spawn {
            name: spec.name.clone(),
            program: spec.program.clone(),
            cause,
        })?;
        let pid = child.id();
        self.children().insert(spec.name.clone(), child);
        // A child stays in /proc until it is reaped, and it has just been handed to nobody who would.
        let identity = Identity::of(pid).ok_or_else(|| Error::Spawn {
            name: spec.name.clone(),
            program: spec.program.clone(),
            cause: io::Error::other("/proc does not show it: the test bed needs Linux with /proc"),
        })?;
        let record = Record { spec: spec.clone(), identity, log_from };
        write_whole(
            &self.home.run(&spec.name),
            &serde_json::to_vec_pretty(&record).expect("a record is plain data"),
        )?;
        Ok(record)
    }

    fn spawn(&self, spec: &Spec, log: &File) -> io::Result<Child> {
        let command = |group: u32| -> io::Result<Child> {
            Command::new(&spec.program)
                .args(&spec.args)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log.try_clone()?)
                .current_dir(self.home.dir())
                // Nothing of the user's (KUBECONFIG, proxies, GODEBUG) changes what a component does.
                .env_clear()
                .env("HOME", self.home.dir())
                .env("PATH", "/usr/bin:/bin")
                .process_group(group.cast_signed())
                .spawn()
        };
        match command(self.group) {
            // The group is empty, or of another terminal: a restarted component then leads one of its own.
            Err(err) if err.kind() == io::ErrorKind::PermissionDenied && self.group != 0 => command(0),
            outcome => outcome,
        }
    }

    /// All records, by name.
    pub fn records(&self) -> Result<Vec<Record>, Error> {
        let folder = self.home.run("");
        let Ok(listed) = fs::read_dir(&folder) else { return Ok(Vec::new()) };
        let mut names: Vec<String> = listed
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            // A dot begins the name of a record that is being written.
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        names.iter().map(|name| self.read(name)).collect()
    }

    /// The record of a component.
    pub fn record(&self, name: &str) -> Result<Record, Error> {
        if self.home.run(name).is_file() {
            return self.read(name);
        }
        let known: Vec<String> = self.records()?.into_iter().map(|record| record.spec.name).collect();
        Err(Error::UnknownComponent { name: name.to_owned(), known: known.join(", ") })
    }

    fn read(&self, name: &str) -> Result<Record, Error> {
        let path = self.home.run(name);
        let text = fs::read(&path).map_err(Error::file("read", &path))?;
        serde_json::from_slice(&text)
            .map_err(|err| Error::Manifest { name: path.display().to_string(), why: err.to_string() })
    }

    /// Whether any component lives.
    pub fn any_alive(&self) -> Result<bool, Error> {
        Ok(self.records()?.iter().any(|record| record.identity.condition() != Condition::Dead))
    }

    /// Kills a component and waits until it is gone.
    pub fn kill(&self, name: &str) -> Result<(), Error> {
        let record = self.record(name)?;
        self.signal(&record, Signal::KILL)?;
        self.await_gone(&record, GONE_WITHIN)
    }

    /// Asks a component to stop, waits until it is gone, and kills it when it takes too long.
    pub fn stop(&self, name: &str) -> Result<(), Error> {
        let record = self.record(name)?;
        self.signal(&record, Signal::TERM)?;
        self.signal(&record, Signal::CONT)?;
        match self.await_gone(&record, STOPPED_WITHIN) {
            Err(Error::Unkillable { .. }) => self.kill(name),
            outcome => outcome,
        }
    }

    /// Freezes a component: its connections stay open and nothing answers on them.
    pub fn pause(&self, name: &str) -> Result<(), Error> {
        self.signal(&self.record(name)?, Signal::STOP)
    }

    /// Lets a frozen component go on.
    pub fn resume(&self, name: &str) -> Result<(), Error> {
        self.signal(&self.record(name)?, Signal::CONT)
    }

    /// Kills every component and waits until all are gone.
    pub fn kill_all(&self) -> Result<(), Error> {
        let records = self.records()?;
        for record in &records {
            self.signal(record, Signal::KILL)?;
        }
        records.iter().try_for_each(|record| self.await_gone(record, GONE_WITHIN))
    }

    fn signal(&self, record: &Record, signal: Signal) -> Result<(), Error> {
        match record.identity.signal(signal) {
            Ok(_was_there) => Ok(()),
            Err(cause) => Err(Error::Signal { name: record.spec.name.clone(), cause }),
        }
    }

    fn await_gone(&self, record: &Record, within: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + within;
        while record.identity.condition() != Condition::Dead {
            if Instant::now() > deadline {
                let name = record.spec.name.clone();
                return Err(Error::Unkillable { name, pid: record.identity.pid, seconds: within.as_secs() });
            }
            thread::sleep(Duration::from_millis(5));
        }
        if let Some(mut child) = self.children().remove(&record.spec.name) {
            // Dead already: this reaps it and does not wait.
            let _status = child.wait();
        }
        Ok(())
    }

    /// What a component has said since it was last started.
    pub fn said(&self, record: &Record) -> String {
        let mut text = Vec::new();
        if let Ok(mut log) = File::open(self.home.log(&record.spec.name)) {
            let _unreadable_is_empty =
                log.seek(SeekFrom::Start(record.log_from)).and_then(|_| log.read_to_end(&mut text));
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The last lines that a component has said since it was last started.
    pub fn tail(&self, record: &Record) -> String {
        tail(&self.said(record))
    }

    /// That a component died, with its last lines.
    pub fn death(&self, record: &Record) -> Error {
        Error::Died {
            name: record.spec.name.clone(),
            log: self.home.log(&record.spec.name),
            tail: self.tail(record),
        }
    }

    /// The log of a component.
    pub fn log(&self, record: &Record) -> PathBuf {
        self.home.log(&record.spec.name)
    }

    /// The first component that is dead, if any.
    pub fn first_dead(&self) -> Result<Option<Record>, Error> {
        Ok(self.records()?.into_iter().find(|record| record.identity.condition() == Condition::Dead))
    }

    /// The directory of the bed.
    pub fn dir(&self) -> &Path {
        self.home.dir()
    }

    fn children(&self) -> MutexGuard<'_, BTreeMap<String, Child>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reaps what this process started and what has ended.
    pub fn reap(&self) {
        self.children().retain(|_, child| !matches!(child.try_wait(), Ok(Some(_))));
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    if last.is_empty() {
        return "  (it said nothing)".to_owned();
    }
    let cut = |line: &&str| format!("  {}", line.chars().take(TAIL_WIDTH).collect::<String>());
    last.iter().map(cut).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_home() -> (tempfile::TempDir, Home) {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::claim(Some(dir.path())).unwrap();
        (dir, home)
    }

    fn mk_spec(name: &str, script: &str) -> Spec {
        Spec {
            name: name.to_owned(),
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
            ports: Vec::new(),
            ready: String::new(),
        }
    }

    #[test]
    fn a_name_with_blanks_and_brackets_does_not_confuse_the_reader() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 99";
        assert_eq!(read_stat(stat), Some(('S', 4711)));
        assert_eq!(read_stat("garbage"), None);
    }

    #[test]
    fn a_number_that_was_given_to_another_process_is_not_the_process() {
        let me = Identity::of(std::process::id()).unwrap();
        assert_eq!(me.condition(), Condition::Running);
        let earlier = Identity { started: me.started - 1, ..me.clone() };
        assert_eq!(earlier.condition(), Condition::Dead);
        assert!(!earlier.signal(Signal::KILL).unwrap(), "it would have killed this test");
        let before_reboot = Identity { boot: "another".to_owned(), ..me };
        assert_eq!(before_reboot.condition(), Condition::Dead);
    }

    #[test]
    fn a_component_is_paused_resumed_and_killed_also_by_another_who_knows_only_the_directory() {
        let (_dir, home) = mk_home();
        let starter = Processes::new(&home, 0);
        starter.start(&mk_spec("sleeper", "exec sleep 600")).unwrap();
        let other = Processes::new(&home, 0);
        let condition = || other.record("sleeper").unwrap().identity.condition();

        other.pause("sleeper").unwrap();
        while condition() != Condition::Paused {
            thread::yield_now();
        }
        other.resume("sleeper").unwrap();
        while condition() != Condition::Running {
            thread::yield_now();
        }
        other.kill("sleeper").unwrap();
        assert_eq!(condition(), Condition::Dead);
    }

    #[test]
    fn a_paused_component_can_be_stopped() {
        let (_dir, home) = mk_home();
        let processes = Processes::new(&home, 0);
        let record = processes.start(&mk_spec("sleeper", "exec sleep 600")).unwrap();
        processes.pause("sleeper").unwrap();
        processes.stop("sleeper").unwrap();
        assert_eq!(record.identity.condition(), Condition::Dead);
    }

    #[test]
    fn a_death_is_told_with_the_last_lines_since_the_last_start() {
        let (_dir, home) = mk_home();
        let processes = Processes::new(&home, 0);
        let first = processes.start(&mk_spec("talker", "echo first; exit 1")).unwrap();
        processes.await_gone(&first, GONE_WITHIN).unwrap();
        let second = processes.start(&mk_spec("talker", "echo second; echo no luck >&2; exit 1")).unwrap();
        processes.await_gone(&second, GONE_WITHIN).unwrap();

        let message = processes.death(&second).to_string();
        assert!(message.starts_with("talker died; the last lines of "), "{message}");
        assert!(message.ends_with("  second\n  no luck"), "{message}");
    }

    #[test]
    fn an_unknown_component_is_answered_with_those_there_are() {
        let (_dir, home) = mk_home();
        let processes = Processes::new(&home, 0);
        let record = processes.start(&mk_spec("etcd", "exit 0")).unwrap();
        processes.await_gone(&record, GONE_WITHIN).unwrap();
        let message = processes.record("etc").unwrap_err().to_string();
        assert_eq!(message, "there is no component \"etc\" in this bed; it has etcd");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let (_dir, home) = mk_home();
        let spec = Spec { program: "/nowhere/etcd".into(), ..mk_spec("etcd", "") };
        let message = Processes::new(&home, 0).start(&spec).unwrap_err().to_string();
        assert!(message.starts_with("failed to start etcd (/nowhere/etcd): "), "{message}");
    }

    #[test]
    fn a_tail_is_short_in_both_directions() {
        let long = format!("{}\n{}", "x".repeat(5000), "line\n\n".repeat(100));
        let shown = tail(&long);
        assert_eq!(shown.lines().count(), TAIL_LINES);
        assert!(tail(&"x".repeat(5000)).len() < TAIL_WIDTH + 3);
        assert_eq!(tail("\n"), "  (it said nothing)");
    }
}
