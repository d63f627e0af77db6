//! `polis scale`: how many instances run in each city.

use clap::Args;

use crate::exit::{Exit, Fault};
use crate::reach::{Place, Reach};
use crate::terminal;
use crate::view::draft;
use crate::wait::{self, WaitFlags};

/// Set the number of instances in each city
#[derive(Args)]
#[command(after_help = "Examples:
  polis scale web 2")]
pub struct Flags {
    /// Name of the workload
    name: String,
    /// Instances in each city
    #[arg(allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(0..=1000))]
    replicas: i32,
    /// Only in the cities of this placement
    #[arg(long)]
    placement: Option<String>,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    place: Place,
}

/// See the head of this file.
pub async fn run(flags: Flags) -> Result<Exit, Fault> {
    let reach = Reach::new(&flags.place).await?;
    let edit = |draft: &mut _| draft::scale(draft, flags.replicas, flags.placement.as_deref());
    reach.change(&flags.name, "scale", edit).await?;
    terminal::say(format!("workload {} scaled to {} in each city", flags.name, flags.replicas));
    if !flags.wait.no_wait {
        wait::until_ready(&reach, &flags.name, flags.wait.timeout).await?;
    }
    Ok(Exit::Done)
}
