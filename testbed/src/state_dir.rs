//! The state directory of one test cluster.
//!
//! All state is in this directory: removing it after the test cluster is down leaves nothing behind.
//!
//! ```text
//! cluster.json       the planes, the owner process, and whether the start is complete
//! lock               held by the process that starts or owns the test cluster
//! run/<component>    arguments, ports and process of each component
//! log/<component>    its output
//! pki/               certificate authority and certificates
//! kubeconfig/<plane> admin access to each plane
//! etcd/              the data of all planes
//! ```

use std::{
    env, fs,
    fs::{File, TryLockError},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::{
    Error, TestPlane, TimingProfile,
    process::{ProcessId, Processes},
};

/// The file of [`ClusterState`].
const STATE_FILE: &str = "cluster.json";
const ENTRIES: [&str; 6] = [STATE_FILE, "run", "log", "pki", "kubeconfig", "etcd"];

/// `$XDG_CACHE_HOME/polis/testbed`: the programs, and test clusters without a directory of their own.
pub fn cache() -> Result<PathBuf, Error> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    Ok(cache.ok_or(Error::NoCacheDir)?.join("polis").join("testbed"))
}

/// The default directory of `cargo xtask testbed up`.
pub fn default_dir() -> Result<PathBuf, Error> {
    Ok(cache()?.join("cluster"))
}

/// The state of a test cluster, as every process that attaches to it reads it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ClusterState {
    /// Whether the start is complete. An incomplete test cluster may be removed once its lock is free.
    pub ready: bool,
    /// The owner process: the test cluster ends with it. `None` after a release.
    pub owner: Option<ProcessId>,
    /// The process group of all components.
    pub group: u32,
    /// The directory of the programs.
    pub binaries: PathBuf,
    /// How quickly Karmada probes its members and retries.
    pub timing: TimingProfile,
    /// The planes.
    pub planes: Vec<TestPlane>,
}

/// The state directory of one test cluster.
#[derive(Debug, Clone)]
pub struct StateDir {
    dir: PathBuf,
    /// Held while this process starts or owns the test cluster.
    lock: Option<Arc<File>>,
}

impl StateDir {
    /// Claims a directory for a new test cluster: the given one, or a new one in the cache. Processes and
    /// files of an incomplete start are removed first. A running test cluster and foreign files are an error.
    pub fn claim(dir: Option<&Path>) -> Result<StateDir, Error> {
        match dir {
            Some(dir) => StateDir::claim_at(dir),
            None => StateDir::claim_fresh(&cache()?.join("clusters")),
        }
    }

    fn claim_at(dir: &Path) -> Result<StateDir, Error> {
        let dir = std::path::absolute(dir).map_err(Error::file("find", dir))?;
        fs::create_dir_all(&dir).map_err(Error::file("create", &dir))?;
        let foreign = |name: &str| name != "lock" && !ENTRIES.contains(&name);
        let names = entries(&dir)?;
        if names.iter().any(|name| foreign(name)) || (!names.is_empty() && !is_state_dir(&names)) {
            return Err(Error::ForeignDirectory(dir));
        }
        let state_dir = StateDir { lock: Some(Arc::new(lock(&dir)?)), dir };
        let leftover = Processes::new(&state_dir, 0);
        if state_dir.read().is_ok_and(|state| state.ready) && leftover.any_alive()? {
            return Err(Error::AlreadyUp(state_dir.dir));
        }
        leftover.kill_all()?;
        state_dir.clear_entries()?;
        for folder in ["run", "log", "pki", "kubeconfig", "etcd"] {
            let path = state_dir.dir.join(folder);
            fs::create_dir_all(&path).map_err(Error::file("create", &path))?;
        }
        Ok(state_dir)
    }

    /// Claims a new directory below `parent`, and removes the directories there whose owner was killed.
    fn claim_fresh(parent: &Path) -> Result<StateDir, Error> {
        fs::create_dir_all(parent).map_err(Error::file("create", parent))?;
        // Held until the new directory has a lock of its own; otherwise another process could remove it.
        let path = parent.join("lock");
        let parent_lock = open_lock(&path)?;
        parent_lock.lock().map_err(Error::file("lock", &path))?;
        for name in entries(parent)?.iter().filter(|name| *name != "lock") {
            let dir = parent.join(name);
            if let Ok(lock) = lock(&dir) {
                let state_dir = StateDir { dir, lock: Some(Arc::new(lock)) };
                Processes::new(&state_dir, 0).kill_all()?;
                state_dir.clear()?;
            }
        }
        let fresh = tempfile::Builder::new()
            .prefix("cluster-")
            .tempdir_in(parent)
            .map_err(Error::file("create", parent))?;
        StateDir::claim_at(&fresh.keep())
    }

    /// Opens the state directory of an existing test cluster.
    pub fn find(dir: &Path) -> Result<(StateDir, ClusterState), Error> {
        let dir = std::path::absolute(dir).map_err(Error::file("find", dir))?;
        let state_dir = StateDir { dir, lock: None };
        match state_dir.read() {
            Ok(state) => Ok((state_dir, state)),
            Err(_) => Err(Error::NoTestCluster(state_dir.dir)),
        }
    }

    /// Its path.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The log file of a component.
    pub fn log(&self, component: &str) -> PathBuf {
        self.dir.join("log").join(component)
    }

    /// The record file of a component.
    pub fn run(&self, component: &str) -> PathBuf {
        self.dir.join("run").join(component)
    }

    /// The admin kubeconfig of a plane.
    pub fn kubeconfig(&self, plane: &str) -> PathBuf {
        self.dir.join("kubeconfig").join(plane)
    }

    /// The directory of the certificates.
    pub fn pki(&self) -> PathBuf {
        self.dir.join("pki")
    }

    /// The data directory of etcd.
    pub fn etcd(&self) -> PathBuf {
        self.dir.join("etcd")
    }

    /// Reads the state file.
    pub fn read(&self) -> Result<ClusterState, Error> {
        let path = self.dir.join(STATE_FILE);
        let text = fs::read(&path).map_err(Error::file("read", &path))?;
        serde_json::from_slice(&text)
            .map_err(|err| Error::Manifest { name: path.display().to_string(), why: err.to_string() })
    }

    /// Writes the state file atomically.
    pub fn write(&self, state: &ClusterState) -> Result<(), Error> {
        write_atomically(
            &self.dir.join(STATE_FILE),
            &serde_json::to_vec_pretty(state).expect("a state is plain data"),
        )
    }

    /// Releases the lock.
    pub fn unlock(&mut self) {
        self.lock = None;
    }

    /// Acquires the lock, in order to stop the test cluster.
    pub fn relock(&mut self) -> Result<(), Error> {
        self.lock = Some(Arc::new(lock(&self.dir)?));
        Ok(())
    }

    /// Removes all state, and the directory itself if it holds no other files.
    pub fn clear(&self) -> Result<(), Error> {
        self.clear_entries()?;
        let lock = self.dir.join("lock");
        remove(&lock)?;
        match fs::remove_dir(&self.dir) {
            // Not empty: foreign files stay.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn clear_entries(&self) -> Result<(), Error> {
        ENTRIES.iter().try_for_each(|entry| remove(&self.dir.join(entry)))
    }
}

/// Writes a temporary file and renames it, so that a reader sees the old or the new content, never a part.
pub(crate) fn write_atomically(path: &Path, text: &[u8]) -> Result<(), Error> {
    let folder = path.parent().expect("a file has a parent directory");
    let mut file =
        tempfile::NamedTempFile::new_in(folder).map_err(Error::file("create a file in", folder))?;
    std::io::Write::write_all(&mut file, text).map_err(Error::file("write", path))?;
    file.persist(path).map_err(|err| Error::file("write", path)(err.error))?;
    Ok(())
}

fn entries(dir: &Path) -> Result<Vec<String>, Error> {
    let listed = fs::read_dir(dir).map_err(Error::file("list", dir))?;
    Ok(listed.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect())
}

/// A lock or state file identifies a state directory; `etcd` or `log` alone do not.
fn is_state_dir(names: &[String]) -> bool {
    names.iter().any(|name| name == "lock" || name == STATE_FILE)
}

fn open_lock(path: &Path) -> Result<File, Error> {
    File::options().create(true).truncate(false).write(true).open(path).map_err(Error::file("open", path))
}

fn lock(dir: &Path) -> Result<File, Error> {
    let path = dir.join("lock");
    let file = open_lock(&path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Busy(dir.to_owned())),
        Err(TryLockError::Error(err)) => Err(Error::file("lock", path)(err)),
    }
}

fn remove(path: &Path) -> Result<(), Error> {
    let removed = match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    };
    removed.map_err(Error::file("remove", path))
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    fn mk_dir() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn a_directory_with_foreign_files_is_rejected_and_kept() {
        let dir = mk_dir();
        fs::write(dir.path().join("thesis.tex"), "years").unwrap();
        let message = StateDir::claim(Some(dir.path())).unwrap_err().to_string();
        assert!(
            message.ends_with("is not empty and holds no test cluster: choose another directory"),
            "{message}"
        );
        assert!(dir.path().join("thesis.tex").exists());
    }

    #[test]
    fn a_directory_without_lock_and_state_file_is_rejected() {
        let dir = mk_dir();
        fs::create_dir(dir.path().join("log")).unwrap();
        assert!(matches!(StateDir::claim(Some(dir.path())), Err(Error::ForeignDirectory(_))));
    }

    #[test]
    fn a_directory_is_claimed_by_one_process_at_a_time() {
        let dir = mk_dir();
        let first = StateDir::claim(Some(dir.path())).unwrap();
        assert!(matches!(StateDir::claim(Some(dir.path())), Err(Error::Busy(_))));
        drop(first);
        // A process that another test starts holds a copy of the lock until it executes its program.
        let deadline = Instant::now() + Duration::from_secs(10);
        while let Err(error) = StateDir::claim(Some(dir.path())) {
            assert!(matches!(error, Error::Busy(_)) && Instant::now() < deadline, "{error}");
            thread::yield_now();
        }
    }

    #[test]
    fn an_incomplete_start_is_removed_by_the_next_claim() {
        let dir = mk_dir();
        let incomplete = StateDir::claim(Some(dir.path())).unwrap();
        incomplete.write(&ClusterState::default()).unwrap();
        fs::write(incomplete.log("etcd"), "half a line").unwrap();
        drop(incomplete);
        let next = StateDir::claim(Some(dir.path())).unwrap();
        assert!(!next.log("etcd").exists());
        assert!(next.read().is_err());
    }

    #[test]
    fn clear_removes_the_directory() {
        let parent = mk_dir();
        let dir = parent.path().join("cluster");
        let state_dir = StateDir::claim(Some(&dir)).unwrap();
        state_dir.write(&ClusterState::default()).unwrap();
        state_dir.clear().unwrap();
        assert!(!dir.exists());
    }

    #[test]
    fn the_error_for_an_empty_directory_names_the_command_to_start_one() {
        let dir = mk_dir();
        let message = StateDir::find(dir.path()).unwrap_err().to_string();
        assert!(message.contains("start one with `cargo xtask testbed up --dir"), "{message}");
    }

    #[test]
    fn a_fresh_claim_removes_directories_without_an_owner() {
        let parent = mk_dir();
        let released = StateDir::claim_fresh(parent.path()).unwrap();
        let kept = StateDir::claim_fresh(parent.path()).unwrap();
        let dir = released.dir().to_owned();
        drop(released);
        let next = StateDir::claim_fresh(parent.path()).unwrap();
        assert!(!dir.exists() || next.dir() == dir);
        assert!(kept.dir().exists());
    }
}
