//! Condition types.

/// Workload, its placements, WorkloadDeployment: something of it can be used. Also what later providers write on
/// an Instance instead of [`RUNNING`].
pub const AVAILABLE: &str = "Available";
/// Placement of a Workload: the project may use every city that it asks for. There once one could not be used.
pub const LOCATIONS_BOUND: &str = "LocationsBound";
/// WorkloadDeployment: nothing holds its replicas back.
pub const REPLICAS_READY: &str = "ReplicasReady";
/// Instance: the provider has taken the spec over.
pub const PROGRAMMED: &str = "Programmed";
/// Instance: it runs.
pub const RUNNING: &str = "Running";
/// Instance: it runs and nothing is missing. Also the general word for done on networking, Milo and Karmada kinds.
pub const READY: &str = "Ready";
/// Instance: the project's quota allows it.
pub const QUOTA_GRANTED: &str = "QuotaGranted";
/// WorkloadDeployment, Instance: the config maps and secrets it refers to have arrived.
pub const REFERENCED_DATA_READY: &str = "ReferencedDataReady";

/// ResourceClaim: every request is granted.
pub const GRANTED: &str = "Granted";
/// ResourceGrant, ResourceRegistration: it counts.
pub const ACTIVE: &str = "Active";
/// Network, NetworkContext: its address space is allocated.
pub const IPAM_ALLOCATED: &str = "IPAMAllocated";
/// Subnet: its addresses are allocated.
pub const ALLOCATED: &str = "Allocated";

/// Project: what is on its plane is being taken away.
pub const RESOURCE_CLEANUP: &str = "ResourceCleanup";

/// Condition types of Karmada.
pub mod karmada {
    /// Cluster: the list of APIs in its status is complete.
    pub const COMPLETE_API_ENABLEMENTS: &str = "CompleteAPIEnablements";
    /// ResourceBinding: clusters are chosen.
    pub const SCHEDULED: &str = "Scheduled";
    /// ResourceBinding: every chosen cluster has the object.
    pub const FULLY_APPLIED: &str = "FullyApplied";
    /// Work: the member has the object.
    pub const APPLIED: &str = "Applied";
    /// Work: changes are sent to the member.
    pub const DISPATCHING: &str = "Dispatching";
}
