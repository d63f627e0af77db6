//! The manifest for a member: the hub object without hub-only fields, with the labels and annotations of its
//! origin.

use polis_api::{annotations, karmada::CONFLICT_OVERWRITE, labels};
use serde_json::Value;

use crate::{names, object};

/// The binding, Work and cluster of a manifest.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// Namespace of the binding; `None` for a ClusterResourceBinding.
    pub binding_namespace: Option<&'a str>,
    /// Name of the binding.
    pub binding_name: &'a str,
    /// Permanent id of the binding.
    pub binding_id: &'a str,
    /// Permanent id of the Work.
    pub work_id: &'a str,
    /// The member.
    pub cluster: &'a str,
    /// `conflictResolution` of the policy, for objects that already exist on the member.
    pub conflict_resolution: Option<&'a str>,
}

/// The value of the annotation `conflict-resolution`. The annotation of the object has precedence over the
/// policy.
pub fn conflict_resolution(template: &Value, of_policy: Option<&str>) -> &'static str {
    match object::annotation(template, annotations::karmada::CONFLICT_RESOLUTION) {
        "overwrite" => "overwrite",
        "abort" => "abort",
        _ if of_policy == Some(CONFLICT_OVERWRITE) => "overwrite",
        _ => "abort",
    }
}

/// Builds the manifest of a Work.
pub fn build(template: &Value, origin: &Origin<'_>) -> Value {
    let mut manifest = template.clone();
    let key = object::ObjectKey::of(template);
    let generation = object::generation(template);
    if generation > 0 {
        object::set_annotation(
            &mut manifest,
            annotations::karmada::TEMPLATE_GENERATION,
            &generation.to_string(),
        );
    }
    match origin.binding_namespace {
        Some(namespace) => {
            object::set_label(&mut manifest, labels::karmada::BINDING_ID, origin.binding_id);
            object::set_annotation(&mut manifest, annotations::karmada::BINDING_NAMESPACE, namespace);
            object::set_annotation(&mut manifest, annotations::karmada::BINDING_NAME, origin.binding_name);
        }
        None => {
            object::set_label(&mut manifest, labels::karmada::CLUSTER_BINDING_ID, origin.binding_id);
            object::set_annotation(
                &mut manifest,
                annotations::karmada::CLUSTER_BINDING_NAME,
                origin.binding_name,
            );
        }
    }
    let conflict = conflict_resolution(template, origin.conflict_resolution);
    object::set_annotation(&mut manifest, annotations::karmada::CONFLICT_RESOLUTION, conflict);
    finish(manifest, template, &key, origin.cluster, origin.work_id)
}

/// Builds the manifest of a Namespace, which is propagated without a binding.
pub fn build_namespace(namespace: &Value, cluster: &str, work_id: &str) -> Value {
    finish(namespace.clone(), namespace, &object::ObjectKey::of(namespace), cluster, work_id)
}

fn finish(
    mut manifest: Value,
    template: &Value,
    key: &object::ObjectKey,
    cluster: &str,
    work_id: &str,
) -> Value {
    let work = names::work(&key.kind, &key.namespace, &key.name);
    object::set_label(&mut manifest, labels::karmada::MANAGED, "true");
    object::set_annotation(&mut manifest, annotations::karmada::TEMPLATE_UID, object::meta(template, "uid"));
    object::set_annotation(&mut manifest, annotations::karmada::WORK_NAME, &work);
    object::set_annotation(
        &mut manifest,
        annotations::karmada::WORK_NAMESPACE,
        &names::execution_namespace(cluster),
    );
    prune(&mut manifest);
    object::set_label(&mut manifest, labels::karmada::WORK_ID, work_id);
    record_managed(&mut manifest);
    manifest
}

/// Records the labels and annotations of the federation, to distinguish those removed on the hub from those
/// that the member added.
fn record_managed(manifest: &mut Value) {
    let mut keys: Vec<String> = keys(&manifest["metadata"]["annotations"]);
    for record in [annotations::karmada::MANAGED_ANNOTATIONS, annotations::karmada::MANAGED_LABELS] {
        if !keys.iter().any(|key| key == record) {
            keys.push(record.to_owned());
        }
    }
    keys.sort();
    object::set_annotation(manifest, annotations::karmada::MANAGED_ANNOTATIONS, &keys.join(","));
    let mut keys = self::keys(&manifest["metadata"]["labels"]);
    keys.sort();
    object::set_annotation(manifest, annotations::karmada::MANAGED_LABELS, &keys.join(","));
}

fn keys(map: &Value) -> Vec<String> {
    map.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect()
}

/// Removes the fields that a member must not get from the hub: status, owners, finalizers, and fields that
/// API servers set.
pub fn prune(object: &mut Value) {
    for field in [
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "managedFields",
        "resourceVersion",
        "selfLink",
        "uid",
        "ownerReferences",
        "finalizers",
    ] {
        object::remove(object, &["metadata", field]);
    }
    object::remove(object, &["status"]);
    let (api_version, kind) =
        (object["apiVersion"].as_str().unwrap_or_default(), object["kind"].as_str().unwrap_or_default());
    match (api_version, kind) {
        ("apps/v1", "Deployment") => object::remove_keys(
            object,
            "annotations",
            &["deployment.kubernetes.io/revision", "deployment.kubernetes.io/revision-history"],
        ),
        ("batch/v1", "Job") => prune_job(object),
        ("v1", "Secret") if object["type"] == "kubernetes.io/service-account-token" => {
            object::remove_keys(object, "annotations", &["kubernetes.io/service-account.uid"]);
            object::remove(object, &["data"]);
        }
        ("v1", "ServiceAccount") => {
            let prefix = format!("{}-token-", object::meta(object, "name"));
            if let Some(secrets) = object["secrets"].as_array_mut() {
                secrets
                    .retain(|secret| !secret["name"].as_str().is_some_and(|name| name.starts_with(&prefix)));
            }
        }
        // `None` is part of the spec (headless); an address was allocated by the hub.
        ("v1", "Service") if object["spec"]["clusterIP"].as_str().is_some_and(|ip| ip != "None") => {
            object::remove(object, &["spec", "clusterIP"]);
            object::remove(object, &["spec", "clusterIPs"]);
        }
        ("v1", "PersistentVolumeClaim") => {
            object::remove_keys(object, "annotations", &["volume.kubernetes.io/selected-node"]);
        }
        // The API server of each plane sets the finalizer of a Namespace.
        ("v1", "Namespace") => {
            object::remove(object, &["spec"]);
        }
        _ => {}
    }
}

/// The API server generates the selector of a Job. With a TTL, the member would delete the Job and the
/// federation would create it again, without end.
fn prune_job(object: &mut Value) {
    object::remove(object, &["spec", "ttlSecondsAfterFinished"]);
    if object["spec"]["manualSelector"] == true {
        return;
    }
    for key in ["controller-uid", "batch.kubernetes.io/controller-uid"] {
        object::remove(object, &["spec", "selector", "matchLabels", key]);
    }
    for key in
        ["controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"]
    {
        object::remove(object, &["spec", "template", "metadata", "labels", key]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn mk_template() -> Value {
        json!({
            "apiVersion": "example.io/v1", "kind": "Thing",
            "metadata": {
                "name": "a", "namespace": "shop", "uid": "u", "resourceVersion": "7", "generation": 3, "creationTimestamp": "t",
                "finalizers": ["hub/keeps"], "ownerReferences": [{"uid": "o"}], "managedFields": [], "labels": {"city": "dfw"},
            },
            "spec": {"n": 1}, "status": {"ready": true},
        })
    }

    fn mk_origin() -> Origin<'static> {
        Origin {
            binding_namespace: Some("shop"),
            binding_name: "a-thing",
            binding_id: "b-id",
            work_id: "w-id",
            cluster: "dfw",
            conflict_resolution: None,
        }
    }

    #[test]
    fn a_manifest_has_the_metadata_of_its_origin_and_no_hub_fields() {
        let work = names::work("Thing", "shop", "a");
        assert_eq!(
            build(&mk_template(), &mk_origin()),
            json!({
                "apiVersion": "example.io/v1", "kind": "Thing",
                "metadata": {
                    "name": "a", "namespace": "shop",
                    "labels": {
                        "city": "dfw", "karmada.io/managed": "true", "resourcebinding.karmada.io/permanent-id": "b-id",
                        "work.karmada.io/permanent-id": "w-id",
                    },
                    "annotations": {
                        "resourcetemplate.karmada.io/generation": "3", "resourcetemplate.karmada.io/uid": "u",
                        "resourcebinding.karmada.io/namespace": "shop", "resourcebinding.karmada.io/name": "a-thing",
                        "work.karmada.io/conflict-resolution": "abort", "work.karmada.io/name": work, "work.karmada.io/namespace": "karmada-es-dfw",
                        "resourcetemplate.karmada.io/managed-labels":
                            "city,karmada.io/managed,resourcebinding.karmada.io/permanent-id,work.karmada.io/permanent-id",
                        "resourcetemplate.karmada.io/managed-annotations":
                            "resourcebinding.karmada.io/name,resourcebinding.karmada.io/namespace,resourcetemplate.karmada.io/generation,\
                             resourcetemplate.karmada.io/managed-annotations,resourcetemplate.karmada.io/managed-labels,\
                             resourcetemplate.karmada.io/uid,work.karmada.io/conflict-resolution,work.karmada.io/name,work.karmada.io/namespace",
                    },
                },
                "spec": {"n": 1},
            })
        );
    }

    #[test]
    fn a_cluster_scoped_object_has_the_metadata_of_a_cluster_binding() {
        let mut template = mk_template();
        object::remove(&mut template, &["metadata", "namespace"]);
        let manifest = build(&template, &Origin { binding_namespace: None, ..mk_origin() });
        assert_eq!(object::label(&manifest, labels::karmada::CLUSTER_BINDING_ID), "b-id");
        assert_eq!(object::label(&manifest, labels::karmada::BINDING_ID), "");
        assert_eq!(object::annotation(&manifest, annotations::karmada::CLUSTER_BINDING_NAME), "a-thing");
    }

    #[test]
    fn the_conflict_resolution_of_the_object_has_precedence() {
        for (annotation, policy, expected) in [
            ("", None, "abort"),
            ("", Some("Overwrite"), "overwrite"),
            ("abort", Some("Overwrite"), "abort"),
            ("overwrite", Some("Abort"), "overwrite"),
            ("nonsense", Some("Overwrite"), "overwrite"),
        ] {
            let mut template = mk_template();
            object::set_annotation(&mut template, annotations::karmada::CONFLICT_RESOLUTION, annotation);
            assert_eq!(conflict_resolution(&template, policy), expected, "{annotation:?} {policy:?}");
        }
    }

    #[test]
    fn fields_set_by_api_servers_are_pruned_by_kind() {
        let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]}});
        prune(&mut service);
        assert_eq!(service["spec"], json!({}));
        let mut headless = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"clusterIP": "None"}});
        prune(&mut headless);
        assert_eq!(headless["spec"]["clusterIP"], "None");
        let mut account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}, "secrets": [{"name": "a-token-x"}, {"name": "mine"}]});
        prune(&mut account);
        assert_eq!(account["secrets"], json!([{"name": "mine"}]));
        let mut job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": {"ttlSecondsAfterFinished": 5, "selector": {"matchLabels": {"controller-uid": "x", "app": "y"}}}});
        prune(&mut job);
        assert_eq!(job["spec"], json!({"selector": {"matchLabels": {"app": "y"}}}));
        let mut token = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "type": "kubernetes.io/service-account-token", "data": {"token": "x"}});
        prune(&mut token);
        assert_eq!(token.get("data"), None);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(128))]
        #[test]
        fn building_twice_gives_the_same_and_never_carries_hub_state(labels in proptest::collection::btree_map("[a-z]{1,4}", "[a-z]{0,4}", 0..4)) {
            let mut template = mk_template();
            template["metadata"]["labels"] = json!(labels);
            let manifest = build(&template, &mk_origin());
            proptest::prop_assert_eq!(&build(&template, &mk_origin()), &manifest);
            for field in ["uid", "resourceVersion", "generation", "finalizers", "ownerReferences", "managedFields"] {
                proptest::prop_assert!(manifest["metadata"].get(field).is_none());
            }
            proptest::prop_assert!(manifest.get("status").is_none());
            for (key, value) in &labels {
                proptest::prop_assert_eq!(object::label(&manifest, key), value);
            }
        }
    }
}
