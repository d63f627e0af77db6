//! Runs further commands in a running container, for probes and hooks.
//!
//! Only the shim knows the environment of its container, which may hold secrets and is never written to disk.
//! So the shim runs the commands: it listens on a socket in the container's directory, which only the user of
//! Polis can open, and starts the binary once more for each command. That process joins the control group and
//! the namespaces of the container, gives up what the program has given up, starts the command, and ends it
//! at the timeout.
//!
//! In namespaces, Landlock does not restrict signals of the command: a hook may have to reach the program,
//! and the process namespace already hides all others.

use std::io::{self, Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::{LaunchSpec, descriptors, launcher};
use crate::internal_command::EXEC;
use crate::isolation::cgroup::Cgroup;

/// The socket, in the container's directory.
const SOCKET: &str = "exec.sock";
/// Commands that run at the same time in a container.
const MAX_COMMANDS: usize = 8;
/// The output of a command that is kept, in bytes.
const MAX_OUTPUT: usize = 4096;
/// The longest request, in bytes.
const MAX_REQUEST: u64 = 1 << 20;
/// Time beyond that of the command until the shim must have answered.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// A command to run in the container.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ExecRequest {
    pub(crate) command: Vec<String>,
    pub(crate) timeout: Duration,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ExecReply {
    /// It exited with this code; the beginning of its output.
    Exited { code: i32, output: String },
    /// It was killed at the timeout.
    TimedOut,
    /// The container has no such program, or may not start it.
    NotStarted(String),
    /// The runtime failed.
    Failed(String),
}

/// What the commands of a container get.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ExecContext {
    /// The launcher of the container.
    pub(crate) pid: i32,
    pub(crate) cgroup: Option<Cgroup>,
    pub(crate) launch: LaunchSpec,
}

/// What the process for a command reads.
#[derive(Serialize, Deserialize)]
struct JoinRequest {
    context: ExecContext,
    request: ExecRequest,
}

/// Asks the shim of a container to run a command. An error is not the container's.
pub(crate) async fn exec(container_dir: &Path, request: &ExecRequest) -> io::Result<ExecReply> {
    let answer = async {
        let socket = Socket::of(container_dir)?;
        let mut stream = UnixStream::connect(&socket.path).await?;
        stream.write_all(&serde_json::to_vec(request)?).await?;
        stream.shutdown().await?;
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).await?;
        Ok(serde_json::from_slice(&reply)?)
    };
    match timeout(request.timeout + REPLY_TIMEOUT, answer).await {
        Ok(reply) => reply,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the shim of the container does not answer")),
    }
}

/// The path of the socket, as short as the kernel needs it.
struct Socket {
    path: PathBuf,
    #[cfg(target_os = "linux")]
    _dir: std::fs::File,
}

impl Socket {
    #[cfg(target_os = "linux")]
    fn of(container_dir: &Path) -> io::Result<Self> {
        use std::os::fd::AsRawFd as _;
        let dir = std::fs::File::open(container_dir)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(SOCKET);
        Ok(Socket { path, _dir: dir })
    }

    #[cfg(not(target_os = "linux"))]
    fn of(container_dir: &Path) -> io::Result<Self> {
        Ok(Socket { path: container_dir.join(SOCKET) })
    }
}

/// Answers requests until the shim exits. Call it in the runtime of the shim.
pub(super) fn serve(container_dir: &Path, context: Arc<ExecContext>) -> io::Result<()> {
    let socket = Socket::of(container_dir)?;
    match std::fs::remove_file(&socket.path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&socket.path)?;
    let commands = Arc::new(Semaphore::new(MAX_COMMANDS));
    tokio::spawn(async move {
        loop {
            let Ok(permit) = commands.clone().acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(50)).await; // most likely out of descriptors
                continue;
            };
            let context = context.clone();
            tokio::spawn(async move {
                _ = answer(stream, &context).await;
                drop(permit);
            });
        }
    });
    Ok(())
}

async fn answer(mut stream: UnixStream, context: &Arc<ExecContext>) -> io::Result<()> {
    let mut request = Vec::new();
    (&mut stream).take(MAX_REQUEST).read_to_end(&mut request).await?;
    let reply = run(context, serde_json::from_slice(&request)?).await;
    stream.write_all(&serde_json::to_vec(&reply)?).await
}

/// Runs a command in the container of this shim.
pub(super) async fn run(context: &Arc<ExecContext>, request: ExecRequest) -> ExecReply {
    let (sender, receiver) = oneshot::channel();
    let context = context.clone();
    // A thread of its own: its capabilities are inherited by the process that it starts, and the kernel ends
    // that process with this thread.
    let thread = std::thread::Builder::new().name("exec".to_owned()).spawn(move || {
        let reply = run_in_thread(&context, request);
        _ = sender.send(reply.unwrap_or_else(|error| ExecReply::Failed(error.to_string())));
    });
    match thread {
        Ok(_) => receiver.await.unwrap_or_else(|_| ExecReply::Failed("its thread panicked".to_owned())),
        Err(error) => ExecReply::Failed(error.to_string()),
    }
}

fn run_in_thread(context: &ExecContext, request: ExecRequest) -> io::Result<ExecReply> {
    #[cfg(target_os = "linux")]
    if context.launch.namespaces.is_some() && !rustix::process::geteuid().is_root() {
        crate::isolation::namespaces::keep_capabilities()?;
    }
    let mut child = Command::new(std::env::current_exe()?)
        .arg(EXEC)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let (Some(mut stdin), Some(mut stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("the process for a command has no pipes"));
    };
    let request = JoinRequest { context: context.clone(), request };
    stdin.write_all(&serde_json::to_vec(&request)?)?;
    drop(stdin);
    let mut reply = Vec::new();
    stdout.read_to_end(&mut reply)?;
    // The main thread of the shim reaps all children, possibly before this call.
    _ = child.wait();
    match reply.is_empty() {
        true => Err(io::Error::other("the process for a command exited without a reply")),
        false => Ok(serde_json::from_slice(&reply)?),
    }
}

/// Runs the command in the request on standard input, and writes the reply to standard output.
pub(crate) fn main() -> ExitCode {
    let reply = match read().and_then(|request| start(&request).map(|child| (child, request))) {
        Ok((Ok(child), request)) => finish(child, request.request.timeout),
        Ok((Err(why), _)) => ExecReply::NotStarted(why),
        Err(error) => ExecReply::Failed(error.to_string()),
    };
    match serde_json::to_vec(&reply).map(|reply| io::stdout().lock().write_all(&reply)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn read() -> io::Result<JoinRequest> {
    let mut request = Vec::new();
    io::stdin().lock().read_to_end(&mut request)?;
    Ok(serde_json::from_slice(&request)?)
}

/// Joins the container and starts the command; the inner error is that of the command.
fn start(JoinRequest { context, request }: &JoinRequest) -> io::Result<Result<Running, String>> {
    let ExecContext { cgroup, launch, .. } = context;
    descriptors::close_on_exec()?; // before the namespaces: their /proc does not show this process
    if let Some(cgroup) = cgroup {
        cgroup.add(std::process::id())?;
    }
    #[cfg(target_os = "linux")]
    {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if launch.namespaces.is_some() {
            join(context.pid)?;
        }
    }
    launcher::restrict(launch, false)?;
    let Some((program, args)) = request.command.split_first() else {
        return Ok(Err("the command is empty".to_owned()));
    };
    let (output, writer) = io::pipe()?;
    rustix::io::ioctl_fionbio(&output, true)?;
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(&launch.env).current_dir(&launch.work);
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).process_group(0);
    let child = command.spawn();
    drop(command); // it holds the writing ends of the pipe
    Ok(match child {
        Ok(child) => Ok(Running { child, output, kept: Vec::new() }),
        Err(error) => Err(format!("{program}: {error}")),
    })
}

/// Moves this process, which has one thread, into the namespaces of a container; children are in its process
/// namespace.
#[cfg(target_os = "linux")]
fn join(pid: i32) -> io::Result<()> {
    use rustix::process::{DumpableBehavior, PidfdFlags, pidfd_open, set_dumpable_behavior};
    use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
    use std::os::fd::AsFd as _;
    // No process of the container may inspect this one between `fork` and `exec`.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let gone = || io::Error::new(io::ErrorKind::NotFound, "the container has exited");
    let launcher = pidfd_open(Pid::from_raw(pid).ok_or_else(gone)?, PidfdFlags::empty())?;
    let all = ThreadNameSpaceType::NETWORK
        | ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION
        | ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME
        | ThreadNameSpaceType::PROCESS_ID
        | ThreadNameSpaceType::MOUNT;
    move_into_thread_name_spaces(launcher.as_fd(), all)
        .map_err(|error| io::Error::other(format!("failed to enter the container: {error}")))
}

struct Running {
    child: Child,
    output: io::PipeReader,
    /// The beginning of the output.
    kept: Vec<u8>,
}

impl Running {
    /// Reads the output that is there, and keeps its beginning. A thread that reads could not be started: the
    /// kernel has none in a process whose children are in another process namespace.
    fn read_output(&mut self) {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = self.output.read(&mut buffer) {
            self.kept.extend(&buffer[..length.min(MAX_OUTPUT - self.kept.len())]);
        }
    }
}

/// Waits for a command, and kills it and its group at the timeout.
fn finish(mut running: Running, limit: Duration) -> ExecReply {
    let start = Instant::now();
    let status = loop {
        running.read_output();
        match running.child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed() < limit => {
                let pause = start.elapsed() / 4;
                std::thread::sleep(pause.clamp(Duration::from_millis(1), Duration::from_millis(20)));
            }
            Ok(None) => {
                let group = i32::try_from(running.child.id()).ok().and_then(Pid::from_raw);
                _ = group.map(|group| kill_process_group(group, Signal::KILL));
                _ = running.child.kill();
                _ = running.child.wait();
                return ExecReply::TimedOut;
            }
            Err(error) => return ExecReply::Failed(error.to_string()),
        }
    };
    running.read_output();
    // As a shell reports it.
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1);
    ExecReply::Exited { code, output: String::from_utf8_lossy(&running.kept).into_owned() }
}
