//! `polis.local/sleep [seconds]`: does nothing, for ever or for so long; ends at once when told to.

use std::process::ExitCode;
use std::time::Duration;

use super::{argument, told_to_stop, until_told};

pub(super) fn main(args: &[String]) -> Result<ExitCode, String> {
    let seconds = argument::<u64>(args, 0, "seconds")?;
    println!("asleep");
    until_told(async {
        match seconds {
            Some(seconds) => tokio::select! {
                told = told_to_stop() => told,
                () = tokio::time::sleep(Duration::from_secs(seconds)) => Ok(()),
            },
            None => told_to_stop().await,
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
