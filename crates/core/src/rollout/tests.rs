use super::*;
use crate::testing::{at, deleting, mk_condition, mk_deployment, mk_instance, ready, with_conditions};
use polis_api::compute::WorkloadDeploymentStatus;

/// One instance of a deployment that is not ready for this reason since second 1000.
fn mk_unready(ordinal: u32, reason: &str) -> Instance {
    let mut condition = mk_condition("Ready", "False", reason);
    condition.last_transition_time = at(1000);
    condition.message = "why".into();
    with_conditions(mk_instance(&mk_deployment("web"), ordinal), vec![condition])
}

fn mk_ready(ordinal: u32) -> Instance {
    ready(mk_instance(&mk_deployment("web"), ordinal))
}

fn mk_input<'a>(owned: &'a [&'a Instance], existing: &'a [Condition]) -> DeploymentRollout<'a> {
    DeploymentRollout {
        existing,
        generation: Some(1),
        owned,
        updated: owned.len(),
        desired: 2,
        outside: &[],
        suspended: false,
    }
}

fn mk_marker(kind: &str, reason: &str, since: i64) -> Condition {
    let mut condition = mk_condition(kind, "True", reason);
    condition.last_transition_time = at(since);
    condition.observed_generation = Some(1);
    condition
}

fn short(state: &RolloutState) -> String {
    match state {
        RolloutState::Complete(lost) => {
            format!("complete {}", lost.as_ref().map(|cause| cause.reason.as_str()).unwrap_or_default())
        }
        RolloutState::InProgress(_) => "in progress".into(),
        RolloutState::Stuck(cause) => format!("stuck {}", cause.reason),
        RolloutState::Unknown(cause) => format!("unknown {}", cause.reason),
        RolloutState::Suspended => "suspended".into(),
    }
}

#[test]
fn a_rollout_is_complete_in_progress_or_stuck() {
    let (one, two) = (mk_ready(0), mk_ready(1));
    let starting = mk_unready(1, "Starting");
    let image = mk_unready(1, "ImageUnavailable");
    let (quota, gone) = (mk_unready(1, "PendingQuota"), deleting(mk_ready(1)));
    let began = [mk_marker("Reconciling", "RolloutInProgress", 1000)];
    let table: [(&str, &[&Instance], i64, &str); 10] = [
        ("all ready", &[&one, &two], 1001, "complete "),
        ("one is missing", &[&one], 1001, "in progress"),
        ("one starts", &[&one, &starting], 1001, "in progress"),
        ("one is being deleted", &[&one, &gone], 1001, "in progress"),
        ("one does not start", &[&one, &starting], 1120, "stuck ProgressDeadlineExceeded"),
        ("pulling takes longer", &[&one, &mk_unready(1, "ProgrammingInProgress")], 1500, "in progress"),
        (
            "pulling takes too long",
            &[&one, &mk_unready(1, "ProgrammingInProgress")],
            1600,
            "stuck ProgressDeadlineExceeded",
        ),
        ("a bad image, at once", &[&one, &image], 1000, "stuck ImageUnavailable"),
        ("quota is denied for a moment", &[&one, &quota], 1004, "in progress"),
        ("quota is denied", &[&one, &quota], 1005, "stuck PendingQuota"),
    ];
    for (case, owned, now, expected) in table {
        let rollout = of_deployment(&mk_input(owned, &began), &at(now));
        assert_eq!(short(&rollout.state), expected, "{case}");
        assert_eq!(rollout.recheck.is_some(), expected == "in progress", "{case}");
    }
}

#[test]
fn the_worst_cause_of_several_is_reported_with_its_instance() {
    let (quota, image) = (mk_unready(0, "PendingQuota"), mk_unready(1, "ImageUnavailable"));
    let began = [mk_marker("Reconciling", "RolloutInProgress", 900)];
    let RolloutState::Stuck(cause) = of_deployment(&mk_input(&[&quota, &image], &began), &at(2000)).state
    else {
        panic!("it is stuck")
    };
    assert_eq!((cause.reason.as_str(), cause.message.as_str()), ("ImageUnavailable", "web-1: why"));
}

#[test]
fn the_deadline_counts_from_the_start_of_the_generation_and_from_the_last_change() {
    let (one, two) = (mk_ready(0), mk_unready(1, "Starting"));
    let owned = [&one, &two];
    let state =
        |existing: &[Condition], now| short(&of_deployment(&mk_input(&owned, existing), &at(now)).state);
    assert_eq!(state(&[], 9000), "in progress", "a rollout that was not reported yet starts now");
    assert_eq!(state(&[mk_marker("Reconciling", "RolloutInProgress", 8950)], 9000), "in progress");
    let mut older = mk_marker("Reconciling", "RolloutInProgress", 100);
    older.observed_generation = Some(0);
    assert_eq!(state(&[older], 9000), "in progress", "the marker is of an earlier generation");
    let stuck = [mk_marker("Stalled", "ProgressDeadlineExceeded", 1200)];
    assert_eq!(state(&stuck, 1201), "stuck ProgressDeadlineExceeded", "it stays stuck");
    let earlier = [mk_marker("Stalled", "ProgressDeadlineExceeded", 990)];
    assert_eq!(state(&earlier, 1010), "in progress", "the instance has changed since");
    let quota = mk_unready(1, "PendingQuota");
    let denied = [mk_marker("Stalled", "PendingQuota", 1005)];
    let rollout = of_deployment(&mk_input(&[&one, &quota], &denied), &at(1006));
    assert_eq!(short(&rollout.state), "stuck PendingQuota", "a brief cause does not flap");
}

#[test]
fn causes_outside_the_instances_count_and_suspension_is_no_progress() {
    let outside = [("NetworkFailedToCreate", "no".to_owned())];
    let input = DeploymentRollout { outside: &outside, ..mk_input(&[], &[]) };
    assert_eq!(short(&of_deployment(&input, &at(1)).state), "stuck NetworkFailedToCreate");
    let (one, two) = (mk_unready(0, "Suspended"), mk_unready(1, "Suspended"));
    let owned = [&one, &two];
    let input = DeploymentRollout { suspended: true, ..mk_input(&owned, &[]) };
    assert_eq!(of_deployment(&input, &at(99_000)), Rollout::new(RolloutState::Suspended));
}

#[test]
fn every_state_has_the_conditions_that_kstatus_reads() {
    let cause = Cause::new("ImageUnavailable", "web-1: no");
    let table = [
        (RolloutState::Complete(None), "Progressing=True Degraded=False Ready=True"),
        (RolloutState::Complete(Some(cause.clone())), "Progressing=True Degraded=True Ready=True"),
        (
            RolloutState::InProgress("1 of 2".into()),
            "Progressing=True Degraded=False Ready=False Reconciling=True",
        ),
        (RolloutState::Stuck(cause.clone()), "Progressing=False Degraded=True Ready=False Stalled=True"),
        (RolloutState::Unknown(cause), "Progressing=Unknown Degraded=True Ready=Unknown"),
        (RolloutState::Suspended, "Progressing=Unknown Degraded=False Ready=False"),
    ];
    let mut conditions = Vec::new();
    for (state, expected) in &table {
        // Each state follows the one before it, and takes its markers away.
        apply(&mut conditions, state, Some(1), &at(5));
        let words: Vec<String> = conditions.iter().map(|c| format!("{}={}", c.type_, c.status)).collect();
        let mut expected: Vec<&str> = expected.split(' ').collect();
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        words.sort();
        expected.sort();
        assert_eq!(words, expected, "{state:?}");
        let before = conditions.clone();
        apply(&mut conditions, state, Some(1), &at(9));
        assert_eq!(conditions, before, "{state:?}");
    }
}

#[test]
fn a_new_generation_starts_the_rollout_anew() {
    let mut conditions = Vec::new();
    let state = RolloutState::InProgress("0 of 1".into());
    apply(&mut conditions, &state, Some(1), &at(5));
    apply(&mut conditions, &state, Some(2), &at(50));
    let since = conditions::find(&conditions, "Reconciling").unwrap().last_transition_time.clone();
    assert_eq!(since, at(50));
}

#[test]
fn a_deployment_of_a_project_is_what_its_cell_reports_about_the_newest_spec() {
    let mk = |conditions: Vec<Condition>| {
        let mut deployment = mk_deployment("web");
        deployment.status = Some(WorkloadDeploymentStatus {
            conditions,
            replicas: 1,
            desired_replicas: 1,
            ready_replicas: 1,
            updated_replicas: Some(1),
            source_revision: Some("uid-web.1".into()),
            ..Default::default()
        });
        deployment
    };
    let reported = |kind: &str, status: &str, reason: &str| mk(vec![mk_condition(kind, status, reason)]);
    let mut newer = reported("Ready", "True", "RolloutComplete");
    newer.metadata.generation = Some(2);
    let mut counting = reported("Available", "True", "StableInstanceFound");
    counting.status.as_mut().unwrap().updated_replicas = Some(0);
    let ending = deleting(reported("Withdrawn", "False", "CellUnreachable"));
    let table = [
        ("nothing reported", mk_deployment("web"), "in progress"),
        ("complete", reported("Ready", "True", "RolloutComplete"), "complete "),
        ("complete, of an older spec", newer, "in progress"),
        ("in progress", reported("Ready", "False", "RolloutInProgress"), "in progress"),
        ("stuck", reported("Stalled", "True", "InstanceCrashing"), "stuck InstanceCrashing"),
        ("the cell is silent", reported("Ready", "Unknown", "CellSilent"), "unknown CellSilent"),
        ("suspended", reported("Ready", "False", "Suspended"), "suspended"),
        ("not federated", reported("Federated", "False", "HubNamespaceTaken"), "stuck HubNamespaceTaken"),
        ("an earlier version, ready", reported("Available", "True", "StableInstanceFound"), "complete "),
        ("an earlier version, rolling", counting, "in progress"),
        (
            "an earlier version, blocked",
            reported("Available", "False", "QuotaNotGranted"),
            "stuck QuotaNotGranted",
        ),
        ("being deleted", deleting(mk_deployment("web")), "in progress"),
        ("being deleted, without its cell", ending, "stuck CellUnreachable"),
    ];
    for (case, deployment, expected) in table {
        assert_eq!(short(&of_reported(&deployment)), expected, "{case}");
    }
}

#[test]
fn the_worst_of_several_states_counts() {
    let stuck = |reason: &str| RolloutState::Stuck(Cause::new(reason, "x"));
    let lost = RolloutState::Complete(Some(Cause::new("LocationLost", "x")));
    let silent = RolloutState::Unknown(Cause::new("CellSilent", "x"));
    let moving = || RolloutState::InProgress("dfw".into());
    let table = [
        (vec![], "complete "),
        (vec![RolloutState::Complete(None), lost], "complete LocationLost"),
        (vec![RolloutState::Complete(None), moving()], "in progress"),
        (vec![moving(), silent.clone()], "unknown CellSilent"),
        (vec![silent, stuck("PendingQuota"), stuck("ImageUnavailable")], "stuck ImageUnavailable"),
        (vec![RolloutState::Suspended], "suspended"),
        (vec![RolloutState::Suspended, RolloutState::Complete(None)], "complete "),
    ];
    for (states, expected) in table {
        assert_eq!(short(&combined(states)), expected);
    }
    let many = combined((0..5).map(|_| moving()));
    assert_eq!(many, RolloutState::InProgress("dfw; dfw; dfw; and 2 more".into()));
}

#[test]
fn events_report_a_degradation_its_end_and_a_complete_rollout() {
    let of = |state: &RolloutState| {
        let mut conditions = Vec::new();
        apply(&mut conditions, state, Some(1), &at(5));
        conditions
    };
    let (moving, done) = (of(&RolloutState::InProgress("x".into())), of(&RolloutState::Complete(None)));
    let stuck = of(&RolloutState::Stuck(Cause::new("ImageUnavailable", "web-1: no")));
    let reasons = |before: &[Condition], after: &[Condition]| {
        let events = events(before, after).into_iter();
        events.map(|event| (event.warning, event.reason)).collect::<Vec<_>>()
    };
    assert_eq!(reasons(&[], &moving), []);
    assert_eq!(reasons(&moving, &stuck), [(true, "ImageUnavailable".to_owned())]);
    assert_eq!(reasons(&stuck, &moving), [(false, "AsExpected".to_owned())]);
    assert_eq!(reasons(&moving, &done), [(false, "RolloutComplete".to_owned())]);
    assert_eq!(reasons(&done, &done), []);
}
