//! `polis projects`: the projects that can be chosen with --project.

use clap::Args;
use polis_api::kube::Api;
use polis_api::milo::Project;

use crate::exit::{Exit, Fault};
use crate::output::OutputFlag;
use crate::reach::{Place, Reach, optional};
use crate::view::lists;

/// List the projects that --project takes
///
/// Those that the server lists, where it lets you, and those that have a context in the kubeconfig.
#[derive(Args)]
#[command(after_help = "Examples:
  polis projects")]
pub struct Flags {
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    place: Place,
}

/// See the head of this file.
pub async fn run(flags: Flags) -> Result<Exit, Fault> {
    let reach = Reach::new(&flags.place).await?;
    let contexts = reach.project_contexts();
    // A user who may not list all projects still has those of the kubeconfig.
    let served = match optional(Api::<Project>::all(reach.root().await?), "projects").await {
        Ok(served) => served.unwrap_or_default(),
        Err(fault) if fault.exit == Exit::Refused && !contexts.is_empty() => Vec::new(),
        Err(fault) => return Err(fault),
    };
    let lines = lists::projects(&served, &contexts, reach.project.as_deref());
    flags.output.list("project", &lines, |wide| lists::project_table(&lines, wide))?;
    Ok(Exit::Done)
}
