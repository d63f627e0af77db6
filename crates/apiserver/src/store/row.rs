//! The durable form of an object: a row of a durable store.
//!
//! ```text
//!   revision (8) │ offset of the revision in the JSON (4) │ JSON, or for a Secret or Work its encrypted form
//! ```
//!
//! Every store that writes to a disk or another process encodes its rows here, so that what is encrypted
//! does not depend on the store. The key of a row is `plane NUL resource NUL path`.

use std::sync::Arc;

use bytes::Bytes;

use super::{EncryptionKeys, Revision, Stored, encryption::SealError};

/// The resources whose objects are encrypted. A Work has the manifest of an object that the federation
/// propagates, which may be a Secret.
const SEALED: [&str; 2] = ["secrets", "works.work.karmada.io"];
/// Set in the offset of an encrypted row. An object has at most a few MiB, so no offset has it.
const SEALED_BIT: u32 = 1 << 31;
/// Bytes before the object.
const HEAD: usize = 12;

/// Why a row cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum RowError {
    #[error("is too short")]
    TooShort,
    #[error(transparent)]
    Seal(#[from] SealError),
}

/// Encodes and decodes rows.
#[derive(Clone, Default)]
pub(crate) struct RowCodec {
    /// `None` writes Secrets as they are.
    keys: Option<Arc<EncryptionKeys>>,
}

impl RowCodec {
    pub(crate) fn new(keys: Option<EncryptionKeys>) -> Self {
        Self { keys: keys.map(Arc::new) }
    }

    /// Whether Secrets are encrypted.
    pub(super) fn encrypts(&self) -> bool {
        self.keys.is_some()
    }

    /// The row of an object.
    pub(super) fn encode(&self, key: &str, object: &Stored) -> Result<Vec<u8>, SealError> {
        let keys = self.keys.as_ref().filter(|_| is_sealed(key));
        let flag = if keys.is_some() { SEALED_BIT } else { 0 };
        let head = head(object.revision(), object.revision_offset() | flag);
        let Some(keys) = keys else { return Ok([&head[..], object.json()].concat()) };
        Ok([&head[..], &keys.seal(object.json(), &associated(key, head))?].concat())
    }

    /// The object of a row.
    pub(super) fn decode(&self, key: &str, row: &[u8]) -> Result<Stored, RowError> {
        let (revision, offset, head, body) = split(row).ok_or(RowError::TooShort)?;
        let json = if offset & SEALED_BIT == 0 {
            Bytes::copy_from_slice(body)
        } else {
            let keys = self.keys.as_ref().ok_or(SealError::NoKeys)?;
            keys.open(body, &associated(key, head))?.into()
        };
        let offset = offset & !SEALED_BIT;
        if json.len() <= offset as usize {
            return Err(RowError::TooShort);
        }
        Ok(Stored::restore(json, revision, offset))
    }

    /// Whether [`Self::encode`] would encrypt this row, and with which key, as it is encrypted.
    pub(super) fn is_current(&self, key: &str, row: &[u8]) -> bool {
        let Some(keys) = self.keys.as_ref().filter(|_| is_sealed(key)) else { return true };
        split(row).is_some_and(|(_, offset, _, body)| offset & SEALED_BIT != 0 && keys.is_current(body))
    }
}

fn is_sealed(key: &str) -> bool {
    key.split('\0').nth(1).is_some_and(|resource| SEALED.contains(&resource))
}

fn head(revision: Revision, offset: u32) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&revision.to_le_bytes());
    head[8..].copy_from_slice(&offset.to_le_bytes());
    head
}

fn split(row: &[u8]) -> Option<(Revision, u32, [u8; HEAD], &[u8])> {
    let (head, body) = row.split_first_chunk::<HEAD>()?;
    let (revision, rest) = head.split_first_chunk::<8>()?;
    let offset = rest.first_chunk::<4>()?;
    Some((u64::from_le_bytes(*revision), u32::from_le_bytes(*offset), *head, body))
}

/// What a ciphertext is bound to.
fn associated(key: &str, head: [u8; HEAD]) -> Vec<u8> {
    [head.as_slice(), key.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::EncodedObject;

    const SECRET: &str = "cell\0secrets\0n/a";

    fn mk_codec(folder: &std::path::Path) -> RowCodec {
        RowCodec::new(Some(EncryptionKeys::load_or_create(&folder.join("secrets.key")).unwrap()))
    }

    fn mk_object(revision: Revision) -> Stored {
        EncodedObject::encode(&json!({"metadata": {"name": "a"}, "data": {"k": "planted"}}))
            .with_revision(revision)
    }

    fn holds(row: &[u8]) -> bool {
        row.windows(7).any(|part| part == b"planted")
    }

    #[test]
    fn only_secrets_and_works_are_encrypted() {
        let folder = tempfile::tempdir().unwrap();
        let codec = mk_codec(folder.path());
        for (key, encrypted) in [
            (SECRET, true),
            ("\0secrets\0n/a", true),
            ("hub\0works.work.karmada.io\0n/a", true),
            ("hub\0works.example.com\0n/a", false),
            ("cell\0configmaps\0n/secrets", false),
            ("secrets\0configmaps\0n/a", false),
            ("cell\0secrets.example.com\0n/a", false),
        ] {
            let row = codec.encode(key, &mk_object(7)).unwrap();
            assert_eq!(holds(&row), !encrypted, "{key:?}");
            assert_eq!(codec.decode(key, &row).unwrap(), mk_object(7), "{key:?}");
            assert!(codec.is_current(key, &row), "{key:?}");
        }
    }

    #[test]
    fn the_rows_of_two_secrets_or_of_two_revisions_cannot_be_swapped() {
        let folder = tempfile::tempdir().unwrap();
        let codec = mk_codec(folder.path());
        let row = codec.encode(SECRET, &mk_object(7)).unwrap();
        for other in ["cell\0secrets\0n/b", "other\0secrets\0n/a", "\0secrets\0n/a"] {
            assert!(matches!(codec.decode(other, &row), Err(RowError::Seal(SealError::Changed { .. }))));
        }
        let mut later = codec.encode(SECRET, &mk_object(8)).unwrap();
        later.splice(HEAD.., row[HEAD..].iter().copied());
        assert!(matches!(codec.decode(SECRET, &later), Err(RowError::Seal(SealError::Changed { .. }))));
    }

    #[test]
    fn a_plain_row_is_read_and_is_not_current() {
        let folder = tempfile::tempdir().unwrap();
        let codec = mk_codec(folder.path());
        let plain = RowCodec::default().encode(SECRET, &mk_object(7)).unwrap();
        assert!(holds(&plain) && RowCodec::default().is_current(SECRET, &plain));
        assert_eq!(codec.decode(SECRET, &plain).unwrap(), mk_object(7));
        assert!(!codec.is_current(SECRET, &plain));
    }

    #[test]
    fn an_encrypted_row_without_keys_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let row = mk_codec(folder.path()).encode(SECRET, &mk_object(7)).unwrap();
        let error = RowCodec::default().decode(SECRET, &row).unwrap_err();
        assert!(error.to_string().contains("no key file is given"), "{error}");
        for length in 0..HEAD {
            assert!(matches!(RowCodec::default().decode(SECRET, &row[..length]), Err(RowError::TooShort)));
        }
    }
}
