//! ResourceRegistration: a resource with quota.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Extra, schema};

/// A resource with quota: its consumers and its units.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "quota.miloapis.com",
    version = "v1alpha1",
    kind = "ResourceRegistration",
    plural = "resourceregistrations",
    status = "ResourceRegistrationStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Registers a resource with the quota system."
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRegistrationSpec {
    /// The kind of its consumers.
    pub consumer_type: KindReference,
    /// `Entity`, `Allocation` or `Feature`.
    #[serde(rename = "type")]
    pub type_: String,
    /// Name of the resource, unique.
    pub resource_type: String,
    /// Description of the resource, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Unit of amounts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_unit: Option<String>,
    /// Unit of amounts that are shown to people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_unit: Option<String>,
    /// How many base units make one display unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit_conversion_factor: Option<i64>,
    /// The kinds of objects that claims may be for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claiming_resources: Vec<KindReference>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Names a kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KindReference {
    /// API group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_group: Option<String>,
    /// Kind.
    pub kind: String,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Observed state of a registration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRegistrationStatus {
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions of the registration: `Active`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
