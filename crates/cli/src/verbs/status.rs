//! `polis status`: the tree of a workload.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;

use crate::exit::{Exit, Fault};
use crate::output::OutputFlag;
use crate::reach::{Place, Reach};
use crate::terminal;
use crate::view::tree;

/// A live tree is drawn anew at least this often, so that ages move.
const BREATH: Duration = Duration::from_secs(1);
/// A pipe gets a tree only when something changes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Show a workload with its cities and instances
#[derive(Args)]
#[command(after_help = "Examples:
  polis status web
  polis status web -o wide")]
pub struct Flags {
    /// Name of the workload
    name: String,
    /// Go on showing it whenever it changes
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    place: Place,
}

/// See the head of this file.
pub async fn run(flags: Flags) -> Result<Exit, Fault> {
    let reach = Reach::new(&flags.place).await?;
    if flags.watch && flags.output.is_for_programs() {
        return Err(Fault::usage(
            "failed to watch",
            "--watch draws for people",
            "leave -o out, or use `kubectl get -w`",
        ));
    }
    let mut shown = None;
    loop {
        let (picture, versions) = reach.picture(&flags.name).await?;
        let draw = |wide| tree::draw(&picture, Timestamp::now(), terminal::width(), wide);
        if !flags.watch {
            flags.output.one("workload", &picture.workload, draw)?;
            return Ok(Exit::Done);
        }
        // Ages move by themselves; only what else changes is news to a pipe.
        let seen = serde_json::to_string(&picture).unwrap_or_default();
        if terminal::is_live() {
            terminal::clear();
            flags.output.one("workload", &picture.workload, draw)?;
        } else if shown.as_ref() != Some(&seen) {
            flags.output.one("workload", &picture.workload, |wide| draw(wide) + "\n")?;
            terminal::say("");
        }
        shown = Some(seen);
        reach.changed(&flags.name, &versions, if terminal::is_live() { BREATH } else { PATIENCE }).await;
    }
}
