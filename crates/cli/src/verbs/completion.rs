//! `polis completion`: prints completion scripts for commands and flags.

use clap::Args;
use clap_complete::Shell;

use crate::exit::{CliError, Exit};
use crate::terminal;

/// Print the completion script for a shell
#[derive(Args)]
#[command(after_help = "Examples:
  polis completion bash
  polis completion zsh

To load it into the running shell: source <(polis completion bash)")]
pub struct Flags {
    /// Shell to print the script for
    shell: Shell,
}

/// Prints the script.
pub fn run(flags: Flags) -> Result<Exit, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut crate::command(), "polis", &mut script);
    terminal::print_raw(&String::from_utf8_lossy(&script));
    Ok(Exit::Done)
}
