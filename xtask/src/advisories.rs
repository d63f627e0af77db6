//! What `cargo deny` checks: licences, sources, and the advisories of RustSec.
//!
//! The advisories come from a database that is fetched. Offline an earlier copy of it is used; without one
//! the check cannot run, and says so.

use std::{fs, path::PathBuf};

/// How advisories are checked on this machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Advisories {
    /// With the current database.
    Current,
    /// With the copy of an earlier run.
    Copy,
    /// Not at all; the reason, which is an error in CI.
    Unavailable(&'static str),
}

/// Why advisories cannot be checked offline.
const OFFLINE: &str = "the advisory database of RustSec cannot be fetched and there is no earlier copy: \
    connect to the network, then run cargo deny fetch db";

impl Advisories {
    /// `fetched`: the database was fetched. `copied`: there is a copy of it.
    pub(crate) fn choose(fetched: bool, copied: bool) -> Self {
        match (fetched, copied) {
            (true, _) => Self::Current,
            (false, true) => Self::Copy,
            (false, false) => Self::Unavailable(OFFLINE),
        }
    }
}

/// Whether cargo-deny has a copy of the database.
pub(crate) fn has_copy() -> bool {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let entries = home.and_then(|home| fs::read_dir(home.join("advisory-dbs")).ok());
    entries.is_some_and(|mut entries| entries.any(|entry| entry.is_ok_and(|entry| entry.path().is_dir())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offline_an_earlier_copy_is_used_and_without_one_the_reason_is_printed() {
        assert_eq!(Advisories::choose(true, false), Advisories::Current);
        assert_eq!(Advisories::choose(false, true), Advisories::Copy);
        let Advisories::Unavailable(why) = Advisories::choose(false, false) else { panic!("no database") };
        assert!(why.contains("cannot be fetched") && why.contains("cargo deny fetch db"), "{why}");
    }
}
