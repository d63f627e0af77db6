//! `polis workloads`: lists the workloads of a namespace.

use clap::Args;
use jiff::Timestamp;
use polis_api::compute::Workload;

use crate::exit::{CliError, Exit};
use crate::session::Session;
use crate::verbs::ListFlags;
use crate::view::lists;

/// List the workloads of the namespace
#[derive(Args)]
#[command(
    visible_alias = "ls",
    after_help = "Examples:
  polis workloads
  polis workloads -o wide"
)]
pub struct Flags {
    #[command(flatten)]
    list: ListFlags,
}

/// Lists the workloads.
pub async fn run(flags: Flags) -> Result<Exit, CliError> {
    let session = Session::new(&flags.list.connection).await?;
    let list = session.api::<Workload>().list(&Default::default()).await;
    let list = list.map_err(|error| CliError::request("failed to list workloads", &error))?;
    flags
        .list
        .output
        .list("workload", &list.items, |wide| lists::workloads(&list.items, Timestamp::now(), wide))?;
    Ok(Exit::Done)
}
