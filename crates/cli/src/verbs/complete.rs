//! `polis complete`: prints the names that complete a command line. The completion scripts call it.
//!
//! It never fails and prints no message: a shell that completes a line shows nothing else.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use polis_api::ObjectExt;
use polis_api::compute::{Instance, Workload};
use polis_api::networking::LocationBinding;
use polis_core::cities::Cities;

use crate::exit::{CliError, Exit};
use crate::session::{ConnectionFlags, Session, optional};
use crate::terminal;

/// A completion that takes longer disturbs more than it helps.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Print the names that complete a command line
#[derive(Args)]
#[command(hide = true, disable_help_flag = true)]
pub struct Flags {
    /// The words of the line before the one to complete, without `polis`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// What completes a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Candidates {
    Workloads,
    WorkloadsAndInstances,
    Cities,
    Projects,
    None,
}

/// Prints the names, one per line.
pub async fn run(flags: Flags) -> Result<Exit, CliError> {
    let names = tokio::time::timeout(TIMEOUT, names(&flags.words)).await;
    if let Ok(Ok(names)) = names {
        names.iter().for_each(terminal::print);
    }
    Ok(Exit::Done)
}

async fn names(words: &[String]) -> Result<Vec<String>, CliError> {
    let words = separated(words);
    let candidates = candidates(&words);
    if candidates == Candidates::None {
        return Ok(Vec::new());
    }
    let session = Session::new(&connection(&words)).await?;
    let workloads = async {
        let found = optional(session.api::<Workload>(), "workloads").await?.unwrap_or_default();
        Ok::<_, CliError>(found.iter().map(|workload| workload.name().to_owned()).collect::<Vec<_>>())
    };
    Ok(match candidates {
        Candidates::None => Vec::new(),
        Candidates::Workloads => workloads.await?,
        Candidates::WorkloadsAndInstances => {
            let mut names = workloads.await?;
            let instances = optional(session.api::<Instance>(), "instances").await?.unwrap_or_default();
            names.extend(instances.iter().map(|instance| instance.name().to_owned()));
            names
        }
        Candidates::Cities => {
            let bindings = optional(session.all::<LocationBinding>(), "cities").await?.unwrap_or_default();
            match Cities::bound(&bindings).0 {
                Cities::Bound(cities) => cities.into_iter().collect(),
                Cities::Any => Vec::new(),
            }
        }
        Candidates::Projects => {
            // A project may have several contexts.
            let projects = session.project_contexts().into_iter().map(|(project, _)| project);
            projects.collect::<BTreeSet<_>>().into_iter().collect()
        }
    })
}

/// What completes a line after these words: the value of the last flag, or the first name after the verb.
fn candidates(words: &[String]) -> Candidates {
    let mut command = crate::command();
    command.build();
    let mut command = &command;
    let mut verb = "";
    let mut names = 0;
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        if word.starts_with('-') {
            let takes_value = flag(command, word).is_some_and(|flag| flag.get_action().takes_values());
            if takes_value && words.next().is_none() {
                return of_value(word);
            }
        } else if let Some(inner) = command.find_subcommand(word) {
            verb = if verb.is_empty() { inner.get_name() } else { verb };
            command = inner;
        } else {
            names += 1;
        }
    }
    match verb {
        _ if names > 0 || command.has_subcommands() => Candidates::None,
        "status" | "scale" | "restart" | "destroy" | "rollout" | "deploy" | "instances" => {
            Candidates::Workloads
        }
        "why" | "logs" => Candidates::WorkloadsAndInstances,
        _ => Candidates::None,
    }
}

/// The words with `--city=dfw` as two words. bash makes a third one of the `=`.
fn separated(words: &[String]) -> Vec<String> {
    let parts = words.iter().flat_map(|word| match word.split_once('=') {
        Some((flag, value)) if flag.starts_with("--") => vec![flag, value],
        _ => vec![word.as_str()],
    });
    parts.filter(|part| *part != "=").map(str::to_owned).collect()
}

/// The flag of a command that a word such as `--city` or `-n` names.
fn flag<'a>(command: &'a clap::Command, word: &str) -> Option<&'a clap::Arg> {
    let long = word.strip_prefix("--");
    let short = word.strip_prefix('-').and_then(|short| short.chars().next());
    command.get_arguments().find(|flag| match long {
        Some(long) => flag.get_long() == Some(long),
        None => flag.get_short().is_some() && flag.get_short() == short,
    })
}

/// What completes the value of a flag.
fn of_value(flag: &str) -> Candidates {
    match flag {
        "--city" | "--abandon" => Candidates::Cities,
        "--project" => Candidates::Projects,
        _ => Candidates::None,
    }
}

/// The connection flags on the line.
fn connection(words: &[String]) -> ConnectionFlags {
    let value = |names: [&str; 2]| {
        let at = words.iter().position(|word| names.contains(&word.as_str()))?;
        words.get(at + 1).cloned()
    };
    ConnectionFlags {
        project: value(["--project", "--project"]),
        namespace: value(["-n", "--namespace"]),
        context: value(["--context", "--context"]),
        kubeconfig: value(["--kubeconfig", "--kubeconfig"]).map(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_before_decide_what_completes_a_line() {
        let table = [
            ("status", Candidates::Workloads),
            ("rollout undo", Candidates::Workloads),
            ("logs -f", Candidates::WorkloadsAndInstances),
            ("logs --tail", Candidates::None),
            ("logs --tail 5", Candidates::WorkloadsAndInstances),
            ("logs -n blue", Candidates::WorkloadsAndInstances),
            ("rollout", Candidates::None),
            ("logs", Candidates::WorkloadsAndInstances),
            ("why", Candidates::WorkloadsAndInstances),
            ("status web", Candidates::None),
            ("deploy web --city", Candidates::Cities),
            ("deploy web --city dfw --city", Candidates::Cities),
            ("deploy web --city =", Candidates::Cities),
            ("logs --city=dfw", Candidates::WorkloadsAndInstances),
            ("destroy web --abandon", Candidates::Cities),
            ("status --project", Candidates::Projects),
            ("cities", Candidates::None),
            ("", Candidates::None),
        ];
        for (line, expected) in table {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(candidates(&separated(&words)), expected, "{line}");
        }
    }

    #[test]
    fn the_connection_flags_of_the_line_are_used() {
        let words = ["status", "--project=shop", "-n", "blue"].map(str::to_owned);
        let flags = connection(&separated(&words));
        assert_eq!((flags.project.as_deref(), flags.namespace.as_deref()), (Some("shop"), Some("blue")));
    }
}
