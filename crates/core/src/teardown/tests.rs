use super::*;
use crate::metadata::map;
use crate::testing::{at, deleting, mk_condition, mk_deployment, mk_instance, mk_meta, mk_workload};
use polis_api::karmada::WorkStatus;

/// Now, in seconds; the deletion began at 500.
const NOW: i64 = 1000;

fn mk_source() -> WorkloadDeployment {
    deleting(mk_deployment("web"))
}

/// A hub copy that was marked this many seconds ago.
fn mk_marked(ago: i64) -> WorkloadDeployment {
    let mut copy = mk_deployment("web");
    copy.metadata.annotations = Some(map([(WITHDRAWN_AT, at(NOW - ago).0.to_string())]));
    copy
}

fn reported(mut copy: WorkloadDeployment, status: &str, ago: i64) -> WorkloadDeployment {
    let mut condition = mk_condition(WITHDRAWN, status, "any");
    condition.message = "2 instances are ending: web-0 to web-1".into();
    condition.last_transition_time = at(NOW - ago);
    copy.status.get_or_insert_default().conditions = vec![condition];
    copy
}

/// A Work in `dfw`, with `Applied` since this many seconds.
fn mk_work(applied: &str, ago: i64) -> Work {
    let mut work = Work { metadata: mk_meta("karmada-es-dfw", "web-1"), ..Work::default() };
    let mut condition = mk_condition(APPLIED, applied, "any");
    condition.last_transition_time = at(NOW - ago);
    work.status = Some(WorkStatus { conditions: vec![condition], ..WorkStatus::default() });
    work
}

/// The member `dfw`, ready or not since this many seconds.
fn mk_cluster(ready: &str, ago: i64) -> Cluster {
    let mut cluster = Cluster { metadata: mk_meta("", "dfw"), ..Cluster::default() };
    cluster.metadata.labels = Some(map([(TOPOLOGY_CITY_CODE, "dfw")]));
    let mut condition = mk_condition(READY, ready, "any");
    condition.last_transition_time = at(NOW - ago);
    cluster.status.get_or_insert_default().conditions = vec![condition];
    cluster
}

fn decide(copy: Option<&WorkloadDeployment>, works: &[Work], clusters: &[Cluster]) -> TeardownAction {
    let input = TeardownInput { copy, bound: false, works, clusters, abandoned: false };
    plan(&mk_source(), &input, &at(NOW))
}

/// A short form of a decision.
fn short(action: &TeardownAction) -> String {
    let waits = |waiting: &Waiting| match waiting.recheck {
        Some(recheck) => format!("{} {}s", waiting.reason, recheck.as_secs()),
        None => waiting.reason.to_owned(),
    };
    match action {
        TeardownAction::Mark(_) => "mark".into(),
        TeardownAction::DeleteCopy { unconfirmed: None } => "delete copy".into(),
        TeardownAction::DeleteCopy { unconfirmed: Some(_) } => "delete copy, unconfirmed".into(),
        TeardownAction::DeleteWorks(waiting) => format!("delete works, {}", waits(waiting)),
        TeardownAction::Wait(waiting) => waits(waiting),
        TeardownAction::Done { left_behind } => format!("done {left_behind:?}"),
    }
}

/// A Work whose copy of the deployment has the mark or not, and whose spec changed this many seconds ago.
fn mk_propagated(marked: bool, ago: i64) -> Work {
    use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
    let mut work = mk_work("True", 9000);
    let annotations = if marked { serde_json::json!({WITHDRAWN_AT: "x"}) } else { serde_json::json!({}) };
    let manifest =
        serde_json::json!({"kind": "WorkloadDeployment", "metadata": {"annotations": annotations}});
    work.spec.workload.manifests = vec![manifest];
    let write = |subresource: &str, ago| ManagedFieldsEntry {
        time: Some(at(NOW - ago)),
        subresource: Some(subresource.to_owned()).filter(|it| !it.is_empty()),
        ..Default::default()
    };
    work.metadata.managed_fields = Some(vec![write("", ago), write("status", 0)]);
    work
}

#[test]
fn a_federation_that_is_stopped_gives_no_evidence_about_the_cell() {
    let ready = [mk_cluster("True", 9000)];
    for (what, marked_ago, work, expected) in [
        ("the mark is on its way", 10, mk_propagated(false, 900), "AwaitingHub 10s"),
        ("the federation is stopped", 250, mk_propagated(false, 900), "AwaitingHub 10s"),
        ("for too long", 300, mk_propagated(false, 900), "delete copy, unconfirmed"),
        ("it has brought the mark just now", 250, mk_propagated(true, 3), "AwaitingCell 7s"),
        ("the cell has not reported since", 250, mk_propagated(true, 10), "delete copy, unconfirmed"),
    ] {
        let decision = decide(Some(&mk_marked(marked_ago)), &[work], &ready);
        assert_eq!(short(&decision), expected, "{what}");
    }
    let ending = reported(mk_marked(20), "False", 8);
    let decision = decide(Some(&ending), &[mk_propagated(false, 900)], &ready);
    assert_eq!(short(&decision), "InstancesEnding 292s", "a report is evidence");
}

#[test]
fn the_copy_is_marked_and_deleted_when_the_cell_has_reported_or_does_not_answer() {
    let ready = || mk_cluster("True", 9000);
    let work = || mk_work("True", 9000);
    let table = [
        ("nothing reached a cell", mk_deployment("web"), vec![], ready(), "delete copy"),
        ("a cell has it", mk_deployment("web"), vec![work()], ready(), "mark"),
        ("the cell has ended it", reported(mk_marked(9), "True", 1), vec![], ready(), "delete copy"),
        (
            "the same, not ready now",
            reported(mk_marked(9), "True", 1),
            vec![],
            mk_cluster("False", 1),
            "delete copy",
        ),
        ("instances are ending", reported(mk_marked(9), "False", 8), vec![], ready(), "InstancesEnding 292s"),
        (
            "they never end",
            reported(mk_marked(999), "False", 301),
            vec![],
            ready(),
            "delete copy, unconfirmed",
        ),
        (
            "ending, then not ready",
            reported(mk_marked(9), "False", 8),
            vec![work()],
            mk_cluster("False", 1),
            "CellUnreachable 10s",
        ),
        ("no report yet", mk_marked(4), vec![], ready(), "AwaitingCell 6s"),
        ("no report in time", mk_marked(10), vec![work()], ready(), "delete copy, unconfirmed"),
        (
            "the API server does not respond",
            mk_marked(9999),
            vec![work()],
            mk_cluster("False", 60),
            "CellUnreachable 10s",
        ),
        (
            "the agent is silent",
            mk_marked(9999),
            vec![work()],
            mk_cluster("Unknown", 60),
            "CellUnreachable 10s",
        ),
        (
            "not noticed as unready yet",
            mk_marked(15),
            vec![mk_work("False", 14)],
            ready(),
            "AwaitingCell 76s",
        ),
        (
            "back, and not applied again yet",
            mk_marked(9999),
            vec![mk_work("False", 500)],
            mk_cluster("True", 20),
            "AwaitingCell 70s",
        ),
        (
            "back, and just applied",
            mk_marked(9999),
            vec![mk_work("True", 3)],
            mk_cluster("True", 20),
            "AwaitingCell 7s",
        ),
        ("refused for good", mk_marked(95), vec![mk_work("False", 91)], ready(), "delete copy, unconfirmed"),
        (
            "a mark that is no time",
            {
                let mut copy = mk_marked(0);
                copy.metadata.annotations = Some(map([(WITHDRAWN_AT, "x")]));
                copy
            },
            vec![work()],
            ready(),
            "delete copy, unconfirmed",
        ),
        ("the copy has finalizers", deleting(mk_marked(9)), vec![work()], ready(), "AwaitingHub"),
    ];
    for (case, copy, works, cluster, expected) in table {
        assert_eq!(short(&decide(Some(&copy), &works, &[cluster])), expected, "{case}");
    }
}

#[test]
fn the_mark_is_the_time_and_changes_nothing_else() {
    let copy = mk_deployment("web");
    let TeardownAction::Mark(marked) = decide(Some(&copy), &[mk_work("True", 1)], &[]) else { panic!() };
    assert!(requested(&marked) && !requested(&copy));
    assert_eq!(marked_at(&marked), Some(at(NOW).0));
    assert_eq!(marked.spec, copy.spec);
}

#[test]
fn without_a_copy_the_finalizer_waits_for_the_binding_and_every_work() {
    let ready = [mk_cluster("True", 9000)];
    let ending = deleting(mk_work("True", 1));
    let bound = TeardownInput { copy: None, bound: true, works: &[], clusters: &ready, abandoned: false };
    assert_eq!(short(&plan(&mk_source(), &bound, &at(NOW))), "AwaitingHub 10s");
    assert_eq!(short(&decide(None, std::slice::from_ref(&ending), &ready)), "AwaitingCell 10s");
    let gone = [mk_cluster("False", 9)];
    assert_eq!(short(&decide(None, std::slice::from_ref(&ending), &gone)), "CellUnreachable 10s");
    assert_eq!(short(&decide(None, &[mk_work("True", 1)], &ready)), "delete works, AwaitingCell 10s");
    assert_eq!(short(&decide(None, &[], &ready)), "done []");
}

#[test]
fn reads_of_what_is_left_become_rarer() {
    let ending = [deleting(mk_work("True", 1))];
    let input = TeardownInput { copy: None, bound: false, works: &ending, clusters: &[], abandoned: false };
    let recheck = |now| match plan(&mk_source(), &input, &at(now)) {
        TeardownAction::Wait(waiting) => waiting.recheck.unwrap().as_millis(),
        other => panic!("{other:?}"),
    };
    assert_eq!([500, 501, 504, 520, 9000].map(recheck), [250, 250, 1000, 5000, 10_000]);
}

#[test]
fn a_young_deployment_is_checked_again_before_it_is_released() {
    let mut source = mk_source();
    source.metadata.creation_timestamp = Some(at(498));
    let input = TeardownInput { copy: None, bound: false, works: &[], clusters: &[], abandoned: false };
    assert_eq!(short(&plan(&source, &input, &at(501))), "AwaitingHub 1s");
    assert_eq!(short(&plan(&source, &input, &at(502))), "done []");
    assert_eq!(short(&plan(&mk_source(), &input, &at(500))), "done []", "an old one is released at once");
}

#[test]
fn an_abandoned_cell_is_not_awaited_and_its_works_stay() {
    let (unready, works) = ([mk_cluster("False", 9)], [deleting(mk_work("False", 1))]);
    let with =
        |copy| TeardownInput { copy, bound: false, works: &works, clusters: &unready, abandoned: true };
    let copy = mk_marked(3);
    assert_eq!(short(&plan(&mk_source(), &with(Some(&copy)), &at(NOW))), "delete copy");
    assert_eq!(short(&plan(&mk_source(), &with(None), &at(NOW))), "done [\"dfw\"]");
}

#[test]
fn a_cell_is_abandoned_by_the_deployment_or_by_its_deleted_workload() {
    let annotated = |value: &str| Some(map([(ABANDON, value)]));
    for (value, abandoned) in [("dfw", true), ("ord, DFW", true), ("ord", false), ("", false)] {
        let mut deployment = mk_deployment("web");
        deployment.metadata.annotations = annotated(value);
        assert_eq!(is_abandoned(&deployment, None), abandoned, "{value:?}");
    }
    let deployment = mk_deployment("web");
    let mut workload = mk_workload("shop", &["dfw"]);
    workload.metadata.annotations = annotated("dfw");
    assert!(!is_abandoned(&deployment, Some(&workload)), "it is not being deleted");
    let mut workload = deleting(workload);
    assert!(is_abandoned(&deployment, Some(&workload)));
    workload.metadata.uid = Some("another".into());
    assert!(!is_abandoned(&deployment, Some(&workload)), "a workload of the same name");
}

#[test]
fn works_are_read_only_where_they_decide() {
    let (ready, unready) = ([mk_cluster("True", 1)], [mk_cluster("False", 1)]);
    let needs = |copy: Option<WorkloadDeployment>, clusters: &[Cluster]| {
        needs_works(copy.as_ref(), clusters, &at(NOW))
    };
    assert!(needs(None, &ready) && needs(Some(mk_deployment("web")), &ready));
    assert!(!needs(Some(mk_marked(9)), &ready) && needs(Some(mk_marked(10)), &ready));
    assert!(!needs(Some(reported(mk_marked(99), "False", 1)), &ready));
    assert!(needs(Some(reported(mk_marked(99), "False", 1)), &unready));
    assert!(!needs(Some(reported(mk_marked(99), "True", 1)), &unready));
}

#[test]
fn members_that_leave_the_federation_are_named() {
    let works = [mk_work("True", 1)];
    assert_eq!(leaving(&works, &[]), ["dfw"]);
    assert_eq!(leaving(&works, &[mk_cluster("True", 1)]), [""; 0]);
    assert_eq!(leaving(&works, &[deleting(mk_cluster("True", 1))]), ["dfw"]);
    // Its Works go with it, so it does not hold the deletion.
    let unready = deleting(mk_cluster("False", 1));
    assert_eq!(short(&decide(None, &[deleting(mk_work("True", 1))], &[unready])), "AwaitingCell 10s");
}

#[test]
fn the_project_sees_what_is_left_and_since_when() {
    let mut source = mk_source();
    let waiting = hub_unreachable(&"connection refused");
    source.status = status(&source, None, &waiting, &at(510));
    assert_eq!(status(&source, None, &waiting, &at(520)), None, "written once");
    let mut copy = reported(mk_marked(9), "False", 9);
    copy.status.as_mut().unwrap().replicas = 2;
    let TeardownAction::Wait(waiting) = decide(Some(&copy), &[], &[]) else { panic!() };
    let status = status(&source, Some(&copy), &waiting, &at(530)).unwrap();
    let condition = conditions::find(&status.conditions, WITHDRAWN).unwrap();
    assert_eq!((status.replicas, status.conditions.len()), (2, 1));
    assert_eq!((condition.reason.as_str(), &condition.last_transition_time), ("InstancesEnding", &at(510)));
    assert_eq!(condition.message, "dfw: 2 instances are ending: web-0 to web-1");
}

#[test]
fn a_short_deletion_is_not_reported() {
    let source = mk_source();
    assert_eq!(report_after(&source, &at(500)), Some(REPORT_AFTER));
    assert_eq!(report_after(&source, &at(502)), None);
}

#[test]
fn a_workload_reports_the_worst_wait_of_its_deployments() {
    let waits = |name: &str, reason: &str, message: &str| {
        let mut deployment = mk_deployment(name);
        let mut condition = mk_condition(WITHDRAWN, "False", reason);
        condition.message = message.into();
        deployment.status.get_or_insert_default().conditions = vec![condition];
        deployment
    };
    assert_eq!(of_workload(&[mk_deployment("web")]), None);
    let both = [waits("b", CELL_UNREACHABLE, "ord is away"), waits("a", INSTANCES_ENDING, "dfw: 1 left")];
    let condition = of_workload(&both).unwrap();
    assert_eq!(
        (&*condition.reason, condition.message.as_str()),
        (CELL_UNREACHABLE, "dfw: 1 left; ord is away")
    );
}

#[test]
fn a_cell_reports_only_on_a_mark() {
    let instance = mk_instance(&mk_deployment("web"), 0);
    assert_eq!(cell_report(&mk_deployment("web"), &[]), None);
    let one = cell_report(&mk_marked(1), &[&instance]).unwrap();
    assert_eq!((&*one.reason, one.message.as_str()), (INSTANCES_ENDING, "1 instance is ending: web-0"));
    assert_eq!(cell_report(&mk_marked(1), &[]).unwrap().reason, INSTANCES_ENDED);
}
