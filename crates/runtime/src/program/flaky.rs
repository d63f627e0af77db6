//! `polis.local/flaky [failures]`: fails three times or as often as it is told, then stays up.

use std::process::ExitCode;

use super::{argument, told_to_stop, until_told, variable};

pub(super) fn main(args: &[String]) -> Result<ExitCode, String> {
    let failures = argument::<u32>(args, 0, "failures")?.unwrap_or(3);
    let restarts = variable::<u32>("POLIS_RESTARTS")?.unwrap_or(0);
    if restarts < failures {
        eprintln!("flaky: failure {} of {failures}", restarts + 1);
        return Ok(ExitCode::FAILURE);
    }
    println!("flaky: up after {restarts} restarts");
    until_told(told_to_stop())?;
    Ok(ExitCode::SUCCESS)
}
