//! A cell whose configuration names a missing quota kubeconfig does not start: quota enforcement is disabled
//! only if it is not configured.

use std::process::{Command, Output, Stdio};

use polis_apiserver::{MASTERS, kubeconfig};
use polis_tls::Authority;

/// Runs `polis manager` in the cell role with this `discovery`. No server listens on the address of the hub
/// and the cluster.
fn start(discovery: serde_json::Value) -> Output {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let authority = Authority::new().expect("an authority");
    let admin = authority.client("admin", &[MASTERS]).expect("a certificate");
    for name in ["own", "hub"] {
        let file = kubeconfig("https://127.0.0.1:1", "", authority.pem(), &admin);
        std::fs::write(path(name), file).expect("writes the file");
    }
    let config = serde_json::json!({"apiVersion": "apiserver.config.datumapis.com/v1alpha1", "kind": "WorkloadOperator",
        "discovery": discovery});
    std::fs::write(path("manager.yaml"), config.to_string()).expect("writes the file");
    Command::new(env!("CARGO_BIN_EXE_polis"))
        .args(["manager", "--enable-cell-controllers", "--server-config", &path("manager.yaml")])
        .args(["--federation-kubeconfig", &path("hub"), "--health-probe-bind-address", "127.0.0.1:0"])
        .env("KUBECONFIG", path("own"))
        .stdin(Stdio::null())
        .output()
        .expect("the manager starts")
}

#[test]
fn a_configured_but_missing_quota_kubeconfig_is_an_error_that_names_the_file() {
    let missing = "/nowhere/quota.kubeconfig";
    for field in ["quotaKubeconfigPath", "projectKubeconfigPath"] {
        let ended = start(serde_json::json!({"clusterName": "dfw-1", field: missing}));
        let output = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success(), "{field}: {output}");
        assert!(output.contains(missing), "{field}: {output}");
    }
}
