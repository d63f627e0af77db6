//! Workload: the instances that a user requests, by city.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{InstanceTemplateSpec, ScaleSettings};
use crate::schema;

/// The template of the instances, and the placements where they run.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "compute.datumapis.com",
    version = "v1alpha",
    kind = "Workload",
    plural = "workloads",
    namespaced,
    status = "WorkloadStatus",
    shortname = "wl",
    category = "compute",
    category = "all",
    derive = "PartialEq",
    derive = "Default",
    doc = "A workload runs copies of one instance template in the cities named by its placements.",
    annotation("discovery.miloapis.com/parent-contexts", "Project"),
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.replicasPerCity"),
    printcolumn(
        name = "Available",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Available")].status"#
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Available")].reason"#
    ),
    printcolumn(name = "Deployments", type_ = "string", json_path = ".status.deployments"),
    printcolumn(name = "Replicas", type_ = "string", json_path = ".status.replicas"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.readyReplicas"),
    printcolumn(name = "Desired", type_ = "string", json_path = ".status.desiredReplicas"),
    printcolumn(name = "Up-to-date", type_ = "string", json_path = ".status.currentReplicas"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = schema::rules(&[
    (
        "!has(self.replicas) || self.placements.all(p, p.scaleSettings.minReplicas == self.placements[0].scaleSettings.minReplicas)",
        "the placements of this workload have different numbers of instances, and kubectl scale sets one number for all: use `polis scale NAME N --placement PLACEMENT`, or change minReplicas of the placement",
    ),
    (
        "!has(self.replicas) || !has(oldSelf.replicas) || self.replicas != oldSelf.replicas || self.placements.all(p, p.scaleSettings.minReplicas == oldSelf.placements[0].scaleSettings.minReplicas)",
        "spec.replicas, which kubectl scale has set, takes precedence over minReplicas: change spec.replicas, or remove it together with the change of minReplicas",
    ),
])))]
pub struct WorkloadSpec {
    /// The template of the instances in every city.
    pub template: InstanceTemplateSpec,
    /// Where the workload runs and how many instances run there; at least one placement, each with a unique
    /// name.
    // The API server needs a bound to estimate the cost of the rule. No workload needs this many placements.
    #[schemars(
        length(min = 1, max = 256),
        extend("x-kubernetes-validations" = schema::rule(
            "self.all(p, self.exists_one(q, q.name == p.name))",
            "placement names must be unique",
        ))
    )]
    pub placements: Vec<WorkloadPlacement>,
    /// Number of instances in each city of every placement, instead of `minReplicas`. The scale subresource
    /// sets it; it requires that all placements have the same `minReplicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub replicas: Option<i32>,
}

/// A group of cities with the same scale settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadPlacement {
    /// Name of the placement, a DNS label, unique in the workload.
    #[schemars(length(max = 63))]
    pub name: String,
    /// Codes of the cities to run in, exactly as the locations of the project spell them (upper and lower
    /// case differ).
    pub city_codes: Vec<String>,
    /// How many instances run in each city.
    pub scale_settings: ScaleSettings,
}

/// Observed state of a workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadStatus {
    /// Conditions of the workload: `Available` is true when at least one placement is available.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of deployments that exist, including those that are being deleted.
    #[serde(default)]
    #[schemars(!default)]
    pub deployments: i32,
    /// Number of instances that exist, over all deployments.
    #[serde(default)]
    #[schemars(!default)]
    pub replicas: i32,
    /// Number of instances that exist in each city, the smallest if it differs. The scale subresource shows
    /// it, because `spec.replicas` is a number per city too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas_per_city: Option<i32>,
    /// Number of instances that run the current template, over all deployments.
    #[serde(default)]
    #[schemars(!default)]
    pub current_replicas: i32,
    /// Number of instances that have the newest template, ready or not, over all deployments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
    /// Number of instances that should exist, over all deployments.
    #[serde(default)]
    #[schemars(!default)]
    pub desired_replicas: i32,
    /// Number of instances that are ready, over all deployments.
    #[serde(default)]
    #[schemars(!default)]
    pub ready_replicas: i32,
    /// The state of each placement, one entry per placement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placements: Vec<WorkloadPlacementStatus>,
    /// Reserved for the status of a gateway in front of the workload. Polis never changes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::open_object")]
    pub gateway: Option<BTreeMap<String, Value>>,
}

/// Observed state of one placement of a workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadPlacementStatus {
    /// Name of the placement.
    pub name: String,
    /// Conditions of the placement: `Available` is true when at least one of its deployments is available.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Number of instances that exist in the placement.
    #[serde(default)]
    #[schemars(!default)]
    pub replicas: i32,
    /// Number of instances of the placement that run the current template.
    #[serde(default)]
    #[schemars(!default)]
    pub current_replicas: i32,
    /// Number of instances of the placement that have the newest template, ready or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
    /// Number of instances that should exist in the placement.
    #[serde(default)]
    #[schemars(!default)]
    pub desired_replicas: i32,
    /// Number of instances of the placement that are ready.
    #[serde(default)]
    #[schemars(!default)]
    pub ready_replicas: i32,
}
