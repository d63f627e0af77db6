//! `polis doctor`: checks the connection to an installation and the installation, and prints what is wrong.

use std::time::Instant;

use clap::Args;
use polis_api::compute::Workload;
use polis_api::k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::kube::{Api, Client};
use polis_api::networking::{LocationBinding, Network};
use polis_api::{compute, kube};
use polis_core::cities::Cities;
use serde::Serialize;

use crate::exit::{CliError, Exit};
use crate::session::{self, ConnectionFlags, Session, optional};
use crate::terminal;
use crate::verbs::ListFlags;
use crate::view::table::Table;
use crate::view::{Severity, manifest};

/// Check the connection, the permissions and the planes of an installation
///
/// Exit code 7 if a check fails.
#[derive(Args)]
#[command(after_help = "Examples:
  polis doctor
  polis doctor -o json")]
pub struct Flags {
    #[command(flatten)]
    list: ListFlags,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Check {
    name: String,
    severity: Severity,
    message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    advice: String,
}

impl Check {
    fn ok(name: &str, message: impl Into<String>) -> Self {
        Check { name: name.into(), severity: Severity::Ok, message: message.into(), advice: String::new() }
    }

    fn problem(
        name: &str,
        severity: Severity,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Check { name: name.into(), severity, message: message.into(), advice: advice.into() }
    }

    fn failed(name: &str, error: CliError) -> Self {
        Check::problem(name, Severity::Blocked, format!("{}: {}", error.what, error.why), error.next)
    }
}

/// Runs the checks and prints them.
pub async fn run(flags: Flags) -> Result<Exit, CliError> {
    let checks = examine(&flags.list.connection).await;
    flags.list.output.list("check", &checks, |_| table(&checks))?;
    let failed = checks.iter().filter(|check| check.severity == Severity::Blocked).count();
    if !flags.list.output.is_machine_readable() {
        let advice = checks.iter().filter(|check| !check.advice.is_empty());
        advice.for_each(|check| terminal::print(format!("\n{}: {}", check.name, check.advice)));
    }
    Ok(if failed > 0 { Exit::Unhealthy } else { Exit::Done })
}

fn table(checks: &[Check]) -> Table {
    let mut table = Table::new(&["CHECK", "STATE", "FOUND"], "");
    for check in checks {
        let word = match check.severity {
            Severity::Ok => "ok",
            Severity::Progressing => "warning",
            Severity::Blocked => "failed",
        };
        table.row([check.name.clone(), word.to_owned(), check.message.clone()]);
    }
    table
}

/// Runs the checks in the order of their dependencies. A failed kubeconfig, context or server check ends the
/// list.
async fn examine(connection: &ConnectionFlags) -> Vec<Check> {
    let mut checks = Vec::new();
    match session::find(connection.kubeconfig.as_deref()) {
        Ok(found) => checks.push(Check::ok("kubeconfig", found.source.describe())),
        Err(error) => return vec![Check::failed("kubeconfig", error)],
    }
    let session = match Session::new(connection).await {
        Ok(session) => session,
        Err(error) => {
            checks.push(Check::failed("context", error));
            return checks;
        }
    };
    let project =
        session.project.as_ref().map_or_else(|| "no project".to_owned(), |p| format!("project {p}"));
    checks.push(Check::ok("context", format!("{} ({project})", session.context)));
    let server = server(&session).await;
    let unreachable = server.severity == Severity::Blocked;
    checks.push(server);
    if unreachable {
        return checks;
    }
    checks.push(kinds(&session).await);
    checks.push(permission(&session).await);
    checks.push(namespace(&session).await);
    checks.push(cities(&session).await);
    checks.push(network(&session).await);
    for (name, client) in downstream(&session).await {
        checks.push(plane(&name, client).await);
    }
    checks
}

async fn downstream(session: &Session) -> Vec<(String, Result<Client, CliError>)> {
    let mut planes = Vec::new();
    planes.extend(session.hub().await.map(|client| ("hub".to_owned(), client)));
    planes.extend(session.cells().await.into_iter().map(|(city, client)| (format!("cell {city}"), client)));
    planes
}

async fn server(session: &Session) -> Check {
    let start = Instant::now();
    match session.client.apiserver_version().await {
        Ok(info) => {
            let took = start.elapsed().as_millis();
            Check::ok("server", format!("{} at {} in {took} ms", info.git_version, session.root_server()))
        }
        Err(error) => {
            let error = CliError::request(format!("no answer from {}", session.root_server()), &error);
            let advice = "start the server (`polis up`), or select another with --context or --kubeconfig";
            Check { advice: advice.into(), ..Check::failed("server", error) }
        }
    }
}

async fn kinds(session: &Session) -> Check {
    match session.client.list_api_group_resources(compute::API_VERSION).await {
        Ok(list) => {
            let served: Vec<&str> = list.resources.iter().map(|resource| resource.name.as_str()).collect();
            let wanted = ["workloads", "workloaddeployments", "instances"];
            let missing: Vec<&str> = wanted.into_iter().filter(|kind| !served.contains(kind)).collect();
            match missing.is_empty() {
                true => Check::ok("kinds", format!("{} is served", compute::API_VERSION)),
                false => {
                    no_kinds(format!("{} is served without {}", compute::API_VERSION, missing.join(", ")))
                }
            }
        }
        Err(kube::Error::Api(status)) if status.code == 404 => {
            no_kinds(format!("{} is not served", compute::API_VERSION))
        }
        Err(error) => Check::failed("kinds", CliError::request("failed to list kinds", &error)),
    }
}

fn no_kinds(message: String) -> Check {
    Check::problem(
        "kinds",
        Severity::Blocked,
        message,
        "the plane is not a Polis project: select one with --project or --context, or install the CRDs",
    )
}

async fn permission(session: &Session) -> Check {
    let question = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(compute::GROUP.into()),
                resource: Some("workloads".into()),
                verb: Some("create".into()),
                namespace: Some(session.namespace.clone()),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    let answer = Api::<SelfSubjectAccessReview>::all(session.client.clone())
        .create(&Default::default(), &question)
        .await;
    match answer {
        Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => {
            Check::ok("permission", format!("you may create workloads in {}", session.describe()))
        }
        Ok(_) => Check::problem(
            "permission",
            Severity::Blocked,
            format!("you may not create workloads in {}", session.describe()),
            "ask the owner of the project for a role, or select another project with --project",
        ),
        Err(error) => {
            let error = CliError::request("failed to create a SelfSubjectAccessReview", &error);
            Check::problem(
                "permission",
                Severity::Progressing,
                error.why,
                "the server does not answer permission reviews; try `polis deploy`",
            )
        }
    }
}

async fn namespace(session: &Session) -> Check {
    let name = &session.namespace;
    match Api::<Namespace>::all(session.client.clone()).get_opt(name).await {
        Ok(Some(_)) => match session.api::<Workload>().list(&Default::default()).await {
            Ok(list) => Check::ok("namespace", format!("{name} has {} workloads", list.items.len())),
            Err(error) => Check::failed("namespace", CliError::request("failed to list workloads", &error)),
        },
        Ok(None) => {
            let advice = "create the namespace, or select another with --namespace";
            Check::problem("namespace", Severity::Blocked, format!("{name} does not exist"), advice)
        }
        Err(error) => {
            let error = CliError::request("failed to read the object", &error);
            Check::problem("namespace", Severity::Progressing, error.why, "")
        }
    }
}

async fn cities(session: &Session) -> Check {
    match optional(session.all::<LocationBinding>(), "cities").await {
        Ok(None) => Check::ok("cities", "every city may be used"),
        Ok(Some(bindings)) => {
            let (cities, skipped) = Cities::bound(&bindings);
            match &cities {
                Cities::Bound(bound) if bound.is_empty() => {
                    let message =
                        format!("{}; {} LocationBindings are not usable", cities.describe(), skipped.len());
                    Check::problem(
                        "cities",
                        Severity::Blocked,
                        message,
                        "ask the platform operator to bind a location to the project",
                    )
                }
                _ => Check::ok("cities", cities.describe()),
            }
        }
        Err(error) => Check { severity: Severity::Progressing, ..Check::failed("cities", error) },
    }
}

async fn network(session: &Session) -> Check {
    let name = manifest::NETWORK;
    match session.api::<Network>().get_opt(name).await {
        Ok(Some(_)) => Check::ok("network", format!("{name} exists")),
        Ok(None) => Check::problem(
            "network",
            Severity::Progressing,
            format!("{name} does not exist in namespace {}", session.namespace),
            "`polis deploy` uses this network unless --network is set: create it, or set --network",
        ),
        Err(error) => {
            let error = CliError::request("failed to read the object", &error);
            Check::problem("network", Severity::Progressing, error.why, "")
        }
    }
}

async fn plane(name: &str, client: Result<Client, CliError>) -> Check {
    let answer = match client {
        Ok(client) => client
            .apiserver_version()
            .await
            .map_err(|error| CliError::request(format!("no answer from {name}"), &error)),
        Err(error) => Err(error),
    };
    match answer {
        Ok(info) => Check::ok(name, info.git_version),
        Err(error) => Check::failed(name, error),
    }
}
