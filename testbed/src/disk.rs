//! The check for free disk space before a build or a start.

use std::path::Path;

use crate::Error;

const MIB: u64 = 1024 * 1024;

/// Fails if less than `wanted_mib` are free on the file system of `path`, which need not exist yet. The error
/// names `variable` as the setting that selects another directory.
pub fn check(path: &Path, wanted_mib: u64, variable: &'static str) -> Result<(), Error> {
    let Some(existing) = path.ancestors().find(|ancestor| ancestor.exists()) else { return Ok(()) };
    let stat = rustix::fs::statvfs(existing).map_err(|err| Error::file("measure", existing)(err.into()))?;
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
    fn the_error_for_too_little_space_names_the_variable_to_set() {
        let message = enough("/cache".as_ref(), 100, 6144, "XDG_CACHE_HOME").unwrap_err().to_string();
        assert_eq!(
            message,
            "/cache has 100 MiB free and 6144 MiB are needed: free disk space, or set XDG_CACHE_HOME to another directory"
        );
        assert!(enough("/cache".as_ref(), 6144, 6144, "XDG_CACHE_HOME").is_ok());
    }

    #[test]
    fn the_path_need_not_exist() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check(&dir.path().join("not/yet/there"), 0, "HOME").is_ok());
        assert!(check(&dir.path().join("not/yet/there"), u64::MAX, "HOME").is_err());
    }
}
