//! The processes of a test cluster: start, stop, kill, pause and resume.
//!
//! A process is identified by its process id, its start time and the boot id of the machine. A reused process
//! id is therefore never signalled. Records are files, so that any process can stop and restart a component.

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
    state_dir::{StateDir, write_atomically},
};

/// How a component is started and how its readiness is checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentSpec {
    /// Its name in the test cluster.
    pub name: String,
    /// Its program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// The ports that it listens on when it is ready.
    pub ports: Vec<u16>,
    /// The URL that returns 200 when it is ready.
    pub ready: String,
}

/// The identity of one process, distinct from earlier and later processes with the same process id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// The process id.
    pub pid: u32,
    /// The start time, in clock ticks since boot.
    pub started: u64,
    /// The boot id of the machine.
    pub boot: String,
}

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    /// It is running.
    Running,
    /// It is stopped by SIGSTOP and can be resumed.
    Paused,
    /// It has exited; a zombie counts as exited.
    Dead,
}

impl ProcessId {
    /// The process that has this process id now; `None` if there is none.
    pub fn of(pid: u32) -> Option<ProcessId> {
        let (_, started) = read_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        Some(ProcessId { pid, started, boot: boot() })
    }

    /// Its state.
    pub fn state(&self) -> ProcessState {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        match read_stat(&stat) {
            Some((status_char, started)) if started == self.started && boot() == self.boot => {
                match status_char {
                    'Z' | 'X' if threads(self.pid) <= 1 => ProcessState::Dead,
                    'T' | 't' => ProcessState::Paused,
                    _ => ProcessState::Running,
                }
            }
            _ => ProcessState::Dead,
        }
    }

    /// Sends a signal to this process; false if it has exited.
    pub fn signal(&self, signal: Signal) -> io::Result<bool> {
        let Some(pid) = Pid::from_raw(self.pid.cast_signed()) else { return Ok(false) };
        // The pidfd is opened before the check: from then on it cannot refer to another process.
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => process,
            Err(rustix::io::Errno::SRCH) => return Ok(false),
            Err(err) => return Err(err.into()),
        };
        if self.state() == ProcessState::Dead {
            return Ok(false);
        }
        match pidfd_send_signal(process, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(err) => Err(err.into()),
        }
    }

    /// Stops this process with SIGSTOP, and waits until none of its threads runs: on a busy machine some run
    /// on for milliseconds. False if it has exited.
    pub fn pause(&self) -> io::Result<bool> {
        if !self.signal(Signal::STOP)? {
            return Ok(false);
        }
        while self.state() != ProcessState::Dead && !self.all_threads_paused() {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(true)
    }

    fn all_threads_paused(&self) -> bool {
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.pid)) else { return true };
        tasks.flatten().all(|task| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // A thread without a state has exited.
            read_stat(&stat).is_none_or(|(state, _)| matches!(state, 'T' | 't' | 'Z' | 'X'))
        })
    }

    /// Its resident memory in KiB.
    pub fn resident_kib(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().trim_end_matches("kB").trim().parse().ok()
    }
}

/// The main thread of a killed process can exit before the others, which still hold its ports for a moment.
fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// State and start time from `/proc/<pid>/stat`. The process name in it may contain spaces and brackets.
fn read_stat(stat: &str) -> Option<(char, u64)> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_whitespace();
    let status_char = fields.next()?.chars().next()?;
    // Field 22 of the line; the state is field 3.
    let started = fields.nth(22 - 4)?.parse().ok()?;
    Some((status_char, started))
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// The last start of a component: its spec and its process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComponentRecord {
    /// The spec that was started.
    pub spec: ComponentSpec,
    /// The process.
    #[serde(rename = "identity")]
    pub process: ProcessId,
    /// The offset in its log at which this start begins.
    pub log_from: u64,
}

/// How long a killed process may take to exit: the kernel has to free up to a gigabyte.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a component may take to exit after SIGTERM before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const TAIL_LINES: usize = 12;
const TAIL_WIDTH: usize = 300;

/// All components of one test cluster.
#[derive(Debug)]
pub struct Processes {
    state_dir: StateDir,
    group: u32,
    /// The children of this process, to reap them.
    children: Mutex<BTreeMap<String, Child>>,
}

impl Processes {
    /// The components of a state directory; new ones join the process group.
    pub fn new(state_dir: &StateDir, group: u32) -> Self {
        Processes { state_dir: state_dir.clone(), group, children: Mutex::default() }
    }

    /// Starts a component without waiting for its readiness.
    pub fn start(&self, spec: &ComponentSpec) -> Result<ComponentRecord, Error> {
        let path = self.state_dir.log(&spec.name);
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
        // A child stays in /proc until this process reaps it.
        let process = ProcessId::of(pid).ok_or_else(|| Error::Spawn {
            name: spec.name.clone(),
            program: spec.program.clone(),
            cause: io::Error::other("it is missing in /proc: the test bed needs Linux with /proc"),
        })?;
        let record = ComponentRecord { spec: spec.clone(), process, log_from };
        write_atomically(
            &self.state_dir.run(&spec.name),
            &serde_json::to_vec_pretty(&record).expect("a record is plain data"),
        )?;
        Ok(record)
    }

    fn spawn(&self, spec: &ComponentSpec, log: &File) -> io::Result<Child> {
        let command = |group: u32| -> io::Result<Child> {
            Command::new(&spec.program)
                .args(&spec.args)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log.try_clone()?)
                .current_dir(self.state_dir.dir())
                // The environment of the user (KUBECONFIG, proxies, GODEBUG) must not affect a component.
                .env_clear()
                .env("HOME", self.state_dir.dir())
                .env("PATH", "/usr/bin:/bin")
                .process_group(group.cast_signed())
                .spawn()
        };
        match command(self.group) {
            // The group is empty or belongs to another session: the component then leads its own group.
            Err(err) if err.kind() == io::ErrorKind::PermissionDenied && self.group != 0 => command(0),
            result => result,
        }
    }

    /// All records, by name.
    pub fn records(&self) -> Result<Vec<ComponentRecord>, Error> {
        let folder = self.state_dir.run("");
        let Ok(listed) = fs::read_dir(&folder) else { return Ok(Vec::new()) };
        let mut names: Vec<String> = listed
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            // A name with a leading dot is a record that is being written.
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        names.iter().map(|name| self.read(name)).collect()
    }

    /// The record of a component.
    pub fn record(&self, name: &str) -> Result<ComponentRecord, Error> {
        if self.state_dir.run(name).is_file() {
            return self.read(name);
        }
        let known: Vec<String> = self.records()?.into_iter().map(|record| record.spec.name).collect();
        Err(Error::UnknownComponent { name: name.to_owned(), known: known.join(", ") })
    }

    fn read(&self, name: &str) -> Result<ComponentRecord, Error> {
        let path = self.state_dir.run(name);
        let text = fs::read(&path).map_err(Error::file("read", &path))?;
        serde_json::from_slice(&text)
            .map_err(|err| Error::Manifest { name: path.display().to_string(), why: err.to_string() })
    }

    /// Whether any component is running or paused.
    pub fn any_alive(&self) -> Result<bool, Error> {
        Ok(self.records()?.iter().any(|record| record.process.state() != ProcessState::Dead))
    }

    /// Kills a component and waits until it has exited.
    pub fn kill(&self, name: &str) -> Result<(), Error> {
        let record = self.record(name)?;
        self.signal(&record, Signal::KILL)?;
        self.await_exit(&record, KILL_TIMEOUT)
    }

    /// Stops a component (SIGTERM), waits until it has exited, and kills it after a timeout.
    pub fn stop(&self, name: &str) -> Result<(), Error> {
        let record = self.record(name)?;
        self.signal(&record, Signal::TERM)?;
        self.signal(&record, Signal::CONT)?;
        match self.await_exit(&record, STOP_TIMEOUT) {
            Err(Error::Unkillable { .. }) => self.kill(name),
            result => result,
        }
    }

    /// Pauses a component: its connections stay open, and it does not respond.
    pub fn pause(&self, name: &str) -> Result<(), Error> {
        let record = self.record(name)?;
        match record.process.pause() {
            Ok(_was_running) => Ok(()),
            Err(cause) => Err(Error::Signal { name: name.to_owned(), cause }),
        }
    }

    /// Resumes a paused component.
    pub fn resume(&self, name: &str) -> Result<(), Error> {
        self.signal(&self.record(name)?, Signal::CONT)
    }

    /// Kills every component and waits until all have exited.
    pub fn kill_all(&self) -> Result<(), Error> {
        let records = self.records()?;
        for record in &records {
            self.signal(record, Signal::KILL)?;
        }
        records.iter().try_for_each(|record| self.await_exit(record, KILL_TIMEOUT))
    }

    fn signal(&self, record: &ComponentRecord, signal: Signal) -> Result<(), Error> {
        match record.process.signal(signal) {
            Ok(_was_running) => Ok(()),
            Err(cause) => Err(Error::Signal { name: record.spec.name.clone(), cause }),
        }
    }

    fn await_exit(&self, record: &ComponentRecord, within: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + within;
        while record.process.state() != ProcessState::Dead {
            if Instant::now() > deadline {
                let name = record.spec.name.clone();
                return Err(Error::Unkillable { name, pid: record.process.pid, seconds: within.as_secs() });
            }
            thread::sleep(Duration::from_millis(5));
        }
        if let Some(mut child) = self.children().remove(&record.spec.name) {
            // Already exited: this reaps it and does not block.
            let _status = child.wait();
        }
        Ok(())
    }

    /// The output of a component since its last start.
    pub fn output(&self, record: &ComponentRecord) -> String {
        let mut text = Vec::new();
        if let Ok(mut log) = File::open(self.state_dir.log(&record.spec.name)) {
            let _unreadable_is_empty =
                log.seek(SeekFrom::Start(record.log_from)).and_then(|_| log.read_to_end(&mut text));
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The last lines of output of a component since its last start.
    pub fn tail(&self, record: &ComponentRecord) -> String {
        tail(&self.output(record))
    }

    /// The error for a component that exited, with the last lines of its log.
    pub fn exit_error(&self, record: &ComponentRecord) -> Error {
        Error::Exited {
            name: record.spec.name.clone(),
            log: self.state_dir.log(&record.spec.name),
            tail: self.tail(record),
        }
    }

    /// The log file of a component.
    pub fn log(&self, record: &ComponentRecord) -> PathBuf {
        self.state_dir.log(&record.spec.name)
    }

    /// The first component that has exited, if any.
    pub fn first_exited(&self) -> Result<Option<ComponentRecord>, Error> {
        Ok(self.records()?.into_iter().find(|record| record.process.state() == ProcessState::Dead))
    }

    /// The state directory.
    pub fn dir(&self) -> &Path {
        self.state_dir.dir()
    }

    fn children(&self) -> MutexGuard<'_, BTreeMap<String, Child>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reaps the children that have exited.
    pub fn reap(&self) {
        self.children().retain(|_, child| !matches!(child.try_wait(), Ok(Some(_))));
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    if last.is_empty() {
        return "  (no output)".to_owned();
    }
    let cut = |line: &&str| format!("  {}", line.chars().take(TAIL_WIDTH).collect::<String>());
    last.iter().map(cut).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_state_dir() -> (tempfile::TempDir, StateDir) {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = StateDir::claim(Some(dir.path())).unwrap();
        (dir, state_dir)
    }

    fn mk_spec(name: &str, script: &str) -> ComponentSpec {
        ComponentSpec {
            name: name.to_owned(),
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
            ports: Vec::new(),
            ready: String::new(),
        }
    }

    #[test]
    fn a_process_name_may_contain_spaces_and_brackets() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 99";
        assert_eq!(read_stat(stat), Some(('S', 4711)));
        assert_eq!(read_stat("garbage"), None);
    }

    #[test]
    fn a_reused_process_id_is_another_process() {
        let me = ProcessId::of(std::process::id()).unwrap();
        assert_eq!(me.state(), ProcessState::Running);
        let earlier = ProcessId { started: me.started - 1, ..me.clone() };
        assert_eq!(earlier.state(), ProcessState::Dead);
        assert!(!earlier.signal(Signal::KILL).unwrap(), "the signal would have killed this test");
        let before_reboot = ProcessId { boot: "another".to_owned(), ..me };
        assert_eq!(before_reboot.state(), ProcessState::Dead);
    }

    #[test]
    fn another_process_can_pause_resume_and_kill_a_component() {
        let (_dir, state_dir) = mk_state_dir();
        let starter = Processes::new(&state_dir, 0);
        starter.start(&mk_spec("sleeper", "exec sleep 600")).unwrap();
        let other = Processes::new(&state_dir, 0);
        let state = || other.record("sleeper").unwrap().process.state();

        other.pause("sleeper").unwrap();
        while state() != ProcessState::Paused {
            thread::yield_now();
        }
        other.resume("sleeper").unwrap();
        while state() != ProcessState::Running {
            thread::yield_now();
        }
        other.kill("sleeper").unwrap();
        assert_eq!(state(), ProcessState::Dead);
    }

    #[test]
    fn a_paused_component_can_be_stopped() {
        let (_dir, state_dir) = mk_state_dir();
        let processes = Processes::new(&state_dir, 0);
        let record = processes.start(&mk_spec("sleeper", "exec sleep 600")).unwrap();
        processes.pause("sleeper").unwrap();
        processes.stop("sleeper").unwrap();
        assert_eq!(record.process.state(), ProcessState::Dead);
    }

    #[test]
    fn the_exit_error_holds_the_last_lines_since_the_last_start() {
        let (_dir, state_dir) = mk_state_dir();
        let processes = Processes::new(&state_dir, 0);
        let first = processes.start(&mk_spec("talker", "echo first; exit 1")).unwrap();
        processes.await_exit(&first, KILL_TIMEOUT).unwrap();
        let second = processes.start(&mk_spec("talker", "echo second; echo no luck >&2; exit 1")).unwrap();
        processes.await_exit(&second, KILL_TIMEOUT).unwrap();

        let message = processes.exit_error(&second).to_string();
        assert!(message.starts_with("talker exited; the last lines of "), "{message}");
        assert!(message.ends_with("  second\n  no luck"), "{message}");
    }

    #[test]
    fn the_error_for_an_unknown_component_lists_the_existing_ones() {
        let (_dir, state_dir) = mk_state_dir();
        let processes = Processes::new(&state_dir, 0);
        let record = processes.start(&mk_spec("etcd", "exit 0")).unwrap();
        processes.await_exit(&record, KILL_TIMEOUT).unwrap();
        let message = processes.record("etc").unwrap_err().to_string();
        assert_eq!(message, "there is no component \"etc\" in this test cluster; it has etcd");
    }

    #[test]
    fn the_error_for_a_missing_program_names_it() {
        let (_dir, state_dir) = mk_state_dir();
        let spec = ComponentSpec { program: "/nowhere/etcd".into(), ..mk_spec("etcd", "") };
        let message = Processes::new(&state_dir, 0).start(&spec).unwrap_err().to_string();
        assert!(message.starts_with("failed to start etcd (/nowhere/etcd): "), "{message}");
    }

    #[test]
    fn a_tail_is_limited_in_lines_and_width() {
        let long = format!("{}\n{}", "x".repeat(5000), "line\n\n".repeat(100));
        let shown = tail(&long);
        assert_eq!(shown.lines().count(), TAIL_LINES);
        assert!(tail(&"x".repeat(5000)).len() < TAIL_WIDTH + 3);
        assert_eq!(tail("\n"), "  (no output)");
    }
}
