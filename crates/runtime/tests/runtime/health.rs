//! Probes, the preStop hook and the termination grace period of running containers.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use polis_api::compute::{Instance, SandboxContainer};
use polis_core::conditions;
use polis_runtime::TerminationCause;
use serde_json::{Value, json};

use crate::test_cell::*;

/// Sets fields of the only container, as in a manifest.
fn with_fields(mut instance: Instance, fields: Value) -> Instance {
    let mut value = serde_json::to_value(&*container(&mut instance)).unwrap();
    for (name, field) in fields.as_object().unwrap() {
        value[name] = field.clone();
    }
    *container(&mut instance) = serde_json::from_value::<SandboxContainer>(value).unwrap();
    instance
}

fn with_grace(mut instance: Instance, seconds: i64) -> Instance {
    instance.spec.runtime.sandbox.as_mut().unwrap().termination_grace_period_seconds = Some(seconds);
    instance
}

/// A file in the working directory of an instance's container.
fn work_file(cell: &TestCell, uid: &str, name: &str) -> PathBuf {
    cell.outside().join("dfw").join(uid).join("app/work").join(name)
}

fn exec_probe(script: &str) -> Value {
    json!({"exec": {"command": ["sh", "-c", script]}, "periodSeconds": 1, "failureThreshold": 1})
}

const SLEEP: &str = "while :; do sleep 0.1; done";

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_is_ready_while_its_readiness_probe_succeeds() {
    let cell = TestCell::new().await;
    let probe = exec_probe("if ! [ -e ready ]; then echo not yet; exit 3; fi");
    let uid = cell.create(&with_fields(mk_script("web-0", SLEEP), json!({"readinessProbe": probe}))).await;
    cell.until_running("web-0").await;
    let message = cell
        .until("the failure", async || {
            let message = cell.message("web-0", "ContainersReady", "False", "ContainersNotReady").await?;
            message.contains("not yet").then_some(message)
        })
        .await;
    assert_eq!(message, "container app: readiness probe fails: exit code 3: not yet");
    std::fs::write(work_file(&cell, &uid, "ready"), "").unwrap();
    cell.until_condition("web-0", "ContainersReady", "True", "ContainersReady").await;
    std::fs::remove_file(work_file(&cell, &uid, "ready")).unwrap();
    cell.until_condition("web-0", "ContainersReady", "False", "ContainersNotReady").await;
    assert!(cell.message("web-0", "Running", "True", "Running").await.is_some(), "it runs all the time");
    assert_eq!(cell.state(&uid).unwrap().restarts, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_liveness_probe_fails_is_restarted_with_a_reason() {
    let cell = TestCell::new().await;
    let probe = exec_probe("! [ -e sick ] || { echo sick; exit 1; }");
    let uid = cell.create(&with_fields(mk_script("web-0", SLEEP), json!({"livenessProbe": probe}))).await;
    cell.until_running("web-0").await;
    let first = cell.state(&uid).unwrap();
    std::fs::write(work_file(&cell, &uid, "sick"), "").unwrap();
    let message = cell
        .until("the restart", async || {
            let message = cell.message("web-0", "Running", "False", "InstanceCrashing").await?;
            message.contains("last exit").then_some(message)
        })
        .await;
    let ending = "last exit: unhealthy: liveness probe failed once: exit code 1: sick";
    assert!(message.contains(": restart ") && message.ends_with(ending), "{message}");
    std::fs::remove_file(work_file(&cell, &uid, "sick")).unwrap();
    cell.until_running("web-0").await;
    let state = cell.until("a later run", async || cell.state(&uid).filter(|state| state.restarts > 0)).await;
    assert_ne!(state.shim, first.shim);
    let cause = state.last_termination.unwrap().cause;
    assert!(matches!(cause, TerminationCause::Unhealthy(_)), "{cause:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn http_and_tcp_probes_reach_the_instance_also_at_ports_that_it_does_not_name() {
    let cell = TestCell::new().await;
    let named = with_fields(
        with_port(mk_instance("web-0", "polis.local/hello", &[]), 8080),
        json!({
            "startupProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 1},
            "readinessProbe": {"httpGet": {"port": 8080, "path": "/healthz"}, "periodSeconds": 1},
        }),
    );
    let unnamed = with_fields(
        mk_instance("web-1", "polis.local/hello", &[]),
        json!({"readinessProbe": {"httpGet": {"port": 8080}, "periodSeconds": 1}}),
    );
    cell.create(&named).await;
    cell.create(&unnamed).await;
    for name in ["web-0", "web-1"] {
        cell.until_condition(name, "ContainersReady", "True", "ContainersReady").await;
        cell.until_running(name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_does_not_start_in_time_is_restarted() {
    let cell = TestCell::new().await;
    let probe = json!({"tcpSocket": {"port": 9}, "periodSeconds": 1, "failureThreshold": 2});
    cell.create(&with_fields(mk_script("web-0", SLEEP), json!({"startupProbe": probe}))).await;
    let starting = cell.until_condition("web-0", "Running", "False", "Starting").await;
    assert!(starting.starts_with("container app"), "{starting}");
    let message = cell
        .until("the restart", async || {
            let message = cell.message("web-0", "Running", "False", "InstanceCrashing").await?;
            message.contains("last exit").then_some(message)
        })
        .await;
    assert!(
        message.contains("unhealthy: startup probe failed 2 times: failed to connect to 127."),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_runtime_keeps_the_health_of_running_containers() {
    let mut cell = TestCell::new().await;
    let probe = json!({
        "exec": {"command": ["sh", "-c", "[ -e ready ]"]}, "periodSeconds": 1, "initialDelaySeconds": 0,
    });
    let uid = cell
        .create(&with_fields(
            mk_script("web-0", &format!("touch ready; {SLEEP}")),
            json!({"readinessProbe": probe, "startupProbe": probe}),
        ))
        .await;
    cell.until_condition("web-0", "ContainersReady", "True", "ContainersReady").await;
    cell.until_running("web-0").await;
    let transitions = async |cell: &TestCell| {
        let conditions = cell.instance("web-0").await.unwrap().status.unwrap().conditions;
        ["Running", "ContainersReady"]
            .map(|kind| conditions::find(&conditions, kind).unwrap().last_transition_time.clone())
    };
    let before = transitions(&cell).await;
    cell.kill().await;
    cell.start();
    // The first check after the restart.
    std::fs::remove_file(work_file(&cell, &uid, "ready")).unwrap();
    let since = Instant::now();
    cell.until("a failed check", async || {
        cell.message("web-0", "ContainersReady", "False", "ContainersNotReady").await
    })
    .await;
    assert!(
        since.elapsed() > Duration::from_secs(1),
        "three failures are needed, as for a running container"
    );
    assert_eq!(transitions(&cell).await[0], before[0], "Running has not changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pre_stop_hook_runs_before_the_program_is_asked_to_stop() {
    let cell = TestCell::new().await;
    let script = r#"trap 'read -r line < hook; echo "at the end: $line"; sleep 0.5; exit 0' TERM
        echo up; while :; do sleep 0.05; done"#;
    let hook = json!({"preStop": {"exec": {"command": ["sh", "-c", "echo from the hook of $POLIS_INSTANCE > hook"]}}});
    let instance = with_fields(mk_script("web-0", script), json!({"lifecycle": hook}));
    let uid = cell.create(&instance).await;
    cell.until_running("web-0").await;
    cell.until_writes(&uid, "up").await;
    cell.delete("web-0").await;
    assert_eq!(cell.until_writes(&uid, "at the end: ").await, "from the hook of web-0");
    cell.until_gone("web-0").await;
    assert_eq!(processes_of(&uid), Vec::<i32>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_ignores_the_request_to_stop_is_killed_after_its_grace_period() {
    let cell = TestCell::new().await;
    let stubborn = format!("trap '' TERM; echo up; {SLEEP}");
    let sleeping_hook = json!({"preStop": {"sleep": {"seconds": 600}}});
    let cases = [
        ("web-0", with_grace(mk_script("web-0", &stubborn), 0), 0..4),
        ("web-1", with_grace(mk_script("web-1", &stubborn), 2), 2..6),
        // The hook uses up the grace period; the program then has two seconds, and needs none.
        (
            "web-2",
            with_fields(
                with_grace(mk_script("web-2", &format!("echo up; {SLEEP}")), 1),
                json!({"lifecycle": sleeping_hook}),
            ),
            1..5,
        ),
    ];
    for (name, instance, seconds) in cases {
        let uid = cell.create(&instance).await;
        cell.until_running(name).await;
        cell.until_writes(&uid, "up").await;
        let since = Instant::now();
        cell.delete(name).await;
        cell.until_gone(name).await;
        assert!(seconds.contains(&since.elapsed().as_secs()), "{name}: {:?}", since.elapsed());
        assert_eq!(processes_of(&uid), Vec::<i32>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_that_never_answers_fails_and_leaves_no_process() {
    let cell = TestCell::new().await;
    let probe = json!({
        "exec": {"command": ["sh", "-c", "sleep 1000 & sleep 1001"]}, "periodSeconds": 1, "failureThreshold": 1,
    });
    let uid = cell.create(&with_fields(mk_script("web-0", SLEEP), json!({"readinessProbe": probe}))).await;
    let message = cell
        .until("the timeout", async || {
            let message = cell.message("web-0", "ContainersReady", "False", "ContainersNotReady").await?;
            message.contains("probe fails").then_some(message)
        })
        .await;
    assert_eq!(message, "container app: readiness probe fails: no end within 1s");
    let hanging = |pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"sleep\x00100"))
    };
    cell.until("at most one check runs", async || {
        (processes_of(&uid).iter().filter(|pid| hanging(pid)).count() <= 2).then_some(())
    })
    .await;
}
