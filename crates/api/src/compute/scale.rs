//! Scale settings, shared by the placements of a workload and by deployments.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// Instances are created and deleted one at a time, in the order of their ordinals; each waits until the one
/// before it is ready.
pub const ORDERED_READY: &str = "OrderedReady";
/// Instances are created and deleted without waiting for each other. A new template still replaces them one
/// at a time.
pub const PARALLEL: &str = "Parallel";

/// How many instances run in each city, and how that number is determined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = schema::rule_at(
    "!has(self.maxReplicas) || self.maxReplicas >= self.minReplicas",
    "maxReplicas must not be less than minReplicas",
    ".maxReplicas",
)))]
pub struct ScaleSettings {
    /// The minimum number of instances per city.
    pub min_replicas: i32,
    /// The maximum number of instances per city; requires `metrics`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_replicas: Option<i32>,
    /// The metrics that determine the number of instances between the minimum and the maximum.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<MetricSpec>,
    /// How instances are created and deleted: `OrderedReady`, one after another, each when the one before it
    /// is ready; or `Parallel`, without waiting. A new template replaces them one at a time with either.
    #[serde(default = "ordered_ready")]
    #[schemars(!default, extend("default" = ORDERED_READY))]
    pub instance_management_policy: String,
}

fn ordered_ready() -> String {
    ORDERED_READY.to_owned()
}

impl Default for ScaleSettings {
    fn default() -> Self {
        ScaleSettings {
            min_replicas: 0,
            max_replicas: None,
            metrics: Vec::new(),
            instance_management_policy: ordered_ready(),
        }
    }
}

/// A metric and its target value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricSpec {
    /// A resource that every instance uses, such as cpu.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<ResourceMetric>,
}

/// A resource used by instances, and its target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceMetric {
    /// Name of the resource; only `cpu` is supported.
    pub name: String,
    /// The target value; set exactly one of its fields.
    pub target: MetricTarget,
}

/// The target value of a metric.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricTarget {
    /// The value summed over all instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub value: Option<Quantity>,
    /// The value averaged over all instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub average_value: Option<Quantity>,
    /// The value averaged over all instances, as a percentage of what each has requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub average_utilization: Option<i32>,
}
