//! Annotation keys that other programs rely on.

/// Newline-separated `user:authorized-key` lines, on the metadata of an instance template that boots a
/// virtual machine.
pub const SSH_KEYS: &str = "compute.datumapis.com/ssh-keys";
/// RFC 3339 time on template metadata; changing it replaces the instances.
pub const RESTARTED_AT: &str = "compute.datumapis.com/restartedAt";
/// On a Workload: JSON list of the last templates, `{revision, at, cause, template}`, as the commands of
/// `polis` write them.
pub const REVISIONS: &str = "compute.datumapis.com/revisions";
/// The hub namespace of a project's WorkloadDeployment, recorded before the first write on the hub.
pub const FEDERATION_NAMESPACE: &str = "compute.datumapis.com/federation-namespace";
/// On the hub copy of a WorkloadDeployment, and through the federation in the cell: the RFC 3339 time at
/// which the project's deployment was found deleted. The cell ends the instances and reports that in the
/// condition `Withdrawn`; then the hub copy is deleted. Only the federator sets it.
pub const WITHDRAWN_AT: &str = "compute.datumapis.com/withdrawn-at";
/// On the hub copy of a WorkloadDeployment, and through the federation in the cell: `<UID>.<number>` of the
/// project's deployment. The number grows with each change of the spec. A cell does not follow a revision
/// that is older than one it has acted on: a restored hub shows such revisions.
pub const SOURCE_REVISION: &str = "compute.datumapis.com/source-revision";
/// On a Workload or WorkloadDeployment of a project that is being deleted: comma-separated city codes. The
/// deletion no longer waits for the cells of these cities.
pub const ABANDON: &str = "compute.datumapis.com/abandon";
/// `true` or `false`, on a WorkloadDeployment; copied from the project through the hub to the cell.
pub const SUSPENDED: &str = "compute.datumapis.com/suspended";
/// On the hub copy of a WorkloadDeployment whose template refers to config maps or secrets, and through the
/// federation in the cell: JSON array of sorted `Kind/name@hash` tokens, one for each companion that the
/// deployment needs, with its content hash. The federation propagates them with the deployment. Only the
/// federator sets it.
pub const EXPECTED_REFERENCED_DATA: &str = "compute.datumapis.com/expected-referenced-data";
/// Beside [`EXPECTED_REFERENCED_DATA`]: JSON `{reason, message}` while a source is missing, too large or
/// unreadable, or lacks a key. Only the federator sets it.
pub const REFERENCED_DATA_ERROR: &str = "compute.datumapis.com/referenced-data-error";
/// RFC 3339 time at which an Instance started to wait for referenced data.
pub const REFERENCED_DATA_GATE_START: &str = "compute.datumapis.com/referenced-data-gate-start";
/// JSON array of sorted `namespace/name` keys of the deployments that use a copied config map or secret.
pub const REFERENCED_BY: &str = "compute.datumapis.com/referenced-by";
/// On a companion: name of the config map or secret of the project that it is a copy of.
pub const SOURCE_NAME: &str = "compute.datumapis.com/source-name";
/// On a companion: hash of the UID of its source and of its content. The UID is random, so that the hash says
/// nothing to a client that may not read the source.
pub const CONTENT_HASH: &str = "compute.datumapis.com/content-hash";

/// On the Pod of an Instance: the hash of the template that the Pod was created from.
pub const TEMPLATE_HASH: &str = "compute.datumapis.com/template-hash";

/// On a Karmada cluster, with the value `true`: its city label may be changed or removed.
pub const ALLOW_CITY_CHANGE: &str = "compute.datumapis.com/allow-city-change";

/// On a CRD: where Milo offers the kind. The CRDs of Polis have [`PARENT_CONTEXT_PROJECT`].
pub const PARENT_CONTEXTS: &str = "discovery.miloapis.com/parent-contexts";
/// The kind is offered inside projects.
pub const PARENT_CONTEXT_PROJECT: &str = "Project";

/// On a CRD that this crate generates for a kind of another project: it is for tests and is not the owner's
/// definition.
pub const MINIMAL_CRD: &str = "polis.datumapis.com/minimal-crd";

/// Annotations that Karmada writes and reads.
pub mod karmada {
    /// Namespace of the PropagationPolicy that claimed an object.
    pub const POLICY_NAMESPACE: &str = "propagationpolicy.karmada.io/namespace";
    /// Name of the PropagationPolicy that claimed an object.
    pub const POLICY_NAME: &str = "propagationpolicy.karmada.io/name";
    /// Name of the ClusterPropagationPolicy that claimed an object.
    pub const CLUSTER_POLICY_NAME: &str = "clusterpropagationpolicy.karmada.io/name";
    /// The placement, as JSON, that a binding was last scheduled with.
    pub const APPLIED_PLACEMENT: &str = "policy.karmada.io/applied-placement";
    /// Namespace of the ResourceBinding that a Work or member object belongs to.
    pub const BINDING_NAMESPACE: &str = "resourcebinding.karmada.io/namespace";
    /// Name of the ResourceBinding that a Work or member object belongs to.
    pub const BINDING_NAME: &str = "resourcebinding.karmada.io/name";
    /// Name of the ClusterResourceBinding that a Work or member object belongs to.
    pub const CLUSTER_BINDING_NAME: &str = "clusterresourcebinding.karmada.io/name";
    /// Namespace of the Work that a member object belongs to.
    pub const WORK_NAMESPACE: &str = "work.karmada.io/namespace";
    /// Name of the Work that a member object belongs to.
    pub const WORK_NAME: &str = "work.karmada.io/name";
    /// `abort` or `overwrite`: what Karmada does with a member object that it does not manage.
    pub const CONFLICT_RESOLUTION: &str = "work.karmada.io/conflict-resolution";
    /// UID of the hub object that a member object was created from.
    pub const TEMPLATE_UID: &str = "resourcetemplate.karmada.io/uid";
    /// Generation of the hub object that a member object was created from.
    pub const TEMPLATE_GENERATION: &str = "resourcetemplate.karmada.io/generation";
    /// Comma-separated label keys that Karmada owns on a member object.
    pub const MANAGED_LABELS: &str = "resourcetemplate.karmada.io/managed-labels";
    /// Comma-separated annotation keys that Karmada owns on a member object.
    pub const MANAGED_ANNOTATIONS: &str = "resourcetemplate.karmada.io/managed-annotations";
}
