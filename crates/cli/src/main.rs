//! The `polis` binary: `polis up`, the controller manager, the embedded federation, and the user's commands.
//!
//! | module | content |
//! |---|---|
//! | `up` | `polis up`: the whole federation in one process |
//! | `manager` | `polis manager`: runs the controllers |
//! | `federation` | `polis federation`: runs the embedded federation on a hub without Karmada |
//! | `verbs` | the user's commands, one file each |
//! | `view` | diagnosis, tables and trees of the commands: pure functions |
//! | `session` | kubeconfig, clients and requests of the commands |
//! | `output`, `terminal`, `wait`, `exit` | `-o`; terminal or pipe; progress; exit codes and errors |

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing_subscriber::EnvFilter;

mod exit;
mod federation;
mod manager;
mod output;
#[cfg(test)]
mod reference;
mod session;
mod terminal;
mod up;
mod verbs;
mod view;
mod wait;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Default log filter of `polis up`, whose user reads the summary and not the log. The two modules at `error`
/// log every retried conflict as a warning; lasting problems are in the conditions of the objects.
const UP_LOG_FILTER: &str = "warn,polis_engine::engine=error";

#[derive(Parser)]
#[command(name = "polis", version, about = "Deploy workloads to cities, and run the control plane that does it", max_term_width = 100, after_help = exit::exit_codes_help())]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant, reason = "created once per process, from its command line")]
enum Verb {
    Up(up::Flags),
    Manager(manager::Flags),
    Federation(federation::Flags),
    #[command(flatten)]
    User(verbs::Verb),
}

fn main() -> ExitCode {
    // The runtime executes this binary as the shim of each container, and as the program of a built-in image.
    if let Some(code) = polis_runtime::run_internal_command(std::env::args_os().skip(1)) {
        return code;
    }
    match Cli::parse().verb {
        Verb::User(verb) => {
            // Commands print their own messages. RUST_LOG switches the logs of the libraries on.
            log("off");
            verbs::run(verb)
        }
        Verb::Up(flags) => match flags.check() {
            Err(error) => {
                failed(&error);
                exit::Exit::Usage.into()
            }
            Ok(()) => serve(UP_LOG_FILTER, || up::run(flags)),
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

/// Runs a command that serves until it receives SIGINT or SIGTERM.
fn serve(logs: &str, run: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    log(logs);
    if let Err(error) = raise_open_files_limit() {
        tracing::warn!(%error, "failed to raise the limit of open files; fewer connections can be open");
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// Raises the limit of open files to the hard limit, as Go programs do. The usual soft limit of 1,024 is far
/// below the connections that the servers of this process accept. Instances get a limit of their own.
fn raise_open_files_limit() -> rustix::io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("Error: {error:#}");
    ExitCode::FAILURE
}

/// The clap command, for completion scripts and for the reference pages.
fn command() -> clap::Command {
    Cli::command()
}

/// Logs to stderr: text on a terminal, JSON otherwise. `RUST_LOG` replaces the default filter.
fn log(default_filter: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default_filter));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() { logs.init() } else { logs.json().init() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_is_raised_to_the_hard_limit() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let lower = Rlimit { current: maximum.map(|most| most.min(512)).or(Some(512)), maximum };
        setrlimit(Resource::Nofile, lower).unwrap();
        raise_open_files_limit().unwrap();
        assert_eq!(getrlimit(Resource::Nofile), Rlimit { current: maximum, maximum });
    }
}
