//! `polis why`: prints what blocks a workload or an instance, since when, who must act, and what to do.

use clap::Args;
use jiff::Timestamp;
use polis_api::networking::LocationBinding;
use polis_core::cities::Cities;

use crate::exit::{CliError, Exit};
use crate::session::{Session, optional};
use crate::terminal;
use crate::verbs::ListFlags;
use crate::view::diagnosis::{self, Evidence};
use crate::view::{Severity, snapshot};

/// Show what blocks a workload or an instance, and what to do
///
/// Reads the project, and the hub and the cells if the kubeconfig has contexts for them. Exit code 7 if
/// something is blocked.
#[derive(Args)]
#[command(after_help = "Examples:
  polis why web
  polis why web -o json")]
pub struct Flags {
    /// Name of a workload or an instance
    name: String,
    #[command(flatten)]
    list: ListFlags,
}

/// Diagnoses the workload or the instance.
pub async fn run(flags: Flags) -> Result<Exit, CliError> {
    let session = Session::new(&flags.list.connection).await?;
    let name = &flags.name;
    let (workload, is_workload) = match session.has_workload(name).await? {
        true => (name.clone(), true),
        false => match session.instance(name).await? {
            Some(instance) => (snapshot::workload_of(&instance).to_owned(), false),
            None => return Err(session.not_found(name)),
        },
    };
    let evidence = gather(&session, &workload).await?;
    let diagnosis =
        if is_workload { diagnosis::workload(&evidence) } else { diagnosis::instance(&evidence, name) };
    flags.list.output.one_styled("workload", &diagnosis, |_| {
        diagnosis::draw(&diagnosis, Timestamp::now(), terminal::width(), terminal::heading)
    })?;
    Ok(if diagnosis.severity() == Severity::Blocked { Exit::Unhealthy } else { Exit::Done })
}

async fn gather(session: &Session, workload: &str) -> Result<Evidence, CliError> {
    let (snapshot, _) = session.snapshot_if_any(workload).await?;
    let downstream = session.downstream(workload).await;
    let mut unread = downstream.unread;
    let cities = match optional(session.all::<LocationBinding>(), "cities").await {
        Ok(Some(bindings)) => Some(Cities::bound(&bindings).0),
        Ok(None) => Some(Cities::Any),
        Err(error) => {
            unread.push(format!("LocationBindings of the project: {}", error.why));
            None
        }
    };
    Ok(Evidence { snapshot, cities, hub: downstream.hub, cells: downstream.cells, unread })
}
