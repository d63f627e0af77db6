//! `polis restart`: replaces every instance of a workload, one at a time in each city.
//!
//! It sets an annotation of the template to the current time. This changes the template hash and nothing
//! else.

use clap::Args;
use jiff::{Timestamp, TimestampRound, Unit};

use crate::exit::{CliError, Exit};
use crate::output::OutputFlag;
use crate::session::{ConnectionFlags, Session};
use crate::terminal;
use crate::view::manifest;
use crate::wait::WaitFlags;

/// Replace every instance of a workload, one at a time in each city
#[derive(Args)]
#[command(after_help = "Examples:
  polis restart web
  polis restart web --no-wait")]
pub struct Flags {
    /// Name of the workload
    name: String,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    connection: ConnectionFlags,
}

/// Changes the annotation and waits.
pub async fn run(flags: Flags) -> Result<Exit, CliError> {
    flags.output.reserve_stdout();
    let session = Session::new(&flags.connection).await?;
    // Milliseconds, so that two restarts within one second differ.
    let now = Timestamp::now().round(TimestampRound::new().smallest(Unit::Millisecond));
    let when =
        now.map_err(|error| CliError::new(Exit::Failed, "failed to read the clock", error.to_string(), ""))?;
    session
        .edit_workload(&flags.name, "restart", |manifest| manifest::restart(manifest, &when.to_string()))
        .await?;
    terminal::print(format!("workload {} is restarting", flags.name));
    flags.wait.until_ready(&session, &flags.name).await?;
    session.print_changed(flags.output, &flags.name).await?;
    Ok(Exit::Done)
}
