//! `polis destroy`: says what will go, asks, deletes, and waits until every plane that can be seen is clean.

use std::time::{Duration, Instant};

use clap::Args;
use polis_api::compute::Workload;
use polis_api::kube::api::{DeleteParams, Preconditions};
use polis_core::owner;

use crate::exit::{Exit, Fault};
use crate::reach::{Place, Reach};
use crate::terminal;
use crate::view::picture::Picture;
use crate::view::progress;
use crate::wait::WaitFlags;

/// Hub and cells are looked at again after this time: no watch spans planes.
const LOOK: Duration = Duration::from_millis(250);

/// Delete a workload and everything that runs for it
#[derive(Args)]
#[command(after_help = "Examples:
  polis destroy web --yes")]
pub struct Flags {
    /// Name of the workload
    name: String,
    /// Delete without asking
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    place: Place,
}

/// See the head of this file.
pub async fn run(flags: Flags) -> Result<Exit, Fault> {
    let reach = Reach::new(&flags.place).await?;
    let name = &flags.name;
    let (picture, _) = reach.picture(name).await?;
    terminal::say(format!("This deletes {}.", what_goes(name, &reach.in_words(), &picture)));
    if !flags.yes {
        if !terminal::can_ask() {
            return Err(Fault::usage(
                format!("failed to destroy workload {name}"),
                "nobody is there to say yes",
                "repeat with --yes; nothing was deleted",
            ));
        }
        terminal::ask("Delete it?")?;
    }
    let uid = picture.workload.as_ref().map(|workload| owner::uid(&workload.metadata).to_owned());
    let only_this = Preconditions { uid, resource_version: None };
    let params = DeleteParams { preconditions: Some(only_this), ..DeleteParams::background() };
    let deleted = reach.api::<Workload>().delete(name, &params).await;
    deleted.map_err(|error| Fault::request(format!("failed to destroy workload {name}"), &error))?;
    if flags.wait.no_wait {
        terminal::say(format!("workload {name} is being deleted"));
        return Ok(Exit::Done);
    }
    until_gone(&reach, name, flags.wait.timeout).await?;
    Ok(Exit::Done)
}

fn what_goes(name: &str, place: &str, picture: &Picture) -> String {
    let mut cities: Vec<&str> = picture.deployments.iter().map(|d| d.spec.city_code.as_str()).collect();
    cities.sort_unstable();
    cities.dedup();
    let instances = match picture.instances.len() {
        1 => "1 instance".to_owned(),
        many => format!("{many} instances"),
    };
    match cities.as_slice() {
        [] => format!("workload {name} of {place}, which runs nowhere"),
        [city] => format!("workload {name} of {place}, with its {instances} in {city}"),
        [most @ .., last] => {
            format!("workload {name} of {place}, with its {instances} in {} and {last}", most.join(", "))
        }
    }
}

/// What is left in the project, in words.
fn left(picture: &Picture) -> String {
    match (picture.instances.len(), picture.deployments.len()) {
        (0, 0) => "nothing left but the workload itself".to_owned(),
        (instances, cities) => format!("{} left", progress::spread(instances, cities)),
    }
}

async fn until_gone(reach: &Reach, name: &str, timeout: Duration) -> Result<(), Fault> {
    let start = Instant::now();
    let mut said = None;
    loop {
        let (picture, versions) = reach.picture_if_any(name).await?;
        let in_project =
            picture.workload.is_some() || !picture.deployments.is_empty() || !picture.instances.is_empty();
        // The workload goes last in its project; only then is it worth looking further.
        let holding =
            if in_project { vec!["project".to_owned()] } else { reach.beyond(name).await.holding() };
        if holding.is_empty() {
            terminal::say(format!("workload {name} is gone"));
            return Ok(());
        }
        let words = match in_project {
            true => left(&picture),
            false => format!("left on: {}", holding.join(", ")),
        };
        if said.as_ref() != Some(&words) {
            terminal::say(&words);
            said = Some(words.clone());
        }
        let left = timeout.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(Fault::new(
                Exit::TimedOut,
                format!("workload {name} is not gone after {}s", timeout.as_secs()),
                words,
                format!("it goes on by itself; `polis why {name}` says what holds it up"),
            ));
        }
        if in_project {
            reach.changed(name, &versions, left).await;
        } else {
            tokio::time::sleep(LOOK.min(left)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::testing::mk_picture;

    #[test]
    fn what_will_go_is_one_sentence() {
        let place = "namespace default of project shop";
        for (cities, replicas, said) in [
            (&["dfw"][..], 1, "with its 1 instance in dfw"),
            (&["dfw", "ord"], 1, "with its 2 instances in dfw and ord"),
            (&["dfw", "lhr", "ord"], 2, "with its 6 instances in dfw, lhr and ord"),
            (&[], 1, "which runs nowhere"),
        ] {
            let expected = format!("workload web of {place}, {said}");
            assert_eq!(what_goes("web", place, &mk_picture(cities, replicas)), expected);
        }
    }

    #[test]
    fn what_is_left_is_counted_until_only_the_workload_is() {
        assert_eq!(left(&mk_picture(&["dfw"], 2)), "2 instances in 1 city left");
        assert_eq!(left(&mk_picture(&[], 2)), "nothing left but the workload itself");
    }
}
