//! One container on this host: finding out what there is of it, starting it, stopping it.
//!
//! What was found once is remembered; a task waits for the end of each shim and then looks again. Everything that is
//! remembered can be found again from the folder alone, which is what happens after Polis was killed.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use jiff::Timestamp;
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::restart::Found;
use super::watch::{ShimProcess, sweep};
use crate::Error;
use crate::inside::SHIM;
use crate::provider::Progress;
use crate::shim::{Answer, Ending, How, Order, State, hold};

/// A shim that has taken its place writes down what it started within milliseconds. Look again after this time.
pub(super) const MOMENT: Duration = Duration::from_millis(20);
/// A shim that was asked to stop and has not done so this long after the grace is killed.
const PATIENCE: Duration = Duration::from_secs(5);
/// A shim says its first word within this time, or something is very wrong with the host.
const FIRST_WORD: Duration = Duration::from_secs(30);

/// What is known of a container.
#[derive(Default)]
pub(super) enum Occupant {
    /// Not looked at yet.
    #[default]
    Unknown,
    /// Nothing ever ran.
    Nothing,
    /// A shim is there and has not said yet what it started.
    Busy,
    /// It runs.
    Up(Box<Running>),
    /// It ran.
    Ended { state: Box<State>, ending: Ending, since: Instant },
}

/// A container that runs.
pub(super) struct Running {
    pub(super) state: State,
    since: Instant,
    shim: ShimProcess,
    asked_to_stop: Option<Instant>,
    /// Its first port has accepted a connection.
    pub(super) accepts: bool,
    watch: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

impl Occupant {
    /// Looks at the folder of a container: at its shim, and at what that has written down.
    pub(super) fn look(folder: &Path, seat: &str) -> Result<Occupant, Error> {
        let failed = || Error::directory(folder);
        if !folder.exists() {
            return Ok(Occupant::Nothing);
        }
        let Some(free) = hold(folder).map_err(failed())? else {
            let Some(state) = State::read(folder).map_err(failed())? else { return Ok(Occupant::Busy) };
            return Occupant::adopt(folder, state);
        };
        let Some(mut state) = State::read(folder).map_err(failed())? else { return Ok(Occupant::Nothing) };
        if state.ending.is_none() {
            // Killed without a word. The place is ours for the moment, so we may write in its stead.
            sweep(seat);
            state.ending = Some(Ending { at: Timestamp::now(), how: How::Lost });
            state.write(folder).map_err(failed())?;
        }
        drop(free);
        Ok(match state.ending.clone() {
            Some(ending) => {
                let since = ago(ending.at);
                Occupant::Ended { state: Box::new(state), ending, since }
            }
            None => Occupant::Nothing,
        })
    }

    /// A shim is there. If the note in its folder is its own, it is taken on.
    fn adopt(folder: &Path, state: State) -> Result<Occupant, Error> {
        if state.ending.is_some() {
            return Ok(Occupant::Busy); // of the run before, or the shim is about to leave
        }
        let opened = ShimProcess::open(state.shim, folder.to_owned()).map_err(Error::directory(folder))?;
        let Some(shim) = opened.filter(ShimProcess::holds) else { return Ok(Occupant::Busy) };
        Ok(Occupant::up(state, shim))
    }

    fn up(state: State, shim: ShimProcess) -> Occupant {
        let since = ago(state.started);
        Occupant::Up(Box::new(Running {
            state,
            since,
            shim,
            asked_to_stop: None,
            accepts: false,
            watch: None,
        }))
    }

    /// What a decision needs to know; none while a shim is just starting or leaving.
    pub(super) fn found(&self) -> Option<Found<'_>> {
        match self {
            Occupant::Unknown | Occupant::Busy => None,
            Occupant::Nothing => Some(Found::Nothing),
            Occupant::Up(running) => Some(Found::Up(&running.state, running.since.elapsed())),
            Occupant::Ended { state, ending, since } => Some(Found::Ended(state, ending, since.elapsed())),
        }
    }

    /// Has `told` called when the shim has ended, once.
    pub(super) fn watch(&mut self, told: impl FnOnce() + Send + 'static) {
        if let Occupant::Up(running) = self
            && running.watch.is_none()
        {
            let gone = running.shim.gone();
            running.watch = Some(tokio::spawn(async move {
                gone.await;
                told();
            }));
        }
    }

    /// Asks it to stop, once; and sees to it that it does.
    pub(super) fn stop(&mut self, grace: Duration) -> Progress {
        match self {
            Occupant::Nothing | Occupant::Ended { .. } => Progress::Done,
            Occupant::Unknown | Occupant::Busy => Progress::Underway(MOMENT),
            Occupant::Up(running) => {
                let limit = grace + PATIENCE;
                let asked = *running.asked_to_stop.get_or_insert_with(|| {
                    running.shim.signal(Signal::TERM);
                    Instant::now()
                });
                let left = limit.saturating_sub(asked.elapsed());
                if left.is_zero() {
                    running.shim.signal(Signal::KILL);
                    return Progress::Underway(Duration::from_secs(1));
                }
                Progress::Underway(left)
            }
        }
    }

    /// Starts a shim and waits for its first word.
    pub(super) async fn start(
        binary: &Path,
        folder: PathBuf,
        order: Order,
        about: (&str, &str),
    ) -> Result<Occupant, Error> {
        let failed =
            |why: String| Error::Start { container: about.1.to_owned(), instance: about.0.to_owned(), why };
        let answer = match timeout(FIRST_WORD, launch(binary, &folder, &order)).await {
            Ok(answer) => answer.map_err(|error| failed(error.to_string()))?,
            Err(_) => return Err(failed(format!("its shim has said nothing for {FIRST_WORD:?}"))),
        };
        match answer {
            Answer::Up(state) => {
                let opened =
                    ShimProcess::open(state.shim, folder.clone()).map_err(Error::directory(&folder))?;
                // One that has ended already is found by its note.
                Ok(opened.map_or(Occupant::Unknown, |shim| Occupant::up(state, shim)))
            }
            Answer::Held => Ok(Occupant::Unknown),
            Answer::Failed(why) => Err(failed(why)),
        }
    }
}

/// When something was, on the clock that never jumps. What lies in the future was just now.
fn ago(time: Timestamp) -> Instant {
    let elapsed = Duration::try_from(Timestamp::now().duration_since(time)).unwrap_or_default();
    let now = Instant::now();
    now.checked_sub(elapsed).unwrap_or(now)
}

/// Starts the binary as a shim, tells it what to do, and reads its first word. When it ends later, tokio buries it.
async fn launch(binary: &Path, folder: &Path, order: &Order) -> io::Result<Answer> {
    let mut child = Command::new(binary)
        .arg(SHIM)
        .arg(folder)
        .current_dir("/")
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("its shim has no pipes"));
    };
    stdin.write_all(&serde_json::to_vec(order)?).await?;
    drop(stdin);
    let mut word = String::new();
    BufReader::new(stdout).read_line(&mut word).await?;
    if word.is_empty() {
        return Err(io::Error::other("its shim ended without a word"));
    }
    Ok(serde_json::from_str(&word)?)
}
