//! Properties of the schemas that clients of the kinds rely on.

use std::sync::LazyLock;

use serde_json::json;

use super::*;

/// The CRDs of the Polis kinds, built once: deriving a schema takes 0.1 s in a debug build.
static COMPUTE_CRDS: LazyLock<Vec<CrdFile>> = LazyLock::new(compute);

/// The CRD of a Polis kind.
fn crd(kind: &str) -> &'static Value {
    &COMPUTE_CRDS.iter().find(|file| file.crd["spec"]["names"]["kind"] == kind).expect("a Polis kind").crd
}

/// The schema of a field of a Polis kind, by a path such as `spec.placements[].name`.
fn field(kind: &str, path: &str) -> Value {
    let mut node = &crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    for step in path.split('.') {
        let (name, item) = step.strip_suffix("[]").map_or((step, false), |name| (name, true));
        node = &node["properties"][name];
        if item {
            node = &node["items"];
        }
        assert!(node.is_object(), "{kind} has no {path}: stopped at {step}");
    }
    node.clone()
}

fn required(kind: &str, path: &str) -> Vec<String> {
    serde_json::from_value(field(kind, path)["required"].clone()).unwrap_or_default()
}

fn columns(kind: &str) -> Vec<(String, String, i64)> {
    let text = |column: &Value, key: &str| column[key].as_str().unwrap_or_default().to_owned();
    crd(kind)["spec"]["versions"][0]["additionalPrinterColumns"]
        .as_array()
        .expect("columns")
        .iter()
        .map(|c| (text(c, "name"), text(c, "jsonPath"), c["priority"].as_i64().unwrap_or(0)))
        .collect()
}

fn names_of(columns: &[(String, String, i64)]) -> Vec<(&str, i64)> {
    columns.iter().map(|(name, _, priority)| (name.as_str(), *priority)).collect()
}

#[test]
fn a_workload_has_these_printer_columns() {
    let expected =
        ["Available", "Reason", "Deployments", "Replicas", "Ready", "Desired", "Up-to-date", "Age"];
    assert_eq!(names_of(&columns("Workload")), expected.map(|name| (name, 0)));
    assert_eq!(columns("Workload")[6].1, ".status.currentReplicas");
}

#[test]
fn a_deployment_shows_its_location_only_in_wide_output() {
    let expected = [
        ("Available", 0),
        ("Reason", 0),
        ("Replicas", 0),
        ("Ready", 0),
        ("Desired", 0),
        ("Up-to-date", 0),
        ("City", 0),
        ("Age", 0),
        ("Location Namespace", 1),
        ("Location Name", 1),
    ];
    assert_eq!(names_of(&columns("WorkloadDeployment")), expected);
}

#[test]
fn every_kind_has_a_short_name_and_the_categories_compute_and_all() {
    for (kind, short) in [("Workload", "wl"), ("WorkloadDeployment", "wld"), ("Instance", "inst")] {
        let names = &crd(kind)["spec"]["names"];
        assert_eq!(names["shortNames"], serde_json::json!([short]), "{kind}");
        assert_eq!(names["categories"], serde_json::json!(["compute", "all"]), "{kind}");
    }
}

#[test]
fn an_instance_shows_its_message_and_quota_only_in_wide_output() {
    let expected = [
        ("Ready", 0),
        ("Reason", 0),
        ("Network IP", 0),
        ("External IP", 0),
        ("City", 0),
        ("Age", 0),
        ("Message", 1),
        ("Quota", 1),
    ];
    assert_eq!(names_of(&columns("Instance")), expected);
}

#[test]
fn original_counts_of_a_status_are_required_and_later_ones_are_not() {
    let counts = ["currentReplicas", "desiredReplicas", "readyReplicas", "replicas"];
    assert_eq!(required("WorkloadDeployment", "status"), counts);
    assert_eq!(required("Workload", "status"), [&["currentReplicas", "deployments"], &counts[1..]].concat());
    assert_eq!(
        required("Workload", "status.placements[]"),
        ["currentReplicas", "desiredReplicas", "name", "readyReplicas", "replicas"]
    );
}

#[test]
fn specs_require_what_the_api_requires() {
    assert_eq!(required("Workload", "spec"), ["placements", "template"]);
    assert_eq!(required("Workload", "spec.template"), ["spec"]);
    assert_eq!(required("Workload", "spec.placements[]"), ["cityCodes", "name", "scaleSettings"]);
    assert_eq!(
        required("Workload", "spec.placements[].scaleSettings"),
        ["instanceManagementPolicy", "minReplicas"]
    );
    assert_eq!(
        required("WorkloadDeployment", "spec"),
        ["cityCode", "placementName", "scaleSettings", "template", "workloadRef"]
    );
    assert_eq!(required("Instance", "spec"), ["networkInterfaces", "runtime"]);
    assert_eq!(required("Instance", "spec.runtime"), ["resources"]);
    assert_eq!(required("Instance", "spec.location"), ["name", "namespace"]);
    assert_eq!(required("Instance", "spec.volumes[].disk"), ["template"]);
    assert_eq!(required("Instance", "spec.volumes[].disk.template.spec"), Vec::<String>::new());
}

#[test]
fn defaults_are_exactly_those_of_the_api() {
    let mut defaults = Vec::new();
    for file in COMPUTE_CRDS.iter() {
        let kind = file.crd["spec"]["names"]["kind"].as_str().expect("kind").to_owned();
        let mut schema = file.crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        finish::visit(&mut schema, "", &mut |name, node| {
            if let Some(default) = node.get("default").filter(|d| !d.is_object()) {
                defaults.push(format!("{kind} {name}={default}"));
            }
        });
    }
    defaults.sort();
    defaults.dedup();
    let expected = [
        "Instance name=\"\"",
        "Instance type=\"pd-standard\"",
        "Workload instanceManagementPolicy=\"OrderedReady\"",
        "Workload name=\"\"",
        "Workload type=\"pd-standard\"",
        "WorkloadDeployment instanceManagementPolicy=\"OrderedReady\"",
        "WorkloadDeployment name=\"\"",
        "WorkloadDeployment type=\"pd-standard\"",
    ];
    assert_eq!(defaults, expected);
    assert_eq!(field("Instance", "spec.volumes[].configMap.name")["default"], "");
    assert_eq!(field("Instance", "spec.volumes[].configMap")["x-kubernetes-map-type"], "atomic");
}

#[test]
fn a_new_instance_has_four_unknown_conditions() {
    let default = field("Instance", "status")["default"].clone();
    let conditions = default["conditions"].as_array().expect("conditions").clone();
    let actual: Vec<_> = conditions
        .iter()
        .map(|c| (c["type"].as_str().unwrap(), c["status"].as_str().unwrap(), c["reason"].as_str().unwrap()))
        .collect();
    let expected = [
        ("Programmed", "Unknown", "Pending"),
        ("Running", "Unknown", "Pending"),
        ("Ready", "Unknown", "Pending"),
        ("QuotaGranted", "Unknown", "PendingEvaluation"),
    ];
    assert_eq!(actual, expected);
    assert!(conditions.iter().all(|c| c["lastTransitionTime"] == "1970-01-01T00:00:00Z"));
    let status: crate::compute::InstanceStatus =
        serde_json::from_value(default).expect("the default is a valid status");
    assert_eq!(status.conditions.len(), 4);
}

#[test]
fn lists_have_the_list_types_of_the_api() {
    let list_type = |path: &str| field("Instance", path)["x-kubernetes-list-type"].clone();
    for by_name in [
        "spec.volumes",
        "spec.controller.schedulingGates",
        "spec.runtime.sandbox.containers",
        "spec.runtime.sandbox.containers[].env",
        "spec.runtime.sandbox.containers[].ports",
        "spec.runtime.virtualMachine.ports",
    ] {
        assert_eq!(list_type(by_name), "map", "{by_name}");
        assert_eq!(field("Instance", by_name)["x-kubernetes-list-map-keys"], serde_json::json!(["name"]));
    }
    for whole in [
        "spec.networkInterfaces[].networkPolicy.ingress[].ports",
        "spec.networkInterfaces[].networkPolicy.ingress[].from",
        "spec.networkInterfaces[].networkPolicy.ingress[].from[].ipBlock.except",
    ] {
        assert_eq!(list_type(whole), "atomic", "{whole}");
    }
    for plain in
        ["status.conditions", "spec.networkInterfaces", "spec.runtime.sandbox.containers[].volumeAttachments"]
    {
        assert_eq!(list_type(plain), Value::Null, "{plain}");
    }
}

#[test]
fn quantities_are_numbers_or_text() {
    for path in ["spec.runtime.resources.requests", "spec.runtime.sandbox.containers[].resources.limits"] {
        let value = field("Instance", path)["additionalProperties"].clone();
        assert_eq!(value["x-kubernetes-int-or-string"], true, "{path}");
        assert_eq!(value["anyOf"][1]["type"], "string", "{path}");
        assert!(value["pattern"].is_string(), "{path}");
    }
    let port = field("Instance", "spec.networkInterfaces[].networkPolicy.ingress[].ports[].port");
    assert_eq!(port["x-kubernetes-int-or-string"], true);
    assert_eq!(port["pattern"], Value::Null);
}

#[test]
fn a_deployment_scales_by_its_replicas() {
    let scale = &crd("WorkloadDeployment")["spec"]["versions"][0]["subresources"]["scale"];
    assert_eq!(scale["specReplicasPath"], ".spec.replicas");
    assert_eq!(scale["statusReplicasPath"], ".status.replicas");
    assert_eq!(scale["labelSelectorPath"], ".status.selector");
}

#[test]
fn a_workload_scales_by_its_number_per_city() {
    let scale = &crd("Workload")["spec"]["versions"][0]["subresources"]["scale"];
    assert_eq!(
        *scale,
        json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicasPerCity"})
    );
}

#[test]
fn the_lines_of_a_paragraph_are_joined_in_descriptions() {
    let text = "First line\nof a paragraph.\n\nSecond\nparagraph:\n- one\n- two";
    let mut crd = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {"description": text}}}]}});
    finish::unwrap_descriptions(&mut crd);
    assert_eq!(
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"],
        "First line of a paragraph.\n\nSecond paragraph:\n- one\n- two"
    );
}

#[test]
fn every_field_of_a_polis_kind_has_a_description() {
    for file in COMPUTE_CRDS.iter() {
        let mut schema = file.crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        let mut undescribed = Vec::new();
        finish::visit(&mut schema, "root", &mut |name, node| {
            let described = node.get("description").and_then(Value::as_str).is_some_and(|d| !d.is_empty());
            if !name.is_empty() && name != "metadata" && !described {
                undescribed.push(name.to_owned());
            }
        });
        assert!(undescribed.is_empty(), "{}: no description for {undescribed:?}", file.path().display());
    }
}

#[test]
fn polis_kinds_are_offered_inside_projects_and_accept_no_null() {
    for file in COMPUTE_CRDS.iter() {
        assert_eq!(file.crd["metadata"]["annotations"]["discovery.miloapis.com/parent-contexts"], "Project");
        assert_eq!(file.crd["spec"]["scope"], "Namespaced");
        assert!(file.crd["spec"]["versions"][0]["subresources"]["status"].is_object());
        assert!(!file.crd.to_string().contains("nullable"));
    }
}

#[test]
fn minimal_crds_are_marked_and_preserve_unknown_fields() {
    for file in [platform(), karmada()].concat() {
        let name = file.path();
        assert_eq!(
            file.crd["metadata"]["annotations"]["polis.datumapis.com/minimal-crd"], "true",
            "{name:?}"
        );
        let schema = &file.crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        assert!(schema["description"].as_str().unwrap().contains("Minimal definition"), "{name:?}");
        assert_eq!(schema["properties"]["spec"]["x-kubernetes-preserve-unknown-fields"], true, "{name:?}");
    }
}

#[test]
fn a_file_parses_to_the_crd_that_it_was_written_from() {
    for file in [compute(), platform(), karmada()].concat() {
        let read: Value = serde_saphyr::from_str(&file.yaml()).expect("valid YAML");
        assert_eq!(read, file.crd, "{}", file.path().display());
        assert_eq!(file.definition().metadata.name.as_deref(), file.crd["metadata"]["name"].as_str());
    }
    let mut paths: Vec<_> = files().into_iter().map(|(path, _)| path).collect();
    assert!(paths.contains(&PathBuf::from("deploy/base/crds/compute.datumapis.com_workloads.yaml")));
    let all = paths.len();
    paths.dedup();
    assert_eq!(all, 22);
    assert_eq!(paths.len(), all);
}
