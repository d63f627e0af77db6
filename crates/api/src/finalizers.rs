//! Finalizer keys. Each comment names the object that has the finalizer, and when the controller removes it.

/// On a Workload of a project, until its deployments are gone.
pub const WORKLOAD: &str = "compute.datumapis.com/workload-controller";
/// On a WorkloadDeployment of a cell, until its Instances are gone. The same string as [`WORKLOAD`], on
/// another kind.
pub const DEPLOYMENT: &str = "compute.datumapis.com/workload-controller";
/// On a WorkloadDeployment of a project, until its hub copy is gone, and the city's policy too if no other
/// deployment needs it.
pub const FEDERATOR: &str = "compute.datumapis.com/federator";
/// On an Instance of a cell, until its hub copy is gone.
pub const INSTANCE: &str = "compute.datumapis.com/instance-controller";
/// On an Instance of a cell, until its ResourceClaim is gone.
pub const QUOTA_CLAIM: &str = "quota.compute.datumapis.com/claim-cleanup";
/// On an Instance of a cell, until all that its provider runs for it on the host has stopped.
pub const RUNTIME: &str = "runtime.compute.datumapis.com/processes";
/// On a WorkloadDeployment of a project, until its copied config maps and secrets are released.
pub const REFERENCED_DATA: &str = "compute.datumapis.com/referenced-data-controller";

/// On a Project, until all objects on its plane and the plane itself are gone.
pub const PROJECT: &str = "resourcemanager.miloapis.com/project-controller";

/// Finalizers of Karmada.
pub mod karmada {
    /// On a Cluster.
    pub const CLUSTER: &str = "karmada.io/cluster-controller";
    /// On a PropagationPolicy.
    pub const POLICY: &str = "karmada.io/propagation-policy-controller";
    /// On a ClusterPropagationPolicy.
    pub const CLUSTER_POLICY: &str = "karmada.io/cluster-propagation-policy-controller";
    /// On a ResourceBinding.
    pub const BINDING: &str = "karmada.io/binding-controller";
    /// On a ClusterResourceBinding.
    pub const CLUSTER_BINDING: &str = "karmada.io/cluster-resource-binding-controller";
    /// On a Work.
    pub const WORK: &str = "karmada.io/execution-controller";
}
