//! Ranking of blocking reasons: which of several causes a condition reports.
//!
//! A condition has one reason. A cause that waiting does not resolve outranks one that waiting resolves: a
//! network that does not exist outranks exhausted quota, and quota outranks instances that are still
//! starting. Instances, deployments and workloads use the same table. It includes the reasons that other
//! versions write.

use polis_api::reasons::*;

/// The rank of a reason; the highest is reported. A reason outside the table has rank 0.
pub fn rank(reason: &str) -> u8 {
    match reason {
        CONTAINERS_NOT_READY => 1,
        PROVISIONING_INSTANCES | "InstancesProvisioning" | "Provisioning" => 1,
        PROVISIONING_NETWORK | "NetworkProvisioning" | NO_MATCHING_LOCATION => 2,
        QUOTA_NOT_GRANTED | PENDING_QUOTA => 3,
        REFERENCED_DATA_NOT_READY | AWAITING_PROPAGATION | RESOLVING => 4,
        SOURCE_NOT_FOUND | KEY_NOT_FOUND | SOURCE_TOO_LARGE | SOURCE_UNAUTHORIZED | SOURCE_NAME_TOO_LONG => 5,
        IMAGE_UNAVAILABLE | INSTANCE_CRASHING | CONFIGURATION_ERROR | INSUFFICIENT_CAPACITY => 5,
        NETWORK_NOT_FOUND | NO_MATCHING_LOCATIONS => 6,
        NETWORK_FAILED_TO_CREATE | "RuntimeClassNotServed" => 7,
        CITY_CODE_MISMATCH | "LocationMismatch" | "AmbiguousServingLocation" => 8,
        _ => 0,
    }
}

/// Whether waiting does not resolve the state of this reason: a user or the platform operator has to act.
/// `polis why` calls the same reasons blocked.
pub fn needs_action(reason: &str) -> bool {
    matches!(
        reason,
        NETWORK_NOT_FOUND
            | NO_MATCHING_LOCATIONS
            | LOCATION_LOST
            | NO_MATCHING_LOCATION
            | HUB_NAMESPACE_TAKEN
            | HUB_NAMESPACE_TERMINATING
            | HUB_REFUSED
            | CELL_UNREACHABLE
            | CELL_SILENT
            | HUB_UNREACHABLE
            | PROGRESS_DEADLINE_EXCEEDED
            | CITY_CODE_MISMATCH
            | NETWORK_FAILED_TO_CREATE
            | IMAGE_UNAVAILABLE
            | INSTANCE_CRASHING
            | CONFIGURATION_ERROR
            | INSUFFICIENT_CAPACITY
            | "LocationMismatch"
            | "AmbiguousServingLocation"
            | "RuntimeClassNotServed"
    ) || is_quota_denial(reason)
        || matches!(
            reason,
            SOURCE_NOT_FOUND | KEY_NOT_FOUND | SOURCE_TOO_LARGE | SOURCE_UNAUTHORIZED | SOURCE_NAME_TOO_LONG
        )
        || matches!(reason, LOCATION_NOT_AVAILABLE | PROJECT_UNRESOLVED)
        || matches!(
            reason,
            karmada::CLUSTER_NOT_READY
                | karmada::CLUSTER_NOT_REACHABLE
                | karmada::CLUSTER_STATUS_UNKNOWN
                | karmada::STATUS_COLLECTION_FAILED
                | karmada::APPLIED_FAILED
                | karmada::SUSPEND_DISPATCHING
        )
}

fn is_quota_denial(reason: &str) -> bool {
    matches!(
        reason,
        QUOTA_NOT_GRANTED
            | PENDING_QUOTA
            | QUOTA_EXCEEDED
            | VALIDATION_FAILED
            | QUOTA_NO_BUDGET
            | QUOTA_PROJECT_NOT_FOUND
            | QUOTA_NAMESPACE_NOT_FOUND
            | QUOTA_MISCONFIGURED
            | QUOTA_PROJECT_ID_UNRESOLVABLE
    )
}

/// The cause of the highest rank; the first of equals, so the caller sorts the causes.
pub fn worst<T>(causes: impl IntoIterator<Item = T>, reason: impl Fn(&T) -> &str) -> Option<T> {
    let mut worst: Option<T> = None;
    for cause in causes {
        if worst.as_ref().is_none_or(|current| rank(reason(&cause)) > rank(reason(current))) {
            worst = Some(cause);
        }
    }
    worst
}

/// Reason of a placement that names no city that the project may use.
pub const NO_MATCHING_LOCATIONS: &str = "NoMatchingLocations";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_waiting_does_not_resolve_ranks_higher() {
        let ascending = [
            "NoAvailableDeployments",
            "ProvisioningInstances",
            "ProvisioningNetwork",
            "QuotaNotGranted",
            "ReferencedDataNotReady",
            "SourceNotFound",
            "NetworkNotFound",
            "NetworkFailedToCreate",
            "CityCodeMismatch",
        ];
        for pair in ascending.windows(2) {
            assert!(rank(pair[0]) < rank(pair[1]), "{pair:?}");
        }
    }

    #[test]
    fn both_names_of_one_cause_have_the_same_rank() {
        for (ours, theirs) in [
            ("ProvisioningInstances", "InstancesProvisioning"),
            ("ProvisioningNetwork", "NetworkProvisioning"),
            ("CityCodeMismatch", "LocationMismatch"),
            ("QuotaNotGranted", "PendingQuota"),
        ] {
            assert_eq!(rank(ours), rank(theirs));
        }
    }

    #[test]
    fn the_first_of_equals_is_reported() {
        let causes = [("a", "Unranked"), ("b", "QuotaNotGranted"), ("c", "PendingQuota")];
        assert_eq!(worst(causes, |cause| cause.1), Some(("b", "QuotaNotGranted")));
        assert_eq!(worst(Vec::<&str>::new(), |cause| cause), None);
    }
}
