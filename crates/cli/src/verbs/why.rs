//! `polis why`: what blocks a workload or an instance, since when, whose turn it is, what to do.

use clap::Args;
use jiff::Timestamp;
use polis_api::networking::LocationBinding;
use polis_core::cities::Cities;

use crate::exit::{Exit, Fault};
use crate::output::OutputFlag;
use crate::reach::{Place, Reach, optional};
use crate::terminal;
use crate::view::diagnosis::{self, Evidence};
use crate::view::{Mood, picture};

/// Say what blocks a workload or an instance, and what to do
///
/// Looks at the project and, where the kubeconfig leads there, at the hub and the cells. Ends with exit code 7 when
/// something is blocked.
#[derive(Args)]
#[command(after_help = "Examples:
  polis why web")]
pub struct Flags {
    /// Name of a workload or an instance
    name: String,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    place: Place,
}

/// See the head of this file.
pub async fn run(flags: Flags) -> Result<Exit, Fault> {
    let reach = Reach::new(&flags.place).await?;
    let name = &flags.name;
    let (workload, is_workload) = match reach.has_workload(name).await? {
        true => (name.clone(), true),
        false => match reach.instance(name).await? {
            Some(instance) => (picture::workload_of(&instance).to_owned(), false),
            None => return Err(reach.nothing_called(name)),
        },
    };
    let evidence = gather(&reach, &workload).await?;
    let diagnosis =
        if is_workload { diagnosis::workload(&evidence) } else { diagnosis::instance(&evidence, name) };
    flags.output.one("workload", &diagnosis, |_| {
        diagnosis::draw(&diagnosis, Timestamp::now(), terminal::width(), |mood, text| {
            terminal::bold(&terminal::tint(mood, text))
        })
    })?;
    Ok(if diagnosis.mood() == Mood::Stuck { Exit::Unwell } else { Exit::Done })
}

async fn gather(reach: &Reach, workload: &str) -> Result<Evidence, Fault> {
    let (picture, _) = reach.picture_if_any(workload).await?;
    let horizon = reach.beyond(workload).await;
    let mut unread = horizon.unread;
    let cities = match optional(reach.all::<LocationBinding>(), "cities").await {
        Ok(Some(bindings)) => Some(Cities::bound(&bindings).0),
        Ok(None) => Some(Cities::Any),
        Err(fault) => {
            unread.push(format!("the cities of the project: {}", fault.why));
            None
        }
    };
    Ok(Evidence { picture, cities, hub: horizon.hub, cells: horizon.cells, unread })
}
