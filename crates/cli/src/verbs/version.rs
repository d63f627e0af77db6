//! `polis version`: this program and the server.

use clap::Args;
use serde_json::json;

use crate::exit::{Exit, Fault};
use crate::output::OutputFlag;
use crate::reach::{Place, Reach};

/// Show the version of this program and of the server
#[derive(Args)]
#[command(after_help = "Examples:
  polis version
  polis version -o json")]
pub struct Flags {
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    place: Place,
}

/// See the head of this file.
pub async fn run(flags: Flags) -> Result<Exit, Fault> {
    let client = env!("CARGO_PKG_VERSION");
    // Without a server there is still a version.
    let server = match Reach::new(&flags.place).await {
        Ok(reach) => match reach.client.apiserver_version().await {
            Ok(info) => Ok((info.git_version, reach)),
            Err(error) => Err(Fault::request("failed to ask the server", &error).why),
        },
        Err(fault) => Err(fault.why),
    };
    let answer = match &server {
        Ok((version, reach)) => {
            json!({"name": "polis", "client": client, "server": version, "url": reach.server})
        }
        Err(why) => json!({"name": "polis", "client": client, "server": null, "why": why}),
    };
    flags.output.one("version", &answer, |_| match &server {
        Ok((version, reach)) => format!("polis {client}\nserver {version} at {}", reach.root_server()),
        Err(why) => format!("polis {client}\nserver unknown: {why}"),
    })?;
    Ok(Exit::Done)
}
