//! The directory in which all state of one bed lives.
//!
//! Nothing of a bed is anywhere else: remove the directory of a bed that is down and no trace is left.
//!
//! ```text
//! bed.json           which planes there are, whether the bed is ready, who owns it
//! lock               held by the process that starts or owns the bed
//! run/<component>    how each component was started, and as which process
//! log/<component>    what it said
//! pki/               the bed's authority and certificates
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
    Error, Plane, Tempo,
    process::{Identity, Processes},
};

const ENTRIES: [&str; 6] = ["bed.json", "run", "log", "pki", "kubeconfig", "etcd"];

/// `$XDG_CACHE_HOME/polis/testbed`: the binaries of all beds, and beds that were given no directory.
pub fn cache() -> Result<PathBuf, Error> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    Ok(cache.ok_or(Error::NoCacheDir)?.join("polis").join("testbed"))
}

/// Where `cargo xtask testbed up` keeps its bed unless told otherwise.
pub fn default_dir() -> Result<PathBuf, Error> {
    Ok(cache()?.join("bed"))
}

/// What is known of a bed by everyone who finds its directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct State {
    /// Whether it was started to the end. What was not is nobody's, and may be cleared away.
    pub ready: bool,
    /// The process that ends the bed when it ends; none for a bed that lives on by itself.
    pub owner: Option<Identity>,
    /// The process group of all components.
    pub group: u32,
    /// Where the programs are.
    pub binaries: PathBuf,
    /// How quickly Karmada notices and retries.
    pub tempo: Tempo,
    /// The planes.
    pub planes: Vec<Plane>,
}

/// The directory of one bed.
#[derive(Debug, Clone)]
pub struct Home {
    dir: PathBuf,
    /// Held for as long as this process starts or owns the bed.
    lock: Option<Arc<File>>,
}

impl Home {
    /// Takes a directory for a new bed: the given one, or a fresh one in the cache. Leftovers of a bed that
    /// was cut off are ended and cleared away; a bed that runs, and anything that is no bed, is left alone.
    pub fn claim(dir: Option<&Path>) -> Result<Home, Error> {
        match dir {
            Some(dir) => Home::claim_at(dir),
            None => Home::claim_fresh(&cache()?.join("beds")),
        }
    }

    fn claim_at(dir: &Path) -> Result<Home, Error> {
        let dir = std::path::absolute(dir).map_err(Error::file("find", dir))?;
        fs::create_dir_all(&dir).map_err(Error::file("create", &dir))?;
        let foreign = |name: &str| name != "lock" && !ENTRIES.contains(&name);
        let names = entries(&dir)?;
        if names.iter().any(|name| foreign(name)) || (!names.is_empty() && !is_ours(&names)) {
            return Err(Error::NotABed(dir));
        }
        let home = Home { lock: Some(Arc::new(lock(&dir)?)), dir };
        let leftover = Processes::new(&home, 0);
        if home.read().is_ok_and(|state| state.ready) && leftover.any_alive()? {
            return Err(Error::AlreadyUp(home.dir));
        }
        leftover.kill_all()?;
        home.clear_entries()?;
        for folder in ["run", "log", "pki", "kubeconfig", "etcd"] {
            let path = home.dir.join(folder);
            fs::create_dir_all(&path).map_err(Error::file("create", &path))?;
        }
        Ok(home)
    }

    /// A directory that no one else has, among those of beds whose owners are tests. Beds of owners that
    /// were killed are cleared away on the way.
    fn claim_fresh(beds: &Path) -> Result<Home, Error> {
        fs::create_dir_all(beds).map_err(Error::file("create", beds))?;
        // Held while a directory is new and has no lock of its own yet, so that nobody takes it for a leftover.
        let path = beds.join("lock");
        let turn = open_lock(&path)?;
        turn.lock().map_err(Error::file("lock", &path))?;
        for name in entries(beds)?.iter().filter(|name| *name != "lock") {
            let dir = beds.join(name);
            if let Ok(lock) = lock(&dir) {
                let home = Home { dir, lock: Some(Arc::new(lock)) };
                Processes::new(&home, 0).kill_all()?;
                home.clear()?;
            }
        }
        let fresh =
            tempfile::Builder::new().prefix("bed-").tempdir_in(beds).map_err(Error::file("create", beds))?;
        Home::claim_at(&fresh.keep())
    }

    /// The bed that is in this directory.
    pub fn find(dir: &Path) -> Result<(Home, State), Error> {
        let dir = std::path::absolute(dir).map_err(Error::file("find", dir))?;
        let home = Home { dir, lock: None };
        match home.read() {
            Ok(state) => Ok((home, state)),
            Err(_) => Err(Error::NoBed(home.dir)),
        }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The log of a component.
    pub fn log(&self, component: &str) -> PathBuf {
        self.dir.join("log").join(component)
    }

    /// The record of a component.
    pub fn run(&self, component: &str) -> PathBuf {
        self.dir.join("run").join(component)
    }

    /// Admin access to a plane.
    pub fn kubeconfig(&self, plane: &str) -> PathBuf {
        self.dir.join("kubeconfig").join(plane)
    }

    /// The certificates.
    pub fn pki(&self) -> PathBuf {
        self.dir.join("pki")
    }

    /// The data of all planes.
    pub fn etcd(&self) -> PathBuf {
        self.dir.join("etcd")
    }

    /// Reads the state of the bed.
    pub fn read(&self) -> Result<State, Error> {
        let path = self.dir.join("bed.json");
        let text = fs::read(&path).map_err(Error::file("read", &path))?;
        serde_json::from_slice(&text)
            .map_err(|err| Error::Manifest { name: path.display().to_string(), why: err.to_string() })
    }

    /// Writes the state of the bed, whole or not at all.
    pub fn write(&self, state: &State) -> Result<(), Error> {
        write_whole(
            &self.dir.join("bed.json"),
            &serde_json::to_vec_pretty(state).expect("a state is plain data"),
        )
    }

    /// Lets others work on the directory again.
    pub fn unlock(&mut self) {
        self.lock = None;
    }

    /// Takes the directory to end its bed.
    pub fn relock(&mut self) -> Result<(), Error> {
        self.lock = Some(Arc::new(lock(&self.dir)?));
        Ok(())
    }

    /// Removes everything of the bed, and the directory itself when nothing else is in it.
    pub fn clear(&self) -> Result<(), Error> {
        self.clear_entries()?;
        let lock = self.dir.join("lock");
        remove(&lock)?;
        match fs::remove_dir(&self.dir) {
            // Not empty: somebody put something there, it is not ours to remove.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn clear_entries(&self) -> Result<(), Error> {
        ENTRIES.iter().try_for_each(|entry| remove(&self.dir.join(entry)))
    }
}

/// Writes a file by way of a second one, so that a reader sees the old text or the new one and never a half.
pub(crate) fn write_whole(path: &Path, text: &[u8]) -> Result<(), Error> {
    let folder = path.parent().expect("a file is in a folder");
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

/// A lock or a state say that the directory is a bed's; `etcd` or `log` alone could be anybody's.
fn is_ours(names: &[String]) -> bool {
    names.iter().any(|name| name == "lock" || name == "bed.json")
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
    use super::*;

    fn mk_dir() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn a_directory_that_holds_something_else_is_left_alone() {
        let dir = mk_dir();
        fs::write(dir.path().join("thesis.tex"), "years").unwrap();
        let message = Home::claim(Some(dir.path())).unwrap_err().to_string();
        assert!(message.ends_with("is not empty and holds no bed: choose another directory"), "{message}");
        assert!(dir.path().join("thesis.tex").exists());
    }

    #[test]
    fn a_folder_that_only_looks_like_part_of_a_bed_is_left_alone() {
        let dir = mk_dir();
        fs::create_dir(dir.path().join("log")).unwrap();
        assert!(matches!(Home::claim(Some(dir.path())), Err(Error::NotABed(_))));
    }

    #[test]
    fn two_processes_do_not_work_on_one_directory() {
        let dir = mk_dir();
        let first = Home::claim(Some(dir.path())).unwrap();
        assert!(matches!(Home::claim(Some(dir.path())), Err(Error::Busy(_))));
        drop(first);
        assert!(Home::claim(Some(dir.path())).is_ok());
    }

    #[test]
    fn a_bed_that_was_cut_off_is_cleared_away_by_the_next() {
        let dir = mk_dir();
        let cut_off = Home::claim(Some(dir.path())).unwrap();
        cut_off.write(&State::default()).unwrap();
        fs::write(cut_off.log("etcd"), "half a line").unwrap();
        drop(cut_off);
        let next = Home::claim(Some(dir.path())).unwrap();
        assert!(!next.log("etcd").exists());
        assert!(next.read().is_err());
    }

    #[test]
    fn clearing_leaves_nothing() {
        let parent = mk_dir();
        let dir = parent.path().join("bed");
        let home = Home::claim(Some(&dir)).unwrap();
        home.write(&State::default()).unwrap();
        home.clear().unwrap();
        assert!(!dir.exists());
    }

    #[test]
    fn a_directory_without_a_bed_says_how_to_start_one() {
        let dir = mk_dir();
        let message = Home::find(dir.path()).unwrap_err().to_string();
        assert!(message.contains("start one with `cargo xtask testbed up --dir"), "{message}");
    }

    #[test]
    fn fresh_directories_clear_away_those_of_owners_that_are_gone() {
        let beds = mk_dir();
        let gone = Home::claim_fresh(beds.path()).unwrap();
        let kept = Home::claim_fresh(beds.path()).unwrap();
        let dir = gone.dir().to_owned();
        drop(gone);
        let next = Home::claim_fresh(beds.path()).unwrap();
        assert!(!dir.exists() || next.dir() == dir);
        assert!(kept.dir().exists());
    }
}
