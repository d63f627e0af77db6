//! Finalizers, and the work that each stands for.

/// On a Workload of a project: its deployments are deleted and gone.
pub const WORKLOAD: &str = "compute.datumapis.com/workload-controller";
/// On a WorkloadDeployment of a cell: its Instances are deleted and gone. The same string as [`WORKLOAD`], on another kind.
pub const DEPLOYMENT: &str = "compute.datumapis.com/workload-controller";
/// On a WorkloadDeployment of a project: its hub copy is gone, and the policy of the city when nobody else needs it.
pub const FEDERATOR: &str = "compute.datumapis.com/federator";
/// On an Instance of a cell: its hub copy is gone.
pub const INSTANCE: &str = "compute.datumapis.com/instance-controller";
/// On an Instance of a cell: its ResourceClaim is gone.
pub const QUOTA_CLAIM: &str = "quota.compute.datumapis.com/claim-cleanup";
/// On an Instance of a cell: what its provider ran for it on the host has ended.
pub const RUNTIME: &str = "runtime.compute.datumapis.com/processes";
/// On a WorkloadDeployment of a project: its copied config maps and secrets are released.
pub const REFERENCED_DATA: &str = "compute.datumapis.com/referenced-data-controller";

/// On a Project: everything on its plane is gone, and the plane as well.
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
