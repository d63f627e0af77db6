//! The state of one container on this host: inspect, start, stop.
//!
//! The provider caches the state. A task waits for the exit of each shim and then invalidates the cached
//! state. The container's directory alone is enough to restore it, which is what a restarted provider does.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use jiff::Timestamp;
use polis_core::health::{HealthState, ProbeFailure};
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::health::HealthMonitor;
use super::restart::ObservedContainer;
use super::shim_process::{ShimProcess, kill_orphans};
use crate::Error;
use crate::internal_command::SHIM;
use crate::provider::StopProgress;
use crate::shim::{
    LaunchRequest, ShimState, StartReply, StopReason, Termination, TerminationCause, try_lock,
};

/// Poll interval for a starting shim. A shim that holds its lock writes its state file within milliseconds.
pub(super) const SHIM_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A shim that is still running this long after TERM and the grace period is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for a shim's first reply.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The cached state of a container.
#[derive(Default)]
pub(super) enum ContainerState {
    /// Not inspected yet.
    #[default]
    Unknown,
    /// No run is recorded.
    NeverRan,
    /// A shim holds the lock, and its state file is not current: the shim is starting or exiting.
    Starting,
    /// The shim and the program run.
    Running(Box<RunningContainer>),
    /// The last run has ended.
    Exited { state: Box<ShimState>, termination: Termination, since: Instant },
}

/// A running container.
pub(super) struct RunningContainer {
    pub(super) state: ShimState,
    pub(super) since: Instant,
    shim: ShimProcess,
    stop_requested: Option<Instant>,
    /// The first port has accepted a connection.
    pub(super) accepts_connections: bool,
    /// The probes of the container, if it has any.
    pub(super) health: Option<HealthMonitor>,
    /// An earlier runtime, or an earlier reconcile, has started it.
    pub(super) adopted: bool,
    watch: Option<JoinHandle<()>>,
}

impl Drop for RunningContainer {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

impl ContainerState {
    /// Reads the state from the container's directory: the shim's lock and its state file.
    pub(super) fn inspect(container_dir: &Path, container_id: &str) -> Result<ContainerState, Error> {
        let failed = || Error::directory(container_dir);
        if !container_dir.exists() {
            return Ok(ContainerState::NeverRan);
        }
        let Some(lock) = try_lock(container_dir).map_err(failed())? else {
            let Some(state) = ShimState::read(container_dir).map_err(failed())? else {
                return Ok(ContainerState::Starting);
            };
            return ContainerState::adopt(container_dir, state);
        };
        let Some(mut state) = ShimState::read(container_dir).map_err(failed())? else {
            return Ok(ContainerState::NeverRan);
        };
        if state.termination.is_none() {
            // The shim was killed before it recorded the exit. This process holds the lock, so it may write
            // the file.
            kill_orphans(container_id);
            state.termination = Some(Termination { at: Timestamp::now(), cause: TerminationCause::Lost });
            state.write(container_dir).map_err(failed())?;
        }
        drop(lock);
        Ok(match state.termination.clone() {
            Some(termination) => {
                let since = to_instant(termination.at);
                ContainerState::Exited { state: Box::new(state), termination, since }
            }
            None => ContainerState::NeverRan,
        })
    }

    /// Attaches to a running shim, if the state file belongs to it.
    fn adopt(container_dir: &Path, state: ShimState) -> Result<ContainerState, Error> {
        if state.termination.is_some() {
            return Ok(ContainerState::Starting); // the file is of the previous run, or the shim is exiting
        }
        let opened = ShimProcess::open(state.shim, container_dir.to_owned())
            .map_err(Error::directory(container_dir))?;
        let Some(shim) = opened.filter(ShimProcess::holds_lock) else { return Ok(ContainerState::Starting) };
        Ok(ContainerState::running(state, shim, true))
    }

    fn running(state: ShimState, shim: ShimProcess, adopted: bool) -> ContainerState {
        let since = to_instant(state.started);
        ContainerState::Running(Box::new(RunningContainer {
            state,
            since,
            shim,
            stop_requested: None,
            accepts_connections: false,
            health: None,
            adopted,
            watch: None,
        }))
    }

    /// The input of `restart::plan`; `None` while a shim is starting or exiting.
    pub(super) fn observed(&self) -> Option<ObservedContainer<'_>> {
        match self {
            ContainerState::Unknown | ContainerState::Starting => None,
            ContainerState::NeverRan => Some(ObservedContainer::NeverRan),
            ContainerState::Running(running) => {
                Some(ObservedContainer::Running(&running.state, running.since.elapsed()))
            }
            ContainerState::Exited { state, termination, since } => {
                Some(ObservedContainer::Exited(state, termination, since.elapsed()))
            }
        }
    }

    /// The health of a running container with probes.
    pub(super) fn health(&self) -> Option<HealthState> {
        match self {
            ContainerState::Running(running) => running.health.as_ref().map(HealthMonitor::health),
            _ => None,
        }
    }

    /// Calls `callback` once when the shim has exited.
    pub(super) fn watch(&mut self, callback: impl FnOnce() + Send + 'static) {
        if let ContainerState::Running(running) = self
            && running.watch.is_none()
        {
            let exited = running.shim.exited();
            running.watch = Some(tokio::spawn(async move {
                exited.await;
                callback();
            }));
        }
    }

    /// Sends TERM to the shim on the first call, and KILL when the stop timeout has passed.
    pub(super) fn stop(&mut self, grace: Duration) -> StopProgress {
        match self {
            ContainerState::NeverRan | ContainerState::Exited { .. } => StopProgress::Done,
            ContainerState::Unknown | ContainerState::Starting => StopProgress::Pending(SHIM_POLL_INTERVAL),
            ContainerState::Running(running) => {
                let limit = running.state.grace_period.unwrap_or(grace) + STOP_TIMEOUT;
                let requested = *running.stop_requested.get_or_insert_with(|| {
                    running.shim.signal(Signal::TERM);
                    Instant::now()
                });
                let left = limit.saturating_sub(requested.elapsed());
                if left.is_zero() {
                    running.shim.signal(Signal::KILL);
                    return StopProgress::Pending(Duration::from_secs(1));
                }
                StopProgress::Pending(left)
            }
        }
    }

    /// As [`ContainerState::stop`], for a container that must be restarted because of a probe.
    pub(super) fn stop_unhealthy(
        &mut self,
        container_dir: &Path,
        failure: &ProbeFailure,
        grace: Duration,
    ) -> Result<StopProgress, Error> {
        if let ContainerState::Running(running) = self
            && running.stop_requested.is_none()
        {
            let reason =
                StopReason { unhealthy: failure.message.clone(), grace_period: failure.grace_period };
            reason.write(container_dir).map_err(Error::directory(container_dir))?;
            if failure.grace_period.is_some() {
                running.state.grace_period = failure.grace_period;
            }
        }
        Ok(self.stop(grace))
    }

    /// Starts a shim and waits for its reply.
    pub(super) async fn start(
        binary: &Path,
        container_dir: PathBuf,
        request: LaunchRequest,
        (instance, container): (&str, &str),
    ) -> Result<ContainerState, Error> {
        let failed = |why: String| Error::Start {
            container: container.to_owned(),
            instance: instance.to_owned(),
            why,
        };
        let reply = match timeout(START_TIMEOUT, launch(binary, &container_dir, &request)).await {
            Ok(reply) => reply.map_err(|error| failed(error.to_string()))?,
            Err(_) => return Err(failed(format!("its shim has not replied within {START_TIMEOUT:?}"))),
        };
        match reply {
            StartReply::Started(state) => {
                let opened = ShimProcess::open(state.shim, container_dir.clone())
                    .map_err(Error::directory(&container_dir))?;
                // If the shim has exited already, the next inspection reads its state file.
                Ok(opened.map_or(ContainerState::Unknown, |shim| ContainerState::running(state, shim, false)))
            }
            StartReply::Held => Ok(ContainerState::Unknown),
            StartReply::Failed(why) => Err(failed(why)),
        }
    }
}

/// Converts a wall-clock time to a monotonic one. A time in the future becomes now.
fn to_instant(time: Timestamp) -> Instant {
    let elapsed = Duration::try_from(Timestamp::now().duration_since(time)).unwrap_or_default();
    let now = Instant::now();
    now.checked_sub(elapsed).unwrap_or(now)
}

/// Starts the binary as a shim, sends the request, and reads the reply. tokio reaps the shim when it exits.
async fn launch(binary: &Path, container_dir: &Path, request: &LaunchRequest) -> io::Result<StartReply> {
    let mut child = Command::new(binary)
        .arg(SHIM)
        .arg(container_dir)
        .current_dir("/")
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("its shim has no pipes"));
    };
    stdin.write_all(&serde_json::to_vec(request)?).await?;
    drop(stdin);
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).await?;
    if line.is_empty() {
        return Err(io::Error::other("its shim exited without a reply"));
    }
    Ok(serde_json::from_str(&line)?)
}
