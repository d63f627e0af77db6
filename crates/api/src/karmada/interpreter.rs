//! ResourceInterpreterCustomization: Lua scripts that define how the federation handles a kind.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Extra;

/// The scripts for one kind.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "config.karmada.io",
    version = "v1alpha1",
    kind = "ResourceInterpreterCustomization",
    plural = "resourceinterpretercustomizations",
    shortname = "ric",
    category = "karmada-io",
    derive = "PartialEq",
    derive = "Default",
    doc = "Defines in Lua how the federation reads and writes objects of one kind."
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceInterpreterCustomizationSpec {
    /// The kind.
    pub target: CustomizationTarget,
    /// The scripts.
    pub customizations: CustomizationRules,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The kind that scripts are for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CustomizationTarget {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The scripts, one per operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CustomizationRules {
    /// `Retain(desired, observed)`: the desired object with the fields that the member keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<LuaRule>,
    /// `GetReplicas(object)`: how many replicas it has and what each needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_resource: Option<LuaRule>,
    /// `GetComponents(object)`: its parts and what each needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub component_resource: Option<LuaRule>,
    /// `ReviseReplica(object, replicas)`: the object with another number of replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_revision: Option<LuaRule>,
    /// `ReflectStatus(observed)`: the part of the member's status that is reported to the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_reflection: Option<LuaRule>,
    /// `AggregateStatus(desired, items)`: the hub object with the status of all members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_aggregation: Option<LuaRule>,
    /// `InterpretHealth(observed)`: whether the member's object is healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_interpretation: Option<LuaRule>,
    /// `GetDependencies(desired)`: the objects that must be propagated too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependency_interpretation: Option<LuaRule>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One script.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LuaRule {
    /// Lua that defines the function of the rule.
    pub lua_script: String,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
