//! `polis.local/crash [exit code]`: exits at once, with code 1 or the given one.

use std::process::ExitCode;

use super::argument;

pub(super) fn main(args: &[String]) -> Result<ExitCode, String> {
    let code = argument::<u8>(args, 0, "exit code")?.unwrap_or(1);
    eprintln!("crash: exiting with code {code}");
    Ok(ExitCode::from(code))
}
