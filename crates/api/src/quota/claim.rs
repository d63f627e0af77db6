//! ResourceClaim: a request for quota, and the decision on it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Extra, schema};

/// A request was granted.
pub const ALLOCATION_GRANTED: &str = "Granted";
/// A request was denied; the decision is final.
pub const ALLOCATION_DENIED: &str = "Denied";
/// A request is not decided.
pub const ALLOCATION_PENDING: &str = "Pending";
/// Resource: number of instances.
pub const RESOURCE_INSTANCES: &str = "compute.datumapis.com/instances";
/// Resource: CPU, in millicores.
pub const RESOURCE_VCPUS: &str = "compute.datumapis.com/vcpus";
/// Resource: memory, in MiB.
pub const RESOURCE_MEMORY: &str = "compute.datumapis.com/memory";

/// Amounts of quota that a consumer requests for an object. A decision is final: to change a claim, delete it
/// and create a new one.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "quota.miloapis.com",
    version = "v1alpha1",
    kind = "ResourceClaim",
    plural = "resourceclaims",
    namespaced,
    status = "ResourceClaimStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Requests a part of a consumer's quota."
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceClaimSpec {
    /// The consumer whose quota is used.
    pub consumer_ref: ConsumerReference,
    /// The requested amounts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<ResourceRequest>,
    /// The object that the amounts are for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_ref: Option<ResourceReference>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Names a consumer of quota.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConsumerReference {
    /// API group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_group: Option<String>,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Names the object that quota is used for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceReference {
    /// API group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_group: Option<String>,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// An amount of one resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRequest {
    /// The resource, such as `compute.datumapis.com/instances`.
    pub resource_type: String,
    /// The amount, in the base unit of the resource.
    pub amount: i64,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The decision on a claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceClaimStatus {
    /// Generation of the spec that the decision is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The decision on each request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allocations: Vec<RequestAllocation>,
    /// Conditions of the claim: `Granted`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The decision on one request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequestAllocation {
    /// The resource.
    pub resource_type: String,
    /// `Granted`, `Denied` or `Pending`.
    pub status: String,
    /// Reason of the decision, as one CamelCase word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Explanation of the decision, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The granted amount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_amount: Option<i64>,
    /// The bucket that the amount is taken from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocating_bucket: Option<String>,
    /// When the decision last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
