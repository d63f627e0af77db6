//! `polis rollout`: follow a change, list the changes before it, go back to one.

use clap::{Args, Subcommand};

use crate::exit::{Exit, Fault};
use crate::output::OutputFlag;
use crate::reach::{Place, Reach};
use crate::terminal;
use crate::view::history::{self, Revision};
use crate::view::table::Table;
use crate::wait::{self, WaitFlags};

/// Follow a change, list earlier ones, or go back
///
/// Revisions are templates. The verbs of polis write them down on the workload itself (the last 10, in the annotation
/// compute.datumapis.com/revisions); what other tools change is written down at the next change that polis makes.
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
    /// Wait until the newest change has arrived in all cities
    #[command(after_help = "Examples:\n  polis rollout status web")]
    Status(Status),
    /// List the revisions of a workload
    #[command(after_help = "Examples:\n  polis rollout history web -o json")]
    History(History),
    /// Go back to the revision before, or to the one named
    #[command(
        after_help = "Examples:\n  polis rollout undo web\n  polis rollout undo web --to-revision 2 --no-wait"
    )]
    Undo(Undo),
}

#[derive(Args)]
struct Status {
    /// Name of the workload
    name: String,
    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = crate::view::age::parse)]
    timeout: std::time::Duration,
    #[command(flatten)]
    place: Place,
}

#[derive(Args)]
struct History {
    /// Name of the workload
    name: String,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    place: Place,
}

#[derive(Args)]
struct Undo {
    /// Name of the workload
    name: String,
    /// Revision to go back to; the one before when absent
    #[arg(long, value_name = "N")]
    to_revision: Option<u64>,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    place: Place,
}

/// See the head of this file.
pub async fn run(flags: Flags) -> Result<Exit, Fault> {
    match flags.part {
        Part::Status(flags) => {
            let reach = Reach::new(&flags.place).await?;
            wait::until_ready(&reach, &flags.name, flags.timeout).await?;
        }
        Part::History(flags) => list(flags).await?,
        Part::Undo(flags) => undo(flags).await?,
    }
    Ok(Exit::Done)
}

async fn list(flags: History) -> Result<(), Fault> {
    let reach = Reach::new(&flags.place).await?;
    reach.picture(&flags.name).await?;
    let workload = reach.draft_of(&flags.name).await?.unwrap_or_default();
    let revisions = history::of(&workload);
    flags.output.list("revision", &revisions, |_| table(&flags.name, &revisions))?;
    if !flags.output.is_for_programs() && !revisions.is_empty() && !history::is_recorded(&workload) {
        terminal::remark("The template that stands was changed by other means after the newest revision.");
    }
    Ok(())
}

fn table(name: &str, revisions: &[Revision]) -> Table {
    let nothing = format!("No revision of {name} is recorded: it was not made with polis.");
    let mut table = Table::new(&["REVISION", "WHEN", "CAUSE", "IMAGE"], nothing);
    for revision in revisions {
        // Seconds are enough for people.
        let when = revision.at.split('.').next().unwrap_or_default().trim_end_matches('Z').to_owned() + "Z";
        let image = history::image(&revision.template);
        table.row([revision.revision.to_string(), when, revision.cause.clone(), image]);
    }
    table
}

async fn undo(flags: Undo) -> Result<(), Fault> {
    let reach = Reach::new(&flags.place).await?;
    let name = &flags.name;
    reach.picture(name).await?;
    let standing = reach.draft_of(name).await?.unwrap_or_default();
    let target = history::target(&standing, flags.to_revision).map_err(|why| {
        let next = format!("`polis rollout history {name}` lists what is recorded");
        Fault::new(Exit::NotFound, format!("failed to undo workload {name}"), why, next)
    })?;
    let cause = format!("undo to {}", target.revision);
    let edit = |draft: &mut serde_json::Value| {
        draft["spec"]["template"] = target.template.clone();
        Ok(())
    };
    reach.change(name, &cause, edit).await?;
    terminal::say(format!("workload {name} goes back to revision {}", target.revision));
    if !flags.wait.no_wait {
        wait::until_ready(&reach, name, flags.wait.timeout).await?;
    }
    Ok(())
}
