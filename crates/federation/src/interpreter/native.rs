//! What the federation knows about Kubernetes' own kinds without being told.
//!
//! Karmada has handlers for many kinds; here are those whose absence would break a member: fields that a member's
//! API server fills in and that nobody may take away again, and the replica counts of the usual workloads. For every
//! other kind the answer is the neutral one.

use serde_json::{Value, json};

use super::{Health, Replicas, pods};

/// Label on a Deployment whose replicas are the member's business, because an autoscaler there sets them.
const RETAIN_REPLICAS: &str = "resourcetemplate.karmada.io/retain-replicas";

/// Keeps what the member's API server or controllers filled in.
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

/// Replicas of the workloads that Kubernetes itself has.
pub(super) fn replicas(object: &Value) -> Option<Replicas> {
    let field = replica_field(object)?;
    let count = object["spec"][field].as_i64().unwrap_or(1);
    Some(Replicas {
        count: i32::try_from(count).unwrap_or(i32::MAX),
        requirements: pods::requirements(&object["spec"]["template"]).ok().flatten(),
    })
}

/// Sets the replicas of the workloads that Kubernetes itself has; other kinds stay as they are.
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

/// The sum of the members' counters, for the workloads that Kubernetes itself has.
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

/// Whether the usual workloads run as many replicas as they should.
pub(super) fn health(observed: &Value) -> Health {
    let (spec, status) = (&observed["spec"], &observed["status"]);
    let well = match kind(observed) {
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
    if well { Health::Healthy } else { Health::Unhealthy }
}

/// What the pods of the usual workloads read.
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

/// Replaces a field of `desired` by the observed one, present or not.
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
