//! Containers from OCI images: pulled from a registry in this process, and run without a daemon.

use polis_api::compute::Instance;
use polis_api::k8s_openapi::ByteString;
use polis_api::k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use crate::test_cell::*;
use crate::test_registry::*;

/// Whether images can run here.
fn supported() -> bool {
    let isolation = isolation();
    if let Err(why) = &isolation.namespaces {
        eprintln!("skipped: no namespaces: {why}");
    }
    isolation.namespaces.is_ok()
}

/// An instance that runs a script in the base image.
fn mk_shell(name: &str, image: &str, script: &str) -> Instance {
    let mut instance = mk_instance(name, image, &["-c", script]);
    container(&mut instance).command = vec!["/bin/sh".into()];
    instance
}

fn shell_config() -> Value {
    json!({"Entrypoint": ["/bin/sh"]})
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_pulled_and_serves_requests() {
    if !supported() {
        return;
    }
    let (cell, registry) = (TestCell::new().await, TestRegistry::start().await);
    let config = json!({"Entrypoint": ["/app", "__program"], "Cmd": ["hello"]});
    let image = registry.push("acme/hello", &[base_layer()], &config);
    let uid = cell.create(&with_port(mk_instance("web-0", &image, &[]), 8080)).await;
    let instance = cell.until_running("web-0").await;
    assert!(http_get(&address(&instance), 8080).await.contains("instance: web-0"));
    cell.until_writes(&uid, "hello: listening on").await;
    let pulled = registry.requests();
    cell.create(&with_port(mk_instance("web-1", &image, &[]), 8080)).await;
    cell.until_running("web-1").await;
    assert_eq!(registry.requests(), pulled, "a tag that is present is not pulled again");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_of_an_image_is_honoured() {
    if !supported() {
        return;
    }
    let (cell, registry) = (TestCell::new().await, TestRegistry::start().await);
    let upper = mk_layer(&[("etc/.wh.deleted", ""), ("srv/file", "from above")]);
    let config = json!({
        "Entrypoint": ["/bin/sh", "-c"], "User": "web", "WorkingDir": "/srv/data", "Env": ["COLOUR=green", "PATH=/bin"],
        "Cmd": [r#"read -r line < /srv/file; echo "file: $line"; [ -e /etc/deleted ] || echo deleted
            echo "env: $COLOUR $PATH $HOME $POLIS_WORKLOAD"; echo "at: $(pwd)"
            read -r name < /etc/hostname; echo "name: $name"
            while read -r key value rest; do case "$key" in Uid:|Gid:|CapEff:) echo "$key $value";; esac; done < /proc/self/status
            for path in /proc/[0-9]*; do n=$((n+1)); done; echo "processes: $n"
            exec /app __program sleep"#],
    });
    let image = registry.push("acme/shell", &[base_layer(), upper], &config);
    let uid = cell.create(&mk_instance("web-0", &image, &[])).await;
    for (key, value) in [
        ("file: ", "from above"),
        ("deleted", ""),
        ("env: ", "green /bin /srv web"),
        ("at: ", "/srv/data"),
        ("name: ", "web-0"),
        ("Uid: ", "101"),
        ("Gid: ", "102"),
        ("CapEff: ", "0000000000000000"),
        ("processes: ", "2"),
    ] {
        assert_eq!(cell.until_writes(&uid, key).await, value, "{key}");
    }
    cell.until_running("web-0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_sees_nothing_of_the_host_and_changes_nothing_of_it() {
    if !supported() {
        return;
    }
    let (cell, registry) = (TestCell::new().await, TestRegistry::start().await);
    let secret = cell.outside().join("ca.key");
    std::fs::write(&secret, "s3cret-key").unwrap();
    let image = registry.push("acme/shell", &[base_layer()], &shell_config());
    let script = format!(
        r#"(read -r line < {0}) || echo cannot read the key
        (echo b > /proc/sysrq-trigger) || echo cannot reboot
        (echo 1 > /proc/sys/kernel/panic) || echo cannot set
        (echo x > /dev/x) || echo cannot create devices
        echo mine > /written && echo writable; echo x > /dev/null && echo devices
        exec /app __program sleep"#,
        secret.display()
    );
    let uid = cell.create(&mk_shell("curious", &image, &script)).await;
    for words in
        ["cannot read the key", "cannot reboot", "cannot set", "cannot create devices", "writable", "devices"]
    {
        cell.until_writes(&uid, words).await;
    }
    assert!(!std::path::Path::new("/written").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_cannot_run_is_unavailable_with_the_cause() {
    if !supported() {
        return;
    }
    let (cell, registry) = (TestCell::new().await, TestRegistry::start().await);
    let layer = mk_layer(&[("etc/passwd", "root:x:0:0::/:/bin/sh\n")]);
    let layers = [layer];
    let at = registry.address;
    let table = [
        ("reference", "UPPER/case".to_owned(), "is not the name of an image"),
        ("missing", format!("{at}/acme/nothing:v1"), "there is no"),
        (
            "platform",
            registry.push_for("linux", "s390x", "acme/other", &layers, &shell_config()),
            "no variant for linux/",
        ),
        ("entry", registry.push("acme/library", &layers, &json!({})), "no entry point"),
        (
            "user",
            registry.push("acme/user", &layers, &json!({"Entrypoint": ["/x"], "User": "absent"})),
            "user \"absent\"",
        ),
        ("escape", registry.push("acme/escape", &[escaping_layer()], &shell_config()), "leaves the root"),
    ];
    for (name, image, cause) in &table {
        cell.create(&mk_instance(name, image, &[])).await;
        let message = cell.until_condition(name, "Programmed", "False", "ImageUnavailable").await;
        assert!(message.contains(cause), "{name}: {message}");
    }
    // An entry point that does not exist is the program's failure, as in Kubernetes.
    let image = registry.push("acme/absent", &layers, &json!({"Entrypoint": ["/no/such/program"]}));
    cell.create(&mk_instance("absent", &image, &[])).await;
    let message = cell.until_condition("absent", "Running", "False", "InstanceCrashing").await;
    assert!(message.contains("/no/such/program"), "{message}");
}

fn escaping_layer() -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_gnu_mut().unwrap().name[..9].copy_from_slice(b"../escape");
    header.set_size(0);
    header.set_cksum();
    let mut archive = tar::Builder::new(Vec::new());
    archive.append(&header, std::io::empty()).unwrap();
    archive.into_inner().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_and_a_lying_registry_are_named() {
    if !supported() {
        return;
    }
    let (cell, registry) = (TestCell::new().await, TestRegistry::start().await);
    let image = registry.push("acme/shell", &[mk_layer(&[("file", "x")])], &shell_config());
    registry.lie();
    cell.create(&mk_instance("lied-to", &image, &[])).await;
    let message = cell.until_condition("lied-to", "Programmed", "False", "ImageUnavailable").await;
    assert!(message.contains("it sent the content sha256:"), "{message}");
    registry.break_with(Some(503));
    let image = image.replace("acme/shell", "acme/other");
    cell.create(&mk_instance("refused", &image, &[])).await;
    let message = cell.until_condition("refused", "Programmed", "False", "ImageUnavailable").await;
    assert!(message.contains("503"), "{message}");
    let layers = std::fs::read_dir(cell.outside().join("images/layers")).unwrap().count();
    let parts = std::fs::read_dir(cell.outside().join("images/parts")).unwrap().count();
    assert_eq!((layers, parts), (0, 0), "nothing is half-made");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_image_needs_its_pull_secret() {
    if !supported() {
        return;
    }
    let (cell, registry) = (TestCell::new().await, TestRegistry::start().await);
    let image = registry.push(
        "acme/private",
        &[base_layer()],
        &json!({"Entrypoint": ["/app", "__program", "sleep"]}),
    );
    registry.require("dTpw");
    cell.create(&mk_instance("other", &image, &[])).await;
    let message = cell.until_condition("other", "Programmed", "False", "ImageUnavailable").await;
    assert!(message.contains("is denied without credentials; add an image pull secret"), "{message}");
    let config =
        json!({"auths": {registry.address.to_string(): {"username": "u", "password": "p"}}}).to_string();
    let data = [(".dockerconfigjson".to_owned(), ByteString(config.into_bytes()))];
    let mut secret = Secret { data: Some(data.into()), ..Secret::default() };
    secret.metadata = mk_companion("Secret", "pull");
    cell.put(&secret).await;
    let mut instance = mk_instance("owner", &image, &[]);
    let sandbox = instance.spec.runtime.sandbox.as_mut().unwrap();
    sandbox.image_pull_secrets = serde_json::from_value(json!([{"name": "pull"}])).unwrap();
    cell.create(&instance).await;
    cell.until_running("owner").await;
    // The layers are on this host now, and still only their owner may run them.
    cell.create(&mk_instance("thief", &image, &[])).await;
    cell.until_condition("thief", "Programmed", "False", "ImageUnavailable").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_of_a_probe_runs_inside_the_container_with_its_rights() {
    if !supported() {
        return;
    }
    let (cell, registry) = (TestCell::new().await, TestRegistry::start().await);
    let config = json!({
        "Entrypoint": ["/app", "__program", "sleep"], "User": "web", "WorkingDir": "/srv", "Env": ["COLOUR=green"],
    });
    let image = registry.push("acme/probed", &[base_layer()], &config);
    let mut instance = mk_instance("web-0", &image, &[]);
    let report = r#"n=0; for path in /proc/[0-9]*; do n=$((n+1)); done; read -r name < /etc/hostname
        while read -r key value rest; do case "$key" in Uid:|CapEff:|Seccomp:) facts="$facts $value";; esac; done < /proc/self/status
        kill -0 1 && signals=yes; kill -0 2 && signals=$signals,program
        echo "$COLOUR $name at $(pwd)$facts, $n processes, may signal: $signals"; exit 1"#;
    container(&mut instance).readiness_probe = Some(
        serde_json::from_value(json!({"exec": {"command": ["/bin/sh", "-c", report]}, "periodSeconds": 1}))
            .unwrap(),
    );
    cell.create(&instance).await;
    let message = cell
        .until("the output of the command", async || {
            let message = cell.message("web-0", "ContainersReady", "False", "ContainersNotReady").await?;
            message.contains("exit code").then_some(message)
        })
        .await;
    let (start, end) = message.split_once(", ").unwrap();
    assert_eq!(
        start,
        "container app: readiness probe fails: exit code 1: green web-0 at /srv 101 0000000000000000 2",
        "{message}"
    );
    assert!(end.ends_with("may signal: yes,program"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_is_adopted_restarted_and_removed_as_a_process_is() {
    if !supported() {
        return;
    }
    let (mut cell, registry) = (TestCell::new().await, TestRegistry::start().await);
    let config = json!({"Entrypoint": ["/app", "__program"], "Cmd": ["hello"]});
    let image = registry.push("acme/hello", &[base_layer()], &config);
    let uid = cell.create(&with_port(mk_instance("web-0", &image, &[]), 8080)).await;
    let address = address(&cell.until_running("web-0").await);
    let before = cell.state(&uid).unwrap();
    cell.kill().await;
    assert!(http_get(&address, 8080).await.contains("instance: web-0"), "it runs without Polis");
    registry.break_with(Some(500));
    cell.start();
    cell.create(&mk_instance("other", "polis.local/sleep", &[])).await;
    cell.until_running("other").await;
    assert_eq!(cell.state(&uid).unwrap(), before);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(before.pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    cell.until("another process", async || cell.state(&uid).filter(|state| state.pid != before.pid)).await;
    cell.until_running("web-0").await;
    cell.delete("web-0").await;
    cell.until_gone("web-0").await;
    assert_eq!(processes_of(&uid), [] as [i32; 0]);
    assert!(!files(cell.outside()).keys().any(|path| path.display().to_string().contains(&uid)));
}
