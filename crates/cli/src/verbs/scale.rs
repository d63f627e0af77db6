//! `polis scale`: sets the number of instances in each city.

use clap::Args;

use crate::exit::{CliError, Exit};
use crate::output::OutputFlag;
use crate::session::{ConnectionFlags, Session};
use crate::terminal;
use crate::verbs::deploy::check_quota;
use crate::view::manifest;
use crate::wait::WaitFlags;

/// Set the number of instances of a workload in each city
#[derive(Args)]
#[command(after_help = "Examples:
  polis scale web 2
  polis scale web 3 --placement default --no-wait
  polis scale web 2 -o json")]
pub struct Flags {
    /// Name of the workload
    name: String,
    /// Number of instances in each city
    #[arg(allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(0..=1000))]
    replicas: i32,
    /// Scale only the cities of this placement
    #[arg(long)]
    placement: Option<String>,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    connection: ConnectionFlags,
}

/// Changes the placements and waits.
pub async fn run(flags: Flags) -> Result<Exit, CliError> {
    flags.output.reserve_stdout();
    let session = Session::new(&flags.connection).await?;
    let edit = |manifest: &mut _| manifest::scale(manifest, flags.replicas, flags.placement.as_deref());
    if let Some(existing) = session.manifest_of(&flags.name).await? {
        let mut wanted = existing.clone();
        if edit(&mut wanted).is_ok() {
            check_quota(&session, Some(&existing), &wanted, &flags.wait).await?;
        }
    }
    session.edit_workload(&flags.name, "scale", edit).await?;
    terminal::print(format!("workload {} scaled to {} in each city", flags.name, flags.replicas));
    flags.wait.until_ready(&session, &flags.name).await?;
    session.print_changed(flags.output, &flags.name).await?;
    Ok(Exit::Done)
}
