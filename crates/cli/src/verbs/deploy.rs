//! `polis deploy`: from flags or from a file, with the difference shown first and the way to ready shown after.

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use crate::exit::{Exit, Fault};
use crate::reach::{Place, Reach};
use crate::terminal;
use crate::view::Mood;
use crate::view::diff::{self, Line};
use crate::view::draft::{self, Wish};
use crate::wait::{self, WaitFlags};

/// Run a workload in cities, or change one
///
/// With flags, a new workload is made, or of an existing one only what the flags name is changed. With -f, the workloads
/// of a file are made or changed to be as the file says. What would change in an existing workload is shown first; on a
/// terminal the change waits for a yes.
#[derive(Args)]
#[command(after_help = "Examples:
  polis deploy web --image polis.local/hello --city dfw --city ord --port 8080
  polis deploy web --image polis.local/hello --env GREETING=hello --yes
  polis deploy -f workload.yaml --yes --no-wait")]
pub struct Flags {
    /// Name of the workload
    #[arg(required_unless_present = "file")]
    name: Option<String>,
    /// Image to run
    #[arg(long)]
    image: Option<String>,
    /// City to run in; once for each
    #[arg(long = "city", value_name = "CITY")]
    cities: Vec<String>,
    /// Instances in each city; 1 for a new workload
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(0..=1000))]
    replicas: Option<i32>,
    /// Port that it listens on, as 8080 or http=8080; once for each
    #[arg(long = "port", value_name = "PORT")]
    ports: Vec<String>,
    /// Environment variable, as KEY=value; once for each
    #[arg(long, value_name = "KEY=VALUE")]
    env: Vec<String>,
    /// Network to join; `default` for a new workload
    #[arg(long)]
    network: Option<String>,
    /// Size of the instances
    #[arg(long, value_name = "TYPE")]
    instance_type: Option<String>,
    /// File with workloads, YAML or JSON; - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["name", "image", "cities", "replicas", "ports", "env", "network", "instance_type", "args"])]
    file: Option<PathBuf>,
    /// Change without asking
    #[arg(short, long)]
    yes: bool,
    /// Arguments of the program, after --
    #[arg(last = true)]
    args: Vec<String>,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    place: Place,
}

/// See the head of this file.
pub async fn run(flags: Flags) -> Result<Exit, Fault> {
    let wanted = match &flags.file {
        Some(file) => Some(read(file)?),
        None => None,
    };
    let mut reach = Reach::new(&flags.place).await?;
    let mut changes = Vec::new();
    match wanted {
        Some(workloads) => {
            for workload in &workloads {
                let mut reach = reach.clone();
                take_namespace(&mut reach, &flags.place, workload)?;
                let name = workload["metadata"]["name"].as_str().unwrap_or_default();
                let standing = reach.draft_of(name).await?;
                let draft = draft::over(standing.as_ref(), workload, &reach.namespace);
                changes.push(Change { reach, standing, draft });
            }
        }
        None => {
            let name = flags.name.clone().unwrap_or_default();
            let wish = wish(&flags);
            let standing = reach.draft_of(&name).await?;
            let draft =
                draft::from_wish(standing.as_ref(), &name, &reach.namespace, &wish).map_err(|why| {
                    Fault::usage(
                        format!("failed to deploy workload {name}"),
                        why,
                        "polis deploy --help has examples",
                    )
                })?;
            changes.push(Change { reach: reach.clone(), standing, draft });
        }
    }
    let changes = rehearsed(changes).await?;
    if changes.iter().any(|change| change.standing.is_some() && !change.lines.is_empty())
        && !flags.yes
        && terminal::can_ask()
    {
        terminal::ask("Change it?")?;
    }
    let mut made = Vec::new();
    for change in &changes {
        made.push(commit(change).await?);
    }
    for (name, namespace) in made.into_iter().filter(|_| !flags.wait.no_wait) {
        reach.namespace = namespace;
        wait::until_ready(&reach, &name, flags.wait.timeout).await?;
    }
    Ok(Exit::Done)
}

/// A workload to be created or changed.
struct Change {
    reach: Reach,
    standing: Option<Value>,
    draft: Value,
}

/// A change that the server has agreed to, with the lines that differ.
struct Rehearsed {
    reach: Reach,
    standing: Option<Value>,
    draft: Value,
    lines: Vec<Line>,
}

/// Lets the server check everything before anything is changed, and shows what would change.
async fn rehearsed(changes: Vec<Change>) -> Result<Vec<Rehearsed>, Fault> {
    let mut agreed = Vec::new();
    for Change { reach, standing, draft } in changes {
        let after = reach.rehearse(standing.as_ref(), &draft).await?;
        let lines = diff::lines(standing.as_ref(), &after);
        let lines =
            lines.map_err(|why| Fault::new(Exit::Failed, "failed to show the difference", why, ""))?;
        if standing.is_some() {
            lines.iter().for_each(|line| terminal::say(painted(line)));
        }
        agreed.push(Rehearsed { reach, standing, draft, lines });
    }
    Ok(agreed)
}

async fn commit(change: &Rehearsed) -> Result<(String, String), Fault> {
    let Rehearsed { reach, standing, draft, lines } = change;
    let name = draft["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let done = match standing {
        None => "created",
        Some(_) if lines.is_empty() => "unchanged",
        Some(_) => "changed",
    };
    if done != "unchanged" {
        reach.commit(standing.as_ref(), draft, "deploy").await?;
    }
    terminal::say(format!("workload {name} {done} in {}", reach.in_words()));
    Ok((name, reach.namespace.clone()))
}

fn painted(line: &Line) -> String {
    match line {
        Line::Plus(text) => terminal::tint(Mood::Good, &format!("+ {text}")),
        Line::Minus(text) => terminal::tint(Mood::Stuck, &format!("- {text}")),
        Line::Same(text) => format!("  {text}"),
        Line::Gap => "  ...".to_owned(),
    }
}

fn wish(flags: &Flags) -> Wish {
    Wish {
        image: flags.image.clone(),
        cities: flags.cities.clone(),
        replicas: flags.replicas,
        ports: flags.ports.clone(),
        env: flags.env.clone(),
        args: flags.args.clone(),
        network: flags.network.clone(),
        instance_type: flags.instance_type.clone(),
    }
}

fn read(file: &std::path::Path) -> Result<Vec<Value>, Fault> {
    let what = || format!("failed to read {}", file.display());
    let text = match file.to_str() {
        Some("-") => std::io::read_to_string(std::io::stdin()),
        _ => std::fs::read_to_string(file),
    };
    let text =
        text.map_err(|error| Fault::usage(what(), error.to_string(), "name a file that can be read"))?;
    draft::from_file(&text)
        .map_err(|why| Fault::usage(what(), why, "nothing was sent; repair the file and repeat"))
}

/// The namespace of a file's workload; --namespace must agree with it.
fn take_namespace(reach: &mut Reach, place: &Place, workload: &Value) -> Result<(), Fault> {
    let Some(own) = workload["metadata"]["namespace"].as_str() else { return Ok(()) };
    match &place.namespace {
        Some(asked) if asked != own => Err(Fault::usage(
            format!(
                "failed to deploy workload {}",
                workload["metadata"]["name"].as_str().unwrap_or_default()
            ),
            format!("the file says namespace {own} and the command line {asked}"),
            "leave one of them out",
        )),
        _ => {
            reach.namespace = own.to_owned();
            Ok(())
        }
    }
}
