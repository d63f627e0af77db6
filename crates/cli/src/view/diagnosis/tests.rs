use super::*;
use crate::view::testing::{
    at, mk_blocked, mk_condition, mk_deployment, mk_instance, mk_picture, mk_ready, mk_starting, now,
};

fn mk_evidence(cities: &[&str], replicas: i32) -> Evidence {
    Evidence { picture: mk_picture(cities, replicas), ..Default::default() }
}

fn mk_cell(city: &str, instances: Vec<Instance>) -> Beyond {
    Beyond {
        name: format!("cell {city}"),
        city: city.into(),
        deployments: vec![mk_deployment(city, 1)],
        instances,
        bindings: None,
    }
}

fn mk_hub(cities: &[&str]) -> Beyond {
    let deployments = cities.iter().map(|city| mk_deployment(city, 1)).collect();
    Beyond { name: "hub".into(), deployments, ..Default::default() }
}

fn mk_binding(city: &str, clusters: &[&str]) -> ResourceBinding {
    let name = owner::name(&mk_deployment(city, 1).metadata).to_owned();
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

/// The one finding: where it was seen, whose turn it is, and the reason.
fn only(evidence: &Evidence) -> (String, Turn, String) {
    let diagnosis = workload(evidence);
    assert_eq!(diagnosis.findings.len(), 1, "{diagnosis:#?}");
    let finding = diagnosis.findings[0].clone();
    (finding.plane, finding.turn, finding.reason)
}

#[test]
fn a_workload_that_is_well_needs_one_line() {
    let evidence = mk_evidence(&["dfw", "ord"], 2);
    assert_eq!(drawn(&evidence).trim(), "web is as it should be: 4 of 4 instances are ready");
    assert_eq!(workload(&evidence).mood(), Mood::Good);
}

#[test]
fn an_instance_without_an_image_is_told_with_what_to_do() {
    let mut evidence = mk_evidence(&["dfw", "ord"], 1);
    let words = "image nginx is no program of this machine";
    evidence.picture.instances[1] = mk_blocked(mk_instance("ord", 0), "ImageUnavailable", words);
    insta::assert_snapshot!(drawn(&evidence));
}

#[test]
fn instances_that_say_the_same_are_told_once() {
    let mut evidence = mk_evidence(&["dfw"], 3);
    for ordinal in 1..3 {
        let instance = mk_instance("dfw", ordinal);
        evidence.picture.instances[ordinal as usize] =
            mk_blocked(instance, "PendingQuota", "instances: 1 of 1 used");
    }
    insta::assert_snapshot!(drawn(&evidence));
}

#[test]
fn the_worst_is_told_first() {
    let mut evidence = mk_evidence(&["dfw", "ord"], 1);
    evidence.picture.instances[0] = mk_starting(mk_instance("dfw", 0));
    evidence.picture.instances[1] = mk_blocked(mk_instance("ord", 0), "InstanceCrashing", "exit 1");
    let moods: Vec<Mood> = workload(&evidence).findings.iter().map(|f| f.mood).collect();
    assert_eq!(moods, [Mood::Stuck, Mood::Moving]);
}

#[test]
fn a_change_that_nobody_has_seen_is_the_controllers_turn() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    evidence.picture.workload.as_mut().unwrap().metadata.generation = Some(2);
    assert_eq!(only(&evidence), ("project".into(), Turn::Polis, String::new()));
}

#[test]
fn a_city_that_the_project_may_not_use_is_told_with_those_it_may() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    evidence.picture.workload.as_mut().unwrap().spec.placements[0].city_codes.push("DFW".into());
    evidence.cities = Some(Cities::Bound(["dfw".to_owned(), "ord".to_owned()].into()));
    insta::assert_snapshot!(drawn(&evidence));
}

#[test]
fn a_missing_network_is_told_once_for_the_workload() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    let status = evidence.picture.workload.as_mut().unwrap().status.as_mut().unwrap();
    status.conditions = vec![mk_condition("Available", "False", "NetworkNotFound", "default/web-net", 3)];
    assert_eq!(only(&evidence), ("project".into(), Turn::You, "NetworkNotFound".into()));
}

/// The way of the data, plane by plane: the first step that is missing has the turn.
#[test]
fn the_first_missing_step_of_the_way_has_the_turn() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    evidence.picture.instances.clear();
    evidence.picture.deployments.clear();
    assert_eq!(only(&evidence), ("project".into(), Turn::Polis, String::new()));

    let mut deployment = mk_deployment("dfw", 1);
    deployment.status = None;
    evidence.picture.deployments = vec![deployment.clone()];
    assert!(workload(&evidence).findings[0].means.contains("not been sent to the hub"));

    let mark = (annotations::FEDERATION_NAMESPACE.to_owned(), "ns-1".to_owned());
    deployment.metadata.annotations = Some([mark].into());
    evidence.picture.deployments = vec![deployment];
    evidence.hub = Some(mk_hub(&[]));
    assert_eq!(only(&evidence), ("hub".into(), Turn::Polis, String::new()));

    evidence.hub = Some(Beyond { bindings: Some(vec![]), ..mk_hub(&["dfw"]) });
    assert_eq!(only(&evidence), ("hub".into(), Turn::Federation, String::new()));

    evidence.hub.as_mut().unwrap().bindings = Some(vec![mk_binding("dfw", &[])]);
    assert_eq!(only(&evidence), ("hub".into(), Turn::Operator, String::new()));

    evidence.hub.as_mut().unwrap().bindings = Some(vec![mk_binding("dfw", &["dfw"])]);
    evidence.cells = vec![Beyond { deployments: vec![], ..mk_cell("dfw", vec![]) }];
    assert_eq!(only(&evidence), ("cell dfw".into(), Turn::Federation, String::new()));

    evidence.cells = vec![mk_cell("dfw", vec![])];
    assert_eq!(only(&evidence), ("cell dfw".into(), Turn::Polis, String::new()));

    evidence.cells = vec![mk_cell("dfw", vec![mk_starting(mk_instance("dfw", 0))])];
    assert_eq!(only(&evidence), ("cell dfw".into(), Turn::Provider, "ProgrammingInProgress".into()));

    evidence.cells = vec![mk_cell("dfw", vec![mk_ready(mk_instance("dfw", 0))])];
    assert_eq!(only(&evidence), ("project".into(), Turn::Polis, String::new()));

    evidence.picture.instances = vec![mk_ready(mk_instance("dfw", 0))];
    assert_eq!(workload(&evidence).findings, []);
}

#[test]
fn what_is_being_left_is_held_by_the_deepest_plane_that_has_it() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    evidence.picture.deployments[0].metadata.deletion_timestamp = Some(at(60));
    assert_eq!(only(&evidence).1, Turn::Polis);
    evidence.hub = Some(mk_hub(&["dfw"]));
    assert_eq!(only(&evidence).1, Turn::Federation);
    evidence.cells = vec![mk_cell("dfw", vec![mk_instance("dfw", 0)])];
    assert_eq!(only(&evidence).1, Turn::Provider);
}

#[test]
fn too_few_instances_is_told_with_the_word_of_the_deployment() {
    let mut evidence = mk_evidence(&["dfw"], 2);
    evidence.picture.instances.clear();
    let status = evidence.picture.deployments[0].status.as_mut().unwrap();
    status.conditions =
        vec![mk_condition("Available", "False", "ProvisioningNetwork", "binding is not ready", 5)];
    assert_eq!(only(&evidence), ("project".into(), Turn::Operator, "ProvisioningNetwork".into()));
}

#[test]
fn a_rollout_under_way_is_told_as_such() {
    let mut evidence = mk_evidence(&["dfw"], 2);
    let workload_ = evidence.picture.workload.as_mut().unwrap();
    workload_.spec.template.spec.runtime.sandbox.as_mut().unwrap().containers[0].image = "new".into();
    assert!(workload(&evidence).findings[0].means.contains("2 of 2 instances still run"));
}

#[test]
fn one_instance_is_judged_alone() {
    let mut evidence = mk_evidence(&["dfw"], 2);
    evidence.picture.instances[1] = mk_blocked(mk_instance("dfw", 1), "ConfigurationError", "no VM here");
    let names: Vec<String> =
        evidence.picture.instances.iter().map(|i| owner::name(&i.metadata).to_owned()).collect();
    assert_eq!(instance(&evidence, &names[0]).mood(), Mood::Good);
    assert_eq!(instance(&evidence, &names[1]).mood(), Mood::Stuck);
}

#[test]
fn gates_are_named_when_nothing_else_is_known() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    evidence.picture.instances[0] = mk_blocked(mk_instance("dfw", 0), "SchedulingGatesPresent", "");
    assert_eq!(workload(&evidence).findings[0].says, "gates left: Network, Quota");
}

#[test]
fn a_reason_of_another_version_is_passed_on() {
    let mut evidence = mk_evidence(&["dfw"], 1);
    evidence.picture.instances[0] = mk_blocked(mk_instance("dfw", 0), "SomethingNew", "words");
    let finding = workload(&evidence).findings[0].clone();
    assert!(finding.means.contains("SomethingNew") && finding.says == "words");
}

#[test]
fn words_are_wrapped_beside_their_label() {
    let text = entry("do", &"word ".repeat(30), Some(40));
    assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
    assert!(text.lines().skip(1).all(|line| line.starts_with("        w")), "{text}");
}
