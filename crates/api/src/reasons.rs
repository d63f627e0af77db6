//! Condition reasons. Several conditions may share a reason; the comments name them.

// === Workload and its placements: Available ===

/// A network that an interface refers to does not exist.
pub const NETWORK_NOT_FOUND: &str = "NetworkNotFound";
/// No placement is available.
pub const NO_AVAILABLE_PLACEMENTS: &str = "NoAvailablePlacements";
/// At least one placement is available.
pub const AVAILABLE_PLACEMENT_FOUND: &str = "AvailablePlacementFound";
/// No deployment of the placement is available.
pub const NO_AVAILABLE_DEPLOYMENTS: &str = "NoAvailableDeployments";
/// At least one deployment of the placement is available.
pub const AVAILABLE_DEPLOYMENT_FOUND: &str = "AvailableDeploymentFound";

// === Placement of a Workload: LocationsBound ===

/// The project may use every city of the placement.
pub const EVERY_LOCATION_BOUND: &str = "EveryLocationBound";
/// The project may no longer use a city; instances there keep running. Also the reason of the event.
pub const LOCATION_LOST: &str = "LocationLost";

// === WorkloadDeployment: Available ===

/// At least one instance is ready.
pub const STABLE_INSTANCE_FOUND: &str = "StableInstanceFound";
/// The network is not ready.
pub const PROVISIONING_NETWORK: &str = "ProvisioningNetwork";
/// Instances exist and none is ready.
pub const PROVISIONING_INSTANCES: &str = "ProvisioningInstances";
/// Some instances were refused quota.
pub const QUOTA_NOT_GRANTED: &str = "QuotaNotGranted";
/// The deployment reached a cell of another city.
pub const CITY_CODE_MISMATCH: &str = "CityCodeMismatch";
/// No location serves the city.
pub const NO_MATCHING_LOCATION: &str = "NoMatchingLocation";
/// Config maps or secrets that the template refers to are not in the cell yet.
pub const REFERENCED_DATA_NOT_READY: &str = "ReferencedDataNotReady";

// === WorkloadDeployment: ReplicasReady ===

/// At least one instance was refused quota. Also Instance QuotaGranted and ResourceClaim Granted.
pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
/// Nothing blocks the replicas.
pub const REPLICAS_AVAILABLE: &str = "ReplicasAvailable";
/// Referenced data is being propagated. Also ReferencedDataReady of Instances and deployments.
pub const AWAITING_PROPAGATION: &str = "AwaitingPropagation";

// === Workload, WorkloadDeployment: Progressing, Degraded, Ready, Reconciling, Stalled ===

/// Every instance has the newest spec and is ready. Also the reason of the event.
pub const ROLLOUT_COMPLETE: &str = "RolloutComplete";
/// Instances are created or replaced.
pub const ROLLOUT_IN_PROGRESS: &str = "RolloutInProgress";
/// Nothing has changed for too long.
pub const PROGRESS_DEADLINE_EXCEEDED: &str = "ProgressDeadlineExceeded";
/// Nothing is degraded. Also the reason of the event when a degradation ends.
pub const AS_EXPECTED: &str = "AsExpected";

// === Workload, WorkloadDeployment of a project: Ready, Available, Progressing, Degraded ===

/// Nothing has been heard of the cell for too long: what runs there is not known. A cell that is silent on a
/// deleted deployment has the reason [`CELL_UNREACHABLE`]. Also the reason of the event on the Workload.
pub const CELL_SILENT: &str = "CellSilent";

// === WorkloadDeployment: Federated ===

/// The hub namespace of the deployment has the labels of another tenant. Also the reason of the event.
pub const HUB_NAMESPACE_TAKEN: &str = "HubNamespaceTaken";
/// The hub namespace of the deployment is being deleted. Also the reason of the event.
pub const HUB_NAMESPACE_TERMINATING: &str = "HubNamespaceTerminating";
/// The hub refuses a request of the controllers. Also the reason of the event.
pub const HUB_REFUSED: &str = "HubRefused";

// === WorkloadDeployment, Workload: Withdrawn ===

/// The cell is ending the instances; the message counts them.
pub const INSTANCES_ENDING: &str = "InstancesEnding";
/// Every instance has ended.
pub const INSTANCES_ENDED: &str = "InstancesEnded";
/// The API server of the cell does not respond to the hub; instances may still run.
pub const CELL_UNREACHABLE: &str = "CellUnreachable";
/// The cell has not confirmed the deletion yet.
pub const AWAITING_CELL: &str = "AwaitingCell";
/// The hub has not finished the deletion yet.
pub const AWAITING_HUB: &str = "AwaitingHub";
/// The hub does not respond. Also Ready, Available, Progressing and Degraded of a deployment that is not
/// being deleted, and of its Workload; and the reason of events on the Workload and on an Instance of a cell.
pub const HUB_UNREACHABLE: &str = "HubUnreachable";

// === Instance: Programmed, Running, Available, Ready ===

/// Nothing has happened yet; the schema default.
pub const PENDING: &str = "Pending";
/// The provider has not started.
pub const PENDING_PROGRAMMING: &str = "PendingProgramming";
/// The provider has started.
pub const PROGRAMMING_IN_PROGRESS: &str = "ProgrammingInProgress";
/// The provider is done. Also networking kinds.
pub const PROGRAMMED: &str = "Programmed";
/// Quota was refused.
pub const PENDING_QUOTA: &str = "PendingQuota";
/// The image is not available.
pub const IMAGE_UNAVAILABLE: &str = "ImageUnavailable";
/// The instance keeps exiting.
pub const INSTANCE_CRASHING: &str = "InstanceCrashing";
/// The provider cannot run the spec.
pub const CONFIGURATION_ERROR: &str = "ConfigurationError";
/// The cell has no space for the instance.
pub const INSUFFICIENT_CAPACITY: &str = "InsufficientCapacity";
/// Every container of the instance is ready. Instance ContainersReady.
pub const CONTAINERS_READY: &str = "ContainersReady";
/// A probe of a container has not succeeded, or fails. Instance ContainersReady.
pub const CONTAINERS_NOT_READY: &str = "ContainersNotReady";
/// It runs.
pub const RUNNING: &str = "Running";
/// It runs; the reason that later providers write.
pub const AVAILABLE: &str = "Available";
/// It is being started.
pub const STARTING: &str = "Starting";
/// It is being stopped.
pub const STOPPING: &str = "Stopping";
/// It is stopped.
pub const STOPPED: &str = "Stopped";
/// It is suspended.
pub const SUSPENDED: &str = "Suspended";
/// The instance has scheduling gates, and no more specific reason applies.
pub const SCHEDULING_GATES_PRESENT: &str = "SchedulingGatesPresent";
/// The instance has scheduling gates because a network binding was refused.
pub const NETWORK_FAILED_TO_CREATE: &str = "NetworkFailedToCreate";

// === Instance: QuotaGranted; ResourceClaim: Granted ===

/// The claim does not exist or is not decided; the schema default.
pub const PENDING_EVALUATION: &str = "PendingEvaluation";
/// The claim is granted.
pub const QUOTA_AVAILABLE: &str = "QuotaAvailable";
/// Quota is not enforced in this installation.
pub const QUOTA_DISABLED: &str = "QuotaDisabled";
/// The claim was refused because it is invalid.
pub const VALIDATION_FAILED: &str = "ValidationFailed";
/// The claim is pending; the project may have no budget for it.
pub const QUOTA_NO_BUDGET: &str = "QuotaNoBudget";
/// The project's plane cannot be reached.
pub const QUOTA_BACKEND_UNAVAILABLE: &str = "QuotaBackendUnavailable";
/// The project does not exist.
pub const QUOTA_PROJECT_NOT_FOUND: &str = "QuotaProjectNotFound";
/// The namespace does not exist in the project.
pub const QUOTA_NAMESPACE_NOT_FOUND: &str = "QuotaNamespaceNotFound";
/// The registration of the resource does not match the claim.
pub const QUOTA_MISCONFIGURED: &str = "QuotaMisconfigured";
/// The project of the instance's namespace cannot be determined.
pub const QUOTA_PROJECT_ID_UNRESOLVABLE: &str = "QuotaProjectIDUnresolvable";

// === ReferencedDataReady ===

/// The references are being looked up.
pub const RESOLVING: &str = "Resolving";
/// A config map or secret does not exist.
pub const SOURCE_NOT_FOUND: &str = "SourceNotFound";
/// A config map or secret lacks a key that a container or a volume needs.
pub const KEY_NOT_FOUND: &str = "KeyNotFound";
/// A config map or secret is too large to propagate.
pub const SOURCE_TOO_LARGE: &str = "SourceTooLarge";
/// A config map or secret may not be read.
pub const SOURCE_UNAUTHORIZED: &str = "SourceUnauthorized";
/// The name of a config map or secret is too long to propagate it.
pub const SOURCE_NAME_TOO_LONG: &str = "SourceNameTooLong";
/// All referenced data is in the cell. Networking kinds use it too.
pub const READY: &str = "Ready";

// === Kinds of other projects ===

/// NetworkBinding: its context is ready.
pub const NETWORK_CONTEXT_READY: &str = "NetworkContextReady";
/// NetworkBinding: its context is not ready yet.
pub const NETWORK_CONTEXT_NOT_READY: &str = "NetworkContextNotReady";
/// NetworkBinding: the location is not offered to the project.
pub const LOCATION_NOT_AVAILABLE: &str = "LocationNotAvailable";
/// NetworkBinding: the project of the namespace is not known.
pub const PROJECT_UNRESOLVED: &str = "ProjectUnresolved";
/// SubnetClaim: its subnet is ready.
pub const SUBNET_READY: &str = "SubnetReady";
/// ResourceGrant: it is in effect.
pub const GRANT_ACTIVE: &str = "GrantActive";
/// ResourceGrant: it is not in effect yet.
pub const GRANT_PENDING: &str = "GrantPending";
/// ResourceRegistration: it is in effect.
pub const REGISTRATION_ACTIVE: &str = "RegistrationActive";
/// ResourceRegistration: it is not in effect yet.
pub const REGISTRATION_PENDING: &str = "RegistrationPending";

/// Project ResourceCleanup: deletion of the objects on the plane has been requested.
pub const CLEANUP_STARTED: &str = "CleanupStarted";
/// Project ResourceCleanup: objects with finalizers are still on the plane.
pub const CLEANUP_AWAITING_COMPLETION: &str = "CleanupAwaitingCompletion";
/// Project ResourceCleanup: the plane is empty.
pub const CLEANUP_COMPLETE: &str = "CleanupComplete";
/// Location, LocationBinding: a cell serves the city.
pub const CELL_FOUND: &str = "CellFound";

/// Reasons of Karmada.
pub mod karmada {
    /// Cluster Ready: it responds and is healthy.
    pub const CLUSTER_READY: &str = "ClusterReady";
    /// Cluster Ready: it responds and is not healthy.
    pub const CLUSTER_NOT_READY: &str = "ClusterNotReady";
    /// Cluster Ready: it does not respond.
    pub const CLUSTER_NOT_REACHABLE: &str = "ClusterNotReachable";
    /// Cluster Ready: its agent has not reported.
    pub const CLUSTER_STATUS_UNKNOWN: &str = "ClusterStatusUnknown";
    /// Cluster Ready: it responds, and its status cannot be read.
    pub const STATUS_COLLECTION_FAILED: &str = "StatusCollectionFailed";
    /// Work Applied: the member has the object.
    pub const APPLIED_SUCCESSFUL: &str = "AppliedSuccessful";
    /// Work Applied: the member does not have the object.
    pub const APPLIED_FAILED: &str = "AppliedFailed";
    /// Work Dispatching: a policy suspends the propagation of changes.
    pub const SUSPEND_DISPATCHING: &str = "SuspendDispatching";
}
