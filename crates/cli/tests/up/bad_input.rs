//! What a user can get wrong, and what a machine can do to `polis up`: a sentence each, and nothing lost.

use std::fs;

use polis_api::compute::{Instance, Workload};
use polis_api::k8s_openapi::api::core::v1::ConfigMap;
use polis_api::kube::api::PostParams;
use polis_api::kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::site::{Site, eventually, mk_workload};
use crate::{all_ready, run};

/// One sentence for a person, without a trace or a second line.
#[track_caller]
fn is_one_sentence(told: &str, words: &[&str]) {
    assert_eq!(told.trim().lines().count(), 1, "{told}");
    assert!(words.iter().all(|word| told.contains(word)), "{words:?} are not all in {told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_and_a_city_named_twice_are_told_in_one_sentence() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let told = Site::refused_as_given(&["--ephemeral", "--listen", &address]).await;
    is_one_sentence(&told, &[&format!("cannot listen on {address}"), "--listen"]);
    let told = Site::refused(&["--ephemeral", "--cities", "dfw,dfw"]).await;
    is_one_sentence(&told, &["city dfw is named twice"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_of_another_version_is_left_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("version"), "7").expect("written");
    let told = Site::refused(&["--data-dir", &folder.path().display().to_string()]).await;
    is_one_sentence(&told, &["form \"7\"", "--data-dir"]);
    assert_eq!(fs::read_to_string(folder.path().join("version")).expect("still there"), "7");
    assert!(!folder.path().join("store.redb").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_without_permission_is_named_with_what_to_do() {
    // Nobody may make a folder or a file there, root included.
    let told = Site::refused(&["--data-dir", "/sys/polis"]).await;
    is_one_sentence(&told, &["cannot make the data directory /sys/polis", "--data-dir"]);
    let told = Site::refused(&["--data-dir", "/sys/kernel"]).await;
    is_one_sentence(&told, &["cannot write to the data directory /sys/kernel", "--data-dir"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_too_small_to_begin_on_is_told_and_the_same_directory_works_once_there_is_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().display().to_string();
    let told = Site::refused_on_a_small_disk(64, &["--data-dir", &data, "--cities", "dfw"]).await;
    is_one_sentence(&told, &[&data, "room"]);
    let site = Site::start(&["--data-dir", &data, "--cities", "dfw"]).await;
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_becomes_full_ends_it_with_a_sentence_and_loses_nothing_that_was_answered() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().display().to_string();
    let complaints = tempfile::NamedTempFile::new().expect("a file");
    let args = ["--data-dir", &data, "--cities", "dfw"];
    let site = Site::start_on_a_small_disk(16_384, complaints.path(), &args).await;
    run(&site, &mk_workload("web", &["dfw"], 1)).await;
    let before = all_ready(&site, 1).await;
    let running = site.shims();

    let maps: Api<ConfigMap> = Api::namespaced(site.client("polis-default").await, "default");
    let mut taken = Vec::new();
    for number in 0..40 {
        let map =
            json!({"metadata": {"name": format!("large-{number}")}, "data": {"text": "x".repeat(900_000)}});
        let map: ConfigMap = serde_json::from_value(map).expect("a map");
        match maps.create(&PostParams::default(), &map).await {
            Ok(map) => taken.push(map.name_any()),
            Err(_) => break,
        }
    }
    assert!(!taken.is_empty() && taken.len() < 40, "{} were taken", taken.len());
    assert!(!site.ends().await.success());
    let told = fs::read_to_string(complaints.path()).expect("complaints");
    let told = told.lines().filter(|line| line.starts_with("Error: ")).collect::<Vec<_>>().join("\n");
    is_one_sentence(&told, &[&format!("the data directory {data} cannot be written any more"), "make room"]);
    assert_eq!(Site::shims_in(folder.path()), running, "what runs runs on");

    let site = Site::start(&["--data-dir", &data]).await;
    let maps: Api<ConfigMap> = Api::namespaced(site.client("polis-default").await, "default");
    for name in taken {
        assert_eq!(
            maps.get(&name).await.expect("a map that was taken").data.expect("data")["text"].len(),
            900_000
        );
    }
    let uids = |all: &[Instance]| all.iter().map(|instance| instance.uid()).collect::<Vec<_>>();
    assert_eq!(uids(&all_ready(&site, 1).await), uids(&before));
    assert_eq!(site.shims(), running, "adopted, not started again");
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_named_at_the_length_limit_runs_and_one_beyond_it_is_refused() {
    let site = Site::start(&["--ephemeral", "--cities", "dfw"]).await;
    let api: Api<Workload> = Api::namespaced(site.client("polis-default").await, "default");
    let beyond = mk_workload(&"b".repeat(64), &["dfw"], 1);
    let refused = api.create(&PostParams::default(), &beyond).await.unwrap_err().to_string();
    assert!(refused.contains("metadata.name") && refused.contains("63"), "{refused}");
    let longest = "l".repeat(63);
    run(&site, &mk_workload(&longest, &["dfw"], 2)).await;
    for instance in all_ready(&site, 2).await {
        assert!(instance.name_any().len() <= 63, "{}", instance.name_any());
    }
    api.delete(&longest, &Default::default()).await.expect("a workload that goes");
    eventually("nothing is left of it", async || {
        (api.get_opt(&longest).await.ok()?.is_none() && site.shims().is_empty()).then_some(())
    })
    .await;
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cities_stay_in_their_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().display().to_string();
    let order = |site: &Site| {
        let line = site.summary.lines().find(|line| line.trim().starts_with("cities")).expect("cities");
        line.trim().trim_start_matches("cities").trim().to_owned()
    };
    let site = Site::start(&["--data-dir", &data, "--cities", "ord,dfw"]).await;
    assert_eq!(order(&site), "ord, dfw");
    site.stop().await;
    let site = Site::start(&["--data-dir", &data]).await;
    assert_eq!(order(&site), "ord, dfw");
    site.stop().await;
}
