//! Volumes of an instance: disks, and data from config maps and secrets.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMapVolumeSource, SecretVolumeSource};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::EmbeddedMetadata;
use crate::schema;

/// The default disk type.
pub const DISK_TYPE_STANDARD: &str = "pd-standard";

/// A volume with at most one source of its content.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = schema::rule(
    "(has(self.disk) ? 1 : 0) + (has(self.configMap) ? 1 : 0) + (has(self.secret) ? 1 : 0) <= 1",
    "at most one of disk, configMap and secret may be set",
)))]
pub struct InstanceVolume {
    /// Name of the volume, a DNS label, unique in the instance.
    pub name: String,
    /// A disk that is created for the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskSource>,
    /// The content of a config map in the workload's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map: Option<ConfigMapVolumeSource>,
    /// The content of a secret in the workload's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretVolumeSource>,
}

/// A disk that is created for an instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskSource {
    /// Name of the device in the instance, unique; `persistent-disk-<index of the volume>` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_name: Option<String>,
    /// Metadata and spec of the disk.
    pub template: DiskTemplate,
}

/// Metadata and spec of a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskTemplate {
    /// Labels and annotations of the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<EmbeddedMetadata>,
    /// Type, size and initial content of the disk.
    pub spec: DiskSpec,
}

/// Type, size and initial content of a disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskSpec {
    /// Type of the disk.
    #[serde(rename = "type", default = "standard")]
    pub type_: String,
    /// Size of the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<DiskResources>,
    /// Initial content of the disk; empty when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub populator: Option<DiskPopulator>,
}

fn standard() -> String {
    DISK_TYPE_STANDARD.to_owned()
}

impl Default for DiskSpec {
    fn default() -> Self {
        DiskSpec { type_: standard(), resources: None, populator: None }
    }
}

/// Size of a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskResources {
    /// Requested size; the key is `storage`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::quantities")]
    pub requests: BTreeMap<String, Quantity>,
}

/// Initial content of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskPopulator {
    /// A copy of an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImagePopulator>,
    /// An empty file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<FilesystemPopulator>,
}

/// Fills a disk from an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImagePopulator {
    /// Name of the image, such as `datumcloud/ubuntu-2204-lts`.
    pub name: String,
}

/// Fills a disk with an empty file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FilesystemPopulator {
    /// Type of the file system; `ext4` is the only one.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["ext4"]))]
    pub type_: String,
}
