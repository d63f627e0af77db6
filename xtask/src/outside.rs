//! Starts programs without the environment that cargo sets for this task.
//!
//! `cargo xtask` is `cargo run`, which sets variables of the task's package. A build script that depends on
//! one of them (ring's does) would run again, and everything above it would be compiled again, whenever a
//! task follows a command that was run without xtask, or the other way round.

use std::{env, ffi::OsStr, process::Command};

/// A command without the variables of this task's package.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    env::vars_os().filter(|(name, _)| is_of_this_package(name)).for_each(|(name, _)| {
        command.env_remove(name);
    });
    command
}

fn is_of_this_package(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_this_package_are_removed_and_others_stay() {
        for of_this in ["CARGO_PKG_NAME", "CARGO_PKG_VERSION_MAJOR", "CARGO_MANIFEST_DIR"] {
            assert!(is_of_this_package(OsStr::new(of_this)), "{of_this}");
        }
        for set in ["CARGO_TARGET_DIR", "CARGO_HOME", "RUSTFLAGS", "PATH"] {
            assert!(!is_of_this_package(OsStr::new(set)), "{set}");
        }
        // Cargo sets them for this test, and the command removes them.
        let removed: Vec<_> = command("true")
            .get_envs()
            .filter(|(_, value)| value.is_none())
            .map(|(name, _)| name.to_owned())
            .collect();
        assert!(removed.iter().any(|name| name == "CARGO_MANIFEST_DIR"), "{removed:?}");
    }
}
