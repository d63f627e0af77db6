//! The data directory of `polis up`: all state that survives a restart, and a lock against a second process.
//!
//! | file | content |
//! |---|---|
//! | `version` | format version of this directory |
//! | `lock` | locked while a process uses the directory; contains its process id |
//! | `store.redb` | every object of every embedded plane |
//! | `ca.crt`, `ca.key`, `tokens.key` | certificate authority of the installation, and the keys of its tokens |
//! | `secrets.key` | the keys that encrypt Secrets in the store |
//! | `audit.log`, `audit.log.<n>` | who asked the API for what |
//! | `kubeconfig` | a context for each plane |
//! | `cells/<city>` | number of the city, working files and logs of its instances |
//!
//! The directory and everything in it belong to the user of the process, and no other user can read or write
//! them: a certificate authority or a store that another user prepared must not be used.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use polis_apiserver::TokenKeys;
use polis_tls::Authority;
use rustix::fs::OFlags;

use super::{audit, encryption};

/// Format version of this program.
const VERSION: &str = "1";

/// The end of a private key in PEM.
const KEY_END: &str = "-----END PRIVATE KEY-----";

/// The files of the directory.
const FILES: [&str; 9] = [
    "version",
    "lock",
    "store.redb",
    "ca.crt",
    "ca.key",
    "tokens.key",
    "kubeconfig",
    encryption::FILE,
    audit::FILE,
];

/// A data directory that this process has locked.
pub struct DataDir {
    path: PathBuf,
    _lock: File,
    /// Deletes an ephemeral directory when it is dropped.
    _ephemeral: Option<tempfile::TempDir>,
}

/// The default data directory of this user; `None` if the home directory is unknown.
pub fn default_path() -> Option<PathBuf> {
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let data = data.or_else(|| std::env::home_dir().map(|home| home.join(".local/share")))?;
    Some(data.join("polis"))
}

impl DataDir {
    /// Creates the directory if it does not exist, and locks it.
    pub fn open(path: &Path) -> Result<Self> {
        // Absolute, because instances run in other directories, and because the summary prints the path.
        let path = &std::path::absolute(path).context("failed to read the working directory")?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).with_context(|| {
            format!("failed to create the data directory {}: set another with --data-dir", path.display())
        })?;
        make_private(path)?;
        let lock = take_lock(path)?;
        let directory = Self { path: path.to_owned(), _lock: lock, _ephemeral: None };
        directory.check_version()?;
        Ok(directory)
    }

    /// A temporary directory that is deleted with the process.
    pub fn ephemeral() -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("polis-")
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir()
            .context("failed to create a temporary directory")?;
        let directory = Self::open(folder.path())?;
        Ok(Self { _ephemeral: Some(folder), ..directory })
    }

    /// The path of a file in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The directory itself.
    pub fn folder(&self) -> &Path {
        &self.path
    }

    fn check_version(&self) -> Result<()> {
        let path = self.path("version");
        match fs::read_to_string(&path) {
            Ok(found) if found.trim() == VERSION => Ok(()),
            Ok(found) => bail!(
                "the data directory {} has format version {:?} and this program supports {VERSION}: use the program that created it, or set another directory with --data-dir",
                self.path.display(),
                found.trim()
            ),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => write_private(&path, VERSION)
                .with_context(|| {
                    format!(
                        "failed to write {}: free disk space, or set another directory with --data-dir",
                        path.display()
                    )
                }),
            Err(error) => Err(error).with_context(|| format!("failed to read {}", path.display())),
        }
    }

    /// Sorts cities by the order in which they were added to the directory.
    pub fn in_creation_order(&self, mut cities: Vec<String>) -> Vec<String> {
        cities.sort_by_key(|city| self.number_of(city).unwrap_or(u16::MAX));
        cities
    }

    fn number_of(&self, city: &str) -> Option<u16> {
        fs::read_to_string(self.path("cells").join(city).join("number")).ok()?.trim().parse().ok()
    }

    /// The number of each city, which selects the loopback addresses of its instances. A city keeps its
    /// number.
    pub fn numbers_of(&self, cities: &[&str]) -> Result<Vec<u16>> {
        let cells = self.path("cells");
        fs::create_dir_all(&cells).with_context(|| format!("failed to create {}", cells.display()))?;
        let listed = fs::read_dir(&cells).with_context(|| format!("failed to read {}", cells.display()))?;
        let mut taken: BTreeSet<u16> =
            listed.filter_map(|entry| self.number_of(&entry.ok()?.file_name().to_string_lossy())).collect();
        let mut numbers = Vec::new();
        for city in cities {
            if let Some(number) = self.number_of(city) {
                numbers.push(number);
                continue;
            }
            let free = (0..u16::MAX).find(|number| !taken.contains(number)).unwrap_or(u16::MAX);
            let path = cells.join(city).join("number");
            fs::create_dir_all(cells.join(city))
                .and_then(|()| write_private(&path, &free.to_string()))
                .with_context(|| format!("failed to write {}", path.display()))?;
            taken.insert(free);
            numbers.push(free);
        }
        Ok(numbers)
    }

    /// A number that differs between the installations of a machine. It selects where the search for loopback
    /// addresses begins: two installations that begin at one address take it from each other.
    pub fn address_seed(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.path.canonicalize().unwrap_or_else(|_| self.path.clone()).hash(&mut hasher);
        hasher.finish()
    }

    /// The certificate authority of this installation. The first start creates it.
    pub fn authority(&self) -> Result<Authority> {
        let (cert, key) = (self.path("ca.crt"), self.path("ca.key"));
        if !cert.exists() || !key.exists() {
            let authority = Authority::new()?;
            write_private(&key, &authority.key())
                .with_context(|| format!("failed to write {}", key.display()))?;
            write_private(&cert, authority.pem())
                .with_context(|| format!("failed to write {}", cert.display()))?;
            return Ok(authority);
        }
        let read = |path: &Path| {
            fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))
        };
        Authority::load(&read(&cert)?, &read(&key)?).with_context(|| {
            format!("{} and {} are not a valid certificate authority", cert.display(), key.display())
        })
    }

    /// The keys of service account tokens, in PEM: the first signs, all verify. The first start creates one;
    /// `rotate` puts a new one before it, and removes one that an earlier rotation left.
    pub fn token_keys(&self, rotate: bool) -> Result<TokenKeys> {
        let path = self.path("tokens.key");
        let stored = match fs::read_to_string(&path) {
            Ok(stored) => stored,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("failed to read {}", path.display())),
        };
        // Before tokens were JWTs, the file had a secret in hexadecimal digits. Those tokens have ended.
        let current = stored.find(KEY_END).map_or("", |end| &stored[..end + KEY_END.len()]);
        let keys = match current.is_empty() || rotate {
            true => format!("{}\n{current}\n", TokenKeys::new_key()?.trim_end()),
            false => stored.clone(),
        };
        if keys != stored {
            write_private(&path, &keys).with_context(|| format!("failed to write {}", path.display()))?;
        }
        TokenKeys::from_pem(&keys).with_context(|| format!("{} cannot be used", path.display()))
    }
}

/// Removes the permissions of other users from the directory and the files of this program in it. An error if
/// the directory is a link, if it or an entry belongs to another user, or if other users have access to a
/// directory with other content: it is not for this program to close `/etc` or a home directory to them.
fn make_private(folder: &Path) -> Result<()> {
    let shown = folder.display();
    let read = |path: &Path| {
        fs::symlink_metadata(path).with_context(|| format!("failed to read {}", path.display()))
    };
    let (user, found) = (rustix::process::geteuid().as_raw(), read(folder)?);
    if found.is_symlink() {
        bail!("the data directory {shown} is a link: set its target with --data-dir");
    }
    if found.uid() != user {
        bail!(
            "the data directory {shown} belongs to user {} and this process runs as user {user}: start Polis as its owner, or set another directory with --data-dir",
            found.uid()
        );
    }
    if is_open(&found) {
        let mut entries = fs::read_dir(folder).with_context(|| format!("failed to read {shown}"))?;
        let ours = ["version", "lock"].iter().all(|name| folder.join(name).exists());
        let empty = entries.next().is_none();
        if !ours && !empty {
            bail!(
                "other users have access to {shown}, which is not empty and not a data directory of Polis: set another directory with --data-dir, or remove their access with chmod 700"
            );
        }
        set_mode(folder, 0o700)?;
        if !empty {
            tracing::warn!("other users had access to the data directory {shown}: its mode is 0700 now");
        }
    }
    // Other users cannot add entries any more.
    for entry in fs::read_dir(folder).with_context(|| format!("failed to read {shown}"))? {
        let path = entry.with_context(|| format!("failed to read {shown}"))?.path();
        let found = read(&path)?;
        if found.uid() != user || found.is_symlink() {
            bail!(
                "{} in the data directory is a link or belongs to another user, so its content cannot be trusted: remove it, or set another directory with --data-dir",
                path.display()
            );
        }
        if found.is_file()
            && is_open(&found)
            && path.file_name().is_some_and(|name| FILES.iter().any(|own| name == *own))
        {
            set_mode(&path, 0o600)?;
        }
    }
    Ok(())
}

/// Whether other users have any access.
fn is_open(found: &fs::Metadata) -> bool {
    found.permissions().mode() & 0o077 != 0
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("failed to set the mode of {} to {mode:o}", path.display()))
}

/// Writes a file with mode 0600 atomically: to a new temporary file, fsync, rename. On a full disk an
/// existing file is overwritten in place, which needs no space: so Polis starts on a full disk, too.
pub fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    match write_atomically(path, text) {
        Err(error) if error.kind() == std::io::ErrorKind::StorageFull && path.is_file() => {
            let _nothing_was_written = fs::remove_file(path.with_extension("new"));
            let mut options = File::options();
            options.write(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
            let mut file = options.open(path)?;
            file.write_all(text.as_bytes())?;
            file.set_len(text.len() as u64)?;
            file.sync_all()
        }
        written => written,
    }
}

fn write_atomically(path: &Path, text: &str) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(temporary, path)
}

fn take_lock(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let opened = options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(&path);
    let mut file = opened.with_context(|| {
        format!("failed to write to the data directory {}: set another with --data-dir", folder.display())
    })?;
    match file.try_lock() {
        Ok(()) => {
            // In place, which needs no space on a full disk.
            let process = std::process::id().to_string();
            file.write_all(process.as_bytes())?;
            file.set_len(process.len() as u64)?;
            Ok(file)
        }
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _empty_while_it_starts = file.read_to_string(&mut holder);
            bail!(
                "the data directory {} is in use by process {}: stop that process, or set another directory with --data-dir",
                folder.display(),
                if holder.is_empty() { "unknown" } else { &holder }
            )
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("failed to lock {}", path.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_folder() -> tempfile::TempDir {
        let private = fs::Permissions::from_mode(0o700);
        tempfile::Builder::new().permissions(private).tempdir().unwrap()
    }

    #[test]
    fn the_error_about_a_directory_in_use_has_the_process_id() {
        let folder = mk_folder();
        let first = DataDir::open(folder.path()).unwrap();
        let refused = DataDir::open(folder.path()).err().unwrap().to_string();
        assert!(refused.contains(&format!("in use by process {}", std::process::id())), "{refused}");
        drop(first);
        DataDir::open(folder.path()).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn other_users_lose_their_access_to_the_directory_and_its_files() {
        let folder = mk_folder();
        drop(DataDir::open(folder.path()).unwrap());
        let store = folder.path().join("store.redb");
        fs::write(&store, "").unwrap();
        set_mode(folder.path(), 0o777).unwrap();
        set_mode(&store, 0o644).unwrap();
        let directory = DataDir::open(folder.path()).unwrap();
        directory.authority().unwrap();
        directory.token_keys(false).unwrap();
        assert_eq!(mode(folder.path()), 0o700);
        for name in ["store.redb", "version", "lock", "ca.crt", "ca.key", "tokens.key"] {
            assert_eq!(mode(&folder.path().join(name)), 0o600, "{name}");
        }
    }

    #[test]
    fn the_mode_of_a_directory_with_other_content_is_not_changed() {
        let folder = mk_folder();
        fs::write(folder.path().join("notes"), "").unwrap();
        set_mode(folder.path(), 0o755).unwrap();
        let refused = DataDir::open(folder.path()).err().unwrap().to_string();
        assert!(refused.contains("chmod 700") && refused.contains("--data-dir"), "{refused}");
        assert_eq!(mode(folder.path()), 0o755);
        set_mode(folder.path(), 0o700).unwrap();
        let before = mode(&folder.path().join("notes"));
        DataDir::open(folder.path()).unwrap();
        assert_eq!(mode(&folder.path().join("notes")), before);
    }

    #[test]
    fn a_directory_that_is_a_link_or_contains_one_is_refused() {
        let folder = mk_folder();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::DirBuilder::new().mode(0o700).create(&target).unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let refused = DataDir::open(&link).err().unwrap().to_string();
        assert!(refused.contains("is a link") && refused.contains("--data-dir"), "{refused}");
        std::os::unix::fs::symlink("/etc/passwd", target.join("ca.key")).unwrap();
        let refused = DataDir::open(&target).err().unwrap().to_string();
        assert!(refused.contains("ca.key") && refused.contains("remove it"), "{refused}");
    }

    #[test]
    fn a_directory_or_a_key_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can create files of another user");
            return;
        }
        let folder = mk_folder();
        let key = folder.path().join("ca.key");
        fs::write(&key, "planted").unwrap();
        std::os::unix::fs::chown(&key, Some(4711), None).unwrap();
        let refused = DataDir::open(folder.path()).err().unwrap().to_string();
        assert!(refused.contains("ca.key") && refused.contains("another user"), "{refused}");
        fs::remove_file(&key).unwrap();
        std::os::unix::fs::chown(folder.path(), Some(4711), None).unwrap();
        let refused = DataDir::open(folder.path()).err().unwrap().to_string();
        assert!(refused.contains("belongs to user 4711") && refused.contains("--data-dir"), "{refused}");
    }

    #[test]
    fn a_link_with_the_name_of_the_temporary_file_is_not_followed() {
        let folder = mk_folder();
        let (path, other) = (folder.path().join("kubeconfig"), folder.path().join("other"));
        std::os::unix::fs::symlink(&other, path.with_extension("new")).unwrap();
        write_private(&path, "text").unwrap();
        assert!(!other.exists());
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), mode(&path)), ("text", 0o600));
    }

    #[test]
    fn a_directory_of_another_version_is_not_changed() {
        let folder = mk_folder();
        fs::write(folder.path().join("version"), "7").unwrap();
        let refused = DataDir::open(folder.path()).err().unwrap().to_string();
        assert!(refused.contains("version \"7\""), "{refused}");
        assert_eq!(fs::read_to_string(folder.path().join("version")).unwrap(), "7");
    }

    #[test]
    fn the_authority_and_the_token_keys_are_persistent() {
        let folder = mk_folder();
        let directory = DataDir::open(folder.path()).unwrap();
        assert_eq!(directory.authority().unwrap().pem(), directory.authority().unwrap().pem());
        let keys = |rotate| {
            directory.token_keys(rotate).unwrap();
            fs::read_to_string(directory.path("tokens.key")).unwrap()
        };
        // A secret of an earlier release is replaced.
        write_private(&directory.path("tokens.key"), "0123456789abcdef").unwrap();
        let first = keys(false);
        assert_eq!(keys(false), first);
        let rotated = keys(true);
        assert_eq!(rotated.matches(KEY_END).count(), 2);
        assert!(rotated.contains(first.trim_end()) && !rotated.starts_with(first.trim_end()));
        assert_eq!(keys(false), rotated);
        let again = keys(true);
        assert_eq!(again.matches(KEY_END).count(), 2);
        assert!(!again.contains(first.trim_end()), "the oldest key is removed");
    }

    #[test]
    fn every_city_has_a_unique_and_persistent_number() {
        let folder = mk_folder();
        let directory = DataDir::open(folder.path()).unwrap();
        assert_eq!(directory.numbers_of(&["dfw", "ord"]).unwrap(), [0, 1]);
        assert_eq!(directory.numbers_of(&["lhr", "ord", "dfw"]).unwrap(), [2, 1, 0]);
        let by_name = ["dfw", "lhr", "new", "ord"].map(str::to_owned).to_vec();
        assert_eq!(
            directory.in_creation_order(by_name),
            ["dfw", "ord", "lhr", "new"],
            "in the order in which they were added"
        );
    }

    #[test]
    fn the_error_about_a_directory_that_cannot_be_created_names_the_flag() {
        let folder = mk_folder();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let refused = DataDir::open(&file.join("below")).err().unwrap().to_string();
        assert!(refused.contains("--data-dir"), "{refused}");
    }
}
