//! Label keys and values that other programs rely on.

/// UID of the Workload on the project's plane. On deployments of a project and on Instances.
pub const WORKLOAD_UID: &str = "compute.datumapis.com/workload-uid";
/// UID of the WorkloadDeployment **on the plane where the Instance was created**. On Instances.
pub const WORKLOAD_DEPLOYMENT_UID: &str = "compute.datumapis.com/workload-deployment-uid";
/// Ordinal of an Instance in its deployment, as a decimal number.
pub const INSTANCE_INDEX: &str = "compute.datumapis.com/instance-index";
/// Name of the WorkloadDeployment. On Instances, the same on every plane.
pub const WORKLOAD_DEPLOYMENT_NAME: &str = "compute.datumapis.com/workload-deployment-name";
/// Name of the Workload. On Instances.
pub const WORKLOAD_NAME: &str = "compute.datumapis.com/workload-name";
/// Name of the placement. On Instances.
pub const PLACEMENT_NAME: &str = "compute.datumapis.com/placement-name";
/// City code, verbatim. On Instances and on their ResourceClaims.
pub const CITY_CODE: &str = "compute.datumapis.com/city-code";
/// UID of the Instance, in its cell. On the Pods and network policies that run it.
pub const INSTANCE_UID: &str = "compute.datumapis.com/instance-uid";
/// Name of the cell that created a ResourceClaim.
pub const SOURCE_CLUSTER: &str = "compute.datumapis.com/source-cluster";
/// Namespace, on the cell, of the Instance that a ResourceClaim is for.
pub const INSTANCE_NAMESPACE: &str = "compute.datumapis.com/instance-namespace";
/// Marks companions: copies of config maps and secrets that are propagated with deployments; the value is
/// `true`.
pub const REFERENCED_DATA: &str = "compute.datumapis.com/referenced-data";
/// Runtime class. On hub deployments and Instances of later versions.
pub const RUNTIME_CLASS: &str = "compute.datumapis.com/runtime-class";
/// The service that an object of a project belongs to; for Polis [`SERVICE_NAME_COMPUTE`].
pub const SERVICE_NAME: &str = "services.miloapis.com/service-name";
/// Value of [`SERVICE_NAME`] on objects of Polis.
pub const SERVICE_NAME_COMPUTE: &str = "compute.datumapis.com";

/// City code, verbatim. On hub deployments and on Karmada clusters; also a key in the topology of a Location.
pub const TOPOLOGY_CITY_CODE: &str = "topology.datum.net/city-code";
/// Region; a key in the topology of a Location.
pub const TOPOLOGY_REGION: &str = "topology.datum.net/region";
/// Name of the Location that a Karmada cluster serves.
pub const TOPOLOGY_LOCATION: &str = "topology.datum.net/location";

/// The project that a hub object came from, encoded as [`crate::names::cluster_label`] does.
pub const UPSTREAM_CLUSTER_NAME: &str = "meta.datumapis.com/upstream-cluster-name";
/// The namespace, in the project, that a hub object came from.
pub const UPSTREAM_NAMESPACE: &str = "meta.datumapis.com/upstream-namespace";

/// The program that manages an object. [`MANAGED_BY_PLATFORM`] distinguishes objects of the local platform
/// services from those of users.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`] on objects that the local platform services create.
pub const MANAGED_BY_PLATFORM: &str = "polis-platform";
/// On the namespace of a project's own platform objects, such as grants; the value is `true`.
pub const MILO_SYSTEM: &str = "miloapis.com/system";

/// Prefix of the labels of a hub namespace for the cities where it has deployments; see [`city_presence`].
pub const CITY_PRESENCE: &str = "city.compute.datumapis.com/";

/// Label, with the value `true`, of a hub namespace that has deployments in a city. The hub's admission
/// allows writes there only to the cells of that city.
pub fn city_presence(city: &str) -> String {
    format!("{CITY_PRESENCE}{}", city.to_ascii_lowercase().replace(' ', "-"))
}

/// Labels that Karmada writes and reads.
pub mod karmada {
    /// On every object that Karmada created on a member; the value is `true`.
    pub const MANAGED: &str = "karmada.io/managed";
    /// On namespaces that belong to Karmada itself; the value is `true`.
    pub const SYSTEM: &str = "karmada.io/system";
    /// On a namespace that Karmada does not propagate; the value is `true`.
    pub const SKIP_AUTO_PROPAGATION: &str = "namespace.karmada.io/skip-auto-propagation";
    /// Identity of a PropagationPolicy; also on the objects that it claims.
    pub const POLICY_ID: &str = "propagationpolicy.karmada.io/permanent-id";
    /// Identity of a ClusterPropagationPolicy; also on the objects that it claims.
    pub const CLUSTER_POLICY_ID: &str = "clusterpropagationpolicy.karmada.io/permanent-id";
    /// Identity of a ResourceBinding; also on its Works and member objects.
    pub const BINDING_ID: &str = "resourcebinding.karmada.io/permanent-id";
    /// Identity of a ClusterResourceBinding; also on its Works and member objects.
    pub const CLUSTER_BINDING_ID: &str = "clusterresourcebinding.karmada.io/permanent-id";
    /// Identity of a Work; also on its member object.
    pub const WORK_ID: &str = "work.karmada.io/permanent-id";
    /// On a template that policies must not claim.
    pub const CLAIMED_BY: &str = "resourcetemplate.karmada.io/claimed-by";
    /// On a template that must not be deleted, with the value `Always`.
    pub const DELETION_PROTECTED: &str = "resourcetemplate.karmada.io/deletion-protected";
}
