//! A resource kind: one resource of one group, with all its versions.

use std::sync::Arc;

use polis_apimachinery::table::Columns;
use serde_json::Value;

use super::builtin::Rules;
use crate::{
    status::GroupResource,
    store::{Collection, Revision},
    versioned_schema::VersionedSchema,
};

/// JSON paths of the scale subresource.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scale {
    pub(crate) spec_replicas: String,
    pub(crate) status_replicas: String,
    pub(crate) label_selector: Option<String>,
}

/// A built-in subresource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subresource {
    Status,
    Scale,
    Finalize,
    Token,
}

/// One version of a kind.
pub(crate) struct Version {
    pub(crate) name: String,
    /// `group/version`, or `version` for core.
    pub(crate) api_version: String,
    pub(crate) served: bool,
    pub(crate) deprecation: Option<String>,
    pub(crate) status: bool,
    pub(crate) scale: Option<Scale>,
    /// The printer columns.
    pub(crate) columns: Columns,
    /// Dotted paths that field selectors support besides name and namespace.
    pub(crate) selectable: Vec<String>,
    /// The schema as published in OpenAPI.
    pub(crate) openapi: Arc<Value>,
    pub(crate) versioned_schema: Arc<VersionedSchema>,
}

/// Whether a kind is built in or defined by a CRD.
pub(crate) enum Origin {
    Builtin(&'static Rules),
    Custom { crd: String },
}

/// A resource kind that a plane serves.
pub(crate) struct Kind {
    pub(crate) group: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) namespaced: bool,
    /// The preferred version comes first.
    pub(crate) versions: Vec<Arc<Version>>,
    /// The storage version.
    pub(crate) storage: String,
    pub(crate) origin: Origin,
    /// `plural.group`: the resource of the store collection. The two kinds of events share one.
    pub(crate) resource: Arc<str>,
    /// The revision of the CRD. Objects written before it may have been written under another schema: they
    /// are pruned and defaulted on read.
    pub(crate) schema_revision: Revision,
    /// The CRD is being deleted: all verbs but create are served.
    pub(crate) terminating: bool,
}

impl Kind {
    pub(crate) fn version(&self, name: &str) -> Option<&Arc<Version>> {
        self.versions.iter().find(|version| version.served && version.name == name)
    }

    pub(crate) fn storage_version(&self) -> &Arc<Version> {
        // The constructors check that there is at least one version and that `storage` names one of them.
        self.versions.iter().find(|version| version.name == self.storage).unwrap_or(&self.versions[0])
    }

    pub(crate) fn collection(&self, plane: &Arc<str>) -> Collection {
        Collection { plane: plane.clone(), resource: self.resource.clone() }
    }

    /// For messages about objects: named by resource.
    pub(crate) fn group_resource(&self) -> GroupResource {
        GroupResource::new(&self.group, &self.plural)
    }

    /// For messages about fields: named by kind.
    pub(crate) fn group_kind(&self) -> GroupResource {
        GroupResource::new(&self.group, &self.kind)
    }

    pub(crate) fn rules(&self) -> Option<&'static Rules> {
        match self.origin {
            Origin::Builtin(rules) => Some(rules),
            Origin::Custom { .. } => None,
        }
    }

    pub(crate) fn is_custom(&self) -> bool {
        matches!(self.origin, Origin::Custom { .. })
    }

    pub(crate) fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }

    /// `namespace/name`, or `name`.
    pub(crate) fn path(&self, namespace: Option<&str>, name: &str) -> String {
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.to_owned(),
        }
    }

    /// The subresource of that name, if the version has it.
    pub(crate) fn subresource(&self, version: &Version, name: &str) -> Option<Subresource> {
        match name {
            "status" if version.status => Some(Subresource::Status),
            "scale" if version.scale.is_some() => Some(Subresource::Scale),
            "finalize" if self.is("", "namespaces") => Some(Subresource::Finalize),
            "token" if self.is("", "serviceaccounts") => Some(Subresource::Token),
            _ => None,
        }
    }

    /// The verbs of the main resource, in the order of discovery.
    pub(crate) fn verbs(&self) -> &'static [&'static str] {
        match self.rules() {
            Some(rules) => rules.verbs(),
            None if self.terminating => {
                &["delete", "deletecollection", "get", "list", "patch", "update", "watch"]
            }
            None => &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"],
        }
    }
}
