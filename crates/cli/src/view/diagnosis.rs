//! Diagnosis of a workload for `polis why`: what blocks it, since when, who must act, and what to do.
//!
//! The diagnosis follows the data from plane to plane: project → hub → cell → instance → project. For each
//! city it reports only the first deviation, because later steps depend on it. Planes that cannot be read are
//! skipped: the project alone is enough for most problems, because the status is written back to it.

use jiff::Timestamp;
use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::conditions::{AVAILABLE, QUOTA_GRANTED, READY, REPLICAS_READY, karmada::SCHEDULED};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use polis_api::karmada::ResourceBinding;
use polis_api::{ObjectExt, annotations, names};
use polis_core::cities::Cities;
use polis_core::{conditions, instances, ranking, template};
use serde::Serialize;

use super::escape::visible;
use super::reasons::{self, Actor};
use super::snapshot::{self, WorkloadSnapshot};
use super::{Severity, age, state};

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
    /// The objects in the project.
    pub snapshot: WorkloadSnapshot,
    /// The cities that the project may use; `None` if they cannot be read.
    pub cities: Option<Cities>,
    /// The objects on the hub; `None` if it was not read.
    pub hub: Option<PlaneSnapshot>,
    /// The objects in each cell that was read.
    pub cells: Vec<PlaneSnapshot>,
    /// Planes that could not be read, with the reason.
    pub unread: Vec<String>,
}

/// One deviation from the desired state. The serialised names are part of the `-o json` output.
#[derive(Clone, Debug, PartialEq, Serialize)]
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

impl Diagnosis {
    /// The severity of the most severe finding.
    pub fn severity(&self) -> Severity {
        self.findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok)
    }
}

/// Diagnoses a workload.
pub fn workload(evidence: &Evidence) -> Diagnosis {
    let mut findings = Vec::new();
    let snapshot = &evidence.snapshot;
    let name = snapshot.workload.as_ref().map(|w| w.name().to_owned()).unwrap_or_default();
    findings.extend(workload_findings(evidence));
    for site in snapshot.wanted_sites() {
        findings.extend(city(evidence, &site, None));
    }
    for deployment in &snapshot.deployments {
        let site = (deployment.spec.placement_name.clone(), deployment.spec.city_code.clone());
        if !snapshot.wanted_sites().contains(&site) {
            findings.push(removal(evidence, deployment));
        }
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
        None => findings.extend(found.map(|instance| of_instance(instance, "project")).filter(is_problem)),
    }
    let summary = match findings.is_empty() {
        true => format!("{name} is healthy"),
        false => format!("{name} is not ready"),
    };
    finish(evidence, name.to_owned(), summary, findings)
}

fn finish(evidence: &Evidence, name: String, summary: String, mut findings: Vec<Finding>) -> Diagnosis {
    findings.sort_by_key(|finding| {
        (std::cmp::Reverse(finding.severity), std::cmp::Reverse(ranking::rank(&finding.reason)))
    });
    let mut planes = vec!["project".to_owned()];
    planes.extend(evidence.hub.iter().chain(&evidence.cells).map(|plane| plane.name.clone()));
    Diagnosis { name, summary, findings, planes, unread: evidence.unread.clone() }
}

/// Findings about the workload as a whole.
fn workload_findings(evidence: &Evidence) -> Vec<Finding> {
    let Some(workload) = &evidence.snapshot.workload else { return Vec::new() };
    let (meta, name) = (&workload.metadata, workload.name());
    if workload.is_deleting() {
        let left = evidence.snapshot.deployments.len();
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
            since: meta.creation_timestamp.as_ref().map(|time| time.0).filter(|_| workload.status.is_none()),
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
    own.filter(|condition| condition.reason == polis_api::reasons::NETWORK_NOT_FOUND)
        .map(|condition| from_condition(name, "project", meta, condition))
        .into_iter()
        .collect()
}

/// The first deviation in a city. `only` restricts the findings to one instance.
fn city(evidence: &Evidence, site: &(String, String), only: Option<&str>) -> Vec<Finding> {
    let about = if site.0 == "default" { site.1.clone() } else { format!("{} ({})", site.1, site.0) };
    let Some(deployment) = evidence.snapshot.deployment_at(site) else {
        return vec![no_deployment(evidence, site, &about)];
    };
    if deployment.is_deleting() {
        return vec![removal(evidence, deployment)];
    }
    let name = deployment.name();
    if let Some(finding) = not_in_cell(evidence, deployment, &about) {
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
    let mut findings = grouped(
        existing
            .iter()
            .filter(here)
            .map(|instance| of_instance(instance, plane))
            .filter(is_problem)
            .collect(),
        &about,
    );
    if findings.is_empty() && only.is_none() {
        findings.extend(missing_instances(evidence, deployment, &existing, &about, plane));
    }
    if findings.is_empty() && cell.is_some() {
        findings.extend(not_projected(evidence, deployment, &existing, only));
    }
    if findings.is_empty() && only.is_none() {
        findings.extend(outdated(evidence, &existing, &about, plane));
    }
    findings
}

/// The finding about a city without a deployment in the project.
fn no_deployment(evidence: &Evidence, site: &(String, String), about: &str) -> Finding {
    if let Some(cities) = evidence.cities.as_ref().filter(|cities| !cities.allows(&site.1)) {
        let mut finding = from_reason(about, "project", ranking::NO_MATCHING_LOCATIONS);
        finding.message = cities.describe();
        return finding;
    }
    let state = super::tree::missing(&evidence.snapshot, site);
    if !state.reason.is_empty() && reasons::severity(&state.reason) == Severity::Blocked {
        let mut finding = from_reason(about, "project", &state.reason);
        (finding.message, finding.since) = (state.message, state.since);
        return finding;
    }
    without_reason(
        about,
        "project",
        "The deployment for this city has not been created yet.",
        Actor::Polis,
        "Wait. If it does not change, the management controllers are not running: ask the platform operator.",
    )
}

/// The finding about a deployment that has not reached its cell.
fn not_in_cell(evidence: &Evidence, deployment: &WorkloadDeployment, about: &str) -> Option<Finding> {
    let (meta, name) = (&deployment.metadata, deployment.name());
    let made = meta.creation_timestamp.as_ref().map(|time| time.0);
    let waiting = |finding: Finding| Some(Finding { since: made, ..finding });
    // A deployment with a status from the cell has reached it.
    let reported = deployment.status.as_ref().is_some_and(|status| !status.conditions.is_empty());
    if !reported && deployment.annotation(annotations::FEDERATION_NAMESPACE).is_none() {
        return waiting(without_reason(
            about,
            "project",
            "The deployment has not been copied to the hub yet.",
            Actor::Polis,
            "Wait. If it does not change, the federator is not running or cannot reach the hub: ask the platform operator.",
        ));
    }
    if let Some(hub) = &evidence.hub {
        if !hub.deployments.iter().any(|copy| copy.name() == name) {
            return waiting(without_reason(
                about,
                "hub",
                "The hub has no copy of the deployment yet.",
                Actor::Polis,
                "Wait. If it does not change, the federator cannot write to the hub: ask the platform operator to read its log.",
            ));
        }
        if let Some(finding) = unbound(hub, name, about) {
            return waiting(finding);
        }
    }
    let cell =
        evidence.cells.iter().find(|cell| cell.city.eq_ignore_ascii_case(&deployment.spec.city_code))?;
    if !cell.deployments.iter().any(|copy| copy.name() == name) {
        return waiting(without_reason(
            about,
            &cell.name,
            "The deployment is on the hub and not in the cell yet.",
            Actor::Federation,
            "Wait. If it does not change, the hub cannot reach the cell: ask the platform operator to check its Cluster on the hub.",
        ));
    }
    None
}

/// The finding about a deployment on the hub that is not scheduled to a cell.
fn unbound(hub: &PlaneSnapshot, name: &str, about: &str) -> Option<Finding> {
    let bindings = hub.bindings.as_ref()?;
    let wanted = names::binding("WorkloadDeployment", name);
    let Some(binding) = bindings.iter().find(|binding| binding.name() == wanted) else {
        return Some(without_reason(
            about,
            "hub",
            "The deployment on the hub has no ResourceBinding yet: no PropagationPolicy selects it.",
            Actor::Federation,
            "Wait. If it does not change, the PropagationPolicy of the city is missing on the hub: ask the platform operator.",
        ));
    };
    if !binding.spec.clusters.is_empty() {
        return None;
    }
    let status = binding.status.clone().unwrap_or_default();
    let scheduled = conditions::find(&status.conditions, SCHEDULED);
    Some(Finding {
        severity: Severity::Blocked,
        message: scheduled.map(|condition| condition.message.clone()).unwrap_or_default(),
        ..without_reason(
            about,
            "hub",
            "No Cluster on the hub has the label of this city, so the deployment cannot be scheduled.",
            Actor::Operator,
            "Ask the platform operator to join a cell with the label of the city, or remove the city from the workload.",
        )
    })
}

/// The finding about a deployment that is being deleted, on the last plane that still has it.
fn removal(evidence: &Evidence, deployment: &WorkloadDeployment) -> Finding {
    let name = deployment.name();
    let holds = |plane: &&PlaneSnapshot| plane.deployments.iter().any(|copy| copy.name() == name);
    let since = deployment.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    let city = deployment.spec.city_code.as_str();
    let finding = match (evidence.cells.iter().find(holds), evidence.hub.iter().find(holds)) {
        (Some(cell), _) => {
            let left = cell.instances.iter().filter(|i| snapshot::deployment_of(i) == name).count();
            without_reason(
                city,
                &cell.name,
                &format!("The deployment is being deleted; {left} instances are stopping in the cell."),
                Actor::Provider,
                "Wait for the grace period of the instances. If they do not stop, the provider in the cell does not respond: ask the platform operator.",
            )
        }
        (None, Some(_)) => without_reason(
            city,
            "hub",
            "The deployment is being deleted; it is gone from the cell and still on the hub.",
            Actor::Federation,
            "Wait. If it does not change, the hub cannot reach the cell: ask the platform operator.",
        ),
        (None, None) => without_reason(
            city,
            "project",
            "The deployment is being deleted.",
            Actor::Polis,
            "Wait until it is gone from the cell and the hub. If it does not change, the cell does not respond: ask the platform operator.",
        ),
    };
    Finding { since, ..finding }
}

/// The finding about a city with fewer instances than desired, all of them ready.
fn missing_instances(
    evidence: &Evidence,
    deployment: &WorkloadDeployment,
    existing: &[&Instance],
    about: &str,
    plane: &str,
) -> Option<Finding> {
    let site = (deployment.spec.placement_name.clone(), deployment.spec.city_code.clone());
    let wanted = evidence.snapshot.wanted_at(&site) as usize;
    if existing.len() >= wanted {
        return None;
    }
    let status = deployment.status.clone().unwrap_or_default();
    let false_conditions = [AVAILABLE, REPLICAS_READY]
        .iter()
        .filter_map(|kind| conditions::find(&status.conditions, kind))
        .filter(|condition| condition.status != "True");
    if let Some(condition) = ranking::worst(false_conditions, |condition| condition.reason.as_str()) {
        return Some(from_condition(about, plane, &deployment.metadata, condition));
    }
    Some(without_reason(
        about,
        plane,
        &format!(
            "{} of {wanted} instances exist. They are created one at a time, each after the previous one is ready.",
            existing.len()
        ),
        Actor::Polis,
        "Wait. If it does not change, the controllers of the cell are not running: ask the platform operator.",
    ))
}

/// The finding about an instance that is ready in the cell and not in the project.
fn not_projected(
    evidence: &Evidence,
    deployment: &WorkloadDeployment,
    existing: &[&Instance],
    only: Option<&str>,
) -> Option<Finding> {
    let projected: Vec<&str> = evidence
        .snapshot
        .instances_of(deployment)
        .filter(|instance| instances::is_ready(instance))
        .map(|instance| instance.name())
        .collect();
    let missing = existing
        .iter()
        .map(|instance| instance.name())
        .find(|name| only.is_none_or(|only| only == *name) && !projected.contains(name))?;
    Some(without_reason(
        missing,
        "project",
        "The instance is ready in the cell, and its status has not been written back to the project yet.",
        Actor::Polis,
        "Wait. If it does not change, the write-back of the cell or the projector is not running: ask the platform operator.",
    ))
}

/// The finding about instances that are ready and have an older template.
fn outdated(evidence: &Evidence, existing: &[&Instance], about: &str, plane: &str) -> Option<Finding> {
    let workload = evidence.snapshot.workload.as_ref()?;
    let hash = template::hash(&workload.spec.template);
    let old = existing
        .iter()
        .filter(|instance| !template::is_current(instance, &workload.spec.template, &hash))
        .count();
    (old > 0).then(|| {
        without_reason(
            about,
            plane,
            &format!("{old} of {} instances still run the previous template.", existing.len()),
            Actor::Polis,
            "Wait: instances are replaced one at a time, the highest ordinal first. `polis rollout status NAME` shows the progress.",
        )
    })
}

/// The finding from the conditions of an instance.
fn of_instance(instance: &Instance, plane: &str) -> Finding {
    let (meta, name) = (&instance.metadata, instance.name());
    let status = instance.status.clone().unwrap_or_default();
    let state = state::of_instance(instance);
    let ready = conditions::find(&status.conditions, READY);
    let mut finding = match ready {
        Some(condition) => from_condition(name, plane, meta, condition),
        None => from_reason(name, plane, polis_api::reasons::PENDING),
    };
    finding.since = state.since;
    finding.severity = state.severity;
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

/// Merges equal findings about instances of a city.
fn grouped(findings: Vec<Finding>, about: &str) -> Vec<Finding> {
    let mut groups: Vec<(Finding, usize)> = Vec::new();
    for finding in findings {
        let alike = |group: &&mut (Finding, usize)| {
            (&group.0.reason, &group.0.message, &group.0.meaning)
                == (&finding.reason, &finding.message, &finding.meaning)
        };
        match groups.iter_mut().find(alike) {
            Some((first, count)) => {
                *count += 1;
                first.since = first.since.min(finding.since);
            }
            None => groups.push((finding, 1)),
        }
    }
    let named = |(mut finding, count): (Finding, usize)| {
        finding.about = match count {
            1 => format!("{about}, {}", finding.about),
            _ => format!("{about}, {count} instances"),
        };
        finding
    };
    groups.into_iter().map(named).collect()
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
        message: String::new(),
        since: None,
        actor: known.map_or(Actor::Provider, |entry| entry.actor),
        advice: known
            .map_or(
                "See the message, and the documentation of the program that set the condition.",
                |entry| entry.advice,
            )
            .to_owned(),
    }
}

fn without_reason(about: &str, plane: &str, meaning: &str, actor: Actor, advice: &str) -> Finding {
    Finding {
        about: about.to_owned(),
        plane: plane.to_owned(),
        severity: Severity::Progressing,
        reason: String::new(),
        meaning: meaning.to_owned(),
        message: String::new(),
        since: None,
        actor,
        advice: advice.to_owned(),
    }
}

/// Renders the diagnosis. `paint` colours a heading by severity. Control characters are visible on a
/// terminal, which is where `width` is set.
pub fn draw(
    diagnosis: &Diagnosis,
    now: Timestamp,
    width: Option<u16>,
    paint: impl Fn(Severity, &str) -> String,
) -> String {
    let shown = |words: &str| match width {
        Some(_) => visible(words).into_owned(),
        None => words.to_owned(),
    };
    let mut text = paint(diagnosis.severity(), &diagnosis.summary);
    text.push('\n');
    for finding in &diagnosis.findings {
        let word = if finding.severity == Severity::Blocked { "blocked" } else { "progressing" };
        let since = finding.since.map(|_| format!(" for {}", age::since_or_dash(finding.since, now)));
        let head = format!("{}: {word}{}", finding.about, since.unwrap_or_default());
        text.push_str(&format!("\n{}\n", paint(finding.severity, &head)));
        let meaning = match finding.reason.as_str() {
            "" => finding.meaning.clone(),
            reason => format!("{} ({reason})", finding.meaning.trim_end_matches('.')),
        };
        let name = diagnosis.name.as_str();
        let advice =
            finding.advice.replace("INSTANCE", instance_in(&finding.about, name)).replace("NAME", name);
        let lines = [
            ("what", meaning),
            ("message", finding.message.clone()),
            ("plane", finding.plane.clone()),
            ("action", finding.actor.describe().to_owned()),
            ("to do", advice),
        ];
        for (label, words) in lines.iter().filter(|(_, words)| !words.is_empty()) {
            text.push_str(&labelled(label, &shown(words), width));
        }
    }
    if !diagnosis.findings.is_empty() || !diagnosis.unread.is_empty() {
        text.push_str(&format!("\nPlanes read: {}.", shown(&diagnosis.planes.join(", "))));
    }
    for plane in &diagnosis.unread {
        text.push_str(&format!("\nNot read: {}.", shown(plane)));
    }
    text
}

/// The instance of a finding, otherwise the workload. `polis logs` accepts both.
fn instance_in<'a>(about: &'a str, name: &'a str) -> &'a str {
    about.split_once(", ").map(|(_, instance)| instance).filter(|i| !i.contains(' ')).unwrap_or(name)
}

/// One labelled line; the text is wrapped beside the label.
fn labelled(label: &str, words: &str, width: Option<u16>) -> String {
    const INDENT: usize = 10;
    let columns = width.map_or(usize::MAX, |width| usize::from(width).saturating_sub(INDENT).max(20));
    let mut text = format!("  {label:<8}");
    let mut used = 0;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > columns {
            text.push_str(&format!("\n{:INDENT$}", ""));
            used = 0;
        }
        if used > 0 {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += length;
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests;
