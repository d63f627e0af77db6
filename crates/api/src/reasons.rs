//! Condition reasons. One word may serve several conditions; the comments say which.

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
/// The project may no longer use a city, and what runs there goes on. Also the reason of the event.
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
/// Config maps or secrets that the template refers to have not arrived.
pub const REFERENCED_DATA_NOT_READY: &str = "ReferencedDataNotReady";

// === WorkloadDeployment: ReplicasReady ===

/// At least one instance was refused quota. Also Instance QuotaGranted and ResourceClaim Granted.
pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
/// Nothing holds the replicas back.
pub const REPLICAS_AVAILABLE: &str = "ReplicasAvailable";
/// Referenced data is on its way.
pub const AWAITING_PROPAGATION: &str = "AwaitingPropagation";

// === Instance: Programmed, Running, Available, Ready ===

/// Nothing has happened yet; the schema default.
pub const PENDING: &str = "Pending";
/// The provider has not begun.
pub const PENDING_PROGRAMMING: &str = "PendingProgramming";
/// The provider has begun.
pub const PROGRAMMING_IN_PROGRESS: &str = "ProgrammingInProgress";
/// The provider is done. Also networking kinds.
pub const PROGRAMMED: &str = "Programmed";
/// Quota was refused.
pub const PENDING_QUOTA: &str = "PendingQuota";
/// The image cannot be had.
pub const IMAGE_UNAVAILABLE: &str = "ImageUnavailable";
/// The instance ends again and again.
pub const INSTANCE_CRASHING: &str = "InstanceCrashing";
/// The spec cannot be run.
pub const CONFIGURATION_ERROR: &str = "ConfigurationError";
/// It runs.
pub const RUNNING: &str = "Running";
/// It runs, in the words of later providers.
pub const AVAILABLE: &str = "Available";
/// It is being started.
pub const STARTING: &str = "Starting";
/// It is being stopped.
pub const STOPPING: &str = "Stopping";
/// It is stopped.
pub const STOPPED: &str = "Stopped";
/// It is suspended.
pub const SUSPENDED: &str = "Suspended";
/// Gates are left, and nothing more specific is known.
pub const SCHEDULING_GATES_PRESENT: &str = "SchedulingGatesPresent";
/// Gates are left because a network binding was refused.
pub const NETWORK_FAILED_TO_CREATE: &str = "NetworkFailedToCreate";

// === Instance: QuotaGranted; ResourceClaim: Granted ===

/// The claim does not exist or is not decided; the schema default.
pub const PENDING_EVALUATION: &str = "PendingEvaluation";
/// The claim is granted.
pub const QUOTA_AVAILABLE: &str = "QuotaAvailable";
/// No quota is kept in this installation.
pub const QUOTA_DISABLED: &str = "QuotaDisabled";
/// The claim was refused because it is wrong.
pub const VALIDATION_FAILED: &str = "ValidationFailed";
/// The claim exists and nobody has a budget for it.
pub const QUOTA_NO_BUDGET: &str = "QuotaNoBudget";
/// The project's plane cannot be reached.
pub const QUOTA_BACKEND_UNAVAILABLE: &str = "QuotaBackendUnavailable";
/// The project does not exist.
pub const QUOTA_PROJECT_NOT_FOUND: &str = "QuotaProjectNotFound";
/// The namespace does not exist in the project.
pub const QUOTA_NAMESPACE_NOT_FOUND: &str = "QuotaNamespaceNotFound";
/// The registration of the resource does not fit the claim.
pub const QUOTA_MISCONFIGURED: &str = "QuotaMisconfigured";
/// The namespace of the instance does not say which project it belongs to.
pub const QUOTA_PROJECT_ID_UNRESOLVABLE: &str = "QuotaProjectIDUnresolvable";

// === ReferencedDataReady ===

/// The references are being looked up.
pub const RESOLVING: &str = "Resolving";
/// A config map or secret does not exist.
pub const SOURCE_NOT_FOUND: &str = "SourceNotFound";
/// A config map or secret is too large to travel.
pub const SOURCE_TOO_LARGE: &str = "SourceTooLarge";
/// A config map or secret may not be read.
pub const SOURCE_UNAUTHORIZED: &str = "SourceUnauthorized";
/// A config map or secret has a name too long to travel.
pub const SOURCE_NAME_TOO_LONG: &str = "SourceNameTooLong";
/// Done. Also the general word for done on networking kinds.
pub const READY: &str = "Ready";

// === Kinds of others ===

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
/// ResourceGrant: it counts.
pub const GRANT_ACTIVE: &str = "GrantActive";
/// ResourceGrant: it does not count yet.
pub const GRANT_PENDING: &str = "GrantPending";
/// ResourceRegistration: it counts.
pub const REGISTRATION_ACTIVE: &str = "RegistrationActive";
/// ResourceRegistration: it does not count yet.
pub const REGISTRATION_PENDING: &str = "RegistrationPending";

/// Project ResourceCleanup: what is on the plane has been told to go.
pub const CLEANUP_STARTED: &str = "CleanupStarted";
/// Project ResourceCleanup: something is kept by its finalizers.
pub const CLEANUP_AWAITING_COMPLETION: &str = "CleanupAwaitingCompletion";
/// Project ResourceCleanup: the plane is empty.
pub const CLEANUP_COMPLETE: &str = "CleanupComplete";
/// Location, LocationBinding: a cell serves the city.
pub const CELL_FOUND: &str = "CellFound";

/// Reasons of Karmada.
pub mod karmada {
    /// Cluster Ready: it answers and is well.
    pub const CLUSTER_READY: &str = "ClusterReady";
    /// Cluster Ready: it answers and is not well.
    pub const CLUSTER_NOT_READY: &str = "ClusterNotReady";
    /// Cluster Ready: it does not answer.
    pub const CLUSTER_NOT_REACHABLE: &str = "ClusterNotReachable";
    /// Cluster Ready: its agent has not been heard of.
    pub const CLUSTER_STATUS_UNKNOWN: &str = "ClusterStatusUnknown";
    /// Cluster Ready: it answers and its state cannot be read.
    pub const STATUS_COLLECTION_FAILED: &str = "StatusCollectionFailed";
    /// Work Applied: the member has the object.
    pub const APPLIED_SUCCESSFUL: &str = "AppliedSuccessful";
    /// Work Applied: the member does not have the object.
    pub const APPLIED_FAILED: &str = "AppliedFailed";
    /// Work Dispatching: a policy holds changes back.
    pub const SUSPEND_DISPATCHING: &str = "SuspendDispatching";
}
