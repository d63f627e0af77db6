//! Internal subcommands of the binary: shim, launcher, command, probe, and the programs of the built-in
//! images.
//!
//! The runtime starts the binary as a shim, the shim starts it as a launcher, and the launcher executes the
//! program of the instance, which for a built-in image is the binary again. The subcommand is dispatched
//! before anything else happens: no logging, no threads, no parsing of flags.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::{isolation, program, shim};

/// Runs a shim; the argument is the container's directory.
pub(crate) const SHIM: &str = "__shim";
/// Runs the launcher; the argument is the container's directory.
pub(crate) const LAUNCH: &str = "__launch";
/// Runs a further command in a running container.
pub(crate) const EXEC: &str = "__exec";
/// Tries what this machine gives to isolate containers.
pub(crate) const PROBE: &str = "__probe";
/// Runs a built-in program; the arguments are its name and its own arguments.
pub(crate) const PROGRAM: &str = "__program";

/// Runs the internal subcommand in the arguments (without the name of the binary); `None` if they name no
/// internal subcommand. Call it first in `main`.
pub fn run_internal_command(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut args = args.into_iter();
    let subcommand = args.next()?;
    match subcommand.to_str()? {
        SHIM => Some(shim::main(&PathBuf::from(args.next()?))),
        LAUNCH => Some(shim::launcher::main(&PathBuf::from(args.next()?))),
        EXEC => Some(shim::exec::main()),
        PROBE => Some(isolation::probe::main(args.next().as_ref().and_then(|word| word.to_str()))),
        PROGRAM => {
            let name = args.next()?.into_string().ok()?;
            let args: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
            Some(program::main(&name, &args))
        }
        _ => None,
    }
}
