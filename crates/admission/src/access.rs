//! Access reviews: asks a project's plane whether a user may use networks, and read config maps and secrets.

use std::time::Duration;

use futures::future::join_all;
use polis_api::k8s_openapi::api::authentication::v1::UserInfo;
use polis_api::k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use polis_api::networking;
use polis_core::admission::{AccessDecision, CheckedReference, NetworkUse};
use polis_core::referenced_data::{DataKind, Reference, SourceFacts};
use polis_engine::Plane;

/// Timeout of one access review. An API server waits ten seconds for a webhook; this leaves time to return
/// the error.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(7);

/// Creates one SubjectAccessReview per network, concurrently.
pub(crate) async fn review_access(
    plane: &Plane,
    user: &UserInfo,
    uses: Vec<NetworkUse>,
) -> Vec<(NetworkUse, AccessDecision)> {
    join_all(uses.into_iter().map(|network| async move {
        let access = decide(plane, user, network_attributes(&network)).await;
        (network, access)
    }))
    .await
}

/// Checks the sources of a workload in a namespace: creates a SubjectAccessReview for each new one, and reads
/// the sizes of all. Nothing is read of a source that the user may not read.
pub(crate) async fn check_references(
    plane: &Plane,
    user: &UserInfo,
    namespace: &str,
    all: Vec<Reference>,
    new: &[Reference],
) -> Vec<CheckedReference> {
    join_all(all.into_iter().map(|reference| async move {
        let access = match new.contains(&reference) {
            true => Some(decide(plane, user, data_attributes(namespace, &reference)).await),
            false => None,
        };
        let readable = matches!(access, None | Some(AccessDecision::Allowed));
        let size = if readable { size(plane, namespace, &reference).await } else { None };
        CheckedReference { reference, access, size }
    }))
    .await
}

/// The size of a source; none if it does not exist, or cannot be read now: the resolver reports that.
async fn size(plane: &Plane, namespace: &str, reference: &Reference) -> Option<usize> {
    let name = (namespace, reference.name.as_str());
    let read = async {
        Ok::<_, polis_engine::Error>(match reference.kind {
            DataKind::ConfigMap => {
                plane.uncached().get::<ConfigMap>(name).await?.map(|it| SourceFacts::of(&it))
            }
            DataKind::Secret => plane.uncached().get::<Secret>(name).await?.map(|it| SourceFacts::of(&it)),
        })
    };
    let facts = tokio::time::timeout(REVIEW_TIMEOUT, read).await.ok()?.ok()?;
    facts.map(|facts| facts.size)
}

/// The decision of the plane's authorizer.
async fn decide(plane: &Plane, user: &UserInfo, attributes: ResourceAttributes) -> AccessDecision {
    let about = format!(
        "{} {}",
        attributes.resource.as_deref().unwrap_or_default(),
        attributes.name.as_deref().unwrap_or_default()
    );
    let review = access_review(user, attributes);
    let access = match tokio::time::timeout(REVIEW_TIMEOUT, plane.create(&review)).await {
        Ok(Ok(review)) => decision(review.status),
        Ok(Err(error)) => AccessDecision::Failed(error.to_string()),
        Err(_) => AccessDecision::Failed(format!("no response within {} s", REVIEW_TIMEOUT.as_secs())),
    };
    if let AccessDecision::Failed(why) = &access {
        tracing::warn!(plane = %plane.name(), about, why, "failed to review the access of a user");
    }
    access
}

fn network_attributes(network: &NetworkUse) -> ResourceAttributes {
    ResourceAttributes {
        verb: Some("use".to_owned()),
        group: Some(networking::GROUP.to_owned()),
        version: Some("v1alpha".to_owned()),
        resource: Some("networks".to_owned()),
        namespace: Some(network.namespace.clone()),
        name: Some(network.name.clone()),
        ..ResourceAttributes::default()
    }
}

fn data_attributes(namespace: &str, reference: &Reference) -> ResourceAttributes {
    ResourceAttributes {
        verb: Some("get".to_owned()),
        group: Some(String::new()),
        version: Some("v1".to_owned()),
        resource: Some(reference.kind.resource().to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(reference.name.clone()),
        ..ResourceAttributes::default()
    }
}

/// The access review for these attributes. It includes all user info: the platform's authorizer finds the
/// policies of a project by the extras, and denies without them.
fn access_review(user: &UserInfo, attributes: ResourceAttributes) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
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
fn decision(status: Option<SubjectAccessReviewStatus>) -> AccessDecision {
    let Some(status) = status else {
        return AccessDecision::Failed("the SubjectAccessReview has no status".to_owned());
    };
    let error = status.evaluation_error.filter(|error| !error.is_empty());
    match (status.allowed, status.denied == Some(true), error) {
        (true, _, _) => AccessDecision::Allowed,
        (false, false, Some(error)) => AccessDecision::Failed(error),
        (false, ..) => AccessDecision::Denied(status.reason.unwrap_or_default()),
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
        let spec = access_review(&user, network_attributes(&network)).spec;
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
        assert_eq!(of(true, None, Some("noise")), AccessDecision::Allowed);
        assert_eq!(of(false, None, None), AccessDecision::Denied("because".into()));
        assert_eq!(of(false, Some(true), Some("noise")), AccessDecision::Denied("because".into()));
        assert_eq!(of(false, None, Some("unreachable")), AccessDecision::Failed("unreachable".into()));
        assert!(matches!(decision(None), AccessDecision::Failed(_)));
    }
}
