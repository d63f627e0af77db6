//! The launcher: applies limits and the sandbox to its own process, gives up all privileges, and starts the
//! program.
//!
//! This is a process of its own because code between fork and exec of the shim would be unsafe. The launch
//! spec arrives on standard input; the end of the program goes to a file that is opened before the sandbox is
//! applied. In namespaces of its own, the launcher is process 1, and stays: it starts the program as a child
//! with the same rights, reaps the processes that lose their parent, and ends with the program, which ends
//! everything else in the namespaces. Otherwise it becomes the program.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
#[cfg(target_os = "linux")]
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[cfg(target_os = "linux")]
use crate::isolation::{identity, seccomp};
use crate::process::instance_dir;

use super::{LaunchSpec, Limits, Sandbox, TerminationCause, descriptors};

/// The file with the end of the program, in the container's directory.
const REPORT: &str = "launch.error";
/// Exit code of shells for a program that cannot be started.
const EXIT_CANNOT_START: u8 = 127;

/// Starts the program.
pub(crate) fn main(container_dir: &Path) -> ExitCode {
    let report = File::create(report_file(container_dir));
    let ended = run(container_dir);
    if let TerminationCause::Failed(why) = &ended {
        eprintln!("{why}");
    }
    if let (Ok(mut report), Ok(text)) = (report, serde_json::to_vec(&ended)) {
        _ = report.write_all(&text);
    }
    match ended {
        TerminationCause::Exit(code) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
        _ => ExitCode::from(EXIT_CANNOT_START),
    }
}

fn run(container_dir: &Path) -> TerminationCause {
    let prepared = read_spec().and_then(|spec| Ok((prepare(&spec, container_dir)?, spec)));
    let (mut program, spec) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return TerminationCause::Failed(error.to_string()),
    };
    let failed = |error: io::Error, program: &Command| {
        TerminationCause::Failed(format!("{}: {error}", program.get_program().display()))
    };
    #[cfg(target_os = "linux")]
    if spec.namespaces.is_some() {
        return match super::init::run(&mut program) {
            Ok(cause) => cause,
            Err(error) => failed(error, &program),
        };
    }
    drop(spec);
    let error = program.exec();
    failed(error, &program)
}

fn read_spec() -> io::Result<LaunchSpec> {
    let mut spec = Vec::new();
    io::stdin().lock().read_to_end(&mut spec)?;
    Ok(serde_json::from_slice(&spec)?)
}

#[cfg_attr(not(target_os = "linux"), allow(unused_variables))]
fn prepare(spec: &LaunchSpec, container_dir: &Path) -> io::Result<Command> {
    // The kernel kills this process when its shim exits.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    #[cfg(target_os = "linux")]
    if let Some(namespaces) = &spec.namespaces {
        if namespaces.network.join.is_none() {
            rustix::system::sethostname(namespaces.hostname.as_bytes())?;
        }
        crate::isolation::root::enter(&namespaces.root, &instance_dir::root_dir(container_dir))?;
    }
    descriptors::close_on_exec()?;
    restrict(spec, true)?;
    let mut program = Command::new(&spec.program);
    program.args(&spec.args).env_clear().envs(&spec.env).current_dir(&spec.work).stdin(Stdio::null());
    Ok(program)
}

/// Gives up all rights of this process that the program must not have. `scoped`: it may signal only processes
/// that it starts.
#[cfg_attr(not(target_os = "linux"), allow(unused_variables))]
pub(super) fn restrict(spec: &LaunchSpec, scoped: bool) -> io::Result<()> {
    if let Some(sandbox) = &spec.sandbox {
        confine(sandbox, is_namespaced(spec), scoped || !is_namespaced(spec))?;
    }
    limit(spec.limits)?; // after the sandbox, which has a descriptor for each of its rules
    #[cfg(target_os = "linux")]
    {
        identity::assume(spec.namespaces.as_ref().and_then(|namespaces| namespaces.identity.as_ref()))?;
        if spec.sandbox.is_some() {
            seccomp::apply()?;
        }
    }
    Ok(())
}

fn is_namespaced(spec: &LaunchSpec) -> bool {
    #[cfg(target_os = "linux")]
    return spec.namespaces.is_some();
    #[cfg(not(target_os = "linux"))]
    return false;
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
    if let Some(processes) = limits.processes {
        most(Resource::Nproc, processes)?;
    }
    Ok(())
}

/// Applies the sandbox as far as the kernel supports it: files since Linux 5.13, signals and abstract sockets
/// since 6.12.
#[cfg(target_os = "linux")]
fn confine(sandbox: &Sandbox, namespaced: bool, scoped: bool) -> io::Result<()> {
    use landlock::{
        ABI, Access as _, AccessFs, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, Scope,
    };
    const KNOWN: ABI = ABI::V6;
    // A `/proc` of its own shows only the processes of the container. That of the host shows all: there a
    // program reads its own directory, and processes that it starts have others, which they cannot read.
    let own = match namespaced {
        true => PathBuf::from("/proc"),
        false => PathBuf::from(format!("/proc/{}", std::process::id())),
    };
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
        let files = Ruleset::default().handle_access(AccessFs::from_all(KNOWN))?;
        let ruleset = if scoped { files.scope(Scope::from_all(KNOWN))? } else { files };
        ruleset.create()?.add_rules(rules)?.restrict_self()
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
fn confine(_: &Sandbox, _: bool, _: bool) -> io::Result<()> {
    Ok(())
}

/// The end of the last run as its launcher saw it; `None` if the launcher became the program, or was killed.
pub(super) fn report(container_dir: &Path) -> Option<TerminationCause> {
    serde_json::from_slice(&fs::read(report_file(container_dir)).ok()?).ok()
}

pub(super) fn clear_report(container_dir: &Path) -> io::Result<()> {
    match fs::remove_file(report_file(container_dir)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn report_file(container_dir: &Path) -> std::path::PathBuf {
    container_dir.join(REPORT)
}
