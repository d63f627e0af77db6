//! Authentication and authorisation of metrics requests by the cluster of the process, with a cache.
//!
//! A TokenReview authenticates the bearer token, a SubjectAccessReview authorises `get` on the path. If a
//! review fails, the request is refused.

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

/// The only path of the server.
pub(super) const PATH: &str = "/metrics";
/// Timeout of the reviews. Prometheus waits ten seconds by default.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(7);
/// Cache time of an allowed and of a refused token. Scrape intervals are about 30 s, and a revoked permission
/// takes effect within this time.
const CACHE_TTL: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(10));
/// Maximum number of cached tokens; larger than the number of scrapers.
const MAX_CACHED_TOKENS: usize = 64;
/// Maximum number of concurrent reviews, so that clients cannot overload the API server through this process.
const MAX_CONCURRENT_REVIEWS: usize = 4;

/// The decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AccessDecision {
    /// The user may read the metrics.
    Allowed,
    /// The request has no token, or one that the cluster does not accept.
    Unauthenticated,
    /// This user may not read the metrics.
    Forbidden(String),
    /// The reviews failed.
    Unavailable,
}

/// Decides about metrics requests and caches the decisions.
pub(super) struct MetricsAuthorizer {
    own: Plane,
    /// Decisions by the hash of the token. The token itself is not stored.
    cache: Mutex<HashMap<[u8; 32], (AccessDecision, Instant)>>,
    in_flight: Semaphore,
}

impl MetricsAuthorizer {
    /// An authorizer that sends its reviews to this plane.
    pub(super) fn new(own: Plane) -> Self {
        Self { own, cache: Mutex::default(), in_flight: Semaphore::new(MAX_CONCURRENT_REVIEWS) }
    }

    /// Decides about a request from its `Authorization` header.
    pub(super) async fn authorize(&self, authorization: Option<&HeaderValue>) -> AccessDecision {
        let Some(token) = bearer(authorization) else { return AccessDecision::Unauthenticated };
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some((decision, until)) = self.cache.lock().await.get(&key)
            && Instant::now() < *until
        {
            return decision.clone();
        }
        // The semaphore is never closed.
        let Ok(_permit) = self.in_flight.acquire().await else { return AccessDecision::Unavailable };
        let decision = match tokio::time::timeout(REVIEW_TIMEOUT, self.review(token)).await {
            Ok(Ok(decision)) => decision,
            Ok(Err(why)) => {
                tracing::warn!(
                    why,
                    "failed to review a metrics request; deploy/components/secure-metrics grants the permission"
                );
                AccessDecision::Unavailable
            }
            Err(_) => {
                tracing::warn!(
                    "failed to review a metrics request: no response within {} s",
                    REVIEW_TIMEOUT.as_secs()
                );
                AccessDecision::Unavailable
            }
        };
        let ttl = match decision {
            AccessDecision::Allowed => CACHE_TTL.0,
            AccessDecision::Unauthenticated | AccessDecision::Forbidden(_) => CACHE_TTL.1,
            // Not cached: the next request is reviewed again.
            AccessDecision::Unavailable => return decision,
        };
        let mut cache = self.cache.lock().await;
        let now = Instant::now();
        cache.retain(|_, (_, until)| now < *until);
        if cache.len() >= MAX_CACHED_TOKENS {
            cache.clear();
        }
        cache.insert(key, (decision.clone(), now + ttl));
        decision
    }

    async fn review(&self, token: &str) -> Result<AccessDecision, String> {
        let spec = TokenReviewSpec { token: Some(token.to_owned()), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let review = self.own.create(&review).await.map_err(|error| error.to_string())?;
        let Some(user) = authenticated_user(review.status) else {
            return Ok(AccessDecision::Unauthenticated);
        };
        let name = user.username.clone().unwrap_or_default();
        let review = self.own.create(&access_review(user)).await.map_err(|error| error.to_string())?;
        Ok(if is_allowed(review.status.as_ref()) {
            AccessDecision::Allowed
        } else {
            AccessDecision::Forbidden(name)
        })
    }
}

/// The token of an `Authorization` header.
fn bearer(header: Option<&HeaderValue>) -> Option<&str> {
    let (scheme, token) = header?.to_str().ok()?.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// The user of a token; `None` unless the review says that it is authenticated and names the user.
fn authenticated_user(status: Option<TokenReviewStatus>) -> Option<UserInfo> {
    let status = status?;
    let named = |user: &UserInfo| user.username.as_ref().is_some_and(|name| !name.is_empty());
    status.user.filter(|user| status.authenticated == Some(true) && named(user))
}

/// The review whether this user may `get` the metrics.
fn access_review(user: UserInfo) -> SubjectAccessReview {
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
    fn a_bearer_token_is_read_from_the_header() {
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
    fn a_user_must_be_authenticated_and_have_a_name() {
        let of = |authenticated, name: Option<&str>| {
            let user = name.map(|name| UserInfo { username: Some(name.to_owned()), ..UserInfo::default() });
            authenticated_user(Some(TokenReviewStatus {
                authenticated,
                user,
                ..TokenReviewStatus::default()
            }))
        };
        assert_eq!(of(Some(true), Some("ann")).unwrap().username.as_deref(), Some("ann"));
        for unauthenticated in [of(Some(false), Some("ann")), of(None, Some("ann")), of(Some(true), None)] {
            assert_eq!(unauthenticated, None);
        }
        assert_eq!(of(Some(true), Some("")), None);
        assert_eq!(authenticated_user(None), None);
    }

    #[test]
    fn the_access_review_has_all_attributes_of_the_user() {
        let user = UserInfo {
            username: Some("ann".into()),
            uid: Some("u-1".into()),
            groups: Some(vec!["scrapers".into()]),
            extra: Some(BTreeMap::from([("a".to_owned(), vec!["1".to_owned()])])),
        };
        let spec = access_review(user.clone()).spec;
        assert_eq!(
            (spec.user, spec.uid, spec.groups, spec.extra),
            (user.username, user.uid, user.groups, user.extra)
        );
        let asked = spec.non_resource_attributes.unwrap();
        assert_eq!((asked.path.as_deref(), asked.verb.as_deref()), (Some("/metrics"), Some("get")));
    }

    #[test]
    fn access_needs_allowed_and_not_denied() {
        let of = |allowed, denied| {
            is_allowed(Some(&SubjectAccessReviewStatus { allowed, denied, ..Default::default() }))
        };
        assert!(of(true, None) && of(true, Some(false)));
        assert!(!of(false, None) && !of(true, Some(true)) && !is_allowed(None));
    }

    fn read<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    /// A cluster with the service account `scraper`, which may read metrics, and its token.
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
    async fn an_allowed_token_is_cached_for_a_minute() {
        let (server, token) = mk_cluster().await;
        let own =
            Plane::in_process::<_, http_body_util::Full<bytes::Bytes>, _>("own", server.plane_service(""));
        let access = Arc::new(MetricsAuthorizer::new(own));
        assert_eq!(access.authorize(Some(&header(&token))).await, AccessDecision::Allowed);
        assert_eq!(access.authorize(Some(&header("unknown"))).await, AccessDecision::Unauthenticated);
        assert_eq!(access.authorize(None).await, AccessDecision::Unauthenticated);

        let client = Client::new(server.plane_service(""), "default");
        let bindings = Api::<ClusterRoleBinding>::all(client);
        bindings.delete("reader", &DeleteParams::default()).await.unwrap();
        assert_eq!(access.authorize(Some(&header(&token))).await, AccessDecision::Allowed, "cached");
        tokio::time::advance(CACHE_TTL.0).await;
        let refused = AccessDecision::Forbidden("system:serviceaccount:watching:scraper".to_owned());
        assert_eq!(access.authorize(Some(&header(&token))).await, refused);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_review_refuses_the_request_and_is_not_cached() {
        let own = Plane::in_process::<_, http_body_util::Full<bytes::Bytes>, _>(
            "own",
            tower::service_fn(|_: http::Request<http_body_util::Full<bytes::Bytes>>| async {
                Err::<http::Response<http_body_util::Full<bytes::Bytes>>, _>(std::io::Error::other(
                    "unreachable",
                ))
            }),
        );
        let access = MetricsAuthorizer::new(own);
        assert_eq!(access.authorize(Some(&header("a"))).await, AccessDecision::Unavailable);
        assert!(access.cache.lock().await.is_empty());
    }

    #[tokio::test]
    async fn the_cache_never_exceeds_its_maximum_size() {
        let (server, _) = mk_cluster().await;
        let own =
            Plane::in_process::<_, http_body_util::Full<bytes::Bytes>, _>("own", server.plane_service(""));
        let access = MetricsAuthorizer::new(own);
        for guess in 0..2 * MAX_CACHED_TOKENS {
            assert_eq!(
                access.authorize(Some(&header(&format!("guess-{guess}")))).await,
                AccessDecision::Unauthenticated
            );
            assert!(access.cache.lock().await.len() <= MAX_CACHED_TOKENS);
        }
    }
}
