//! What `polis why` says in every state: each reason of the catalogue on each object that has it, and each
//! stage of the propagation, freshly entered and after its deadline. The test writes the table of
//! `docs/dev/why-coverage.md`.

use polis_api::compute::{WorkloadPlacementStatus, WorkloadStatus};
use polis_api::reasons::CELL_SILENT;
use polis_core::metadata;

use super::overdue::deadline;
use super::tests::{mk_binding, mk_cell, mk_evidence, mk_hub};
use super::*;
use crate::view::reasons::ReasonEntry;
use crate::view::testing::{at, mk_condition, mk_deployment, mk_instance, mk_ready, mk_starting, now};

/// When each state begins, in seconds after the objects were created.
const BEGINS: i64 = 50;
/// A diagnosis soon after, and one after every deadline.
const SOON: i64 = BEGINS + 4;
const LATE: i64 = BEGINS + 3600;

/// A state: what it is about, and the objects in it.
struct Scene {
    about: String,
    state: String,
    evidence: Evidence,
    /// The reason that `why` must name; none for a stage that has no reason.
    reason: Option<&'static str>,
    severity: Severity,
    /// Whether it has a deadline.
    ends: bool,
    /// When it began; none if it began with the objects.
    since: i64,
}

impl Scene {
    fn of_reason(entry: &'static ReasonEntry, about: String, evidence: Evidence) -> Self {
        Scene {
            about,
            state: entry.reason.to_owned(),
            evidence,
            reason: Some(entry.reason),
            severity: entry.severity,
            ends: deadline(entry.reason).is_some(),
            since: BEGINS,
        }
    }

    fn stage(about: &str, state: &str, severity: Severity, since: i64, evidence: Evidence) -> Self {
        let (about, state) = (about.to_owned(), state.to_owned());
        Scene { about, state, evidence, reason: None, severity, ends: true, since }
    }
}

/// The scenes of a reason: one for each condition that the catalogue says has it.
fn scenes_of(entry: &'static ReasonEntry) -> Vec<Scene> {
    let mut scenes = Vec::new();
    for place in entry.seen.split(" · ") {
        let (kinds, types) = match place {
            "networking kinds" => ("NetworkBinding".to_owned(), vec![READY]),
            "ReferencedDataReady" => ("Instance, WorkloadDeployment".to_owned(), vec![place]),
            place => split(place),
        };
        for kind in kinds.split(", ") {
            for type_ in &types {
                let evidence = mk_scene(kind, type_, entry);
                scenes.push(Scene::of_reason(entry, format!("{kind} `{type_}`"), evidence));
            }
        }
    }
    scenes
}

/// `Workload, WorkloadDeployment Progressing, Ready` as its kinds and its condition types.
fn split(place: &str) -> (String, Vec<&str>) {
    let words: Vec<&str> = place.split(' ').collect();
    let is_kind = |word: &str| {
        let word = word.trim_end_matches(',');
        ["Workload", "WorkloadDeployment", "Instance", "placement", "Cluster", "Work", "Project", "Location"]
            .contains(&word)
            || ["LocationBinding", "NetworkBinding", "SubnetClaim", "ResourceClaim", "ResourceGrant"]
                .contains(&word)
            || word == "ResourceRegistration"
    };
    let kinds: Vec<&str> = words.iter().copied().take_while(|word| is_kind(word)).collect();
    let types = words[kinds.len()..].iter().map(|word| word.trim_end_matches(',')).collect();
    (kinds.join(" "), types)
}

/// A workload of one ready instance, but for this condition.
fn mk_scene(kind: &str, type_: &str, entry: &ReasonEntry) -> Evidence {
    let mut evidence = mk_evidence(&["dfw"], 1);
    let markers = ["Stalled", "Reconciling", "Degraded"];
    let status = match (entry.severity, markers.contains(&type_)) {
        (Severity::Ok, false) | (Severity::Progressing | Severity::Blocked, true) => "True",
        _ => "False",
    };
    let lost = [CELL_SILENT, HUB_UNREACHABLE].contains(&entry.reason) && type_ == READY;
    let status = if lost { "Unknown" } else { status };
    let condition = mk_condition(type_, status, entry.reason, "the message of the object", BEGINS);
    let set = |conditions: &mut Vec<Condition>| {
        conditions.retain(|existing| existing.type_ != type_);
        conditions.push(condition.clone());
        if type_ == "Degraded" && status == "True" {
            // What is degraded is stalled as well.
            conditions.push(Condition { type_: "Stalled".into(), ..condition.clone() });
        }
        if type_ == "Progressing" && entry.severity != Severity::Ok {
            let marker = if entry.severity == Severity::Blocked { "Stalled" } else { "Reconciling" };
            conditions.push(Condition { type_: marker.into(), status: "True".into(), ..condition.clone() });
        }
    };
    let workload = evidence.snapshot.workload.as_mut().unwrap();
    match kind {
        "Workload" => {
            set(&mut workload.status.get_or_insert_default().conditions);
            if type_ == WITHDRAWN {
                workload.metadata.deletion_timestamp = Some(at(BEGINS));
                evidence.snapshot.deployments.clear();
                if entry.severity == Severity::Ok {
                    workload.metadata.deletion_timestamp = None;
                    return mk_evidence(&["dfw"], 1);
                }
            }
        }
        "Workload placement" => {
            let mut placement = WorkloadPlacementStatus { name: "default".into(), ..Default::default() };
            set(&mut placement.conditions);
            let WorkloadStatus { placements, .. } = workload.status.get_or_insert_default();
            *placements = vec![placement];
        }
        "WorkloadDeployment" => {
            let deployment = &mut evidence.snapshot.deployments[0];
            set(&mut deployment.status.get_or_insert_default().conditions);
            if type_ == WITHDRAWN && entry.severity != Severity::Ok {
                deployment.metadata.deletion_timestamp = Some(at(BEGINS));
            }
        }
        "Instance" => {
            let instance = &mut evidence.snapshot.instances[0];
            let conditions = &mut instance.status.get_or_insert_default().conditions;
            set(conditions);
            if entry.severity != Severity::Ok {
                // As `polis_core::ready` derives it.
                let derived = match (type_, entry.severity) {
                    (QUOTA_GRANTED, Severity::Blocked) => PENDING_QUOTA,
                    (QUOTA_GRANTED | REFERENCED_DATA_READY, _) => SCHEDULING_GATES_PRESENT,
                    _ => entry.reason,
                };
                conditions.retain(|existing| existing.type_ != READY);
                conditions.push(mk_condition(READY, "False", derived, "the message of the object", BEGINS));
            }
        }
        "Location" | "LocationBinding" => assert_eq!(entry.severity, Severity::Ok, "{kind} is not read"),
        _ => {
            let kinds = [
                "Cluster",
                "Work",
                "Project",
                "NetworkBinding",
                "SubnetClaim",
                "ResourceClaim",
                "ResourceGrant",
                "ResourceRegistration",
            ];
            let kind = *kinds.iter().find(|known| **known == kind).unwrap_or_else(|| panic!("{kind}"));
            let workload_wide = ["Project", "ResourceGrant", "ResourceRegistration"].contains(&kind);
            let mut object = RelatedObject {
                plane: if workload_wide { "project" } else { "hub" }.into(),
                city: (!workload_wide).then(|| "dfw".into()),
                kind,
                metadata: mk_deployment("dfw", 1).metadata,
                conditions: Vec::new(),
            };
            set(&mut object.conditions);
            if entry.severity != Severity::Ok && !object.concerns_healthy() {
                let gates = "waiting for scheduling gates: Network, Quota";
                let waits = mk_condition(READY, "False", SCHEDULING_GATES_PRESENT, gates, BEGINS);
                evidence.snapshot.instances[0].status.get_or_insert_default().conditions = vec![waits];
            }
            evidence.related = vec![object];
        }
    }
    evidence
}

/// The stages of the propagation that no condition reports, and planes that do not respond.
fn stages() -> Vec<Scene> {
    use Severity::{Blocked, Progressing};
    let mut scenes = Vec::new();
    let mut stage = |about: &str, state: &str, severity, since, change: &dyn Fn(&mut Evidence)| {
        let mut evidence = mk_evidence(&["dfw"], 1);
        change(&mut evidence);
        scenes.push(Scene::stage(about, state, severity, since, evidence));
    };
    let recorded = |evidence: &mut Evidence| {
        let deployment = &mut evidence.snapshot.deployments[0];
        deployment.status = None;
        let annotations = metadata::map([(annotations::FEDERATION_NAMESPACE, "ns-1")]);
        deployment.metadata.annotations = Some(annotations);
        evidence.snapshot.instances.clear();
    };
    stage("Workload", "the newest spec is not reconciled", Progressing, 0, &|evidence| {
        evidence.snapshot.workload.as_mut().unwrap().metadata.generation = Some(2);
    });
    stage("Workload", "it has no deployment for the city", Progressing, 0, &|evidence| {
        evidence.snapshot.deployments.clear();
        evidence.snapshot.instances.clear();
    });
    stage("Workload", "the city is not bound to the project", Blocked, 0, &|evidence| {
        evidence.snapshot.deployments.clear();
        evidence.cities = Some(Cities::Bound(["ord".to_owned()].into()));
    });
    stage("WorkloadDeployment", "it is not on the hub", Progressing, 0, &|evidence| {
        recorded(evidence);
        evidence.snapshot.deployments[0].metadata.annotations = None;
    });
    stage("WorkloadDeployment", "the hub has lost its copy", Progressing, 0, &|evidence| {
        recorded(evidence);
        evidence.hub = Some(mk_hub(&[]));
    });
    stage("ResourceBinding", "no policy selects the copy", Progressing, 0, &|evidence| {
        recorded(evidence);
        evidence.hub = Some(PlaneSnapshot { bindings: Some(vec![]), ..mk_hub(&["dfw"]) });
    });
    stage("ResourceBinding", "no Cluster has the label of the city", Blocked, BEGINS, &|evidence| {
        recorded(evidence);
        let mut binding = mk_binding("dfw", &[]);
        binding.metadata.creation_timestamp = Some(at(0));
        let unscheduled = mk_condition(SCHEDULED, "False", "NoClusterFit", "0/2 clusters fit", BEGINS);
        binding.status.get_or_insert_default().conditions = vec![unscheduled];
        evidence.hub = Some(PlaneSnapshot { bindings: Some(vec![binding]), ..mk_hub(&["dfw"]) });
    });
    stage("Work", "the deployment is not in the cell", Progressing, BEGINS, &|evidence| {
        recorded(evidence);
        let mut binding = mk_binding("dfw", &["dfw"]);
        binding.status.get_or_insert_default().last_scheduled_time = Some(at(BEGINS));
        evidence.hub = Some(PlaneSnapshot { bindings: Some(vec![binding]), ..mk_hub(&["dfw"]) });
        evidence.cells = vec![PlaneSnapshot { deployments: vec![], ..mk_cell("dfw", vec![]) }];
    });
    stage("WorkloadDeployment", "the cell creates no instance", Progressing, 0, &|evidence| {
        evidence.snapshot.instances.clear();
        evidence.cells = vec![mk_cell("dfw", vec![])];
    });
    stage("Instance", "the cell has it, the project does not", Progressing, 5, &|evidence| {
        evidence.snapshot.instances = vec![mk_starting(mk_instance("dfw", 0))];
        evidence.cells = vec![mk_cell("dfw", vec![mk_ready(mk_instance("dfw", 0))])];
    });
    stage("Instance", "it has the previous template", Progressing, 5, &|evidence| {
        let template = &mut evidence.snapshot.workload.as_mut().unwrap().spec.template;
        template.spec.runtime.sandbox.as_mut().unwrap().containers[0].image = "new".into();
    });
    stage("Instance", "it is being deleted", Progressing, BEGINS, &|evidence| {
        evidence.snapshot.instances[0].metadata.deletion_timestamp = Some(at(BEGINS));
    });
    stage("WorkloadDeployment", "it is being deleted", Progressing, BEGINS, &|evidence| {
        evidence.snapshot.deployments[0].metadata.deletion_timestamp = Some(at(BEGINS));
    });
    stage("WorkloadDeployment", "it is deleted, and on the hub", Progressing, BEGINS, &|evidence| {
        evidence.snapshot.deployments[0].metadata.deletion_timestamp = Some(at(BEGINS));
        evidence.hub = Some(mk_hub(&["dfw"]));
    });
    stage("WorkloadDeployment", "it is deleted, and in the cell", Progressing, BEGINS, &|evidence| {
        evidence.snapshot.deployments[0].metadata.deletion_timestamp = Some(at(BEGINS));
        evidence.cells = vec![mk_cell("dfw", vec![mk_ready(mk_instance("dfw", 0))])];
    });
    stage("Workload", "it is being deleted", Progressing, BEGINS, &|evidence| {
        evidence.snapshot.workload.as_mut().unwrap().metadata.deletion_timestamp = Some(at(BEGINS));
        evidence.snapshot.deployments.clear();
    });
    stage("Workload", "it is gone, and its deployment is on the hub", Blocked, -1, &|evidence| {
        evidence.snapshot = WorkloadSnapshot::default();
        evidence.hub = Some(mk_hub(&["dfw"]));
    });
    stage("Workload", "it is gone, and the cell is deleting it", Progressing, BEGINS, &|evidence| {
        evidence.snapshot = WorkloadSnapshot::default();
        let mut cell = mk_cell("dfw", vec![mk_ready(mk_instance("dfw", 0))]);
        cell.deployments[0].metadata.deletion_timestamp = Some(at(BEGINS));
        evidence.cells = vec![cell];
    });
    let silent = |plane: &str, city: &str| UnreadPlane {
        plane: plane.into(),
        city: city.into(),
        why: "no answer within 5 seconds".into(),
        unreachable: true,
    };
    stage("hub", "it accepts connections and does not answer", Blocked, -1, &|evidence| {
        evidence.unread = vec![silent("the hub", "")];
    });
    stage("cell", "it does not answer", Blocked, -1, &|evidence| {
        evidence.unread = vec![silent("cell dfw", "dfw")];
    });
    stage("WorkloadDeployment", "its cell is silent", Blocked, BEGINS, &|evidence| {
        let unknown = mk_condition(READY, "Unknown", "OfAnotherVersion", "no word since 12:00", BEGINS);
        evidence.snapshot.deployments[0].status.as_mut().unwrap().conditions.push(unknown);
    });
    stage("PropagationPolicy", "it suspends the dispatch of changes", Blocked, BEGINS, &|evidence| {
        let mut metadata = mk_deployment("dfw", 1).metadata;
        metadata.creation_timestamp = Some(at(BEGINS));
        evidence.related = vec![RelatedObject::suspended_policy("hub", "dfw", metadata)];
    });
    scenes
}

fn diagnosed(scene: &Scene, seconds: i64) -> Diagnosis {
    let mut evidence = scene.evidence.clone();
    evidence.now = now(seconds);
    workload(&evidence)
}

/// Checks what `why` says about a scene, and returns the row of the table.
fn row(scene: &Scene) -> String {
    let Scene { about, state, severity, .. } = scene;
    let place = format!("{state} on {about}");
    let soon = diagnosed(scene, SOON);
    if *severity == Severity::Ok {
        assert_eq!(soon.findings, [], "{place}");
        return format!("| {state} | {about} | snapshot | ok | {} |\n", soon.summary);
    }
    assert_eq!(soon.severity(), *severity, "{place}: {soon:#?}");
    let named = |diagnosis: &Diagnosis| {
        let of_reason = |finding: &&Finding| scene.reason.is_none_or(|reason| finding.reason == reason);
        let found = diagnosis.findings.iter().find(of_reason);
        found.unwrap_or_else(|| panic!("{place} is not named: {diagnosis:#?}")).clone()
    };
    let mut finding = named(&soon);
    assert_eq!(soon.findings.len(), 1, "one cause is one paragraph, {place}: {soon:#?}");
    let since = (scene.since >= 0).then(|| now(scene.since));
    assert_eq!(finding.since, since, "{place}: since that state");
    let mut when = "";
    if *severity == Severity::Progressing && scene.ends {
        let late = diagnosed(scene, LATE);
        assert_eq!(late.severity(), Severity::Blocked, "{place} has no deadline: {late:#?}");
        finding = named(&late);
        when = "progressing; past its deadline ";
    }
    let act = !matches!(finding.actor, Actor::None | Actor::Polis | Actor::Federation | Actor::Provider);
    assert!(act || !scene.ends, "{place}: no actor: {finding:#?}");
    assert!(!finding.plane.is_empty() && !finding.about.is_empty(), "{place}");
    assert!(!finding.meaning.is_empty() && finding.advice.len() > 10, "{place}: {finding:#?}");
    assert!(!finding.advice.contains("No action is needed"), "{place}");
    let word = if finding.severity == Severity::Blocked { "blocked" } else { "progressing" };
    let action = finding.actor.describe();
    let says = format!("{}: {} → {}", finding.plane, finding.meaning, finding.advice).replace('|', "\\|");
    format!("| {state} | {about} | snapshot | {when}{word}, action: {action} | {says} |\n")
}

/// Whether `crates/cli/tests/verbs/why.rs` writes the condition of a row to embedded planes.
fn is_written(about: &str) -> bool {
    let kinds = ["Workload `", "Workload placement `", "WorkloadDeployment `", "Instance `"];
    kinds.iter().any(|kind| about.starts_with(kind)) && !about.contains(WITHDRAWN)
}

/// The page, and how many rows failed; each has printed why.
fn page() -> (String, usize) {
    let mut page = String::from(
        "# What `polis why` says\n\n\
         <!-- Generated from crates/cli/src/view/diagnosis/coverage.rs; update with `POLIS_WRITE_DOCS=1 cargo test --bin polis`. -->\n\n\
         Each reason on each object that has it, and each stage of the propagation that has no reason. The test\n\
         checks that `polis why` names the cause once, with the time since that state, who must act and what to\n\
         do, and that every state which is not the desired one ends with exit code 7 when it has lasted longer\n\
         than its deadline. *snapshot*: the objects are built as the API servers show them. *written*: a second\n\
         test writes the condition to an embedded API server and runs the program.\n\n\
         A suspension and a rollout have no deadline here: a suspension is wanted, and a rollout without progress\n\
         is reported as `ProgressDeadlineExceeded`.\n\n\
         | state | object | brought about | result | what `why` says |\n|---|---|---|---|---|\n",
    );
    let mut failed = 0;
    for scene in reasons::TABLE.iter().flat_map(scenes_of).chain(stages()) {
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| row(&scene))) {
            Ok(row) => {
                let written = if is_written(&scene.about) { ", written" } else { "" };
                page.push_str(&row.replacen("| snapshot |", &format!("| snapshot{written} |"), 1));
            }
            Err(_) => failed += 1,
        }
    }
    (page, failed)
}

#[test]
fn every_state_is_explained() {
    let (page, failed) = page();
    assert_eq!(failed, 0, "rows failed");
    crate::reference::check_page("docs/dev/why-coverage.md", &page);
}
