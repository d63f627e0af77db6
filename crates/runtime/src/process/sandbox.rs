//! The sandbox of a program: the host files that it may access. A root file system of its own holds nothing
//! else, where the kernel gives namespaces, and Landlock denies the rest, where the kernel has it.
//!
//! A program may read and execute the system files listed here, its own binary, and what the operator opened
//! with [`ProcessSettings::readable`]; it may write to its working directory. Everything else is denied: home
//! directories, the data of Polis, the directories of other instances, other processes in `/proc`.
//!
//! The input of a tenant never adds a path: not `args`, not `env`, not a link in the working directory. All
//! links are resolved here, and the launcher opens the results without following links, so that a path which
//! changes in between is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::ProcessSettings;
use crate::shim::Sandbox;

/// System files and directories. A `*` at the end matches any rest of the name.
///
/// `/etc` and `/proc` are not opened as a whole: the user of Polis, often root, reads keys and passwords in
/// `/etc`, and the command lines of all processes, or the memory of the kernel, in `/proc`. The launcher adds
/// the program's own directory in `/proc`.
const SYSTEM: [&str; 77] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/opt",
    "/nix/store",
    // Dynamic linker.
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    // Users, names, addresses. The directories hold the files that /etc/resolv.conf links to, which are
    // replaced when the network changes: a rule for a file is lost with the file.
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hostname",
    "/etc/hosts",
    "/etc/networks",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/rpc",
    "/etc/services",
    "/run/systemd/resolve",
    "/run/resolvconf",
    // Time, language, fonts, terminals.
    "/etc/default/locale",
    "/etc/fonts",
    "/etc/inputrc",
    "/etc/locale.alias",
    "/etc/locale.conf",
    "/etc/localtime",
    "/etc/terminfo",
    "/etc/timezone",
    "/var/db/timezone",
    // Certificates of public authorities.
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/crypto-policies",
    "/etc/pki/ca-trust",
    "/etc/pki/java",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/openssl.cnf",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    // Shells and languages.
    "/etc/bash.bashrc",
    "/etc/java*",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/perl",
    "/etc/php*",
    "/etc/profile",
    "/etc/profile.d",
    "/etc/python*",
    "/etc/shells",
    // The system itself.
    "/etc/debian_version",
    "/etc/lsb-release",
    "/etc/os-release",
    "/etc/redhat-release",
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/fs",
    "/proc/sys/kernel",
    "/proc/sys/net",
    "/proc/sys/vm",
    "/proc/uptime",
    "/proc/version",
    "/proc/vmstat",
    "/sys/devices/system",
    "/sys/fs/cgroup",
    "/sys/kernel/mm/hugepages",
    "/sys/kernel/mm/transparent_hugepage",
];

/// Devices that programs expect.
const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// The sandbox for a program. `readable` is the result of [`readable`].
pub(super) fn sandbox(program: &Path, work: &Path, readable: &[PathBuf]) -> Sandbox {
    let mut read = readable.to_vec();
    read.extend(fs::canonicalize(program).ok());
    // Only the directories above the working directory are resolved: a program cannot write there.
    let above = work.parent().and_then(|parent| fs::canonicalize(parent).ok());
    let work = above.zip(work.file_name()).map(|(above, name)| above.join(name));
    let write = DEVICES.iter().map(PathBuf::from).chain(work).collect();
    Sandbox { read, write }
}

/// The symbolic links that lead to the paths of a program, such as `/bin`, outside of the directories that it
/// can read anyway; and those that programs expect: `/dev/fd`, and `/tmp` for its own temporary directory.
#[cfg(target_os = "linux")]
pub(super) fn links(settings: &ProcessSettings, sandbox: &Sandbox, work: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mut links = BTreeMap::new();
    let named = SYSTEM.iter().flat_map(|path| existing(path)).chain(settings.readable.iter().cloned());
    for path in named {
        collect_links(Path::new("/"), &path, &mut links, 0);
    }
    for (link, target) in [("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")] {
        links.insert(Path::new("/dev").join(link), Path::new("/proc/self").join(target));
    }
    links.insert("/tmp".into(), super::instance_dir::temp_dir(work));
    links.retain(|link, _| !sandbox.read.iter().any(|read| link.starts_with(read)));
    links.into_iter().collect()
}

/// Adds the links on the way from a directory to a path.
#[cfg(target_os = "linux")]
fn collect_links(from: &Path, path: &Path, links: &mut BTreeMap<PathBuf, PathBuf>, depth: u8) {
    const MAX_DEPTH: u8 = 8;
    let mut at = from.to_owned();
    for component in path.components() {
        match component {
            Component::RootDir => at = PathBuf::from("/"),
            Component::ParentDir => _ = at.pop(),
            Component::Normal(name) => {
                let next = at.join(name);
                if let Ok(target) = fs::read_link(&next)
                    && depth < MAX_DEPTH
                {
                    collect_links(&at, &target, links, depth + 1);
                    links.insert(next.clone(), target);
                }
                at = fs::canonicalize(&next).unwrap_or(next);
            }
            _ => {}
        }
    }
}

/// The existing paths that every program may read, without links, and without private paths.
pub(super) fn readable(settings: &ProcessSettings) -> Vec<PathBuf> {
    let resolve = |path: &PathBuf| fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    let private: Vec<PathBuf> = settings.private.iter().chain([&settings.dir]).map(resolve).collect();
    let named = SYSTEM.iter().flat_map(|path| existing(path)).chain(settings.readable.iter().cloned());
    let resolved: BTreeSet<PathBuf> = named.filter_map(|path| fs::canonicalize(path).ok()).collect();
    resolved.into_iter().flat_map(|path| without(path, &private)).collect()
}

/// The paths of an entry of [`SYSTEM`].
fn existing(pattern: &str) -> Vec<PathBuf> {
    let Some(prefix) = pattern.strip_suffix('*') else { return vec![PathBuf::from(pattern)] };
    let Some((folder, start)) = prefix.rsplit_once('/') else { return Vec::new() };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(start));
    named.map(|entry| entry.path()).collect()
}

/// The path, or if private paths are below it, its entries without them: Landlock has no rule that denies.
fn without(path: PathBuf, private: &[PathBuf]) -> Vec<PathBuf> {
    if private.iter().any(|private| path.starts_with(private)) {
        return Vec::new();
    }
    if !private.iter().any(|private| private.starts_with(&path)) {
        return vec![path];
    }
    let entries = fs::read_dir(&path).into_iter().flatten().flatten();
    let is_link = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_symlink());
    entries.filter(|entry| !is_link(entry)).flat_map(|entry| without(entry.path(), private)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_may_read_the_system_itself_and_what_the_operator_opened() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        for name in ["app", "models", "private"] {
            fs::create_dir(dir.join(name)).unwrap();
        }
        let mut settings = ProcessSettings::new(dir.join("state"), "/polis", "dfw");
        settings.readable = vec![dir.join("models")];
        let sandbox = sandbox(&dir.join("app"), &dir.join("state/work"), &readable(&settings));
        let reads = |path: &Path| sandbox.read.iter().any(|read| path.starts_with(read));
        assert!(reads(Path::new("/usr/bin/env")) && reads(&dir.join("app")) && reads(&dir.join("models/x")));
        for denied in ["/etc/shadow", "/root", "/home", "/proc/1/cmdline", "/proc/kcore", "/var/lib", "/tmp"]
        {
            assert!(!reads(Path::new(denied)), "{denied}");
        }
        assert!(!reads(&dir.join("private")) && !reads(&dir.join("state/work")));
    }

    #[test]
    fn links_that_lead_to_a_path_are_found_in_every_step() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir_all(dir.join("usr/bin")).unwrap();
        fs::create_dir(dir.join("etc")).unwrap();
        let link = |target: &str, name: &str| std::os::unix::fs::symlink(target, dir.join(name)).unwrap();
        link("usr/bin", "bin");
        link("../bin/tool", "etc/tool");
        fs::write(dir.join("usr/bin/tool"), "").unwrap();
        let mut links = BTreeMap::new();
        collect_links(Path::new("/"), &dir.join("etc/tool"), &mut links, 0);
        let found: Vec<_> = links.iter().filter(|(link, _)| link.starts_with(&dir)).collect();
        let expected =
            [(dir.join("bin"), PathBuf::from("usr/bin")), (dir.join("etc/tool"), "../bin/tool".into())];
        assert_eq!(found, expected.iter().map(|(link, target)| (link, target)).collect::<Vec<_>>());
        link("loop", "loop");
        collect_links(Path::new("/"), &dir.join("loop"), &mut links, 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn temporary_files_of_a_program_are_in_its_working_directory() {
        let settings = ProcessSettings::new("/state", "/polis", "dfw");
        let work = Path::new("/state/u-1/app/work");
        let links = links(&settings, &sandbox(Path::new("/a"), work, &[]), work);
        assert!(links.contains(&("/tmp".into(), work.join("tmp"))));
        assert!(links.contains(&("/dev/fd".into(), "/proc/self/fd".into())));
    }

    #[test]
    fn it_may_write_to_its_working_directory_and_plain_devices_only() {
        let dir = tempfile::tempdir().unwrap();
        let work = fs::canonicalize(dir.path()).unwrap().join("work");
        let sandbox = sandbox(Path::new("/a"), &work, &[]);
        let others: Vec<_> = sandbox.write.iter().filter(|path| !path.starts_with("/dev")).collect();
        assert_eq!(others, [&work]);
    }

    #[test]
    fn a_readable_directory_is_opened_without_the_private_paths_below_it() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir_all(dir.join("a/data/keys")).unwrap();
        fs::create_dir_all(dir.join("a/public")).unwrap();
        fs::create_dir_all(dir.join("b")).unwrap();
        std::os::unix::fs::symlink(dir.join("a/data"), dir.join("link")).unwrap();
        let private = [dir.join("a/data")];
        let mut open = without(dir.clone(), &private);
        open.sort();
        assert_eq!(open, [dir.join("a/public"), dir.join("b")]);
        assert_eq!(without(dir.join("b"), &private), [dir.join("b")]);
        assert_eq!(without(dir.join("a/data/keys"), &private), [] as [PathBuf; 0]);
    }
}
