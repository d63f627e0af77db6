//! Issued credentials and their revocation.
//!
//! The store records every token and certificate until it expires, and every revocation. A revocation ends
//! one credential by its id (the `jti` of a token, the serial number of a certificate), or all that a subject
//! received until then. Every request of the credential after it is refused.

use bytes::Bytes;
use http::{Method, Response};
use jiff::Timestamp;
use polis_apimachinery::time;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    certificates::ClientCertificate,
    tokens::{self, Claims},
};
use crate::{
    http::{Output, ResponseBody, object},
    server::Core,
    status::StatusError,
    store::{Collection, CommitError, EncodedObject, Precondition, RangeOptions, Stored, Write},
};

/// The path on the root plane that serves the list and takes revocations.
pub(crate) const CREDENTIALS_PATH: &str = "/polis/credentials";
/// The plane of the records, which is not served.
const PLANE: &str = "@server";
/// Most tokens of one plane that are valid at the same time: 10,000 service accounts with one token each. A
/// TokenRequest beyond it is refused, so that records do not fill the store.
const TOKENS_MAX: usize = 10_000;
/// Expired records that one new record removes. More than one, so that the number of records shrinks.
const REMOVED_AT_ONCE: usize = 4;

/// A valid credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    /// User name.
    pub subject: String,
    /// What the subject shows to the server.
    pub kind: CredentialKind,
    /// The `jti` of a token; the serial number of a certificate, in hexadecimal digits.
    pub id: String,
    /// The plane of a token. A certificate is valid on all planes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub plane: Option<String>,
    /// When the server issued it (RFC 3339).
    pub issued: String,
    /// When it ends (RFC 3339); a token of a Secret ends with the Secret.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expires: Option<String>,
}

/// The kind of a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CredentialKind {
    /// A client certificate.
    Certificate,
    /// A service account token.
    Token,
}

/// Which credentials end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Revocation {
    /// The token or certificate with this id.
    Id(String),
    /// All credentials of this user up to now, on every plane.
    Subject(String),
}

/// The records in the store.
pub(crate) struct Credentials {
    certificates: Collection,
    revoked_ids: Collection,
    revoked_subjects: Collection,
    changes: watch::Sender<()>,
}

impl Default for Credentials {
    fn default() -> Self {
        Self {
            certificates: Collection::new(PLANE, "certificates"),
            revoked_ids: Collection::new(PLANE, "revoked-ids"),
            revoked_subjects: Collection::new(PLANE, "revoked-subjects"),
            changes: watch::Sender::default(),
        }
    }
}

fn tokens_of(plane: &str) -> Collection {
    Collection::new(PLANE, format!("tokens/{plane}"))
}

/// A key that sorts by the time when the credential expires, so that expired records come first.
fn record_path(expires: i64, id: &str) -> String {
    format!("{expires:012}-{id}")
}

fn is_expired(path: &str, now: i64) -> bool {
    path.split_once('-').is_some_and(|(end, _)| end.parse().is_ok_and(|end: i64| end <= now))
}

fn timestamp(seconds: i64) -> String {
    time::timestamp(Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX))
}

impl Credentials {
    /// Records a token before it is handed out.
    pub(super) async fn record_token(
        &self,
        core: &Core,
        plane: &str,
        claims: &Claims,
    ) -> Result<(), StatusError> {
        let records = tokens_of(plane);
        remove_expired(core, &records).await?;
        if core.store.view().count(&records) >= TOKENS_MAX {
            return Err(StatusError::too_many(format!(
                "{TOKENS_MAX} service account tokens of this plane are valid; wait until some expire, or request shorter lifetimes"
            )));
        }
        let record = json!({"metadata": {"name": claims.jti}, "claims": claims});
        let path = record_path(claims.exp.unwrap_or_default(), &claims.jti);
        write(core, &records, &path, Some(record)).await
    }

    /// Records a client certificate.
    pub(crate) async fn record_certificate(
        &self,
        core: &Core,
        certificate: &ClientCertificate,
    ) -> Result<(), StatusError> {
        remove_expired(core, &self.certificates).await?;
        let ClientCertificate { user, serial, issued, expires } = certificate;
        let credential = Credential {
            subject: user.name.clone(),
            kind: CredentialKind::Certificate,
            id: serial.clone(),
            plane: None,
            issued: timestamp(*issued),
            expires: Some(timestamp(*expires)),
        };
        let record = json!({"metadata": {"name": serial}, "credential": credential});
        write(core, &self.certificates, &record_path(*expires, serial), Some(record)).await
    }

    /// Whether a credential has been revoked. `issued` is in seconds since 1970.
    pub(crate) fn is_revoked(&self, core: &Core, id: &str, subject: &str, issued: i64) -> bool {
        let view = core.store.view();
        let of_subject =
            |stored: Stored| stored.value()["until"].as_i64().is_none_or(|until| issued <= until);
        view.get(&self.revoked_ids, id).is_some()
            || view.get(&self.revoked_subjects, subject).is_some_and(of_subject)
    }

    /// The valid credentials, by subject.
    pub(crate) fn list(&self, core: &Core) -> Vec<Credential> {
        let view = core.store.view();
        let now = core.clock.now().as_second();
        let certificates = view.all(&self.certificates).into_iter().filter_map(|(path, stored)| {
            let found: Credential = serde_json::from_value(stored.value()["credential"].take()).ok()?;
            let issued = found.issued.parse::<Timestamp>().ok()?.as_second();
            let ended = is_expired(&path, now) || self.is_revoked(core, &found.id, &found.subject, issued);
            (!ended).then_some(found)
        });
        let mut found: Vec<Credential> = certificates.collect();
        for plane in core.all_planes() {
            let requested = view.all(&tokens_of(&plane.name)).into_iter().filter_map(|(_, stored)| {
                let claims: Claims = serde_json::from_value(stored.value()["claims"].take()).ok()?;
                claims.check_live(core, &plane.name).is_ok().then_some(claims)
            });
            let secrets = view.all(&Collection::new(plane.name.clone(), "secrets")).into_iter();
            let of_secrets = secrets
                .filter(|(_, stored)| stored.contains(tokens::SECRET_TYPE))
                .filter_map(|(_, stored)| tokens::claims_of_secret(core, &plane.name, &stored.value()));
            found.extend(requested.chain(of_secrets).map(|claims| Credential {
                subject: claims.sub,
                kind: CredentialKind::Token,
                id: claims.jti,
                plane: Some(plane.name.to_string()),
                issued: timestamp(claims.iat),
                expires: claims.exp.map(timestamp),
            }));
        }
        found.sort_by(|a, b| (&a.subject, &a.issued, &a.id).cmp(&(&b.subject, &b.issued, &b.id)));
        found
    }

    /// Revokes credentials. Returns those that were valid.
    pub(crate) async fn revoke(
        &self,
        core: &Core,
        revocation: &Revocation,
    ) -> Result<Vec<Credential>, StatusError> {
        let covers = |found: &Credential| match revocation {
            Revocation::Id(id) => found.id == *id,
            Revocation::Subject(subject) => found.subject == *subject,
        };
        let ended: Vec<Credential> = self.list(core).into_iter().filter(covers).collect();
        let now = core.clock.now().as_second();
        let (collection, path) = match revocation {
            Revocation::Id(id) => (&self.revoked_ids, id),
            Revocation::Subject(subject) => (&self.revoked_subjects, subject),
        };
        write(core, collection, path, Some(json!({"metadata": {"name": path}, "until": now}))).await?;
        self.changes.send_replace(());
        Ok(ended)
    }

    /// Serves `/polis/credentials`: lists the valid credentials, or revokes those that the body names.
    pub(crate) async fn respond(
        &self,
        core: &Core,
        method: &Method,
        body: Bytes,
    ) -> Result<Response<ResponseBody>, StatusError> {
        let items = match *method {
            Method::GET => self.list(core),
            Method::POST => {
                let revocation = serde_json::from_slice(&body).map_err(|error| {
                    let form = "the body must be {\"id\": …} or {\"subject\": …}";
                    StatusError::bad_request(format!("{form}: {error}"))
                })?;
                self.revoke(core, &revocation).await?
            }
            _ => return Err(StatusError::method_not_allowed()),
        };
        Ok(object(200, &json!({"kind": "CredentialList", "items": items}), Output::default()))
    }

    /// Changes with every revocation.
    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }
}

/// Removes the first expired records of a collection.
async fn remove_expired(core: &Core, records: &Collection) -> Result<(), StatusError> {
    let now = core.clock.now().as_second();
    let first = RangeOptions { limit: REMOVED_AT_ONCE, ..RangeOptions::default() };
    // Without a revision to list at, the range cannot fail.
    let Ok(page) = core.store.view().range(records, &first) else { return Ok(()) };
    for (path, _) in page.items.iter().filter(|(path, _)| is_expired(path, now)) {
        write(core, records, path, None).await?;
    }
    Ok(())
}

/// Creates, replaces or deletes a record, whatever is stored.
async fn write(
    core: &Core,
    collection: &Collection,
    path: &str,
    record: Option<Value>,
) -> Result<(), StatusError> {
    loop {
        let precondition = match core.store.view().get(collection, path) {
            Some(stored) => Precondition::AtRevision(stored.revision()),
            None if record.is_none() => return Ok(()),
            None => Precondition::Absent,
        };
        let write = Write {
            collection: collection.clone(),
            path: path.to_owned(),
            precondition,
            object: record.as_ref().map(EncodedObject::encode),
        };
        match core.store.commit(write).await {
            Ok(_) => return Ok(()),
            Err(CommitError::Conflict(_)) => {}
            Err(error) => return Err(StatusError::internal(&error.to_string())),
        }
    }
}
