//! Builds a kind from a CustomResourceDefinition.

use std::sync::Arc;

use polis_apimachinery::{object, table::Columns};
use serde_json::{Value, json};

use super::{Kind, Origin, Scale, Version, schema_cache};
use crate::store::Revision;

/// The names under which a CRD is served: `status.acceptedNames`.
pub(crate) fn accepted_names(crd: &Value) -> &Value {
    &crd["status"]["acceptedNames"]
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The kind of an established CRD; `None` while the CRD is not established.
pub(crate) fn from_crd(crd: &Value, revision: Revision) -> Option<Kind> {
    if !object::condition_is(crd, "Established", "True") {
        return None;
    }
    let names = accepted_names(crd);
    let group = text(&crd["spec"]["group"]);
    let plural = text(&names["plural"]);
    let kind = text(&names["kind"]);
    let mut versions: Vec<Arc<Version>> = Vec::new();
    let mut storage = String::new();
    for version in crd["spec"]["versions"].as_array()? {
        let name = text(&version["name"]);
        if version["storage"] == true {
            storage.clone_from(&name);
        }
        versions.push(Arc::new(version_of(&group, &kind, version, &crd["spec"]["versions"])));
    }
    versions.sort_by(|a, b| precedence(&b.name).cmp(&precedence(&a.name)).then_with(|| a.name.cmp(&b.name)));
    if versions.is_empty() || storage.is_empty() {
        return None;
    }
    Some(Kind {
        resource: if group.is_empty() { plural.as_str().into() } else { format!("{plural}.{group}").into() },
        singular: text(&names["singular"]),
        list_kind: text(&names["listKind"]),
        short_names: strings(&names["shortNames"]),
        categories: strings(&names["categories"]),
        namespaced: crd["spec"]["scope"] == "Namespaced",
        origin: Origin::Custom { crd: text(&crd["metadata"]["name"]) },
        schema_revision: revision,
        terminating: object::condition_is(crd, "Terminating", "True"),
        group,
        plural,
        kind,
        versions,
        storage,
    })
}

fn version_of(group: &str, kind: &str, version: &Value, all: &Value) -> Version {
    let name = text(&version["name"]);
    let api_version = if group.is_empty() { name.clone() } else { format!("{group}/{name}") };
    let raw = version
        .pointer("/schema/openAPIV3Schema")
        .cloned()
        .unwrap_or_else(|| json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
    let deprecation = (version["deprecated"] == true).then(|| {
        version["deprecationWarning"]
            .as_str()
            .map_or_else(|| deprecation_warning(group, kind, &api_version, all), str::to_owned)
    });
    let scale = version.pointer("/subresources/scale").map(|scale| Scale {
        spec_replicas: text(&scale["specReplicasPath"]),
        status_replicas: text(&scale["statusReplicasPath"]),
        label_selector: scale["labelSelectorPath"].as_str().map(str::to_owned),
    });
    let columns = Columns::custom(
        version["additionalPrinterColumns"].as_array().map(Vec::as_slice).unwrap_or_default(),
    );
    let selectable = version["selectableFields"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|field| field["jsonPath"].as_str())
        .map(|path| path.trim_start_matches('.').to_owned())
        .collect();
    let (openapi, versioned_schema) = schema_cache::compiled(raw);
    Version {
        served: version["served"] == true,
        status: version.pointer("/subresources/status").is_some(),
        versioned_schema,
        openapi,
        name,
        api_version,
        deprecation,
        scale,
        columns,
        selectable,
    }
}

/// The default warning of a deprecated version, which names the preferred version to use instead.
fn deprecation_warning(group: &str, kind: &str, api_version: &str, all: &Value) -> String {
    let old = api_version.rsplit('/').next().unwrap_or_default();
    let better = all
        .as_array()
        .into_iter()
        .flatten()
        .filter(|version| version["served"] == true && version["deprecated"] != true)
        .filter_map(|version| version["name"].as_str())
        .filter(|name| precedence(name) > precedence(old))
        .max_by_key(|name| precedence(name));
    match better {
        Some(better) => format!("{api_version} {kind} is deprecated; use {group}/{better} {kind}"),
        None => format!("{api_version} {kind} is deprecated"),
    }
}

/// The priority of a version, as in Kubernetes: GA, then beta, then alpha, each by number. Other names come
/// last.
pub(crate) fn precedence(version: &str) -> (u8, u64, u64) {
    let parse = || -> Option<(u8, u64, u64)> {
        let rest = version.strip_prefix('v')?;
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let major: u64 = rest[..digits].parse().ok()?;
        let rest = &rest[digits..];
        Some(match rest {
            "" => (3, major, 0),
            _ => match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
                (Some(minor), _) => (2, major, if minor.is_empty() { 0 } else { minor.parse().ok()? }),
                (_, Some(minor)) => (1, major, if minor.is_empty() { 0 } else { minor.parse().ok()? }),
                _ => return None,
            },
        })
    };
    parse().unwrap_or((0, 0, 0))
}

/// Pods with any spec and status, which replace the built-in kind without objects.
pub(crate) fn stored_pods() -> Option<Kind> {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let names = json!({"kind": "Pod", "plural": "pods", "singular": "pod", "listKind": "PodList", "shortNames": ["po"]});
    let crd = json!({
        "metadata": {"name": "pods"},
        "spec": {"group": "", "scope": "Namespaced", "versions": [{
            "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}},
        }]},
        "status": {"acceptedNames": names, "conditions": [{"type": "Established", "status": "True"}]},
    });
    from_crd(&crd, Revision::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_sorted_by_maturity_and_number() {
        let mut versions =
            vec!["foo10", "v1alpha1", "v2", "v11beta2", "v10", "v12alpha1", "v3beta1", "foo1", "v1"];
        versions.sort_by(|a, b| precedence(b).cmp(&precedence(a)).then_with(|| a.cmp(b)));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v11beta2", "v3beta1", "v12alpha1", "v1alpha1", "foo1", "foo10"]
        );
    }
}
