//! ResourceGrant and AllowanceBucket: amounts given, and the count of what is left.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ConsumerReference;
use crate::{Extra, schema};

/// Amounts, given to somebody.
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
    /// Who gets them.
    pub consumer_ref: ConsumerReference,
    /// What is given.
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
    /// The amounts, which add up.
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

/// What is known about a grant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceGrantStatus {
    /// Generation that was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The state of the grant in words: `Active`.
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
    doc = "Counts what one consumer has and uses of one resource. Written by the quota system alone."
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

/// What a consumer has and uses of a resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllowanceBucketStatus {
    /// Generation that was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What was given.
    #[serde(default)]
    pub limit: i64,
    /// What is used.
    #[serde(default)]
    pub allocated: i64,
    /// What is left; never below zero.
    #[serde(default)]
    pub available: i64,
    /// How many claims use it.
    #[serde(default)]
    pub claim_count: i32,
    /// How many grants give it.
    #[serde(default)]
    pub grant_count: i32,
    /// The grants that give it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::open_objects")]
    pub contributing_grant_refs: Vec<Value>,
    /// When it was last counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reconciliation: Option<Time>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
