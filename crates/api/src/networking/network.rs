//! Network, NetworkBinding and NetworkContext: a network, the wish for it somewhere, and it there.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::LocationReference;
use crate::{Extra, schema};

/// Addresses of a network.
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
    doc = "A network of a project, wherever it is used."
)]
#[serde(rename_all = "camelCase")]
pub struct NetworkSpec {
    /// How addresses are found.
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

/// How addresses of a network are found.
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

/// What is known about a network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkStatus {
    /// The state of the network in words: `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A network, wanted in a location.
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
    doc = "Asks for a network in a location."
)]
#[serde(rename_all = "camelCase")]
pub struct NetworkBindingSpec {
    /// The network.
    pub network: NetworkReference,
    /// Where it is wanted.
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
    /// Namespace of the network; that of the referrer when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What is known about a network that was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkBindingStatus {
    /// The network in that location.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_context_ref: Option<NetworkContextReference>,
    /// The state of the binding in words: `Ready`.
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
    /// Namespace of the network context; that of the referrer when absent.
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

/// What is known about a network in a location.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkContextStatus {
    /// The state of the network context in words: `Programmed`, `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
