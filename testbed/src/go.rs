//! The Go toolchain that builds the programs of the test bed.

use std::{
    env, fmt,
    path::{Path, PathBuf},
    process::Command,
    str::FromStr,
};

use crate::pins::{BUILD_ENV, Module};

/// Why no usable Go toolchain was found. Each message names the version to install.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GoError {
    /// No `go` program on the PATH.
    #[error("Go is not installed: put Go {wanted} or newer on the PATH (https://go.dev/dl)")]
    NotFound {
        /// The lowest supported version.
        wanted: GoVersion,
    },
    /// A version that the pinned modules do not support.
    #[error("Go {found} at {path} is too old: put Go {wanted} or newer on the PATH (https://go.dev/dl)")]
    TooOld {
        /// Its version.
        found: GoVersion,
        /// Its path.
        path: String,
        /// The lowest supported version.
        wanted: GoVersion,
    },
    /// A `go` program that fails.
    #[error("{path} does not work as Go ({why}): put Go {wanted} or newer on the PATH (https://go.dev/dl)")]
    Broken {
        /// Its path.
        path: String,
        /// Its error output.
        why: String,
        /// The lowest supported version.
        wanted: GoVersion,
    },
}

/// A Go version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoVersion {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The third number; 0 if absent.
    pub patch: u32,
}

impl FromStr for GoVersion {
    type Err = String;

    /// Parses `1.25.10`, `go1.26.8` and `go1.26rc1`; a suffix after the numbers is ignored.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a version of Go");
        let mut numbers = text.trim().trim_start_matches("go").split('.').map(|part| {
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u32>().map_err(|_| bad())
        });
        let major = numbers.next().ok_or_else(bad)??;
        let minor = numbers.next().ok_or_else(bad)??;
        let patch = numbers.next().transpose()?.unwrap_or(0);
        Ok(GoVersion { major, minor, patch })
    }
}

impl fmt::Display for GoVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GoVersion { major, minor, patch } = self;
        match patch {
            0 => write!(f, "{major}.{minor}"),
            _ => write!(f, "{major}.{minor}.{patch}"),
        }
    }
}

/// The lowest Go version that all three modules support.
pub fn wanted() -> GoVersion {
    let versions =
        Module::ALL.map(|module| module.go_version().parse().expect("a go line holds a version of Go"));
    versions.into_iter().max().expect("there are three modules")
}

/// A Go toolchain that can build the programs.
#[derive(Debug, Clone)]
pub struct Go {
    /// Its program.
    pub path: PathBuf,
    /// Its version.
    pub version: GoVersion,
    /// The directory of its build cache.
    pub build_cache: PathBuf,
}

/// Finds a Go toolchain that is new enough on the PATH.
pub fn find() -> Result<Go, GoError> {
    find_on(&env::var_os("PATH").unwrap_or_default())
}

fn find_on(path: &std::ffi::OsStr) -> Result<Go, GoError> {
    let wanted = wanted();
    let program = env::split_paths(path)
        .map(|folder| folder.join("go"))
        .find(|file| file.is_file())
        .ok_or(GoError::NotFound { wanted })?;
    let broken = |why: String| GoError::Broken { path: program.display().to_string(), why, wanted };
    let output = Command::new(&program)
        .args(["env", "GOVERSION", "GOCACHE"])
        .envs(BUILD_ENV)
        .current_dir("/")
        .output()
        .map_err(|err| broken(err.to_string()))?;
    if !output.status.success() {
        return Err(broken(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = stdout.lines();
    let version = lines.next().unwrap_or_default().parse().map_err(broken)?;
    accept(version, wanted, &program)?;
    Ok(Go { version, build_cache: PathBuf::from(lines.next().unwrap_or_default()), path: program })
}

fn accept(found: GoVersion, wanted: GoVersion, path: &Path) -> Result<(), GoError> {
    if found < wanted {
        return Err(GoError::TooOld { found, path: path.display().to_string(), wanted });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    fn mk_version(text: &str) -> GoVersion {
        text.parse().unwrap()
    }

    /// A directory with a `go` program that runs the given script.
    fn mk_go(script: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("go");
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        folder
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert!(mk_version("go1.9") < mk_version("1.25"));
        assert!(mk_version("go1.25.9") < mk_version("1.25.10"));
        assert!(mk_version("go1.26rc1") > mk_version("1.25.10"));
        assert_eq!(mk_version("go1.26.8").to_string(), "1.26.8");
        assert_eq!(mk_version("go1.26").to_string(), "1.26");
        assert!("devel".parse::<GoVersion>().is_err());
    }

    #[test]
    fn the_error_for_a_missing_go_names_the_version_to_install() {
        let message = find_on("/nowhere".as_ref()).unwrap_err().to_string();
        assert_eq!(message, "Go is not installed: put Go 1.25.10 or newer on the PATH (https://go.dev/dl)");
    }

    #[test]
    fn the_error_for_an_old_go_names_its_version_and_path() {
        let folder = mk_go("echo go1.21.3; echo /tmp/cache");
        let message = find_on(folder.path().as_os_str()).unwrap_err().to_string();
        assert!(message.starts_with("Go 1.21.3 at "), "{message}");
        assert!(message.contains("is too old: put Go 1.25.10 or newer on the PATH"), "{message}");
    }

    #[test]
    fn the_error_for_a_failing_go_holds_its_output() {
        let folder = mk_go("echo no such architecture >&2; exit 3");
        let message = find_on(folder.path().as_os_str()).unwrap_err().to_string();
        assert!(message.contains("does not work as Go (no such architecture)"), "{message}");
    }

    #[test]
    fn a_supported_go_is_found_with_its_cache() {
        let folder = mk_go("echo go1.26.8; echo /tmp/cache");
        let go = find_on(folder.path().as_os_str()).unwrap();
        assert_eq!((go.version, go.build_cache), (mk_version("1.26.8"), PathBuf::from("/tmp/cache")));
    }
}
