//! The kinds that the federation itself uses.

use polis_api::labels;
use polis_engine::{Index, Kind, ResourceScope};

use crate::interpreter::TypeMeta;

use ResourceScope::{Cluster, Namespaced};

pub(crate) static CLUSTER: Kind =
    Kind::known("cluster.karmada.io", "v1alpha1", "Cluster", "clusters", Cluster);
pub(crate) static POLICY: Kind =
    Kind::known("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies", Namespaced);
pub(crate) static CLUSTER_POLICY: Kind = Kind::known(
    "policy.karmada.io",
    "v1alpha1",
    "ClusterPropagationPolicy",
    "clusterpropagationpolicies",
    Cluster,
);
pub(crate) static BINDING: Kind =
    Kind::known("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings", Namespaced);
pub(crate) static CLUSTER_BINDING: Kind =
    Kind::known("work.karmada.io", "v1alpha2", "ClusterResourceBinding", "clusterresourcebindings", Cluster);
pub(crate) static WORK: Kind = Kind::known("work.karmada.io", "v1alpha1", "Work", "works", Namespaced);
pub(crate) static INTERPRETER: Kind = Kind::known(
    "config.karmada.io",
    "v1alpha1",
    "ResourceInterpreterCustomization",
    "resourceinterpretercustomizations",
    Cluster,
);
pub(crate) static NAMESPACE: Kind = Kind::known("", "v1", "Namespace", "namespaces", Cluster);
pub(crate) static SECRET: Kind = Kind::known("", "v1", "Secret", "secrets", Namespaced);
pub(crate) static CRD: Kind = Kind::known(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    Cluster,
);

/// The kinds that a hub must serve.
pub(crate) static REQUIRED_ON_HUB: [&Kind; 7] =
    [&CLUSTER, &POLICY, &CLUSTER_POLICY, &BINDING, &CLUSTER_BINDING, &WORK, &INTERPRETER];

/// Bindings of either kind and Works by the permanent id of their binding.
pub(crate) const BINDING_IDS: [Index; 2] = [
    Index::Label(std::borrow::Cow::Borrowed(labels::karmada::BINDING_ID)),
    Index::Label(std::borrow::Cow::Borrowed(labels::karmada::CLUSTER_BINDING_ID)),
];

/// `apiVersion` and `kind` of a kind.
pub(crate) fn type_meta(kind: &Kind) -> TypeMeta {
    TypeMeta { api_version: kind.api_version(), kind: kind.kind.to_string() }
}

/// `apiVersion kind`, for messages.
pub(crate) fn describe(kind: &Kind) -> String {
    format!("{} {}", kind.api_version(), kind.kind)
}
