//! Tokens of service accounts: signed claims, checked against the account that they name.
//!
//! `polis.<claims>.<signature>`: claims are JSON in base64, the signature a keyed hash over them. A token is good while
//! its account has the uid it was issued for and, if it was issued for a time, until then.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{
    identity::Identity, json, plane::Plane, server::Core, status::Failure, store::Collection, verbs::Call,
};

/// Longest life of a token that was asked for; Kubernetes' default for its own is an hour.
const LIFE_MAX: i64 = 365 * 24 * 3600;
const LIFE_DEFAULT: i64 = 3600;

/// The key that signs tokens.
pub struct Signer([u8; 32]);

impl Default for Signer {
    fn default() -> Self {
        let mut key = [0u8; 32];
        rand::Rng::fill_bytes(&mut rand::make_rng::<rand::rngs::StdRng>(), &mut key);
        Self(key)
    }
}

impl Signer {
    pub(super) fn new(secret: &[u8]) -> Self {
        Self(Sha256::digest(secret).into())
    }

    /// HMAC-SHA-256.
    fn sign(&self, message: &[u8]) -> [u8; 32] {
        let mut block = [0u8; 64];
        block[..32].copy_from_slice(&self.0);
        let inner =
            Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(message).finalize();
        Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().into()
    }
}

#[derive(Serialize, Deserialize)]
struct Claims {
    plane: String,
    namespace: String,
    name: String,
    uid: String,
    /// Seconds since 1970; none for a token without end.
    expires: Option<i64>,
}

fn mint(core: &Core, claims: &Claims) -> String {
    let body = URL_SAFE_NO_PAD.encode(serde_json::to_vec(claims).unwrap_or_default());
    let signature = URL_SAFE_NO_PAD.encode(core.access.signer.sign(body.as_bytes()));
    format!("polis.{body}.{signature}")
}

/// Whose token it is, if it is good on this plane.
pub(super) fn verify(core: &Core, plane: &Plane, token: &str) -> Option<Identity> {
    let (body, signature) = token.strip_prefix("polis.")?.split_once('.')?;
    let given = URL_SAFE_NO_PAD.decode(signature).ok()?;
    let wanted = core.access.signer.sign(body.as_bytes());
    // Every byte is looked at, so that time tells nothing about where they differ.
    let differs =
        given.len() != wanted.len() || given.iter().zip(wanted).fold(0u8, |seen, (a, b)| seen | (a ^ b)) != 0;
    if differs {
        return None;
    }
    let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).ok()?).ok()?;
    let live = claims.expires.is_none_or(|end| end > core.clock.now().as_second());
    if !live || claims.plane != *plane.name {
        return None;
    }
    let accounts = Collection::new(plane.name.clone(), "serviceaccounts");
    let account = core.store.view().get(&accounts, &format!("{}/{}", claims.namespace, claims.name))?.value();
    (json::meta(&account, "uid") == claims.uid)
        .then(|| Identity::service_account(&claims.namespace, &claims.name, &claims.uid))
}

fn claims(plane: &Plane, account: &Value, expires: Option<i64>) -> Claims {
    let text = |field: &str| json::meta(account, field).to_owned();
    Claims {
        plane: plane.name.to_string(),
        namespace: text("namespace"),
        name: text("name"),
        uid: text("uid"),
        expires,
    }
}

/// Answers a TokenRequest.
pub(crate) fn issue(call: &Call, account: &Value, request: &Value) -> Result<Value, Failure> {
    let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(LIFE_DEFAULT);
    if !(600..=LIFE_MAX).contains(&seconds) {
        let error = crate::schema::FieldError::invalid(
            "spec.expirationSeconds",
            seconds,
            "may not specify a duration less than 10 minutes or larger than a year",
        );
        return Err(Failure::invalid(
            &crate::status::About::new("authentication.k8s.io", "TokenRequest"),
            json::meta(account, "name"),
            &[error],
        ));
    }
    let end = call.core.clock.now().checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
    let token = mint(&call.core, &claims(&call.plane, account, Some(end.as_second())));
    let mut answer = request.clone();
    answer["kind"] = "TokenRequest".into();
    answer["apiVersion"] = "authentication.k8s.io/v1".into();
    answer["metadata"] =
        json!({"name": json::meta(account, "name"), "namespace": json::meta(account, "namespace")});
    answer["spec"]["expirationSeconds"] = seconds.into();
    answer["status"] = json!({"token": token, "expirationTimestamp": json::timestamp(end)});
    Ok(answer)
}

/// The data of a token secret (`kubernetes.io/service-account-token`) of an account.
pub(crate) fn fill_secret(core: &Core, plane: &Plane, account: &Value) -> Value {
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let mut data = json!({"token": encode(&mint(core, &claims(plane, account, None))), "namespace": encode(json::meta(account, "namespace"))});
    if let Some(authority) = core.access.authority.as_deref() {
        data["ca.crt"] = encode(authority).into();
    }
    data
}
