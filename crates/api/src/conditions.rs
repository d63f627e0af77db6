//! Condition types.

/// Workload, its placements, WorkloadDeployment: at least one placement, deployment or instance of it is
/// available. Later providers also write it on an Instance instead of [`RUNNING`].
pub const AVAILABLE: &str = "Available";
/// Workload, WorkloadDeployment: the newest spec is reached or on its way. False while the rollout is stuck.
pub const PROGRESSING: &str = "Progressing";
/// Workload, WorkloadDeployment: a cause that waiting does not resolve; the reason is the worst one.
pub const DEGRADED: &str = "Degraded";
/// Workload, WorkloadDeployment: the newest spec is on its way. Absent unless it is True, as kstatus expects.
pub const RECONCILING: &str = "Reconciling";
/// Workload, WorkloadDeployment: waiting does not reach the newest spec. Absent unless it is True, as kstatus
/// expects.
pub const STALLED: &str = "Stalled";
/// Placement of a Workload: the project may use every city of the placement. Absent until it is False for the
/// first time.
pub const LOCATIONS_BOUND: &str = "LocationsBound";
/// WorkloadDeployment: nothing blocks its replicas.
pub const REPLICAS_READY: &str = "ReplicasReady";
/// WorkloadDeployment of a project: its copy is on the hub. Absent unless it is False.
pub const FEDERATED: &str = "Federated";
/// WorkloadDeployment and Workload that are being deleted: the cell has ended the instances. Absent before a
/// deletion, and absent from a deletion that takes less than two seconds.
pub const WITHDRAWN: &str = "Withdrawn";
/// Instance: the provider has accepted the spec.
pub const PROGRAMMED: &str = "Programmed";
/// Instance: it runs.
pub const RUNNING: &str = "Running";
/// Instance: every container with a readiness probe is ready. Absent if no container has one.
pub const CONTAINERS_READY: &str = "ContainersReady";
/// Instance: it runs and nothing is missing. Workload, WorkloadDeployment: the newest spec is reached.
/// Networking, Milo and Karmada kinds use it too.
pub const READY: &str = "Ready";
/// Instance: the project's quota allows it.
pub const QUOTA_GRANTED: &str = "QuotaGranted";
/// WorkloadDeployment, Instance: the config maps and secrets that it refers to are in the cell.
pub const REFERENCED_DATA_READY: &str = "ReferencedDataReady";

/// ResourceClaim: every request is granted.
pub const GRANTED: &str = "Granted";
/// ResourceGrant, ResourceRegistration: it is in effect.
pub const ACTIVE: &str = "Active";
/// Network, NetworkContext: its address space is allocated.
pub const IPAM_ALLOCATED: &str = "IPAMAllocated";
/// Subnet: its addresses are allocated.
pub const ALLOCATED: &str = "Allocated";

/// Project: the objects on its plane are being deleted.
pub const RESOURCE_CLEANUP: &str = "ResourceCleanup";

/// Condition types of Karmada.
pub mod karmada {
    /// Cluster: the list of APIs in its status is complete.
    pub const COMPLETE_API_ENABLEMENTS: &str = "CompleteAPIEnablements";
    /// ResourceBinding: the scheduler has chosen clusters.
    pub const SCHEDULED: &str = "Scheduled";
    /// ResourceBinding: every chosen cluster has the object.
    pub const FULLY_APPLIED: &str = "FullyApplied";
    /// Work: the member has the object.
    pub const APPLIED: &str = "Applied";
    /// Work: changes are sent to the member.
    pub const DISPATCHING: &str = "Dispatching";
}
