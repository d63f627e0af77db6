//! Isolation of instances: each in its own namespaces, with its own user, limits and network.
//!
//! A test of a layer that the machine does not give is skipped, and says so.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use polis_api::compute::Instance;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::test_cell::*;

/// Whether instances have namespaces here.
fn namespaced() -> bool {
    let isolation = isolation();
    if let Err(why) = &isolation.namespaces {
        eprintln!("skipped: no namespaces: {why}");
    }
    isolation.namespaces.is_ok()
}

/// Whether all of these controllers limit instances here.
fn limited(controllers: &[&str]) -> bool {
    let missing = isolation().missing_limits;
    let limited = !controllers.iter().any(|name| missing.contains(name));
    if !limited {
        eprintln!("skipped: no control groups for {missing:?}");
    }
    limited && namespaced()
}

/// Sets CPU and memory of the only container.
fn with_limits(mut instance: Instance, cpu: &str, memory: &str) -> Instance {
    container(&mut instance).resources =
        serde_json::from_value(json!({"limits": {"cpu": cpu, "memory": memory}})).unwrap();
    instance
}

/// Groups of an instance in all hierarchies.
fn cgroups(uid: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().ends_with(uid) {
                    found.push(entry.path());
                }
                folders.push(entry.path());
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_sees_only_its_own_processes_files_and_host_name() {
    if !namespaced() {
        return;
    }
    let cell = TestCell::new().await;
    std::fs::write(cell.outside().join("ca.key"), "s3cret-key").unwrap();
    let script = format!(
        r#"echo "processes: $(ls -d /proc/[0-9]* | wc -l)"; echo "host: $(cat /proc/sys/kernel/hostname)"
        cat {0}/ca.key || echo cannot read the key; ls {0} || echo cannot list the data directory
        ls /home /root /var /run || echo cannot list home directories
        (echo x > /usr/x || echo x > /new) || echo cannot write to the system
        sleep 1000"#,
        cell.outside().display()
    );
    let uid = cell.create(&mk_script("curious", &script)).await;
    let processes: u32 = cell.until_writes(&uid, "processes: ").await.parse().unwrap();
    assert!(processes <= 6, "init, sh and the pipeline: {processes}");
    assert_eq!(cell.until_writes(&uid, "host: ").await, "curious");
    for words in ["cannot read the key", "cannot list home directories", "cannot write to the system"] {
        cell.until_writes(&uid, words).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_instance_has_a_user_of_its_own_where_polis_is_root() {
    if !namespaced() || !rustix::process::geteuid().is_root() {
        return;
    }
    let cell = TestCell::new().await;
    let mut users = Vec::new();
    for name in ["web-0", "web-1"] {
        let uid = cell.create(&mk_script(name, "echo user=$(id -u); echo x > file; sleep 1000")).await;
        let user: u32 = cell.until_writes(&uid, "user=").await.parse().unwrap();
        cell.until_running(name).await;
        let launcher = cell.state(&uid).unwrap().pid;
        assert_eq!(std::fs::metadata(format!("/proc/{launcher}/net")).unwrap().uid(), user);
        let work = cell.outside().join("dfw").join(&uid).join("app/work");
        assert_eq!(std::fs::metadata(work.join("file")).unwrap().uid(), user);
        users.push(user);
    }
    assert!(users[0] != users[1] && users.iter().all(|user| *user >= 0x7000_0000), "{users:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_instances_listen_on_all_addresses_at_the_same_port() {
    if !namespaced() {
        return;
    }
    let cell = TestCell::new().await;
    for name in ["web-0", "web-1"] {
        let mut instance = with_port(mk_instance(name, "polis.local/hello", &[]), 8080);
        container(&mut instance).env =
            serde_json::from_value(json!([{"name": "POLIS_ADDRESS", "value": "0.0.0.0"}])).unwrap();
        cell.create(&instance).await;
    }
    for name in ["web-0", "web-1"] {
        let address = address(&cell.until_running(name).await);
        for _ in 0..20 {
            assert!(http_get(&address, 8080).await.contains(&format!("instance: {name}")));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_reaches_another_one_and_not_the_loopback_of_the_host() {
    if !namespaced() {
        return;
    }
    let cell = TestCell::new().await;
    cell.create(&with_port(mk_instance("web-0", "polis.local/hello", &[]), 8080)).await;
    let server = address(&cell.until_running("web-0").await);
    let private = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = private.local_addr().unwrap().port();
    let script = format!(
        r#"exec 3<>/dev/tcp/{server}/8080; printf 'GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n' >&3; cat <&3
        (exec 4<>/dev/tcp/127.0.0.1/{port}) || echo cannot reach the host; sleep 1000"#
    );
    let uid = cell.create(&mk_instance("client", "process:bash", &["-c", &script])).await;
    cell.until_writes(&uid, "instance: web-0").await;
    cell.until_writes(&uid, "cannot reach the host").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_does_not_reach_services_of_the_host_at_its_other_addresses() {
    if !namespaced() {
        return;
    }
    // A service that listens on all addresses is reachable at all of 127.0.0.0/8.
    let service = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = service.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = service.accept().await {
            _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"service of the host\n").await;
        }
    });
    let mut addresses = vec!["127.200.0.1".to_owned()];
    let route = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    match route.connect("192.0.2.1:9").and_then(|()| route.local_addr()) {
        Ok(own) => addresses.push(own.ip().to_string()),
        Err(_) => eprintln!("skipped: this machine has no other address"),
    }
    for address in &addresses {
        let mut stream = tokio::net::TcpStream::connect((address.as_str(), port)).await.unwrap();
        let mut greeting = [0; 7];
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut greeting).await.unwrap();
        assert_eq!(&greeting, b"service", "the host reaches {address}");
    }
    let cell = TestCell::new().await;
    let script = format!(
        "for a in {}; do got=$( (exec 3<>/dev/tcp/$a/{port} && head -n 1 <&3) 2>/dev/null); echo \"at $a: [$got]\"; done; sleep 1000",
        addresses.join(" ")
    );
    let uid = cell.create(&mk_instance("client", "process:bash", &["-c", &script])).await;
    for address in &addresses {
        assert_eq!(cell.until_writes(&uid, &format!("at {address}: ")).await, "[]");
    }
    serving.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn dangerous_system_calls_fail() {
    if !namespaced() {
        return;
    }
    let cell = TestCell::new().await;
    let script = r#"unshare -U true || echo no namespaces; mount -t tmpfs x "$HOME" || echo no mounts
        grep -q '^Seccomp:.*2$' /proc/self/status && echo filtered; sleep 1000"#;
    let uid = cell.create(&mk_script("tinkerer", script)).await;
    for words in ["no namespaces", "no mounts", "filtered"] {
        cell.until_writes(&uid, words).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_bomb_is_stopped_and_its_neighbour_lives() {
    if !namespaced() {
        return;
    }
    let cell = TestCell::with(|settings| settings.max_processes = 50).await;
    cell.create(&with_port(mk_instance("neighbour", "polis.local/hello", &[]), 8080)).await;
    let neighbour = address(&cell.until_running("neighbour").await);
    let script = "i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i+1)); done; echo all started; sleep 1000";
    let uid = cell.create(&mk_script("bomb", script)).await;
    cell.until("the limit is reached", async || {
        let lines = cell.lines(&uid, &Default::default()).await;
        lines.iter().any(|line| line.text.contains("fork") || line.text.contains("Fork")).then_some(())
    })
    .await;
    assert!(processes_of(&uid).len() <= 50);
    assert!(http_get(&neighbour, 8080).await.contains("instance: neighbour"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_hog_is_killed_with_the_reason_and_its_neighbour_lives() {
    if !limited(&["memory"]) {
        return;
    }
    let cell = TestCell::new().await;
    cell.create(&with_port(mk_instance("neighbour", "polis.local/hello", &[]), 8080)).await;
    let neighbour = address(&cell.until_running("neighbour").await);
    // `tail` keeps a line without end in memory.
    let hog = with_limits(mk_script("hog", "head -c 1G /dev/zero | tail -n 1 > line; exit $?"), "1", "64Mi");
    let uid = cell.create(&hog).await;
    let message = cell.until_condition("hog", "Running", "False", "InstanceCrashing").await;
    assert!(message.contains("out of memory: the instance used all of its 64 MiB"), "{message}");
    assert!(http_get(&neighbour, 8080).await.contains("instance: neighbour"));
    cell.delete("hog").await;
    cell.until_gone("hog").await;
    assert_eq!(cgroups(&uid), [] as [PathBuf; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_hog_is_ended_with_the_reason_and_starts_empty() {
    let cell = TestCell::with(|settings| settings.max_disk_bytes = 8 << 20).await;
    let script = "ls | grep -v tmp && echo not empty; echo run $POLIS_RESTARTS; for n in 1 2 3 4; do head -c 4000000 /dev/zero > $n; done; sleep 1000";
    let uid = cell.create(&mk_script("hog", script)).await;
    let message = cell.until_condition("hog", "Running", "False", "InstanceCrashing").await;
    // By how much the files exceed the limit depends on when they are counted.
    assert!(message.contains("out of disk space: its files use "), "{message}");
    assert!(message.contains("at most 8 MiB in 1000000 files are allowed"), "{message}");
    cell.until_writes(&uid, "run 1").await;
    let lines = cell.lines(&uid, &Default::default()).await;
    assert!(lines.iter().all(|line| line.text != "not empty"), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_with_all_its_descriptors_open_does_not_disturb_its_neighbour() {
    let cell = TestCell::with(|settings| settings.max_open_files = 64).await;
    cell.create(&with_port(mk_instance("neighbour", "polis.local/hello", &[]), 8080)).await;
    let neighbour = address(&cell.until_running("neighbour").await);
    let script =
        "n=3; while eval \"exec $n</dev/null\"; do n=$((n+1)); done 2>&1; echo limit at $n; sleep 1000";
    let uid = cell.create(&mk_instance("flood", "process:bash", &["-c", script])).await;
    cell.until("the limit is reached", async || {
        let lines = cell.lines(&uid, &Default::default()).await;
        lines.iter().any(|line| line.text.contains("Too many open files")).then_some(())
    })
    .await;
    assert!(http_get(&neighbour, 8080).await.contains("instance: neighbour"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_flood_does_not_disturb_its_neighbour() {
    let cell = TestCell::new().await;
    cell.create(&with_port(mk_instance("neighbour", "polis.local/hello", &[]), 8080)).await;
    let neighbour = address(&cell.until_running("neighbour").await);
    let uid = cell.create(&mk_script("flood", "yes flood")).await;
    cell.until_writes(&uid, "flood").await;
    for _ in 0..50 {
        assert!(http_get(&neighbour, 8080).await.contains("instance: neighbour"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_an_instance_whose_shim_was_killed() {
    if !namespaced() {
        return;
    }
    let mut cell =
        TestCell::with(|settings| settings.restart_backoff.initial = Duration::from_secs(600)).await;
    let script = "setsid sleep 1000 & echo up; sleep 1000";
    let uid = cell.create(&with_limits(mk_script("web-0", script), "1", "64Mi")).await;
    cell.until_writes(&uid, "up").await;
    cell.until_running("web-0").await;
    let state = cell.state(&uid).unwrap();
    let namespace = |name| std::fs::read_link(format!("/proc/{}/ns/{name}", state.pid)).unwrap();
    let own: Vec<PathBuf> = ["net", "pid", "mnt", "ipc", "uts"].map(namespace).into();
    // Polis is killed, too, so that no other process cleans up at once.
    cell.kill().await;
    kill_process(Pid::from_raw(state.shim).unwrap(), Signal::KILL).unwrap();
    cell.until("all processes have exited", async || processes_of(&uid).is_empty().then_some(())).await;
    cell.until("no process is in its namespaces", async || (!in_namespaces(&own)).then_some(())).await;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&uid), "{mounts}");
    let is_empty = |group: &PathBuf| {
        std::fs::read_to_string(group.join("cgroup.procs")).is_ok_and(|processes| processes.is_empty())
    };
    // The kernel removes a process that has exited from its groups a moment later.
    cell.until("its control groups are empty", async || cgroups(&uid).iter().all(is_empty).then_some(()))
        .await;
    cell.start();
    cell.until_condition("web-0", "Running", "False", "InstanceCrashing").await;
    assert_eq!(cgroups(&uid), [] as [PathBuf; 0]);
    cell.delete("web-0").await;
    cell.until_gone("web-0").await;
}

/// Whether a process of this host is in one of these namespaces.
fn in_namespaces(namespaces: &[PathBuf]) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let links =
        processes.flat_map(|process| std::fs::read_dir(process.path().join("ns")).into_iter().flatten());
    links.flatten().any(|link| std::fs::read_link(link.path()).is_ok_and(|own| namespaces.contains(&own)))
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_of_an_instance_share_its_network() {
    if !namespaced() {
        return;
    }
    let cell = TestCell::new().await;
    let mut instance = with_port(mk_instance("pair", "polis.local/hello", &[]), 8080);
    let mut client = container(&mut instance).clone();
    client.name = "client".into();
    client.image = "process:bash".into();
    client.ports.clear();
    let script = "until exec 3<>/dev/tcp/$POLIS_ADDRESS/8080; do sleep 0.05; done; printf 'GET / HTTP/1.1\\r\\nhost: x\\r\\nconnection: close\\r\\n\\r\\n' >&3; cat <&3; sleep 1000";
    client.args = vec!["-c".into(), script.into()];
    instance.spec.runtime.sandbox.as_mut().unwrap().containers.push(client);
    cell.create(&instance).await;
    cell.until_running("pair").await;
    cell.until("an answer of the other container", async || {
        cell.log("pair", "container=client").await.ok()?.contains("instance: pair").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn host_programs_do_not_run_unless_the_operator_allows_them() {
    let cell = TestCell::with(|settings| settings.host_programs = false).await;
    cell.create(&mk_script("shell", "true")).await;
    let message = cell.until_condition("shell", "Programmed", "False", "ImageUnavailable").await;
    assert!(message.contains("--allow-host-processes"), "{message}");
    cell.create(&mk_instance("calm", "polis.local/sleep", &[])).await;
    cell.until_running("calm").await;
}
