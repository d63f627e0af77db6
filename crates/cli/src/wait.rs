//! Waits until a workload is ready and prints one line per city: redrawn on a terminal, one line per change
//! in a pipe.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::exit::{CliError, Exit};
use crate::session::Session;
use crate::terminal;
use crate::view::progress::{self, CityProgress};
use crate::view::{Severity, age};

/// Flags of commands that wait for completion.
#[derive(Args, Clone, Debug)]
pub struct WaitFlags {
    /// Return after the request, without waiting for completion
    #[arg(long)]
    pub no_wait: bool,
    /// Longest time to wait, such as 30s, 5m or 1h30m
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = age::parse)]
    pub timeout: Duration,
}

/// Waits until a workload is ready in all its cities.
pub async fn until_ready(session: &Session, name: &str, timeout: Duration) -> Result<(), CliError> {
    let start = Instant::now();
    let mut board = ProgressBoard::new();
    loop {
        let (snapshot, versions) = session.snapshot(name).await?;
        let cities = progress::cities(&snapshot);
        board.show(&cities);
        if progress::is_complete(&snapshot) {
            board.close();
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
        session.wait_for_change(name, &versions, left).await;
    }
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
