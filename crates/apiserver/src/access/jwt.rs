//! JSON Web Tokens: signs and verifies compact JWTs with ES256 (ECDSA, P-256, SHA-256), and publishes the
//! public keys as a JWK set.

use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _,
        UnparsedPublicKey,
    },
};
use rustls_pki_types::{PrivatePkcs8KeyDer, pem::PemObject};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Longest token that is parsed. Those of Kubernetes have about 1 KiB.
const TOKEN_MAX: usize = 16 << 10;
/// DER of a P-256 SubjectPublicKeyInfo up to the point, which follows.
const SPKI_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Why token keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenKeysError {
    /// The PEM text has no keys, or one of another type.
    #[error("failed to read the token keys: {0}; they must be ECDSA P-256 private keys (PKCS#8) in PEM")]
    Unusable(String),
    /// A key cannot be generated.
    #[error("failed to generate a token key: {0}")]
    Generate(#[from] rcgen::Error),
}

/// The keys of service account tokens: the first signs, and all verify. A key is rotated in two steps: a new
/// one is put first, and the old one is removed when its last token has expired.
pub struct TokenKeys(Vec<Key>);

struct Key {
    /// The hash of the public key, as in Kubernetes.
    id: String,
    pair: EcdsaKeyPair,
}

impl TokenKeys {
    /// A new private key, in PEM.
    pub fn new_key() -> Result<String, TokenKeysError> {
        Ok(rcgen::KeyPair::generate()?.serialize_pem())
    }

    /// The keys of a PEM text. The first signs.
    pub fn from_pem(text: &str) -> Result<Self, TokenKeysError> {
        let unusable = |why: &dyn fmt::Display| TokenKeysError::Unusable(why.to_string());
        let keys = PrivatePkcs8KeyDer::pem_slice_iter(text.as_bytes())
            .map(|der| {
                let der = der.map_err(|error| unusable(&error))?;
                let pair = EcdsaKeyPair::from_pkcs8(
                    &ECDSA_P256_SHA256_FIXED_SIGNING,
                    der.secret_pkcs8_der(),
                    &SystemRandom::new(),
                )
                .map_err(|error| unusable(&error))?;
                let spki = [&SPKI_PREFIX, pair.public_key().as_ref()].concat();
                Ok(Key { id: URL_SAFE_NO_PAD.encode(Sha256::digest(spki)), pair })
            })
            .collect::<Result<Vec<_>, TokenKeysError>>()?;
        if keys.is_empty() {
            return Err(unusable(&"there is no key"));
        }
        Ok(Self(keys))
    }

    /// The id of the key that signs.
    pub(super) fn current(&self) -> &str {
        &self.0[0].id
    }

    /// A token with these claims.
    pub(super) fn sign(&self, claims: &impl Serialize) -> String {
        let Key { id, pair } = &self.0[0];
        let encode = |part: &[u8]| URL_SAFE_NO_PAD.encode(part);
        let header = json!({"alg": "ES256", "kid": id}).to_string();
        // Claims are structs with string keys, and always serialise.
        let claims = serde_json::to_vec(claims).unwrap_or_default();
        let signed = format!("{}.{}", encode(header.as_bytes()), encode(&claims));
        let signature = pair
            .sign(&SystemRandom::new(), signed.as_bytes())
            .expect("signing fails only without a source of random numbers");
        format!("{signed}.{}", encode(signature.as_ref()))
    }

    /// The claims of a token that one of the keys has signed.
    pub(super) fn verify<C: DeserializeOwned>(&self, token: &str) -> Option<C> {
        let (signed, signature) = token.rsplit_once('.').filter(|_| token.len() <= TOKEN_MAX)?;
        let (_, claims) = signed.split_once('.')?;
        // The algorithm is that of the key, whatever the header says; another one is refused.
        let header = header(token).filter(|header| header["alg"] == "ES256")?;
        let key = self.0.iter().find(|key| header["kid"] == key.id.as_str())?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key.pair.public_key().as_ref())
            .verify(signed.as_bytes(), &signature)
            .ok()?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
    }

    /// The public keys as a JWK set (RFC 7517).
    pub(crate) fn jwks(&self) -> Value {
        let keys: Vec<Value> = self
            .0
            .iter()
            .map(|Key { id, pair }| {
                // An uncompressed point: 0x04, x, y.
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
                json!({"use": "sig", "kty": "EC", "kid": id, "crv": "P-256", "alg": "ES256", "x": x, "y": y})
            })
            .collect();
        json!({"keys": keys})
    }
}

impl Default for TokenKeys {
    /// One random key: tokens are invalid after a restart.
    fn default() -> Self {
        let key = Self::new_key().and_then(|pem| Self::from_pem(&pem));
        key.expect("generating a key fails only without a source of random numbers")
    }
}

/// The id of the key that has signed a token, not verified.
pub(super) fn key_id(token: &str) -> Option<String> {
    header(token)?["kid"].as_str().map(str::to_owned)
}

fn header(token: &str) -> Option<Value> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.split('.').next()?).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_keys(keys: &[&str]) -> TokenKeys {
        TokenKeys::from_pem(&keys.concat()).unwrap()
    }

    #[test]
    fn a_rotated_key_verifies_until_it_is_removed() {
        let (old, new) = (TokenKeys::new_key().unwrap(), TokenKeys::new_key().unwrap());
        let token = mk_keys(&[&old]).sign(&json!({"sub": "a"}));
        let rotated = mk_keys(&[&new, &old]);
        assert_eq!(rotated.verify(&token), Some(json!({"sub": "a"})));
        assert_ne!(key_id(&token).unwrap(), rotated.current());
        assert_eq!(key_id(&rotated.sign(&json!({}))).unwrap(), rotated.current());
        assert_eq!(mk_keys(&[&new]).verify::<Value>(&token), None);
    }

    #[test]
    fn a_changed_token_is_refused() {
        let keys = TokenKeys::default();
        let token = keys.sign(&json!({"sub": "a"}));
        let parts: Vec<&str> = token.split('.').collect();
        let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let kid = keys.current();
        let other_claims = encode(json!({"sub": "b"}));
        for changed in [
            format!("{}.{other_claims}.{}", parts[0], parts[2]),
            format!("{}.{}.", encode(json!({"alg": "none", "kid": kid})), parts[1]),
            format!("{}.{}.{}", encode(json!({"alg": "HS256", "kid": kid})), parts[1], parts[2]),
            format!("{}.{}.{}", encode(json!({"alg": "ES256"})), parts[1], parts[2]),
            format!("{}.{}", parts[0], parts[1]),
            format!("{token}."),
            format!("{token}{}", "A".repeat(TOKEN_MAX)),
            String::new(),
        ] {
            assert_eq!(keys.verify::<Value>(&changed), None, "{changed}");
        }
        assert!(keys.verify::<Value>(&token).is_some());
    }

    #[test]
    fn the_published_key_verifies_a_token() {
        let keys = TokenKeys::default();
        let token = keys.sign(&json!({"sub": "a"}));
        let set = keys.jwks();
        let decode = |field: &str| URL_SAFE_NO_PAD.decode(set["keys"][0][field].as_str().unwrap()).unwrap();
        let point = [vec![4], decode("x"), decode("y")].concat();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
        key.verify(signed.as_bytes(), &URL_SAFE_NO_PAD.decode(signature).unwrap()).unwrap();
        assert_eq!(set["keys"][0]["kid"], key_id(&token).unwrap());
    }

    #[test]
    fn keys_of_another_type_are_refused() {
        for text in ["", "0123456789abcdef", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
        {
            let error = TokenKeys::from_pem(text).err().unwrap().to_string();
            assert!(error.contains("failed to read the token keys"), "{error}");
        }
    }
}
