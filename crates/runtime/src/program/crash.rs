//! `polis.local/crash [exit code]`: ends at once, with 1 or the code it is given.

use std::process::ExitCode;

use super::argument;

pub(super) fn main(args: &[String]) -> Result<ExitCode, String> {
    let code = argument::<u8>(args, 0, "exit code")?.unwrap_or(1);
    eprintln!("crash: ends with exit code {code}, as it always does");
    Ok(ExitCode::from(code))
}
