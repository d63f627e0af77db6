//! `polis.local/flaky [failures]`: fails the given number of times, three by default, then keeps running.

use std::process::ExitCode;

use super::{argument, block_on, terminated, variable};

pub(super) fn main(args: &[String]) -> Result<ExitCode, String> {
    let failures = argument::<u32>(args, 0, "failures")?.unwrap_or(3);
    let restarts = variable::<u32>("POLIS_RESTARTS")?.unwrap_or(0);
    if restarts < failures {
        eprintln!("flaky: failure {} of {failures}", restarts + 1);
        return Ok(ExitCode::FAILURE);
    }
    println!("flaky: up after {restarts} restarts");
    block_on(terminated())?;
    Ok(ExitCode::SUCCESS)
}
