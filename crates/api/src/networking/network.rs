//! Network; NetworkBinding (a request for a network in a location); NetworkContext (the network in that
//! location).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::LocationReference;
use crate::{Extra, schema};

/// Addresses and packet size of a network.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "networking.datumapis.com",
    version = "v1alpha",
    kind = "Network",
    plural = "networks",
    namespaced,
    status = "NetworkStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A network of a project, in all locations."
)]
#[serde(rename_all = "camelCase")]
pub struct NetworkSpec {
    /// How addresses are allocated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam: Option<NetworkIpam>,
    /// `IPv4`, `IPv6`, or both.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_families: Vec<String>,
    /// Largest packet, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<i32>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// How addresses of a network are allocated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkIpam {
    /// `Auto` or `Policy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Range of IPv4 addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4_range: Option<String>,
    /// Range of IPv6 addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6_range: Option<String>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Observed state of a network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// Conditions of the network: `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A request for a network in a location.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "networking.datumapis.com",
    version = "v1alpha",
    kind = "NetworkBinding",
    plural = "networkbindings",
    namespaced,
    status = "NetworkBindingStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Requests a network in a location."
)]
#[serde(rename_all = "camelCase")]
pub struct NetworkBindingSpec {
    /// The network.
    pub network: NetworkReference,
    /// The location that needs the network.
    pub location: LocationReference,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Names a network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkReference {
    /// Name of the network.
    pub name: String,
    /// Namespace of the network; the namespace of the referring object when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Observed state of a network binding.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkBindingStatus {
    /// The network context: the network in that location.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_context_ref: Option<NetworkContextReference>,
    /// Conditions of the binding: `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Names a network in a location.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkContextReference {
    /// Name of the network context.
    pub name: String,
    /// Namespace of the network context; the namespace of the referring object when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A network in a location.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "networking.datumapis.com",
    version = "v1alpha",
    kind = "NetworkContext",
    plural = "networkcontexts",
    namespaced,
    status = "NetworkContextStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A network in one location."
)]
#[serde(rename_all = "camelCase")]
pub struct NetworkContextSpec {
    /// The network.
    pub network: NetworkReference,
    /// The location.
    pub location: LocationReference,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Observed state of a network context.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkContextStatus {
    /// Conditions of the network context: `Programmed`, `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
