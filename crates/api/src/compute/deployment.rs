//! WorkloadDeployment: one placement of a workload in one city.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{InstanceTemplateSpec, LocationReference, ScaleSettings};
use crate::schema;

/// The instances of one placement of a workload in one city.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "compute.datumapis.com",
    version = "v1alpha",
    kind = "WorkloadDeployment",
    plural = "workloaddeployments",
    namespaced,
    status = "WorkloadDeploymentStatus",
    shortname = "wld",
    category = "compute",
    category = "all",
    derive = "PartialEq",
    derive = "Default",
    doc = "A workload deployment is the part of a workload that runs in one city.",
    annotation("discovery.miloapis.com/parent-contexts", "Project"),
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
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
    printcolumn(name = "Replicas", type_ = "string", json_path = ".status.replicas"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.readyReplicas"),
    printcolumn(name = "Desired", type_ = "string", json_path = ".status.desiredReplicas"),
    printcolumn(name = "Up-to-date", type_ = "string", json_path = ".status.currentReplicas"),
    printcolumn(name = "City", type_ = "string", json_path = ".spec.cityCode"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Location Namespace",
        type_ = "string",
        json_path = ".status.location.namespace",
        priority = 1
    ),
    printcolumn(name = "Location Name", type_ = "string", json_path = ".status.location.name", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadDeploymentSpec {
    /// The workload that this deployment is a part of.
    pub workload_ref: WorkloadReference,
    /// Name of the workload's placement that names this city.
    pub placement_name: String,
    /// Code of the city, exactly as the workload spells it.
    pub city_code: String,
    /// The template of the instances.
    pub template: InstanceTemplateSpec,
    /// How many instances run.
    pub scale_settings: ScaleSettings,
    /// The desired number of instances; `scaleSettings.minReplicas` when absent. Once set it can be changed
    /// through the scale subresource, which API servers do not offer while it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
}

/// Names a workload of the project. On every plane the UID is the one on the project's plane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadReference {
    /// Name of the workload.
    pub name: String,
    /// UID of the workload on the plane of its project.
    pub uid: String,
}

/// Observed state of a deployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadDeploymentStatus {
    /// The location that serves the deployment. Kept for readers of older versions; the city is chosen by
    /// `spec.cityCode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<LocationReference>,
    /// Name of the cell that runs the deployment: of several cells in one city, exactly one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<String>,
    /// Conditions of the deployment: `Available` is true when at least one instance is ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of instances that exist.
    #[serde(default)]
    #[schemars(!default)]
    pub replicas: i32,
    /// Number of instances that run the current template.
    #[serde(default)]
    #[schemars(!default)]
    pub current_replicas: i32,
    /// Number of instances that have the newest template, ready or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
    /// Number of instances that should exist.
    #[serde(default)]
    #[schemars(!default)]
    pub desired_replicas: i32,
    /// Number of instances that are ready.
    #[serde(default)]
    #[schemars(!default)]
    pub ready_replicas: i32,
    /// Label selector, as a string, for the instances of this deployment. Autoscalers read it through the
    /// scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The newest revision of the project's deployment that the cell has acted on, from the annotation
    /// `compute.datumapis.com/source-revision`. The cell does not follow an older one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_revision: Option<String>,
    /// True while the deployment is suspended: its instances exist and do not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,
}
