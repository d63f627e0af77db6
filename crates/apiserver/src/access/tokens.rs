//! Service account tokens: their claims, and the objects on which they depend.
//!
//! A token is a JWT as kube-apiserver issues it. It is valid on the plane of its issuer, for its audiences,
//! until it expires or is revoked, and while its service account and the object that it is bound to exist
//! with the same UID. A token of a Secret (`kubernetes.io/service-account-token`) is bound to that Secret and
//! does not expire; it ends with the Secret, or when the Secret holds another token.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use polis_apimachinery::{object, time};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{jwt, session::Session};
use crate::{
    plane::Plane,
    server::Core,
    status::{GroupResource, StatusError},
    store::Collection,
    user::UserInfo,
    verbs::Call,
};

/// Longest lifetime of a requested token, in seconds: a day. A longer request is shortened, with a warning.
pub(crate) const TOKEN_LIFE_MAX: i64 = 24 * 3600;
/// The type of a token secret, as encoded in the store.
pub(crate) const SECRET_TYPE: &[u8] = b"\"kubernetes.io/service-account-token\"";
/// Seconds for which tokens of an object that is being deleted stay valid, as in Kubernetes: a workload that
/// ends with its namespace can still report. The clock may step back by as much after a token is issued.
const LEEWAY: i64 = 60;
/// Extra attributes of the user of a token.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The claims of a token. The names are those of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claims {
    aud: Vec<String>,
    /// Seconds since 1970; a token of a Secret has none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) exp: Option<i64>,
    pub(super) iat: i64,
    iss: String,
    pub(super) jti: String,
    #[serde(rename = "kubernetes.io")]
    kubernetes: PrivateClaims,
    nbf: i64,
    pub(super) sub: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PrivateClaims {
    namespace: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    node: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pod: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    secret: Option<Reference>,
    serviceaccount: Reference,
}

/// An object of the claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reference {
    name: String,
    uid: String,
}

impl Reference {
    fn to(object: &Value) -> Self {
        Self { name: object::meta(object, "name").to_owned(), uid: object::meta(object, "uid").to_owned() }
    }
}

/// The object that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BoundObject {
    Pod(Reference),
    Secret(Reference),
    Node(Reference),
}

/// What a TokenRequest asks for, validated.
pub(crate) struct TokenRequest<'a> {
    pub(crate) account: &'a Value,
    pub(crate) audiences: Vec<String>,
    pub(crate) seconds: i64,
    pub(crate) bound: Option<BoundObject>,
}

/// The result of a successful authentication.
pub(crate) struct TokenUser {
    pub(crate) user: UserInfo,
    /// The audiences of the token among those that were asked for.
    pub(crate) audiences: Vec<String>,
    /// The token, unless it is a static one.
    pub(crate) session: Option<Session>,
}

/// The issuer of the tokens of a plane, which is also their default audience: each plane has its own, so a
/// token is valid on one plane. That of the root plane is Kubernetes' default; those of other planes begin
/// with it.
pub(crate) fn issuer(plane: &str) -> String {
    const ROOT: &str = "https://kubernetes.default.svc.cluster.local";
    match plane.strip_prefix("project:") {
        Some(project) => format!("{ROOT}/projects/{project}/control-plane"),
        None if plane.is_empty() => ROOT.to_owned(),
        None => format!("{ROOT}/planes/{plane}"),
    }
}

/// The OpenID provider configuration of a plane, with which others verify its tokens.
pub(crate) fn openid_configuration(plane: &str) -> Value {
    let issuer = issuer(plane);
    json!({
        "issuer": issuer,
        "jwks_uri": format!("{issuer}/openid/v1/jwks"),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    })
}

/// The object of `spec.boundObjectRef`: it exists, and has the given UID.
pub(crate) fn bound_object(call: &Call, request: &Value) -> Result<Option<BoundObject>, StatusError> {
    let reference = &request["spec"]["boundObjectRef"];
    if !reference.is_object() {
        return Ok(None);
    }
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let (version, kind, name) = (text("apiVersion"), text("kind"), text("name"));
    let (group, short) = version.split_once('/').unwrap_or(("", version));
    let (plural, namespaced) = match (group, kind) {
        ("", "Pod") => ("pods", true),
        ("", "Secret") => ("secrets", true),
        ("", "Node") => ("nodes", false),
        _ => {
            let shown = format!("{group}/{short}, Kind={kind}");
            return Err(StatusError::bad_request(format!("cannot bind token to object of type {shown}")));
        }
    };
    let path = match call.namespace.as_deref().filter(|_| namespaced) {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    };
    let collection = Collection::new(call.plane.name.clone(), plural);
    let Some(found) = call.core.store.view().get(&collection, &path) else {
        return Err(StatusError::not_found(&GroupResource::new("", plural), name));
    };
    let found = found.value();
    let account = call.name.as_deref().unwrap_or_default();
    if kind == "Pod" && found["spec"]["serviceAccountName"] != account {
        return Err(StatusError::bad_request(format!(
            "cannot bind token for serviceaccount \"{account}\" to pod running with different serviceaccount name."
        )));
    }
    let uid = text("uid");
    if !uid.is_empty() && uid != object::meta(&found, "uid") {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(StatusError::conflict(&GroupResource::new(group, kind), name, &why));
    }
    let found = Reference::to(&found);
    Ok(Some(match kind {
        "Pod" => BoundObject::Pod(found),
        "Node" => BoundObject::Node(found),
        _ => BoundObject::Secret(found),
    }))
}

fn claims(core: &Core, plane: &Plane, now: Timestamp, request: TokenRequest<'_>) -> Claims {
    let TokenRequest { account, audiences, bound, .. } = request;
    let (namespace, account) = (object::meta(account, "namespace").to_owned(), Reference::to(account));
    let now = now.as_second();
    let (mut node, mut pod, mut secret) = (None, None, None);
    match bound {
        Some(BoundObject::Node(found)) => node = Some(found),
        Some(BoundObject::Pod(found)) => pod = Some(found),
        Some(BoundObject::Secret(found)) => secret = Some(found),
        None => {}
    }
    Claims {
        aud: audiences,
        exp: None,
        iat: now,
        iss: issuer(&plane.name),
        jti: core.random.uid(),
        sub: format!("system:serviceaccount:{namespace}:{}", account.name),
        kubernetes: PrivateClaims { namespace, node, pod, secret, serviceaccount: account },
        nbf: now,
    }
}

/// Issues a token, records it, and returns the status of its TokenRequest.
pub(crate) async fn issue(
    call: &Call,
    now: Timestamp,
    request: TokenRequest<'_>,
) -> Result<Value, StatusError> {
    let core = &call.core;
    let end = now.checked_add(SignedDuration::from_secs(request.seconds)).unwrap_or(Timestamp::MAX);
    let claims = Claims { exp: Some(end.as_second()), ..claims(core, &call.plane, now, request) };
    core.credentials.record_token(core, &call.plane.name, &claims).await?;
    let token = core.access.token_keys.sign(&claims);
    Ok(json!({"token": token, "expirationTimestamp": time::timestamp(end)}))
}

/// The data of a token secret (`kubernetes.io/service-account-token`) of a service account.
pub(crate) fn fill_secret(core: &Core, plane: &Plane, account: &Value, secret: &Value) -> Value {
    let encode = |text: &str| STANDARD.encode(text);
    let request = TokenRequest {
        account,
        audiences: vec![issuer(&plane.name)],
        seconds: 0,
        bound: Some(BoundObject::Secret(Reference::to(secret))),
    };
    let token = core.access.token_keys.sign(&claims(core, plane, core.clock.now(), request));
    let mut data = json!({"token": encode(&token), "namespace": encode(object::meta(account, "namespace"))});
    if let Some(authority) = core.access.authority.as_deref() {
        data["ca.crt"] = encode(authority).into();
    }
    data
}

/// The token in a token secret.
fn token_of(secret: &Value) -> Option<String> {
    String::from_utf8(STANDARD.decode(secret["data"]["token"].as_str()?).ok()?).ok()
}

/// Whether a token secret needs a token: it has none, or one that the current key has not signed.
pub(crate) fn needs_token(core: &Core, secret: &Value) -> bool {
    token_of(secret).and_then(|token| jwt::key_id(&token)).as_deref()
        != Some(core.access.token_keys.current())
}

/// The claims of the token in a token secret, if it is valid.
pub(super) fn claims_of_secret(core: &Core, plane: &str, secret: &Value) -> Option<Claims> {
    let token = token_of(secret)?;
    let claims: Claims = core.access.token_keys.verify(&token)?;
    claims.check(core, plane, &token).is_ok().then_some(claims)
}

/// Authenticates a token on a plane, for one of `audiences`. The error says why the token is refused.
pub(crate) fn verify(
    core: &Core,
    plane: &str,
    token: &str,
    audiences: &[String],
) -> Result<TokenUser, String> {
    let Some(claims) = core.access.token_keys.verify::<Claims>(token) else {
        return Err("token lookup failed".into());
    };
    if claims.iss != issuer(plane) {
        return Err("token lookup failed".into()); // a token of another plane
    }
    let shared: Vec<String> = claims.aud.iter().filter(|own| audiences.contains(own)).cloned().collect();
    if shared.is_empty() {
        let list =
            |names: &[String]| names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(" ");
        return Err(format!(
            "token audiences [{}] is invalid for the target audiences [{}]",
            list(&claims.aud),
            list(audiences)
        ));
    }
    claims.check(core, plane, token)?;
    let user = claims.user();
    let session = Session::Token { plane: plane.into(), token: token.into(), claims: Box::new(claims) };
    Ok(TokenUser { user, audiences: shared, session: Some(session) })
}

impl Claims {
    fn user(&self) -> UserInfo {
        let PrivateClaims { namespace, node, pod, serviceaccount, .. } = &self.kubernetes;
        let mut extra = BTreeMap::from([(CREDENTIAL_ID.to_owned(), vec![format!("JTI={}", self.jti)])]);
        for (what, bound) in [("pod", pod), ("node", node)] {
            if let Some(Reference { name, uid }) = bound {
                extra.insert(format!("authentication.kubernetes.io/{what}-name"), vec![name.clone()]);
                extra.insert(format!("authentication.kubernetes.io/{what}-uid"), vec![uid.clone()]);
            }
        }
        UserInfo { extra, ..UserInfo::service_account(namespace, &serviceaccount.name, &serviceaccount.uid) }
    }

    /// Whether the token is valid now; the error says why not.
    pub(super) fn check(&self, core: &Core, plane: &str, token: &str) -> Result<(), String> {
        self.check_live(core, plane)?;
        let PrivateClaims { namespace, secret, .. } = &self.kubernetes;
        match (self.exp, secret) {
            (Some(_), _) => Ok(()),
            (None, Some(secret)) => {
                let secrets = Collection::new(plane, "secrets");
                let stored = core.store.view().get(&secrets, &format!("{namespace}/{}", secret.name));
                let holds = stored.is_some_and(|stored| token_of(&stored.value()).as_deref() == Some(token));
                holds.then_some(()).ok_or_else(|| "service account token has been invalidated".into())
            }
            (None, None) => Err("service account token does not expire and is bound to no secret".into()),
        }
    }

    /// Whether the token has not expired and is not revoked, and the objects of its claims exist.
    pub(super) fn check_live(&self, core: &Core, plane: &str) -> Result<(), String> {
        let now = core.clock.now().as_second();
        if self.exp.is_some_and(|end| end <= now) {
            return Err("service account token has expired".into());
        }
        if self.nbf > now + LEEWAY {
            return Err("service account token is not valid yet".into());
        }
        if core.credentials.is_revoked(core, &self.jti, &self.sub, self.iat) {
            return Err("service account token has been revoked".into());
        }
        let PrivateClaims { namespace, node, pod, secret, serviceaccount } = &self.kubernetes;
        let gone = |what: &str| Err(format!("{what} has been deleted"));
        let exists = |resource: &str, namespace: &str, object: &Reference| {
            let path = if namespace.is_empty() {
                object.name.clone()
            } else {
                format!("{namespace}/{}", object.name)
            };
            let Some(stored) = core.store.view().get(&Collection::new(plane, resource), &path) else {
                return false;
            };
            let meta = stored.partial_meta();
            meta.uid == object.uid && !(meta.is_deleting() && deleted_before(&stored.value(), now))
        };
        if !exists("serviceaccounts", namespace, serviceaccount) {
            return gone(&format!("service account {namespace}/{}", serviceaccount.name));
        }
        for (resource, namespace, bound) in
            [("secrets", namespace.as_str(), secret), ("pods", namespace, pod), ("nodes", "", node)]
        {
            if let Some(bound) = bound.as_ref().filter(|bound| !exists(resource, namespace, bound)) {
                return gone(&format!("{resource} {}", bound.name));
            }
        }
        Ok(())
    }
}

/// Whether the deletion of an object began longer ago than the leeway.
fn deleted_before(object: &Value, now: i64) -> bool {
    let deleted = object::meta(object, "deletionTimestamp").parse::<Timestamp>();
    deleted.is_ok_and(|deleted| deleted.as_second() < now - LEEWAY)
}
