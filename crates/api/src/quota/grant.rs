//! ResourceGrant (amounts that a consumer gets) and AllowanceBucket (limit and usage of one resource of one
//! consumer).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ConsumerReference;
use crate::{Extra, schema};

/// Amounts of quota that a consumer gets.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "quota.miloapis.com",
    version = "v1alpha1",
    kind = "ResourceGrant",
    plural = "resourcegrants",
    namespaced,
    status = "ResourceGrantStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Gives quota to a consumer."
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceGrantSpec {
    /// The consumer that gets the amounts.
    pub consumer_ref: ConsumerReference,
    /// The amounts, by resource.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowances: Vec<Allowance>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Amounts of one resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Allowance {
    /// The resource.
    pub resource_type: String,
    /// The amounts; the grant gives their sum.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<AllowanceAmount>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// An amount.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllowanceAmount {
    /// The amount, in the base unit of the resource.
    pub amount: i64,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Observed state of a grant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceGrantStatus {
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions of the grant: `Active`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One resource of one consumer.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "quota.miloapis.com",
    version = "v1alpha1",
    kind = "AllowanceBucket",
    plural = "allowancebuckets",
    namespaced,
    status = "AllowanceBucketStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Limit and usage of one resource of one consumer. Only the quota system writes it."
)]
#[serde(rename_all = "camelCase")]
pub struct AllowanceBucketSpec {
    /// The consumer.
    pub consumer_ref: ConsumerReference,
    /// The resource.
    pub resource_type: String,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Limit and usage of one resource of one consumer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllowanceBucketStatus {
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The sum of the grants.
    #[serde(default)]
    pub limit: i64,
    /// The sum of the granted claims.
    #[serde(default)]
    pub allocated: i64,
    /// Limit minus allocated amount; never below zero.
    #[serde(default)]
    pub available: i64,
    /// Number of granted claims.
    #[serde(default)]
    pub claim_count: i32,
    /// Number of grants.
    #[serde(default)]
    pub grant_count: i32,
    /// The grants that the limit is the sum of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::open_objects")]
    pub contributing_grant_refs: Vec<Value>,
    /// When the status was last computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reconciliation: Option<Time>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
