//! What a member may keep when its object is brought to the manifest, and whether there is anything to bring.
//!
//! The member's finalizers and owners are its own. Labels and annotations that the member added stay; those that the
//! federation once put there and no longer wants are told apart by the record on the object.

use polis_api::{annotations, labels};
use serde_json::{Map, Value};

use crate::{manifest, names, object};

/// Lays a manifest over the member's object: what should be written.
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

/// What was last written to a member, to tell a hand edit from defaults that the member's API server filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Digest of the manifest.
    pub manifest: u64,
    /// Version of the object after the write.
    pub version: String,
}

/// The version by which a change of the wish (not of the status) shows: the generation where the kind has one.
pub fn version(observed: &Value) -> String {
    match object::generation(observed) {
        0 => format!("rv:{}", object::meta(observed, "resourceVersion")),
        generation => format!("gen:{generation}"),
    }
}

/// Whether the member's object must be written to become `merged`, which was made by [`merge`] from the manifest with
/// this digest.
pub fn differs(merged: &Value, observed: &Value, digest: u64, written: Option<&Written>) -> bool {
    let bare = |object: &Value| {
        let mut object = object.clone();
        manifest::prune(&mut object);
        object
    };
    if bare(merged) == bare(observed) {
        return false;
    }
    let untouched =
        written.is_some_and(|written| written.manifest == digest && written.version == version(observed));
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

/// Whether the federation put the object there.
pub fn is_managed(observed: &Value) -> bool {
    object::label(observed, labels::karmada::MANAGED) == "true"
}

/// Whether a member's object belongs to the Work of this name in the namespace of this member.
pub fn is_of_work(observed: &Value, cluster: &str, work: &str) -> bool {
    object::annotation(observed, annotations::karmada::WORK_NAME) == work
        && object::annotation(observed, annotations::karmada::WORK_NAMESPACE)
            == names::execution_namespace(cluster)
}

/// The member's object without any mark of the federation: how it is left when it is to be kept.
pub fn released(observed: &Value) -> Value {
    let mut object = observed.clone();
    crate::claim::unmark(&mut object);
    object::remove_texts(
        &mut object,
        "labels",
        &[
            labels::karmada::BINDING_ID,
            labels::karmada::CLUSTER_BINDING_ID,
            labels::karmada::WORK_ID,
            labels::karmada::MANAGED,
        ],
    );
    object::remove_texts(
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
    fn the_member_keeps_its_own_and_loses_what_was_ours() {
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
    fn a_hub_cannot_smuggle_in_finalizers_or_owners() {
        let mut desired = mk_desired();
        desired["metadata"]["finalizers"] = json!(["hub/f"]);
        let mut observed = mk_observed();
        object::remove(&mut observed, &["metadata", "finalizers"]);
        assert_eq!(merge(desired, &observed)["metadata"].get("finalizers"), None);
    }

    #[test]
    fn only_a_difference_is_written() {
        let observed = mk_observed();
        let same = merge(merge(mk_desired(), &observed), &observed);
        assert!(differs(&same, &observed, 1, None));
        let mut settled = same.clone();
        settled["metadata"]["uid"] = json!("u");
        assert!(!differs(&same, &settled, 1, None));
    }

    #[test]
    fn defaults_that_the_member_filled_in_are_no_hand_edit() {
        let desired = json!({"apiVersion": "x/v1", "kind": "T", "metadata": {"name": "a", "labels": {"l": "1"}}, "spec": {"a": 1}});
        let mut observed = json!({"apiVersion": "x/v1", "kind": "T", "metadata": {"name": "a", "labels": {"l": "1"}, "generation": 4, "resourceVersion": "1"}, "spec": {"a": 1, "filled": true}});
        let merged = merge(desired, &observed);
        let written = Written { manifest: 7, version: version(&observed) };
        assert!(!differs(&merged, &observed, 7, Some(&written)));
        // Another manifest, another generation or another label is a reason to write.
        assert!(differs(&merged, &observed, 8, Some(&written)));
        observed["metadata"]["generation"] = json!(5);
        assert!(differs(&merged, &observed, 7, Some(&written)));
        observed["metadata"]["generation"] = json!(4);
        observed["metadata"]["labels"]["l"] = json!("2");
        assert!(differs(&merged, &observed, 7, Some(&written)));
    }

    #[test]
    fn a_released_object_bears_no_mark() {
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
