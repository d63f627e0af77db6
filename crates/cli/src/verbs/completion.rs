//! `polis completion`: prints completion scripts for commands and flags; that for bash also completes the
//! names of workloads, instances, cities and projects, which it gets from `polis complete`.

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
    terminal::print_raw(&with_names(flags.shell, &String::from_utf8_lossy(&script)));
    Ok(Exit::Done)
}

/// Completes names where the script of clap knows only flags and subcommands.
const BASH: &str = r#"
_polis_names() {
    _polis "$@"
    local word="${COMP_WORDS[COMP_CWORD]}" names
    [[ "$word" == -* ]] && return 0
    names="$(polis complete -- "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)"
    [[ -n "$names" ]] && COMPREPLY=($(compgen -W "$names" -- "$word"))
    return 0
}
complete -F _polis_names -o bashdefault -o default polis
"#;

fn with_names(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => format!("{script}{BASH}"),
        _ => script.to_owned(),
    }
}
