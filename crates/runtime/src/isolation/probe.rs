//! The probe: tries in a process of its own whether this machine gives namespaces to this user.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use crate::internal_command::PROBE;

/// Argument of the second process of the probe, which is in the new namespaces.
const INSIDE: &str = "inside";

/// Whether containers can have namespaces, or why not.
#[cfg(target_os = "linux")]
pub(super) fn namespaces(binary: &Path) -> Result<(), String> {
    let output = Command::new(binary)
        .arg(PROBE)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("failed to start {}: {error}", binary.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(why.lines().next_back().unwrap_or("the probe failed").to_owned())
}

#[cfg(not(target_os = "linux"))]
pub(super) fn namespaces(_: &Path) -> Result<(), String> {
    Err("only Linux has them".to_owned())
}

/// Whether dangerous system calls can be filtered.
pub(super) fn filters_system_calls() -> bool {
    #[cfg(target_os = "linux")]
    return super::seccomp::is_supported();
    #[cfg(not(target_os = "linux"))]
    return false;
}

/// The probe. Exits with an error, and writes it to standard error, if anything that a container needs fails.
pub(crate) fn main(argument: Option<&str>) -> ExitCode {
    #[cfg(target_os = "linux")]
    let done = if argument == Some(INSIDE) { inside() } else { outside() };
    #[cfg(not(target_os = "linux"))]
    let done = Err::<(), _>(std::io::Error::other(format!("{argument:?}: only Linux has namespaces")));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(target_os = "linux")]
fn outside() -> std::io::Result<()> {
    use super::namespaces::{enter_instance_namespaces, enter_user_namespace};
    enter_user_namespace(None, None)?;
    enter_instance_namespaces()?;
    let status = Command::new(std::env::current_exe()?).args([PROBE, INSIDE]).status()?;
    if status.success() { Ok(()) } else { Err(std::io::Error::other("mounts are not permitted")) }
}

/// Mounts what a container needs, over a directory that every machine has.
#[cfg(target_os = "linux")]
fn inside() -> std::io::Result<()> {
    use super::root::{Root, enter};
    let root = Root::Host { read: vec!["/usr".into()], write: Vec::new(), links: Vec::new() };
    enter(&root, Path::new("/dev"))?;
    std::fs::read_dir("/proc/1").map(drop)
}
