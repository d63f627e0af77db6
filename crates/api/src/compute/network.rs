//! Network interfaces of an instance.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// One attachment of an instance to a network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceNetworkInterface {
    /// The network to attach to.
    pub network: NetworkReference,
    /// The traffic that may reach the instance through this interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<InterfaceNetworkPolicy>,
}

/// Names a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkReference {
    /// Name of the network.
    pub name: String,
    /// Namespace of the network; the workload's namespace when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// The traffic that may reach an instance through an interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceNetworkPolicy {
    /// Rules for incoming traffic; traffic that matches one of them is allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ingress: Vec<IngressRule>,
}

/// Traffic that is allowed: to one of the ports, from one of the peers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngressRule {
    /// Ports that may be reached; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub ports: Vec<PolicyPort>,
    /// Peers that may reach them; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub from: Vec<PolicyPeer>,
}

/// A port, a range of ports, or a port by its name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyPort {
    /// Number of the port, or the name of a port of the instance; all ports when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::int_or_string")]
    pub port: Option<IntOrString>,
    /// Last port of a range that starts with `port`, both included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_port: Option<i32>,
    /// Protocol; TCP when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// Clients that may reach an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyPeer {
    /// A range of addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_block: Option<IpBlock>,
}

/// A range of addresses, with exceptions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IpBlock {
    /// The range, such as `10.0.0.0/8` or `2001:db8::/32`.
    pub cidr: String,
    /// Ranges inside `cidr` that are excluded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub except: Vec<String>,
}
