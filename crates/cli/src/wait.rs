//! Waiting until a workload is ready, with a line per city: live on a terminal, one line per change in a pipe.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::exit::{Exit, Fault};
use crate::reach::Reach;
use crate::terminal;
use crate::view::progress::{self, CityProgress};
use crate::view::{Mood, age};

/// Flags of verbs that wait.
#[derive(Args, Clone, Debug)]
pub struct WaitFlags {
    /// Do not wait until it is done
    #[arg(long)]
    pub no_wait: bool,
    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = age::parse)]
    pub timeout: Duration,
}

/// Waits until a workload is ready in all its cities.
pub async fn until_ready(reach: &Reach, name: &str, timeout: Duration) -> Result<(), Fault> {
    let start = Instant::now();
    let mut board = Board::new();
    loop {
        let (picture, versions) = reach.picture(name).await?;
        let cities = progress::cities(&picture);
        board.show(&cities);
        if progress::has_arrived(&picture) {
            board.close();
            let (ready, _) = picture.ready_of_wanted();
            let said = format!("{name} is ready: {}", progress::spread(ready, cities.len()));
            terminal::say(terminal::tint(Mood::Good, &said));
            return Ok(());
        }
        let left = timeout.saturating_sub(start.elapsed());
        if left.is_zero() {
            board.close();
            return Err(too_late(name, timeout, &cities));
        }
        reach.changed(name, &versions, left).await;
    }
}

fn too_late(name: &str, timeout: Duration, cities: &[CityProgress]) -> Fault {
    let missing: Vec<String> = cities
        .iter()
        .filter(|city| !city.arrived)
        .map(|city| format!("{} {}", city.label, city.in_short()))
        .collect();
    Fault::new(
        Exit::TimedOut,
        format!("{name} is not ready after {}s", timeout.as_secs()),
        missing.join("; "),
        format!("it goes on by itself; `polis why {name}` says what holds it up"),
    )
}

/// The lines of the cities.
struct Board {
    live: Option<MultiProgress>,
    bars: BTreeMap<String, ProgressBar>,
    said: BTreeMap<String, String>,
}

impl Board {
    fn new() -> Self {
        Board {
            live: terminal::is_live().then(MultiProgress::new),
            bars: BTreeMap::new(),
            said: BTreeMap::new(),
        }
    }

    fn show(&mut self, cities: &[CityProgress]) {
        let widest = cities.iter().map(|city| city.label.chars().count()).max().unwrap_or(0);
        for city in cities {
            let words = city.in_words();
            if self.said.insert(city.label.clone(), words.clone()).as_ref() == Some(&words) {
                continue;
            }
            let line = format!("{:<widest$}  {}", city.label, terminal::tint(city.mood(), &words));
            match &self.live {
                Some(live) => {
                    let bar = self.bars.entry(city.label.clone()).or_insert_with(|| spinner(live));
                    if city.arrived { bar.finish_with_message(line) } else { bar.set_message(line) }
                }
                None => terminal::say(line),
            }
        }
    }

    /// Leaves the last lines standing, those that did not arrive with a cross.
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

/// A style from a template that is a constant, so that it cannot be wrong for one user and right for another.
fn style(template: &'static str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}
