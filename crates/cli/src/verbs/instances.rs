//! `polis instances`: the instances of a workload, or of the namespace.

use clap::Args;
use jiff::Timestamp;
use polis_api::compute::Instance;

use crate::exit::{Exit, Fault};
use crate::output::OutputFlag;
use crate::reach::{Place, Reach};
use crate::view::lists;
use crate::view::picture::{city_of, deployment_of, ordinal};

/// List instances, of one workload or of all
#[derive(Args)]
#[command(after_help = "Examples:
  polis instances
  polis instances web --city dfw -o wide")]
pub struct Flags {
    /// Workload; all when absent
    name: Option<String>,
    /// Only in this city; may be given more than once
    #[arg(long = "city", value_name = "CITY")]
    cities: Vec<String>,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    place: Place,
}

/// See the head of this file.
pub async fn run(flags: Flags) -> Result<Exit, Fault> {
    let reach = Reach::new(&flags.place).await?;
    let mut instances = match &flags.name {
        Some(name) => reach.picture(name).await?.0.instances,
        None => {
            let list = reach.api::<Instance>().list(&Default::default()).await;
            list.map_err(|error| Fault::request("failed to list instances", &error))?.items
        }
    };
    let asked = |instance: &Instance| flags.cities.iter().any(|city| city == city_of(instance));
    instances.retain(|instance| flags.cities.is_empty() || asked(instance));
    instances.sort_by_key(|instance| (deployment_of(instance).to_owned(), ordinal(instance)));
    flags.output.list("instance", &instances, |wide| lists::instances(&instances, Timestamp::now(), wide))?;
    Ok(Exit::Done)
}
