//! `polis workloads`: lists the workloads of a namespace.

use clap::Args;
use futures::future;
use jiff::Timestamp;
use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::kube::api::ListParams;

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
    let (workloads, instances) = (session.api::<Workload>(), session.api::<Instance>());
    let (deployments, all) = (session.api::<WorkloadDeployment>(), ListParams::default());
    let (list, deployments, instances) =
        future::join3(workloads.list(&all), deployments.list(&all), instances.list(&all)).await;
    let list = list.map_err(|error| CliError::request("failed to list workloads", &error))?;
    // A user without permission to list the others sees the state of the workloads alone.
    let deployments = deployments.map(|deployments| deployments.items).unwrap_or_default();
    let instances = instances.map(|instances| instances.items).unwrap_or_default();
    let now = Timestamp::now();
    let table = |wide| lists::workloads(&list.items, &deployments, &instances, now, wide);
    flags.list.output.list("workload", &list.items, table)?;
    Ok(Exit::Done)
}
