//! Whether there is room, asked before the work and not found out in the middle of it.

use std::path::Path;

use crate::Error;

const MIB: u64 = 1024 * 1024;

/// Refuses when less than `wanted_mib` are free where `path` is, or will be. `variable` is what moves it.
pub fn check(path: &Path, wanted_mib: u64, variable: &'static str) -> Result<(), Error> {
    let Some(there) = path.ancestors().find(|ancestor| ancestor.exists()) else { return Ok(()) };
    let stat = rustix::fs::statvfs(there).map_err(|err| Error::file("measure", there)(err.into()))?;
    enough(path, stat.f_bavail.saturating_mul(stat.f_frsize) / MIB, wanted_mib, variable)
}

fn enough(path: &Path, free_mib: u64, wanted_mib: u64, variable: &'static str) -> Result<(), Error> {
    if free_mib < wanted_mib {
        return Err(Error::DiskFull { path: path.to_owned(), free_mib, wanted_mib, variable });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_room_is_one_sentence_that_says_what_to_do() {
        let message = enough("/cache".as_ref(), 100, 6144, "XDG_CACHE_HOME").unwrap_err().to_string();
        assert_eq!(
            message,
            "/cache has 100 MiB left and 6144 MiB are needed: make room, or point XDG_CACHE_HOME elsewhere"
        );
        assert!(enough("/cache".as_ref(), 6144, 6144, "XDG_CACHE_HOME").is_ok());
    }

    #[test]
    fn room_is_measured_also_where_nothing_has_been_made_yet() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check(&dir.path().join("not/yet/there"), 0, "HOME").is_ok());
        assert!(check(&dir.path().join("not/yet/there"), u64::MAX, "HOME").is_err());
    }
}
