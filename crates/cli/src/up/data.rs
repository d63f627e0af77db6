//! The data directory of `polis up`: all state that survives a restart, and a lock against a second process.
//!
//! | file | content |
//! |---|---|
//! | `version` | format version of this directory |
//! | `lock` | locked while a process uses the directory; contains its process id |
//! | `store.redb` | every object of every embedded plane |
//! | `ca.crt`, `ca.key`, `tokens.key` | certificate authority of the installation, and the key that signs its tokens |
//! | `kubeconfig` | a context for each plane |
//! | `cells/<city>` | number of the city, working files and logs of its instances |

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use polis_apiserver::Authority;

/// Format version of this program.
const VERSION: &str = "1";

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
        let lock = take_lock(path)?;
        let directory = Self { path: path.to_owned(), _lock: lock, _ephemeral: None };
        directory.check_version()?;
        Ok(directory)
    }

    /// A temporary directory that is deleted with the process.
    pub fn ephemeral() -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("polis-")
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

    /// The key that signs tokens. The first start creates it.
    pub fn token_key(&self) -> Result<Vec<u8>> {
        let path = self.path("tokens.key");
        if !path.exists() {
            let key = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
            write_private(&path, &key).with_context(|| format!("failed to write {}", path.display()))?;
        }
        fs::read(&path).with_context(|| format!("failed to read {}", path.display()))
    }
}

/// Writes a file with mode 0600 atomically: to a temporary file, fsync, rename.
pub fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(temporary, path)
}

fn take_lock(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let opened = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let mut file = opened.with_context(|| {
        format!("failed to write to the data directory {}: set another with --data-dir", folder.display())
    })?;
    match file.try_lock() {
        Ok(()) => {
            file.set_len(0)?;
            write!(file, "{}", std::process::id())?;
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

    #[test]
    fn the_error_about_a_directory_in_use_has_the_process_id() {
        let folder = tempfile::tempdir().unwrap();
        let first = DataDir::open(folder.path()).unwrap();
        let refused = DataDir::open(folder.path()).err().unwrap().to_string();
        assert!(refused.contains(&format!("in use by process {}", std::process::id())), "{refused}");
        drop(first);
        DataDir::open(folder.path()).unwrap();
    }

    #[test]
    fn a_directory_of_another_version_is_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("version"), "7").unwrap();
        let refused = DataDir::open(folder.path()).err().unwrap().to_string();
        assert!(refused.contains("version \"7\""), "{refused}");
        assert_eq!(fs::read_to_string(folder.path().join("version")).unwrap(), "7");
    }

    #[test]
    fn the_authority_and_the_token_key_are_persistent() {
        let folder = tempfile::tempdir().unwrap();
        let directory = DataDir::open(folder.path()).unwrap();
        assert_eq!(directory.authority().unwrap().pem(), directory.authority().unwrap().pem());
        assert_eq!(directory.token_key().unwrap(), directory.token_key().unwrap());
    }

    #[test]
    fn every_city_has_a_unique_and_persistent_number() {
        let folder = tempfile::tempdir().unwrap();
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
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let refused = DataDir::open(&file.join("below")).err().unwrap().to_string();
        assert!(refused.contains("--data-dir"), "{refused}");
    }
}
