//! `polis completion`: prints completion scripts for commands and flags. Those for bash, zsh and fish also
//! complete the names of workloads, instances, cities and projects, which they get from `polis complete`.

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

/// The start of the function of clap, which changes `words` when it descends into subcommands.
const ZSH_START: &str = "_polis() {\n";
const ZSH_WORDS: &str = r#"    local -a polis_words=("${(@)words[2,CURRENT-1]}")
"#;
/// `IPREFIX` is the flag of a value that is typed as `--city=d`.
const ZSH_NAMES: &str = r#"
_polis_names() {
    local -a names before=("${(@)polis_words}")
    [[ -n "$IPREFIX" ]] && before+=("${IPREFIX%=}")
    names=("${(@f)$(polis complete -- "${(@)before}" 2>/dev/null)}")
    names=("${(@)names:#}")
    if (( $#names )); then compadd "$@" -a names; else _default "$@"; fi
}
"#;

const FISH: &str = r#"
function __polis_names
    set -l words (commandline -opc)
    set -l flag (string match -r '^(--[a-z-]+)=' -- (commandline -ct))
    polis complete -- $words[2..] $flag[2] 2>/dev/null
end
complete -c polis -n "not __fish_polis_needs_command" -f -a "(__polis_names)"
"#;

fn with_names(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => format!("{script}{BASH}"),
        Shell::Zsh => {
            let script = script.replacen(ZSH_START, &format!("{ZSH_NAMES}\n{ZSH_START}{ZSH_WORDS}"), 1);
            script.replace(":_default'", ":_polis_names'")
        }
        Shell::Fish => {
            // A flag with a value of which clap knows nothing.
            let line = |line: &str| match line.ends_with(" -r") {
                true => format!("{line} -f -a \"(__polis_names)\"\n"),
                false => format!("{line}\n"),
            };
            script.lines().map(line).collect::<String>() + FISH
        }
        _ => script.to_owned(),
    }
}
