//! `polis version`: prints the versions of this program and of the server.

use clap::Args;
use serde_json::json;

use crate::exit::{CliError, Exit};
use crate::session::Session;
use crate::verbs::ListFlags;

/// Show the versions of this program and of the server
#[derive(Args)]
#[command(after_help = "Examples:
  polis version
  polis version -o json")]
pub struct Flags {
    #[command(flatten)]
    list: ListFlags,
}

/// Prints both versions.
pub async fn run(flags: Flags) -> Result<Exit, CliError> {
    let client = env!("CARGO_PKG_VERSION");
    // Without a server, the version of the program is printed.
    let server = match Session::new(&flags.list.connection).await {
        Ok(session) => match session.client.apiserver_version().await {
            Ok(info) => Ok((info.git_version, session)),
            Err(error) => Err(CliError::request("failed to read the version of the server", &error).why),
        },
        Err(error) => Err(error.why),
    };
    let answer = match &server {
        Ok((version, session)) => {
            json!({"name": "polis", "client": client, "server": version, "url": session.server})
        }
        Err(why) => json!({"name": "polis", "client": client, "server": null, "why": why}),
    };
    flags.list.output.one("version", &answer, |_| match &server {
        Ok((version, session)) => format!("polis {client}\nserver {version} at {}", session.root_server()),
        Err(why) => format!("polis {client}\nserver unknown: {why}"),
    })?;
    Ok(Exit::Done)
}
