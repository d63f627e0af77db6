//! What a program may touch of the host, where the kernel can enforce it.
//!
//! It may read and run what a system consists of, the program itself, and what its command line names by full path; it may
//! write to its own working directory. Everything else is closed: the homes of people, the data of Polis, the folders of
//! other instances. An operator can open more ([`crate::Settings::readable`]).

use std::path::{Path, PathBuf};

use crate::shim::Fence;

/// What a system consists of.
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
    // What /etc/resolv.conf and /etc/localtime may point to.
    "/run/systemd/resolve",
    "/var/db/timezone",
];

/// Devices that every program expects.
const DEVICES: [&str; 7] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/fd"];

/// The fence around a program.
pub(super) fn around(program: &Path, args: &[String], work: &Path, readable: &[PathBuf]) -> Fence {
    let named = args.iter().map(Path::new).filter(|path| path.is_absolute() && *path != Path::new("/"));
    let read = SYSTEM
        .iter()
        .map(PathBuf::from)
        .chain([program.to_owned()])
        .chain(named.map(Path::to_owned))
        .chain(readable.iter().cloned())
        .collect();
    let write = DEVICES.iter().map(PathBuf::from).chain([work.to_owned()]).collect();
    Fence { read, write }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_may_read_itself_and_what_its_command_line_names() {
        let args = ["--quiet", "/srv/site", "relative", "/"].map(str::to_owned);
        let fence = around(Path::new("/opt2/app"), &args, Path::new("/data/work"), &["/models".into()]);
        let reads = |path: &str| fence.read.contains(&PathBuf::from(path));
        assert!(reads("/usr") && reads("/opt2/app") && reads("/srv/site") && reads("/models"));
        assert!(!reads("/") && !reads("relative") && !reads("/data/work"));
    }

    #[test]
    fn it_may_write_to_its_working_directory_and_plain_devices_only() {
        let fence = around(Path::new("/a"), &[], Path::new("/data/work"), &[]);
        let others: Vec<_> = fence.write.iter().filter(|path| !path.starts_with("/dev")).collect();
        assert_eq!(others, [&PathBuf::from("/data/work")]);
    }
}
