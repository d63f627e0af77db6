//! Crash points: a process that dies after its n-th write, for every n of every act.
//!
//! One rehearsal of an act counts the writes that each role makes for it. Then the act is played once for each of them,
//! all at the same time in namespaces of their own: the line of the role is cut after the n-th write about that
//! namespace, the process is killed, and a new one finds what the old one left. In the end every plane looks as after
//! the rehearsal.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, future::join_all, stream};
use polis_e2e::{
    draft::workload,
    place::{DEADLINE, quiet},
    project::{Project, Running},
    seek::worked,
    staff::{Member, Role},
    wire::Cut,
    world::{World, alone},
};
use serde_json::{Map, Value, json};

use crate::chain;

const CITY: &str = "dfw";
const NAMESPACE: &str = "crash";
/// Processes that have not said anything for so long will not say any more about the act.
fn silent() -> Duration {
    2 * quiet()
}

/// Worlds that are prepared at the same time. The crash comes to all of them at once, but dozens of new workloads at once
/// would only measure how fast the machine is.
const PREPARED_AT_ONCE: usize = 8;

/// What is played.
#[derive(Debug, Clone, Copy)]
enum Act {
    Create,
    ScaleUp,
    ScaleDown,
    Rollout,
    Delete,
    Recreate,
}

impl Act {
    /// Replicas before the act; none when there is no workload yet.
    fn before(self) -> Option<i32> {
        match self {
            Act::Create => None,
            Act::ScaleUp | Act::Recreate => Some(1),
            Act::ScaleDown => Some(3),
            Act::Rollout | Act::Delete => Some(2),
        }
    }

    /// Replicas after the act; none when there is no workload any more.
    fn after(self) -> Option<i32> {
        match self {
            Act::Delete => None,
            Act::ScaleDown | Act::Recreate => Some(1),
            Act::Create | Act::Rollout => Some(2),
            Act::ScaleUp => Some(3),
        }
    }

    fn image(self) -> &'static str {
        match self {
            Act::Rollout => "registry.test/app:2",
            _ => polis_e2e::draft::IMAGE,
        }
    }

    async fn prepare(self, world: &World, project: &Project) -> Option<Running> {
        let replicas = self.before()?;
        let web = project.run(workload("web").placed("main", &[CITY], replicas)).await;
        runs(world, &web, replicas).await;
        Some(web)
    }

    async fn play(self, project: &Project, web: Option<Running>) -> Option<Running> {
        match (self, web) {
            (Act::Create, _) => Some(project.run(workload("web").placed("main", &[CITY], 2)).await),
            (Act::ScaleUp | Act::ScaleDown, Some(web)) => {
                let replicas = self.after().expect("it is scaled to something");
                web.edit(|spec| spec.placements[0].scale_settings.min_replicas = replicas).await;
                Some(web)
            }
            (Act::Rollout, Some(web)) => {
                web.edit(|spec| spec.template = polis_e2e::draft::template(self.image())).await;
                Some(web)
            }
            (Act::Delete | Act::Recreate, Some(web)) => {
                web.delete().await;
                None
            }
            (_, None) => unreachable!("prepared before"),
        }
    }

    /// What a user does once the act has taken effect: recreating needs the old one to be gone.
    async fn follow_up(self, project: &Project, web: Option<Running>) -> Option<Running> {
        if !matches!(self, Act::Recreate) {
            return web;
        }
        project.here().is_rid_of(worked("web")).await;
        Some(project.run(workload("web").placed("main", &[CITY], 1)).await)
    }

    async fn settles(self, world: &World, project: &Project, web: Option<&Running>) {
        match (self.after(), web) {
            (Some(replicas), Some(web)) => {
                runs(world, web, replicas).await;
                let name = web.spreads_to(&[CITY]).await.remove(0);
                for ordinal in 0..replicas {
                    let ready = polis_e2e::seek::instance(&format!("{name}-{ordinal}"))
                        .ready()
                        .with_image(self.image());
                    project.here().has(ready).await;
                }
            }
            _ => chain::is_clean(world, project).await,
        }
    }
}

async fn runs(world: &World, web: &Running, replicas: i32) {
    let name = web.spreads_to(&[CITY]).await.remove(0);
    chain::runs(world, &web.project, &name, CITY, replicas).await;
    web.project
        .here()
        .has(worked("web").counting(1, replicas, replicas).available("True", "AvailablePlacementFound"))
        .await;
}

/// Everything of ours on every plane, with what differs from project to project taken out.
fn picture(world: &World, project: &Project) -> BTreeMap<String, Value> {
    let mut picture = BTreeMap::new();
    for eye in world.eyes() {
        for namespace in project.namespaces() {
            for (key, object) in eye.within(&namespace) {
                if matches!(&*key.kind, "Event" | "Work" | "ResourceBinding") {
                    continue;
                }
                let shown = plain(&object);
                let name = stripped(&key.name);
                picture.insert(format!("{} {} {name}", eye.plane, key.kind), shown);
            }
        }
    }
    picture
}

/// The object without times, versions, counters of writes and identities.
fn plain(object: &Value) -> Value {
    let meta = &object["metadata"];
    let ours = |map: &Value| -> Value {
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
        "labels": ours(&meta["labels"]),
        "annotations": ours(&meta["annotations"]),
        "finalizers": meta["finalizers"],
        "owners": owners,
        "leaving": !meta["deletionTimestamp"].is_null(),
        "spec": anonymous(&object["spec"]),
        "status": anonymous(&object["status"]),
    })
}

fn anonymous(value: &Value) -> Value {
    const FLEETING: [&str; 4] = ["lastTransitionTime", "observedGeneration", "message", "uid"];
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, _)| !FLEETING.contains(&&***key));
            Value::Object(kept.map(|(key, value)| (key.clone(), anonymous(value))).collect::<Map<_, _>>())
        }
        Value::Array(list) => Value::Array(list.iter().map(anonymous).collect()),
        Value::String(text) => Value::String(stripped(text)),
        other => other.clone(),
    }
}

/// A text without what is made of identities: uids, the fingerprints in names, the endings of namespaces.
fn stripped(text: &str) -> String {
    const UID: [usize; 5] = [8, 4, 4, 4, 12];
    let hex = |part: &str| part.chars().all(|c| c.is_ascii_hexdigit());
    // The first part of a uid may stand behind something else, as in `key=uid`.
    let parts: Vec<&str> = text.split(['-', '=']).collect();
    let mut kept = Vec::new();
    let mut at = 0;
    while at < parts.len() {
        let next = &parts[at..parts.len().min(at + UID.len())];
        let uid = next.len() == UID.len()
            && next.iter().zip(UID).all(|(part, length)| part.len() == length && hex(part));
        let made = uid || (matches!(parts[at].len(), 8 | 10) && hex(parts[at]));
        kept.push(if made { "…" } else { parts[at] });
        at += if uid { UID.len() } else { 1 };
    }
    kept.join("-")
}

fn member(world: &World, role: &Role) -> Arc<Member> {
    world.member(role)
}

fn roles() -> [Role; 2] {
    [Role::Management, Role::Cell(CITY.to_owned())]
}

/// One point at which a process dies.
struct Point {
    role: Role,
    writes: usize,
    project: Project,
    web: Option<Running>,
    cut: Option<Cut>,
}

/// Plays the act once without a crash: the picture at the end, and the number of writes of each role.
async fn rehearse(world: &World, act: Act) -> (BTreeMap<String, Value>, Vec<usize>) {
    let project = world.project(NAMESPACE).await;
    let count = |role: &Role| member(world, role).tap.writes_about(&project.namespaces()).len();
    let web = act.prepare(world, &project).await;
    let before: Vec<usize> = roles().iter().map(count).collect();
    let web = act.play(&project, web).await;
    let web = act.follow_up(&project, web).await;
    act.settles(world, &project, web.as_ref()).await;
    let picture = calm_picture(world, &project).await;
    let writes = roles().iter().zip(before).map(|(role, before)| count(role) - before).collect();
    (picture, writes)
}

/// The picture once it has not changed for as long as it takes to be sure.
async fn calm_picture(world: &World, project: &Project) -> BTreeMap<String, Value> {
    let deadline = Instant::now() + DEADLINE;
    let (mut last, mut since) = (picture(world, project), Instant::now());
    while since.elapsed() < quiet() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = picture(world, project);
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

/// The picture once it is the expected one, or the last one when time is over: the status of a cell is on its way for as
/// long as the federation takes, and a busy machine makes that seconds.
async fn picture_like(
    world: &World,
    project: &Project,
    expected: &BTreeMap<String, Value>,
) -> BTreeMap<String, Value> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let now = picture(world, project);
        if now == *expected || Instant::now() > deadline {
            return now;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn every_crash_point(world: &World, act: Act) {
    let (expected, writes) = rehearse(world, act).await;
    let counted: Vec<(Role, usize)> = roles().into_iter().zip(writes).collect();
    for (role, writes) in &counted {
        assert!(*writes > 0, "{role} does nothing in {act:?}");
    }
    let all =
        counted.iter().flat_map(|(role, writes)| (0..*writes).map(move |writes| (role.clone(), writes)));
    let prepared = all.map(async |(role, writes)| {
        let project = world.project(NAMESPACE).await;
        let web = act.prepare(world, &project).await;
        Point { role, writes, project, web, cut: None }
    });
    let mut points: Vec<Point> = stream::iter(prepared).buffered(PREPARED_AT_ONCE).collect().await;

    for point in &mut points {
        let tap = &member(world, &point.role).tap;
        point.cut = Some(tap.cut_after(point.writes, &point.project.namespaces()));
    }
    let played = points.into_iter().map(async |mut point| {
        point.web = act.play(&point.project, point.web.take()).await;
        point
    });
    let points = join_all(played).await;
    let missed = wait_for_cuts(world, &points).await;
    for role in roles() {
        member(world, &role).kill();
        member(world, &role).tap.mend();
    }
    for role in roles() {
        member(world, &role).start().await.unwrap();
    }

    let settled = points.into_iter().map(async |mut point| {
        point.web = act.follow_up(&point.project, point.web.take()).await;
        act.settles(world, &point.project, point.web.as_ref()).await;
        let shown = picture_like(world, &point.project, &expected).await;
        let Point { role, writes, .. } = &point;
        let difference = difference(&expected, &shown);
        assert!(
            shown == expected,
            "{act:?}, {role} dead after {writes} writes, ends differently:\n{difference}"
        );
    });
    let points = join_all(settled).await.len();
    println!(
        "{act:?}: ended the same at {points} crash points ({counted:?}); {missed} of them came after the last write"
    );
}

/// Waits until every line is cut, and returns how many were not. A point may never come: where two ways lead to the
/// same end, one may need fewer writes.
async fn wait_for_cuts(world: &World, points: &[Point]) -> usize {
    let mut last = Instant::now();
    loop {
        let is_cut = |point: &&Point| point.cut.is_some_and(|cut| member(world, &point.role).tap.is_cut(cut));
        let missing = points.len() - points.iter().filter(is_cut).count();
        // What a cut line holds back is tried again and again: that is not a word about the act.
        let said = |role: &Role| member(world, role).tap.since(last).iter().any(|call| !call.cut);
        if roles().iter().any(said) {
            last = Instant::now();
        }
        if missing == 0 || last.elapsed() > silent() {
            return missing;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// What differs, path by path.
fn difference(expected: &BTreeMap<String, Value>, shown: &BTreeMap<String, Value>) -> String {
    let mut lines = Vec::new();
    for key in expected.keys().chain(shown.keys().filter(|key| !expected.contains_key(*key))) {
        let side = |picture: &BTreeMap<String, Value>| picture.get(key).cloned().unwrap_or(Value::Null);
        differing(key, &side(expected), &side(shown), &mut lines);
    }
    lines.join("\n")
}

fn differing(path: &str, expected: &Value, shown: &Value, lines: &mut Vec<String>) {
    match (expected, shown) {
        (Value::Object(one), Value::Object(other)) => {
            for key in one.keys().chain(other.keys().filter(|key| !one.contains_key(*key))) {
                differing(&format!("{path}.{key}"), &expected[key], &shown[key], lines);
            }
        }
        _ if expected == shown => {}
        _ => lines.push(format!("{path}\n  expected {expected}\n  is       {shown}")),
    }
}

#[test]
fn a_crash_at_any_write_of_a_creation_changes_nothing_in_the_end() {
    alone(async |world| every_crash_point(world, Act::Create).await);
}

#[test]
fn a_crash_at_any_write_of_a_scale_up_changes_nothing_in_the_end() {
    alone(async |world| every_crash_point(world, Act::ScaleUp).await);
}

#[test]
fn a_crash_at_any_write_of_a_scale_down_changes_nothing_in_the_end() {
    alone(async |world| every_crash_point(world, Act::ScaleDown).await);
}

#[test]
fn a_crash_at_any_write_of_a_rollout_changes_nothing_in_the_end() {
    alone(async |world| every_crash_point(world, Act::Rollout).await);
}

#[test]
fn a_crash_at_any_write_of_a_deletion_leaves_nothing_behind() {
    alone(async |world| every_crash_point(world, Act::Delete).await);
}

#[test]
fn a_crash_at_any_write_of_a_recreation_changes_nothing_in_the_end() {
    alone(async |world| every_crash_point(world, Act::Recreate).await);
}

#[test]
fn identities_are_taken_out_of_a_picture_and_words_stay() {
    assert_eq!(stripped("web-dfw-0a1b2c3d4e-0"), "web-dfw-…-0");
    assert_eq!(stripped("ns-1b2c3d4e-1111-4222-8333-123456789abc"), "ns-…");
    assert_eq!(stripped("crash-deadbee1"), "crash-…");
    assert_eq!(stripped("key=1b2c3d4e-1111-4222-8333-123456789abc"), "key-…");
    assert_eq!(stripped("StableInstanceFound"), "StableInstanceFound");
}
