//! Workload manifests.

use serde_json::{Value, json};

/// A workload of one container on the network `blue`.
pub fn mk_sandbox(name: &str, cities: &[&str]) -> Value {
    json!({"apiVersion": "compute.datumapis.com/v1alpha", "kind": "Workload", "metadata": {"name": name}, "spec": {
        "template": {"spec": {
            "runtime": {"resources": {"instanceType": "datumcloud/d1-standard-2"}, "sandbox": {"containers": [{"name": "app", "image": "app:1"}]}},
            "networkInterfaces": [{"network": {"name": "blue"}}]}},
        "placements": [{"name": "default", "cityCodes": cities, "scaleSettings": {"minReplicas": 1}}]}})
}

/// A virtual machine on the network `blue`.
pub fn mk_machine(name: &str) -> Value {
    let mut workload = mk_sandbox(name, &["dfw"]);
    let template = &mut workload["spec"]["template"];
    template["metadata"] = json!({"annotations": {"compute.datumapis.com/ssh-keys": format!("ada:{KEY}")}});
    template["spec"]["runtime"] = json!({"resources": {"instanceType": "datumcloud/d1-standard-2"}, "virtualMachine": {"volumeAttachments": [{"name": "boot"}]}});
    template["spec"]["volumes"] = json!([{"name": "boot", "disk": {"template": {"spec": {"populator": {"image": {"name": "datumcloud/ubuntu-2204-lts"}}}}}}]);
    workload
}

/// A public key for these tests.
pub const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH ada@home";
