//! Asking a project's plane whether somebody may use networks.

use std::time::Duration;

use futures::future::join_all;
use polis_api::k8s_openapi::api::authentication::v1::UserInfo;
use polis_api::k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use polis_api::networking;
use polis_core::admission::{Answer, Use};
use polis_engine::Plane;

/// An answer that takes longer is none. An API server waits ten seconds for a webhook; this leaves time to say so.
const WITHIN: Duration = Duration::from_secs(7);

/// One review for each use, all at once.
pub(crate) async fn ask(plane: &Plane, user: &UserInfo, uses: Vec<Use>) -> Vec<(Use, Answer)> {
    join_all(uses.into_iter().map(|one| async move {
        let review = question(user, &one);
        let answer = match tokio::time::timeout(WITHIN, plane.create(&review)).await {
            Ok(Ok(review)) => read(review.status),
            Ok(Err(error)) => Answer::Failed(error.to_string()),
            Err(_) => Answer::Failed(format!("no answer within {} s", WITHIN.as_secs())),
        };
        if let Answer::Failed(why) = &answer {
            tracing::warn!(plane = %plane.name(), network = one.name, why, "failed to ask for access");
        }
        (one, answer)
    }))
    .await
}

/// May this user use this network? Everything that is known of the user goes along: the platform's authoriser finds the
/// policies of a project by the extras, and denies without them.
fn question(user: &UserInfo, one: &Use) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some("use".to_owned()),
                group: Some(networking::GROUP.to_owned()),
                version: Some("v1alpha".to_owned()),
                resource: Some("networks".to_owned()),
                namespace: Some(one.namespace.clone()),
                name: Some(one.name.clone()),
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

/// A no with an error beside it is not a decision, unless it says so.
fn read(status: Option<SubjectAccessReviewStatus>) -> Answer {
    let Some(status) = status else { return Answer::Failed("the answer says nothing".to_owned()) };
    let trouble = status.evaluation_error.filter(|error| !error.is_empty());
    match (status.allowed, status.denied == Some(true), trouble) {
        (true, _, _) => Answer::Allowed,
        (false, false, Some(trouble)) => Answer::Failed(trouble),
        (false, ..) => Answer::Denied(status.reason.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn everything_that_is_known_of_the_user_goes_along() {
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
        let one = Use { namespace: "nets".into(), name: "blue".into(), at: vec![] };
        let spec = question(&user, &one).spec;
        assert_eq!((spec.user, spec.uid, spec.groups), (user.username, user.uid, user.groups));
        assert_eq!(spec.extra, Some(extra));
        let asked = spec.resource_attributes.unwrap();
        assert_eq!((asked.verb.as_deref(), asked.resource.as_deref()), (Some("use"), Some("networks")));
        assert_eq!((asked.namespace.as_deref(), asked.name.as_deref()), (Some("nets"), Some("blue")));
    }

    #[test]
    fn a_no_is_told_from_no_answer() {
        let of = |allowed, denied, error: Option<&str>| {
            let reason = Some("because".to_owned());
            let error = error.map(str::to_owned);
            read(Some(SubjectAccessReviewStatus { allowed, denied, evaluation_error: error, reason }))
        };
        assert_eq!(of(true, None, Some("noise")), Answer::Allowed);
        assert_eq!(of(false, None, None), Answer::Denied("because".into()));
        assert_eq!(of(false, Some(true), Some("noise")), Answer::Denied("because".into()));
        assert_eq!(of(false, None, Some("away")), Answer::Failed("away".into()));
        assert!(matches!(read(None), Answer::Failed(_)));
    }
}
