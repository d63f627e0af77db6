//! Expiry of tokens and certificates. Other credentials have no expiry that can be read.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde_json::Value;

/// Expiry of a JSON web token; `None` for other tokens.
pub(super) fn token_ends(token: &str) -> Option<Timestamp> {
    let claims = URL_SAFE_NO_PAD.decode(token.trim().split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    Timestamp::from_second(claims["exp"].as_i64()?).ok()
}

/// Expiry of the first certificate in a PEM text.
pub(in crate::manager) fn certificate_ends(pem: &[u8]) -> Option<Timestamp> {
    let (_, block) = x509_parser::pem::parse_x509_pem(pem).ok()?;
    let certificate = block.parse_x509().ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_json_web_token_has_an_expiry_and_other_texts_do_not() {
        let claims = URL_SAFE_NO_PAD.encode(r#"{"exp":1700000000}"#);
        assert_eq!(token_ends(&format!("a.{claims}.c\n")), Timestamp::from_second(1_700_000_000).ok());
        assert_eq!(token_ends("abc"), None);
        assert_eq!(token_ends("a.b.c"), None);
    }

    #[test]
    fn a_certificate_has_an_expiry() {
        let authority = polis_tls::Authority::new().unwrap();
        let pair = authority.server(&["127.0.0.1"]).unwrap();
        assert!(certificate_ends(pair.cert.as_bytes()).unwrap() > Timestamp::now());
        assert_eq!(certificate_ends(b"no certificate"), None);
    }
}
