//! Waits until a workload is ready and prints one line per city: redrawn on a terminal, one line per change
//! in a pipe.
//!
//! Waiting ends early when a cause that needs an action has lasted for [`GRACE`]: the rest of the timeout
//! would change nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::exit::{CliError, Exit};
use crate::session::Session;
use crate::terminal;
use crate::view::progress::{self, CityProgress, LastingCause};
use crate::view::{Severity, age, reasons};

/// How long a cause must last before waiting ends. A state of this length is not a step of a rollout: quota
/// that an old instance releases, for example, is granted to its replacement in less.
const GRACE: Duration = Duration::from_secs(2);

/// Flags of commands that may wait for completion.
#[derive(Args, Clone, Debug)]
pub struct WaitFlags {
    /// Return after the request, without waiting for completion
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    limits: WaitLimits,
}

/// Flags that limit how long a command waits.
#[derive(Args, Clone, Debug)]
pub struct WaitLimits {
    /// Longest time to wait, such as 30s, 5m or 1h30m
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = age::parse)]
    timeout: Duration,
    /// Wait until the timeout even if a cause needs an action, such as an image that cannot be pulled
    #[arg(long)]
    wait_anyway: bool,
}

impl WaitFlags {
    /// Waits until a workload is ready, unless `--no-wait` is set.
    pub async fn until_ready(&self, session: &Session, name: &str) -> Result<(), CliError> {
        if self.no_wait { Ok(()) } else { self.limits.until_ready(session, name).await }
    }

    /// Whether the user wants to wait although a cause needs an action.
    pub fn is_anyway(&self) -> bool {
        self.limits.wait_anyway
    }
}

impl WaitLimits {
    /// Waits until a workload is ready in all its cities. Ctrl-C ends the command and not the rollout.
    pub async fn until_ready(&self, session: &Session, name: &str) -> Result<(), CliError> {
        tokio::select! {
            result = until_ready(session, name, self) => result,
            _ = tokio::signal::ctrl_c() => Err(CliError::new(
                Exit::Interrupted,
                format!("stopped waiting for {name}"),
                "the command was interrupted",
                format!("the rollout continues; follow it with `polis rollout status {name}`"),
            )),
        }
    }
}

async fn until_ready(session: &Session, name: &str, limits: &WaitLimits) -> Result<(), CliError> {
    let (start, timeout) = (Instant::now(), limits.timeout);
    let mut blocked = BlockedTimer::default();
    let mut board = ProgressBoard::new();
    loop {
        let (snapshot, versions) = session.snapshot(name).await?;
        let cities = progress::cities(&snapshot);
        board.show(&cities);
        if progress::is_complete(&snapshot) {
            board.close();
            for url in progress::urls(&snapshot) {
                terminal::print(format!("  {url}"));
            }
            let (ready, _) = snapshot.ready_of_wanted();
            let line = format!("{name} is ready: {}", progress::count_in_cities(ready, cities.len()));
            terminal::print_styled(terminal::colored(Severity::Ok, &line));
            return Ok(());
        }
        let left = timeout.saturating_sub(start.elapsed());
        if left.is_zero() {
            board.close();
            return Err(timed_out(name, timeout, &cities));
        }
        let causes = if limits.wait_anyway { Vec::new() } else { progress::lasting_causes(&snapshot) };
        let recheck = match blocked.observe(&causes, Instant::now()) {
            Some(grace) if grace.is_zero() => {
                board.close();
                return Err(needs_action(name, &causes));
            }
            grace => grace.unwrap_or(left),
        };
        session.wait_for_change(name, &versions, left.min(recheck)).await;
    }
}

/// Since when the workload has had a lasting cause.
#[derive(Default)]
struct BlockedTimer {
    since: Option<Instant>,
}

impl BlockedTimer {
    /// The rest of [`GRACE`]; `None` without a cause.
    fn observe(&mut self, causes: &[LastingCause], now: Instant) -> Option<Duration> {
        if causes.is_empty() {
            self.since = None;
            return None;
        }
        let since = *self.since.get_or_insert(now);
        Some(GRACE.saturating_sub(now.duration_since(since)))
    }
}

/// The error for causes that need an action: each with its message, and what to do about the first.
fn needs_action(name: &str, causes: &[LastingCause]) -> CliError {
    let words: Vec<String> = causes
        .iter()
        .map(|cause| format!("{} ({}): {}", cause.label, cause.state.reason, cause.state.message))
        .collect();
    let advice = causes.first().and_then(|cause| {
        let entry = reasons::entry(&cause.state.reason)?;
        let instance = cause.instance.as_deref().unwrap_or(name);
        Some(entry.advice.replace("INSTANCE", instance).replace("NAME", name))
    });
    CliError::new(
        Exit::TimedOut,
        format!("{name} does not become ready by waiting"),
        words.join("; "),
        advice.unwrap_or_else(|| format!("`polis why {name}` shows what blocks it")),
    )
}

fn timed_out(name: &str, timeout: Duration, cities: &[CityProgress]) -> CliError {
    let missing: Vec<String> = cities
        .iter()
        .filter(|city| !city.complete)
        .map(|city| format!("{} {}", city.label, city.summary()))
        .collect();
    CliError::new(
        Exit::TimedOut,
        format!("{name} is not ready after {}s", timeout.as_secs()),
        missing.join("; "),
        format!("the rollout continues; `polis why {name}` shows what blocks it"),
    )
}

/// The progress lines, one per city.
struct ProgressBoard {
    live: Option<MultiProgress>,
    bars: BTreeMap<String, ProgressBar>,
    printed: BTreeMap<String, String>,
}

impl ProgressBoard {
    fn new() -> Self {
        ProgressBoard {
            live: terminal::is_live().then(MultiProgress::new),
            bars: BTreeMap::new(),
            printed: BTreeMap::new(),
        }
    }

    fn show(&mut self, cities: &[CityProgress]) {
        let widest = cities.iter().map(|city| city.label.chars().count()).max().unwrap_or(0);
        for city in cities {
            let words = city.line();
            if self.printed.insert(city.label.clone(), words.clone()).as_ref() == Some(&words) {
                continue;
            }
            let label = terminal::shown(&city.label);
            let line = format!("{label:<widest$}  {}", terminal::colored(city.severity(), &words));
            match &self.live {
                Some(live) => {
                    let bar = self.bars.entry(city.label.clone()).or_insert_with(|| spinner(live));
                    if city.complete { bar.finish_with_message(line) } else { bar.set_message(line) }
                }
                None => terminal::print_styled(line),
            }
        }
    }

    /// Keeps the last lines on the screen, with a cross before the cities that are not complete.
    fn close(&mut self) {
        for bar in self.bars.values().filter(|bar| !bar.is_finished()) {
            bar.set_style(style("✘ {wide_msg}"));
            bar.abandon();
        }
    }
}

fn spinner(live: &MultiProgress) -> ProgressBar {
    let bar = live.add(ProgressBar::new_spinner());
    bar.set_style(style("{spinner} {wide_msg}").tick_chars("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏✔"));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// A style of a constant template, so the fallback for an invalid template never runs.
fn style(template: &'static str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::state::ObjectState;

    fn mk_cause(reason: &str, instance: Option<&str>) -> LastingCause {
        let state = ObjectState {
            word: "blocked",
            severity: Severity::Blocked,
            reason: reason.into(),
            message: "no registry has nginx".into(),
            since: None,
        };
        LastingCause { label: "dfw".into(), instance: instance.map(str::to_owned), state }
    }

    #[test]
    fn a_cause_must_last_for_the_grace_period_without_a_gap() {
        let (mut timer, start) = (BlockedTimer::default(), Instant::now());
        let causes = [mk_cause("ImageUnavailable", None)];
        assert_eq!(timer.observe(&causes, start), Some(GRACE));
        assert_eq!(timer.observe(&causes, start + GRACE / 2), Some(GRACE / 2));
        assert_eq!(timer.observe(&[], start + GRACE / 2), None);
        assert_eq!(timer.observe(&causes, start + GRACE), Some(GRACE), "the gap starts the period anew");
        assert_eq!(timer.observe(&causes, start + GRACE * 2), Some(Duration::ZERO));
    }

    #[test]
    fn the_error_has_the_cause_and_the_advice_for_it() {
        let error = needs_action("web", &[mk_cause("InstanceCrashing", Some("web-dfw-1-0"))]).to_string();
        assert!(error.contains("dfw (InstanceCrashing): no registry has nginx"), "{error}");
        assert!(error.contains("`polis logs web-dfw-1-0`") && error.contains("rollout undo web"), "{error}");
    }
}
