//! `polis quota`: what the project has and uses.

use clap::Args;
use polis_api::kube::Api;
use polis_api::quota::{AllowanceBucket, ResourceRegistration};

use crate::exit::{Exit, Fault};
use crate::output::OutputFlag;
use crate::reach::{Place, Reach, optional};
use crate::terminal;
use crate::view::lists;

/// Show what the project may use and what it uses
#[derive(Args)]
#[command(after_help = "Examples:
  polis quota")]
pub struct Flags {
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    place: Place,
}

/// See the head of this file.
pub async fn run(flags: Flags) -> Result<Exit, Fault> {
    let reach = Reach::new(&flags.place).await?;
    let buckets = optional(reach.all::<AllowanceBucket>(), "quota").await?;
    if buckets.is_none() {
        terminal::remark("This installation keeps no quota: nothing is limited by it.");
    }
    let lines = lists::quota(&buckets.unwrap_or_default(), &registrations(&reach).await);
    flags.output.list("quota", &lines, |wide| lists::quota_table(&lines, wide))?;
    Ok(Exit::Done)
}

/// Registrations give units. They stand beside the projects and belong to the operator; a user who may not read them
/// sees amounts in base units.
async fn registrations(reach: &Reach) -> Vec<ResourceRegistration> {
    let here = optional(reach.all::<ResourceRegistration>(), "registrations").await.ok().flatten();
    if let Some(here) = here.filter(|here| !here.is_empty()) {
        return here;
    }
    let Ok(root) = reach.root().await else { return Vec::new() };
    optional(Api::all(root), "registrations").await.ok().flatten().unwrap_or_default()
}
