//! The Project kind of Milo, `resourcemanager.miloapis.com/v1alpha1`.
//!
//! Milo owns the kind. Fields that Polis does not know are kept in `extra` at every level.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Extra, schema};

/// API group of [`Project`].
pub const GROUP: &str = "resourcemanager.miloapis.com";
/// Version of [`Project`].
pub const VERSION: &str = "v1alpha1";
/// Kind of [`Project`], as other objects refer to it.
pub const PROJECT_KIND: &str = "Project";
/// Key of an admission request's `userInfo.extra` that names the project of the request.
pub const EXTRA_PARENT_NAME: &str = "iam.miloapis.com/parent-name";
/// Key of an admission request's `userInfo.extra` that names the kind of the parent: [`PROJECT_KIND`] for a
/// project.
pub const EXTRA_PARENT_TYPE: &str = "iam.miloapis.com/parent-type";

/// The owner of a project.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "resourcemanager.miloapis.com",
    version = "v1alpha1",
    kind = "Project",
    plural = "projects",
    status = "ProjectStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A project: one tenant with a control plane of its own."
)]
#[serde(rename_all = "camelCase")]
pub struct ProjectSpec {
    /// The owner: an organization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_ref: Option<OwnerReference>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Names the owner of a project.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    /// Kind of the owner.
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Observed state of a project.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProjectStatus {
    /// Conditions of the project: `Ready` when its control plane can be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Fields that Polis does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
