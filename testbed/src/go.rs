//! The Go that builds the programs of the bed.

use std::{
    env, fmt,
    path::{Path, PathBuf},
    process::Command,
    str::FromStr,
};

use crate::pins::{BUILD_ENV, Module};

/// Why there is no Go to build with. Each is one sentence that says what to do.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Missing {
    /// Nothing called `go` on the PATH.
    #[error("Go is not installed: put Go {wanted} or newer on the PATH (https://go.dev/dl)")]
    NotFound {
        /// The lowest version that would do.
        wanted: Version,
    },
    /// A Go that our modules refuse.
    #[error("Go {found} at {path} is too old: put Go {wanted} or newer on the PATH (https://go.dev/dl)")]
    TooOld {
        /// Its version.
        found: Version,
        /// Where it is.
        path: String,
        /// The lowest version that would do.
        wanted: Version,
    },
    /// A file called `go` that does not behave like Go.
    #[error("{path} does not work as Go ({why}): put Go {wanted} or newer on the PATH (https://go.dev/dl)")]
    Broken {
        /// Where it is.
        path: String,
        /// What it said.
        why: String,
        /// The lowest version that would do.
        wanted: Version,
    },
}

/// A version of Go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The third number; 0 where there is none.
    pub patch: u32,
}

impl FromStr for Version {
    type Err = String;

    /// Reads `1.25.10`, `go1.26.8` and `go1.26rc1`; what follows the numbers is ignored.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a version of Go");
        let mut numbers = text.trim().trim_start_matches("go").split('.').map(|part| {
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u32>().map_err(|_| bad())
        });
        let major = numbers.next().ok_or_else(bad)??;
        let minor = numbers.next().ok_or_else(bad)??;
        let patch = numbers.next().transpose()?.unwrap_or(0);
        Ok(Version { major, minor, patch })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Version { major, minor, patch } = self;
        match patch {
            0 => write!(f, "{major}.{minor}"),
            _ => write!(f, "{major}.{minor}.{patch}"),
        }
    }
}

/// The lowest Go that all three modules accept.
pub fn wanted() -> Version {
    let versions =
        Module::ALL.map(|module| module.go_version().parse().expect("a go line holds a version of Go"));
    versions.into_iter().max().expect("there are three modules")
}

/// A Go that can build the bed.
#[derive(Debug, Clone)]
pub struct Go {
    /// Its program.
    pub path: PathBuf,
    /// Its version.
    pub version: Version,
    /// Where it keeps compiled packages.
    pub build_cache: PathBuf,
}

/// Finds a Go that is new enough on the PATH.
pub fn find() -> Result<Go, Missing> {
    find_on(&env::var_os("PATH").unwrap_or_default())
}

fn find_on(path: &std::ffi::OsStr) -> Result<Go, Missing> {
    let wanted = wanted();
    let program = env::split_paths(path)
        .map(|folder| folder.join("go"))
        .find(|file| file.is_file())
        .ok_or(Missing::NotFound { wanted })?;
    let broken = |why: String| Missing::Broken { path: program.display().to_string(), why, wanted };
    let output = Command::new(&program)
        .args(["env", "GOVERSION", "GOCACHE"])
        .envs(BUILD_ENV)
        .current_dir("/")
        .output()
        .map_err(|err| broken(err.to_string()))?;
    if !output.status.success() {
        return Err(broken(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = answer.lines();
    let version = lines.next().unwrap_or_default().parse().map_err(broken)?;
    accept(version, wanted, &program)?;
    Ok(Go { version, build_cache: PathBuf::from(lines.next().unwrap_or_default()), path: program })
}

fn accept(found: Version, wanted: Version, path: &Path) -> Result<(), Missing> {
    if found < wanted {
        return Err(Missing::TooOld { found, path: path.display().to_string(), wanted });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    fn mk_version(text: &str) -> Version {
        text.parse().unwrap()
    }

    /// A folder with a `go` in it that prints the given lines.
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
        assert!("devel".parse::<Version>().is_err());
    }

    #[test]
    fn no_go_is_one_sentence_that_says_what_to_do() {
        let message = find_on("/nowhere".as_ref()).unwrap_err().to_string();
        assert_eq!(message, "Go is not installed: put Go 1.25.10 or newer on the PATH (https://go.dev/dl)");
    }

    #[test]
    fn an_old_go_is_named_with_its_version_and_place() {
        let folder = mk_go("echo go1.21.3; echo /tmp/cache");
        let message = find_on(folder.path().as_os_str()).unwrap_err().to_string();
        assert!(message.starts_with("Go 1.21.3 at "), "{message}");
        assert!(message.contains("is too old: put Go 1.25.10 or newer on the PATH"), "{message}");
    }

    #[test]
    fn a_go_that_does_not_work_is_named_with_what_it_said() {
        let folder = mk_go("echo no such architecture >&2; exit 3");
        let message = find_on(folder.path().as_os_str()).unwrap_err().to_string();
        assert!(message.contains("does not work as Go (no such architecture)"), "{message}");
    }

    #[test]
    fn a_new_go_is_taken_with_its_cache() {
        let folder = mk_go("echo go1.26.8; echo /tmp/cache");
        let go = find_on(folder.path().as_os_str()).unwrap();
        assert_eq!((go.version, go.build_cache), (mk_version("1.26.8"), PathBuf::from("/tmp/cache")));
    }
}
