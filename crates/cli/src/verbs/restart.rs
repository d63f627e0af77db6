//! `polis restart`: replaces every instance, one at a time per city.
//!
//! It sets an annotation in the template with the time: the fingerprint of the template changes, nothing that runs does.

use clap::Args;
use jiff::{Timestamp, TimestampRound, Unit};

use crate::exit::{Exit, Fault};
use crate::reach::{Place, Reach};
use crate::terminal;
use crate::view::draft;
use crate::wait::{self, WaitFlags};

/// Replace every instance, one at a time in each city
#[derive(Args)]
#[command(after_help = "Examples:
  polis restart web")]
pub struct Flags {
    /// Name of the workload
    name: String,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    place: Place,
}

/// See the head of this file.
pub async fn run(flags: Flags) -> Result<Exit, Fault> {
    let reach = Reach::new(&flags.place).await?;
    // Milliseconds: two restarts in one second are two.
    let now = Timestamp::now().round(TimestampRound::new().smallest(Unit::Millisecond));
    let when =
        now.map_err(|error| Fault::new(Exit::Failed, "failed to read the clock", error.to_string(), ""))?;
    reach.change(&flags.name, "restart", |draft| draft::restart(draft, &when.to_string())).await?;
    terminal::say(format!("workload {} is restarting", flags.name));
    if !flags.wait.no_wait {
        wait::until_ready(&reach, &flags.name, flags.wait.timeout).await?;
    }
    Ok(Exit::Done)
}
