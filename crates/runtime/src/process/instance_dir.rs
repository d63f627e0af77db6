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
/// The mount point of the root, in a container's directory.
const ROOT_DIR: &str = "root";
/// The writable layer of a container from an image, in its directory.
#[cfg(target_os = "linux")]
const LAYER_DIR: &str = "layer";
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

/// Creates the directory of a container, the directory for its root, and its working directory. Returns the
/// last. The working directory belongs to `owner`, if given.
pub(crate) fn create_container(
    instance_dir: &Path,
    name: &str,
    owner: Option<u32>,
) -> Result<PathBuf, Error> {
    let path = instance_dir.join(name);
    let work = path.join(WORK_DIR);
    create_private_dir(&path.join(ROOT_DIR))?;
    for dir in [&work, &work.join(TEMP_DIR)] {
        // Do not touch what the program has put there in an earlier run.
        if fs::symlink_metadata(dir).is_ok() {
            continue;
        }
        create_private_dir(dir)?;
        if let Some(owner) = owner {
            std::os::unix::fs::lchown(dir, Some(owner), Some(owner)).map_err(Error::directory(dir))?;
        }
    }
    Ok(work)
}

/// Deletes the files of a container, so that it starts with an empty working directory.
pub(crate) fn clear_container(instance_dir: &Path, name: &str) -> Result<(), Error> {
    let work = instance_dir.join(name).join(WORK_DIR);
    remove_tree(&work).map_err(Error::directory(work))
}

/// Creates the writable layer of a container from an image; returns its directory. It is empty: as in
/// Kubernetes, a container starts with the files of its image.
#[cfg(target_os = "linux")]
pub(crate) fn create_layer(instance_dir: &Path, name: &str) -> Result<PathBuf, Error> {
    let path = instance_dir.join(name);
    let layer = path.join(LAYER_DIR);
    remove_tree(&layer).map_err(Error::directory(&layer))?;
    for dir in [path.join(ROOT_DIR), layer.join("work")] {
        create_private_dir(&dir)?;
    }
    // The mode of the container's root directory.
    DirBuilder::new().mode(0o755).create(layer.join("upper")).map_err(Error::directory(&layer))?;
    Ok(layer)
}

/// The directory on which the root of a container is mounted, in its own mount namespace.
pub(crate) fn root_dir(container_dir: &Path) -> PathBuf {
    container_dir.join(ROOT_DIR)
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
    remove_tree(instance_dir).map_err(Error::directory(instance_dir))?;
    Ok(true)
}

/// Deletes a directory with everything below it. A program may have removed its own access to directories, as
/// the kernel does with the working directory of an overlay: root deletes them anyway, and another user, who
/// owns them, restores the access.
fn remove_tree(dir: &Path) -> io::Result<()> {
    let removed = |done: io::Result<()>| match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    };
    match removed(fs::remove_dir_all(dir)) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        done => return done,
    }
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    removed(fs::remove_dir_all(dir))
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
        create_container(&instance_dir, "app", None).unwrap();
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
        create_container(&instance_dir, "app", None).unwrap();
        let shim = shim::try_lock(&instance_dir.join("app")).unwrap().unwrap();
        assert!(!remove(&instance_dir).unwrap());
        assert!(instance_dir.exists());
        drop(shim);
        assert!(remove(&instance_dir).unwrap());
        assert!(!instance_dir.exists());
        assert!(remove(&instance_dir).unwrap(), "deleting it again succeeds");
    }

    #[test]
    fn a_directory_whose_access_a_program_has_removed_is_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let locked = dir.path().join("a/locked");
        fs::create_dir_all(locked.join("below")).unwrap();
        fs::set_permissions(&locked, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
        remove_tree(&dir.path().join("a")).unwrap();
        assert!(!dir.path().join("a").exists());
        remove_tree(&dir.path().join("a")).unwrap();
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
