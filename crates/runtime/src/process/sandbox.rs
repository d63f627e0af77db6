//! The sandbox of a program: the host files that it may access, enforced by Landlock where the kernel has it.
//!
//! A program may read and execute the system directories, its own binary, and absolute paths on its command
//! line; it may write to its working directory. Everything else is denied: home directories, the data of
//! Polis, the directories of other instances. [`crate::ProcessSettings::readable`] adds paths.

use std::path::{Path, PathBuf};

use crate::shim::Sandbox;

/// System directories.
const SYSTEM: [&str; 13] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc",
    "/opt",
    "/nix",
    "/proc",
    "/sys",
    // Targets of the symbolic links /etc/resolv.conf and /etc/localtime.
    "/run/systemd/resolve",
    "/var/db/timezone",
];

/// Devices that programs expect.
const DEVICES: [&str; 7] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/fd"];

/// The sandbox for a program.
pub(super) fn sandbox(program: &Path, args: &[String], work: &Path, readable: &[PathBuf]) -> Sandbox {
    let named = args.iter().map(Path::new).filter(|path| path.is_absolute() && *path != Path::new("/"));
    let read = SYSTEM
        .iter()
        .map(PathBuf::from)
        .chain([program.to_owned()])
        .chain(named.map(Path::to_owned))
        .chain(readable.iter().cloned())
        .collect();
    let write = DEVICES.iter().map(PathBuf::from).chain([work.to_owned()]).collect();
    Sandbox { read, write }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_may_read_itself_and_what_its_command_line_names() {
        let args = ["--quiet", "/srv/site", "relative", "/"].map(str::to_owned);
        let sandbox = sandbox(Path::new("/opt2/app"), &args, Path::new("/data/work"), &["/models".into()]);
        let reads = |path: &str| sandbox.read.contains(&PathBuf::from(path));
        assert!(reads("/usr") && reads("/opt2/app") && reads("/srv/site") && reads("/models"));
        assert!(!reads("/") && !reads("relative") && !reads("/data/work"));
    }

    #[test]
    fn it_may_write_to_its_working_directory_and_plain_devices_only() {
        let sandbox = sandbox(Path::new("/a"), &[], Path::new("/data/work"), &[]);
        let others: Vec<_> = sandbox.write.iter().filter(|path| !path.starts_with("/dev")).collect();
        assert_eq!(others, [&PathBuf::from("/data/work")]);
    }
}
