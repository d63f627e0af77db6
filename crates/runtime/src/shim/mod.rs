//! The shim: a small process that supervises one running container, so that Polis itself can restart.
//!
//! A shim starts the program, writes its output to log files, waits for its exit, kills the processes that
//! the program left behind, records the exit, and exits. It never starts the program again: the runtime
//! decides about restarts. While a shim runs it holds a lock on a file in its container's directory. The
//! kernel releases the lock however the shim ends, so a free lock proves that no shim runs, even if its
//! process id was reused.
//!
//! The request arrives on standard input, the reply ([`StartReply`]) goes to standard output, and the state
//! of the run is in a file ([`ShimState`]). On TERM the shim sends TERM to the program's process group, and
//! KILL after the grace period; before TERM it runs the `preStop` hook. On Linux the shim is a subreaper, so
//! it also reaches processes that left the group or lost their parent. If the shim is killed, the kernel
//! kills the program.

mod children;
mod descriptors;
pub(crate) mod exec;
#[cfg(target_os = "linux")]
mod init;
pub(crate) mod launcher;
mod output;
mod request;
mod state;

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until, timeout};

use crate::internal_command::LAUNCH;
use crate::isolation::cgroup::Cgroup;
#[cfg(target_os = "linux")]
use crate::isolation::network::{self, HostPorts, InsideThread};
use children::Children;
use exec::{ExecContext, ExecRequest};
pub(crate) use output::rotated;
pub use request::LogRetention;
#[cfg(target_os = "linux")]
pub(crate) use request::Namespaces;
pub(crate) use request::{LaunchRequest, LaunchSpec, Limits, PreStop, Sandbox};
pub use state::{ShimState, Termination, TerminationCause};
pub(crate) use state::{StopReason, replace_file, try_lock};

/// Time to read the remaining output after all writers have exited.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between TERM and KILL, if the `preStop` hook has used up the grace period.
const MIN_TERM_TIMEOUT: Duration = Duration::from_secs(2);

/// The reply of a shim to its launch request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum StartReply {
    /// The program is started.
    #[serde(rename = "up")]
    Started(ShimState),
    /// Another shim holds the container's lock.
    Held,
    /// The program was not started, with the reason.
    Failed(String),
}

/// Runs a shim for the container in this directory.
pub(crate) fn main(container_dir: &Path) -> ExitCode {
    let message = match prepare(container_dir) {
        Ok(Some((request, lock))) => match run(container_dir, request, lock) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => StartReply::Failed(error.to_string()),
        },
        Ok(None) => StartReply::Held,
        Err(error) => StartReply::Failed(error.to_string()),
    };
    send_reply(&message);
    ExitCode::FAILURE
}

/// Sends the reply. Errors are ignored: the runtime may have been killed meanwhile.
fn send_reply(message: &StartReply) {
    if let Ok(mut line) = serde_json::to_vec(message) {
        line.push(b'\n');
        let mut out = io::stdout().lock();
        _ = out.write_all(&line).and_then(|()| out.flush());
    }
}

fn prepare(container_dir: &Path) -> io::Result<Option<(LaunchRequest, File)>> {
    // A session of its own, so that Ctrl-C and hang-ups of a terminal do not reach the shim. The call fails
    // only for a group leader, which already has a session of its own.
    _ = rustix::process::setsid();
    let mut request = Vec::new();
    io::stdin().lock().read_to_end(&mut request)?;
    let request = serde_json::from_slice(&request)?;
    let Some(lock) = try_lock(container_dir)? else { return Ok(None) };
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(Some((request, lock)))
}

fn run(container_dir: &Path, request: LaunchRequest, lock: File) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    if let Some(namespaces) = &request.launch.namespaces {
        crate::isolation::namespaces::enter_user_namespace(namespaces.network.join, namespaces.inside)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(supervise(container_dir, request))?;
    drop(lock); // after the state file is written
    Ok(())
}

async fn supervise(container_dir: &Path, request: LaunchRequest) -> io::Result<()> {
    let mut signals = Signals::subscribe()?;
    let log = output::Log::open(container_dir, request.log_retention)?;
    StopReason::clear(container_dir)?;
    let previous = ShimState::read(container_dir)?;
    let oom_kills = request.cgroup.as_ref().map_or(0, Cgroup::oom_kills);
    let (mut program, stdout, stderr) = start(container_dir, &request)?;
    let children = &program.children;
    let mut state = ShimState {
        shim: i32::try_from(std::process::id()).unwrap_or_default(),
        pid: children.main(),
        restarts: request.restarts,
        consecutive_failures: request.consecutive_failures,
        last_termination: request.last_termination.clone(),
        template: request.template.clone(),
        started: Timestamp::now(),
        previous_started: previous.map(|run| run.started),
        grace_period: Some(request.grace_period),
        termination: None,
    };
    if let Err(error) = state.write(container_dir) {
        children.kill();
        return Err(error);
    }
    let context = Arc::new(ExecContext {
        pid: children.main(),
        cgroup: request.cgroup.clone(),
        launch: request.launch.clone(),
    });
    // Without the socket, only commands of probes fail, and they name the cause.
    _ = exec::serve(container_dir, context.clone());
    send_reply(&StartReply::Started(state.clone()));
    let writer = tokio::spawn(output::copy_to_log(stdout, stderr, log));
    let cause = supervise_until_exit(&mut program, &mut signals, &request, container_dir, &context).await;
    // All writers have exited. An error here must not hide the exit of the program.
    _ = timeout(DRAIN_TIMEOUT, writer).await;
    let cause = match (cause, launcher::report(container_dir)) {
        (TerminationCause::Exit(_), Some(reported)) => reported,
        (cause, _) => cause,
    };
    let cause = match &request.cgroup {
        Some(cgroup) => {
            let killed = cgroup.oom_kills() > oom_kills;
            cgroup.remove();
            explain_memory(cause, killed, cgroup.limits.memory)
        }
        None => cause,
    };
    state.termination = Some(Termination { at: Timestamp::now(), cause });
    state.write(container_dir)
}

/// A started program.
struct Program {
    children: Children,
    /// The thread in the instance's namespaces.
    #[cfg(target_os = "linux")]
    inside: Option<InsideThread>,
}

impl Program {
    /// Asks the program to stop.
    async fn stop(&mut self, signal: rustix::process::Signal) {
        self.stop_accepting().await;
        self.children.signal(signal);
    }

    /// Hands the connections that have reached the container to the program, and accepts no others.
    async fn stop_accepting(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(inside) = &mut self.inside {
            inside.stop_accepting().await;
        }
    }
}

/// Starts the launcher in its own process group and, if the container has any, in its namespaces; adds it to
/// the control group, and then sends it the launch spec. Returns the pipes of its output, too.
fn start(
    container_dir: &Path,
    request: &LaunchRequest,
) -> io::Result<(Program, pipe::Receiver, pipe::Receiver)> {
    launcher::clear_report(container_dir)?;
    let launch = &request.launch;
    let mut launcher = Command::new(std::env::current_exe()?);
    launcher
        .arg(LAUNCH)
        .arg(container_dir)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    #[cfg(target_os = "linux")]
    let (mut child, inside) = match &launch.namespaces {
        Some(Namespaces { network, .. }) => {
            let ports = HostPorts::bind(network)?;
            let (child, inside) = network::enter(network, ports, move || launcher.spawn())?;
            (child, Some(inside))
        }
        None => (launcher.spawn()?, None),
    };
    #[cfg(not(target_os = "linux"))]
    let mut child = launcher.spawn()?;
    let ends = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = ends else {
        return Err(io::Error::other("the launcher has no pipes"));
    };
    let children = Children::new(child.id());
    if let Some(cgroup) = &request.cgroup
        && let Err(error) = cgroup.add(child.id())
    {
        children.kill();
        return Err(error);
    }
    // If the launcher has exited already, its exit is handled like any other.
    _ = stdin.write_all(&serde_json::to_vec(launch)?);
    drop(stdin);
    let stdout = pipe::Receiver::from_owned_fd(OwnedFd::from(stdout))?;
    let stderr = pipe::Receiver::from_owned_fd(OwnedFd::from(stderr))?;
    let program = Program {
        children,
        #[cfg(target_os = "linux")]
        inside,
    };
    Ok((program, stdout, stderr))
}

/// The cause of an exit, if the kernel has killed a process of the instance because of its memory.
fn explain_memory(cause: TerminationCause, killed: bool, limit: Option<u64>) -> TerminationCause {
    match (cause, limit) {
        (cause, Some(limit)) if killed && cause != TerminationCause::Stopped => {
            let limit = limit >> 20;
            TerminationCause::OutOfMemory(format!("the instance used all of its {limit} MiB; {cause}"))
        }
        (cause, _) => cause,
    }
}

/// Waits until the program and all processes that it started have exited.
async fn supervise_until_exit(
    program: &mut Program,
    signals: &mut Signals,
    request: &LaunchRequest,
    container_dir: &Path,
    context: &Arc<ExecContext>,
) -> TerminationCause {
    let mut grace = request.grace_period;
    let stop_signal = request.stop_signal.and_then(rustix::process::Signal::from_named_raw);
    let stop_signal = stop_signal.unwrap_or(rustix::process::Signal::TERM);
    let mut stop: Option<Instant> = None;
    let mut hook: Option<Pin<Box<dyn Future<Output = ()> + '_>>> = None;
    let mut cause = None;
    let mut disk_limit = std::pin::pin!(disk_limit(request.launch.disk.clone()));
    loop {
        let left = program.children.reap(&mut cause);
        if cause.is_some() && !left {
            break;
        }
        if cause.is_some() && stop.is_none() {
            // The program has exited and left processes behind: terminate them too.
            program.children.terminate();
            stop = Some(Instant::now() + grace);
        }
        tokio::select! {
            _ = signals.child.recv() => {}
            _ = signals.term.recv() => {
                if stop.is_none() {
                    let reason = StopReason::read(container_dir);
                    grace = reason.as_ref().and_then(|reason| reason.grace_period).unwrap_or(grace);
                    cause.get_or_insert(match reason {
                        Some(reason) => TerminationCause::Unhealthy(reason.unhealthy),
                        None => TerminationCause::Stopped,
                    });
                    stop = Some(Instant::now() + grace);
                    match &request.pre_stop {
                        Some(pre_stop) => hook = Some(Box::pin(run_hook(pre_stop, grace, context))),
                        None => program.stop(stop_signal).await,
                    }
                }
            }
            () = ended(&mut hook) => {
                hook = None;
                program.stop(stop_signal).await;
                stop = stop.max(Some(Instant::now() + MIN_TERM_TIMEOUT));
            }
            why = &mut disk_limit, if cause.is_none() => {
                program.children.kill();
                cause = Some(TerminationCause::DiskLimit(why));
                stop = Some(Instant::now() + KILL_INTERVAL);
            }
            () = deadline(stop), if hook.is_some() => {
                hook = None;
                program.stop(stop_signal).await;
                stop = Some(Instant::now() + MIN_TERM_TIMEOUT);
            }
            () = deadline(stop), if hook.is_none() => {
                // Repeat until none is left: the children of a killed process become children of the shim.
                program.children.kill();
                stop = Some(Instant::now() + KILL_INTERVAL);
            }
        }
    }
    cause.unwrap_or(TerminationCause::Lost)
}

/// Runs the `preStop` hook. As in Kubernetes, its failure does not prevent the stop.
async fn run_hook(hook: &PreStop, limit: Duration, context: &Arc<ExecContext>) {
    match hook {
        PreStop::Exec(command) => {
            let request = ExecRequest { command: command.clone(), timeout: limit };
            let reply = exec::run(context, request).await;
            drop(reply);
        }
        PreStop::Check(check) => _ = check.run(limit).await,
        PreStop::Sleep(time) => tokio::time::sleep(*time).await,
    }
}

/// Resolves when the hook has ended; never if there is none.
async fn ended(hook: &mut Option<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    match hook {
        Some(hook) => hook.await,
        None => std::future::pending().await,
    }
}

/// Resolves with the details when the files of a directory exceed their limit.
async fn disk_limit(disk: Option<(PathBuf, u64)>) -> String {
    #[cfg(target_os = "linux")]
    if let Some((work, limit)) = disk {
        return crate::isolation::disk::exceeded(work, limit).await;
    }
    #[cfg(not(target_os = "linux"))]
    drop(disk);
    std::future::pending().await
}

/// Interval between rounds of KILL. A process in a system call takes a moment to exit.
const KILL_INTERVAL: Duration = Duration::from_millis(20);

async fn deadline(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// The signals that a shim receives. It subscribes to the ignored ones so that they do not end it.
struct Signals {
    term: Signal,
    child: Signal,
    _ignored: [Signal; 3],
}

impl Signals {
    fn subscribe() -> io::Result<Self> {
        let ignored = [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit()];
        let [hangup, interrupt, quit] = ignored.map(signal);
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            child: signal(SignalKind::child())?,
            _ignored: [hangup?, interrupt?, quit?],
        })
    }
}
