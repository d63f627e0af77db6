//! `polis why`: where a workload stands, what blocks it, since when, whose turn it is, what to do.
//!
//! The way of the data is walked plane by plane: project → hub → cell → instance → back. In each city the first thing
//! that is not as it should be is told; what lies behind it is not known yet and would only confuse. Planes that may not
//! be read are passed over: the project alone answers most questions, because status flows back to it.

use jiff::Timestamp;
use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::conditions::{AVAILABLE, QUOTA_GRANTED, READY, REPLICAS_READY, karmada::SCHEDULED};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use polis_api::karmada::ResourceBinding;
use polis_api::{annotations, names};
use polis_core::cities::Cities;
use polis_core::{conditions, instances, metadata, owner, ranking, template};
use serde::Serialize;

use super::picture::{self, Picture};
use super::reasons::{self, Turn};
use super::{Mood, age, state};

/// What was seen of a workload on a plane beyond its project.
#[derive(Clone, Debug, Default)]
pub struct Beyond {
    /// What the plane is called: `hub`, `cell dfw`.
    pub name: String,
    /// The city that a cell serves; empty for the hub.
    pub city: String,
    /// The workload's deployments there.
    pub deployments: Vec<WorkloadDeployment>,
    /// Their instances there.
    pub instances: Vec<Instance>,
    /// Bindings of the deployments; none where they cannot be read.
    pub bindings: Option<Vec<ResourceBinding>>,
}

/// Everything that could be read.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// The project.
    pub picture: Picture,
    /// The cities that the project may use; none when that cannot be read.
    pub cities: Option<Cities>,
    /// The hub.
    pub hub: Option<Beyond>,
    /// Cells.
    pub cells: Vec<Beyond>,
    /// Planes that could not be read, with the reason.
    pub unread: Vec<String>,
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// What it is about: a workload, a city, an instance.
    pub about: String,
    /// The plane where it was seen.
    pub plane: String,
    /// How bad it is.
    pub mood: Mood,
    /// The reason in the API, where there is one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What it means.
    pub means: String,
    /// What the object says itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub says: String,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Whose turn it is.
    pub turn: Turn,
    /// What to do.
    pub advice: String,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// What was asked about.
    pub name: String,
    /// The answer in one line.
    pub summary: String,
    /// What is not as it should be, the worst first.
    pub findings: Vec<Finding>,
    /// The planes that were looked at.
    pub planes: Vec<String>,
    /// The planes that could not be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
}

impl Diagnosis {
    /// How bad it is.
    pub fn mood(&self) -> Mood {
        self.findings.iter().map(|finding| finding.mood).max().unwrap_or(Mood::Good)
    }
}

/// Diagnoses a workload.
pub fn workload(evidence: &Evidence) -> Diagnosis {
    let mut findings = Vec::new();
    let picture = &evidence.picture;
    let name = picture.workload.as_ref().map(|w| owner::name(&w.metadata).to_owned()).unwrap_or_default();
    findings.extend(whole(evidence));
    for site in picture.wanted_sites() {
        findings.extend(city(evidence, &site, None));
    }
    for deployment in &picture.deployments {
        let site = (deployment.spec.placement_name.clone(), deployment.spec.city_code.clone());
        if !picture.wanted_sites().contains(&site) {
            findings.push(leaving(evidence, deployment));
        }
    }
    let (ready, wanted) = picture.ready_of_wanted();
    let summary = match (findings.is_empty(), wanted) {
        (true, 0) => format!("{name} is as it should be: no instance is wanted"),
        (true, _) => format!("{name} is as it should be: {ready} of {wanted} instances are ready"),
        (false, _) => format!("{name}: {ready} of {wanted} instances are ready"),
    };
    finish(evidence, name, summary, findings)
}

/// Diagnoses one instance.
pub fn instance(evidence: &Evidence, name: &str) -> Diagnosis {
    let picture = &evidence.picture;
    let found = picture.instances.iter().find(|instance| owner::name(&instance.metadata) == name);
    let deployment = found.map(picture::deployment_of).and_then(|wanted| {
        picture.deployments.iter().find(|deployment| owner::name(&deployment.metadata) == wanted)
    });
    let mut findings = Vec::new();
    match deployment {
        Some(deployment) => {
            let site = (deployment.spec.placement_name.clone(), deployment.spec.city_code.clone());
            findings.extend(city(evidence, &site, Some(name)));
        }
        None => findings.extend(found.map(|instance| of_instance(instance, "project")).filter(is_wrong)),
    }
    let summary = match findings.is_empty() {
        true => format!("{name} is as it should be"),
        false => format!("{name} is not ready"),
    };
    finish(evidence, name.to_owned(), summary, findings)
}

fn finish(evidence: &Evidence, name: String, summary: String, mut findings: Vec<Finding>) -> Diagnosis {
    findings.sort_by_key(|finding| {
        (std::cmp::Reverse(finding.mood), std::cmp::Reverse(ranking::rank(&finding.reason)))
    });
    let mut planes = vec!["project".to_owned()];
    planes.extend(evidence.hub.iter().chain(&evidence.cells).map(|plane| plane.name.clone()));
    Diagnosis { name, summary, findings, planes, unread: evidence.unread.clone() }
}

/// What is wrong with the workload as a whole.
fn whole(evidence: &Evidence) -> Vec<Finding> {
    let Some(workload) = &evidence.picture.workload else { return Vec::new() };
    let (meta, name) = (&workload.metadata, owner::name(&workload.metadata));
    if owner::is_deleting(meta) {
        let left = evidence.picture.deployments.len();
        return vec![Finding {
            since: meta.deletion_timestamp.as_ref().map(|time| time.0),
            ..own_words(
                name,
                "project",
                &format!("It is being deleted and waits for {left} deployments to go."),
                Turn::Polis,
                "Wait: everything that runs is ended first. If it stays, look at its cities below.",
            )
        }];
    }
    let status = workload.status.clone().unwrap_or_default();
    let seen = status.observed_generation.or(status.conditions.first().and(meta.generation));
    if seen < meta.generation {
        return vec![Finding {
            since: meta.creation_timestamp.as_ref().map(|time| time.0).filter(|_| workload.status.is_none()),
            ..own_words(
                name,
                "project",
                "The workload controller has not looked at the newest version yet.",
                Turn::Polis,
                "Wait a moment. If it stays, the management controllers are not running: the operator starts them.",
            )
        }];
    }
    // What is true of the whole is not repeated for each city: only a cause that no city can name is told here.
    let own = conditions::find(&status.conditions, AVAILABLE).filter(|condition| condition.status != "True");
    own.filter(|condition| condition.reason == polis_api::reasons::NETWORK_NOT_FOUND)
        .map(|condition| from_condition(name, "project", meta, condition))
        .into_iter()
        .collect()
}

/// What is wrong in a city: the first thing on the way of the data. `only` keeps to one instance.
fn city(evidence: &Evidence, site: &(String, String), only: Option<&str>) -> Vec<Finding> {
    let about = if site.0 == "default" { site.1.clone() } else { format!("{} ({})", site.1, site.0) };
    let Some(deployment) = evidence.picture.deployment_at(site) else {
        return vec![not_made(evidence, site, &about)];
    };
    if owner::is_deleting(&deployment.metadata) {
        return vec![leaving(evidence, deployment)];
    }
    let name = owner::name(&deployment.metadata);
    if let Some(finding) = on_the_way(evidence, deployment, &about) {
        return vec![finding];
    }
    let cell =
        evidence.cells.iter().find(|cell| cell.deployments.iter().any(|d| owner::name(&d.metadata) == name));
    let (plane, standing): (&str, Vec<&Instance>) = match cell {
        Some(cell) => {
            (&cell.name, cell.instances.iter().filter(|i| picture::deployment_of(i) == name).collect())
        }
        None => ("project", evidence.picture.instances_of(deployment).collect()),
    };
    let here = |instance: &&&Instance| only.is_none_or(|only| owner::name(&instance.metadata) == only);
    let mut findings = grouped(
        standing.iter().filter(here).map(|instance| of_instance(instance, plane)).filter(is_wrong).collect(),
        &about,
    );
    if findings.is_empty() && only.is_none() {
        findings.extend(too_few(evidence, deployment, &standing, &about, plane));
    }
    if findings.is_empty() && cell.is_some() {
        findings.extend(not_home(evidence, deployment, &standing, only));
    }
    if findings.is_empty() && only.is_none() {
        findings.extend(outdated(evidence, &standing, &about, plane));
    }
    findings
}

/// A city without a deployment in the project.
fn not_made(evidence: &Evidence, site: &(String, String), about: &str) -> Finding {
    if let Some(cities) = evidence.cities.as_ref().filter(|cities| !cities.allow(&site.1)) {
        let mut finding = from_reason(about, "project", ranking::NO_MATCHING_LOCATIONS);
        finding.says = cities.in_words();
        return finding;
    }
    let state = super::tree::missing(&evidence.picture, site);
    if !state.reason.is_empty() && reasons::mood(&state.reason) == Mood::Stuck {
        let mut finding = from_reason(about, "project", &state.reason);
        (finding.says, finding.since) = (state.message, state.since);
        return finding;
    }
    own_words(
        about,
        "project",
        "The deployment of this city has not been made yet.",
        Turn::Polis,
        "Wait a moment. If it stays, the management controllers are not running: the operator starts them.",
    )
}

/// A deployment that has not reached its cell.
fn on_the_way(evidence: &Evidence, deployment: &WorkloadDeployment, about: &str) -> Option<Finding> {
    let (meta, name) = (&deployment.metadata, owner::name(&deployment.metadata));
    let made = meta.creation_timestamp.as_ref().map(|time| time.0);
    let waiting = |finding: Finding| Some(Finding { since: made, ..finding });
    // Once a cell reports, it has arrived, whatever else can be read.
    let reported = deployment.status.as_ref().is_some_and(|status| !status.conditions.is_empty());
    if !reported && metadata::annotation(meta, annotations::FEDERATION_NAMESPACE).is_none() {
        return waiting(own_words(
            about,
            "project",
            "The deployment has not been sent to the hub yet.",
            Turn::Polis,
            "Wait a moment. If it stays, the federator is not running or cannot reach the hub.",
        ));
    }
    if let Some(hub) = &evidence.hub {
        if !hub.deployments.iter().any(|copy| owner::name(&copy.metadata) == name) {
            return waiting(own_words(
                about,
                "hub",
                "The deployment has not arrived on the hub.",
                Turn::Polis,
                "Wait a moment. If it stays, the federator cannot write to the hub; its log says why.",
            ));
        }
        if let Some(finding) = unbound(hub, name, about) {
            return waiting(finding);
        }
    }
    let cell =
        evidence.cells.iter().find(|cell| cell.city.eq_ignore_ascii_case(&deployment.spec.city_code))?;
    if !cell.deployments.iter().any(|copy| owner::name(&copy.metadata) == name) {
        return waiting(own_words(
            about,
            &cell.name,
            "The hub has the deployment and the cell does not.",
            Turn::Federation,
            "Wait a moment. If it stays, the hub cannot reach the cell: the operator looks at its Cluster on the hub.",
        ));
    }
    None
}

/// A deployment on the hub that no cell was chosen for.
fn unbound(hub: &Beyond, name: &str, about: &str) -> Option<Finding> {
    let bindings = hub.bindings.as_ref()?;
    let wanted = names::binding("WorkloadDeployment", name);
    let Some(binding) = bindings.iter().find(|binding| owner::name(&binding.metadata) == wanted) else {
        return Some(own_words(
            about,
            "hub",
            "No propagation policy has claimed the deployment yet.",
            Turn::Federation,
            "Wait a moment. If it stays, the policy of the city is missing on the hub: the operator looks at it.",
        ));
    };
    if !binding.spec.clusters.is_empty() {
        return None;
    }
    let status = binding.status.clone().unwrap_or_default();
    let scheduled = conditions::find(&status.conditions, SCHEDULED);
    Some(Finding {
        mood: Mood::Stuck,
        says: scheduled.map(|condition| condition.message.clone()).unwrap_or_default(),
        ..own_words(
            about,
            "hub",
            "No cell of this city has joined the hub, so there is nowhere to send the deployment.",
            Turn::Operator,
            "The operator joins a cell with the city's label, or the workload leaves the city.",
        )
    })
}

/// A deployment on its way out: the deepest plane that still holds it has the turn.
fn leaving(evidence: &Evidence, deployment: &WorkloadDeployment) -> Finding {
    let name = owner::name(&deployment.metadata);
    let holds = |plane: &&Beyond| plane.deployments.iter().any(|copy| owner::name(&copy.metadata) == name);
    let since = deployment.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    let city = deployment.spec.city_code.as_str();
    let finding = match (evidence.cells.iter().find(holds), evidence.hub.iter().find(holds)) {
        (Some(cell), _) => {
            let left = cell.instances.iter().filter(|i| picture::deployment_of(i) == name).count();
            own_words(
                city,
                &cell.name,
                &format!("The city is being left; {left} instances are still ending in the cell."),
                Turn::Provider,
                "Wait: instances are given time to end. If it stays, what runs instances there does not answer.",
            )
        }
        (None, Some(_)) => own_words(
            city,
            "hub",
            "The city is being left; the cell is clean and the hub still holds the deployment.",
            Turn::Federation,
            "Wait a moment. If it stays, the federation cannot hear from the cell.",
        ),
        (None, None) => own_words(
            city,
            "project",
            "The city is being left.",
            Turn::Polis,
            "Wait: hub and cell are cleaned first. If it stays, the cell does not answer.",
        ),
    };
    Finding { since, ..finding }
}

/// Fewer instances than wanted, and those that exist are well.
fn too_few(
    evidence: &Evidence,
    deployment: &WorkloadDeployment,
    standing: &[&Instance],
    about: &str,
    plane: &str,
) -> Option<Finding> {
    let site = (deployment.spec.placement_name.clone(), deployment.spec.city_code.clone());
    let wanted = evidence.picture.wanted_at(&site) as usize;
    if standing.len() >= wanted {
        return None;
    }
    let status = deployment.status.clone().unwrap_or_default();
    let said = [AVAILABLE, REPLICAS_READY]
        .iter()
        .filter_map(|kind| conditions::find(&status.conditions, kind))
        .filter(|condition| condition.status != "True");
    if let Some(condition) = ranking::worst(said, |condition| condition.reason.as_str()) {
        return Some(from_condition(about, plane, &deployment.metadata, condition));
    }
    Some(own_words(
        about,
        plane,
        &format!(
            "{} of {wanted} instances exist; they are made one at a time, each when the one before is ready.",
            standing.len()
        ),
        Turn::Polis,
        "Wait. If it stays, the controllers of the cell are not running.",
    ))
}

/// Ready in the cell and not so in the project.
fn not_home(
    evidence: &Evidence,
    deployment: &WorkloadDeployment,
    standing: &[&Instance],
    only: Option<&str>,
) -> Option<Finding> {
    let home: Vec<&str> = evidence
        .picture
        .instances_of(deployment)
        .filter(|instance| instances::is_ready(instance))
        .map(|instance| owner::name(&instance.metadata))
        .collect();
    let missing = standing
        .iter()
        .map(|instance| owner::name(&instance.metadata))
        .find(|name| only.is_none_or(|only| only == *name) && !home.contains(name))?;
    Some(own_words(
        missing,
        "project",
        "It is ready in the cell, and the project does not show it yet.",
        Turn::Polis,
        "Wait a moment. If it stays, write-back from the cell or the projector does not run.",
    ))
}

/// Ready, and of an older template.
fn outdated(evidence: &Evidence, standing: &[&Instance], about: &str, plane: &str) -> Option<Finding> {
    let workload = evidence.picture.workload.as_ref()?;
    let hash = template::hash(&workload.spec.template);
    let old = standing
        .iter()
        .filter(|instance| !template::is_current(instance, &workload.spec.template, &hash))
        .count();
    (old > 0).then(|| {
        own_words(
            about,
            plane,
            &format!("{old} of {} instances still run the template before.", standing.len()),
            Turn::Polis,
            "Wait: they are replaced one at a time, from the highest ordinal down. `polis rollout status NAME` follows it.",
        )
    })
}

/// What an instance says about itself.
fn of_instance(instance: &Instance, plane: &str) -> Finding {
    let (meta, name) = (&instance.metadata, owner::name(&instance.metadata));
    let status = instance.status.clone().unwrap_or_default();
    let state = state::of_instance(instance);
    let ready = conditions::find(&status.conditions, READY);
    let mut finding = match ready {
        Some(condition) => from_condition(name, plane, meta, condition),
        None => from_reason(name, plane, polis_api::reasons::PENDING),
    };
    finding.since = state.since;
    finding.mood = state.mood;
    if state.word == "stopping" {
        let ending = own_words(
            name,
            plane,
            "It is being ended.",
            Turn::Provider,
            "Wait; it is given time to end by itself.",
        );
        return Finding { since: state.since, ..ending };
    }
    // Quota says how much of what is missing, which the derived condition repeats only in part.
    let quota =
        conditions::find(&status.conditions, QUOTA_GRANTED).filter(|condition| condition.status == "False");
    if let Some(quota) = quota.filter(|_| state.mood != Mood::Good && finding.says.is_empty()) {
        finding.says = quota.message.clone();
    }
    if finding.says.is_empty() && state.mood != Mood::Good {
        let gates = instance.spec.controller.iter().flat_map(|controller| &controller.scheduling_gates);
        let gates: Vec<&str> = gates.map(|gate| gate.name.as_str()).collect();
        if !gates.is_empty() {
            finding.says = format!("gates left: {}", gates.join(", "));
        }
    }
    finding
}

fn is_wrong(finding: &Finding) -> bool {
    finding.mood != Mood::Good
}

/// Instances of a city that say the same are told once.
fn grouped(findings: Vec<Finding>, about: &str) -> Vec<Finding> {
    let mut groups: Vec<(Finding, usize)> = Vec::new();
    for finding in findings {
        let alike = |group: &&mut (Finding, usize)| {
            (&group.0.reason, &group.0.says, &group.0.means)
                == (&finding.reason, &finding.says, &finding.means)
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
        says: condition.message.clone(),
        since: state::since(meta, Some(condition)),
        ..from_reason(about, plane, &condition.reason)
    }
}

fn from_reason(about: &str, plane: &str, reason: &str) -> Finding {
    let known = reasons::entry(reason);
    Finding {
        about: about.to_owned(),
        plane: plane.to_owned(),
        mood: known.map_or(Mood::Moving, |entry| entry.mood),
        reason: reason.to_owned(),
        means: known.map_or_else(
            || format!("It says {reason}, which this version of polis does not know."),
            |entry| entry.means.to_owned(),
        ),
        says: String::new(),
        since: None,
        turn: known.map_or(Turn::Provider, |entry| entry.turn),
        advice: known.map_or("What it says itself is all that is known.", |entry| entry.advice).to_owned(),
    }
}

fn own_words(about: &str, plane: &str, means: &str, turn: Turn, advice: &str) -> Finding {
    Finding {
        about: about.to_owned(),
        plane: plane.to_owned(),
        mood: Mood::Moving,
        reason: String::new(),
        means: means.to_owned(),
        says: String::new(),
        since: None,
        turn,
        advice: advice.to_owned(),
    }
}

/// The answer for people. `paint` colours a heading by mood.
pub fn draw(
    diagnosis: &Diagnosis,
    now: Timestamp,
    width: Option<u16>,
    paint: impl Fn(Mood, &str) -> String,
) -> String {
    let mut text = paint(diagnosis.mood(), &diagnosis.summary);
    text.push('\n');
    for finding in &diagnosis.findings {
        let word = if finding.mood == Mood::Stuck { "blocked" } else { "on the way" };
        let since = finding.since.map(|_| format!(" for {}", age::since_maybe(finding.since, now)));
        let head = format!("{}: {word}{}", finding.about, since.unwrap_or_default());
        text.push_str(&format!("\n{}\n", paint(finding.mood, &head)));
        let means = match finding.reason.as_str() {
            "" => finding.means.clone(),
            reason => format!("{} ({reason})", finding.means.trim_end_matches('.')),
        };
        let name = diagnosis.name.as_str();
        let advice =
            finding.advice.replace("INSTANCE", instance_in(&finding.about, name)).replace("NAME", name);
        let lines = [
            ("what", means),
            ("says", finding.says.clone()),
            ("seen", format!("on the {}", plane_in_words(&finding.plane))),
            ("turn", finding.turn.in_words().to_owned()),
            ("do", advice),
        ];
        for (label, words) in lines.iter().filter(|(_, words)| !words.is_empty()) {
            text.push_str(&entry(label, words, width));
        }
    }
    if !diagnosis.findings.is_empty() || !diagnosis.unread.is_empty() {
        text.push_str(&format!("\nLooked at: {}.", diagnosis.planes.join(", ")));
    }
    for plane in &diagnosis.unread {
        text.push_str(&format!("\nCould not look at {plane}."));
    }
    text
}

/// The instance that a finding is about, else the workload: both are what `logs` takes.
fn instance_in<'a>(about: &'a str, name: &'a str) -> &'a str {
    about.split_once(", ").map(|(_, instance)| instance).filter(|i| !i.contains(' ')).unwrap_or(name)
}

fn plane_in_words(plane: &str) -> String {
    match plane {
        "project" => "project's plane".to_owned(),
        other => other.to_owned(),
    }
}

/// One labelled entry, its words wrapped beside the label.
fn entry(label: &str, words: &str, width: Option<u16>) -> String {
    const INDENT: usize = 8;
    let room = width.map_or(usize::MAX, |width| usize::from(width).saturating_sub(INDENT).max(20));
    let mut text = format!("  {label:<6}");
    let mut used = 0;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > room {
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
