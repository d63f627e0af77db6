//! PropagationPolicy and ClusterPropagationPolicy: which objects are propagated to which clusters.

use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Extra, schema};

/// A member object that Karmada does not manage stays unchanged.
pub const CONFLICT_ABORT: &str = "Abort";
/// A member object that Karmada does not manage is taken over.
pub const CONFLICT_OVERWRITE: &str = "Overwrite";

/// The objects that a policy claims, and the clusters that they are propagated to.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "policy.karmada.io",
    version = "v1alpha1",
    kind = "PropagationPolicy",
    plural = "propagationpolicies",
    namespaced,
    shortname = "pp",
    category = "karmada-io",
    derive = "PartialEq",
    derive = "Default",
    doc = "Propagates objects of its own namespace to member clusters."
)]
#[serde(rename_all = "camelCase")]
pub struct PropagationSpec {
    /// The objects that the policy claims.
    #[serde(default)]
    #[schemars(!default)]
    pub resource_selectors: Vec<ResourceSelector>,
    /// Whether the dependencies of the objects are propagated too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub propagate_deps: bool,
    /// The clusters that the objects are propagated to.
    #[serde(default)]
    pub placement: Placement,
    /// Priority of the policy; of several policies, the one with the highest priority claims an object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// `Always` or `Never`: whether the policy takes over objects that a policy of lower priority claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption: Option<String>,
    /// The scheduler that chooses clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// `Abort` or `Overwrite`: what Karmada does with an object that the member already has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict_resolution: Option<String>,
    /// `Lazy`: changes of the policy wait until the object changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation_preference: Option<String>,
    /// Suspends the propagation of changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspension: Option<Suspension>,
    /// Whether members keep their copies when the object is deleted on the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preserve_resources_on_deletion: Option<bool>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The spec of a ClusterPropagationPolicy; the same fields as a [`PropagationSpec`].
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "policy.karmada.io",
    version = "v1alpha1",
    kind = "ClusterPropagationPolicy",
    plural = "clusterpropagationpolicies",
    shortname = "cpp",
    category = "karmada-io",
    derive = "PartialEq",
    derive = "Default",
    doc = "Propagates objects of any namespace, and cluster-scoped objects, to member clusters."
)]
#[serde(transparent)]
pub struct ClusterPropagationSpec(pub PropagationSpec);

/// Chooses objects: of one kind, by name, else by labels, else all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceSelector {
    /// Group and version of the kind.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// Namespace of the objects; the policy's namespace when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the object. If set, the labels are ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels of the objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Chooses member clusters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// The clusters that may be chosen; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_affinity: Option<ClusterAffinity>,
    /// Groups of clusters in order of preference.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cluster_affinities: Vec<ClusterAffinityTerm>,
    /// Taints that are tolerated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cluster_tolerations: Vec<Toleration>,
    /// How many clusters are chosen, and how they are spread.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spread_constraints: Vec<SpreadConstraint>,
    /// How replicas are divided among the clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::open_object")]
    pub replica_scheduling: Option<Value>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The clusters that may be chosen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterAffinity {
    /// Labels of the clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
    /// Provider, region and zone of the clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::open_object")]
    pub field_selector: Option<Value>,
    /// Names of the clusters; any when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cluster_names: Vec<String>,
    /// Names of clusters that are never chosen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One group of clusters, with a name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterAffinityTerm {
    /// Name of the group.
    pub affinity_name: String,
    /// Labels of the clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
    /// Provider, region and zone of the clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::open_object")]
    pub field_selector: Option<Value>,
    /// Names of the clusters; any when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cluster_names: Vec<String>,
    /// Names of clusters that are never chosen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// How many groups of clusters are chosen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpreadConstraint {
    /// `cluster`, `region`, `zone` or `provider`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread_by_field: Option<String>,
    /// Label that groups clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread_by_label: Option<String>,
    /// The maximum number of groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_groups: Option<i64>,
    /// The minimum number of groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_groups: Option<i64>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Suspends scheduling and the propagation of changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Suspension {
    /// Whether the propagation of changes to all members is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatching: Option<bool>,
    /// Members that changes are not propagated to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatching_on_clusters: Option<SuspendClusters>,
    /// Whether scheduling is suspended; on bindings only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<bool>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Members that changes are not propagated to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SuspendClusters {
    /// Names of the members.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cluster_names: Vec<String>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
