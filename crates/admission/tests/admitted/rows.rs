//! The validation rules, one row each: a valid manifest, the change that breaks the rule, and the field that
//! the error must name.
//!
//! Some rules are also in the schema. Then the API server denies with its own message, and names the list
//! where the webhook would name the entry.

use serde_json::{Value, json};

use crate::manifests::{KEY, mk_machine, mk_sandbox};

/// Number of the rule, a valid manifest, the change that makes it invalid, and the field.
pub type Row = (&'static str, fn(&str) -> Value, fn(&mut Value), &'static str);

/// A sandbox with a disk, a config map, a port and a metric.
fn rich(name: &str) -> Value {
    let mut object = mk_sandbox(name, &["dfw"]);
    let spec = &mut object["spec"]["template"]["spec"];
    spec["volumes"] = json!([
        {"name": "data", "disk": {"template": {"spec": {"populator": {"filesystem": {"type": "ext4"}}, "resources": {"requests": {"storage": "20Gi"}}}}}},
        {"name": "settings", "configMap": {"name": "settings"}}]);
    let container = &mut spec["runtime"]["sandbox"]["containers"][0];
    container["volumeAttachments"] =
        json!([{"name": "data", "mountPath": "/data"}, {"name": "settings", "mountPath": "/etc/app"}]);
    container["ports"] = json!([{"name": "http", "port": 8080}]);
    object["spec"]["placements"][0]["scaleSettings"] = json!({"minReplicas": 1, "maxReplicas": 3,
        "metrics": [{"resource": {"name": "cpu", "target": {"averageUtilization": 70}}}]});
    object
}

fn spec(object: &mut Value) -> &mut Value {
    &mut object["spec"]["template"]["spec"]
}

fn disk(object: &mut Value) -> &mut Value {
    &mut spec(object)["volumes"][0]["disk"]["template"]["spec"]
}

fn container(object: &mut Value) -> &mut Value {
    &mut spec(object)["runtime"]["sandbox"]["containers"][0]
}

fn machine(object: &mut Value) -> &mut Value {
    &mut spec(object)["runtime"]["virtualMachine"]
}

fn scale(object: &mut Value) -> &mut Value {
    &mut object["spec"]["placements"][0]["scaleSettings"]
}

fn target(object: &mut Value) -> &mut Value {
    &mut scale(object)["metrics"][0]["resource"]["target"]
}

fn set_keys(object: &mut Value, keys: String) {
    object["spec"]["template"]["metadata"]["annotations"]["compute.datumapis.com/ssh-keys"] = keys.into();
}

fn set_size(object: &mut Value, size: &str) {
    disk(object)["resources"]["requests"]["storage"] = size.into();
}

fn remove(object: &mut Value, field: &str) {
    object.as_object_mut().expect("an object").remove(field);
}

const SSH: &str = "spec.template.metadata.annotations[compute.datumapis.com/ssh-keys]";
const SSH_0: &str = "spec.template.metadata.annotations[compute.datumapis.com/ssh-keys][0]";
const STORAGE: &str = "spec.template.spec.volumes[0].disk.template.spec.resources.requests[storage]";
const CONTAINERS: &str = "spec.template.spec.runtime.sandbox.containers";

pub const ROWS: &[Row] = &[
    ("1", mk_machine, |o| remove(&mut o["spec"]["template"], "metadata"), SSH),
    ("2", mk_machine, |o| set_keys(o, "just-words".into()), SSH_0),
    ("3", mk_machine, |o| set_keys(o, format!(":{KEY}")), SSH_0),
    ("4", mk_machine, |o| set_keys(o, "ada:ssh-rsa AAAA".into()), SSH_0),
    (
        "5",
        rich,
        |o| spec(o)["volumes"][0]["disk"]["deviceName"] = "persistent-disk-1".into(),
        "spec.template.spec.volumes[0].disk.deviceName",
    ),
    ("6", rich, |o| remove(&mut spec(o)["volumes"][1], "configMap"), "spec.template.spec.volumes[1]"),
    (
        "6",
        rich,
        |o| spec(o)["volumes"][0]["secret"] = json!({"secretName": "s"}),
        "spec.template.spec.volumes[0]",
    ),
    (
        "7",
        rich,
        |o| {
            spec(o)["volumes"][0]["name"] = "Data_1".into();
            container(o)["volumeAttachments"][0]["name"] = "Data_1".into();
        },
        "spec.template.spec.volumes[0].name",
    ),
    (
        "7",
        rich,
        |o| {
            spec(o)["volumes"][0]["name"] = "".into();
            container(o)["volumeAttachments"][0]["name"] = "".into();
        },
        "spec.template.spec.volumes[0].name",
    ),
    ("8", rich, |o| spec(o)["volumes"][1]["name"] = "data".into(), "spec.template.spec.volumes[1]"),
    (
        "9",
        rich,
        |o| container(o)["volumeAttachments"] = json!([{"name": "data"}]),
        "spec.template.spec.volumes[1].name",
    ),
    (
        "10",
        rich,
        |o| spec(o)["volumes"][0]["disk"] = json!({}),
        "spec.template.spec.volumes[0].disk.template",
    ),
    (
        "11",
        rich,
        |o| disk(o)["type"] = "pd-fast".into(),
        "spec.template.spec.volumes[0].disk.template.spec.type",
    ),
    (
        "12",
        rich,
        |o| disk(o)["populator"] = json!({"image": {"name": "mine"}}),
        "spec.template.spec.volumes[0].disk.template.spec.populator.image.name",
    ),
    (
        "13",
        rich,
        |o| disk(o)["populator"]["filesystem"]["type"] = "xfs".into(),
        "spec.template.spec.volumes[0].disk.template.spec.populator.filesystem.type",
    ),
    (
        "14",
        rich,
        |o| {
            disk(o)["populator"]["image"] = json!({"name": "datumcloud/ubuntu-2204-lts"});
            set_size(o, "30Gi");
        },
        "spec.template.spec.volumes[0].disk.template.spec.populator.filesystem",
    ),
    (
        "15",
        rich,
        |o| remove(disk(o), "resources"),
        "spec.template.spec.volumes[0].disk.template.spec.resources",
    ),
    (
        "16",
        rich,
        |o| disk(o)["resources"] = json!({}),
        "spec.template.spec.volumes[0].disk.template.spec.resources.requests",
    ),
    ("17", rich, |o| disk(o)["resources"]["requests"] = json!({"cpu": "1"}), STORAGE),
    ("17", rich, |o| set_size(o, "0"), STORAGE),
    ("17", rich, |o| set_size(o, "9Gi"), STORAGE),
    ("17", rich, |o| set_size(o, "101Gi"), STORAGE),
    ("17", rich, |o| set_size(o, "10.5Gi"), STORAGE),
    (
        "18",
        rich,
        |o| {
            disk(o)["populator"] = json!({"image": {"name": "datumcloud/ubuntu-2204-lts"}});
            set_size(o, "24Gi");
        },
        STORAGE,
    ),
    (
        "19",
        rich,
        |o| spec(o)["volumes"][1]["configMap"] = json!({"name": ""}),
        "spec.template.spec.volumes[1].configMap.name",
    ),
    (
        "20",
        rich,
        |o| spec(o)["volumes"][1]["configMap"]["defaultMode"] = 512.into(),
        "spec.template.spec.volumes[1].configMap.defaultMode",
    ),
    (
        "21",
        rich,
        |o| spec(o)["volumes"][1]["configMap"]["items"] = json!([{"key": "a", "path": "b"}]),
        "spec.template.spec.volumes[1].configMap.items",
    ),
    (
        "23",
        rich,
        |o| spec(o)["runtime"]["resources"]["instanceType"] = "huge".into(),
        "spec.template.spec.runtime.resources.instanceType",
    ),
    (
        "24",
        rich,
        |o| spec(o)["runtime"]["resources"]["requests"] = json!({"cpu": "2"}),
        "spec.template.spec.runtime.resources.requests",
    ),
    (
        "25",
        rich,
        |o| {
            remove(&mut spec(o)["runtime"], "sandbox");
            remove(spec(o), "volumes");
        },
        "spec.template.spec.runtime",
    ),
    (
        "26",
        rich,
        |o| spec(o)["runtime"]["virtualMachine"] = json!({"volumeAttachments": [{"name": "data"}]}),
        "spec.template.spec.runtime",
    ),
    ("27", mk_bare, |o| spec(o)["runtime"]["sandbox"]["containers"] = json!([]), CONTAINERS),
    (
        "28",
        rich,
        |o| container(o)["name"] = "App!".into(),
        "spec.template.spec.runtime.sandbox.containers[0].name",
    ),
    (
        "28",
        rich,
        |o| container(o)["name"] = "".into(),
        "spec.template.spec.runtime.sandbox.containers[0].name",
    ),
    (
        "28",
        mk_bare,
        |o| {
            spec(o)["runtime"]["sandbox"]["containers"] =
                json!([{"name": "a", "image": "a"}, {"name": "a", "image": "b"}])
        },
        "spec.template.spec.runtime.sandbox.containers[1]",
    ),
    (
        "29",
        rich,
        |o| container(o)["image"] = "".into(),
        "spec.template.spec.runtime.sandbox.containers[0].image",
    ),
    (
        "30",
        rich,
        |o| container(o)["resources"] = json!({"limits": {"cpu": "1"}}),
        "spec.template.spec.runtime.sandbox.containers[0].resources",
    ),
    (
        "31",
        rich,
        |o| container(o)["volumeAttachments"].as_array_mut().unwrap().push(json!({"name": "gone"})),
        "spec.template.spec.runtime.sandbox.containers[0].volumeAttachments[2].name",
    ),
    (
        "32",
        rich,
        |o| remove(disk(o), "populator"),
        "spec.template.spec.runtime.sandbox.containers[0].volumeAttachments[0].mountPath",
    ),
    (
        "33",
        rich,
        |o| remove(&mut spec(o)["volumes"][0]["disk"], "template"),
        "spec.template.spec.volumes[0].disk.template",
    ),
    (
        "34",
        rich,
        |o| container(o)["volumeAttachments"][1]["mountPath"] = "/data".into(),
        "spec.template.spec.runtime.sandbox.containers[0].volumeAttachments[1].mountPath",
    ),
    (
        "35",
        rich,
        |o| container(o)["ports"][0]["name"] = "a--b".into(),
        "spec.template.spec.runtime.sandbox.containers[0].ports[0].name",
    ),
    (
        "35",
        rich,
        |o| container(o)["ports"] = json!([{"name": "a", "port": 1}, {"name": "a", "port": 2}]),
        "spec.template.spec.runtime.sandbox.containers[0].ports[1]",
    ),
    (
        "35",
        mk_machine,
        |o| machine(o)["ports"] = json!([{"name": "", "port": 22}]),
        "spec.template.spec.runtime.virtualMachine.ports[0].name",
    ),
    (
        "36",
        rich,
        |o| container(o)["ports"][0]["port"] = 65536.into(),
        "spec.template.spec.runtime.sandbox.containers[0].ports[0].port",
    ),
    (
        "37",
        rich,
        |o| spec(o)["runtime"]["sandbox"]["imagePullSecrets"] = json!([{"name": ""}]),
        "spec.template.spec.runtime.sandbox.imagePullSecrets[0].name",
    ),
    (
        "38",
        mk_machine,
        |o| machine(o)["volumeAttachments"] = json!([]),
        "spec.template.spec.runtime.virtualMachine.volumeAttachments",
    ),
    (
        "39",
        mk_machine,
        |o| spec(o)["volumes"][0] = json!({"name": "boot", "configMap": {"name": "boot"}}),
        "spec.template.spec.runtime.virtualMachine.volumeAttachments[0].name",
    ),
    ("40", rich, |o| spec(o)["networkInterfaces"] = json!([]), "spec.template.spec.networkInterfaces"),
    (
        "41",
        rich,
        |o| spec(o)["networkInterfaces"][0]["network"]["name"] = "Net_1".into(),
        "spec.template.spec.networkInterfaces[0].network.name",
    ),
    (
        "network-namespace",
        rich,
        |o| spec(o)["networkInterfaces"][0]["network"]["namespace"] = "a/b".into(),
        "spec.template.spec.networkInterfaces[0].network.namespace",
    ),
    ("44", rich, |o| o["spec"]["placements"] = json!([]), "spec.placements"),
    ("45", rich, |o| o["spec"]["placements"][0]["name"] = "".into(), "spec.placements[0].name"),
    ("45", rich, |o| o["spec"]["placements"][0]["name"] = "a".repeat(64).into(), "spec.placements[0].name"),
    (
        "placement-names",
        rich,
        |o| {
            let again = o["spec"]["placements"][0].clone();
            o["spec"]["placements"].as_array_mut().unwrap().push(again);
        },
        "spec.placements",
    ),
    ("46", rich, |o| o["spec"]["placements"][0]["cityCodes"] = json!([]), "spec.placements[0].cityCodes"),
    (
        "47",
        rich,
        |o| o["spec"]["placements"][0]["cityCodes"] = json!(["dfw", "lhr"]),
        "spec.placements[0].cityCodes[1]",
    ),
    ("48", rich, |o| scale(o)["minReplicas"] = 0.into(), "spec.placements[0].scaleSettings.minReplicas"),
    (
        "48",
        mk_bare,
        |o| scale(o)["minReplicas"] = 1001.into(),
        "spec.placements[0].scaleSettings.minReplicas",
    ),
    ("max-min", rich, |o| scale(o)["minReplicas"] = 4.into(), "spec.placements[0].scaleSettings.maxReplicas"),
    ("49", rich, |o| remove(scale(o), "metrics"), "spec.placements[0].scaleSettings.metrics"),
    (
        "50",
        rich,
        |o| scale(o)["metrics"] = json!([{}]),
        "spec.placements[0].scaleSettings.metrics[0].resource",
    ),
    (
        "51",
        rich,
        |o| scale(o)["metrics"][0]["resource"]["name"] = "memory".into(),
        "spec.placements[0].scaleSettings.metrics[0].resource.name",
    ),
    ("52", rich, |o| *target(o) = json!({}), "spec.placements[0].scaleSettings.metrics[0].resource.target"),
    (
        "52",
        rich,
        |o| target(o)["value"] = "1".into(),
        "spec.placements[0].scaleSettings.metrics[0].resource.target.averageUtilization",
    ),
    (
        "53",
        rich,
        |o| *target(o) = json!({"value": "0"}),
        "spec.placements[0].scaleSettings.metrics[0].resource.target.value",
    ),
    (
        "53",
        rich,
        |o| *target(o) = json!({"averageValue": "-1"}),
        "spec.placements[0].scaleSettings.metrics[0].resource.target.averageValue",
    ),
    (
        "54",
        rich,
        |o| target(o)["averageUtilization"] = 0.into(),
        "spec.placements[0].scaleSettings.metrics[0].resource.target.averageUtilization",
    ),
    (
        "labels",
        rich,
        |o| o["spec"]["template"]["metadata"] = json!({"labels": {"a": "not a value!"}}),
        "spec.template.metadata.labels[a]",
    ),
];

fn mk_bare(name: &str) -> Value {
    mk_sandbox(name, &["dfw"])
}
