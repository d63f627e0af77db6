//! `polis logs`: prints the output of instances, merged across cities.
//!
//! One request per instance, `…/instances/<name>/log`, which RBAC authorises like every other request. Lines
//! of several instances have a prefix of city and ordinal. With `--follow`, instances that are created later
//! (by a restart or a scale) are followed too. With `--previous`, instances without a previous run are
//! skipped; if no instance has one, it is an error.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use futures::{AsyncBufReadExt, StreamExt, TryStreamExt, stream::FuturesUnordered};
use polis_api::ObjectExt;
use polis_api::compute::{API_VERSION, Instance};
use polis_api::kube;

use crate::exit::{CliError, Exit};
use crate::session::{ConnectionFlags, NO_PREVIOUS_RUN, NOT_STARTED, Session};
use crate::terminal;
use crate::view::{age, snapshot};

/// Interval of the search for new instances with `--follow`.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Print the output of a workload's instances, or of one instance
#[derive(Args)]
#[command(after_help = "Examples:
  polis logs web
  polis logs web --city dfw --since 10m --tail 20
  polis logs web --previous")]
pub struct Flags {
    /// Name of a workload or an instance
    name: String,
    /// Continue with new output until interrupted
    #[arg(short, long)]
    follow: bool,
    /// Print the output of the last run that has ended, such as the one that crashed, instead of all output
    #[arg(short, long, conflicts_with = "follow")]
    previous: bool,
    /// Print only the output of instances in this city; repeat the flag for more cities
    #[arg(long = "city", value_name = "CITY")]
    cities: Vec<String>,
    /// Print only output that is newer than this, such as 30s, 10m or 1h30m
    #[arg(long, value_name = "DURATION", value_parser = age::parse)]
    since: Option<Duration>,
    /// Print only the last lines of each instance
    #[arg(long, value_name = "LINES")]
    tail: Option<u64>,
    /// Name of the container; required if an instance has several
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,
    #[command(flatten)]
    connection: ConnectionFlags,
}

/// Prints the logs of the selected instances.
pub async fn run(flags: Flags) -> Result<Exit, CliError> {
    let session = Session::new(&flags.connection).await?;
    let mut instances = select_instances(&session, &flags).await?;
    if instances.is_empty() && !flags.follow {
        terminal::note(format!("{} has no instances in the selected cities.", flags.name));
        return Ok(Exit::Done);
    }
    if flags.previous {
        return read_previous(&session, &flags, instances).await;
    }
    let alone = is_alone(&flags, &instances);
    let mut started = BTreeSet::new();
    let mut reported = BTreeSet::new();
    let mut reading = FuturesUnordered::new();
    let mut later = false;
    loop {
        for instance in instances {
            if started.insert(instance_id(&instance)) {
                let prefix = if alone { String::new() } else { prefix(&instance) };
                // An instance that is created later is printed from its first line.
                reading.push(read(&session, &flags, instance, prefix, later));
            }
        }
        let ended = match flags.follow {
            false => reading.next().await,
            true => tokio::select! {
                ended = reading.next(), if !reading.is_empty() => ended,
                () = tokio::time::sleep(POLL_INTERVAL) => None,
            },
        };
        match ended.transpose()? {
            Some(LogRead::NotStarted { instance_id, message }) => {
                if reported.insert(instance_id.clone()) {
                    terminal::note(message);
                }
                started.remove(&instance_id);
            }
            Some(LogRead::Complete) if flags.follow && alone => return Ok(Exit::Done),
            Some(LogRead::Complete | LogRead::NoPreviousRun) => {}
            None if !flags.follow => return Ok(Exit::Done),
            None => {}
        }
        instances = Vec::new();
        if flags.follow {
            later = true;
            instances = match select_instances(&session, &flags).await {
                Ok(instances) => instances,
                // The open streams are read to their end.
                Err(error) if error.exit == Exit::NotFound && !reading.is_empty() => Vec::new(),
                Err(error) if error.exit == Exit::NotFound => {
                    terminal::note(format!("{} is gone.", flags.name));
                    return Ok(Exit::Done);
                }
                Err(error) => return Err(error),
            };
        }
    }
}

/// Prints the previous run of each instance that has one. An instance that has not started has none.
async fn read_previous(session: &Session, flags: &Flags, instances: Vec<Instance>) -> Result<Exit, CliError> {
    let alone = is_alone(flags, &instances);
    let reading = instances.into_iter().map(|instance| {
        let prefix = if alone { String::new() } else { prefix(&instance) };
        read(session, flags, instance, prefix, false)
    });
    let read = reading.collect::<FuturesUnordered<_>>().try_collect::<Vec<_>>().await?;
    if read.iter().any(|read| matches!(read, LogRead::Complete)) {
        return Ok(Exit::Done);
    }
    Err(CliError::new(
        Exit::NotFound,
        format!("failed to read the previous output of {}", flags.name),
        if alone {
            "no container of it has been restarted"
        } else {
            "none of its instances has been restarted"
        },
        format!("`polis logs {}` prints the output of the current run", flags.name),
    ))
}

/// Whether the flags name a single instance. Its lines have no prefix.
fn is_alone(flags: &Flags, instances: &[Instance]) -> bool {
    instances.len() == 1 && instances[0].name() == flags.name
}

/// UID and name of an instance. A replacement has the same name and another UID.
type InstanceId = (String, String);

fn instance_id(instance: &Instance) -> InstanceId {
    (instance.uid().to_owned(), instance.name().to_owned())
}

/// The result of reading the log of one instance.
enum LogRead {
    /// The log was read to its end.
    Complete,
    /// The instance has not started and has no log yet.
    NotStarted { instance_id: InstanceId, message: String },
    /// No run of the container has ended.
    NoPreviousRun,
}

/// The instances that the flags select.
async fn select_instances(session: &Session, flags: &Flags) -> Result<Vec<Instance>, CliError> {
    let mut instances = match session.instance(&flags.name).await? {
        Some(instance) => vec![instance],
        None if session.has_workload(&flags.name).await? => session.snapshot(&flags.name).await?.0.instances,
        None => return Err(session.not_found(&flags.name)),
    };
    let asked = |instance: &Instance| flags.cities.iter().any(|city| city == snapshot::city_of(instance));
    instances.retain(|instance| flags.cities.is_empty() || asked(instance));
    Ok(instances)
}

/// City and ordinal, which identify an instance within its workload.
fn prefix(instance: &Instance) -> String {
    match snapshot::ordinal(instance) {
        Some(ordinal) => format!("{}-{ordinal} | ", snapshot::city_of(instance)),
        None => format!("{} | ", instance.name()),
    }
}

async fn read(
    session: &Session,
    flags: &Flags,
    instance: Instance,
    prefix: String,
    whole: bool,
) -> Result<LogRead, CliError> {
    let name = instance.name().to_owned();
    let what = format!("failed to read the log of {name}");
    let request = http::Request::get(path(&session.namespace, &name, flags, whole)).body(Vec::new());
    let request =
        request.map_err(|error| CliError::new(Exit::Failed, what.as_str(), error.to_string(), ""))?;
    let lines = match session.client.request_stream(request).await {
        Ok(lines) => lines,
        Err(kube::Error::Api(status)) if status.reason == NOT_STARTED => {
            if flags.follow {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            return Ok(LogRead::NotStarted {
                instance_id: instance_id(&instance),
                message: status.message.clone(),
            });
        }
        Err(kube::Error::Api(status)) if status.reason == NO_PREVIOUS_RUN => {
            return Ok(LogRead::NoPreviousRun);
        }
        // The instance was deleted after it was listed.
        Err(kube::Error::Api(status)) if status.code == 404 && session.instance(&name).await?.is_none() => {
            return Ok(LogRead::Complete);
        }
        Err(error) => return Err(log_error(what, &error)),
    };
    let mut lines = lines.lines();
    loop {
        match lines.try_next().await {
            Ok(Some(line)) => terminal::print(format!("{prefix}{line}")),
            Ok(None) => return Ok(LogRead::Complete),
            // The stream of a followed instance ends with the instance.
            Err(_) if flags.follow => return Ok(LogRead::Complete),
            Err(error) => {
                let next = "repeat the command; the printed output is complete up to this line";
                return Err(CliError::new(Exit::Failed, what, error.to_string(), next));
            }
        }
    }
}

/// The last lines of the output of an instance; empty if they cannot be read.
pub async fn last_lines(session: &Session, instance: &str, count: usize) -> Vec<String> {
    let path = format!(
        "/apis/{API_VERSION}/namespaces/{}/instances/{instance}/log?tailLines={count}",
        session.namespace
    );
    let Ok(request) = http::Request::get(path).body(Vec::new()) else { return Vec::new() };
    let text = session.client.request_text(request).await.unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The error of a log request. A 404 for an instance that exists means that the server has no `log`
/// subresource.
fn log_error(what: String, error: &kube::Error) -> CliError {
    match error {
        kube::Error::Api(status) if matches!(status.code, 404 | 405 | 501) => CliError::new(
            Exit::Refused,
            what,
            "the server does not serve logs of instances",
            "use the log service of the platform; `polis up` serves logs itself",
        ),
        other => CliError::request(what, other),
    }
}

fn path(namespace: &str, instance: &str, flags: &Flags, whole: bool) -> String {
    let mut path = format!(
        "/apis/{API_VERSION}/namespaces/{namespace}/instances/{instance}/log?follow={}",
        flags.follow
    );
    if flags.previous {
        path.push_str("&previous=true");
    }
    if let Some(since) = flags.since.filter(|_| !whole) {
        path.push_str(&format!("&sinceSeconds={}", since.as_secs()));
    }
    // Container names are DNS labels. The replacement keeps other names in one query value, which the server
    // refuses.
    if let Some(container) = &flags.container {
        path.push_str(&format!("&container={}", container.replace(['&', '#', ' '], "_")));
    }
    if let Some(tail) = flags.tail.filter(|_| !whole) {
        path.push_str(&format!("&tailLines={tail}"));
    }
    path
}
