//! `polis deploy`: creates or changes workloads from flags or a file. Prints the difference before the change
//! and the progress after it.

use std::path::{Path, PathBuf};

use clap::Args;
use polis_api::quota::AllowanceBucket;
use serde_json::Value;

use crate::exit::{CliError, Exit};
use crate::output::OutputFlag;
use crate::session::{ConnectionFlags, Session, optional};
use crate::terminal;
use crate::verbs::quota;
use crate::view::diff::{self, DiffLine};
use crate::view::manifest::{self, DeployOptions};
use crate::view::{Severity, headroom, unknown_fields};
use crate::wait::WaitFlags;

/// Create a workload in one or more cities, or change one
///
/// With flags: creates the workload, or changes only the named fields of an existing one. With -f: creates or
/// replaces the workloads of a file. The difference to an existing workload is printed first; on a terminal,
/// a prompt asks for confirmation.
#[derive(Args)]
#[command(after_help = "Examples:
  polis deploy web --image polis.local/hello --city dfw --city ord --port 8080
  polis deploy web --image polis.local/hello --env GREETING=hello --yes
  polis deploy web --env-from secret/db --yes
  polis deploy -f workload.yaml --yes --no-wait")]
pub struct Flags {
    /// Name of the workload
    #[arg(required_unless_present = "file")]
    name: Option<String>,
    /// Container image; required for a new workload
    #[arg(long)]
    image: Option<String>,
    /// City code to run in; repeat the flag for each city
    #[arg(long = "city", value_name = "CITY")]
    cities: Vec<String>,
    /// Number of instances in each city [default for a new workload: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(i32).range(0..=1000))]
    replicas: Option<i32>,
    /// TCP port that the container listens on, such as 8080 or http=8080; repeat the flag for each port
    #[arg(long = "port", value_name = "PORT")]
    ports: Vec<String>,
    /// Environment variable of the container, or KEY- to remove one; repeat the flag for each variable
    #[arg(long, value_name = "KEY=VALUE")]
    env: Vec<String>,
    /// Secret or config map whose keys become environment variables, as secret/NAME or config/NAME, or
    /// secret/NAME- to remove it; repeat the flag for each
    #[arg(long, value_name = "SOURCE")]
    env_from: Vec<String>,
    /// Network of the instances [default for a new workload: default]
    #[arg(long)]
    network: Option<String>,
    /// Instance type, such as datumcloud/d1-standard-2
    #[arg(long, value_name = "TYPE")]
    instance_type: Option<String>,
    /// File with Workload manifests in YAML or JSON; - reads standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["name", "image", "cities", "replicas", "ports", "env", "env_from", "network", "instance_type", "args"])]
    file: Option<PathBuf>,
    /// Apply the change without a prompt
    #[arg(short, long)]
    yes: bool,
    /// Arguments of the container, after --
    #[arg(last = true)]
    args: Vec<String>,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    connection: ConnectionFlags,
}

/// Checks every workload with a dry run, then writes them and waits.
pub async fn run(flags: Flags) -> Result<Exit, CliError> {
    let file = match &flags.file {
        Some(path) => Some(ManifestFile::read(path)?),
        None => None,
    };
    flags.output.reserve_stdout();
    let mut session = Session::new(&flags.connection).await?;
    let mut changes = Vec::new();
    match &file {
        Some(file) => {
            for workload in &file.workloads {
                let mut session = session.clone();
                use_namespace_of(&mut session, &flags.connection, workload)?;
                let name = workload["metadata"]["name"].as_str().unwrap_or_default();
                let existing = session.manifest_of(name).await?;
                let manifest = manifest::merge(existing.as_ref(), workload, &session.namespace);
                changes.push(PendingChange { session, existing, manifest });
            }
        }
        None => {
            let name = flags.name.clone().unwrap_or_default();
            let options = options(&flags);
            let existing = session.manifest_of(&name).await?;
            let manifest = manifest::from_options(existing.as_ref(), &name, &session.namespace, &options)
                .map_err(|why| {
                    CliError::usage(
                        format!("failed to deploy workload {name}"),
                        why,
                        "see the examples of `polis deploy --help`",
                    )
                })?;
            changes.push(PendingChange { session: session.clone(), existing, manifest });
        }
    }
    let changes = dry_run_all(changes, file.as_ref()).await?;
    for change in &changes {
        check_quota(&change.session, change.existing.as_ref(), &change.manifest, &flags.wait).await?;
    }
    if changes.iter().any(|change| change.existing.is_some() && !change.lines.is_empty())
        && !flags.yes
        && terminal::is_interactive()
    {
        terminal::confirm("Apply the change?")?;
    }
    let mut made = Vec::new();
    for change in &changes {
        made.push(commit(change).await?);
    }
    let mut deployed = Vec::new();
    for (name, namespace) in made {
        session.namespace = namespace;
        flags.wait.until_ready(&session, &name).await?;
        if flags.output.is_machine_readable() {
            deployed.extend(session.manifest_of(&name).await?);
        }
    }
    flags.output.changed("workload", &deployed)?;
    Ok(Exit::Done)
}

/// A workload to be created or changed.
struct PendingChange {
    session: Session,
    existing: Option<Value>,
    manifest: Value,
}

/// A change that passed the server-side dry run, with the lines of its diff.
struct CheckedChange {
    session: Session,
    existing: Option<Value>,
    manifest: Value,
    lines: Vec<DiffLine>,
}

/// Sends every change as a server-side dry run before the first write, and prints the differences. The errors
/// of all workloads are reported together.
async fn dry_run_all(
    changes: Vec<PendingChange>,
    file: Option<&ManifestFile>,
) -> Result<Vec<CheckedChange>, CliError> {
    let (mut checked, mut errors) = (Vec::new(), Vec::new());
    for PendingChange { session, existing, manifest } in changes {
        let after = match session.dry_run(existing.as_ref(), &manifest).await {
            Ok(after) => after,
            Err(error) => {
                let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
                errors.push(file.map_or(error.clone(), |file| file.locate(error, name)));
                continue;
            }
        };
        let lines = diff::lines(existing.as_ref(), &after);
        let lines =
            lines.map_err(|why| CliError::new(Exit::Failed, "failed to compute the difference", why, ""))?;
        if existing.is_some() {
            lines.iter().for_each(|line| terminal::print_styled(colored(line)));
        }
        checked.push(CheckedChange { session, existing, manifest, lines });
    }
    match errors.len() {
        0 => Ok(checked),
        1 => Err(errors.remove(0)),
        count => Err(CliError {
            what: format!("failed to deploy {count} workloads"),
            why: errors.iter().map(|error| format!("\n{}: {}", error.what, error.why)).collect(),
            ..errors.remove(0)
        }),
    }
}

/// Refuses a change for which the quota of the project does not suffice. With `--no-wait` and `--wait-anyway`
/// this is a note: the instances start when quota is free.
pub async fn check_quota(
    session: &Session,
    existing: Option<&Value>,
    manifest: &Value,
    wait: &WaitFlags,
) -> Result<(), CliError> {
    // A user who may not read the quota deploys without this check.
    let Ok(Some(buckets)) = optional(session.all::<AllowanceBucket>(), "quota").await else { return Ok(()) };
    let registrations = quota::registrations(session).await;
    let short = headroom::shortages(existing, manifest, &buckets, &registrations);
    if short.is_empty() {
        return Ok(());
    }
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default();
    let why = format!("it {}", short.join("; it "));
    if wait.no_wait || wait.is_anyway() {
        terminal::note(format!("Workload {name} exceeds the quota of the project: {why}."));
        return Ok(());
    }
    Err(CliError::new(
        Exit::Refused,
        format!("failed to deploy workload {name}"),
        format!("the quota of the project does not suffice: {why}"),
        "scale a workload down, ask for more quota, or repeat the command with --wait-anyway; nothing was changed",
    ))
}

async fn commit(change: &CheckedChange) -> Result<(String, String), CliError> {
    let CheckedChange { session, existing, manifest, lines } = change;
    let name = manifest["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let done = match existing {
        None => "created",
        Some(_) if lines.is_empty() => "unchanged",
        Some(_) => "changed",
    };
    if done != "unchanged" {
        session.apply(existing.as_ref(), manifest, "deploy").await?;
    }
    terminal::print(format!("workload {name} {done} in {}", session.describe()));
    Ok((name, session.namespace.clone()))
}

fn colored(line: &DiffLine) -> String {
    match line {
        DiffLine::Plus(text) => terminal::colored(Severity::Ok, &format!("+ {text}")),
        DiffLine::Minus(text) => terminal::colored(Severity::Blocked, &format!("- {text}")),
        DiffLine::Same(text) => format!("  {}", terminal::shown(text)),
        DiffLine::Gap => "  ...".to_owned(),
    }
}

fn options(flags: &Flags) -> DeployOptions {
    DeployOptions {
        image: flags.image.clone(),
        cities: flags.cities.clone(),
        replicas: flags.replicas,
        ports: flags.ports.clone(),
        env: flags.env.clone(),
        env_from: flags.env_from.clone(),
        args: flags.args.clone(),
        network: flags.network.clone(),
        instance_type: flags.instance_type.clone(),
    }
}

/// A file with workloads, and its text, so that errors can name lines.
struct ManifestFile {
    path: PathBuf,
    text: String,
    workloads: Vec<Value>,
}

impl ManifestFile {
    fn read(path: &Path) -> Result<Self, CliError> {
        let what = || format!("failed to read {}", path.display());
        let text = match path.to_str() {
            Some("-") => std::io::read_to_string(std::io::stdin()),
            _ => std::fs::read_to_string(path),
        };
        let text = text.map_err(|error| {
            CliError::usage(what(), error.to_string(), "set -f to a file that can be read")
        })?;
        let workloads = manifest::from_file(&text).map_err(|why| {
            CliError::usage(what(), why, "correct the file and repeat the command; nothing was sent")
        })?;
        Ok(ManifestFile { path: path.to_owned(), text, workloads })
    }

    /// The error with the file, and with the line of each field that it names.
    fn locate(&self, error: CliError, name: &str) -> CliError {
        let unknown = unknown_fields::explain(&error.why, &self.text, name);
        let why = match unknown.is_empty() {
            true => unknown_fields::with_lines(&error.why, &self.text, name),
            false => unknown.join("; "),
        };
        CliError { what: format!("{} of {}", error.what, self.path.display()), why, ..error }
    }
}

/// Uses the namespace of a workload in a file. A different --namespace is an error.
fn use_namespace_of(
    session: &mut Session,
    connection: &ConnectionFlags,
    workload: &Value,
) -> Result<(), CliError> {
    let Some(own) = workload["metadata"]["namespace"].as_str() else { return Ok(()) };
    match &connection.namespace {
        Some(asked) if asked != own => Err(CliError::usage(
            format!(
                "failed to deploy workload {}",
                workload["metadata"]["name"].as_str().unwrap_or_default()
            ),
            format!("its namespace is {own} in the file and {asked} in --namespace"),
            "remove one of them",
        )),
        _ => {
            session.namespace = own.to_owned();
            Ok(())
        }
    }
}
