//! Crash points: a process is killed after its n-th write, for every n of every operation.
//!
//! A reference run of an operation counts the writes of each role. Then the operation runs once per write,
//! all at the same time in separate namespaces: the proxy of the role drops requests after the n-th write in
//! that namespace, the process is killed, and a new one continues. In the end every plane must look as after
//! the reference run.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, future::join_all, stream};
use polis_e2e::{
    builders::workload,
    manager_process::{ManagerProcess, Role},
    matchers::workload_named,
    project::{AppliedWorkload, Project},
    proxy::FaultId,
    view::{TIMEOUT, quiet_period},
    world::{World, disruptive_scenario},
};
use serde_json::{Map, Value, json};

use crate::rollout;

const CITY: &str = "dfw";
const NAMESPACE: &str = "crash";
/// Without a request for this long, the processes have finished the operation.
fn idle_timeout() -> Duration {
    2 * quiet_period()
}

/// Projects that are prepared at the same time. All crash at once, but the creation of dozens of workloads at
/// once would only measure the speed of the machine.
const PREPARED_AT_ONCE: usize = 8;

/// The operation under test.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Create,
    ScaleUp,
    ScaleDown,
    Rollout,
    Delete,
    Recreate,
}

impl Operation {
    /// Replicas before the operation; none if there is no workload yet.
    fn before(self) -> Option<i32> {
        match self {
            Operation::Create => None,
            Operation::ScaleUp | Operation::Recreate => Some(1),
            Operation::ScaleDown => Some(3),
            Operation::Rollout | Operation::Delete => Some(2),
        }
    }

    /// Replicas after the operation; none if the workload is deleted.
    fn after(self) -> Option<i32> {
        match self {
            Operation::Delete => None,
            Operation::ScaleDown | Operation::Recreate => Some(1),
            Operation::Create | Operation::Rollout => Some(2),
            Operation::ScaleUp => Some(3),
        }
    }

    fn image(self) -> &'static str {
        match self {
            Operation::Rollout => "registry.test/app:2",
            _ => polis_e2e::builders::IMAGE,
        }
    }

    async fn prepare(self, world: &World, project: &Project) -> Option<AppliedWorkload> {
        let replicas = self.before()?;
        let web = project.run(workload("web").placed("main", &[CITY], replicas)).await;
        runs(world, &web, replicas).await;
        Some(web)
    }

    async fn run(self, project: &Project, web: Option<AppliedWorkload>) -> Option<AppliedWorkload> {
        match (self, web) {
            (Operation::Create, _) => Some(project.run(workload("web").placed("main", &[CITY], 2)).await),
            (Operation::ScaleUp | Operation::ScaleDown, Some(web)) => {
                let replicas = self.after().expect("a scale operation has replicas");
                web.edit(|spec| spec.placements[0].scale_settings.min_replicas = replicas).await;
                Some(web)
            }
            (Operation::Rollout, Some(web)) => {
                web.edit(|spec| spec.template = polis_e2e::builders::mk_template(self.image())).await;
                Some(web)
            }
            (Operation::Delete | Operation::Recreate, Some(web)) => {
                web.delete().await;
                None
            }
            (_, None) => unreachable!("the workload was created before"),
        }
    }

    /// What the user does after the operation: a recreation needs the old workload to be deleted first.
    async fn follow_up(self, project: &Project, web: Option<AppliedWorkload>) -> Option<AppliedWorkload> {
        if !matches!(self, Operation::Recreate) {
            return web;
        }
        project.view().until_gone(workload_named("web")).await;
        Some(project.run(workload("web").placed("main", &[CITY], 1)).await)
    }

    async fn until_done(self, world: &World, project: &Project, web: Option<&AppliedWorkload>) {
        match (self.after(), web) {
            (Some(replicas), Some(web)) => {
                runs(world, web, replicas).await;
                let name = web.until_deployed_to(&[CITY]).await.remove(0);
                for ordinal in 0..replicas {
                    let ready = polis_e2e::matchers::instance(&format!("{name}-{ordinal}"))
                        .ready()
                        .with_image(self.image());
                    project.view().eventually_has(ready).await;
                }
            }
            _ => rollout::until_clean(world, project).await,
        }
    }
}

async fn runs(world: &World, web: &AppliedWorkload, replicas: i32) {
    let name = web.until_deployed_to(&[CITY]).await.remove(0);
    rollout::until_running(world, &web.project, &name, CITY, replicas).await;
    web.project
        .view()
        .eventually_has(
            workload_named("web")
                .with_counts(1, replicas, replicas)
                .available("True", "AvailablePlacementFound"),
        )
        .await;
}

/// All objects of a project on every plane, without what differs between projects.
fn snapshot(world: &World, project: &Project) -> BTreeMap<String, Value> {
    let mut snapshot = BTreeMap::new();
    for recorder in world.recorders() {
        for namespace in project.namespaces() {
            for (key, object) in recorder.in_namespace(&namespace) {
                if matches!(&*key.kind, "Event" | "Work" | "ResourceBinding") {
                    continue;
                }
                let actual = normalized(&object);
                let name = without_identities(&key.name);
                snapshot.insert(format!("{} {} {name}", recorder.plane, key.kind), actual);
            }
        }
    }
    snapshot
}

/// The object without times, versions and identities.
fn normalized(object: &Value) -> Value {
    let meta = &object["metadata"];
    let own_keys = |map: &Value| -> Value {
        let kept = map.as_object().into_iter().flatten().filter(|(key, _)| !key.contains("karmada.io"));
        Value::Object(kept.map(|(key, value)| (key.clone(), anonymous(value))).collect())
    };
    let owners: Vec<Value> = meta["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|owner| json!({"kind": owner["kind"], "name": anonymous(&owner["name"]), "controller": owner["controller"]}))
        .collect();
    json!({
        "labels": own_keys(&meta["labels"]),
        "annotations": own_keys(&meta["annotations"]),
        "finalizers": meta["finalizers"],
        "owners": owners,
        "deleting": !meta["deletionTimestamp"].is_null(),
        "spec": anonymous(&object["spec"]),
        "status": anonymous(&object["status"]),
    })
}

fn anonymous(value: &Value) -> Value {
    const VOLATILE: [&str; 4] = ["lastTransitionTime", "observedGeneration", "message", "uid"];
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, _)| !VOLATILE.contains(&&***key));
            Value::Object(kept.map(|(key, value)| (key.clone(), anonymous(value))).collect::<Map<_, _>>())
        }
        Value::Array(list) => Value::Array(list.iter().map(anonymous).collect()),
        Value::String(text) => Value::String(without_identities(text)),
        other => other.clone(),
    }
}

/// Replaces what derives from identities: uids, hashes in names, suffixes of namespaces.
fn without_identities(text: &str) -> String {
    const UID: [usize; 5] = [8, 4, 4, 4, 12];
    let hex = |part: &str| part.chars().all(|c| c.is_ascii_hexdigit());
    // The first part of a uid may follow other text, as in `key=uid`.
    let parts: Vec<&str> = text.split(['-', '=']).collect();
    let mut kept = Vec::new();
    let mut at = 0;
    while at < parts.len() {
        let next = &parts[at..parts.len().min(at + UID.len())];
        let uid = next.len() == UID.len()
            && next.iter().zip(UID).all(|(part, length)| part.len() == length && hex(part));
        let generated = uid || (matches!(parts[at].len(), 8 | 10) && hex(parts[at]));
        kept.push(if generated { "…" } else { parts[at] });
        at += if uid { UID.len() } else { 1 };
    }
    kept.join("-")
}

fn process(world: &World, role: &Role) -> Arc<ManagerProcess> {
    world.process(role)
}

fn roles() -> [Role; 2] {
    [Role::Management, Role::Cell(CITY.to_owned())]
}

/// A crash point.
struct Point {
    role: Role,
    writes: usize,
    project: Project,
    web: Option<AppliedWorkload>,
    fault: Option<FaultId>,
}

/// Runs the operation without a crash; returns the final snapshot and the number of writes of each role.
async fn reference_run(world: &World, operation: Operation) -> (BTreeMap<String, Value>, Vec<usize>) {
    let project = world.project(NAMESPACE).await;
    let count = |role: &Role| process(world, role).requests.writes_in(&project.namespaces()).len();
    let web = operation.prepare(world, &project).await;
    let before: Vec<usize> = roles().iter().map(count).collect();
    let web = operation.run(&project, web).await;
    let web = operation.follow_up(&project, web).await;
    operation.until_done(world, &project, web.as_ref()).await;
    let snapshot = stable_snapshot(world, &project).await;
    let writes = roles().iter().zip(before).map(|(role, before)| count(role) - before).collect();
    (snapshot, writes)
}

/// The snapshot once it has not changed for the quiet period.
async fn stable_snapshot(world: &World, project: &Project) -> BTreeMap<String, Value> {
    let deadline = Instant::now() + TIMEOUT;
    let (mut last, mut since) = (snapshot(world, project), Instant::now());
    while since.elapsed() < quiet_period() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = snapshot(world, project);
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

/// The snapshot once it equals the expected one, or the last one at the timeout: the status of a cell takes
/// seconds through the federation on a busy machine.
async fn snapshot_like(
    world: &World,
    project: &Project,
    expected: &BTreeMap<String, Value>,
) -> BTreeMap<String, Value> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let now = snapshot(world, project);
        if now == *expected || Instant::now() > deadline {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn every_crash_point(world: &World, operation: Operation) {
    let (expected, writes) = reference_run(world, operation).await;
    let counted: Vec<(Role, usize)> = roles().into_iter().zip(writes).collect();
    for (role, writes) in &counted {
        assert!(*writes > 0, "{role} writes nothing in {operation:?}");
    }
    let all =
        counted.iter().flat_map(|(role, writes)| (0..*writes).map(move |writes| (role.clone(), writes)));
    let prepared = all.map(async |(role, writes)| {
        let project = world.project(NAMESPACE).await;
        let web = operation.prepare(world, &project).await;
        Point { role, writes, project, web, fault: None }
    });
    let mut points: Vec<Point> = stream::iter(prepared).buffered(PREPARED_AT_ONCE).collect().await;

    for point in &mut points {
        let requests = &process(world, &point.role).requests;
        point.fault = Some(requests.crash_after_writes_in(point.writes, &point.project.namespaces()));
    }
    let started = points.into_iter().map(async |mut point| {
        point.web = operation.run(&point.project, point.web.take()).await;
        point
    });
    let points = join_all(started).await;
    let missed = wait_for_faults(world, &points).await;
    for role in roles() {
        process(world, &role).kill();
        process(world, &role).requests.clear_faults();
    }
    for role in roles() {
        process(world, &role).start().await.unwrap();
    }

    let finished = points.into_iter().map(async |mut point| {
        point.web = operation.follow_up(&point.project, point.web.take()).await;
        operation.until_done(world, &point.project, point.web.as_ref()).await;
        let actual = snapshot_like(world, &point.project, &expected).await;
        let Point { role, writes, .. } = &point;
        let difference = difference(&expected, &actual);
        assert!(
            actual == expected,
            "{operation:?}, {role} killed after {writes} writes, ends differently:\n{difference}"
        );
    });
    let points = join_all(finished).await.len();
    println!(
        "{operation:?}: same result at {points} crash points ({counted:?}); {missed} of them were after the last write"
    );
}

/// Waits until every fault is triggered; returns how many were not. A crash point may not occur: a run may
/// need fewer writes than the reference run.
async fn wait_for_faults(world: &World, points: &[Point]) -> usize {
    let mut last = Instant::now();
    loop {
        let is_triggered = |point: &&Point| {
            point.fault.is_some_and(|fault| process(world, &point.role).requests.is_triggered(fault))
        };
        let missing = points.len() - points.iter().filter(is_triggered).count();
        // Dropped requests are retried without limit, so they do not count as activity.
        let is_active =
            |role: &Role| process(world, role).requests.since(last).iter().any(|request| !request.dropped);
        if roles().iter().any(is_active) {
            last = Instant::now();
        }
        if missing == 0 || last.elapsed() > idle_timeout() {
            return missing;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The differences, by path.
fn difference(expected: &BTreeMap<String, Value>, actual: &BTreeMap<String, Value>) -> String {
    let mut lines = Vec::new();
    for key in expected.keys().chain(actual.keys().filter(|key| !expected.contains_key(*key))) {
        let object = |snapshot: &BTreeMap<String, Value>| snapshot.get(key).cloned().unwrap_or(Value::Null);
        collect_differences(key, &object(expected), &object(actual), &mut lines);
    }
    lines.join("\n")
}

fn collect_differences(path: &str, expected: &Value, actual: &Value, lines: &mut Vec<String>) {
    match (expected, actual) {
        (Value::Object(one), Value::Object(other)) => {
            for key in one.keys().chain(other.keys().filter(|key| !one.contains_key(*key))) {
                collect_differences(&format!("{path}.{key}"), &expected[key], &actual[key], lines);
            }
        }
        _ if expected == actual => {}
        _ => lines.push(format!("{path}\n  expected {expected}\n  is       {actual}")),
    }
}

#[test]
fn a_crash_at_any_write_of_a_creation_does_not_change_the_result() {
    disruptive_scenario(async |world| every_crash_point(world, Operation::Create).await);
}

#[test]
fn a_crash_at_any_write_of_a_scale_up_does_not_change_the_result() {
    disruptive_scenario(async |world| every_crash_point(world, Operation::ScaleUp).await);
}

#[test]
fn a_crash_at_any_write_of_a_scale_down_does_not_change_the_result() {
    disruptive_scenario(async |world| every_crash_point(world, Operation::ScaleDown).await);
}

#[test]
fn a_crash_at_any_write_of_a_rollout_does_not_change_the_result() {
    disruptive_scenario(async |world| every_crash_point(world, Operation::Rollout).await);
}

#[test]
fn a_crash_at_any_write_of_a_deletion_leaves_nothing() {
    disruptive_scenario(async |world| every_crash_point(world, Operation::Delete).await);
}

#[test]
fn a_crash_at_any_write_of_a_recreation_does_not_change_the_result() {
    disruptive_scenario(async |world| every_crash_point(world, Operation::Recreate).await);
}

#[test]
fn a_snapshot_has_no_identities() {
    assert_eq!(without_identities("web-dfw-0a1b2c3d4e-0"), "web-dfw-…-0");
    assert_eq!(without_identities("ns-1b2c3d4e-1111-4222-8333-123456789abc"), "ns-…");
    assert_eq!(without_identities("crash-deadbee1"), "crash-…");
    assert_eq!(without_identities("key=1b2c3d4e-1111-4222-8333-123456789abc"), "key-…");
    assert_eq!(without_identities("StableInstanceFound"), "StableInstanceFound");
}
