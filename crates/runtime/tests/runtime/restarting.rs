//! Crashes, restarts, and a runtime that comes back.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use polis_runtime::How;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::world::*;

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_ends_again_and_again_is_told_with_count_and_last_exit() {
    let world = World::new().await;
    let uid = world.create(&mk_instance("broken", "polis.local/crash", &["7"])).await;
    let shim = world.until("a first shim", async || world.state(&uid)).await.shim;
    let message = world
        .until("some restarts", async || {
            let message = world.message("broken", "Running", "False", "InstanceCrashing").await?;
            message.contains("restart 3").then_some(message)
        })
        .await;
    assert!(message.contains("container app") && message.ends_with("last exit: exit code 7"), "{message}");
    assert!(world.message("broken", "Programmed", "True", "Programmed").await.is_some());
    world.until_writes(&uid, "crash: ends with exit code 7").await;
    let place = format!("/proc/{shim}");
    world.until("its first shim is buried", async || (!Path::new(&place).exists()).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_recovers_runs_in_the_end() {
    let world = World::new().await;
    let uid = world.create(&mk_instance("flaky", "polis.local/flaky", &["2"])).await;
    world.until_says("flaky", "Running", "False", "InstanceCrashing").await;
    world.until_writes(&uid, "flaky: up after 2 restarts").await;
    world.until_running("flaky").await;
    let state = world.state(&uid).unwrap();
    assert_eq!((state.restarts, state.streak), (2, 2));
    assert_eq!(state.before.unwrap().how, How::Exit(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_was_killed_is_started_again_at_the_same_address() {
    let world = World::new().await;
    let uid = world.create(&with_port(mk_instance("web-0", "polis.local/hello", &[]), 8080)).await;
    let before = address(&world.until_running("web-0").await);
    let pid = world.state(&uid).unwrap().pid;
    kill(pid);
    world.until("another process", async || world.state(&uid).filter(|state| state.pid != pid)).await;
    assert_eq!(world.state(&uid).unwrap().before.unwrap().how, How::Signal(9));
    assert_eq!(address(&world.until_running("web-0").await), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_comes_back_adopts_what_runs() {
    let mut world = World::new().await;
    let uid = world.create(&with_port(mk_instance("web-0", "polis.local/hello", &[]), 8080)).await;
    let instance = world.until_running("web-0").await;
    let before = world.state(&uid).unwrap();
    ask(&address(&instance), 8080).await;

    world.kill().await;
    assert!(ask(&address(&instance), 8080).await.contains("request:  2"), "it goes on without Polis");
    world.start();

    // Something that only the new runtime can do.
    world.create(&mk_instance("other", "polis.local/sleep", &[])).await;
    world.until_running("other").await;
    assert_eq!(world.state(&uid).unwrap(), before, "pid and all");
    assert!(ask(&address(&instance), 8080).await.contains("request:  3"));

    kill(before.pid);
    world.until("another process", async || world.state(&uid).filter(|state| state.pid != before.pid)).await;
    world.until_running("web-0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ended_while_nobody_looked_is_started_again() {
    let mut world = World::new().await;
    let uid = world.create(&mk_instance("calm", "polis.local/sleep", &[])).await;
    world.until_running("calm").await;
    let pid = world.state(&uid).unwrap().pid;
    let dir = world.process().clone();
    world.kill().await;
    kill(pid);
    world
        .until("its end is noted", async || {
            dir.states(&uid).unwrap().into_values().find(|s| s.ending.is_some())
        })
        .await;
    world.start();
    world.until("another process", async || world.state(&uid).filter(|state| state.pid != pid)).await;
    world.until_running("calm").await;
    assert_eq!(world.state(&uid).unwrap().restarts, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shim_that_is_killed_takes_its_program_along_and_leaves_nothing_behind() {
    let world = World::new().await;
    let uid = world.create(&mk_script("nested", "setsid sleep 1000 & echo ready; wait")).await;
    world.until_writes(&uid, "ready").await;
    world.until_running("nested").await;
    let (state, before) = (world.state(&uid).unwrap(), processes_of(&uid));
    assert!(before.len() >= 2, "{before:?}");
    kill(state.shim);
    world.until("another process", async || world.state(&uid).filter(|now| now.pid != state.pid)).await;
    assert_eq!(world.state(&uid).unwrap().before.unwrap().how, How::Lost);
    world
        .until("the old are gone", async || {
            processes_of(&uid).iter().all(|pid| !before.contains(pid)).then_some(())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_told_to_stop_with_polis_starts_with_polis_and_has_not_failed() {
    let mut world = World::new().await;
    let uid = world.create(&mk_instance("calm", "polis.local/sleep", &[])).await;
    world.until_running("calm").await;
    let (process, pid) = (world.process().clone(), world.state(&uid).unwrap().pid);
    world.kill().await;
    process.stop_all().await.unwrap();
    assert_eq!(processes_of(&uid), [] as [i32; 0]);
    drop(process);
    world.start();
    world.until("another process", async || world.state(&uid).filter(|state| state.pid != pid)).await;
    world.until_running("calm").await;
    assert_eq!(world.state(&uid).unwrap().restarts, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_template_replaces_what_runs() {
    let world = World::new().await;
    let uid = world.create(&mk_script("web-0", "echo first; sleep 1000")).await;
    world.until_writes(&uid, "first").await;
    world
        .change("web-0", |instance| {
            container(instance).args[1] = "echo second; sleep 1000".into();
            instance.spec.controller.as_mut().unwrap().template_hash = "9876543210".into();
        })
        .await;
    world.until_writes(&uid, "second").await;
    world
        .until("the new fingerprint", async || {
            let status = world.instance("web-0").await?.status?;
            (status.controller?.observed_template_hash == "9876543210").then_some(())
        })
        .await;
    world.until_running("web-0").await;
    assert_eq!(world.state(&uid).unwrap().restarts, 0);
}

/// Starts a shim by hand for a folder; gives its first word.
fn another_shim(folder: &Path) -> String {
    let order = json!({
        "restarts": 0, "streak": 0, "before": null, "template": "x",
        "grace": {"secs": 1, "nanos": 0}, "keep": {"bytes": 1000, "files": 1},
        "launch": {
            "program": "/bin/true", "args": [], "env": {}, "work": "/",
            "limits": {"memory": null, "files": 100}, "fence": null,
        },
    });
    let mut shim = Command::new(env!("CARGO_BIN_EXE_polis-shim"))
        .arg("__shim")
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    shim.stdin.take().unwrap().write_all(order.to_string().as_bytes()).unwrap();
    String::from_utf8(shim.wait_with_output().unwrap().stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_shim_gives_way_and_one_without_a_folder_starts_nothing() {
    let world = World::new().await;
    let uid = world.create(&mk_instance("calm", "polis.local/sleep", &[])).await;
    world.until_running("calm").await;
    let before = world.state(&uid).unwrap();
    let folder = world.outside().join("dfw").join(&uid).join("app");
    assert_eq!(another_shim(&folder), "\"held\"\n");
    assert_eq!(world.state(&uid).unwrap(), before);
    assert!(another_shim(&world.outside().join("nowhere")).starts_with(r#"{"failed":"#));
}
