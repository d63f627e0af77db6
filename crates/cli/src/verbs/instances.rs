//! `polis instances`: lists the instances of a workload or of the namespace.

use clap::Args;
use jiff::Timestamp;
use polis_api::compute::{Instance, WorkloadDeployment};

use crate::exit::{CliError, Exit};
use crate::session::Session;
use crate::verbs::ListFlags;
use crate::view::lists;
use crate::view::snapshot::{city_of, deployment_of, ordinal};

/// List the instances of one workload, or of all workloads
#[derive(Args)]
#[command(after_help = "Examples:
  polis instances
  polis instances web --city dfw -o wide")]
pub struct Flags {
    /// Name of the workload [default: all workloads of the namespace]
    name: Option<String>,
    /// List only the instances in this city; repeat the flag for more cities
    #[arg(long = "city", value_name = "CITY")]
    cities: Vec<String>,
    #[command(flatten)]
    list: ListFlags,
}

/// Lists the instances.
pub async fn run(flags: Flags) -> Result<Exit, CliError> {
    let session = Session::new(&flags.list.connection).await?;
    let (mut instances, deployments) = match &flags.name {
        Some(name) => {
            let snapshot = session.snapshot(name).await?.0;
            (snapshot.instances, snapshot.deployments)
        }
        None => {
            let list = session.api::<Instance>().list(&Default::default()).await;
            let list = list.map_err(|error| CliError::request("failed to list instances", &error))?;
            // A user without permission to list deployments does not see whether their cells are silent.
            let deployments = session.api::<WorkloadDeployment>().list(&Default::default()).await;
            (list.items, deployments.map(|deployments| deployments.items).unwrap_or_default())
        }
    };
    let asked = |instance: &Instance| flags.cities.iter().any(|city| city == city_of(instance));
    instances.retain(|instance| flags.cities.is_empty() || asked(instance));
    instances.sort_by_key(|instance| (deployment_of(instance).to_owned(), ordinal(instance)));
    let table = |wide| lists::instances(&instances, &deployments, Timestamp::now(), wide);
    flags.list.output.list("instance", &instances, table)?;
    Ok(Exit::Done)
}
