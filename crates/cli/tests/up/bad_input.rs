//! Invalid input and failures of the machine: `polis up` prints one line and loses no data.

use std::fs;

use polis_api::compute::{Instance, Workload};
use polis_api::k8s_openapi::api::core::v1::ConfigMap;
use polis_api::kube::api::PostParams;
use polis_api::kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::installation::{Installation, SmallDisk, eventually, mk_workload};
use crate::{run, wait_until_ready};

/// Asserts that the output is one line with these words, without a backtrace.
#[track_caller]
fn assert_one_line(output: &str, words: &[&str]) {
    assert_eq!(output.trim().lines().count(), 1, "{output}");
    assert!(words.iter().all(|word| output.contains(word)), "{words:?} are not all in {output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_and_a_duplicate_city_are_errors_of_one_line() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let output = Installation::start_error_as_given(&["--ephemeral", "--listen", &address]).await;
    assert_one_line(&output, &[&format!("failed to listen on {address}"), "--listen"]);
    let output = Installation::start_error(&["--ephemeral", "--cities", "dfw,dfw"]).await;
    assert_one_line(&output, &["city dfw is named twice"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_of_another_version_is_not_changed() {
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    let folder = tempfile::Builder::new().permissions(private).tempdir().expect("a folder");
    fs::write(folder.path().join("version"), "7").expect("written");
    let output = Installation::start_error(&["--data-dir", &folder.path().display().to_string()]).await;
    assert_one_line(&output, &["format version \"7\"", "--data-dir"]);
    assert_eq!(fs::read_to_string(folder.path().join("version")).expect("still there"), "7");
    assert!(!folder.path().join("store.redb").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_without_permission_is_an_error_with_what_to_do() {
    // Not even root may create a file or directory there.
    let output = Installation::start_error(&["--data-dir", "/sys/polis"]).await;
    assert_one_line(&output, &["failed to create the data directory /sys/polis", "--data-dir"]);
    let output = Installation::start_error(&["--data-dir", "/sys/kernel"]).await;
    assert_one_line(&output, &["other users have access to /sys/kernel", "--data-dir"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_full_disk_is_an_error_and_succeeds_after_space_is_freed() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().display().to_string();
    let output = Installation::start_error_on_small_disk(64, &["--data-dir", &data, "--cities", "dfw"]).await;
    assert_one_line(&output, &[&data, "free disk space"]);
    let installation = Installation::start(&["--data-dir", &data, "--cities", "dfw"]).await;
    installation.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_becomes_full_stops_polis_and_loses_no_acknowledged_write() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().display().to_string();
    let stderr = tempfile::NamedTempFile::new().expect("a file");
    let args = ["--data-dir", &data, "--cities", "dfw"];
    let installation = Installation::start_on_small_disk(16_384, stderr.path(), &args).await;
    run(&installation, &mk_workload("web", &["dfw"], 1)).await;
    let before = wait_until_ready(&installation, 1).await;
    let running = installation.shims();

    let maps: Api<ConfigMap> = Api::namespaced(installation.client("polis-default").await, "default");
    let mut acknowledged = Vec::new();
    for number in 0..40 {
        let map =
            json!({"metadata": {"name": format!("large-{number}")}, "data": {"text": "x".repeat(900_000)}});
        let map: ConfigMap = serde_json::from_value(map).expect("a map");
        match maps.create(&PostParams::default(), &map).await {
            Ok(map) => acknowledged.push(map.name_any()),
            Err(_) => break,
        }
    }
    assert!(!acknowledged.is_empty() && acknowledged.len() < 40, "{} were acknowledged", acknowledged.len());
    assert!(!installation.ends().await.success());
    let output = fs::read_to_string(stderr.path()).expect("stderr");
    let output = output.lines().filter(|line| line.starts_with("Error: ")).collect::<Vec<_>>().join("\n");
    assert_one_line(&output, &[&format!("failed to write to the data directory {data}"), "free disk space"]);
    assert_eq!(Installation::shims_in(folder.path()), running, "instances keep running");

    let installation = Installation::start(&["--data-dir", &data]).await;
    let maps: Api<ConfigMap> = Api::namespaced(installation.client("polis-default").await, "default");
    for name in acknowledged {
        assert_eq!(
            maps.get(&name).await.expect("an acknowledged config map").data.expect("data")["text"].len(),
            900_000
        );
    }
    let uids = |all: &[Instance]| all.iter().map(|instance| instance.uid()).collect::<Vec<_>>();
    assert_eq!(uids(&wait_until_ready(&installation, 1).await), uids(&before));
    assert_eq!(installation.shims(), running, "adopted, not started again");
    installation.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_disk_that_something_else_fills_polis_goes_on_and_deletes() {
    let Some(disk) = SmallDisk::mount(160) else {
        eprintln!("skipped: no right to mount a file system");
        return;
    };
    let installation = Installation::start_on(&disk, &["--cities", "dfw"]).await;
    run(&installation, &mk_workload("web", &["dfw"], 1)).await;
    let before = wait_until_ready(&installation, 1).await;
    let maps: Api<ConfigMap> = Api::namespaced(installation.client("polis-default").await, "default");
    let mk_map = |name: &str| -> ConfigMap {
        let map = json!({"metadata": {"name": name}, "data": {"text": "x".repeat(900_000)}});
        serde_json::from_value(map).expect("a map")
    };
    maps.create(&PostParams::default(), &mk_map("first")).await.expect("there is space");
    disk.fill();

    // The store still has what it holds in reserve. It grows until that is needed, and refuses the rest.
    let mut refused = None;
    for number in 0..60 {
        if let Err(error) = maps.create(&PostParams::default(), &mk_map(&format!("more-{number}"))).await {
            refused = Some(error.to_string());
            break;
        }
    }
    let refused = refused.expect("the disk is full");
    assert!(refused.contains("the disk of the API server's store is full"), "{refused}");
    let workloads: Api<Workload> = Api::namespaced(installation.client("polis-default").await, "default");
    workloads.delete("web", &Default::default()).await.expect("deletes the workload");
    eventually("the workload and its instance are gone", async || {
        let gone = workloads.get_opt("web").await.ok()?.is_none();
        (gone && Installation::shims_in(disk.data().as_ref()).is_empty()).then_some(())
    })
    .await;
    assert_eq!(before.len(), 1);
    fs::remove_file(disk.path("ballast")).expect("removed");
    maps.create(&PostParams::default(), &mk_map("another")).await.expect("there is space again");
    installation.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_name_of_63_characters_works_and_one_of_64_is_refused() {
    let installation = Installation::start(&["--ephemeral", "--cities", "dfw"]).await;
    let api: Api<Workload> = Api::namespaced(installation.client("polis-default").await, "default");
    let too_long = mk_workload(&"b".repeat(64), &["dfw"], 1);
    let refused = api.create(&PostParams::default(), &too_long).await.unwrap_err().to_string();
    assert!(refused.contains("metadata.name") && refused.contains("63"), "{refused}");
    let longest = "l".repeat(63);
    run(&installation, &mk_workload(&longest, &["dfw"], 2)).await;
    for instance in wait_until_ready(&installation, 2).await {
        assert!(instance.name_any().len() <= 63, "{}", instance.name_any());
    }
    api.delete(&longest, &Default::default()).await.expect("deletes the workload");
    eventually("nothing is left of it", async || {
        (api.get_opt(&longest).await.ok()?.is_none() && installation.shims().is_empty()).then_some(())
    })
    .await;
    installation.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cities_keep_their_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().display().to_string();
    let order = |installation: &Installation| {
        let line =
            installation.summary.lines().find(|line| line.trim().starts_with("cities")).expect("cities");
        line.trim().trim_start_matches("cities").trim().to_owned()
    };
    let installation = Installation::start(&["--data-dir", &data, "--cities", "ord,dfw"]).await;
    assert_eq!(order(&installation), "ord, dfw");
    installation.stop().await;
    let installation = Installation::start(&["--data-dir", &data]).await;
    assert_eq!(order(&installation), "ord, dfw");
    installation.stop().await;
}
