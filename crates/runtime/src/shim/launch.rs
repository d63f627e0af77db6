//! The launcher: the last moment before a program runs, in the process that it will run in.
//!
//! Limits and the fence are set here and not between fork and exec of the shim: that place allows no safe code. The
//! order comes over standard input; a failure goes to a file that was opened before the fence went up.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{Fence, Launch, Limits};

/// Where the launcher says why it failed.
const FAILURE: &str = "launch.error";
/// What shells say when a program cannot be started.
const CANNOT: u8 = 127;

/// Becomes the program. Comes back only to say that it could not.
pub(crate) fn main(folder: &Path) -> ExitCode {
    let note = File::create(failure_file(folder));
    let error = become_program();
    eprintln!("{error}");
    if let Ok(mut note) = note {
        _ = note.write_all(error.to_string().as_bytes());
    }
    ExitCode::from(CANNOT)
}

fn become_program() -> io::Error {
    match prepared() {
        Ok(mut program) => {
            let error = program.exec();
            io::Error::new(error.kind(), format!("{}: {error}", program.get_program().display()))
        }
        Err(error) => error,
    }
}

fn prepared() -> io::Result<Command> {
    let mut order = Vec::new();
    io::stdin().lock().read_to_end(&mut order)?;
    let order: Launch = serde_json::from_slice(&order)?;
    // The program dies with its shim.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    limit(order.limits)?;
    if let Some(fence) = &order.fence {
        confine(fence)?;
    }
    let mut program = Command::new(&order.program);
    program.args(&order.args).env_clear().envs(&order.env).current_dir(&order.work).stdin(Stdio::null());
    Ok(program)
}

/// No core files; memory and open files as told, where the host allows as much.
fn limit(limits: Limits) -> io::Result<()> {
    let most = |resource, wanted: u64| {
        let allowed = getrlimit(resource).maximum;
        let granted = allowed.map_or(wanted, |allowed| allowed.min(wanted));
        setrlimit(resource, Rlimit { current: Some(granted), maximum: Some(granted) })
    };
    most(Resource::Core, 0)?;
    most(Resource::Nofile, limits.files)?;
    if let Some(memory) = limits.memory {
        most(Resource::Data, memory)?;
    }
    Ok(())
}

/// Puts up the fence as far as the kernel knows how: files since Linux 5.13, signals and abstract sockets since 6.12.
#[cfg(target_os = "linux")]
fn confine(fence: &Fence) -> io::Result<()> {
    use landlock::{
        ABI, Access as _, AccessFs, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, Scope,
        path_beneath_rules,
    };
    const KNOWN: ABI = ABI::V6;
    let raise = || {
        Ruleset::default()
            .handle_access(AccessFs::from_all(KNOWN))?
            .scope(Scope::from_all(KNOWN))?
            .create()?
            .add_rules(path_beneath_rules(&fence.read, AccessFs::from_read(KNOWN)))?
            .add_rules(path_beneath_rules(&fence.write, AccessFs::from_all(KNOWN)))?
            .restrict_self()
    };
    raise().map(|_| ()).map_err(|error| io::Error::other(format!("failed to confine the program: {error}")))
}

#[cfg(not(target_os = "linux"))]
fn confine(_: &Fence) -> io::Result<()> {
    Ok(())
}

/// Why the launcher of the last run failed, if it did.
pub(super) fn failure(folder: &Path) -> Option<String> {
    fs::read_to_string(failure_file(folder)).ok().filter(|why| !why.is_empty())
}

pub(super) fn forget_failure(folder: &Path) -> io::Result<()> {
    match fs::remove_file(failure_file(folder)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn failure_file(folder: &Path) -> PathBuf {
    folder.join(FAILURE)
}
