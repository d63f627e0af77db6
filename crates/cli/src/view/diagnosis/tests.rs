use super::draw::labelled;
use super::*;
use crate::view::testing::{
    at, mk_blocked, mk_condition, mk_deployment, mk_instance, mk_ready, mk_snapshot, mk_starting, now,
};
use polis_api::ObjectExt;

pub fn mk_evidence(cities: &[&str], replicas: i32) -> Evidence {
    Evidence {
        name: "web".into(),
        now: now(65),
        snapshot: mk_snapshot(cities, replicas),
        ..Default::default()
    }
}

pub fn mk_cell(city: &str, instances: Vec<Instance>) -> PlaneSnapshot {
    PlaneSnapshot {
        name: format!("cell {city}"),
        city: city.into(),
        deployments: vec![mk_deployment(city, 1)],
        instances,
        bindings: None,
    }
}

pub fn mk_hub(cities: &[&str]) -> PlaneSnapshot {
    let deployments = cities.iter().map(|city| mk_deployment(city, 1)).collect();
    PlaneSnapshot { name: "hub".into(), deployments, ..Default::default() }
}

pub fn mk_binding(city: &str, clusters: &[&str]) -> ResourceBinding {
    let name = mk_deployment(city, 1).name().to_owned();
    let mut binding = ResourceBinding::new(&names::binding("WorkloadDeployment", &name), Default::default());
    binding.spec.clusters = clusters
        .iter()
        .map(|name| serde_json::from_value(serde_json::json!({"name": name})).unwrap())
        .collect();
    binding
}

fn drawn(evidence: &Evidence) -> String {
    draw(&workload(evidence), now(65), Some(80), |_, text| text.to_owned())
}

/// The plane, the actor and the reason of the only finding.
fn only(evidence: &Evidence) -> (String, Actor, String) {
    let diagnosis = workload(evidence);
    assert_eq!(diagnosis.findings.len(), 1, "{diagnosis:#?}");
    let finding = diagnosis.findings[0].clone();
    (finding.plane, finding.actor, finding.reason)
}

#[test]
fn a_healthy_workload_is_reported_in_one_line() {
    let evidence = mk_evidence(&["dfw", "ord"], 2);
    assert_eq!(drawn(&evidence).trim(), "web is healthy: 4 of 4 instances are ready");
    assert_eq!(workload(&evidence).severity(), Severity::Ok);
}

#[test]
fn an_unavailable_image_is_reported_with_what_to_do() {
    let mut evidence = mk_evidence(&["dfw", "ord"], 1);
    let words = "image nginx is no program of this machine";
    evidence.snapshot.instances[1] = mk_blocked(mk_instance("ord", 0), "ImageUnavailable", words);
    insta::assert_snapshot!(drawn(&evidence));
}

#[test]
fn equal_findings_of_instances_are_merged() {
    let mut evidence = mk_evidence(&["dfw"], 3);
    for ordinal in 1..3 {
        let instance = mk_instance("dfw", ordinal);
        evidence.snapshot.instances[ordinal as usize] =
            mk_blocked(instance, "PendingQuota", "instances: 1 of 1 used");
    }
    insta::assert_snapshot!(drawn(&evidence));
}

#[test]
fn the_most_severe_finding_is_first() {
    let mut evidence = mk_evidence(&["dfw", "ord"], 1);
    evidence.snapshot.instances[0] = mk_starting(mk_instance("dfw", 0));
    evidence.snapshot.instances[1] = mk_blocked(mk_instance("ord", 0), "InstanceCrashing", "exit 1");
    let severities: Vec<Severity> = workload(&evidence).findings.iter().map(|f| f.severity).collect();
    assert_eq!(severities, [Severity::Blocked, Severity::Progressing]);
}

#[test]
fn a_generation_that_is_not_observed_is_the_controllers_action() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    evidence.snapshot.workload.as_mut().unwrap().metadata.generation = Some(2);
    assert_eq!(only(&evidence), ("project".into(), Actor::Polis, String::new()));
}

#[test]
fn a_city_that_is_not_bound_is_reported_with_the_bound_ones() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    evidence.snapshot.workload.as_mut().unwrap().spec.placements[0].city_codes.push("DFW".into());
    evidence.cities = Some(Cities::Bound(["dfw".to_owned(), "ord".to_owned()].into()));
    insta::assert_snapshot!(drawn(&evidence));
}

#[test]
fn a_missing_network_is_reported_once_for_the_workload() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    let status = evidence.snapshot.workload.as_mut().unwrap().status.as_mut().unwrap();
    status.conditions = vec![mk_condition("Available", "False", "NetworkNotFound", "default/web-net", 3)];
    assert_eq!(only(&evidence), ("project".into(), Actor::You, "NetworkNotFound".into()));
}

/// The stages of the propagation in order: the first missing one names the actor.
#[test]
fn the_first_missing_stage_of_the_propagation_is_reported() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    evidence.snapshot.instances.clear();
    evidence.snapshot.deployments.clear();
    assert_eq!(only(&evidence), ("project".into(), Actor::Polis, String::new()));

    let mut deployment = mk_deployment("dfw", 1);
    deployment.status = None;
    evidence.snapshot.deployments = vec![deployment.clone()];
    assert!(workload(&evidence).findings[0].meaning.contains("not been copied to the hub"));

    let mark = (annotations::FEDERATION_NAMESPACE.to_owned(), "ns-1".to_owned());
    deployment.metadata.annotations = Some([mark].into());
    evidence.snapshot.deployments = vec![deployment];
    evidence.hub = Some(mk_hub(&[]));
    assert_eq!(only(&evidence), ("hub".into(), Actor::Polis, String::new()));

    evidence.hub = Some(PlaneSnapshot { bindings: Some(vec![]), ..mk_hub(&["dfw"]) });
    assert_eq!(only(&evidence), ("hub".into(), Actor::Federation, String::new()));

    evidence.hub.as_mut().unwrap().bindings = Some(vec![mk_binding("dfw", &[])]);
    assert_eq!(only(&evidence), ("hub".into(), Actor::Operator, String::new()));

    evidence.hub.as_mut().unwrap().bindings = Some(vec![mk_binding("dfw", &["dfw"])]);
    evidence.cells = vec![PlaneSnapshot { deployments: vec![], ..mk_cell("dfw", vec![]) }];
    assert_eq!(only(&evidence), ("cell dfw".into(), Actor::Federation, String::new()));

    evidence.cells = vec![mk_cell("dfw", vec![])];
    assert_eq!(only(&evidence), ("cell dfw".into(), Actor::Polis, String::new()));

    evidence.cells = vec![mk_cell("dfw", vec![mk_starting(mk_instance("dfw", 0))])];
    assert_eq!(only(&evidence), ("cell dfw".into(), Actor::Provider, "ProgrammingInProgress".into()));

    evidence.cells = vec![mk_cell("dfw", vec![mk_ready(mk_instance("dfw", 0))])];
    assert_eq!(only(&evidence), ("project".into(), Actor::Polis, String::new()));

    evidence.snapshot.instances = vec![mk_ready(mk_instance("dfw", 0))];
    assert_eq!(workload(&evidence).findings, []);
}

#[test]
fn a_deletion_is_reported_on_the_last_plane_that_has_the_deployment() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    evidence.snapshot.deployments[0].metadata.deletion_timestamp = Some(at(60));
    assert_eq!(only(&evidence).1, Actor::Polis);
    evidence.hub = Some(mk_hub(&["dfw"]));
    assert_eq!(only(&evidence).1, Actor::Federation);
    evidence.cells = vec![mk_cell("dfw", vec![mk_instance("dfw", 0)])];
    assert_eq!(only(&evidence).1, Actor::Provider);
}

#[test]
fn missing_instances_are_reported_with_the_condition_of_the_deployment() {
    let mut evidence = mk_evidence(&["dfw"], 2);
    evidence.snapshot.instances.clear();
    let status = evidence.snapshot.deployments[0].status.as_mut().unwrap();
    status.conditions =
        vec![mk_condition("Available", "False", "ProvisioningNetwork", "binding is not ready", 5)];
    assert_eq!(only(&evidence), ("project".into(), Actor::Operator, "ProvisioningNetwork".into()));
}

#[test]
fn a_rollout_in_progress_is_reported() {
    let mut evidence = mk_evidence(&["dfw"], 2);
    let workload_ = evidence.snapshot.workload.as_mut().unwrap();
    workload_.spec.template.spec.runtime.sandbox.as_mut().unwrap().containers[0].image = "new".into();
    assert!(workload(&evidence).findings[0].meaning.contains("2 of 2 instances still run"));
}

#[test]
fn one_instance_is_diagnosed_alone() {
    let mut evidence = mk_evidence(&["dfw"], 2);
    evidence.snapshot.instances[1] = mk_blocked(mk_instance("dfw", 1), "ConfigurationError", "no VM here");
    let names: Vec<String> = evidence.snapshot.instances.iter().map(|i| i.name().to_owned()).collect();
    assert_eq!(instance(&evidence, &names[0]).severity(), Severity::Ok);
    assert_eq!(instance(&evidence, &names[1]).severity(), Severity::Blocked);
}

#[test]
fn scheduling_gates_are_the_message_if_there_is_no_other() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    evidence.snapshot.instances[0] = mk_blocked(mk_instance("dfw", 0), "SchedulingGatesPresent", "");
    assert_eq!(workload(&evidence).findings[0].message, "scheduling gates: Network, Quota");
}

#[test]
fn an_unknown_reason_is_reported_with_its_message() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    evidence.snapshot.instances[0] = mk_blocked(mk_instance("dfw", 0), "SomethingNew", "words");
    let finding = workload(&evidence).findings[0].clone();
    assert!(finding.meaning.contains("SomethingNew") && finding.message == "words");
}

#[test]
fn text_is_wrapped_beside_its_label() {
    let text = labelled("to do", &"word ".repeat(30), Some(40));
    assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
    assert!(text.lines().skip(1).all(|line| line.starts_with("          w")), "{text}");
}

#[test]
fn a_suspended_policy_is_named_although_all_instances_are_ready() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    let metadata = mk_deployment("dfw", 1).metadata;
    let mut work = RelatedObject::suspended_policy("hub", "dfw", metadata.clone());
    work.kind = "Work";
    evidence.related = vec![RelatedObject::suspended_policy("hub", "dfw", metadata), work];
    assert_eq!(only(&evidence), ("hub".into(), Actor::Operator, "SuspendDispatching".into()));
}

#[test]
fn a_silent_cell_is_named_although_its_instances_were_ready() {
    let mut evidence = mk_evidence(&["dfw", "ord"], 1);
    let cluster = |city: &str, status: &str, reason: &str| RelatedObject {
        plane: "hub".into(),
        city: Some(city.into()),
        kind: "Cluster",
        metadata: mk_deployment(city, 1).metadata,
        conditions: vec![mk_condition("Ready", status, reason, "dial tcp: refused", 20)],
    };
    evidence.related =
        vec![cluster("dfw", "True", "ClusterReady"), cluster("ord", "False", "ClusterNotReachable")];
    let diagnosis = workload(&evidence);
    assert_eq!(diagnosis.severity(), Severity::Blocked);
    let finding = &diagnosis.findings[0];
    assert_eq!((finding.about.as_str(), finding.reason.as_str()), ("ord", "ClusterNotReachable"));
    assert_eq!(finding.since, Some(now(20)), "the time of that state, not of the workload");
}

#[test]
fn a_frozen_hub_is_named_although_the_project_shows_ready_instances() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    let why = "no answer within 5 seconds".to_owned();
    evidence.unread =
        vec![UnreadPlane { plane: "the hub".into(), why, unreachable: true, ..Default::default() }];
    assert_eq!(only(&evidence), ("the hub".into(), Actor::Operator, "HubUnreachable".into()));
    evidence.unread[0].unreachable = false;
    assert_eq!(workload(&evidence).severity(), Severity::Ok, "a refusal is no outage");
}

#[test]
fn a_port_that_never_opens_is_stuck_after_its_deadline_and_the_output_is_shown() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    let name = evidence.snapshot.instances[0].name().to_owned();
    let starting = mk_blocked(mk_instance("dfw", 0), "Starting", "port 8080 does not accept connections");
    evidence.snapshot.instances[0] = starting;
    evidence.logs.insert(name, vec!["listening on 9090".into()]);
    assert_eq!(workload(&evidence).severity(), Severity::Progressing);
    evidence.now = now(10 + 300);
    let diagnosis = workload(&evidence);
    assert_eq!(diagnosis.severity(), Severity::Blocked);
    assert_eq!((diagnosis.findings[0].actor, diagnosis.findings[0].since), (Actor::You, Some(now(10))));
    assert!(drawn(&evidence).contains("listening on 9090"), "{}", drawn(&evidence));
}

#[test]
fn a_cell_without_a_location_is_blocked_and_not_a_wait_for_gates() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    evidence.snapshot.instances[0] = mk_blocked(mk_instance("dfw", 0), "SchedulingGatesPresent", "Network");
    let words = "no location of this cell serves city dfw";
    evidence.snapshot.deployments[0].status.as_mut().unwrap().conditions =
        vec![mk_condition("Available", "False", "NoMatchingLocation", words, 12)];
    let diagnosis = workload(&evidence);
    assert_eq!(diagnosis.severity(), Severity::Blocked);
    assert_eq!(diagnosis.findings.len(), 1);
    assert_eq!(diagnosis.findings[0].message, words);
}

#[test]
fn one_cause_in_three_cities_is_one_paragraph() {
    let mut evidence = mk_evidence(&["dfw", "lhr", "ord"], 2);
    for instance in &mut evidence.snapshot.instances {
        *instance = mk_blocked(instance.clone(), "ImageUnavailable", "no registry has nginx:0");
    }
    let diagnosis = workload(&evidence);
    assert_eq!(diagnosis.findings.len(), 1, "{diagnosis:#?}");
    assert_eq!(diagnosis.findings[0].about, "dfw, lhr, ord, 6 instances");
}

#[test]
fn what_is_left_of_a_workload_that_the_project_has_no_longer_is_named() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    evidence.snapshot = WorkloadSnapshot::default();
    assert!(evidence.is_empty());
    evidence.cells = vec![mk_cell("dfw", vec![mk_ready(mk_instance("dfw", 0))])];
    assert!(!evidence.is_empty());
    let finding = workload(&evidence).findings[0].clone();
    assert_eq!((finding.plane.as_str(), finding.severity), ("cell dfw", Severity::Blocked));
    assert!(finding.meaning.contains("1 deployments and 1 instances"), "{}", finding.meaning);
}

#[test]
fn quota_is_explained_by_the_condition_that_says_why() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    let mut instance = mk_blocked(mk_instance("dfw", 0), "PendingQuota", "denied");
    let conditions = &mut instance.status.as_mut().unwrap().conditions;
    conditions.push(mk_condition("QuotaGranted", "False", "QuotaNoBudget", "no grant for instances", 30));
    evidence.snapshot.instances[0] = instance;
    assert_eq!(only(&evidence), ("project".into(), Actor::Operator, "QuotaNoBudget".into()));
    assert_eq!(workload(&evidence).findings[0].since, Some(now(30)));
}
