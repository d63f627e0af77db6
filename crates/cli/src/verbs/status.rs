//! `polis status`: prints a workload as a tree of cities and instances.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;

use crate::exit::{CliError, Exit};
use crate::session::Session;
use crate::terminal;
use crate::verbs::ListFlags;
use crate::view::tree;

/// With `--watch` on a terminal, the tree is redrawn at least this often, so that the ages are current.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);
/// With `--watch` in a pipe, the objects are read again at least this often. A tree is printed only after a
/// change.
const PIPE_RESYNC: Duration = Duration::from_secs(60);

/// Show a workload with its cities and instances
#[derive(Args)]
#[command(after_help = "Examples:
  polis status web
  polis status web -o wide")]
pub struct Flags {
    /// Name of the workload
    name: String,
    /// Print the tree again after every change, until interrupted
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    list: ListFlags,
}

/// Prints the tree once, or after every change.
pub async fn run(flags: Flags) -> Result<Exit, CliError> {
    let session = Session::new(&flags.list.connection).await?;
    if flags.watch && flags.list.output.is_machine_readable() {
        return Err(CliError::usage(
            "failed to watch the workload",
            "--watch does not support -o json, yaml and name",
            "remove -o, or use `kubectl get -w`",
        ));
    }
    let mut shown = None;
    loop {
        let (snapshot, versions) = session.snapshot(&flags.name).await?;
        let draw = |wide| tree::draw(&snapshot, Timestamp::now(), terminal::width(), wide);
        if !flags.watch {
            flags.list.output.one("workload", &snapshot.tree(), draw)?;
            return Ok(Exit::Done);
        }
        // In a pipe the tree is printed when an object changes, not when only the ages do.
        let rendered = serde_json::to_string(&snapshot).unwrap_or_default();
        if terminal::is_live() {
            terminal::clear();
            flags.list.output.one("workload", &snapshot.tree(), draw)?;
        } else if shown.as_ref() != Some(&rendered) {
            flags.list.output.one("workload", &snapshot.tree(), |wide| draw(wide) + "\n")?;
            terminal::print("");
        }
        shown = Some(rendered);
        session
            .wait_for_change(
                &flags.name,
                &versions,
                if terminal::is_live() { REDRAW_INTERVAL } else { PIPE_RESYNC },
            )
            .await;
    }
}
