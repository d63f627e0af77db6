//! The shim: a small process beside each container that runs, so that Polis may end and come back.
//!
//! It starts the program, writes down its output, waits for its end, ends whatever the program left behind, notes how it
//! went, and is gone. It never starts anything twice: when to try again is decided by the runtime. While it lives it
//! holds a lock on a file in the folder of its container; the kernel lets go of that whatever happens to the shim, so a
//! free lock is proof that no shim is there, and process ids that are used again mislead nobody.
//!
//! What it is told comes over standard input, what it has to say first goes to standard output ([`Answer`]), how it went
//! is in a file ([`State`]). TERM asks it to stop: the program's group gets TERM, and after the grace KILL. A program
//! that forks and leaves its group or its parent is still caught, because on Linux the shim is the parent of every orphan
//! beneath it. If the shim is killed, the program is killed with it.

mod children;
pub(crate) mod launch;
mod order;
mod output;
mod state;

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until, timeout};

use crate::inside::LAUNCH;
use children::Children;
pub use order::Keep;
pub(crate) use order::{Fence, Launch, Limits, Order};
pub(crate) use output::rotated;
pub use state::{Ending, How, State};
pub(crate) use state::{hold, replace};

/// Time for the last output to arrive after everything that could write is dead.
const DRAIN: Duration = Duration::from_secs(1);

/// The first word of a shim.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Answer {
    /// The program is started.
    Up(State),
    /// Another shim is there already.
    Held,
    /// Nothing was started.
    Failed(String),
}

/// Runs a shim for the container that has this folder.
pub(crate) fn main(folder: &Path) -> ExitCode {
    let answer = match prepare(folder) {
        Ok(Some((order, lock))) => match run(folder, order, lock) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(error) => Answer::Failed(error.to_string()),
        },
        Ok(None) => Answer::Held,
        Err(error) => Answer::Failed(error.to_string()),
    };
    say(&answer);
    ExitCode::FAILURE
}

/// Nobody may be listening any more: the runtime can be killed at any moment.
fn say(answer: &Answer) {
    if let Ok(mut line) = serde_json::to_vec(answer) {
        line.push(b'\n');
        let mut out = io::stdout().lock();
        _ = out.write_all(&line).and_then(|()| out.flush());
    }
}

fn prepare(folder: &Path) -> io::Result<Option<(Order, File)>> {
    // A session of its own: no terminal's Ctrl-C or hang-up comes here. Fails only for a leader of a group, which has
    // been given one already.
    _ = rustix::process::setsid();
    let mut order = Vec::new();
    io::stdin().lock().read_to_end(&mut order)?;
    let order = serde_json::from_slice(&order)?;
    let Some(lock) = hold(folder)? else { return Ok(None) };
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(Some((order, lock)))
}

fn run(folder: &Path, order: Order, lock: File) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(supervise(folder, order))?;
    drop(lock); // after the last word is written
    Ok(())
}

async fn supervise(folder: &Path, order: Order) -> io::Result<()> {
    let mut signals = Signals::listen()?;
    let log = output::Log::open(folder, order.keep)?;
    let (children, stdout, stderr) = start(folder, &order.launch)?;
    let mut state = State {
        shim: i32::try_from(std::process::id()).unwrap_or_default(),
        pid: children.main(),
        restarts: order.restarts,
        streak: order.streak,
        before: order.before,
        template: order.template,
        started: Timestamp::now(),
        ending: None,
    };
    if let Err(error) = state.write(folder) {
        children.kill();
        return Err(error);
    }
    say(&Answer::Up(state.clone()));
    let writer = tokio::spawn(output::write_down(stdout, stderr, log));
    let how = attend(&children, &mut signals, order.grace).await;
    // Output that nobody can add to any more; an error here would only hide how the program ended.
    _ = timeout(DRAIN, writer).await;
    let how = match launch::failure(folder) {
        Some(why) if how != How::Stopped => How::Failed(why),
        _ => how,
    };
    state.ending = Some(Ending { at: Timestamp::now(), how });
    state.write(folder)
}

/// Starts the launcher in a group of its own, tells it what to turn into, and hands out the ends of its output.
fn start(folder: &Path, launch: &Launch) -> io::Result<(Children, pipe::Receiver, pipe::Receiver)> {
    launch::forget_failure(folder)?;
    let mut child = Command::new(std::env::current_exe()?)
        .arg(LAUNCH)
        .arg(folder)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let ends = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = ends else {
        return Err(io::Error::other("the launcher has no pipes"));
    };
    let children = Children::new(child.id());
    // A launcher that has died already says so by its end.
    _ = stdin.write_all(&serde_json::to_vec(launch)?);
    drop(stdin);
    let stdout = pipe::Receiver::from_owned_fd(OwnedFd::from(stdout))?;
    let stderr = pipe::Receiver::from_owned_fd(OwnedFd::from(stderr))?;
    Ok((children, stdout, stderr))
}

/// Waits for the end of the program, and sees to the end of everything that it started.
async fn attend(children: &Children, signals: &mut Signals, grace: Duration) -> How {
    let mut stop: Option<Instant> = None;
    let mut how = None;
    loop {
        let left = children.reap(&mut how);
        if how.is_some() && !left {
            break;
        }
        if how.is_some() && stop.is_none() {
            // The program is gone and has left something behind: that goes, too.
            children.terminate();
            stop = Some(Instant::now() + grace);
        }
        tokio::select! {
            _ = signals.child.recv() => {}
            _ = signals.term.recv() => {
                if stop.is_none() {
                    children.terminate();
                    how.get_or_insert(How::Stopped);
                    stop = Some(Instant::now() + grace);
                }
            }
            () = until(stop) => {
                // Until none is left: killing a parent makes its children ours, and the next round theirs.
                children.kill();
                stop = Some(Instant::now() + KILL_AGAIN);
            }
        }
    }
    how.unwrap_or(How::Lost)
}

/// Rounds of KILL follow each other this fast. A process in the middle of a system call takes a moment to die.
const KILL_AGAIN: Duration = Duration::from_millis(20);

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// The signals that a shim hears. The others of its session are heard so that they do not end it.
struct Signals {
    term: Signal,
    child: Signal,
    _deaf: [Signal; 3],
}

impl Signals {
    fn listen() -> io::Result<Self> {
        let deaf = [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit()];
        let [hangup, interrupt, quit] = deaf.map(signal);
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            child: signal(SignalKind::child())?,
            _deaf: [hangup?, interrupt?, quit?],
        })
    }
}
