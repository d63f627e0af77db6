//! Cluster: a member of the federation.

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Extra, schema};

/// Karmada connects to the member.
pub const SYNC_MODE_PUSH: &str = "Push";
/// An agent on the member connects to Karmada.
pub const SYNC_MODE_PULL: &str = "Pull";
/// Taint on a member whose `Ready` is false or not known yet.
pub const TAINT_NOT_READY: &str = "cluster.karmada.io/not-ready";
/// Taint on a member whose `Ready` is unknown.
pub const TAINT_UNREACHABLE: &str = "cluster.karmada.io/unreachable";

/// Connection to a member cluster, and the taints that restrict scheduling to it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "cluster.karmada.io",
    version = "v1alpha1",
    kind = "Cluster",
    plural = "clusters",
    status = "ClusterStatus",
    category = "karmada-io",
    derive = "PartialEq",
    derive = "Default",
    doc = "A member cluster of the federation."
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSpec {
    /// Identity of the cluster: the UID of its namespace `kube-system`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `Push` when Karmada connects to the member, `Pull` when an agent on the member connects to Karmada.
    pub sync_mode: String,
    /// URL of the member's API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_endpoint: Option<String>,
    /// Secret with the keys `token` and `caBundle` for connections to the member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<LocalSecretReference>,
    /// Secret with a token that may impersonate users on the member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub impersonator_secret_ref: Option<LocalSecretReference>,
    /// Whether Karmada skips the verification of the member's certificate.
    #[serde(rename = "insecureSkipTLSVerification", default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure_skip_tls_verification: bool,
    /// Provider of the member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Region of the member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Zones of the member.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
    /// Taints that keep objects off the member.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Names a secret on the hub.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalSecretReference {
    /// Namespace of the secret.
    pub namespace: String,
    /// Name of the secret.
    pub name: String,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Observed state of a member cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// Version of the member's API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<String>,
    /// The kinds that the member serves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub api_enablements: Vec<ApiEnablement>,
    /// Conditions of the member: `Ready`, `CompleteAPIEnablements`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Number of nodes of the member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_summary: Option<NodeSummary>,
    /// Capacity and usage of the member, as Karmada computes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::open_object")]
    pub resource_summary: Option<Value>,
    /// Actions that Karmada takes on conditions of the member.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remedy_actions: Vec<String>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The kinds that a member serves in one group and version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiEnablement {
    /// Group and version, `v1` for the core group.
    pub group_version: String,
    /// The kinds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<ApiResource>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One kind that a member serves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApiResource {
    /// Plural name.
    pub name: String,
    /// Kind.
    pub kind: String,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Number of nodes of a member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSummary {
    /// All nodes.
    #[serde(default)]
    pub total_num: i32,
    /// Nodes that are ready.
    #[serde(default)]
    pub ready_num: i32,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
