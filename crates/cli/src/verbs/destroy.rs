//! `polis destroy`: deletes a workload after a confirmation, and waits until its objects are gone from every
//! readable plane.

use std::time::{Duration, Instant};

use clap::Args;
use polis_api::ObjectExt;
use polis_api::annotations;
use polis_api::compute::Workload;
use polis_api::conditions::WITHDRAWN;
use polis_api::kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use polis_core::conditions;
use serde_json::json;

use crate::exit::{CliError, Exit};
use crate::session::{ConnectionFlags, Session};
use crate::terminal;
use crate::view::progress;
use crate::view::snapshot::WorkloadSnapshot;

/// Interval of reading the hub and the cells.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Delete a workload and its instances in all cities
///
/// Waits until its objects are gone from the project, and from the hub and the cells if the kubeconfig has
/// contexts for them. A cell that does not respond holds the deletion, because its instances may still run.
#[derive(Args)]
#[command(after_help = "Examples:
  polis destroy web --yes
  polis destroy web --yes --abandon dfw")]
pub struct Flags {
    /// Name of the workload
    name: String,
    /// Delete without a prompt
    #[arg(short, long)]
    yes: bool,
    /// Do not wait for the cells of this city; instances may still run there until the cell returns.
    /// Repeat for several cities
    #[arg(long, value_name = "CITY")]
    abandon: Vec<String>,
    /// Return after the request, without waiting for completion
    #[arg(long)]
    no_wait: bool,
    /// Longest time to wait, such as 30s, 5m or 1h30m
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = crate::view::age::parse)]
    timeout: Duration,
    #[command(flatten)]
    connection: ConnectionFlags,
}

/// Deletes the workload and waits.
pub async fn run(flags: Flags) -> Result<Exit, CliError> {
    let session = Session::new(&flags.connection).await?;
    let name = &flags.name;
    let (snapshot, _) = session.snapshot(name).await?;
    terminal::print(format!("This deletes {}.", deletion_summary(name, &session.describe(), &snapshot)));
    if !flags.yes {
        if !terminal::is_interactive() {
            return Err(CliError::usage(
                format!("failed to destroy workload {name}"),
                "the deletion must be confirmed, and there is no terminal for the prompt",
                "repeat the command with --yes; nothing was deleted",
            ));
        }
        terminal::confirm("Delete it?")?;
    }
    let uid = snapshot.workload.as_ref().map(|workload| workload.uid().to_owned());
    let only_this = Preconditions { uid, resource_version: None };
    let params = DeleteParams { preconditions: Some(only_this), ..DeleteParams::background() };
    let failed = |error| CliError::request(format!("failed to destroy workload {name}"), &error);
    if !flags.abandon.is_empty() {
        let cities = flags.abandon.join(",");
        let abandon = json!({"metadata": {"annotations": {annotations::ABANDON: cities}}});
        let patched =
            session.api::<Workload>().patch(name, &PatchParams::default(), &Patch::Merge(abandon)).await;
        drop(patched.map_err(failed)?);
    }
    drop(session.api::<Workload>().delete(name, &params).await.map_err(failed)?);
    if flags.no_wait {
        terminal::print(format!("workload {name} is being deleted"));
        return Ok(Exit::Done);
    }
    until_gone(&session, name, flags.timeout).await?;
    Ok(Exit::Done)
}

fn deletion_summary(name: &str, scope: &str, snapshot: &WorkloadSnapshot) -> String {
    let mut cities: Vec<&str> = snapshot.deployments.iter().map(|d| d.spec.city_code.as_str()).collect();
    cities.sort_unstable();
    cities.dedup();
    let instances = match snapshot.instances.len() {
        1 => "1 instance".to_owned(),
        many => format!("{many} instances"),
    };
    match cities.as_slice() {
        [] => format!("workload {name} of {scope}, which runs nowhere"),
        [city] => format!("workload {name} of {scope}, with its {instances} in {city}"),
        [most @ .., last] => {
            format!("workload {name} of {scope}, with its {instances} in {} and {last}", most.join(", "))
        }
    }
}

/// The objects that are left in the project, for the progress line.
fn remaining(snapshot: &WorkloadSnapshot) -> String {
    let left = match (snapshot.instances.len(), snapshot.deployments.len()) {
        (0, 0) => "only the workload is left".to_owned(),
        (instances, cities) => format!("{} left", progress::count_in_cities(instances, cities)),
    };
    let status = snapshot.workload.as_ref().and_then(|workload| workload.status.as_ref());
    match status.and_then(|status| conditions::find(&status.conditions, WITHDRAWN)) {
        Some(waits) if waits.status != "True" => format!("{left} ({})", waits.message),
        _ => left,
    }
}

async fn until_gone(session: &Session, name: &str, timeout: Duration) -> Result<(), CliError> {
    let start = Instant::now();
    let mut printed = None;
    loop {
        let (snapshot, versions) = session.snapshot_if_any(name).await?;
        let in_project =
            snapshot.workload.is_some() || !snapshot.deployments.is_empty() || !snapshot.instances.is_empty();
        // The workload is the last object that is deleted in the project. Before that the other planes are
        // not read.
        let holding = if in_project {
            vec!["project".to_owned()]
        } else {
            session.downstream(name).await.planes_with_objects()
        };
        if holding.is_empty() {
            terminal::print(format!("workload {name} is gone"));
            return Ok(());
        }
        let words = match in_project {
            true => remaining(&snapshot),
            false => format!("left on: {}", holding.join(", ")),
        };
        if printed.as_ref() != Some(&words) {
            terminal::print(&words);
            printed = Some(words.clone());
        }
        let time_left = timeout.saturating_sub(start.elapsed());
        if time_left.is_zero() {
            return Err(CliError::new(
                Exit::TimedOut,
                format!("workload {name} is not gone after {}s", timeout.as_secs()),
                words,
                format!("the deletion continues; `polis why {name}` shows what blocks it"),
            ));
        }
        if in_project {
            session.wait_for_change(name, &versions, time_left).await;
        } else {
            tokio::time::sleep(POLL_INTERVAL.min(time_left)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::testing::mk_snapshot;

    #[test]
    fn the_prompt_names_cities_and_instances() {
        let scope = "namespace default of project shop";
        for (cities, replicas, summary) in [
            (&["dfw"][..], 1, "with its 1 instance in dfw"),
            (&["dfw", "ord"], 1, "with its 2 instances in dfw and ord"),
            (&["dfw", "lhr", "ord"], 2, "with its 6 instances in dfw, lhr and ord"),
            (&[], 1, "which runs nowhere"),
        ] {
            let expected = format!("workload web of {scope}, {summary}");
            assert_eq!(deletion_summary("web", scope, &mk_snapshot(cities, replicas)), expected);
        }
    }

    #[test]
    fn the_progress_line_counts_the_remaining_instances() {
        assert_eq!(remaining(&mk_snapshot(&["dfw"], 2)), "2 instances in 1 city left");
        assert_eq!(remaining(&mk_snapshot(&[], 2)), "only the workload is left");
        let mut waiting = mk_snapshot(&["dfw"], 1);
        let workload = waiting.workload.as_mut().unwrap();
        let withdrawn =
            conditions::DesiredCondition::new_false(WITHDRAWN, "CellUnreachable", "cell dfw is away");
        let now = polis_core::Time(polis_api::k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
        conditions::set(&mut workload.status.get_or_insert_default().conditions, &withdrawn, None, &now);
        assert_eq!(remaining(&waiting), "1 instance in 1 city left (cell dfw is away)");
    }
}
