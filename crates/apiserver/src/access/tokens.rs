//! Service account tokens: issue and verification.
//!
//! A token is `polis.<claims>.<signature>`: the claims are JSON in base64, the signature is HMAC-SHA-256 of
//! the encoded claims. A token is valid while the service account exists with the uid of the claims, and
//! until it expires.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use polis_apimachinery::{object, time};
use ring::hmac;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    plane::Plane, server::Core, status::StatusError, store::Collection, user::UserInfo, verbs::Call,
};

/// Longest and default validity of a requested token, in seconds. The default is that of Kubernetes.
const LIFE_MAX: i64 = 365 * 24 * 3600;
const LIFE_DEFAULT: i64 = 3600;

/// The key that signs service account tokens, with HMAC-SHA-256.
pub(crate) struct Signer(hmac::Key);

impl Default for Signer {
    fn default() -> Self {
        let mut key = [0u8; 32];
        rand::Rng::fill_bytes(&mut rand::make_rng::<rand::rngs::StdRng>(), &mut key);
        Self(hmac::Key::new(hmac::HMAC_SHA256, &key))
    }
}

impl Signer {
    /// Derives the key from `secret`, which may have any length.
    pub(super) fn new(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, &Sha256::digest(secret)))
    }

    /// `polis.<body>.<signature>`
    fn sign(&self, claims: &Claims) -> String {
        let body = URL_SAFE_NO_PAD.encode(serde_json::to_vec(claims).unwrap_or_default());
        let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&self.0, body.as_bytes()));
        format!("polis.{body}.{signature}")
    }

    /// The claims of a token with a valid signature. The comparison takes constant time.
    fn verify(&self, token: &str) -> Option<Claims> {
        let (body, signature) = token.strip_prefix("polis.")?.split_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        hmac::verify(&self.0, body.as_bytes(), &signature).ok()?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).ok()?).ok()
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Claims {
    plane: String,
    namespace: String,
    name: String,
    uid: String,
    /// Seconds since 1970; `None` if the token does not expire.
    expires: Option<i64>,
}

/// The service account of a token, if the token is valid on this plane.
pub(super) fn verify(core: &Core, plane: &str, token: &str) -> Option<UserInfo> {
    let claims = core.access.signer.verify(token)?;
    let live = claims.expires.is_none_or(|end| end > core.clock.now().as_second());
    if !live || claims.plane != plane {
        return None;
    }
    let accounts = Collection::new(plane, "serviceaccounts");
    let account = core.store.view().get(&accounts, &format!("{}/{}", claims.namespace, claims.name))?.value();
    (object::meta(&account, "uid") == claims.uid)
        .then(|| UserInfo::service_account(&claims.namespace, &claims.name, &claims.uid))
}

fn claims(plane: &Plane, account: &Value, expires: Option<i64>) -> Claims {
    let text = |field: &str| object::meta(account, field).to_owned();
    Claims {
        plane: plane.name.to_string(),
        namespace: text("namespace"),
        name: text("name"),
        uid: text("uid"),
        expires,
    }
}

/// Issues a token for a TokenRequest.
pub(crate) fn issue(call: &Call, account: &Value, request: &Value) -> Result<Value, StatusError> {
    let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(LIFE_DEFAULT);
    if !(600..=LIFE_MAX).contains(&seconds) {
        let error = polis_apimachinery::ValidationError::invalid(
            "spec.expirationSeconds",
            seconds,
            "may not specify a duration less than 10 minutes or larger than a year",
        );
        return Err(StatusError::invalid(
            &crate::status::GroupResource::new("authentication.k8s.io", "TokenRequest"),
            object::meta(account, "name"),
            &[error],
        ));
    }
    let end = call.core.clock.now().checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
    let token = call.core.access.signer.sign(&claims(&call.plane, account, Some(end.as_second())));
    let mut response = request.clone();
    response["kind"] = "TokenRequest".into();
    response["apiVersion"] = "authentication.k8s.io/v1".into();
    response["metadata"] =
        json!({"name": object::meta(account, "name"), "namespace": object::meta(account, "namespace")});
    response["spec"]["expirationSeconds"] = seconds.into();
    response["status"] = json!({"token": token, "expirationTimestamp": time::timestamp(end)});
    Ok(response)
}

/// The data of a token secret (`kubernetes.io/service-account-token`) of a service account.
pub(crate) fn fill_secret(core: &Core, plane: &Plane, account: &Value) -> Value {
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let mut data = json!({"token": encode(&core.access.signer.sign(&claims(plane, account, None))), "namespace": encode(object::meta(account, "namespace"))});
    if let Some(authority) = core.access.authority.as_deref() {
        data["ca.crt"] = encode(authority).into();
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issued by the first release: tokens in existing secrets must stay valid.
    const TOKEN: &str = "polis.eyJwbGFuZSI6ImNlbGwiLCJuYW1lc3BhY2UiOiJkZWZhdWx0IiwibmFtZSI6InJvYm90IiwidWlkIjoidS0xIiwiZXhwaXJlcyI6MTcwMDAwMDAwMH0.EFr9jmr93ebJHpTtnv0r28paB4dYy5XDnk8_xl_eJ14";

    fn mk_claims() -> Claims {
        Claims {
            plane: "cell".into(),
            namespace: "default".into(),
            name: "robot".into(),
            uid: "u-1".into(),
            expires: Some(1_700_000_000),
        }
    }

    #[test]
    fn a_token_issued_by_an_earlier_release_verifies() {
        let signer = Signer::new(b"a secret");
        assert_eq!(signer.verify(TOKEN), Some(mk_claims()));
        assert_eq!(signer.sign(&mk_claims()), TOKEN);
    }

    #[test]
    fn a_changed_token_or_another_key_is_refused() {
        let signer = Signer::new(b"a secret");
        assert_eq!(Signer::new(b"another secret").verify(TOKEN), None);
        assert_eq!(signer.verify(&TOKEN.replace("EFr9", "EFr8")), None);
        assert_eq!(signer.verify(&TOKEN.replace("eyJwb", "eyJwc")), None);
        assert_eq!(signer.verify(&TOKEN[..TOKEN.len() - 4]), None);
    }
}
