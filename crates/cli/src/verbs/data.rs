//! `polis secrets` and `polis config`: list, change and clean the secrets and config maps of a project.
//!
//! A value is read from an argument, a file or standard input, and sent. It is never printed.

use std::fmt::Debug;

use clap::{Args, Subcommand};
use polis_api::compute::Workload;
use polis_api::k8s_openapi::NamespaceResourceScope;
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use polis_api::kube::api::{Patch, PatchParams, PostParams};
use polis_api::kube::{Api, Error, Resource};
use polis_core::referenced_data::DataObject;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::exit::{CliError, Exit};
use crate::session::{ConnectionFlags, Session};
use crate::terminal;
use crate::verbs::ListFlags;
use crate::view::data;

/// List and change the secrets of a project
///
/// A workload refers to a secret by its name (`polis deploy --env-from secret/NAME`). Polis copies it to the
/// cities of the workload. Running instances keep the values that they started with until `polis restart`.
/// Values are never printed.
#[derive(Args)]
#[command(after_help = "Examples:
  polis secrets set db user=ann password=s3cret
  polis secrets set tls --from-file tls.key=key.pem
  polis secrets list")]
pub struct SecretFlags {
    #[command(subcommand)]
    part: Part,
}

/// List and change the config maps of a project
///
/// A workload refers to a config map by its name (`polis deploy --env-from config/NAME`). Polis copies it to
/// the cities of the workload. Running instances keep the values that they started with until
/// `polis restart`.
#[derive(Args)]
#[command(after_help = "Examples:
  polis config set settings LEVEL=debug
  polis config set settings --from-file app.conf
  polis config unset settings LEVEL")]
pub struct ConfigFlags {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// List names, keys and sizes, and the workloads that refer to each
    List(ListFlags),
    /// Set keys; creates the object if it does not exist
    Set(Set),
    /// Remove keys
    Unset(Unset),
}

#[derive(Args)]
struct Set {
    /// Name of the object
    name: String,
    /// A key and its value; other users of this computer may see it in the list of processes
    #[arg(value_name = "KEY=VALUE", required_unless_present = "files")]
    pairs: Vec<String>,
    /// File with the value of a key, - for standard input; repeat the flag for each key [default KEY: the
    /// name of the file]
    #[arg(long = "from-file", value_name = "[KEY=]FILE")]
    files: Vec<String>,
    #[command(flatten)]
    connection: ConnectionFlags,
}

#[derive(Args)]
struct Unset {
    /// Name of the object
    name: String,
    /// Keys to remove
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<String>,
    #[command(flatten)]
    connection: ConnectionFlags,
}

/// Runs a subcommand of `polis secrets`.
pub async fn run_secrets(flags: SecretFlags) -> Result<Exit, CliError> {
    run::<Secret>(flags.part).await
}

/// Runs a subcommand of `polis config`.
pub async fn run_config(flags: ConfigFlags) -> Result<Exit, CliError> {
    run::<ConfigMap>(flags.part).await
}

/// An object that the commands read and write.
trait Editable:
    DataObject + Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize + DeserializeOwned + Debug
{
}

impl Editable for Secret {}
impl Editable for ConfigMap {}

async fn run<K: Editable>(part: Part) -> Result<Exit, CliError> {
    match part {
        Part::List(flags) => list::<K>(flags).await,
        Part::Set(flags) => set::<K>(flags).await,
        Part::Unset(flags) => unset::<K>(flags).await,
    }
}

async fn list<K: Editable>(flags: ListFlags) -> Result<Exit, CliError> {
    let session = Session::new(&flags.connection).await?;
    let found = session.api::<K>().list(&Default::default()).await;
    let found = found.map_err(|error| CliError::request(format!("failed to list {}s", K::KIND), &error))?;
    let lines = data::lines(&found.items, &workloads(&session).await);
    flags.output.list(K::KIND.resource().trim_end_matches('s'), &lines, |_| data::table(&lines, K::KIND))?;
    Ok(Exit::Done)
}

async fn set<K: Editable>(flags: Set) -> Result<Exit, CliError> {
    let what = || format!("failed to set {} {}", K::KIND, flags.name);
    let usage = |why: String| CliError::usage(what(), why, "see the examples of the command's --help");
    let mut entries = Vec::new();
    for text in &flags.pairs {
        let (key, value) = data::pair(text).map_err(usage)?;
        entries.push((key, Some(value)));
    }
    for text in &flags.files {
        let (key, path) = data::file(text).map_err(usage)?;
        let value = read(path).map_err(|error| usage(format!("{path}: {error}")))?;
        entries.push((key, Some(value)));
    }
    let session = Session::new(&flags.connection).await?;
    let patch = data::patch(K::KIND, &entries);
    let failed = |error: Error| CliError::request(what(), &error);
    let exists = match apply::<K>(&session.api(), &flags.name, &patch).await {
        Ok(()) => true,
        Err(Error::Api(status)) if status.code == 404 => false,
        Err(error) => return Err(failed(error)),
    };
    if !exists {
        let mut object: Value = patch;
        object["metadata"]["name"] = flags.name.as_str().into();
        for field in ["data", "binaryData"] {
            if let Some(map) = object[field].as_object_mut() {
                map.retain(|_, value| !value.is_null());
            }
        }
        let object: K = serde_json::from_value(object).map_err(|error| usage(error.to_string()))?;
        session.api::<K>().create(&PostParams::default(), &object).await.map_err(failed)?;
    }
    report::<K>(&session, &flags.name, "set", &entries).await;
    Ok(Exit::Done)
}

async fn unset<K: Editable>(flags: Unset) -> Result<Exit, CliError> {
    let entries: Vec<_> = flags.keys.iter().map(|key| (key.clone(), None)).collect();
    let session = Session::new(&flags.connection).await?;
    let patch = data::patch(K::KIND, &entries);
    let what = format!("failed to change {} {}", K::KIND, flags.name);
    let applied = apply::<K>(&session.api(), &flags.name, &patch).await;
    applied.map_err(|error| CliError::request(what, &error))?;
    report::<K>(&session, &flags.name, "removed", &entries).await;
    Ok(Exit::Done)
}

async fn apply<K: Editable>(api: &Api<K>, name: &str, patch: &Value) -> Result<(), Error> {
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}

/// Prints the keys that have changed, and the workloads that need a restart to use them.
async fn report<K: Editable>(
    session: &Session,
    name: &str,
    done: &str,
    entries: &[(String, Option<Vec<u8>>)],
) {
    let keys: Vec<&str> = entries.iter().map(|(key, _)| key.as_str()).collect();
    terminal::print(format!("{} {name}: {done} {}", K::KIND, keys.join(", ")));
    for user in data::users(K::KIND, name, &workloads(session).await) {
        terminal::note(format!(
            "Workload {user} refers to it; `polis restart {user}` starts instances with the new values."
        ));
    }
}

/// The workloads of the namespace; none for a user who may not list them.
async fn workloads(session: &Session) -> Vec<Workload> {
    session.api::<Workload>().list(&Default::default()).await.map(|list| list.items).unwrap_or_default()
}

fn read(path: &str) -> std::io::Result<Vec<u8>> {
    if path != "-" {
        return std::fs::read(path);
    }
    let mut value = Vec::new();
    std::io::Read::read_to_end(&mut std::io::stdin(), &mut value)?;
    Ok(value)
}
