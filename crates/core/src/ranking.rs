//! Ranking of blocking reasons: which of several causes a person should read first.
//!
//! A condition has room for one reason. The cause that will not go away by waiting wins over the one that will: a
//! network that does not exist over quota that is used up, quota over instances that are still starting. The same
//! table serves instances, deployments and workloads, and knows the names that other versions use.

use polis_api::reasons::*;

/// How bad a reason is; higher wins. A reason that nobody ranked is 0.
pub fn rank(reason: &str) -> u8 {
    match reason {
        PROVISIONING_INSTANCES | "InstancesProvisioning" | "Provisioning" => 1,
        PROVISIONING_NETWORK | "NetworkProvisioning" | NO_MATCHING_LOCATION => 2,
        QUOTA_NOT_GRANTED | PENDING_QUOTA => 3,
        REFERENCED_DATA_NOT_READY | AWAITING_PROPAGATION | RESOLVING => 4,
        SOURCE_NOT_FOUND | SOURCE_TOO_LARGE | SOURCE_UNAUTHORIZED | SOURCE_NAME_TOO_LONG => 5,
        IMAGE_UNAVAILABLE | INSTANCE_CRASHING | CONFIGURATION_ERROR => 5,
        NETWORK_NOT_FOUND | NO_MATCHING_LOCATIONS => 6,
        NETWORK_FAILED_TO_CREATE | "RuntimeClassNotServed" => 7,
        CITY_CODE_MISMATCH | "LocationMismatch" | "AmbiguousServingLocation" => 8,
        _ => 0,
    }
}

/// The worst of several causes; of equals the first, so sort what you hand in.
pub fn worst<T>(causes: impl IntoIterator<Item = T>, reason: impl Fn(&T) -> &str) -> Option<T> {
    let mut worst: Option<T> = None;
    for cause in causes {
        if worst.as_ref().is_none_or(|standing| rank(reason(&cause)) > rank(reason(standing))) {
            worst = Some(cause);
        }
    }
    worst
}

/// A placement resolves to no city that the project may use.
pub const NO_MATCHING_LOCATIONS: &str = "NoMatchingLocations";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waiting_does_not_cure_wins() {
        let ladder = [
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
        for pair in ladder.windows(2) {
            assert!(rank(pair[0]) < rank(pair[1]), "{pair:?}");
        }
    }

    #[test]
    fn both_names_of_one_cause_rank_alike() {
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
    fn the_first_of_equals_wins() {
        let causes = [("a", "Unheard"), ("b", "QuotaNotGranted"), ("c", "PendingQuota")];
        assert_eq!(worst(causes, |cause| cause.1), Some(("b", "QuotaNotGranted")));
        assert_eq!(worst(Vec::<&str>::new(), |cause| cause), None);
    }
}
