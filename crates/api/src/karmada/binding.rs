//! ResourceBinding and ClusterResourceBinding: an object, the clusters chosen for it, and its status in each.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Placement, Suspension};
use crate::{Extra, schema};

/// A namespaced object, and the clusters that it is propagated to.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "work.karmada.io",
    version = "v1alpha2",
    kind = "ResourceBinding",
    plural = "resourcebindings",
    namespaced,
    status = "BindingStatus",
    shortname = "rb",
    category = "karmada-io",
    derive = "PartialEq",
    derive = "Default",
    doc = "Binds a namespaced object to the clusters chosen for it."
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceBindingSpec {
    /// The object on the hub.
    pub resource: ObjectReference,
    /// Whether the dependencies of the object are propagated too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub propagate_deps: bool,
    /// Replicas of the object; absent when it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// The clusters that were chosen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<TargetCluster>,
    /// The placement of the policy that claimed the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Bindings of the objects that depend on this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::open_objects")]
    pub required_by: Vec<Value>,
    /// Clusters that the object is being evicted from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::open_objects")]
    pub graceful_eviction_tasks: Vec<Value>,
    /// The scheduler that chooses clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// `Abort` or `Overwrite`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict_resolution: Option<String>,
    /// Suspends scheduling and the propagation of changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspension: Option<Suspension>,
    /// Whether members keep their copies when the object is deleted on the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preserve_resources_on_deletion: Option<bool>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A cluster-scoped object, and the clusters that it is propagated to.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "work.karmada.io",
    version = "v1alpha2",
    kind = "ClusterResourceBinding",
    plural = "clusterresourcebindings",
    status = "BindingStatus",
    shortname = "crb",
    category = "karmada-io",
    derive = "PartialEq",
    derive = "Default",
    doc = "Binds a cluster-scoped object to the clusters chosen for it."
)]
#[serde(transparent)]
pub struct ClusterResourceBindingSpec(pub ResourceBindingSpec);

/// Names an object on the hub.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    /// Group and version of its kind.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its UID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The version of the object that the binding was created from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A chosen cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetCluster {
    /// Name of the cluster.
    pub name: String,
    /// Replicas that it gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Observed state of a binding.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BindingStatus {
    /// Generation of the binding that the clusters were chosen for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler_observed_generation: Option<i64>,
    /// The group of clusters that was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler_observing_affinity_name: Option<String>,
    /// When clusters were last chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scheduled_time: Option<Time>,
    /// Conditions of the binding: `Scheduled`, `FullyApplied`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// The status of the copy on each member.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aggregated_status: Vec<AggregatedStatusItem>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The status of the copy on one member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AggregatedStatusItem {
    /// Name of the member.
    pub cluster_name: String,
    /// The status of the copy, as the interpreter reflects it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::open_object")]
    pub status: Option<Value>,
    /// Whether the member has the copy.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub applied: bool,
    /// Why the member does not have the copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_message: Option<String>,
    /// `Healthy`, `Unhealthy` or `Unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
