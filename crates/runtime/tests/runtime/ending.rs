//! Ends: asked for, forced, and of what belongs to nobody.

use std::time::Duration;

use futures::StreamExt as _;
use polis_engine::Exactly;
use polis_runtime::logs::Query;

use crate::world::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_instance_ends_gracefully_and_leaves_nothing() {
    let world = World::new().await;
    let script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done";
    let uid = world.create(&mk_script("polite", script)).await;
    world.until_writes(&uid, "up").await;
    world.until_running("polite").await;
    let follow = world.process().logs().follow(&uid, &Query::default()).unwrap();
    let heard = tokio::spawn(follow.map(|line| line.text).collect::<Vec<_>>());
    world.delete("polite").await;
    world.until_gone("polite").await;
    assert_eq!(processes_of(&uid), [] as [i32; 0]);
    assert!(!files(world.outside()).keys().any(|path| path.display().to_string().contains(&uid)));
    let heard = heard.await.unwrap();
    assert_eq!(heard.first().map(String::as_str), Some("up"), "{heard:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_may_say_its_last_words() {
    let world = World::new().await;
    let script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done";
    let uid = world.create(&mk_script("polite", script)).await;
    world.until_writes(&uid, "up").await;
    world.change("polite", |instance| instance.status.get_or_insert_default().suspended = Some(true)).await;
    world.until_writes(&uid, "bye").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_does_not_listen_is_killed_after_the_grace() {
    let world = World::with(|settings| settings.grace = Duration::from_millis(100)).await;
    let uid =
        world.create(&mk_script("stubborn", "trap '' TERM; echo up; while :; do sleep 0.02; done")).await;
    world.until_writes(&uid, "up").await;
    world.delete("stubborn").await;
    world.until_gone("stubborn").await;
    assert_eq!(processes_of(&uid), [] as [i32; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_forks_and_leaves_is_caught_with_the_instance() {
    let world = World::with(|settings| settings.grace = Duration::from_millis(100)).await;
    // Out of the group, out of the session, without a parent, and deaf.
    let script =
        "(setsid sh -c 'trap \"\" TERM; (setsid sleep 1000 &) ; sleep 1000' &) ; echo up; sleep 1000";
    let uid = world.create(&mk_script("forker", script)).await;
    world.until_writes(&uid, "up").await;
    world.until("they are on their way", async || (processes_of(&uid).len() >= 4).then_some(())).await;
    world.delete("forker").await;
    world.until_gone("forker").await;
    assert_eq!(processes_of(&uid), [] as [i32; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_left_behind_by_the_program_ends_with_it() {
    let world = World::with(|settings| settings.restarts.first = Duration::from_secs(600)).await;
    let uid = world.create(&mk_script("daemon", "setsid sleep 1000 & echo left $!; exit 0")).await;
    let left: i32 = world.until_writes(&uid, "left ").await.parse().unwrap();
    let message = world.until_says("daemon", "Running", "False", "InstanceCrashing").await;
    assert!(message.ends_with("exit code 0"), "{message}");
    assert!(!processes_of(&uid).contains(&left));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_instance_stops_and_goes_on_when_that_is_taken_back() {
    let world = World::new().await;
    let uid = world.create(&mk_instance("calm", "polis.local/sleep", &[])).await;
    world.until_running("calm").await;
    world.change("calm", |instance| instance.status.get_or_insert_default().suspended = Some(true)).await;
    world.until_says("calm", "Running", "False", "Suspended").await;
    world.until("nothing runs", async || processes_of(&uid).is_empty().then_some(())).await;
    world.change("calm", |instance| instance.status.get_or_insert_default().suspended = Some(false)).await;
    world.until_running("calm").await;
    assert_eq!(world.state(&uid).unwrap().restarts, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_for_no_instance_is_ended_and_the_rest_left_alone() {
    let mut world = World::new().await;
    let orphan = world.create(&mk_instance("orphan", "polis.local/sleep", &[])).await;
    let other = world.create(&mk_instance("other", "polis.local/sleep", &[])).await;
    world.until_running("orphan").await;
    world.until_running("other").await;
    let pid = world.state(&other).unwrap().pid;
    world.kill().await;
    // Somebody takes the instance away while nobody looks, against all rules.
    world.change("orphan", |instance| instance.metadata.finalizers = None).await;
    let instance = world.instance("orphan").await.unwrap();
    world.cell().delete(&instance, Exactly::Object).await.unwrap();
    assert!(!processes_of(&orphan).is_empty());
    world.start();
    world.until("the orphan has ended", async || processes_of(&orphan).is_empty().then_some(())).await;
    world.until("its folder is gone", async || world.state(&orphan).is_none().then_some(())).await;
    assert_eq!(world.state(&other).unwrap().pid, pid);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namesake_does_not_inherit_what_runs() {
    let mut world = World::new().await;
    let first = world.create(&mk_instance("web-0", "polis.local/sleep", &[])).await;
    world.until_running("web-0").await;
    world.kill().await;
    world.change("web-0", |instance| instance.metadata.finalizers = None).await;
    let instance = world.instance("web-0").await.unwrap();
    world.cell().delete(&instance, Exactly::Object).await.unwrap();
    let second = world.create(&mk_instance("web-0", "polis.local/sleep", &[])).await;
    world.start();
    world.until_running("web-0").await;
    world.until("the first has ended", async || processes_of(&first).is_empty().then_some(())).await;
    assert_eq!(processes_of(&second).len(), 1);
}
