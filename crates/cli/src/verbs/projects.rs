//! `polis projects`: lists the projects that `--project` accepts.

use clap::Args;
use polis_api::kube::Api;
use polis_api::milo::Project;

use crate::exit::{CliError, Exit};
use crate::session::{Session, optional};
use crate::verbs::ListFlags;
use crate::view::lists;

/// List the projects that --project accepts
///
/// Lists the Project objects of the server, if you may list them, and the projects with a context in the
/// kubeconfig.
#[derive(Args)]
#[command(after_help = "Examples:
  polis projects
  polis projects -o name")]
pub struct Flags {
    #[command(flatten)]
    list: ListFlags,
}

/// Lists the projects.
pub async fn run(flags: Flags) -> Result<Exit, CliError> {
    let session = Session::new(&flags.list.connection).await?;
    let contexts = session.project_contexts();
    // A user without permission to list projects gets those of the kubeconfig.
    let served = match optional(Api::<Project>::all(session.root().await?), "projects").await {
        Ok(served) => served.unwrap_or_default(),
        Err(error) if error.exit == Exit::Refused && !contexts.is_empty() => Vec::new(),
        Err(error) => return Err(error),
    };
    let lines = lists::projects(&served, &contexts, session.project.as_deref());
    flags.list.output.list("project", &lines, |wide| lists::project_table(&lines, wide))?;
    Ok(Exit::Done)
}
