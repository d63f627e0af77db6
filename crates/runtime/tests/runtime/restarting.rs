//! Crashes, restarts, and restarts of the runtime itself.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use futures::StreamExt as _;
use polis_runtime::TerminationCause;
use polis_runtime::logs::LogQuery;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::test_cell::*;

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_looping_program_is_reported_with_restart_count_and_last_exit() {
    let cell = TestCell::new().await;
    let uid = cell.create(&mk_instance("broken", "polis.local/crash", &["7"])).await;
    let shim = cell.until("a first shim", async || cell.state(&uid)).await.shim;
    let message = cell
        .until("some restarts", async || {
            let message = cell.message("broken", "Running", "False", "InstanceCrashing").await?;
            message.contains("restart 3").then_some(message)
        })
        .await;
    assert!(message.contains("container app") && message.ends_with("last exit: exit code 7"), "{message}");
    assert!(cell.message("broken", "Programmed", "True", "Programmed").await.is_some());
    cell.until_writes(&uid, "crash: exiting with code 7").await;
    let proc_dir = format!("/proc/{shim}");
    cell.until("its first shim is reaped", async || (!Path::new(&proc_dir).exists()).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_recovers_becomes_running() {
    let cell = TestCell::new().await;
    let uid = cell.create(&mk_instance("flaky", "polis.local/flaky", &["2"])).await;
    cell.until_condition("flaky", "Running", "False", "InstanceCrashing").await;
    cell.until_writes(&uid, "flaky: up after 2 restarts").await;
    cell.until_running("flaky").await;
    // The log of the previous run is kept, apart from that of the current one.
    let previous = LogQuery { previous: true, ..LogQuery::default() };
    let lines = cell.process().logs().previous(&uid, &previous).await.unwrap().collect::<Vec<_>>().await;
    let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
    assert_eq!(texts, ["flaky: failure 2 of 2"]);
    let state = cell.state(&uid).unwrap();
    assert_eq!((state.restarts, state.consecutive_failures), (2, 2));
    assert_eq!(state.last_termination.unwrap().cause, TerminationCause::Exit(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_program_restarts_at_the_same_address() {
    let cell = TestCell::new().await;
    let uid = cell.create(&with_port(mk_instance("web-0", "polis.local/hello", &[]), 8080)).await;
    let before = address(&cell.until_running("web-0").await);
    let pid = cell.state(&uid).unwrap().pid;
    kill(pid);
    cell.until("another process", async || cell.state(&uid).filter(|state| state.pid != pid)).await;
    assert_eq!(cell.state(&uid).unwrap().last_termination.unwrap().cause, TerminationCause::Signal(9));
    assert_eq!(address(&cell.until_running("web-0").await), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_runtime_adopts_running_containers() {
    let mut cell = TestCell::new().await;
    let uid = cell.create(&with_port(mk_instance("web-0", "polis.local/hello", &[]), 8080)).await;
    let instance = cell.until_running("web-0").await;
    let before = cell.state(&uid).unwrap();
    http_get(&address(&instance), 8080).await;

    cell.kill().await;
    assert!(
        http_get(&address(&instance), 8080).await.contains("request:  2"),
        "it keeps running without Polis"
    );
    cell.start();

    // Only the new runtime can start this instance.
    cell.create(&mk_instance("other", "polis.local/sleep", &[])).await;
    cell.until_running("other").await;
    assert_eq!(cell.state(&uid).unwrap(), before, "same process, same state");
    assert!(http_get(&address(&instance), 8080).await.contains("request:  3"));

    kill(before.pid);
    cell.until("another process", async || cell.state(&uid).filter(|state| state.pid != before.pid)).await;
    cell.until_running("web-0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_exited_without_a_runtime_is_restarted() {
    let mut cell = TestCell::new().await;
    let uid = cell.create(&mk_instance("calm", "polis.local/sleep", &[])).await;
    cell.until_running("calm").await;
    let pid = cell.state(&uid).unwrap().pid;
    let process = cell.process().clone();
    cell.kill().await;
    kill(pid);
    cell.until("its exit is recorded", async || {
        process.states(&uid).unwrap().into_values().find(|s| s.termination.is_some())
    })
    .await;
    cell.start();
    cell.until("another process", async || cell.state(&uid).filter(|state| state.pid != pid)).await;
    cell.until_running("calm").await;
    assert_eq!(cell.state(&uid).unwrap().restarts, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn killing_a_shim_kills_its_program_and_all_descendants() {
    let cell = TestCell::new().await;
    let uid = cell.create(&mk_script("nested", "setsid sleep 1000 & echo ready; wait")).await;
    cell.until_writes(&uid, "ready").await;
    cell.until_running("nested").await;
    let (state, before) = (cell.state(&uid).unwrap(), processes_of(&uid));
    assert!(before.len() >= 2, "{before:?}");
    kill(state.shim);
    cell.until("another process", async || cell.state(&uid).filter(|now| now.pid != state.pid)).await;
    assert_eq!(cell.state(&uid).unwrap().last_termination.unwrap().cause, TerminationCause::Lost);
    cell.until("the old processes are gone", async || {
        processes_of(&uid).iter().all(|pid| !before.contains(pid)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_stopped_with_polis_starts_with_polis_and_has_not_failed() {
    let mut cell = TestCell::new().await;
    let uid = cell.create(&mk_instance("calm", "polis.local/sleep", &[])).await;
    cell.until_running("calm").await;
    let (process, pid) = (cell.process().clone(), cell.state(&uid).unwrap().pid);
    cell.kill().await;
    process.stop_all().await.unwrap();
    assert_eq!(processes_of(&uid), [] as [i32; 0]);
    drop(process);
    cell.start();
    cell.until("another process", async || cell.state(&uid).filter(|state| state.pid != pid)).await;
    cell.until_running("calm").await;
    assert_eq!(cell.state(&uid).unwrap().restarts, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_template_replaces_the_running_container() {
    let cell = TestCell::new().await;
    let uid = cell.create(&mk_script("web-0", "echo first; sleep 1000")).await;
    cell.until_writes(&uid, "first").await;
    cell.change("web-0", |instance| {
        container(instance).args[1] = "echo second; sleep 1000".into();
        instance.spec.controller.as_mut().unwrap().template_hash = "9876543210".into();
    })
    .await;
    cell.until_writes(&uid, "second").await;
    cell.until("the new fingerprint", async || {
        let status = cell.instance("web-0").await?.status?;
        (status.controller?.observed_template_hash == "9876543210").then_some(())
    })
    .await;
    cell.until_running("web-0").await;
    assert_eq!(cell.state(&uid).unwrap().restarts, 0);
}

/// Starts a shim directly for a container directory; returns its reply.
fn start_second_shim(folder: &Path) -> String {
    let request = json!({
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
    shim.stdin.take().unwrap().write_all(request.to_string().as_bytes()).unwrap();
    String::from_utf8(shim.wait_with_output().unwrap().stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_shim_exits_and_one_without_a_directory_starts_nothing() {
    let cell = TestCell::new().await;
    let uid = cell.create(&mk_instance("calm", "polis.local/sleep", &[])).await;
    cell.until_running("calm").await;
    let before = cell.state(&uid).unwrap();
    let folder = cell.outside().join("dfw").join(&uid).join("app");
    assert_eq!(start_second_shim(&folder), "\"held\"\n");
    assert_eq!(cell.state(&uid).unwrap(), before);
    assert!(start_second_shim(&cell.outside().join("nowhere")).starts_with(r#"{"failed":"#));
}
