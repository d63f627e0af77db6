//! `polis logs`: what instances print, merged across cities.
//!
//! One request per instance, `…/instances/<name>/log`, authorised like every other request. Lines of several instances
//! carry city and ordinal. While following, instances that come later (a restart, a scale) are followed too.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use futures::{AsyncBufReadExt, StreamExt, TryStreamExt, stream::FuturesUnordered};
use polis_api::compute::{API_VERSION, Instance};
use polis_api::kube;
use polis_core::owner;

use crate::exit::{Exit, Fault};
use crate::reach::{NOT_STARTED, Place, Reach};
use crate::terminal;
use crate::view::{age, picture};

/// While following, instances that came meanwhile are looked for this often.
const LOOK: Duration = Duration::from_secs(1);

/// Show what instances print
#[derive(Args)]
#[command(after_help = "Examples:
  polis logs web
  polis logs web --city dfw --since 10m --tail 20")]
pub struct Flags {
    /// Name of a workload or an instance
    name: String,
    /// Go on with what is printed from now on
    #[arg(short, long)]
    follow: bool,
    /// Only from this city; may be given more than once
    #[arg(long = "city", value_name = "CITY")]
    cities: Vec<String>,
    /// Only what is newer than this, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = age::parse)]
    since: Option<Duration>,
    /// Only so many last lines of each instance
    #[arg(long, value_name = "LINES")]
    tail: Option<u64>,
    /// Container, where an instance has several
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,
    #[command(flatten)]
    place: Place,
}

/// See the head of this file.
pub async fn run(flags: Flags) -> Result<Exit, Fault> {
    let reach = Reach::new(&flags.place).await?;
    let mut instances = chosen(&reach, &flags).await?;
    if instances.is_empty() && !flags.follow {
        terminal::remark(format!("{} has no instance there, so nothing is printed.", flags.name));
        return Ok(Exit::Done);
    }
    // One instance asked for by its own name needs no prefix.
    let alone = instances.len() == 1 && owner::name(&instances[0].metadata) == flags.name;
    let mut known = BTreeSet::new();
    let mut told = BTreeSet::new();
    let mut reading = FuturesUnordered::new();
    let mut fresh = false;
    loop {
        for instance in instances {
            if known.insert(identity(&instance)) {
                let prefix = if alone { String::new() } else { prefix(&instance) };
                // What came after the start is shown from its beginning.
                reading.push(read(&reach, &flags, instance, prefix, fresh));
            }
        }
        let ended = match flags.follow {
            false => reading.next().await,
            true => tokio::select! {
                ended = reading.next(), if !reading.is_empty() => ended,
                () = tokio::time::sleep(LOOK) => None,
            },
        };
        match ended.transpose()? {
            Some(Outcome::NotYet { identity, says }) => {
                if told.insert(identity.clone()) {
                    terminal::remark(says);
                }
                known.remove(&identity);
            }
            Some(Outcome::Read) if flags.follow && alone => return Ok(Exit::Done),
            Some(Outcome::Read) => {}
            None if !flags.follow => return Ok(Exit::Done),
            None => {}
        }
        instances = Vec::new();
        if flags.follow {
            fresh = true;
            instances = match chosen(&reach, &flags).await {
                Ok(instances) => instances,
                // What is still being read is read to its end.
                Err(fault) if fault.exit == Exit::NotFound && !reading.is_empty() => Vec::new(),
                Err(fault) if fault.exit == Exit::NotFound => {
                    terminal::remark(format!("{} is gone.", flags.name));
                    return Ok(Exit::Done);
                }
                Err(fault) => return Err(fault),
            };
        }
    }
}

/// Who an instance is: one of the same name that comes later is another.
type Identity = (String, String);

fn identity(instance: &Instance) -> Identity {
    (owner::uid(&instance.metadata).to_owned(), owner::name(&instance.metadata).to_owned())
}

/// What came of reading one instance.
enum Outcome {
    /// It was read to its end.
    Read,
    /// It has not started, so there is nothing to read yet.
    NotYet { identity: Identity, says: String },
}

/// The instances that are asked for.
async fn chosen(reach: &Reach, flags: &Flags) -> Result<Vec<Instance>, Fault> {
    let mut instances = match reach.instance(&flags.name).await? {
        Some(instance) => vec![instance],
        None if reach.has_workload(&flags.name).await? => reach.picture(&flags.name).await?.0.instances,
        None => return Err(reach.nothing_called(&flags.name)),
    };
    let asked = |instance: &Instance| flags.cities.iter().any(|city| city == picture::city_of(instance));
    instances.retain(|instance| flags.cities.is_empty() || asked(instance));
    Ok(instances)
}

/// City and ordinal: what tells the instances of one workload apart.
fn prefix(instance: &Instance) -> String {
    match picture::ordinal(instance) {
        Some(ordinal) => format!("{}-{ordinal} | ", picture::city_of(instance)),
        None => format!("{} | ", owner::name(&instance.metadata)),
    }
}

async fn read(
    reach: &Reach,
    flags: &Flags,
    instance: Instance,
    prefix: String,
    whole: bool,
) -> Result<Outcome, Fault> {
    let name = owner::name(&instance.metadata).to_owned();
    let what = format!("failed to read the log of {name}");
    let request = http::Request::get(path(&reach.namespace, &name, flags, whole)).body(Vec::new());
    let request = request.map_err(|error| Fault::new(Exit::Failed, what.as_str(), error.to_string(), ""))?;
    let lines = match reach.client.request_stream(request).await {
        Ok(lines) => lines,
        Err(kube::Error::Api(status)) if status.reason == NOT_STARTED => {
            if flags.follow {
                tokio::time::sleep(LOOK).await;
            }
            return Ok(Outcome::NotYet { identity: identity(&instance), says: status.message.clone() });
        }
        // It has gone between two looks.
        Err(kube::Error::Api(status)) if status.code == 404 && reach.instance(&name).await?.is_none() => {
            return Ok(Outcome::Read);
        }
        Err(error) => return Err(explained(what, &error)),
    };
    let mut lines = lines.lines();
    loop {
        match lines.try_next().await {
            Ok(Some(line)) => terminal::say(format!("{prefix}{line}")),
            Ok(None) => return Ok(Outcome::Read),
            // The end of an instance that is followed ends its stream, which is no fault.
            Err(_) if flags.follow => return Ok(Outcome::Read),
            Err(error) => {
                let next = "repeat; what was shown is complete up to here";
                return Err(Fault::new(Exit::Failed, what, error.to_string(), next));
            }
        }
    }
}

/// A server that has the instance and not its log does not keep logs.
fn explained(what: String, error: &kube::Error) -> Fault {
    match error {
        kube::Error::Api(status) if matches!(status.code, 404 | 405 | 501) => Fault::new(
            Exit::Refused,
            what,
            "this server does not offer logs of instances",
            "read them where the platform collects them; `polis up` offers them here",
        ),
        other => Fault::request(what, other),
    }
}

fn path(namespace: &str, instance: &str, flags: &Flags, whole: bool) -> String {
    let mut path = format!(
        "/apis/{API_VERSION}/namespaces/{namespace}/instances/{instance}/log?follow={}",
        flags.follow
    );
    if let Some(since) = flags.since.filter(|_| !whole) {
        path.push_str(&format!("&sinceSeconds={}", since.as_secs()));
    }
    // Names of containers are DNS labels; anything else is left for the server to refuse, in one piece.
    if let Some(container) = &flags.container {
        path.push_str(&format!("&container={}", container.replace(['&', '#', ' '], "_")));
    }
    if let Some(tail) = flags.tail.filter(|_| !whole) {
        path.push_str(&format!("&tailLines={tail}"));
    }
    path
}
