//! Who may see metrics: asked of the cluster of the process, and remembered for a while.
//!
//! Two questions: whose token it is (TokenReview), and whether they may `get` the path (SubjectAccessReview). No answer is
//! no: it fails closed.

use std::collections::HashMap;
use std::time::Duration;

use http::HeaderValue;
use polis_api::k8s_openapi::api::authentication::v1::{
    TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo,
};
use polis_api::k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use polis_engine::Plane;
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::Instant;

/// The one path that there is.
pub(super) const PATH: &str = "/metrics";
/// An answer that takes longer is none; scrapers wait ten seconds.
const WITHIN: Duration = Duration::from_secs(7);
/// How long a yes and a no are remembered. A scraper comes every half minute or so, and a right that was taken away ends
/// within this time.
const REMEMBERED: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(10));
/// Tokens that are remembered; more than there are scrapers.
const TOKENS_MAX: usize = 64;
/// Questions under way at once: nobody outside can have us flood the API server.
const ASKING_MAX: usize = 4;

/// What comes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The metrics.
    Allowed,
    /// No token, or one that the cluster does not know.
    Stranger,
    /// This user may not.
    Refused(String),
    /// It could not be found out.
    Unsure,
}

/// Asks, and remembers.
pub(super) struct Access {
    own: Plane,
    /// By the hash of a token: the token itself is kept nowhere.
    known: Mutex<HashMap<[u8; 32], (Verdict, Instant)>>,
    asking: Semaphore,
}

impl Access {
    /// Asks this plane.
    pub(super) fn new(own: Plane) -> Self {
        Self { own, known: Mutex::default(), asking: Semaphore::new(ASKING_MAX) }
    }

    /// Judges a request by its header.
    pub(super) async fn judge(&self, authorization: Option<&HeaderValue>) -> Verdict {
        let Some(token) = bearer(authorization) else { return Verdict::Stranger };
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some((verdict, until)) = self.known.lock().await.get(&key)
            && Instant::now() < *until
        {
            return verdict.clone();
        }
        // Never closed.
        let Ok(_turn) = self.asking.acquire().await else { return Verdict::Unsure };
        let verdict = match tokio::time::timeout(WITHIN, self.ask(token)).await {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(why)) => {
                tracing::warn!(why, "failed to ask who scrapes; deploy/components/secure-metrics grants it");
                Verdict::Unsure
            }
            Err(_) => {
                tracing::warn!("failed to ask who scrapes: no answer within {} s", WITHIN.as_secs());
                Verdict::Unsure
            }
        };
        let for_how_long = match verdict {
            Verdict::Allowed => REMEMBERED.0,
            Verdict::Stranger | Verdict::Refused(_) => REMEMBERED.1,
            // Asked again next time.
            Verdict::Unsure => return verdict,
        };
        let mut known = self.known.lock().await;
        let now = Instant::now();
        known.retain(|_, (_, until)| now < *until);
        if known.len() >= TOKENS_MAX {
            known.clear();
        }
        known.insert(key, (verdict.clone(), now + for_how_long));
        verdict
    }

    async fn ask(&self, token: &str) -> Result<Verdict, String> {
        let spec = TokenReviewSpec { token: Some(token.to_owned()), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let review = self.own.create(&review).await.map_err(|error| error.to_string())?;
        let Some(user) = whose(review.status) else { return Ok(Verdict::Stranger) };
        let name = user.username.clone().unwrap_or_default();
        let review = self.own.create(&question(user)).await.map_err(|error| error.to_string())?;
        Ok(if is_allowed(review.status.as_ref()) { Verdict::Allowed } else { Verdict::Refused(name) })
    }
}

/// The token of an `Authorization` header.
fn bearer(header: Option<&HeaderValue>) -> Option<&str> {
    let (scheme, token) = header?.to_str().ok()?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Whose token it is. Nobody's if it is not said to be somebody's.
fn whose(status: Option<TokenReviewStatus>) -> Option<UserInfo> {
    let status = status?;
    let named = |user: &UserInfo| user.username.as_ref().is_some_and(|name| !name.is_empty());
    status.user.filter(|user| status.authenticated == Some(true) && named(user))
}

/// May this user get the metrics?
fn question(user: UserInfo) -> SubjectAccessReview {
    let asked = NonResourceAttributes { path: Some(PATH.to_owned()), verb: Some("get".to_owned()) };
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            non_resource_attributes: Some(asked),
            user: user.username,
            groups: user.groups,
            uid: user.uid,
            extra: user.extra,
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

fn is_allowed(status: Option<&SubjectAccessReviewStatus>) -> bool {
    status.is_some_and(|status| status.allowed && status.denied != Some(true))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use polis_api::k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
    use polis_api::k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
    use polis_api::kube::api::{Api, DeleteParams, PostParams};
    use polis_api::kube::{Client, core::ObjectMeta};
    use polis_apiserver::Server;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_is_read_from_its_header_and_nothing_else_is_one() {
        for (header, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Bearer ", None),
            ("Bearer", None),
            ("abc", None),
            ("Basic abc", None),
        ] {
            assert_eq!(bearer(Some(&HeaderValue::from_static(header))), token, "{header:?}");
        }
        assert_eq!(bearer(None), None);
        assert_eq!(bearer(Some(&HeaderValue::from_bytes(b"Bearer \xff").unwrap())), None);
    }

    #[test]
    fn a_token_is_somebodys_only_if_that_is_said() {
        let of = |authenticated, name: Option<&str>| {
            let user = name.map(|name| UserInfo { username: Some(name.to_owned()), ..UserInfo::default() });
            whose(Some(TokenReviewStatus { authenticated, user, ..TokenReviewStatus::default() }))
        };
        assert_eq!(of(Some(true), Some("ann")).unwrap().username.as_deref(), Some("ann"));
        for nobody in [of(Some(false), Some("ann")), of(None, Some("ann")), of(Some(true), None)] {
            assert_eq!(nobody, None);
        }
        assert_eq!(of(Some(true), Some("")), None);
        assert_eq!(whose(None), None);
    }

    #[test]
    fn everything_that_is_known_of_the_user_goes_along() {
        let user = UserInfo {
            username: Some("ann".into()),
            uid: Some("u-1".into()),
            groups: Some(vec!["scrapers".into()]),
            extra: Some(BTreeMap::from([("a".to_owned(), vec!["1".to_owned()])])),
        };
        let spec = question(user.clone()).spec;
        assert_eq!(
            (spec.user, spec.uid, spec.groups, spec.extra),
            (user.username, user.uid, user.groups, user.extra)
        );
        let asked = spec.non_resource_attributes.unwrap();
        assert_eq!((asked.path.as_deref(), asked.verb.as_deref()), (Some("/metrics"), Some("get")));
    }

    #[test]
    fn a_yes_is_needed_and_nothing_else_is_one() {
        let of = |allowed, denied| {
            is_allowed(Some(&SubjectAccessReviewStatus { allowed, denied, ..Default::default() }))
        };
        assert!(of(true, None) && of(true, Some(false)));
        assert!(!of(false, None) && !of(true, Some(true)) && !is_allowed(None));
    }

    fn read<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    /// A cluster with the account `scraper`, which may see metrics, and a token of it.
    async fn mk_cluster() -> (Server, String) {
        let server = Server::builder().build().await.unwrap();
        let client = Client::new(server.plane_service(""), "default");
        let mut space = Namespace::default();
        space.metadata.name = Some("watching".into());
        Api::all(client.clone()).create(&PostParams::default(), &space).await.unwrap();
        let account = ServiceAccount {
            metadata: ObjectMeta { name: Some("scraper".into()), ..ObjectMeta::default() },
            ..ServiceAccount::default()
        };
        let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "watching");
        accounts.create(&PostParams::default(), &account).await.unwrap();
        let role: ClusterRole = read(json!({"metadata": {"name": "reader"},
            "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]}));
        Api::all(client.clone()).create(&PostParams::default(), &role).await.unwrap();
        let binding: ClusterRoleBinding = read(json!({"metadata": {"name": "reader"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
            "subjects": [{"kind": "ServiceAccount", "namespace": "watching", "name": "scraper"}]}));
        Api::all(client).create(&PostParams::default(), &binding).await.unwrap();
        let request = read(json!({"spec": {"audiences": [], "expirationSeconds": 3600}}));
        let issued =
            accounts.create_token_request("scraper", &PostParams::default(), &request).await.unwrap();
        (server, issued.status.unwrap().token)
    }

    fn header(token: &str) -> HeaderValue {
        HeaderValue::from_str(&format!("Bearer {token}")).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_yes_is_remembered_for_a_minute_and_a_right_that_is_taken_away_ends_then() {
        let (server, token) = mk_cluster().await;
        let own =
            Plane::in_process::<_, http_body_util::Full<bytes::Bytes>, _>("own", server.plane_service(""));
        let access = Arc::new(Access::new(own));
        assert_eq!(access.judge(Some(&header(&token))).await, Verdict::Allowed);
        assert_eq!(access.judge(Some(&header("nobody's"))).await, Verdict::Stranger);
        assert_eq!(access.judge(None).await, Verdict::Stranger);

        let client = Client::new(server.plane_service(""), "default");
        let bindings = Api::<ClusterRoleBinding>::all(client);
        bindings.delete("reader", &DeleteParams::default()).await.unwrap();
        assert_eq!(access.judge(Some(&header(&token))).await, Verdict::Allowed, "remembered");
        tokio::time::advance(REMEMBERED.0).await;
        let refused = Verdict::Refused("system:serviceaccount:watching:scraper".to_owned());
        assert_eq!(access.judge(Some(&header(&token))).await, refused);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_let_in_while_the_cluster_cannot_be_asked_and_all_are_asked_about_again() {
        let own = Plane::in_process::<_, http_body_util::Full<bytes::Bytes>, _>(
            "own",
            tower::service_fn(|_: http::Request<http_body_util::Full<bytes::Bytes>>| async {
                Err::<http::Response<http_body_util::Full<bytes::Bytes>>, _>(std::io::Error::other("away"))
            }),
        );
        let access = Access::new(own);
        assert_eq!(access.judge(Some(&header("a"))).await, Verdict::Unsure);
        assert!(access.known.lock().await.is_empty());
    }

    #[tokio::test]
    async fn as_many_tokens_are_remembered_as_there_may_be_and_no_more() {
        let (server, _) = mk_cluster().await;
        let own =
            Plane::in_process::<_, http_body_util::Full<bytes::Bytes>, _>("own", server.plane_service(""));
        let access = Access::new(own);
        for guess in 0..2 * TOKENS_MAX {
            assert_eq!(access.judge(Some(&header(&format!("guess-{guess}")))).await, Verdict::Stranger);
            assert!(access.known.lock().await.len() <= TOKENS_MAX);
        }
    }
}
