//! What a program can read: the input of a tenant never widens its sandbox.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use polis_runtime::Landlock;
use polis_runtime::logs::LogQuery;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};

use crate::test_cell::*;

/// The content of every file in these tests that a program must not read.
const SECRET: &str = "s3cret-key";

/// Whether this kernel enforces the sandbox. Elsewhere there is nothing to test.
fn enforced() -> bool {
    let enforced = !isolation().is_absent();
    if !enforced {
        eprintln!("skipped: this kernel has neither Landlock nor namespaces");
    }
    enforced
}

fn write_secret(path: &Path) {
    std::fs::write(path, format!("#!/bin/sh\n# {SECRET}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

async fn assert_secret_not_printed(cell: &TestCell, uid: &str) {
    let lines = cell.lines(uid, &LogQuery::default()).await;
    assert!(lines.iter().all(|line| !line.text.contains(SECRET)), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_can_access_only_its_own_directory() {
    if !enforced() {
        return;
    }
    let cell = TestCell::new().await;
    let neighbour = cell.create(&mk_instance("neighbour", "polis.local/sleep", &[])).await;
    cell.until_running("neighbour").await;
    std::fs::write(cell.outside().join("private"), "x").unwrap();
    let script = format!(
        "echo mine > file && cat file; cat {dir}/private || echo cannot read; echo x > {dir}/new || echo cannot write; ls {dir}/dfw/{neighbour} || echo cannot look; sleep 1000",
        dir = cell.outside().display(),
    );
    let uid = cell.create(&mk_script("curious", &script)).await;
    for words in ["mine", "cannot read", "cannot write", "cannot look"] {
        cell.until_writes(&uid, words).await;
    }
    assert!(!cell.outside().join("new").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_variables_and_links_do_not_widen_the_sandbox() {
    if !enforced() {
        return;
    }
    let cell = TestCell::new().await;
    let (kubeconfig, key) = (cell.outside().join("kubeconfig"), cell.outside().join("dfw/ca.key"));
    write_secret(&kubeconfig);
    write_secret(&key);
    // The first run fails, so the second run starts with the links of the first in the working directory.
    let script = r#"
        for path in "$@" "$FROM_ENV" link tmp/link folder/kubeconfig; do
            cat "$path" || echo "run $POLIS_RESTARTS cannot read $path"
        done
        ln -s "$1" link; ln -s "$1" tmp/link; ln -s "$(dirname "$1")" folder
        echo "run $POLIS_RESTARTS is complete"
        [ "$POLIS_RESTARTS" = 0 ] && exit 1
        sleep 1000"#;
    let mut instance = mk_script("curious", script);
    let container = container(&mut instance);
    container.args.push("sh".into());
    container.args.push(kubeconfig.display().to_string());
    container.args.push(cell.outside().display().to_string());
    for path in ["../../../../kubeconfig", "../../../ca.key", "link", "folder"] {
        container.args.push(format!("$(HOME)/{path}"));
    }
    container.env =
        serde_json::from_value(serde_json::json!([{"name": "FROM_ENV", "value": key.display().to_string()}]))
            .unwrap();
    let uid = cell.create(&instance).await;
    cell.until_writes(&uid, "run 0 is complete").await;
    cell.until_writes(&uid, "run 1 is complete").await;
    assert_secret_not_printed(&cell, &uid).await;
    let refused = cell.lines(&uid, &LogQuery::default()).await;
    let refused = refused.iter().filter(|line| line.text.starts_with("run 1 cannot read")).count();
    assert_eq!(refused, 10, "every path is refused in the second run");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_cannot_name_a_program_outside_of_the_directories_of_the_operator() {
    let cell = TestCell::new().await;
    let script = cell.outside().join("deploy.sh");
    write_secret(&script);
    for (name, image) in [
        ("by-path", format!("process:{}", script.display())),
        ("by-dots", format!("process:/usr/../{}", script.display())),
    ] {
        cell.create(&mk_instance(name, &image, &[])).await;
        let message = cell.until_condition(name, "Programmed", "False", "ImageUnavailable").await;
        assert!(message.contains("--allow-read"), "{message}");
    }
    let mut replaced = mk_instance("by-command", "process:sh", &[]);
    container(&mut replaced).command = vec![script.display().to_string()];
    cell.create(&replaced).await;
    cell.until_condition("by-command", "Programmed", "False", "ImageUnavailable").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_readable_directory_does_not_include_the_state_of_the_runtime() {
    if !enforced() {
        return;
    }
    let cell = TestCell::with(|settings| {
        settings.readable = vec![settings.dir.parent().unwrap().to_owned()];
        settings.private.push(settings.dir.with_file_name("keys"));
    })
    .await;
    std::fs::create_dir(cell.outside().join("keys")).unwrap();
    for secret in ["dfw/ca.key", "keys/tokens.key"] {
        write_secret(&cell.outside().join(secret));
    }
    std::fs::write(cell.outside().join("public"), "open to all").unwrap();
    symlink(cell.outside().join("keys"), cell.outside().join("link")).unwrap();
    let script = format!(
        "cd {}; cat public; for f in dfw/ca.key keys/tokens.key link/tokens.key; do cat $f || echo cannot read $f; done; sleep 1000",
        cell.outside().display()
    );
    let uid = cell.create(&mk_script("reader", &script)).await;
    cell.until_writes(&uid, "open to all").await;
    cell.until_writes(&uid, "cannot read link/tokens.key").await;
    assert_secret_not_printed(&cell, &uid).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_processes_cannot_be_read_through_proc() {
    if !enforced() {
        return;
    }
    let cell = TestCell::new().await;
    let neighbour = cell.create(&mk_instance("neighbour", "process:sleep", &["1000"])).await;
    cell.until_running("neighbour").await;
    let pid = cell.state(&neighbour).unwrap().pid;
    let script = format!(
        r#"read -r own < /proc/self/stat && echo "own: $own"
        for file in cmdline environ status; do cat /proc/{pid}/$file || echo cannot read $file; done
        [ "$(tr '\0' ' ' < /proc/1/cmdline)" = "$(tr '\0' ' ' < /proc/1/comm)" ] || echo cannot read init
        case "$(ls -d /proc/[0-9]* | wc -l)" in [0-9]) echo cannot list;; esac
        cat /etc/shadow /etc/ssh/* || echo cannot read shadow
        cat /proc/cpuinfo /etc/passwd /etc/hosts > copy && echo system files are readable; sleep 1000"#
    );
    let uid = cell.create(&mk_script("curious", &script)).await;
    for words in [
        "own: ",
        "cannot read cmdline",
        "cannot read environ",
        "cannot read status",
        "cannot read init",
        "cannot list",
        "cannot read shadow",
        "system files are readable",
    ] {
        cell.until_writes(&uid, words).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_inherits_no_descriptors() {
    let cell = TestCell::new().await;
    let secret = cell.outside().join("kubeconfig");
    write_secret(&secret);
    // As if this process had inherited it: without CLOEXEC, and with a number that nothing else here uses.
    let inherited = fcntl_dupfd_cloexec(std::fs::File::open(&secret).unwrap(), 500).unwrap();
    fcntl_setfd(&inherited, FdFlags::empty()).unwrap();
    let script = "n=3; while [ $n -lt 600 ]; do [ -e /proc/self/fd/$n ] && echo open: $n; n=$((n+1)); done; echo checked; sleep 1000";
    let uid = cell.create(&mk_script("heir", script)).await;
    cell.until_writes(&uid, "checked").await;
    let lines = cell.lines(&uid, &LogQuery::default()).await;
    assert!(lines.iter().all(|line| !line.text.starts_with("open:")), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_has_no_capabilities_and_cannot_gain_any() {
    if !cfg!(target_os = "linux") {
        return;
    }
    let cell = TestCell::new().await;
    let script = r#"while read -r key value; do case "$key" in Cap*|NoNewPrivs*) echo "$key $value";; esac; done < /proc/self/status; sleep 1000"#;
    let uid = cell.create(&mk_script("plain", script)).await;
    cell.until_writes(&uid, "NoNewPrivs: 1").await;
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        cell.until_writes(&uid, &format!("{set}: 0000000000000000")).await;
    }
    if rustix::process::geteuid().is_root() {
        cell.until_writes(&uid, "CapBnd: 0000000000000000").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_is_not_isolated_reports_it() {
    let cell = TestCell::with(|settings| settings.sandbox = false).await;
    cell.create(&mk_instance("open", "polis.local/sleep", &[])).await;
    let message = cell.until_condition("open", "Programmed", "True", "Programmed").await;
    assert!(message.contains("instances are not isolated"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_cannot_signal_other_processes() {
    if isolation().landlock < Landlock::Full && isolation().namespaces.is_err() {
        eprintln!("skipped: this kernel does not restrict signals");
        return;
    }
    let cell = TestCell::new().await;
    let neighbour = cell.create(&mk_instance("neighbour", "polis.local/sleep", &[])).await;
    cell.until_running("neighbour").await;
    let state = cell.state(&neighbour).unwrap();
    let script = format!(
        "kill -9 {} || echo cannot kill; kill -9 {} || echo cannot kill the shim; sleep 1000",
        state.pid, state.shim
    );
    let uid = cell.create(&mk_script("angry", &script)).await;
    cell.until_writes(&uid, "cannot kill the shim").await;
    assert_eq!(cell.state(&neighbour), Some(state));
}
