//! Reasons of the events that Polis records. Each comment names the object that the event is about.
//!
//! An event about a changed condition has the reason of the condition; see [`crate::reasons`].

// === Workload ===

/// A WorkloadDeployment was created for a city.
pub const DEPLOYMENT_CREATED: &str = "DeploymentCreated";
/// A WorkloadDeployment was deleted, because no placement names its city any more.
pub const DEPLOYMENT_REMOVED: &str = "DeploymentRemoved";
/// A WorkloadDeployment of another owner has the name that the workload needs.
pub const DEPLOYMENT_NOT_OURS: &str = "DeploymentNotOurs";

// === WorkloadDeployment of a project ===

/// The city code is not a valid label value.
pub const CITY_INVALID: &str = "CityInvalid";
/// Another cell of the city runs the deployment now.
pub const DEPLOYMENT_MOVED: &str = "DeploymentMoved";
/// Two cities share the name of a propagation policy.
pub const CITY_CONTESTED: &str = "CityContested";
/// The annotation of the deployment names a wrong hub namespace.
pub const RECORD_CONTRADICTED: &str = "RecordContradicted";
/// The hub namespace had no labels of its project; the federator has written them.
pub const HUB_NAMESPACE_RELABELLED: &str = "HubNamespaceRelabelled";
/// The hub copy of a deleted deployment cannot be deleted.
pub const HUB_CLEANUP_FAILED: &str = "HubCleanupFailed";
/// The deletion of the deployment no longer waits for a cell, by the annotation `abandon` or because the
/// cell left the federation. Instances may still run there.
pub const CELL_ABANDONED: &str = "CellAbandoned";
/// The cell has not confirmed in time that the instances have ended.
pub const TEARDOWN_UNCONFIRMED: &str = "TeardownUnconfirmed";

// === Instance of a project ===

/// An Instance that is not a projection has the name of one.
pub const PROJECTION_BLOCKED: &str = "ProjectionBlocked";

// === Objects of the hub ===

/// Cluster: its city label was removed or changed.
pub const CITY_LABEL_LOST: &str = "CityLabelLost";
/// Namespace, WorkloadDeployment, Instance, PropagationPolicy: its project cannot be determined.
pub const PROJECT_UNKNOWN: &str = "ProjectUnknown";

/// WorkloadDeployment: its project has no deployment of this name, so the copy is withdrawn.
pub const SOURCE_GONE: &str = "SourceGone";

// === WorkloadDeployment of a cell ===

/// The hub shows an older spec than the cell has acted on; the cell keeps its instances.
pub const SPEC_OUTDATED: &str = "SpecOutdated";

/// An Instance was created.
pub const INSTANCE_CREATED: &str = "InstanceCreated";
/// An Instance could not be created.
pub const INSTANCE_NOT_CREATED: &str = "InstanceNotCreated";
/// An Instance was deleted.
pub const INSTANCE_DELETED: &str = "InstanceDeleted";
/// An Instance of another owner has the name that the deployment needs.
pub const INSTANCE_NOT_OURS: &str = "InstanceNotOurs";
/// The name of an Instance would be too long.
pub const NAME_TOO_LONG: &str = "NameTooLong";

// === Instance of a cell ===

/// The Instance cannot be copied to the hub, because a reference cannot be resolved or its name is taken.
pub const NOT_SHOWN_ON_HUB: &str = "NotShownOnHub";
/// The hub has had no deployment for the Instance for a minute; the Instance keeps running.
pub const UNKNOWN_ON_HUB: &str = "UnknownOnHub";
/// The hub rejects the copy of the Instance.
pub const HUB_REFUSED: &str = "HubRefused";
/// The hub does not respond, and the deletion of the Instance waits for it.
pub const HUB_UNREACHABLE: &str = "HubUnreachable";
/// The project does not respond, and the deletion of the Instance waits for it.
pub const QUOTA_UNREACHABLE: &str = "QuotaUnreachable";
/// The Instance was deleted without its quota claim.
pub const QUOTA_CLAIM_ORPHANED: &str = "QuotaClaimOrphaned";
