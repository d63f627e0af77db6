//! Diagnosis of a workload for `polis why`: what blocks it, since when, who must act, and what to do.
//!
//! The diagnosis follows the data from plane to plane: project → hub → cell → instance → project. For each
//! city it reports only the first deviation, because later steps depend on it. Planes that cannot be read are
//! skipped: the project alone is enough for most problems, because the status is written back to it. A plane
//! that does not respond is a finding of its own, because nothing that the project shows of it is current.
//!
//! A cause that waiting does not resolve is *blocked* from the start; any other state when it has lasted
//! longer than its deadline (`overdue`). There is one finding for each cause (`merge`).

mod draw;
mod merge;
mod overdue;
mod propagation;
mod related;

use std::collections::BTreeMap;

use jiff::Timestamp;
use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::conditions::{
    AVAILABLE, FEDERATED, LOCATIONS_BOUND, PROGRAMMED, QUOTA_GRANTED, READY, RECONCILING,
    REFERENCED_DATA_READY, REPLICAS_READY, RUNNING, STALLED, WITHDRAWN, karmada::SCHEDULED,
};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use polis_api::karmada::ResourceBinding;
use polis_api::reasons::{
    CELL_UNREACHABLE, HUB_UNREACHABLE, INSTANCE_CRASHING, LOCATION_LOST, NETWORK_NOT_FOUND, PENDING_QUOTA,
    SCHEDULING_GATES_PRESENT, STARTING,
};
use polis_api::{ObjectExt, annotations, names};
use polis_core::cities::Cities;
use polis_core::{conditions, contact, instances, ranking, template};
use serde::Serialize;

use super::reasons::{self, Actor};
use super::snapshot::{self, WorkloadSnapshot};
use super::{Severity, state};

use propagation::{
    missing_instances, no_deployment, not_in_cell, not_projected, outdated, removal, spec_changed,
};

pub use draw::draw;
pub use related::{EventNote, RelatedObject, UnreadPlane};

/// The objects of a workload on the hub or in a cell.
#[derive(Clone, Debug, Default)]
pub struct PlaneSnapshot {
    /// Name of the plane in messages: `hub`, `cell dfw`.
    pub name: String,
    /// City of the cell; empty for the hub.
    pub city: String,
    /// Deployments of the workload.
    pub deployments: Vec<WorkloadDeployment>,
    /// Instances of the workload.
    pub instances: Vec<Instance>,
    /// ResourceBindings of the deployments; `None` if they cannot be read.
    pub bindings: Option<Vec<ResourceBinding>>,
}

/// Everything that was read for a diagnosis.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Name of the workload.
    pub name: String,
    /// The time of the diagnosis.
    pub now: Timestamp,
    /// The objects in the project.
    pub snapshot: WorkloadSnapshot,
    /// The cities that the project may use; `None` if they cannot be read.
    pub cities: Option<Cities>,
    /// The objects on the hub; `None` if it was not read.
    pub hub: Option<PlaneSnapshot>,
    /// The objects in each cell that was read.
    pub cells: Vec<PlaneSnapshot>,
    /// Planes that could not be read.
    pub unread: Vec<UnreadPlane>,
    /// Other objects whose conditions explain what the workload waits for.
    pub related: Vec<RelatedObject>,
    /// Events about the objects of the workload.
    pub events: Vec<EventNote>,
    /// The last lines of the output of instances that do not run, by name.
    pub logs: BTreeMap<String, Vec<String>>,
}

/// One deviation from the desired state. The serialised names are part of the `-o json` output.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Name of the workload, city or instance.
    pub about: String,
    /// The plane of the object.
    pub plane: String,
    /// How severe it is.
    pub severity: Severity,
    /// The reason of the condition; empty if the finding is not from a condition.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What it means.
    pub meaning: String,
    /// The message of the condition.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Who must act.
    pub actor: Actor,
    /// What to do.
    pub advice: String,
    /// The last lines of the output of the instance.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
    /// The city; empty if the finding concerns the whole workload.
    #[serde(skip)]
    pub city: String,
    /// How many instances the finding is about.
    #[serde(skip)]
    pub instances: usize,
}

/// The result of a diagnosis.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// Name of the workload or instance.
    pub name: String,
    /// The result in one line.
    pub summary: String,
    /// The deviations, the most severe first.
    pub findings: Vec<Finding>,
    /// The planes that were read.
    pub planes: Vec<String>,
    /// The planes that could not be read, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
}

impl Evidence {
    /// Whether no plane that was read has anything of the workload.
    pub fn is_empty(&self) -> bool {
        let WorkloadSnapshot { workload, deployments, instances } = &self.snapshot;
        let downstream = self.hub.iter().chain(&self.cells);
        workload.is_none()
            && deployments.is_empty()
            && instances.is_empty()
            && downstream.map(|plane| plane.deployments.len() + plane.instances.len()).sum::<usize>() == 0
    }
}

impl Diagnosis {
    /// The severity of the most severe finding.
    pub fn severity(&self) -> Severity {
        self.findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok)
    }
}

/// Diagnoses a workload.
pub fn workload(evidence: &Evidence) -> Diagnosis {
    let snapshot = &evidence.snapshot;
    let name = evidence.name.clone();
    if snapshot.workload.is_none() && snapshot.deployments.is_empty() {
        let summary = format!("{name} is gone from the project");
        return finish(evidence, name, summary, left_behind(evidence));
    }
    let mut findings = workload_findings(evidence);
    let deleting = snapshot.workload.as_ref().is_some_and(ObjectExt::is_deleting);
    for site in snapshot.wanted_sites() {
        if !deleting || snapshot.deployment_at(&site).is_some() {
            findings.extend(city(evidence, &site, None));
        }
    }
    if deleting && !snapshot.deployments.is_empty() {
        // The cities say what the deletion waits for.
        findings.retain(|finding| !finding.city.is_empty());
    }
    for deployment in &snapshot.deployments {
        let site = (deployment.spec.placement_name.clone(), deployment.spec.city_code.clone());
        if !snapshot.wanted_sites().contains(&site) {
            findings.extend(leaving(evidence, deployment));
        }
    }
    let explained = around(evidence, None, !findings.is_empty());
    merge::explain(&mut findings, explained);
    findings.extend(unreachable_planes(evidence));
    if findings.is_empty() {
        findings.extend(of_workload(evidence));
    }
    let (ready, wanted) = snapshot.ready_of_wanted();
    let summary = match (findings.is_empty(), wanted) {
        (true, 0) => format!("{name} is healthy: it has no instances"),
        (true, _) => format!("{name} is healthy: {ready} of {wanted} instances are ready"),
        (false, _) => format!("{name}: {ready} of {wanted} instances are ready"),
    };
    finish(evidence, name, summary, findings)
}

/// Diagnoses one instance.
pub fn instance(evidence: &Evidence, name: &str) -> Diagnosis {
    let snapshot = &evidence.snapshot;
    let found = snapshot.instances.iter().find(|instance| instance.name() == name);
    let deployment = found
        .map(snapshot::deployment_of)
        .and_then(|wanted| snapshot.deployments.iter().find(|deployment| deployment.name() == wanted));
    let mut findings = Vec::new();
    match deployment {
        Some(deployment) => {
            let site = (deployment.spec.placement_name.clone(), deployment.spec.city_code.clone());
            findings.extend(city(evidence, &site, Some(name)));
        }
        None => findings
            .extend(found.map(|instance| of_instance(evidence, instance, "project")).filter(is_problem)),
    }
    findings.extend(unreachable_planes(evidence));
    let summary = match findings.is_empty() {
        true => format!("{name} is healthy"),
        false => format!("{name} is not ready"),
    };
    finish(evidence, name.to_owned(), summary, findings)
}

fn finish(evidence: &Evidence, name: String, summary: String, findings: Vec<Finding>) -> Diagnosis {
    let reviewed = findings.into_iter().map(|finding| overdue::reviewed(finding, evidence.now)).collect();
    let mut findings = merge::of_cities(reviewed);
    findings.sort_by_key(|finding| {
        (std::cmp::Reverse(finding.severity), std::cmp::Reverse(ranking::rank(&finding.reason)))
    });
    let mut planes = vec!["project".to_owned()];
    planes.extend(evidence.hub.iter().chain(&evidence.cells).map(|plane| plane.name.clone()));
    let unread = evidence.unread.iter().map(UnreadPlane::describe).collect();
    Diagnosis { name, summary, findings, planes, unread }
}

/// What is left on the hub and in the cells of a workload that the project has no longer.
fn left_behind(evidence: &Evidence) -> Vec<Finding> {
    let full = evidence.hub.iter().chain(&evidence.cells);
    let full = full.filter(|plane| !plane.deployments.is_empty() || !plane.instances.is_empty());
    let findings = full.map(|plane| {
        let ending = plane.deployments.iter().find_map(|copy| copy.metadata.deletion_timestamp.clone());
        let meaning = format!(
            "The project has no workload of this name any more, and {} still has {} deployments and {} instances of it.",
            plane.name,
            plane.deployments.len(),
            plane.instances.len()
        );
        let advice = "Ask the platform operator to check the connection between hub and cell, and the controllers of the cell: they delete it.";
        // Without a deletion on the way nothing ends it.
        let severity = if ending.is_some() { Severity::Progressing } else { Severity::Blocked };
        Finding {
            severity,
            since: ending.map(|time| time.0),
            city: plane.city.clone(),
            ..without_reason(&plane.name, &plane.name, &meaning, Actor::Operator, advice)
        }
    });
    findings.chain(unreachable_planes(evidence)).collect()
}

/// A plane that does not respond: nothing that is shown of it is current, and no change reaches it.
fn unreachable_planes(evidence: &Evidence) -> Vec<Finding> {
    let silent = evidence.unread.iter().filter(|unread| unread.unreachable);
    let findings = silent.map(|unread| {
        let (reason, meaning) = match unread.city.as_str() {
            "" => (
                HUB_UNREACHABLE,
                "The hub does not respond. Instances keep running, but no change reaches the cities, and what the project shows of them is not current.",
            ),
            _ => (
                CELL_UNREACHABLE,
                "The API server of the cell does not respond. Its instances may keep running, but what the project shows of them is not current.",
            ),
        };
        Finding {
            severity: Severity::Blocked,
            reason: reason.to_owned(),
            message: unread.why.clone(),
            city: unread.city.clone(),
            ..without_reason(
                &unread.plane,
                &unread.plane,
                meaning,
                Actor::Operator,
                "Ask the platform operator to check the API server and the network to it.",
            )
        }
    });
    findings.collect()
}

/// The findings of related objects of a city, or of those that concern the whole workload. `troubled` says
/// whether the city has another finding that they may explain.
fn around(evidence: &Evidence, city: Option<&str>, troubled: bool) -> Vec<Finding> {
    let here = evidence.related.iter().filter(|object| object.city.as_deref() == city);
    let here = here.filter(|object| troubled || object.concerns_healthy());
    let mut findings: Vec<Finding> = here
        .filter_map(|object| object.finding(city.unwrap_or(&evidence.name)).map(|finding| (object, finding)))
        .map(|(_, finding)| Finding { city: city.unwrap_or_default().to_owned(), ..finding })
        .collect();
    // A suspended policy and its Work are one cause.
    let mut seen = std::collections::BTreeSet::new();
    findings.retain(|finding| seen.insert(finding.reason.clone()));
    findings
}

/// A deployment whose city the workload no longer names.
fn leaving(evidence: &Evidence, deployment: &WorkloadDeployment) -> Vec<Finding> {
    let city = deployment.spec.city_code.as_str();
    let mut findings = vec![Finding { city: city.to_owned(), ..removal(evidence, deployment) }];
    findings.extend(around(evidence, Some(city), true));
    let reviewed = findings.into_iter().map(|finding| overdue::reviewed(finding, evidence.now)).collect();
    merge::causes_only(reviewed)
}

/// Findings about the workload as a whole.
fn workload_findings(evidence: &Evidence) -> Vec<Finding> {
    let Some(workload) = &evidence.snapshot.workload else { return Vec::new() };
    let (meta, name) = (&workload.metadata, workload.name());
    if workload.is_deleting() {
        let left = evidence.snapshot.deployments.len();
        let conditions = workload.status.as_ref().map_or(&[][..], |status| &status.conditions);
        if let Some(withdrawn) = conditions::find(conditions, WITHDRAWN).filter(|c| c.status == "False") {
            return vec![from_condition(name, "project", meta, withdrawn)];
        }
        return vec![Finding {
            since: meta.deletion_timestamp.as_ref().map(|time| time.0),
            ..without_reason(
                name,
                "project",
                &format!("The workload is being deleted; {left} deployments are left."),
                Actor::Polis,
                "Wait until its instances have stopped. If it is not deleted, see the cities below.",
            )
        }];
    }
    let status = workload.status.clone().unwrap_or_default();
    let seen = status.observed_generation.or(status.conditions.first().and(meta.generation));
    if seen < meta.generation {
        return vec![Finding {
            since: spec_changed(meta),
            ..without_reason(
                name,
                "project",
                "The workload controller has not reconciled the newest generation yet.",
                Actor::Polis,
                "Wait. If it does not change, the management controllers are not running: ask the platform operator.",
            )
        }];
    }
    // The cities report their own causes. Only a missing network is reported here, because it concerns all
    // cities.
    let own = conditions::find(&status.conditions, AVAILABLE).filter(|condition| condition.status != "True");
    let network = own.filter(|condition| condition.reason == NETWORK_NOT_FOUND);
    let mut findings: Vec<Finding> =
        network.map(|condition| from_condition(name, "project", meta, condition)).into_iter().collect();
    for placement in &status.placements {
        let bound = conditions::find(&placement.conditions, LOCATIONS_BOUND);
        let lost = bound.filter(|bound| bound.status == "False" && bound.reason == LOCATION_LOST);
        findings.extend(lost.map(|lost| from_condition(name, "project", meta, lost)));
    }
    findings
}

/// What the conditions of the workload report although no city has a finding.
fn of_workload(evidence: &Evidence) -> Option<Finding> {
    let workload = evidence.snapshot.workload.as_ref()?;
    let status = workload.status.as_ref()?;
    let placements = status.placements.iter().flat_map(|placement| &placement.conditions);
    let condition = reported(&status.conditions).or_else(|| reported(placements))?;
    Some(from_condition(workload.name(), "project", &workload.metadata, condition))
}

/// The first condition that reports a state which is not the desired one: a cause before a delay.
fn reported<'a>(conditions: impl IntoIterator<Item = &'a Condition>) -> Option<&'a Condition> {
    const DESIRED: [&str; 5] = [AVAILABLE, READY, REPLICAS_READY, REFERENCED_DATA_READY, LOCATIONS_BOUND];
    let deviates = |condition: &&Condition| match condition.type_.as_str() {
        STALLED | RECONCILING => condition.status == "True",
        type_ => DESIRED.contains(&type_) && condition.status != "True",
    };
    conditions.into_iter().filter(deviates).max_by_key(|condition| reasons::severity(&condition.reason))
}

/// The causes in a city. `only` restricts the findings to one instance.
fn city(evidence: &Evidence, site: &(String, String), only: Option<&str>) -> Vec<Finding> {
    let about = if site.0 == "default" { site.1.clone() } else { format!("{} ({})", site.1, site.0) };
    let mut findings = deviations(evidence, site, &about, only);
    let quota = findings.iter().any(|finding| is_quota_denial(&finding.reason));
    let mut explained = around(evidence, Some(&site.1), !findings.is_empty());
    // The claim of an instance repeats what its instance says.
    explained.retain(|finding| !(quota && is_quota_denial(&finding.reason)));
    merge::explain(&mut findings, explained);
    for finding in &mut findings {
        finding.city.clone_from(&site.1);
    }
    let reviewed = findings.into_iter().map(|finding| overdue::reviewed(finding, evidence.now)).collect();
    merge::causes_only(reviewed)
}

fn is_quota_denial(reason: &str) -> bool {
    reason.starts_with("Quota") || reason == PENDING_QUOTA
}

/// The first deviation in a city, in the order of the data flow.
fn deviations(evidence: &Evidence, site: &(String, String), about: &str, only: Option<&str>) -> Vec<Finding> {
    let Some(deployment) = evidence.snapshot.deployment_at(site) else {
        return vec![no_deployment(evidence, site, about)];
    };
    if deployment.is_deleting() {
        return vec![removal(evidence, deployment)];
    }
    // Nothing else that the project shows of the city is current.
    let conditions = deployment.status.iter().flat_map(|status| &status.conditions);
    if let Some(lost) = contact::lost(&conditions.cloned().collect::<Vec<_>>()) {
        return vec![from_condition(about, "project", &deployment.metadata, lost)];
    }
    let name = deployment.name();
    if let Some(finding) = not_in_cell(evidence, deployment, about) {
        return vec![finding];
    }
    let cell = evidence.cells.iter().find(|cell| cell.deployments.iter().any(|d| d.name() == name));
    let (plane, existing): (&str, Vec<&Instance>) = match cell {
        Some(cell) => {
            (&cell.name, cell.instances.iter().filter(|i| snapshot::deployment_of(i) == name).collect())
        }
        None => ("project", evidence.snapshot.instances_of(deployment).collect()),
    };
    let here = |instance: &&&Instance| only.is_none_or(|only| instance.name() == only);
    let mut findings = merge::of_instances(
        existing
            .iter()
            .filter(here)
            .map(|instance| of_instance(evidence, instance, plane))
            .filter(is_problem)
            .collect(),
        about,
    );
    let blocked = |findings: &[Finding]| findings.iter().any(|f| f.severity == Severity::Blocked);
    if !blocked(&findings) && only.is_none() {
        findings.extend(of_deployment(deployment, about));
    }
    if findings.is_empty() && only.is_none() {
        findings.extend(missing_instances(evidence, deployment, &existing, about, plane));
    }
    if findings.is_empty() && cell.is_some() {
        findings.extend(not_projected(evidence, deployment, &existing, only));
    }
    if findings.is_empty() && only.is_none() {
        findings.extend(outdated(evidence, &existing, about, plane));
    }
    if findings.is_empty() && only.is_none() {
        let conditions = deployment.status.iter().flat_map(|status| &status.conditions);
        let deviation = reported(conditions);
        findings.extend(deviation.map(|found| from_condition(about, "project", &deployment.metadata, found)));
    }
    findings
}

/// The cause that the conditions of a deployment report.
fn of_deployment(deployment: &WorkloadDeployment, about: &str) -> Option<Finding> {
    let status = deployment.status.as_ref()?;
    let is = |condition: &&Condition, value: &str| condition.status == value;
    let condition = |kind| conditions::find(&status.conditions, kind);
    let lasting = |condition: &&Condition| reasons::severity(&condition.reason) == Severity::Blocked;
    let unfederated = condition(FEDERATED).filter(|c| is(c, "False"));
    let unknown = condition(READY).filter(|c| is(c, "Unknown"));
    let stalled = condition(STALLED).filter(|c| is(c, "True"));
    let data = condition(REFERENCED_DATA_READY).filter(|c| is(c, "False"));
    let blocked = [AVAILABLE, REPLICAS_READY].into_iter().filter_map(condition);
    let blocked = blocked.filter(|c| is(c, "False")).find(lasting);
    let cause = unfederated.or(unknown).or(data).or(blocked).or(stalled)?;
    let mut finding = from_condition(about, "project", &deployment.metadata, cause);
    if unknown.is_some_and(|unknown| unknown.type_ == cause.type_ && unknown.reason == cause.reason) {
        finding.severity = Severity::Blocked;
        finding.actor = Actor::Operator;
    }
    Some(finding)
}

/// The finding from the conditions of an instance.
fn of_instance(evidence: &Evidence, instance: &Instance, plane: &str) -> Finding {
    let (meta, name) = (&instance.metadata, instance.name());
    let status = instance.status.clone().unwrap_or_default();
    let state = state::of_instance(instance);
    let ready = conditions::find(&status.conditions, READY);
    let mut finding = match ready {
        Some(condition) => from_condition(name, plane, meta, condition),
        None => from_reason(name, plane, polis_api::reasons::PENDING),
    };
    finding.since = since_reason(evidence, instance, &state);
    finding.severity = state.severity;
    // `Ready` says that quota or data is missing; the condition that it derives from says why.
    let gated = [PENDING_QUOTA, SCHEDULING_GATES_PRESENT].contains(&state.reason.as_str());
    if gated && state.word != "stopping" {
        let kinds = [QUOTA_GRANTED, REFERENCED_DATA_READY];
        let deeper = kinds.into_iter().filter_map(|kind| conditions::find(&status.conditions, kind));
        let deeper = deeper.filter(|condition| condition.status != "True");
        let known = deeper.filter(|condition| reasons::entry(&condition.reason).is_some());
        let worst = known.max_by_key(|condition| reasons::severity(&condition.reason));
        if let Some(condition) = worst.filter(|c| reasons::severity(&c.reason) >= state.severity) {
            finding = from_condition(name, plane, meta, condition);
        }
    }
    finding.instances = 1;
    if [INSTANCE_CRASHING, STARTING].contains(&state.reason.as_str()) {
        finding.log = evidence.logs.get(name).cloned().unwrap_or_default();
    }
    if state.word == "stopping" {
        let ending = without_reason(
            name,
            plane,
            "The instance is stopping.",
            Actor::Provider,
            "Wait for the grace period of its containers.",
        );
        return Finding { since: state.since, ..ending };
    }
    // The message of QuotaGranted has the amounts; the derived Ready condition repeats only a part of it.
    let quota =
        conditions::find(&status.conditions, QUOTA_GRANTED).filter(|condition| condition.status == "False");
    if let Some(quota) = quota.filter(|_| state.severity != Severity::Ok && finding.message.is_empty()) {
        finding.message = quota.message.clone();
    }
    if finding.message.is_empty() && state.severity != Severity::Ok {
        let gates = instance.spec.controller.iter().flat_map(|controller| &controller.scheduling_gates);
        let gates: Vec<&str> = gates.map(|gate| gate.name.as_str()).collect();
        if !gates.is_empty() {
            finding.message = format!("scheduling gates: {}", gates.join(", "));
        }
    }
    finding
}

fn is_problem(finding: &Finding) -> bool {
    finding.severity != Severity::Ok
}

/// Since when an instance has its reason. `Ready` keeps its transition time while its reason changes, so the
/// condition that it takes the reason from and the first event with the reason are asked too.
fn since_reason(evidence: &Evidence, instance: &Instance, state: &state::ObjectState) -> Option<Timestamp> {
    if state.word == "stopping" {
        return state.since;
    }
    let conditions = instance.status.iter().flat_map(|status| &status.conditions);
    let source = conditions
        .filter(|condition| {
            [PROGRAMMED, RUNNING, AVAILABLE, QUOTA_GRANTED].contains(&condition.type_.as_str())
        })
        .find(|condition| condition.reason == state.reason && condition.status != "True");
    let transition = source.map(|condition| condition.last_transition_time.0);
    let recorded = related::warned_at(&evidence.events, instance.name(), &state.reason);
    state.since.max(transition).max(recorded)
}

fn from_condition(about: &str, plane: &str, meta: &ObjectMeta, condition: &Condition) -> Finding {
    Finding {
        message: condition.message.clone(),
        since: state::since(meta, Some(condition)),
        ..from_reason(about, plane, &condition.reason)
    }
}

fn from_reason(about: &str, plane: &str, reason: &str) -> Finding {
    let known = reasons::entry(reason);
    Finding {
        about: about.to_owned(),
        plane: plane.to_owned(),
        severity: known.map_or(Severity::Progressing, |entry| entry.severity),
        reason: reason.to_owned(),
        meaning: known.map_or_else(
            || format!("This version of polis does not know the reason {reason}."),
            |entry| entry.meaning.to_owned(),
        ),
        actor: known.map_or(Actor::Provider, |entry| entry.actor),
        advice: known
            .map_or(
                "See the message, and the documentation of the program that set the condition.",
                |entry| entry.advice,
            )
            .to_owned(),
        ..Finding::default()
    }
}

fn without_reason(about: &str, plane: &str, meaning: &str, actor: Actor, advice: &str) -> Finding {
    Finding {
        about: about.to_owned(),
        plane: plane.to_owned(),
        severity: Severity::Progressing,
        reason: String::new(),
        meaning: meaning.to_owned(),
        actor,
        advice: advice.to_owned(),
        ..Finding::default()
    }
}

#[cfg(test)]
mod coverage;
#[cfg(test)]
mod tests;
