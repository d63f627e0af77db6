//! Runtime of an instance: a sandbox of containers, or a virtual machine.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ContainerLifecycle, Probe};
use crate::schema;

/// What runs, and how large it is.
///
/// Admission requires exactly one of `sandbox` and `virtualMachine` in a workload. The schema rejects only
/// both: deployments and instances that other tools create may have neither.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = schema::rule(
    "!(has(self.sandbox) && has(self.virtualMachine))",
    "at most one of sandbox and virtualMachine may be set",
)))]
pub struct InstanceRuntime {
    /// How large the instance is.
    pub resources: InstanceRuntimeResources,
    /// A sandbox that runs containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxRuntime>,
    /// A virtual machine that boots from its first volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine: Option<VirtualMachineRuntime>,
}

/// The size of an instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceRuntimeResources {
    /// Name of the instance type, such as `datumcloud/d1-standard-2`.
    pub instance_type: String,
    /// Amounts that replace those of the instance type, by resource name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::quantities")]
    pub requests: BTreeMap<String, Quantity>,
}

/// Containers that share one sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxRuntime {
    /// The containers of the sandbox; at least one.
    #[schemars(
        length(min = 1),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub containers: Vec<SandboxContainer>,
    /// Secrets that hold credentials for pulling the images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<ImagePullSecret>,
    /// Seconds from the request to stop the containers until they are killed; chosen by the runtime when
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<i64>,
}

/// Names a secret in the workload's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImagePullSecret {
    /// Name of the secret.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// One container of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxContainer {
    /// Name of the container, a DNS label, unique in the sandbox.
    pub name: String,
    /// The image to run.
    #[schemars(length(min = 1))]
    pub image: String,
    /// Replaces the entry point of the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub command: Vec<String>,
    /// Replaces the arguments of the image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub args: Vec<String>,
    /// Environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// Config maps and secrets whose keys become environment variables. A variable of `env` with the same
    /// name has precedence; of several sources, the last one has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub env_from: Vec<EnvFromSource>,
    /// Limits and requests of this container alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ContainerResources>,
    /// Volumes of the instance that are attached to this container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_attachments: Vec<VolumeAttachment>,
    /// Ports that the container listens on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub ports: Vec<NamedPort>,
    /// The container is restarted when this probe fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness_probe: Option<Probe>,
    /// The instance is not ready while this probe fails. Without it, the instance is ready when its first TCP
    /// port accepts connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<Probe>,
    /// The other probes begin when this probe succeeds; the container is restarted when it fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub startup_probe: Option<Probe>,
    /// Hooks in the life of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<ContainerLifecycle>,
}

/// Limits and requests of one container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerResources {
    /// The most that the container may use, by resource name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::quantities")]
    pub limits: BTreeMap<String, Quantity>,
    /// The amount that the container is guaranteed, by resource name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::quantities")]
    pub requests: BTreeMap<String, Quantity>,
}

/// The attachment of a volume of the instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttachment {
    /// Name of the volume in `spec.volumes`.
    pub name: String,
    /// Where the volume is mounted; a volume without a path is attached and not mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_path: Option<String>,
}

/// A port with a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamedPort {
    /// Name of the port, unique in its list; network policies may refer to it.
    pub name: String,
    /// Number of the port, 1 to 65535.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Protocol of the port; TCP when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// A virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VirtualMachineRuntime {
    /// Volumes of the machine; it boots from the first.
    #[schemars(length(min = 1))]
    pub volume_attachments: Vec<VolumeAttachment>,
    /// Ports that the machine listens on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub ports: Vec<NamedPort>,
}
