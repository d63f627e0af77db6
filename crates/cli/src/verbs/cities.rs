//! `polis cities`: lists the cities that the project may use.

use clap::Args;
use jiff::Timestamp;
use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::networking::LocationBinding;

use crate::exit::{CliError, Exit};
use crate::session::{Session, optional};
use crate::terminal;
use crate::verbs::ListFlags;
use crate::view::lists;

/// List the cities that the project may use
#[derive(Args)]
#[command(after_help = "Examples:
  polis cities
  polis cities -o wide")]
pub struct Flags {
    #[command(flatten)]
    list: ListFlags,
}

/// Lists the cities.
pub async fn run(flags: Flags) -> Result<Exit, CliError> {
    let session = Session::new(&flags.list.connection).await?;
    let bindings = optional(session.all::<LocationBinding>(), "cities").await?;
    if bindings.is_none() {
        terminal::note("This installation has no LocationBindings: every city code may be used.");
    }
    let instances = optional(session.api::<Instance>(), "instances").await?.unwrap_or_default();
    // A user without permission to list deployments does not see whether their cells are silent.
    let deployments = session.api::<WorkloadDeployment>().list(&Default::default()).await;
    let deployments = deployments.map(|deployments| deployments.items).unwrap_or_default();
    let cities = lists::cities(&bindings.unwrap_or_default(), &deployments, &instances);
    flags.list.output.list("city", &cities, |wide| lists::city_table(&cities, Timestamp::now(), wide))?;
    Ok(Exit::Done)
}
