//! The folder of an instance: `<directory>/<uid>/`, with a folder for each container in it.
//!
//! `seat.json` says whose it is and which address it was given; it is there before anything else. A container's folder
//! holds what its shim keeps (`state.json`, `shim.lock`, output) and the working directory of its program, `work`. Nothing
//! here is a secret; what the program is told goes to it over a pipe. Only the user who runs Polis may look inside.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::shim;

const FACTS: &str = "seat.json";
/// The working directory in a container's folder.
const WORK: &str = "work";
/// Temporary files, inside the working directory.
const TEMPORARY: &str = "tmp";

/// Whose folder it is, and what was given to the instance for its life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) address: Ipv4Addr,
    /// Where ports are not its own: what each became.
    pub(crate) ports: BTreeMap<u16, u16>,
}

/// The folder of an instance; none if the UID is no name for a folder.
pub(crate) fn folder(dir: &Path, uid: &str) -> Option<PathBuf> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (!uid.is_empty() && uid.len() <= 128 && uid.bytes().all(plain)).then(|| dir.join(uid))
}

impl Facts {
    /// Everybody who has a folder.
    pub(crate) fn all(dir: &Path) -> io::Result<Vec<Facts>> {
        let mut all = Vec::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            all.extend(Facts::read(&path));
        }
        Ok(all)
    }

    /// What a folder says of itself; none if it says nothing that can be understood.
    fn read(seat: &Path) -> Option<Facts> {
        serde_json::from_slice(&fs::read(seat.join(FACTS)).ok()?).ok()
    }

    /// Makes the folder, or brings what it says up to date.
    pub(crate) fn write(&self, dir: &Path) -> Result<PathBuf, Error> {
        let folder = folder(dir, &self.uid).ok_or_else(|| Error::Uid { instance: self.uid.clone() })?;
        make(&folder)?;
        let content = serde_json::to_vec(self).map_err(|error| Error::directory(&folder)(error.into()))?;
        shim::replace(&folder.join(FACTS), &content).map_err(Error::directory(&folder))?;
        Ok(folder)
    }

    /// The port under which a port of the instance is reached.
    pub(crate) fn port(&self, wanted: u16) -> u16 {
        self.ports.get(&wanted).copied().unwrap_or(wanted)
    }
}

/// Makes the folder of a container, with its working directory. Gives both.
pub(crate) fn container(seat: &Path, name: &str) -> Result<(PathBuf, PathBuf), Error> {
    let folder = seat.join(name);
    let work = folder.join(WORK);
    make(&work.join(TEMPORARY))?;
    Ok((folder, work))
}

/// Where a container's temporary files go.
pub(crate) fn temporary(work: &Path) -> PathBuf {
    work.join(TEMPORARY)
}

fn make(folder: &Path) -> Result<(), Error> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(Error::directory(folder))
}

/// The containers that have a folder.
pub(crate) fn containers(seat: &Path) -> Result<Vec<String>, Error> {
    let list = || -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(seat)? {
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
        done => done.map_err(Error::directory(seat)),
    }
}

/// Removes the folder of an instance, if no shim is in it: their places are held while it goes, so that none that is
/// just starting can come in between. False if one is.
pub(crate) fn remove(seat: &Path) -> Result<bool, Error> {
    let mut held = Vec::new();
    for container in containers(seat)? {
        match shim::hold(&seat.join(container)).map_err(Error::directory(seat))? {
            Some(lock) => held.push(lock),
            None => return Ok(false),
        }
    }
    match fs::remove_dir_all(seat) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::directory(seat)(error)),
        _ => Ok(true),
    }
}

/// Removes folders that belong to nobody: Polis or the machine stopped between making one and writing whose it is. One
/// with a shim in it stays.
pub(crate) fn tidy(dir: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(dir).map_err(Error::directory(dir))? {
        let seat = entry.map_err(Error::directory(dir))?.path();
        if seat.is_dir() && Facts::read(&seat).is_none() {
            remove(&seat)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_facts(uid: &str) -> Facts {
        Facts {
            uid: uid.into(),
            namespace: "ns-1".into(),
            name: "web-0".into(),
            address: Ipv4Addr::new(127, 20, 0, 1),
            ports: [(80, 40080)].into(),
        }
    }

    #[test]
    fn a_folder_says_whose_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let seat = mk_facts("u-1").write(dir.path()).unwrap();
        container(&seat, "app").unwrap();
        assert_eq!(Facts::all(dir.path()).unwrap(), [mk_facts("u-1")]);
        assert_eq!(containers(&seat).unwrap(), ["app"]);
        assert_eq!((mk_facts("u-1").port(80), mk_facts("u-1").port(81)), (40080, 81));
    }

    #[test]
    fn no_uid_leads_out_of_the_directory() {
        for uid in ["", "..", "a/b", "../x", "a.b"] {
            assert_eq!(folder(Path::new("/d"), uid), None, "{uid}");
        }
        assert!(matches!(mk_facts("../x").write(Path::new("/nowhere")), Err(Error::Uid { .. })));
    }

    #[test]
    fn a_folder_with_a_shim_in_it_stays() {
        let dir = tempfile::tempdir().unwrap();
        let seat = mk_facts("u-1").write(dir.path()).unwrap();
        let (folder, _) = container(&seat, "app").unwrap();
        let shim = shim::hold(&folder).unwrap().unwrap();
        assert!(!remove(&seat).unwrap());
        assert!(seat.exists());
        drop(shim);
        assert!(remove(&seat).unwrap());
        assert!(!seat.exists());
        assert!(remove(&seat).unwrap(), "gone is gone");
    }

    #[test]
    fn folders_of_nobody_are_tidied_away_and_others_kept() {
        let dir = tempfile::tempdir().unwrap();
        mk_facts("u-1").write(dir.path()).unwrap();
        fs::create_dir(dir.path().join("u-2")).unwrap();
        fs::create_dir(dir.path().join("u-3")).unwrap();
        fs::write(dir.path().join("u-3").join(FACTS), "").unwrap(); // the machine lost power
        tidy(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(Facts::all(dir.path()).unwrap(), [mk_facts("u-1")]);
    }
}
