//! Checks that a plane serves the kinds of a role, with all fields that this program uses.
//!
//! It reads discovery and OpenAPI, which every authenticated client may read. The manager has no permission
//! to read CustomResourceDefinitions and needs none.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use polis_api::crds::{self, CrdFile};
use serde_json::Value;

/// The CRDs of Polis. Generating them is slow, so it is done once.
static COMPUTE_CRDS: LazyLock<Vec<CrdFile>> = LazyLock::new(crds::compute);

/// The version of each kind, by group and plural name.
static VERSIONS: LazyLock<BTreeMap<(String, String), String>> = LazyLock::new(|| {
    let all = [COMPUTE_CRDS.clone(), crds::platform(), crds::karmada()].concat();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let row = |spec: &Value| {
        ((word(&spec["group"]), word(&spec["names"]["plural"])), word(&spec["versions"][0]["name"]))
    };
    all.iter().map(|file| row(&file.crd["spec"])).collect()
});

/// The version of a kind that this program uses; `None` for built-in kinds.
pub(super) fn version(group: &str, plural: &str) -> Option<&'static str> {
    VERSIONS.get(&(group.to_owned(), plural.to_owned())).map(String::as_str)
}

/// Fields that the served kind does not have, because its CRD is older than this program. `document` is the
/// OpenAPI of its group and version.
pub(super) fn missing_fields(plural: &str, document: &Value) -> Vec<String> {
    let Some(ours) = COMPUTE_CRDS.iter().find(|file| file.crd["spec"]["names"]["plural"] == plural) else {
        return Vec::new();
    };
    let kind = &ours.crd["spec"]["names"]["kind"];
    let schemas = document["components"]["schemas"].as_object();
    let served = schemas.into_iter().flatten().map(|(_, schema)| schema).find(|schema| {
        let kinds = schema["x-kubernetes-group-version-kind"].as_array();
        kinds.into_iter().flatten().any(|found| found["kind"] == *kind)
    });
    let Some(served) = served else { return Vec::new() };
    let mut missing = Vec::new();
    for part in ["spec", "status"] {
        let schema = &ours.crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part];
        compare(part, schema, &served["properties"][part], &mut missing);
    }
    missing
}

fn compare(path: &str, ours: &Value, served: &Value, missing: &mut Vec<String>) {
    for (name, field) in ours["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match &served["properties"][name] {
            Value::Null => missing.push(path),
            known => compare(&path, field, known, missing),
        }
    }
    for below in ["items", "additionalProperties"] {
        if ours[below].is_object() {
            compare(&format!("{path}[]"), &ours[below], &served[below], missing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn mk_document(change: impl FnOnce(&mut Value)) -> Value {
        let crd = crds::compute().into_iter().find(|file| file.crd["spec"]["names"]["plural"] == "instances");
        let mut schema = crd.unwrap().crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        schema["x-kubernetes-group-version-kind"] =
            json!([{"group": "compute.datumapis.com", "kind": "Instance", "version": "v1alpha"}]);
        change(&mut schema);
        json!({"components": {"schemas": {"com.datumapis.compute.v1alpha.Instance": schema}}})
    }

    #[test]
    fn the_same_crd_has_all_fields() {
        assert_eq!(missing_fields("instances", &mk_document(|_| {})), Vec::<String>::new());
    }

    #[test]
    fn the_missing_fields_of_an_older_crd_are_found_at_any_depth() {
        let older = mk_document(|schema| {
            schema["properties"]["status"]["properties"].as_object_mut().unwrap().remove("conditions");
            let spec = schema["properties"]["spec"]["properties"].as_object_mut().unwrap();
            spec["networkInterfaces"]["items"]["properties"].as_object_mut().unwrap().clear();
        });
        let missing = missing_fields("instances", &older);
        assert!(missing.contains(&"status.conditions".to_owned()), "{missing:?}");
        assert!(missing.iter().any(|field| field.starts_with("spec.networkInterfaces[].")), "{missing:?}");
    }

    #[test]
    fn a_newer_crd_has_all_fields() {
        let newer = mk_document(|schema| {
            schema["properties"]["spec"]["properties"]["later"] = json!({"type": "string"});
        });
        assert_eq!(missing_fields("instances", &newer), Vec::<String>::new());
    }

    #[test]
    fn the_versions_of_custom_kinds_are_known() {
        assert_eq!(version("compute.datumapis.com", "instances"), Some("v1alpha"));
        assert_eq!(version("policy.karmada.io", "propagationpolicies"), Some("v1alpha1"));
        assert_eq!(version("", "namespaces"), None);
    }
}
