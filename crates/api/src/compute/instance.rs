//! Instance: one running copy of a template, in one cell.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{InstanceNetworkInterface, InstanceRuntime, InstanceVolume};
use crate::schema;

/// The runtime of an instance, its networks and its volumes.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "compute.datumapis.com",
    version = "v1alpha",
    kind = "Instance",
    plural = "instances",
    namespaced,
    status = "InstanceStatus",
    shortname = "inst",
    category = "compute",
    category = "all",
    derive = "PartialEq",
    derive = "Default",
    doc = "An instance is one copy of a workload: a sandbox of containers or a virtual machine.",
    annotation("discovery.miloapis.com/parent-contexts", "Project"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#
    ),
    printcolumn(
        name = "Network IP",
        type_ = "string",
        json_path = ".status.networkInterfaces[0].assignments.networkIP"
    ),
    printcolumn(
        name = "External IP",
        type_ = "string",
        json_path = ".status.networkInterfaces[0].assignments.externalIP"
    ),
    printcolumn(
        name = "City",
        type_ = "string",
        json_path = r#".metadata.labels.compute\.datumapis\.com/city-code"#
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#,
        priority = 1
    ),
    printcolumn(
        name = "Quota",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="QuotaGranted")].reason"#,
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct InstanceSpec {
    /// What runs: a sandbox of containers or a virtual machine, and how large it is.
    pub runtime: InstanceRuntime,
    /// The networks that the instance is attached to; at least one.
    #[schemars(length(min = 1))]
    pub network_interfaces: Vec<InstanceNetworkInterface>,
    /// Volumes that can be attached to containers or to the virtual machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub volumes: Vec<InstanceVolume>,
    /// The location that the instance runs in. Written by controllers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<LocationReference>,
    /// Data of the controller that created the instance. Written by controllers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<InstanceController>,
}

/// Names a location.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocationReference {
    /// Name of the location.
    pub name: String,
    /// Namespace of the location; empty when locations are cluster-scoped.
    pub namespace: String,
}

/// Data of the controller that created an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceController {
    /// Fingerprint of the template that the instance was created from; opaque.
    pub template_hash: String,
    /// Gates that controllers remove before the instance may run. A provider does not start an instance that
    /// has a gate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub scheduling_gates: Vec<SchedulingGate>,
}

/// Gate that holds an instance until its networks are ready.
pub const GATE_NETWORK: &str = "Network";
/// Gate that holds an instance until its quota is granted.
pub const GATE_QUOTA: &str = "Quota";
/// Gate that holds an instance until the config maps and secrets that it refers to are in the cell.
pub const GATE_REFERENCED_DATA: &str = "ReferencedData";

/// A scheduling gate: an instance that has one is not started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingGate {
    /// Name of the gate, such as `Network` or `Quota`.
    pub name: String,
}

/// Observed state of an instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatus {
    /// Conditions of the instance: its provider writes `Programmed` and `Running`, Polis writes `Ready`,
    /// `QuotaGranted` and `ReferencedDataReady`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Addresses, one entry per interface of the spec and in the same order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network_interfaces: Vec<InstanceNetworkInterfaceStatus>,
    /// The part of `spec.controller` that the provider has applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<InstanceControllerStatus>,
    /// True while the instance is suspended: it exists and does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,
}

/// Observed state of one interface of an instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceNetworkInterfaceStatus {
    /// The addresses assigned to the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assignments: Option<NetworkInterfaceAssignments>,
}

/// Addresses assigned to an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NetworkInterfaceAssignments {
    /// Address inside the network.
    #[serde(rename = "networkIP", default, skip_serializing_if = "Option::is_none")]
    pub network_ip: Option<String>,
    /// Address for clients outside the network.
    #[serde(rename = "externalIP", default, skip_serializing_if = "Option::is_none")]
    pub external_ip: Option<String>,
}

/// The part of the controller's data that the provider has applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceControllerStatus {
    /// Fingerprint of the template that the provider runs.
    pub observed_template_hash: String,
}
