//! The programs of the built-in images `polis.local/<name>`, compiled into the binary.
//!
//! They need no network and start in milliseconds, for first steps, demonstrations and tests. Each reads its
//! configuration from its environment, like any other program in an instance.

mod crash;
mod flaky;
mod hello;
mod sleep;

use std::fmt::Display;
use std::process::ExitCode;
use std::str::FromStr;

/// The names of the built-in images, without the prefix `polis.local/`.
pub const NAMES: [&str; 4] = ["hello", "sleep", "crash", "flaky"];

/// Runs a built-in program.
pub(crate) fn main(name: &str, args: &[String]) -> ExitCode {
    let ended = match name {
        "hello" => hello::main(),
        "sleep" => sleep::main(args),
        "crash" => crash::main(args),
        "flaky" => flaky::main(args),
        other => Err(format!("there is no built-in program {other}; use one of {}", NAMES.join(", "))),
    };
    match ended {
        Ok(code) => code,
        Err(why) => {
            eprintln!("{name}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The argument at a position, if present.
fn argument<T: FromStr<Err: Display>>(args: &[String], at: usize, what: &str) -> Result<Option<T>, String> {
    let read = |text: &String| text.parse().map_err(|error| format!("{what} {text:?}: {error}"));
    args.get(at).map(read).transpose()
}

/// An environment variable, if set.
fn variable<T: FromStr<Err: Display>>(name: &str) -> Result<Option<T>, String> {
    let read = |text: String| text.parse().map_err(|error| format!("{name}={text:?}: {error}"));
    std::env::var(name).ok().map(read).transpose()
}

/// Runs a future on a new single-threaded runtime.
fn block_on(work: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("failed to start: {error}"))?;
    runtime.block_on(work)
}

/// Resolves on TERM.
async fn terminated() -> Result<(), String> {
    let term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
    term.map_err(|error| format!("failed to listen for TERM: {error}"))?.recv().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_argument_is_named() {
        let args = vec!["7".to_owned(), "x".to_owned()];
        assert_eq!(argument::<u8>(&args, 0, "exit code"), Ok(Some(7)));
        assert_eq!(argument::<u8>(&args, 2, "exit code"), Ok(None));
        assert!(argument::<u8>(&args, 1, "exit code").unwrap_err().starts_with("exit code \"x\": "));
    }
}
