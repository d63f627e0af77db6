//! Scale settings, shared by the placements of a workload and by deployments.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema;

/// Instances are made and removed one at a time, in the order of their ordinals, each waiting for the one before to be ready.
pub const ORDERED_READY: &str = "OrderedReady";

/// How many instances run in each city, and how that number is found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = schema::rule_at(
    "!has(self.maxReplicas) || self.maxReplicas >= self.minReplicas",
    "maxReplicas must not be less than minReplicas",
    ".maxReplicas",
)))]
pub struct ScaleSettings {
    /// The least number of instances per city.
    pub min_replicas: i32,
    /// The greatest number of instances per city; needs metrics that say when to add one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_replicas: Option<i32>,
    /// What is measured to find the number of instances between the least and the greatest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub metrics: Vec<MetricSpec>,
    /// In which order instances are made, replaced and removed. `OrderedReady` is the only policy there is.
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

/// One measured quantity and the value it should have.
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
    /// Name of the resource; `cpu` is understood.
    pub name: String,
    /// The value to hold; exactly one kind of target is given.
    pub target: MetricTarget,
}

/// The value that a metric should have.
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
