//! The launcher: applies limits and the sandbox to its own process, gives up all privileges, and executes the
//! program.
//!
//! This is a process of its own because code between fork and exec of the shim would be unsafe. The launch
//! spec arrives on standard input; an error goes to a file that is opened before the sandbox is applied.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{LaunchSpec, Limits, Sandbox, descriptors};

/// The file with the launcher's error, in the container's directory.
const FAILURE: &str = "launch.error";
/// Exit code of shells for a program that cannot be started.
const EXIT_CANNOT_START: u8 = 127;

/// Executes the program. Returns only on failure.
pub(crate) fn main(container_dir: &Path) -> ExitCode {
    let error_file = File::create(failure_file(container_dir));
    let error = exec_program();
    eprintln!("{error}");
    if let Ok(mut error_file) = error_file {
        _ = error_file.write_all(error.to_string().as_bytes());
    }
    ExitCode::from(EXIT_CANNOT_START)
}

fn exec_program() -> io::Error {
    match prepare_command() {
        Ok(mut program) => {
            let error = program.exec();
            io::Error::new(error.kind(), format!("{}: {error}", program.get_program().display()))
        }
        Err(error) => error,
    }
}

fn prepare_command() -> io::Result<Command> {
    let mut spec = Vec::new();
    io::stdin().lock().read_to_end(&mut spec)?;
    let spec: LaunchSpec = serde_json::from_slice(&spec)?;
    // The kernel kills the program when its shim exits.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    limit(spec.limits)?;
    descriptors::close_on_exec()?;
    if let Some(sandbox) = &spec.sandbox {
        confine(sandbox)?;
    }
    #[cfg(target_os = "linux")]
    drop_privileges()?;
    let mut program = Command::new(&spec.program);
    program.args(&spec.args).env_clear().envs(&spec.env).current_dir(&spec.work).stdin(Stdio::null());
    Ok(program)
}

/// Disables core files; limits memory, open files and the size of files, up to the host's own limits.
fn limit(limits: Limits) -> io::Result<()> {
    let most = |resource, wanted: u64| {
        let allowed = getrlimit(resource).maximum;
        let granted = allowed.map_or(wanted, |allowed| allowed.min(wanted));
        setrlimit(resource, Rlimit { current: Some(granted), maximum: Some(granted) })
    };
    most(Resource::Core, 0)?;
    most(Resource::Nofile, limits.files)?;
    if let Some(file_size) = limits.file_size {
        most(Resource::Fsize, file_size)?;
    }
    if let Some(memory) = limits.memory {
        most(Resource::Data, memory)?;
    }
    Ok(())
}

/// Gives up all capabilities, and the way to gain them from a set-user-ID program or a file with
/// capabilities. If Polis runs as root, the program still has the user ID of root, and so the rights of
/// root's own files.
#[cfg(target_os = "linux")]
fn drop_privileges() -> io::Result<()> {
    use rustix::thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
        set_capabilities, set_no_new_privs,
    };
    set_no_new_privs(true)?;
    // Needs a capability, which only root has, and fails after the last capability that the kernel knows. The
    // bounding set is a second layer: with `no_new_privs`, `exec` adds nothing to an empty permitted set.
    let all = (0..u64::BITS).map(|bit| CapabilitySet::from_bits_retain(1 << bit));
    _ = all.map(remove_capability_from_bounding_set).take_while(Result::is_ok).count();
    // Empty without permitted and inheritable capabilities; the kernel removes them from this set as well.
    _ = clear_ambient_capability_set();
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    Ok(())
}

/// Applies the sandbox as far as the kernel supports it: files since Linux 5.13, signals and abstract sockets
/// since 6.12.
#[cfg(target_os = "linux")]
fn confine(sandbox: &Sandbox) -> io::Result<()> {
    use landlock::{
        ABI, Access as _, AccessFs, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, Scope,
    };
    const KNOWN: ABI = ABI::V6;
    // Processes that the program starts have other directories, which they cannot read.
    let own = PathBuf::from(format!("/proc/{}", std::process::id()));
    let mut rules = Vec::new();
    for (paths, access) in [
        (sandbox.read.as_slice(), AccessFs::from_read(KNOWN)),
        (&[own], AccessFs::from_read(KNOWN)),
        (&sandbox.write, AccessFs::from_all(KNOWN)),
    ] {
        for path in paths {
            rules.extend(rule(path, access)?.map(Ok::<_, RulesetError>));
        }
    }
    let restrict = || {
        Ruleset::default()
            .handle_access(AccessFs::from_all(KNOWN))?
            .scope(Scope::from_all(KNOWN))?
            .create()?
            .add_rules(rules)?
            .restrict_self()
    };
    restrict().map(|_| ()).map_err(|error| io::Error::other(format!("failed to apply the sandbox: {error}")))
}

/// The rule for a path; `None` if it cannot be reached without following a link: the runtime has resolved all
/// links, so the path was removed or replaced.
#[cfg(target_os = "linux")]
fn rule(
    path: &Path,
    access: landlock::BitFlags<landlock::AccessFs>,
) -> io::Result<Option<landlock::PathBeneath<std::os::fd::OwnedFd>>> {
    use landlock::{ABI, AccessFs, PathBeneath};
    use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
    use rustix::io::Errno;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        Ok(file) => {
            let is_dir = FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::Directory;
            let access = if is_dir { access } else { access & AccessFs::from_file(ABI::V6) };
            Ok(Some(PathBeneath::new(file, access)))
        }
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP) => Ok(None),
        Err(error) => {
            Err(io::Error::other(format!("failed to open {} for the sandbox: {error}", path.display())))
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn confine(_: &Sandbox) -> io::Result<()> {
    Ok(())
}

/// The error of the last run's launcher, if it failed.
pub(super) fn failure(container_dir: &Path) -> Option<String> {
    fs::read_to_string(failure_file(container_dir)).ok().filter(|why| !why.is_empty())
}

pub(super) fn clear_failure(container_dir: &Path) -> io::Result<()> {
    match fs::remove_file(failure_file(container_dir)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn failure_file(container_dir: &Path) -> PathBuf {
    container_dir.join(FAILURE)
}
