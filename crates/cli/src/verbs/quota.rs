//! `polis quota`: prints the quota of the project and how much of it is used.

use clap::Args;
use polis_api::kube::Api;
use polis_api::quota::{AllowanceBucket, ResourceRegistration};

use crate::exit::{CliError, Exit};
use crate::session::{Session, optional};
use crate::terminal;
use crate::verbs::ListFlags;
use crate::view::lists;

/// Show the quota of the project and how much of it is used
#[derive(Args)]
#[command(after_help = "Examples:
  polis quota
  polis quota -o wide")]
pub struct Flags {
    #[command(flatten)]
    list: ListFlags,
}

/// Prints one line per resource.
pub async fn run(flags: Flags) -> Result<Exit, CliError> {
    let session = Session::new(&flags.list.connection).await?;
    let buckets = optional(session.all::<AllowanceBucket>(), "quota").await?;
    if buckets.is_none() {
        terminal::note("This installation has no quota: the number of instances is not limited.");
    }
    let lines = lists::quota(&buckets.unwrap_or_default(), &registrations(&session).await);
    flags.list.output.list("quota", &lines, |wide| lists::quota_table(&lines, wide))?;
    Ok(Exit::Done)
}

/// The ResourceRegistrations, which have the display units. They are on the platform plane. A user without
/// permission to read them gets amounts in base units.
pub async fn registrations(session: &Session) -> Vec<ResourceRegistration> {
    let here = optional(session.all::<ResourceRegistration>(), "registrations").await.ok().flatten();
    if let Some(here) = here.filter(|here| !here.is_empty()) {
        return here;
    }
    let Ok(root) = session.root().await else { return Vec::new() };
    optional(Api::all(root), "registrations").await.ok().flatten().unwrap_or_default()
}
