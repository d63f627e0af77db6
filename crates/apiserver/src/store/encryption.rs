//! Envelope encryption of Secrets at rest, with AES-256-GCM.
//!
//! Each write of an object has a data key of its own; a key of the key file encrypts the data key:
//!
//! ```text
//!   length of the id (1) │ id of the key │ nonce (12) │ data key (32 + 16) │ nonce (12) │ object (n + 16)
//! ```
//!
//! Both parts are bound to the associated data: the row that they belong to, and its revision. A ciphertext
//! of one object is not valid for another one or at another revision.
//!
//! The key file has one key per line, `<id> <32 bytes in base64>`. The first key encrypts, all of them
//! decrypt. A random nonce per write is safe for 2³² writes under one key.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    rand::{SecureRandom as _, SystemRandom},
};

/// Bytes of a key.
const KEY_LEN: usize = 32;
/// Bytes that the authentication adds to a ciphertext.
const TAG_LEN: usize = 16;
/// Longest id of a key.
const ID_MAX: usize = 64;
/// The comment of a new key file.
const HEADER: &str = "# Keys that encrypt the Secrets of this installation: the first one encrypts, all of them decrypt.\n# Keep a copy apart from the store. Without its key no Secret can be read.\n";

/// Why a key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EncryptionKeyError {
    /// The file cannot be read or written.
    #[error("failed to use the key file {path}: {source}; check the path and its permissions")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// Other users have access to the file.
    #[error("the key file {path} has mode {mode:o}, so other users have access to it: run chmod 600 on it")]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A line is not a key. The message does not quote it.
    #[error("line {line} of the key file {path} is not valid: {why}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// The file has no key.
    #[error(
        "the key file {path} has no keys: restore it from a copy, or delete it if the store has no Secrets"
    )]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The operating system has no random numbers.
    #[error("failed to make a key: the operating system gave no random numbers")]
    Random,
}

/// A key and its id.
struct EncryptionKey {
    id: String,
    secret: [u8; KEY_LEN],
}

impl EncryptionKey {
    fn generate() -> Result<Self, EncryptionKeyError> {
        let (mut secret, mut id) = ([0; KEY_LEN], [0; 4]);
        let random = SystemRandom::new();
        let filled = random.fill(&mut secret).and_then(|()| random.fill(&mut id));
        filled.map_err(|_| EncryptionKeyError::Random)?;
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { id: format!("key-{id}"), secret })
    }

    fn parse(line: &str) -> Result<Self, &'static str> {
        let (id, secret) = line.split_once(' ').ok_or("write an id, a space and 32 bytes in base64")?;
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        if id.is_empty() || id.len() > ID_MAX || !id.chars().all(is_allowed) {
            return Err("an id has 1 to 64 letters, digits or one of -._");
        }
        let secret = STANDARD.decode(secret.trim()).map_err(|_| "the key is not base64")?;
        let secret = secret.try_into().map_err(|_| "a key has 32 bytes")?;
        Ok(Self { id: id.to_owned(), secret })
    }
}

/// The keys of a key file.
pub struct EncryptionKeys {
    path: PathBuf,
    /// The first one encrypts.
    keys: Vec<EncryptionKey>,
}

impl EncryptionKeys {
    /// Reads a key file.
    fn load(path: &Path) -> Result<Self, EncryptionKeyError> {
        let io = |source| EncryptionKeyError::Io { path: path.to_owned(), source };
        let mode = fs::metadata(path).map_err(io)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(EncryptionKeyError::Open { path: path.to_owned(), mode });
        }
        let text = fs::read_to_string(path).map_err(io)?;
        let mut keys: Vec<EncryptionKey> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let invalid = |why| EncryptionKeyError::Line { path: path.to_owned(), line: index + 1, why };
            let key = EncryptionKey::parse(line.trim()).map_err(invalid)?;
            if keys.iter().any(|known| known.id == key.id) {
                return Err(invalid("another line has this id"));
            }
            keys.push(key);
        }
        match keys.is_empty() {
            true => Err(EncryptionKeyError::Empty { path: path.to_owned() }),
            false => Ok(Self { path: path.to_owned(), keys }),
        }
    }

    /// Reads a key file, or creates it with a new key.
    pub fn load_or_create(path: &Path) -> Result<Self, EncryptionKeyError> {
        match Self::load(path) {
            Err(EncryptionKeyError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let keys = Self { path: path.to_owned(), keys: vec![EncryptionKey::generate()?] };
                keys.save()?;
                Ok(keys)
            }
            other => other,
        }
    }

    /// Adds a new first key to a key file, which is created if it does not exist. Opening the store with it
    /// encrypts every Secret again.
    pub fn rotate(path: &Path) -> Result<Self, EncryptionKeyError> {
        let mut keys = match path.exists() {
            true => Self::load(path)?,
            false => Self { path: path.to_owned(), keys: Vec::new() },
        };
        keys.keys.insert(0, EncryptionKey::generate()?);
        keys.save()?;
        Ok(keys)
    }

    /// The id of the key that encrypts.
    pub fn current(&self) -> &str {
        self.keys.first().map_or("", |key| &key.id)
    }

    /// Writes the file atomically and durably: a Secret must never be on disk before its key.
    fn save(&self) -> Result<(), EncryptionKeyError> {
        let mut text = HEADER.to_owned();
        for EncryptionKey { id, secret } in &self.keys {
            text += &format!("{id} {}\n", STANDARD.encode(secret));
        }
        let write = || {
            let mut temporary = self.path.clone().into_os_string();
            temporary.push(".new");
            match fs::remove_file(&temporary) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &self.path)?;
            let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        };
        write().map_err(|source| EncryptionKeyError::Io { path: self.path.clone(), source })
    }

    /// Encrypts `plain`.
    pub(super) fn seal(&self, plain: &[u8], associated: &[u8]) -> Result<Vec<u8>, SealError> {
        let Some(key) = self.keys.first() else { return Err(SealError::NoKeys) };
        let mut data_key = [0; KEY_LEN];
        SystemRandom::new().fill(&mut data_key).map_err(|_| SealError::Random)?;
        let mut sealed =
            Vec::with_capacity(1 + key.id.len() + 2 * (NONCE_LEN + TAG_LEN) + KEY_LEN + plain.len());
        // An id has at most `ID_MAX` bytes.
        sealed.push(u8::try_from(key.id.len()).unwrap_or(u8::MAX));
        sealed.extend_from_slice(key.id.as_bytes());
        append_sealed(&mut sealed, &key.secret, &data_key, associated)?;
        append_sealed(&mut sealed, &data_key, plain, associated)?;
        Ok(sealed)
    }

    /// Decrypts what [`Self::seal`] returned.
    pub(super) fn open(&self, sealed: &[u8], associated: &[u8]) -> Result<Vec<u8>, SealError> {
        let (id, rest) = split_id(sealed).ok_or(SealError::TooShort)?;
        let Some(key) = self.keys.iter().find(|key| key.id == id) else {
            return Err(SealError::UnknownKey {
                id: id.to_owned(),
                path: self.path.display().to_string(),
                known: self.keys.iter().map(|key| key.id.as_str()).collect::<Vec<_>>().join(", "),
            });
        };
        let changed = || SealError::Changed { id: id.to_owned() };
        let (wrapped, object) =
            rest.split_at_checked(NONCE_LEN + KEY_LEN + TAG_LEN).ok_or(SealError::TooShort)?;
        let data_key = opened(&key.secret, wrapped, associated).ok_or_else(changed)?;
        let data_key: [u8; KEY_LEN] = data_key.try_into().map_err(|_| changed())?;
        opened(&data_key, object, associated).ok_or_else(changed)
    }

    /// Whether the first key encrypted this.
    pub(super) fn is_current(&self, sealed: &[u8]) -> bool {
        split_id(sealed).is_some_and(|(id, _)| id == self.current())
    }
}

/// Why a row cannot be encrypted or decrypted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SealError {
    #[error("is encrypted, and no key file is given: start with the key file of the store")]
    NoKeys,
    #[error(
        "is encrypted with the key {id}, and the key file {path} has only: {known}. Restore the key file of this store from a copy"
    )]
    UnknownKey { id: String, path: String, known: String },
    #[error(
        "cannot be decrypted with the key {id}: the key file has another key of this id, or the row was changed. Restore the store and its key file from one copy"
    )]
    Changed { id: String },
    #[error("is shorter than an encrypted object. Restore the store from a copy")]
    TooShort,
    #[error("cannot be encrypted: the operating system gave no random numbers")]
    Random,
}

fn split_id(sealed: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = sealed.split_first()?;
    let (id, rest) = rest.split_at_checked(usize::from(*length))?;
    Some((std::str::from_utf8(id).ok()?, rest))
}

fn aead(secret: &[u8; KEY_LEN]) -> Result<LessSafeKey, SealError> {
    // Fails only for a key of another length.
    UnboundKey::new(&AES_256_GCM, secret).map(LessSafeKey::new).map_err(|_| SealError::Random)
}

fn append_sealed(
    to: &mut Vec<u8>,
    secret: &[u8; KEY_LEN],
    plain: &[u8],
    associated: &[u8],
) -> Result<(), SealError> {
    let mut nonce = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut nonce).map_err(|_| SealError::Random)?;
    let mut text = plain.to_vec();
    let nonce_of = Nonce::assume_unique_for_key(nonce);
    let sealed = aead(secret)?.seal_in_place_append_tag(nonce_of, Aad::from(associated), &mut text);
    sealed.map_err(|_| SealError::Random)?;
    to.extend_from_slice(&nonce);
    to.append(&mut text);
    Ok(())
}

fn opened(secret: &[u8; KEY_LEN], sealed: &[u8], associated: &[u8]) -> Option<Vec<u8>> {
    let (nonce, text) = sealed.split_at_checked(NONCE_LEN)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let mut text = text.to_vec();
    let length = aead(secret).ok()?.open_in_place(nonce, Aad::from(associated), &mut text).ok()?.len();
    text.truncate(length);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_path() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.key");
        (folder, path)
    }

    #[test]
    fn a_sealed_object_opens_only_with_its_key_and_its_associated_data() {
        let (_folder, path) = mk_path();
        let keys = EncryptionKeys::load_or_create(&path).unwrap();
        let sealed = keys.seal(b"planted value", b"cell/secrets/a").unwrap();
        assert!(!sealed.windows(7).any(|part| part == b"planted"));
        assert_eq!(keys.open(&sealed, b"cell/secrets/a").unwrap(), b"planted value");
        assert!(matches!(keys.open(&sealed, b"cell/secrets/b"), Err(SealError::Changed { .. })));
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(keys.open(&changed, b"cell/secrets/a").is_err(), "byte {at}");
            assert!(keys.open(&sealed[..at], b"cell/secrets/a").is_err(), "{at} bytes");
        }
        assert_ne!(sealed, keys.seal(b"planted value", b"cell/secrets/a").unwrap(), "a data key per write");
    }

    #[test]
    fn after_a_rotation_the_new_key_encrypts_and_the_old_one_still_decrypts() {
        let (_folder, path) = mk_path();
        let old = EncryptionKeys::load_or_create(&path).unwrap();
        let sealed = old.seal(b"value", b"row").unwrap();
        let both = EncryptionKeys::rotate(&path).unwrap();
        assert_ne!(both.current(), old.current());
        assert_eq!(both.open(&sealed, b"row").unwrap(), b"value");
        assert!(old.is_current(&sealed) && !both.is_current(&sealed));
        assert_eq!(EncryptionKeys::load(&path).unwrap().current(), both.current());
    }

    #[test]
    fn another_key_file_is_an_error_with_the_id_of_the_missing_key() {
        let ((_one, first), (_two, second)) = (mk_path(), mk_path());
        let keys = EncryptionKeys::load_or_create(&first).unwrap();
        let sealed = keys.seal(b"value", b"row").unwrap();
        let error = EncryptionKeys::load_or_create(&second).unwrap().open(&sealed, b"row").unwrap_err();
        let error = error.to_string();
        assert!(error.contains(keys.current()) && error.contains("secrets.key"), "{error}");
        let same_id = format!("{} {}\n", keys.current(), STANDARD.encode([7; KEY_LEN]));
        fs::write(&second, same_id).unwrap();
        let error = EncryptionKeys::load(&second).unwrap().open(&sealed, b"row").unwrap_err();
        assert!(matches!(error, SealError::Changed { .. }), "{error}");
    }

    #[test]
    fn a_key_file_is_private_and_persistent() {
        let (_folder, path) = mk_path();
        let created = EncryptionKeys::load_or_create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(EncryptionKeys::load_or_create(&path).unwrap().current(), created.current());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = EncryptionKeys::load(&path).err().unwrap().to_string();
        assert!(error.contains("640") && error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn the_error_about_a_key_file_names_the_line_and_never_the_key() {
        let (_folder, path) = mk_path();
        let key = STANDARD.encode([1; KEY_LEN]);
        let write = |text: &str| {
            drop(fs::remove_file(&path));
            File::options().write(true).create_new(true).mode(0o600).open(&path).unwrap();
            fs::write(&path, text).unwrap();
            EncryptionKeys::load(&path)
        };
        for (text, cause) in [
            (String::new(), "no keys"),
            ("# only a comment\n".to_owned(), "no keys"),
            (format!("a {key}\n{key}\n"), "line 2"),
            ("a c2hvcnQ=\n".to_owned(), "32 bytes"),
            ("a not-base64!\n".to_owned(), "not base64"),
            (format!("a/b {key}\n"), "an id has"),
            (format!("a {key}\na {key}\n"), "another line"),
        ] {
            let error = write(&text).err().unwrap().to_string();
            assert!(error.contains(cause) && !error.contains(&key), "{text:?}: {error}");
        }
        assert_eq!(write(&format!("# comment\n\nb {key}\n")).unwrap().current(), "b");
    }
}
