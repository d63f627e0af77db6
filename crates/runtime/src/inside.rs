//! What the binary does when it is started by itself: shim, launcher, and the programs of the built-in images.
//!
//! The runtime starts the binary as a shim, the shim starts it as a launcher, and the launcher turns into the program of
//! the instance, which for a built-in image is the binary once more. The words below are told apart before anything
//! else happens: no log, no thread, no flag of the command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::{program, shim};

/// First word of a command line that runs a shim; the folder of the container follows.
pub(crate) const SHIM: &str = "__shim";
/// First word of a command line that launches a program; the folder of the container follows.
pub(crate) const LAUNCH: &str = "__launch";
/// First word of a command line that runs a built-in program; its name and arguments follow.
pub(crate) const PROGRAM: &str = "__program";

/// Does what the arguments (without the name of the binary) say if they are words of this room; none if they are for
/// somebody else. Call it first thing in `main`.
pub fn inside(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut args = args.into_iter();
    let word = args.next()?;
    match word.to_str()? {
        SHIM => Some(shim::main(&PathBuf::from(args.next()?))),
        LAUNCH => Some(shim::launch::main(&PathBuf::from(args.next()?))),
        PROGRAM => {
            let name = args.next()?.into_string().ok()?;
            let args: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
            Some(program::main(&name, &args))
        }
        _ => None,
    }
}
