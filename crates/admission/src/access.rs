//! Access reviews: asks a project's plane whether a user may use networks.

use std::time::Duration;

use futures::future::join_all;
use polis_api::k8s_openapi::api::authentication::v1::UserInfo;
use polis_api::k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use polis_api::networking;
use polis_core::admission::{NetworkAccess, NetworkUse};
use polis_engine::Plane;

/// Timeout of one access review. An API server waits ten seconds for a webhook; this leaves time to return
/// the error.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(7);

/// Creates one SubjectAccessReview per network, concurrently.
pub(crate) async fn review_access(
    plane: &Plane,
    user: &UserInfo,
    uses: Vec<NetworkUse>,
) -> Vec<(NetworkUse, NetworkAccess)> {
    join_all(uses.into_iter().map(|network| async move {
        let review = access_review(user, &network);
        let access = match tokio::time::timeout(REVIEW_TIMEOUT, plane.create(&review)).await {
            Ok(Ok(review)) => decision(review.status),
            Ok(Err(error)) => NetworkAccess::Failed(error.to_string()),
            Err(_) => NetworkAccess::Failed(format!("no response within {} s", REVIEW_TIMEOUT.as_secs())),
        };
        if let NetworkAccess::Failed(why) = &access {
            tracing::warn!(plane = %plane.name(), network = network.name, why, "failed to review access to the network");
        }
        (network, access)
    }))
    .await
}

/// The access review for verb `use`. It includes all user info: the platform's authorizer finds the policies
/// of a project by the extras, and denies without them.
fn access_review(user: &UserInfo, network: &NetworkUse) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some("use".to_owned()),
                group: Some(networking::GROUP.to_owned()),
                version: Some("v1alpha".to_owned()),
                resource: Some("networks".to_owned()),
                namespace: Some(network.namespace.clone()),
                name: Some(network.name.clone()),
                ..ResourceAttributes::default()
            }),
            user: user.username.clone(),
            groups: user.groups.clone(),
            uid: user.uid.clone(),
            extra: user.extra.clone(),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

/// The decision in a review status. `allowed: false` with an evaluation error is a failure, unless `denied`
/// is set.
fn decision(status: Option<SubjectAccessReviewStatus>) -> NetworkAccess {
    let Some(status) = status else {
        return NetworkAccess::Failed("the SubjectAccessReview has no status".to_owned());
    };
    let error = status.evaluation_error.filter(|error| !error.is_empty());
    match (status.allowed, status.denied == Some(true), error) {
        (true, _, _) => NetworkAccess::Allowed,
        (false, false, Some(error)) => NetworkAccess::Failed(error),
        (false, ..) => NetworkAccess::Denied(status.reason.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn an_access_review_includes_all_user_info() {
        let extra = BTreeMap::from([
            ("a".to_owned(), vec!["1".to_owned(), "2".to_owned()]),
            ("b".to_owned(), vec![]),
        ]);
        let user = UserInfo {
            username: Some("ada".into()),
            uid: Some("u-1".into()),
            groups: Some(vec!["builders".into()]),
            extra: Some(extra.clone()),
        };
        let network = NetworkUse { namespace: "nets".into(), name: "blue".into(), at: vec![] };
        let spec = access_review(&user, &network).spec;
        assert_eq!((spec.user, spec.uid, spec.groups), (user.username, user.uid, user.groups));
        assert_eq!(spec.extra, Some(extra));
        let attributes = spec.resource_attributes.unwrap();
        assert_eq!(
            (attributes.verb.as_deref(), attributes.resource.as_deref()),
            (Some("use"), Some("networks"))
        );
        assert_eq!(
            (attributes.namespace.as_deref(), attributes.name.as_deref()),
            (Some("nets"), Some("blue"))
        );
    }

    #[test]
    fn a_denial_is_distinguished_from_a_failed_review() {
        let of = |allowed, denied, error: Option<&str>| {
            let reason = Some("because".to_owned());
            let error = error.map(str::to_owned);
            decision(Some(SubjectAccessReviewStatus { allowed, denied, evaluation_error: error, reason }))
        };
        assert_eq!(of(true, None, Some("noise")), NetworkAccess::Allowed);
        assert_eq!(of(false, None, None), NetworkAccess::Denied("because".into()));
        assert_eq!(of(false, Some(true), Some("noise")), NetworkAccess::Denied("because".into()));
        assert_eq!(of(false, None, Some("unreachable")), NetworkAccess::Failed("unreachable".into()));
        assert!(matches!(decision(None), NetworkAccess::Failed(_)));
    }
}
