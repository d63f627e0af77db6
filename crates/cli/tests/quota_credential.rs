//! A cell whose configuration names a quota credential that is not there does not start: quota is off only where nobody
//! asked for it.

use std::process::{Command, Output, Stdio};

use polis_apiserver::{Authority, MASTERS, kubeconfig};

/// What `polis manager` as a cell says with such a `discovery`, and a hub and a cluster that nobody needs to reach.
fn start(discovery: serde_json::Value) -> Output {
    let home = tempfile::tempdir().expect("a folder");
    let path = |name: &str| home.path().join(name).to_str().expect("UTF-8").to_owned();
    let authority = Authority::new().expect("an authority");
    let admin = authority.client("admin", &[MASTERS]).expect("a certificate");
    for name in ["own", "hub"] {
        let file = kubeconfig("https://127.0.0.1:1", "", authority.pem(), &admin);
        std::fs::write(path(name), file).expect("written");
    }
    let config = serde_json::json!({"apiVersion": "apiserver.config.datumapis.com/v1alpha1", "kind": "WorkloadOperator",
        "discovery": discovery});
    std::fs::write(path("manager.yaml"), config.to_string()).expect("written");
    Command::new(env!("CARGO_BIN_EXE_polis"))
        .args(["manager", "--enable-cell-controllers", "--server-config", &path("manager.yaml")])
        .args(["--federation-kubeconfig", &path("hub"), "--health-probe-bind-address", "127.0.0.1:0"])
        .env("KUBECONFIG", path("own"))
        .stdin(Stdio::null())
        .output()
        .expect("the manager starts")
}

#[test]
fn a_quota_credential_that_is_configured_and_missing_is_an_error_that_names_the_file() {
    let missing = "/nowhere/quota.kubeconfig";
    for field in ["quotaKubeconfigPath", "projectKubeconfigPath"] {
        let ended = start(serde_json::json!({"clusterName": "dfw-1", field: missing}));
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success(), "{field}: {said}");
        assert!(said.contains(missing), "{field}: {said}");
    }
}
