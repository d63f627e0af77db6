//! `polis cities`: the cities that the project may use.

use clap::Args;
use polis_api::compute::Instance;
use polis_api::networking::LocationBinding;

use crate::exit::{Exit, Fault};
use crate::output::OutputFlag;
use crate::reach::{Place, Reach, optional};
use crate::terminal;
use crate::view::lists;

/// List the cities that the project may use
#[derive(Args)]
#[command(after_help = "Examples:
  polis cities")]
pub struct Flags {
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    place: Place,
}

/// See the head of this file.
pub async fn run(flags: Flags) -> Result<Exit, Fault> {
    let reach = Reach::new(&flags.place).await?;
    let bindings = optional(reach.all::<LocationBinding>(), "cities").await?;
    if bindings.is_none() {
        terminal::remark("This installation keeps no list of cities: any city code may be used.");
    }
    let instances = optional(reach.api::<Instance>(), "instances").await?.unwrap_or_default();
    let cities = lists::cities(&bindings.unwrap_or_default(), &instances);
    flags.output.list("city", &cities, |wide| lists::city_table(&cities, wide))?;
    Ok(Exit::Done)
}
