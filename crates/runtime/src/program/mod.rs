//! The programs of the built-in images: `polis.local/<name>` is one of these, inside the binary.
//!
//! They need nothing from a network and start in milliseconds, which makes them good for a first try, for teaching and for
//! tests. Each reads what it is about from its environment, as any other program in an instance would.

mod crash;
mod flaky;
mod hello;
mod sleep;

use std::fmt::Display;
use std::process::ExitCode;
use std::str::FromStr;

/// The names of the built-in images, behind `polis.local/`.
pub const NAMES: [&str; 4] = ["hello", "sleep", "crash", "flaky"];

/// Runs a built-in program.
pub(crate) fn main(name: &str, args: &[String]) -> ExitCode {
    let ended = match name {
        "hello" => hello::main(),
        "sleep" => sleep::main(args),
        "crash" => crash::main(args),
        "flaky" => flaky::main(args),
        other => Err(format!("there is no built-in program {other}; there are {}", NAMES.join(", "))),
    };
    match ended {
        Ok(code) => code,
        Err(why) => {
            eprintln!("{name}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The argument at a position, if it is there.
fn argument<T: FromStr<Err: Display>>(args: &[String], at: usize, what: &str) -> Result<Option<T>, String> {
    let read = |text: &String| text.parse().map_err(|error| format!("{what} {text:?}: {error}"));
    args.get(at).map(read).transpose()
}

/// A variable of the environment, if it is there.
fn variable<T: FromStr<Err: Display>>(name: &str) -> Result<Option<T>, String> {
    let read = |text: String| text.parse().map_err(|error| format!("{name}={text:?}: {error}"));
    std::env::var(name).ok().map(read).transpose()
}

/// Runs something until TERM comes.
fn until_told(work: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("failed to start: {error}"))?;
    runtime.block_on(work)
}

/// Ready when TERM comes.
async fn told_to_stop() -> Result<(), String> {
    let term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
    term.map_err(|error| format!("failed to listen for TERM: {error}"))?.recv().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_that_makes_no_sense_is_named() {
        let args = vec!["7".to_owned(), "x".to_owned()];
        assert_eq!(argument::<u8>(&args, 0, "exit code"), Ok(Some(7)));
        assert_eq!(argument::<u8>(&args, 2, "exit code"), Ok(None));
        assert!(argument::<u8>(&args, 1, "exit code").unwrap_err().starts_with("exit code \"x\": "));
    }
}
