//! `polis why`: prints what blocks a workload or an instance, since when, who must act, and what to do.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use jiff::Timestamp;
use polis_api::compute::Instance;
use polis_api::k8s_openapi::api::events::v1::Event;
use polis_api::kube::Api;
use polis_api::kube::api::ListParams;
use polis_api::milo::Project;
use polis_api::networking::LocationBinding;
use polis_api::quota::{ResourceClaim, ResourceGrant};
use polis_api::reasons::{INSTANCE_CRASHING, STARTING};
use polis_api::{ObjectExt, names};
use polis_core::cities::Cities;

use crate::exit::{CliError, Exit};
use crate::session::{DownstreamSnapshot, Session, optional};
use crate::terminal;
use crate::verbs::{ListFlags, logs};
use crate::view::diagnosis::{self, EventNote, Evidence, RelatedObject, UnreadPlane};
use crate::view::snapshot::WorkloadSnapshot;
use crate::view::{Severity, snapshot, state};

/// The plane of the user's objects, as in messages.
const PROJECT: &str = "project";
/// Most events that are read. They only refine since when a state lasts.
const MAX_EVENTS: u32 = 2000;
/// Most instances whose output is read, and how many lines of each.
const MAX_LOGS: usize = 3;
const LOG_LINES: usize = 3;

/// Show what blocks a workload or an instance, and what to do
///
/// Reads the project, and the hub and the cells if the kubeconfig has contexts for them. Exit code 7 if
/// something is blocked or has lasted too long.
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
            None => (name.clone(), true),
        },
    };
    let evidence = gather(&session, &workload).await?;
    if evidence.is_empty() {
        return Err(session.not_found(name));
    }
    let diagnosis =
        if is_workload { diagnosis::workload(&evidence) } else { diagnosis::instance(&evidence, name) };
    flags.list.output.one_styled("workload", &diagnosis, |_| {
        diagnosis::draw(&diagnosis, evidence.now, terminal::width(), terminal::heading)
    })?;
    Ok(if diagnosis.severity() == Severity::Blocked { Exit::Unhealthy } else { Exit::Done })
}

async fn gather(session: &Session, workload: &str) -> Result<Evidence, CliError> {
    let (snapshot, _) = session.snapshot_if_any(workload).await?;
    let DownstreamSnapshot { hub, cells, mut unread, mut related } = session.downstream(workload).await;
    let cities = match optional(session.all::<LocationBinding>(), "cities").await {
        Ok(Some(bindings)) => Some(Cities::bound(&bindings).0),
        Ok(None) => Some(Cities::Any),
        Err(error) => {
            unread.push(UnreadPlane::refused("LocationBindings of the project", error.why));
            None
        }
    };
    related.extend(of_quota(session, &snapshot).await);
    related.extend(of_project(session).await);
    let events = events(session, &snapshot).await;
    let logs = logs(session, &snapshot).await;
    let (name, now) = (workload.to_owned(), Timestamp::now());
    Ok(Evidence { name, now, snapshot, cities, hub, cells, unread, related, events, logs })
}

/// The quota claims of the instances, and the grants of the project. What may not be read is left out: the
/// instances repeat what their claims say.
async fn of_quota(session: &Session, snapshot: &WorkloadSnapshot) -> Vec<RelatedObject> {
    let (claims, grants) = futures::join!(
        optional(session.api::<ResourceClaim>(), "claims"),
        optional(session.all::<ResourceGrant>(), "grants"),
    );
    let city_of = |claim: &ResourceClaim| {
        let of_claim = |instance: &&Instance| names::resource_claim(instance.name()) == claim.name();
        snapshot.instances.iter().find(of_claim).map(|instance| snapshot::city_of(instance).to_owned())
    };
    let claims = claims.ok().flatten().unwrap_or_default();
    let claims = claims.iter().filter_map(|claim| {
        let conditions = claim.status.as_ref().map(|status| &*status.conditions);
        Some(RelatedObject::of(PROJECT, Some(&city_of(claim)?), "ResourceClaim", claim, conditions))
    });
    let grants = grants.ok().flatten().unwrap_or_default();
    let grants = grants.iter().map(|grant| {
        let conditions = grant.status.as_ref().map(|status| &*status.conditions);
        RelatedObject::of(PROJECT, None, "ResourceGrant", grant, conditions)
    });
    claims.chain(grants).collect()
}

/// The Project, if its plane may be read: a project that is being deleted takes its workloads along.
async fn of_project(session: &Session) -> Option<RelatedObject> {
    let name = session.project.as_deref()?;
    let projects = Api::<Project>::all(session.root().await.ok()?);
    let project = projects.get_opt(name).await.ok()??;
    let conditions = project.status.as_ref().map(|status| &*status.conditions);
    Some(RelatedObject::of("platform", None, "Project", &project, conditions))
}

/// The events about the objects of the workload in the project.
async fn events(session: &Session, snapshot: &WorkloadSnapshot) -> Vec<EventNote> {
    let events = session.api::<Event>().list(&ListParams::default().limit(MAX_EVENTS)).await;
    let ours: BTreeSet<&str> = snapshot.instances.iter().map(ObjectExt::name).collect();
    let notes = events.map(|list| list.items).unwrap_or_default().into_iter().filter_map(|event| {
        let about = event.regarding.and_then(|object| object.name).filter(|name| ours.contains(&**name))?;
        Some(EventNote {
            about,
            reason: event.reason.unwrap_or_default(),
            warning: event.type_.as_deref() == Some("Warning"),
            first: event.event_time.map(|time| time.0),
        })
    });
    notes.collect()
}

/// The last lines of a few instances that do not run although they were started.
async fn logs(session: &Session, snapshot: &WorkloadSnapshot) -> BTreeMap<String, Vec<String>> {
    let fails = |instance: &&Instance| {
        [INSTANCE_CRASHING, STARTING].contains(&state::of_instance(instance).reason.as_str())
    };
    let failing = snapshot.instances.iter().filter(fails).take(MAX_LOGS);
    let read = failing.map(async |instance| {
        let lines = logs::last_lines(session, instance.name(), LOG_LINES).await;
        (instance.name().to_owned(), lines)
    });
    futures::future::join_all(read).await.into_iter().collect()
}
