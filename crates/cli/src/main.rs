//! The `polis` binary: a whole federation, the manager, and the user's verbs.
//!
//! | module | holds |
//! |---|---|
//! | `up` | `polis up`: the whole federation in one process |
//! | `manager` | `polis manager`: the process that runs controllers |
//! | `federation` | `polis federation`: the embedded federation over a hub without Karmada |
//! | `verbs` | the user's verbs, one file each |
//! | `view` | what verbs decide and draw: pure functions |
//! | `reach` | the way to the server, and the requests of verbs |
//! | `output`, `terminal`, `wait`, `exit` | `-o`; the terminal or pipe; waiting; exit codes and faults |

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

mod exit;
mod federation;
mod manager;
mod output;
mod reach;
#[cfg(test)]
mod reference;
mod terminal;
mod up;
mod verbs;
mod view;
mod wait;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What `polis up` logs: a person reads the summary, not the log. That two parts met and one of them tries again is
/// everyday life; what cannot be done stands in the conditions of the object.
const UP: &str = "warn,polis_engine::engine=error,polis_federation::federation=error";

#[derive(Parser)]
#[command(name = "polis", version, about = "Workloads by city", max_term_width = 100, after_help = exit::codes_in_words())]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant, reason = "made once per process, from its command line")]
enum Verb {
    Up(up::Flags),
    Manager(manager::Flags),
    Federation(federation::Flags),
    #[command(flatten)]
    User(verbs::Verb),
}

fn main() -> ExitCode {
    // Polis starts itself as a shim beside each container, and as the program of a built-in image.
    if let Some(code) = polis_runtime::inside(std::env::args_os().skip(1)) {
        return code;
    }
    match Cli::parse().verb {
        Verb::User(verb) => {
            // What a verb has to say it says itself; the libraries below it speak when asked.
            log("off");
            verbs::run(verb)
        }
        Verb::Up(flags) => match flags.check() {
            Err(error) => {
                failed(&error);
                exit::Exit::Usage.into()
            }
            Ok(()) => serve(UP, || up::run(flags)),
        },
        Verb::Manager(flags) => match flags.check_config {
            Some(depth) => {
                log("off");
                match manager::check_config(&flags, depth) {
                    Ok(exit) => exit.into(),
                    Err(error) => failed(&error),
                }
            }
            None => serve("info", || manager::run(flags)),
        },
        Verb::Federation(flags) => serve("info", || federation::run(flags)),
    }
}

/// Runs a verb that serves until it is told to stop.
fn serve(logs: &str, run: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    log(logs);
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("Error: {error:#}");
    ExitCode::FAILURE
}

/// The command line as clap sees it, for completion and for the reference.
fn command() -> clap::Command {
    Cli::command()
}

/// Logs on stderr: text for a person at a terminal, JSON for everything else. `RUST_LOG` chooses what.
fn log(unless_told: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(unless_told));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() { logs.init() } else { logs.json().init() }
}
