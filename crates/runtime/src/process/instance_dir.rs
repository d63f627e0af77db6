//! The directory of an instance: `<dir>/<uid>/`, with one subdirectory per container.
//!
//! `seat.json` records the instance's identity, address and ports; it is written before anything else. A
//! container's directory holds the shim's files (`state.json`, `shim.lock`, `output.log`) and the program's
//! working directory `work`. No file holds a secret: the launch request goes to the shim over a pipe. The
//! mode is 0700.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::shim;

const RECORD_FILE: &str = "seat.json";
/// The working directory, in a container's directory.
const WORK_DIR: &str = "work";
/// Temporary files, in the working directory.
const TEMP_DIR: &str = "tmp";

/// Identity of an instance, and what was allocated for its lifetime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InstanceRecord {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) address: Ipv4Addr,
    /// Port mapping, from the container's port to the host's port; empty if the instance has its own address.
    pub(crate) ports: BTreeMap<u16, u16>,
}

/// The directory of an instance; `None` if the UID is not usable as a directory name.
pub(crate) fn path(dir: &Path, uid: &str) -> Option<PathBuf> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (!uid.is_empty() && uid.len() <= 128 && uid.bytes().all(plain)).then(|| dir.join(uid))
}

impl InstanceRecord {
    /// The records in all instance directories.
    pub(crate) fn all(dir: &Path) -> io::Result<Vec<InstanceRecord>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            all.extend(InstanceRecord::read(&path));
        }
        Ok(all)
    }

    /// The record in an instance directory; `None` if it is missing or not readable.
    fn read(instance_dir: &Path) -> Option<InstanceRecord> {
        serde_json::from_slice(&fs::read(instance_dir.join(RECORD_FILE)).ok()?).ok()
    }

    /// Creates the directory and writes the record.
    pub(crate) fn write(&self, dir: &Path) -> Result<PathBuf, Error> {
        let path = path(dir, &self.uid).ok_or_else(|| Error::Uid { instance: self.uid.clone() })?;
        create_private_dir(&path)?;
        let content = serde_json::to_vec(self).map_err(|error| Error::directory(&path)(error.into()))?;
        shim::replace_file(&path.join(RECORD_FILE), &content).map_err(Error::directory(&path))?;
        Ok(path)
    }

    /// The host port of a container port.
    pub(crate) fn port(&self, wanted: u16) -> u16 {
        self.ports.get(&wanted).copied().unwrap_or(wanted)
    }
}

/// Creates the directory of a container and its working directory. Returns both.
pub(crate) fn create_container(instance_dir: &Path, name: &str) -> Result<(PathBuf, PathBuf), Error> {
    let path = instance_dir.join(name);
    let work = path.join(WORK_DIR);
    create_private_dir(&work.join(TEMP_DIR))?;
    Ok((path, work))
}

/// The directory for a container's temporary files.
pub(crate) fn temp_dir(work: &Path) -> PathBuf {
    work.join(TEMP_DIR)
}

fn create_private_dir(path: &Path) -> Result<(), Error> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(Error::directory(path))
}

/// Names of the containers that have a directory.
pub(crate) fn containers(instance_dir: &Path) -> Result<Vec<String>, Error> {
    let list = || -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(instance_dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort();
        Ok(names)
    };
    match list() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        done => done.map_err(Error::directory(instance_dir)),
    }
}

/// Deletes the directory of an instance, unless a shim runs in it; then returns false. The locks of all
/// containers are held meanwhile, so that a starting shim cannot enter.
pub(crate) fn remove(instance_dir: &Path) -> Result<bool, Error> {
    let mut held = Vec::new();
    for container in containers(instance_dir)? {
        match shim::try_lock(&instance_dir.join(container)).map_err(Error::directory(instance_dir))? {
            Some(lock) => held.push(lock),
            None => return Ok(false),
        }
    }
    match fs::remove_dir_all(instance_dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::directory(instance_dir)(error)),
        _ => Ok(true),
    }
}

/// Deletes directories without a readable record: Polis or the machine stopped between creating the directory
/// and writing the record. A directory with a running shim stays.
pub(crate) fn remove_incomplete(dir: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(dir).map_err(Error::directory(dir))? {
        let instance_dir = entry.map_err(Error::directory(dir))?.path();
        if instance_dir.is_dir() && InstanceRecord::read(&instance_dir).is_none() {
            remove(&instance_dir)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_record(uid: &str) -> InstanceRecord {
        InstanceRecord {
            uid: uid.into(),
            namespace: "ns-1".into(),
            name: "web-0".into(),
            address: Ipv4Addr::new(127, 20, 0, 1),
            ports: [(80, 40080)].into(),
        }
    }

    #[test]
    fn a_directory_has_a_record_and_its_containers() {
        let dir = tempfile::tempdir().unwrap();
        let instance_dir = mk_record("u-1").write(dir.path()).unwrap();
        create_container(&instance_dir, "app").unwrap();
        assert_eq!(InstanceRecord::all(dir.path()).unwrap(), [mk_record("u-1")]);
        assert_eq!(containers(&instance_dir).unwrap(), ["app"]);
        assert_eq!((mk_record("u-1").port(80), mk_record("u-1").port(81)), (40080, 81));
    }

    #[test]
    fn a_uid_cannot_escape_the_directory() {
        for uid in ["", "..", "a/b", "../x", "a.b"] {
            assert_eq!(path(Path::new("/d"), uid), None, "{uid}");
        }
        assert!(matches!(mk_record("../x").write(Path::new("/nowhere")), Err(Error::Uid { .. })));
    }

    #[test]
    fn a_directory_with_a_running_shim_stays() {
        let dir = tempfile::tempdir().unwrap();
        let instance_dir = mk_record("u-1").write(dir.path()).unwrap();
        let (path, _) = create_container(&instance_dir, "app").unwrap();
        let shim = shim::try_lock(&path).unwrap().unwrap();
        assert!(!remove(&instance_dir).unwrap());
        assert!(instance_dir.exists());
        drop(shim);
        assert!(remove(&instance_dir).unwrap());
        assert!(!instance_dir.exists());
        assert!(remove(&instance_dir).unwrap(), "deleting it again succeeds");
    }

    #[test]
    fn directories_without_a_record_are_removed_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        mk_record("u-1").write(dir.path()).unwrap();
        fs::create_dir(dir.path().join("u-2")).unwrap();
        fs::create_dir(dir.path().join("u-3")).unwrap();
        fs::write(dir.path().join("u-3").join(RECORD_FILE), "").unwrap(); // the machine lost power
        remove_incomplete(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(InstanceRecord::all(dir.path()).unwrap(), [mk_record("u-1")]);
    }
}
