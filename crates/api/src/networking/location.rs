//! Location (a place where workloads can run) and LocationBinding (a location that a project may use).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Extra, schema};

/// The class, the topology and the provider of a location.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "networking.datumapis.com",
    version = "v1alpha",
    kind = "Location",
    plural = "locations",
    status = "LocationStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A place where workloads can run."
)]
#[serde(rename_all = "camelCase")]
pub struct LocationSpec {
    /// `datum-managed` or `self-managed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location_class_name: Option<String>,
    /// Display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Where the location is, by keys such as `topology.datum.net/city-code`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub topology: BTreeMap<String, String>,
    /// The infrastructure behind the location.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::open_object")]
    pub provider: Option<Value>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Observed state of a location.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocationStatus {
    /// Conditions of the location: `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A location that a project may use.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "networking.datumapis.com",
    version = "v1alpha",
    kind = "LocationBinding",
    plural = "locationbindings",
    status = "LocationBindingStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A location that the project may use. Its existence is the permission."
)]
#[serde(rename_all = "camelCase")]
pub struct LocationBindingSpec {
    /// The location.
    pub location_ref: LocationReference,
    /// Class of the location.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location_class_name: Option<String>,
    /// Display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Where the location is, copied from it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub topology: BTreeMap<String, String>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Observed state of a location binding.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocationBindingStatus {
    /// Conditions of the binding: `Available`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Names a location.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocationReference {
    /// Name of the location.
    pub name: String,
    /// Namespace of the location, where locations are namespaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
