//! Programs, started as somebody at a terminal starts them.
//!
//! `cargo xtask` is `cargo run`, which tells the task about its own package in the environment. A build script that asks for
//! one of those variables (ring's does) would run again, and everything above it be compiled anew, whenever a task follows a
//! command that was typed, and the other way round.

use std::{env, ffi::OsStr, process::Command};

/// A command that knows nothing of this task's package.
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
    fn what_cargo_says_of_this_package_is_taken_out_and_what_a_person_set_stays() {
        for of_this in ["CARGO_PKG_NAME", "CARGO_PKG_VERSION_MAJOR", "CARGO_MANIFEST_DIR"] {
            assert!(is_of_this_package(OsStr::new(of_this)), "{of_this}");
        }
        for set in ["CARGO_TARGET_DIR", "CARGO_HOME", "RUSTFLAGS", "PATH"] {
            assert!(!is_of_this_package(OsStr::new(set)), "{set}");
        }
        // Under cargo these are set, and the command does without.
        let removed: Vec<_> = command("true")
            .get_envs()
            .filter(|(_, value)| value.is_none())
            .map(|(name, _)| name.to_owned())
            .collect();
        assert!(removed.iter().any(|name| name == "CARGO_MANIFEST_DIR"), "{removed:?}");
    }
}
