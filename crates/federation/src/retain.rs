//! Merge of a manifest with the member's object, and the check whether a write is needed.
//!
//! The member's finalizers and owner references are kept. Labels and annotations that the member added are
//! kept; those that the federation set before and no longer wants are removed, as the record on the object
//! lists them.

use polis_api::{annotations, labels};
use serde_json::{Map, Value};

use crate::{manifest, names, object};

/// Merges a manifest with the member's object; returns the object to write.
pub fn merge(mut desired: Value, observed: &Value) -> Value {
    for field in ["resourceVersion", "finalizers", "ownerReferences"] {
        match observed["metadata"].get(field) {
            Some(kept) => desired["metadata"][field] = kept.clone(),
            None => drop(object::remove(&mut desired, &["metadata", field])),
        }
    }
    keep_foreign(&mut desired, observed, "labels", annotations::karmada::MANAGED_LABELS);
    keep_foreign(&mut desired, observed, "annotations", annotations::karmada::MANAGED_ANNOTATIONS);
    desired
}

fn keep_foreign(desired: &mut Value, observed: &Value, map: &str, record: &str) {
    let ours: Vec<&str> = object::annotation(observed, record).split(',').collect();
    let Some(theirs) = observed["metadata"][map].as_object() else { return };
    for (key, value) in theirs {
        let wanted = desired["metadata"][map].get(key).is_some();
        if !wanted && !ours.contains(&key.as_str()) {
            if !desired["metadata"][map].is_object() {
                desired["metadata"][map] = Value::Object(Map::new());
            }
            desired["metadata"][map][key] = value.clone();
        }
    }
}

/// The last write to a member. It distinguishes drift from defaults that the member's API server set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastApplied {
    /// Digest of the manifest.
    pub manifest: u64,
    /// Version of the object after the write, see [`version`].
    pub version: String,
}

/// A version that changes with the spec: the generation if the kind has one, else the resource version.
pub fn version(observed: &Value) -> String {
    match object::generation(observed) {
        0 => format!("rv:{}", object::meta(observed, "resourceVersion")),
        generation => format!("gen:{generation}"),
    }
}

/// Whether the member's object must be written. `merged` is the result of [`merge`] for the manifest with
/// this digest.
pub fn differs(merged: &Value, observed: &Value, digest: u64, last_applied: Option<&LastApplied>) -> bool {
    let bare = |object: &Value| {
        let mut object = object.clone();
        manifest::prune(&mut object);
        object
    };
    if bare(merged) == bare(observed) {
        return false;
    }
    let untouched = last_applied.is_some_and(|last_applied| {
        last_applied.manifest == digest && last_applied.version == version(observed)
    });
    let same = |field: &str| merged["metadata"].get(field) == observed["metadata"].get(field);
    !(untouched && same("labels") && same("annotations"))
}

/// Digest of a manifest.
pub fn digest(manifest: &Value) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    manifest.to_string().hash(&mut hasher);
    hasher.finish()
}

/// Whether the federation manages the object.
pub fn is_managed(observed: &Value) -> bool {
    object::label(observed, labels::karmada::MANAGED) == "true"
}

/// Whether a member's object belongs to the Work with this name.
pub fn is_of_work(observed: &Value, cluster: &str, work: &str) -> bool {
    object::annotation(observed, annotations::karmada::WORK_NAME) == work
        && object::annotation(observed, annotations::karmada::WORK_NAMESPACE)
            == names::execution_namespace(cluster)
}

/// The member's object without the labels and annotations of the federation, for an object that is preserved.
pub fn released(observed: &Value) -> Value {
    let mut object = observed.clone();
    crate::claim::clear_claim(&mut object);
    object::remove_keys(
        &mut object,
        "labels",
        &[
            labels::karmada::BINDING_ID,
            labels::karmada::CLUSTER_BINDING_ID,
            labels::karmada::WORK_ID,
            labels::karmada::MANAGED,
        ],
    );
    object::remove_keys(
        &mut object,
        "annotations",
        &[
            annotations::karmada::MANAGED_ANNOTATIONS,
            annotations::karmada::MANAGED_LABELS,
            annotations::karmada::BINDING_NAMESPACE,
            annotations::karmada::BINDING_NAME,
            annotations::karmada::CLUSTER_BINDING_NAME,
            annotations::karmada::TEMPLATE_UID,
            annotations::karmada::TEMPLATE_GENERATION,
            annotations::karmada::WORK_NAME,
            annotations::karmada::WORK_NAMESPACE,
            annotations::karmada::CONFLICT_RESOLUTION,
        ],
    );
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn mk_desired() -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"keep": "hub"}, "annotations": {"x": "1"}}, "data": {"k": "v"}})
    }

    fn mk_observed() -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": "a", "uid": "u", "resourceVersion": "9", "finalizers": ["member/f"], "ownerReferences": [{"uid": "o"}],
                "labels": {"keep": "edited", "member": "own", "once": "ours"},
                "annotations": {"resourcetemplate.karmada.io/managed-labels": "keep,once", "resourcetemplate.karmada.io/managed-annotations": "gone,x", "gone": "1", "note": "n"},
            },
            "data": {"k": "edited", "more": "x"},
        })
    }

    #[test]
    fn the_member_keeps_its_own_fields_and_loses_recorded_ones() {
        let merged = merge(mk_desired(), &mk_observed());
        assert_eq!(merged["metadata"]["finalizers"], json!(["member/f"]));
        assert_eq!(merged["metadata"]["ownerReferences"], json!([{"uid": "o"}]));
        assert_eq!(merged["metadata"]["resourceVersion"], json!("9"));
        assert_eq!(merged["metadata"]["labels"], json!({"keep": "hub", "member": "own"}));
        assert_eq!(merged["metadata"]["annotations"]["note"], json!("n"));
        assert_eq!(merged["metadata"]["annotations"].get("gone"), None);
        assert_eq!(merged["data"], json!({"k": "v"}));
    }

    #[test]
    fn finalizers_and_owners_of_the_hub_are_not_merged() {
        let mut desired = mk_desired();
        desired["metadata"]["finalizers"] = json!(["hub/f"]);
        let mut observed = mk_observed();
        object::remove(&mut observed, &["metadata", "finalizers"]);
        assert_eq!(merge(desired, &observed)["metadata"].get("finalizers"), None);
    }

    #[test]
    fn an_equal_object_is_not_written() {
        let observed = mk_observed();
        let same = merge(merge(mk_desired(), &observed), &observed);
        assert!(differs(&same, &observed, 1, None));
        let mut equal = same.clone();
        equal["metadata"]["uid"] = json!("u");
        assert!(!differs(&same, &equal, 1, None));
    }

    #[test]
    fn defaults_of_the_member_are_not_drift() {
        let desired = json!({"apiVersion": "x/v1", "kind": "T", "metadata": {"name": "a", "labels": {"l": "1"}}, "spec": {"a": 1}});
        let mut observed = json!({"apiVersion": "x/v1", "kind": "T", "metadata": {"name": "a", "labels": {"l": "1"}, "generation": 4, "resourceVersion": "1"}, "spec": {"a": 1, "filled": true}});
        let merged = merge(desired, &observed);
        let last_applied = LastApplied { manifest: 7, version: version(&observed) };
        assert!(!differs(&merged, &observed, 7, Some(&last_applied)));
        // Another manifest, generation or label requires a write.
        assert!(differs(&merged, &observed, 8, Some(&last_applied)));
        observed["metadata"]["generation"] = json!(5);
        assert!(differs(&merged, &observed, 7, Some(&last_applied)));
        observed["metadata"]["generation"] = json!(4);
        observed["metadata"]["labels"]["l"] = json!("2");
        assert!(differs(&merged, &observed, 7, Some(&last_applied)));
    }

    #[test]
    fn a_released_object_has_no_metadata_of_the_federation() {
        let origin = manifest::Origin {
            binding_namespace: Some("shop"),
            binding_name: "b",
            binding_id: "b",
            work_id: "w",
            cluster: "dfw",
            conflict_resolution: None,
        };
        let template = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "shop", "labels": {"mine": "1"}}});
        assert_eq!(released(&manifest::build(&template, &origin)), template);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(256))]
        #[test]
        fn merging_twice_is_merging_once(theirs in proptest::collection::btree_map("[a-d]", "[a-b]", 0..4), ours in proptest::collection::btree_map("[a-d]", "[a-b]", 0..4), record in "[a-d](,[a-d]){0,2}") {
            let mut observed = mk_observed();
            observed["metadata"]["labels"] = json!(theirs);
            observed["metadata"]["annotations"][annotations::karmada::MANAGED_LABELS] = json!(record);
            let mut desired = mk_desired();
            desired["metadata"]["labels"] = json!(ours);
            let once = merge(desired, &observed);
            proptest::prop_assert_eq!(&merge(once.clone(), &observed), &once);
            for (key, value) in &ours {
                proptest::prop_assert_eq!(object::label(&once, key), value);
            }
        }
    }
}
