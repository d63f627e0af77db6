//! SubnetClaim (a request for a range of addresses) and Subnet (the allocated range).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{LocationReference, NetworkContextReference};
use crate::{Extra, schema};

/// The class of subnets that Polis requests.
pub const SUBNET_CLASS_PRIVATE: &str = "private";
/// IPv4.
pub const IPV4: &str = "IPv4";
/// IPv6.
pub const IPV6: &str = "IPv6";

/// A request for a range of addresses.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "networking.datumapis.com",
    version = "v1alpha",
    kind = "SubnetClaim",
    plural = "subnetclaims",
    namespaced,
    status = "SubnetClaimStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "Requests a range of addresses of a network in a location."
)]
#[serde(rename_all = "camelCase")]
pub struct SubnetClaimSpec {
    /// Class of the subnet; Polis requests `private`.
    pub subnet_class: String,
    /// The network in the location that the addresses are allocated from.
    pub network_context: NetworkContextReference,
    /// The location.
    pub location: LocationReference,
    /// `IPv4` or `IPv6`.
    pub ip_family: String,
    /// Requested first address; any when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_address: Option<String>,
    /// Requested prefix length; any when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_length: Option<i32>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Observed state of a subnet claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubnetClaimStatus {
    /// The subnet with the allocated addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet_ref: Option<SubnetReference>,
    /// First address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_address: Option<String>,
    /// Prefix length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_length: Option<i32>,
    /// Conditions of the claim: `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Names a subnet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubnetReference {
    /// Name of the subnet.
    pub name: String,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A range of addresses.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "networking.datumapis.com",
    version = "v1alpha",
    kind = "Subnet",
    plural = "subnets",
    namespaced,
    status = "SubnetStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A range of addresses of a network in a location."
)]
#[serde(rename_all = "camelCase")]
pub struct SubnetSpec {
    /// Class of the subnet.
    pub subnet_class: String,
    /// The network in the location that the addresses are allocated from.
    pub network_context: NetworkContextReference,
    /// The location.
    pub location: LocationReference,
    /// `IPv4` or `IPv6`.
    pub ip_family: String,
    /// First address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_address: Option<String>,
    /// Prefix length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_length: Option<i32>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Observed state of a subnet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubnetStatus {
    /// First address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_address: Option<String>,
    /// Prefix length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_length: Option<i32>,
    /// Conditions of the subnet: `Allocated`, `Programmed`, `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
