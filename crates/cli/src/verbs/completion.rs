//! `polis completion`: scripts that let a shell complete verbs and flags.

use clap::Args;
use clap_complete::Shell;

use crate::exit::{Exit, Fault};
use crate::terminal;

/// Print the completion script of a shell
#[derive(Args)]
#[command(after_help = "Examples:
  polis completion bash
  polis completion zsh

For one session of bash or zsh: source <(polis completion bash)")]
pub struct Flags {
    /// The shell
    shell: Shell,
}

/// See the head of this file.
pub fn run(flags: Flags) -> Result<Exit, Fault> {
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut crate::command(), "polis", &mut script);
    terminal::put(&String::from_utf8_lossy(&script));
    Ok(Exit::Done)
}
