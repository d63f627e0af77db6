//! `polis.local/sleep [seconds]`: sleeps for ever, or for the given time; exits at once on TERM.

use std::process::ExitCode;
use std::time::Duration;

use super::{argument, block_on, terminated};

pub(super) fn main(args: &[String]) -> Result<ExitCode, String> {
    let seconds = argument::<u64>(args, 0, "seconds")?;
    println!("asleep");
    block_on(async {
        match seconds {
            Some(seconds) => tokio::select! {
                stopped = terminated() => stopped,
                () = tokio::time::sleep(Duration::from_secs(seconds)) => Ok(()),
            },
            None => terminated().await,
        }
    })?;
    Ok(ExitCode::SUCCESS)
}
