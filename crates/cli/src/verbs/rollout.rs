//! `polis rollout`: waits for a rollout, lists the revisions of a template, and restores one.

use clap::{Args, Subcommand};

use crate::exit::{CliError, Exit};
use crate::output::OutputFlag;
use crate::session::{ConnectionFlags, Session};
use crate::terminal;
use crate::verbs::ListFlags;
use crate::view::history::{self, TemplateRevision};
use crate::view::table::Table;
use crate::wait::{WaitFlags, WaitLimits};

/// Wait for a rollout, list revisions, or restore an earlier one
///
/// A revision is a template of the workload. The commands of polis record the last 10 in the annotation
/// compute.datumapis.com/revisions of the workload. A change by another tool is recorded with the next change
/// by polis.
#[derive(Args)]
#[command(after_help = "Examples:
  polis rollout status web
  polis rollout history web")]
pub struct Flags {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// Wait until the newest template runs and is ready in all cities
    #[command(after_help = "Examples:\n  polis rollout status web")]
    Status(Status),
    /// List the recorded revisions of a workload
    #[command(after_help = "Examples:\n  polis rollout history web -o json")]
    History(History),
    /// Restore the template of the previous revision, or of a given one
    #[command(
        after_help = "Examples:\n  polis rollout undo web\n  polis rollout undo web --to-revision 2 --no-wait"
    )]
    Undo(Undo),
}

#[derive(Args)]
struct Status {
    /// Name of the workload
    name: String,
    #[command(flatten)]
    limits: WaitLimits,
    #[command(flatten)]
    connection: ConnectionFlags,
}

#[derive(Args)]
struct History {
    /// Name of the workload
    name: String,
    #[command(flatten)]
    list: ListFlags,
}

#[derive(Args)]
struct Undo {
    /// Name of the workload
    name: String,
    /// Revision to restore [default: the previous one]
    #[arg(long, value_name = "N")]
    to_revision: Option<u64>,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    connection: ConnectionFlags,
}

/// Runs the subcommand.
pub async fn run(flags: Flags) -> Result<Exit, CliError> {
    match flags.part {
        Part::Status(flags) => {
            let session = Session::new(&flags.connection).await?;
            flags.limits.until_ready(&session, &flags.name).await?;
        }
        Part::History(flags) => list(flags).await?,
        Part::Undo(flags) => undo(flags).await?,
    }
    Ok(Exit::Done)
}

async fn list(flags: History) -> Result<(), CliError> {
    let session = Session::new(&flags.list.connection).await?;
    session.snapshot(&flags.name).await?;
    let workload = session.manifest_of(&flags.name).await?.unwrap_or_default();
    let revisions = history::of(&workload);
    flags.list.output.list("revision", &revisions, |_| table(&flags.name, &revisions))?;
    if !flags.list.output.is_machine_readable() && !revisions.is_empty() && !history::is_recorded(&workload) {
        terminal::note("The current template is not a recorded revision: it was changed by other means.");
    }
    Ok(())
}

fn table(name: &str, revisions: &[TemplateRevision]) -> Table {
    let empty = format!("Workload {name} has no recorded revisions: it was not created with polis.");
    let mut table = Table::new(&["REVISION", "WHEN", "CAUSE", "IMAGE"], empty);
    for revision in revisions {
        // Without fractions of a second.
        let when = revision.at.split('.').next().unwrap_or_default().trim_end_matches('Z').to_owned() + "Z";
        let image = history::image(&revision.template);
        table.row([revision.revision.to_string(), when, revision.cause.clone(), image]);
    }
    table
}

async fn undo(flags: Undo) -> Result<(), CliError> {
    flags.output.reserve_stdout();
    let session = Session::new(&flags.connection).await?;
    let name = &flags.name;
    session.snapshot(name).await?;
    let existing = session.manifest_of(name).await?.unwrap_or_default();
    let target = history::target(&existing, flags.to_revision).map_err(|why| {
        let next = format!("list the recorded revisions with `polis rollout history {name}`");
        CliError::new(Exit::NotFound, format!("failed to undo workload {name}"), why, next)
    })?;
    let cause = format!("undo to {}", target.revision);
    let edit = |manifest: &mut serde_json::Value| {
        manifest["spec"]["template"] = target.template.clone();
        Ok(())
    };
    session.edit_workload(name, &cause, edit).await?;
    terminal::print(format!("workload {name} restored to revision {}", target.revision));
    flags.wait.until_ready(&session, name).await?;
    session.print_changed(flags.output, name).await
}
