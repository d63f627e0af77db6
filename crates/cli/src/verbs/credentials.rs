//! `polis credentials`: lists the valid credentials of an installation, and revokes them.

use clap::{Args, Subcommand};
use polis_api::kube;
use polis_apiserver::{Credential, Revocation};
use serde::Deserialize;

use crate::exit::{CliError, Exit};
use crate::session::{ConnectionFlags, Session};
use crate::terminal;
use crate::verbs::ListFlags;
use crate::view::credentials::table;

/// The path on the platform plane.
const PATH: &str = "/polis/credentials";

/// List the valid credentials of a `polis up` installation, or revoke them
///
/// The API server of `polis up` records the client certificates and service account tokens that it issues,
/// until they expire. Both subcommands need its administrator.
#[derive(Args)]
#[command(after_help = "Examples:
  polis credentials list
  polis credentials revoke --subject polis-admin")]
pub struct Flags {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// List the valid credentials: subject, kind, id, expiry
    #[command(after_help = "Examples:\n  polis credentials list\n  polis credentials list -o json")]
    List(ListFlags),
    /// End credentials: their next request is refused
    #[command(
        after_help = "Examples:\n  polis credentials revoke 1f2e3d4c\n  polis credentials revoke --subject system:serviceaccount:default:bot"
    )]
    Revoke(Revoke),
}

#[derive(Args)]
struct Revoke {
    /// Id of a credential: the serial number of a certificate, or the jti of a token
    #[arg(required_unless_present = "subject", conflicts_with = "subject")]
    id: Option<String>,
    /// Revoke all credentials that this user has received up to now
    #[arg(long, value_name = "USER")]
    subject: Option<String>,
    #[command(flatten)]
    connection: ConnectionFlags,
}

#[derive(Deserialize)]
struct CredentialList {
    items: Vec<Credential>,
}

/// Runs the subcommand.
pub async fn run(flags: Flags) -> Result<Exit, CliError> {
    match flags.part {
        Part::List(flags) => list(flags).await,
        Part::Revoke(flags) => revoke(flags).await,
    }
}

async fn list(flags: ListFlags) -> Result<Exit, CliError> {
    let session = Session::new(&flags.connection).await?;
    let found = request(&session, http::Request::get(PATH), Vec::new(), "failed to list credentials").await?;
    flags.output.list("credential", &found, |wide| table(&found, wide))?;
    Ok(Exit::Done)
}

async fn revoke(flags: Revoke) -> Result<Exit, CliError> {
    let session = Session::new(&flags.connection).await?;
    let (what, revocation) = match (flags.id, flags.subject) {
        (Some(id), _) => (format!("credential {id}"), Revocation::Id(id)),
        (None, subject) => {
            let subject = subject.unwrap_or_default();
            (format!("the credentials of {subject}"), Revocation::Subject(subject))
        }
    };
    let failed = format!("failed to revoke {what}");
    let body = serde_json::to_vec(&revocation)
        .map_err(|error| CliError::new(Exit::Failed, failed.as_str(), error.to_string(), ""))?;
    let ended = request(&session, http::Request::post(PATH), body, &failed).await?;
    for credential in &ended {
        let kind = format!("{:?}", credential.kind).to_lowercase();
        terminal::print(format!("revoked {kind} {} of {}", credential.id, credential.subject));
    }
    if ended.is_empty() {
        terminal::note(format!("{what}: none is known and valid; the server refuses it from now on"));
    }
    Ok(Exit::Done)
}

async fn request(
    session: &Session,
    request: http::request::Builder,
    body: Vec<u8>,
    failed: &str,
) -> Result<Vec<Credential>, CliError> {
    let request =
        request.body(body).map_err(|error| CliError::new(Exit::Failed, failed, error.to_string(), ""))?;
    match session.root().await?.request::<CredentialList>(request).await {
        Ok(found) => Ok(found.items),
        Err(kube::Error::Api(status)) if status.code == 404 => Err(CliError::new(
            Exit::Refused,
            failed,
            format!("{} is not a server of `polis up`", session.root_server()),
            "use the context of a `polis up` installation",
        )),
        Err(error) => Err(CliError::request(failed, &error)),
    }
}
