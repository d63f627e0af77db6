//! Built-in interpreter for Kubernetes' own kinds.
//!
//! Karmada has handlers for many kinds. This module has those without which a member would break: fields that
//! the member's API server sets and that must not be removed, and the replicas of built-in workloads. Other
//! kinds get the defaults.

use serde_json::{Value, json};

use super::{Health, Replicas, pods};

/// Label of a Deployment whose replicas are set on the member, for example by an autoscaler.
const RETAIN_REPLICAS: &str = "resourcetemplate.karmada.io/retain-replicas";

/// Retains the fields that the member's API server or controllers set.
pub(super) fn retain(mut desired: Value, observed: &Value) -> Value {
    match kind(observed) {
        ("apps/v1", "Deployment") if desired["metadata"]["labels"][RETAIN_REPLICAS] == json!("true") => {
            keep(&mut desired, observed, "/spec", "replicas");
        }
        ("v1", "Service") => {
            for field in ["clusterIP", "clusterIPs", "healthCheckNodePort", "ipFamilies", "ipFamilyPolicy"] {
                keep_if_absent(&mut desired, observed, "/spec", field);
            }
        }
        ("v1", "ServiceAccount") => keep_if_absent(&mut desired, observed, "", "secrets"),
        ("v1", "PersistentVolumeClaim") => keep(&mut desired, observed, "/spec", "volumeName"),
        ("v1", "PersistentVolume") => keep(&mut desired, observed, "/spec", "claimRef"),
        ("v1", "Secret") if observed["type"] == json!("kubernetes.io/service-account-token") => {
            keep(&mut desired, observed, "", "data");
        }
        ("v1", "Pod") => {
            for field in
                ["nodeName", "serviceAccountName", "volumes", "containers", "initContainers", "tolerations"]
            {
                keep(&mut desired, observed, "/spec", field);
            }
        }
        ("batch/v1", "Job") => {
            keep(&mut desired, observed, "/spec", "selector");
            keep(&mut desired, observed, "/spec/template/metadata", "labels");
        }
        _ => {}
    }
    desired
}

/// Replicas of built-in workloads.
pub(super) fn replicas(object: &Value) -> Option<Replicas> {
    let field = replica_field(object)?;
    let count = object["spec"][field].as_i64().unwrap_or(1);
    Some(Replicas {
        count: i32::try_from(count).unwrap_or(i32::MAX),
        requirements: pods::requirements(&object["spec"]["template"]).ok().flatten(),
    })
}

/// Sets the replicas of built-in workloads; other kinds are unchanged.
pub(super) fn revise_replicas(mut object: Value, replicas: i32) -> Value {
    if let Some(field) = replica_field(&object) {
        object["spec"][field] = Value::from(replicas);
    }
    object
}

fn replica_field(object: &Value) -> Option<&'static str> {
    match kind(object) {
        ("apps/v1", "Deployment" | "StatefulSet" | "ReplicaSet") => Some("replicas"),
        ("batch/v1", "Job") => Some("parallelism"),
        _ => None,
    }
}

/// Sums the status counters of the members, for built-in workloads.
pub(super) fn aggregate_status(object: &Value, items: &[Value]) -> Option<Value> {
    let counters: &[&str] = match kind(object) {
        ("apps/v1", "Deployment") => {
            &["replicas", "readyReplicas", "updatedReplicas", "availableReplicas", "unavailableReplicas"]
        }
        ("apps/v1", "StatefulSet") => {
            &["replicas", "readyReplicas", "updatedReplicas", "availableReplicas", "currentReplicas"]
        }
        ("apps/v1", "ReplicaSet") => {
            &["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas"]
        }
        _ => return None,
    };
    let mut status = object["status"].clone();
    if !status.is_object() {
        status = json!({});
    }
    for counter in counters {
        let total: i64 = items.iter().filter_map(|item| item["status"][*counter].as_i64()).sum();
        if total != 0 {
            status[*counter] = Value::from(total);
        } else if let Some(fields) = status.as_object_mut() {
            fields.remove(*counter);
        }
    }
    status["observedGeneration"] = object["metadata"]["generation"].clone();
    Some(status)
}

/// The health of built-in workloads, Pods and volume claims.
pub(super) fn health(observed: &Value) -> Health {
    let (spec, status) = (&observed["spec"], &observed["status"]);
    let healthy = match kind(observed) {
        ("apps/v1", "Deployment" | "StatefulSet") => {
            let wanted = spec["replicas"].as_i64().unwrap_or(1);
            status["observedGeneration"] == observed["metadata"]["generation"]
                && status["updatedReplicas"].as_i64().unwrap_or(0) >= wanted
                && status["availableReplicas"].as_i64().unwrap_or(0)
                    >= status["updatedReplicas"].as_i64().unwrap_or(0)
        }
        ("v1", "Pod") => matches!(status["phase"].as_str(), Some("Running" | "Succeeded")),
        ("v1", "PersistentVolumeClaim") => status["phase"] == json!("Bound"),
        _ => true,
    };
    if healthy { Health::Healthy } else { Health::Unhealthy }
}

/// The dependencies of the pods of built-in workloads.
pub(super) fn dependencies(object: &Value) -> Vec<Value> {
    let template = match kind(object) {
        ("apps/v1", "Deployment" | "StatefulSet" | "ReplicaSet" | "DaemonSet") | ("batch/v1", "Job") => {
            &object["spec"]["template"]
        }
        ("batch/v1", "CronJob") => &object["spec"]["jobTemplate"]["spec"]["template"],
        ("v1", "Pod") => object,
        _ => return Vec::new(),
    };
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    match pods::dependencies(template, namespace) {
        Value::Array(references) => references,
        _ => Vec::new(),
    }
}

fn kind(object: &Value) -> (&str, &str) {
    (object["apiVersion"].as_str().unwrap_or_default(), object["kind"].as_str().unwrap_or_default())
}

/// Replaces a field of `desired` by the observed one, if it exists.
fn keep(desired: &mut Value, observed: &Value, parent: &str, field: &str) {
    let kept = observed.pointer(parent).and_then(|parent| parent.get(field)).cloned();
    if let (Some(kept), Some(Value::Object(fields))) = (kept, desired.pointer_mut(parent)) {
        fields.insert(field.to_owned(), kept);
    }
}

fn keep_if_absent(desired: &mut Value, observed: &Value, parent: &str, field: &str) {
    let absent = desired.pointer(parent).is_some_and(|parent| parent.get(field).is_none());
    if absent {
        keep(desired, observed, parent, field);
    }
}
