//! `polis workloads`: the workloads of a namespace.

use clap::Args;
use jiff::Timestamp;
use polis_api::compute::Workload;

use crate::exit::{Exit, Fault};
use crate::output::OutputFlag;
use crate::reach::{Place, Reach};
use crate::view::lists;

/// List workloads
#[derive(Args)]
#[command(
    visible_alias = "ls",
    after_help = "Examples:
  polis workloads
  polis workloads -o wide"
)]
pub struct Flags {
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    place: Place,
}

/// See the head of this file.
pub async fn run(flags: Flags) -> Result<Exit, Fault> {
    let reach = Reach::new(&flags.place).await?;
    let list = reach.api::<Workload>().list(&Default::default()).await;
    let list = list.map_err(|error| Fault::request("failed to list workloads", &error))?;
    flags
        .output
        .list("workload", &list.items, |wide| lists::workloads(&list.items, Timestamp::now(), wide))?;
    Ok(Exit::Done)
}
