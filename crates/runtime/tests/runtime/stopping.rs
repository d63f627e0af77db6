//! Stopping instances: graceful, forced, suspended and orphaned.

use std::time::Duration;

use futures::StreamExt as _;
use polis_engine::Preconditions;
use polis_runtime::logs::LogQuery;

use crate::test_cell::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_instance_stops_gracefully_and_leaves_nothing() {
    let cell = TestCell::new().await;
    let script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done";
    let uid = cell.create(&mk_script("polite", script)).await;
    cell.until_writes(&uid, "up").await;
    cell.until_running("polite").await;
    let follow = cell.process().logs().follow(&uid, &LogQuery::default()).unwrap();
    let lines = tokio::spawn(follow.map(|line| line.text).collect::<Vec<_>>());
    cell.delete("polite").await;
    cell.until_gone("polite").await;
    assert_eq!(processes_of(&uid), [] as [i32; 0]);
    assert!(!files(cell.outside()).keys().any(|path| path.display().to_string().contains(&uid)));
    let lines = lines.await.unwrap();
    assert_eq!(lines.first().map(String::as_str), Some("up"), "{lines:?}");
    assert!(lines.iter().any(|line| line == "bye"), "a follow request loses no last line: {lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_written_on_term_is_kept() {
    let cell = TestCell::new().await;
    let script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.02; done";
    let uid = cell.create(&mk_script("polite", script)).await;
    cell.until_writes(&uid, "up").await;
    cell.change("polite", |instance| instance.status.get_or_insert_default().suspended = Some(true)).await;
    cell.until_writes(&uid, "bye").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_ignores_term_is_killed_after_the_grace_period() {
    let cell = TestCell::with(|settings| settings.grace_period = Duration::from_millis(100)).await;
    let uid =
        cell.create(&mk_script("stubborn", "trap '' TERM; echo up; while :; do sleep 0.02; done")).await;
    cell.until_writes(&uid, "up").await;
    cell.delete("stubborn").await;
    cell.until_gone("stubborn").await;
    assert_eq!(processes_of(&uid), [] as [i32; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_leave_the_group_are_killed_with_the_instance() {
    let cell = TestCell::with(|settings| settings.grace_period = Duration::from_millis(100)).await;
    // Outside the group and the session, without a parent, and ignoring TERM.
    let script =
        "(setsid sh -c 'trap \"\" TERM; (setsid sleep 1000 &) ; sleep 1000' &) ; echo up; sleep 1000";
    let uid = cell.create(&mk_script("forker", script)).await;
    cell.until_writes(&uid, "up").await;
    cell.until("all processes have started", async || (processes_of(&uid).len() >= 4).then_some(())).await;
    cell.delete("forker").await;
    cell.until_gone("forker").await;
    assert_eq!(processes_of(&uid), [] as [i32; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_left_behind_by_the_program_are_killed() {
    let cell = TestCell::with(|settings| settings.restart_backoff.initial = Duration::from_secs(600)).await;
    let uid = cell.create(&mk_script("daemon", "setsid sleep 1000 & echo left $!; exit 0")).await;
    cell.until_writes(&uid, "left ").await;
    let message = cell.until_condition("daemon", "Running", "False", "InstanceCrashing").await;
    assert!(message.ends_with("exit code 0"), "{message}");
    assert_eq!(processes_of(&uid), [] as [i32; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_instance_stops_and_resumes() {
    let cell = TestCell::new().await;
    let uid = cell.create(&mk_instance("calm", "polis.local/sleep", &[])).await;
    cell.until_running("calm").await;
    cell.change("calm", |instance| instance.status.get_or_insert_default().suspended = Some(true)).await;
    cell.until_condition("calm", "Running", "False", "Suspended").await;
    cell.until("no process runs", async || processes_of(&uid).is_empty().then_some(())).await;
    cell.change("calm", |instance| instance.status.get_or_insert_default().suspended = Some(false)).await;
    cell.until_running("calm").await;
    assert_eq!(cell.state(&uid).unwrap().restarts, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_without_an_instance_are_removed_and_others_stay() {
    let mut cell = TestCell::new().await;
    let orphan = cell.create(&mk_instance("orphan", "polis.local/sleep", &[])).await;
    let other = cell.create(&mk_instance("other", "polis.local/sleep", &[])).await;
    cell.until_running("orphan").await;
    cell.until_running("other").await;
    let pid = cell.state(&other).unwrap().pid;
    cell.kill().await;
    // The instance is deleted without its finalizer while no runtime runs.
    cell.change("orphan", |instance| instance.metadata.finalizers = None).await;
    let instance = cell.instance("orphan").await.unwrap();
    cell.plane().delete(&instance, Preconditions::Uid).await.unwrap();
    assert!(!processes_of(&orphan).is_empty());
    cell.start();
    cell.until("the orphan has exited", async || processes_of(&orphan).is_empty().then_some(())).await;
    cell.until("the instance directory is deleted", async || cell.state(&orphan).is_none().then_some(()))
        .await;
    assert_eq!(cell.state(&other).unwrap().pid, pid);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_instance_of_the_same_name_does_not_adopt_the_old_processes() {
    let mut cell = TestCell::new().await;
    let first = cell.create(&mk_instance("web-0", "polis.local/sleep", &[])).await;
    cell.until_running("web-0").await;
    cell.kill().await;
    cell.change("web-0", |instance| instance.metadata.finalizers = None).await;
    let instance = cell.instance("web-0").await.unwrap();
    cell.plane().delete(&instance, Preconditions::Uid).await.unwrap();
    let second = cell.create(&mk_instance("web-0", "polis.local/sleep", &[])).await;
    cell.start();
    cell.until_running("web-0").await;
    cell.until("the first has exited", async || processes_of(&first).is_empty().then_some(())).await;
    assert_eq!(processes_of(&second).len(), 1);
}
