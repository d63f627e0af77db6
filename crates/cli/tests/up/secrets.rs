//! Secrets on disk, and the audit log of what is done with them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use polis_api::k8s_openapi::api::core::v1::Secret;
use polis_api::kube::Api;
use polis_api::kube::api::PostParams;
use serde_json::{Value, json};

use crate::installation::{Installation, eventually, mk_workload};
use crate::{run, wait_until_ready};

fn contains(path: &Path, text: &str) -> bool {
    let bytes = fs::read(path).expect("a file");
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("a file").permissions().mode() & 0o777
}

fn events(data: &Path) -> Vec<Value> {
    let text = fs::read_to_string(data.join("audit.log")).expect("an audit log");
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).expect("one event per line")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_encrypted_on_disk_and_its_reads_and_writes_are_in_the_audit_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    let shown = data.display().to_string();
    let args = ["--data-dir", &shown, "--cities", "dfw"];
    let installation = Installation::start(&args).await;
    let secrets: Api<Secret> = Api::namespaced(installation.client("polis-default").await, "default");
    let secret = json!({"metadata": {"name": "db"}, "stringData": {"password": "planted-password"}});
    let secret: Secret = serde_json::from_value(secret).expect("a Secret");
    secrets.create(&PostParams::default(), &secret).await.expect("creates the Secret");
    secrets.get("db").await.expect("reads the Secret");
    run(&installation, &mk_workload("hello", &["dfw"], 1)).await;
    wait_until_ready(&installation, 1).await;
    let of_secret = eventually("the events of the Secret", async || {
        let mut found = events(data);
        found.retain(|event| event["objectRef"]["name"] == "db");
        (found.len() == 2).then_some(found)
    })
    .await;
    for (event, verb) in of_secret.iter().zip(["create", "get"]) {
        assert_eq!((&event["verb"], &event["objectRef"]["plane"]), (&json!(verb), &json!("project:default")));
        assert_eq!(
            (&event["user"]["username"], &event["sourceIPs"]),
            (&json!("polis-admin"), &json!(["127.0.0.1"]))
        );
    }
    let controllers = events(data);
    for (user, verb, resource) in
        [("polis:management", "create", "workloaddeployments"), ("polis:cell-dfw", "create", "instances")]
    {
        let by = |event: &&Value| event["user"]["username"] == user && event["verb"] == verb;
        let found = controllers.iter().filter(by).any(|event| event["objectRef"]["resource"] == resource);
        assert!(found, "{user} {verb} {resource}");
    }
    installation.stop().await;
    for name in ["store.redb", "audit.log", "secrets.key"] {
        assert_eq!(mode(&data.join(name)), 0o600, "{name}");
        for planted in ["planted-password", "cGxhbnRlZC1wYXNzd29yZA"] {
            assert!(!contains(&data.join(name), planted), "{name} has {planted}");
        }
    }

    let first_key = fs::read_to_string(data.join("secrets.key")).expect("keys");
    let rotated = Installation::start(&[&args[..], &["--rotate-encryption-key"]].concat()).await;
    assert!(rotated.summary.contains("Every Secret is encrypted with the key key-"), "{}", rotated.summary);
    rotated.stop().await;
    let id = first_key.lines().find_map(|line| line.strip_prefix("key-")?.split(' ').next()).expect("a key");
    assert!(!contains(&data.join("store.redb"), &format!("key-{id}")), "no Secret has the old key");

    fs::write(data.join("secrets.key"), first_key).expect("written");
    let refused = Installation::start_error(&args).await;
    assert_eq!(refused.trim().lines().count(), 1, "{refused}");
    assert!(
        refused.contains("is encrypted with the key") && refused.contains("Restore the key file"),
        "{refused}"
    );
}
