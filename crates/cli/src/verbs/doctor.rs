//! `polis doctor`: checks the way to an installation and the installation itself, and says what is wrong.

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

use crate::exit::{Exit, Fault};
use crate::output::OutputFlag;
use crate::reach::{self, Place, Reach, optional};
use crate::terminal;
use crate::view::table::Table;
use crate::view::{Mood, draft};

/// Check a set-up and say what is wrong
///
/// Ends with exit code 7 when something is.
#[derive(Args)]
#[command(after_help = "Examples:
  polis doctor")]
pub struct Flags {
    #[command(flatten)]
    output: OutputFlag,
    #[command(flatten)]
    place: Place,
}

/// One thing that was checked.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Check {
    name: String,
    mood: Mood,
    says: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    advice: String,
}

impl Check {
    fn good(name: &str, says: impl Into<String>) -> Self {
        Check { name: name.into(), mood: Mood::Good, says: says.into(), advice: String::new() }
    }

    fn wrong(name: &str, mood: Mood, says: impl Into<String>, advice: impl Into<String>) -> Self {
        Check { name: name.into(), mood, says: says.into(), advice: advice.into() }
    }

    fn fault(name: &str, fault: Fault) -> Self {
        Check::wrong(name, Mood::Stuck, format!("{}: {}", fault.what, fault.why), fault.next)
    }
}

/// See the head of this file.
pub async fn run(flags: Flags) -> Result<Exit, Fault> {
    let checks = examine(&flags.place).await;
    flags.output.list("check", &checks, |_| table(&checks))?;
    let wrong = checks.iter().filter(|check| check.mood == Mood::Stuck).count();
    if !flags.output.is_for_programs() {
        let advice = checks.iter().filter(|check| !check.advice.is_empty());
        advice.for_each(|check| terminal::say(format!("\n{}: {}", check.name, check.advice)));
    }
    Ok(if wrong > 0 { Exit::Unwell } else { Exit::Done })
}

fn table(checks: &[Check]) -> Table {
    let mut table = Table::new(&["CHECK", "STATE", "FOUND"], "");
    for check in checks {
        let word = match check.mood {
            Mood::Good => "ok",
            Mood::Moving => "note",
            Mood::Stuck => "wrong",
        };
        table.row([check.name.clone(), word.to_owned(), check.says.clone()]);
    }
    table
}

/// Every check, in the order in which one needs the other; the first that everything needs ends the list.
async fn examine(place: &Place) -> Vec<Check> {
    let mut checks = Vec::new();
    match reach::find(place.kubeconfig.as_deref()) {
        Ok(found) => checks.push(Check::good("kubeconfig", found.source.in_words())),
        Err(fault) => return vec![Check::fault("kubeconfig", fault)],
    }
    let reach = match Reach::new(place).await {
        Ok(reach) => reach,
        Err(fault) => {
            checks.push(Check::fault("context", fault));
            return checks;
        }
    };
    let project = reach.project.as_ref().map_or_else(|| "no project".to_owned(), |p| format!("project {p}"));
    checks.push(Check::good("context", format!("{} ({project})", reach.context)));
    let server = server(&reach).await;
    let is_away = server.mood == Mood::Stuck;
    checks.push(server);
    if is_away {
        return checks;
    }
    checks.push(kinds(&reach).await);
    checks.push(permission(&reach).await);
    checks.push(namespace(&reach).await);
    checks.push(cities(&reach).await);
    checks.push(network(&reach).await);
    for (name, client) in beyond(&reach).await {
        checks.push(plane(&name, client).await);
    }
    checks
}

async fn beyond(reach: &Reach) -> Vec<(String, Result<Client, Fault>)> {
    let mut planes = Vec::new();
    planes.extend(reach.hub().await.map(|client| ("hub".to_owned(), client)));
    planes.extend(reach.cells().await.into_iter().map(|(city, client)| (format!("cell {city}"), client)));
    planes
}

async fn server(reach: &Reach) -> Check {
    let start = Instant::now();
    match reach.client.apiserver_version().await {
        Ok(info) => {
            let took = start.elapsed().as_millis();
            Check::good("server", format!("{} at {} in {took} ms", info.git_version, reach.root_server()))
        }
        Err(error) => {
            let fault = Fault::request(format!("{} does not answer", reach.root_server()), &error);
            let advice = "start it (`polis up`), or choose another with --context or --kubeconfig";
            Check { advice: advice.into(), ..Check::fault("server", fault) }
        }
    }
}

async fn kinds(reach: &Reach) -> Check {
    match reach.client.list_api_group_resources(compute::API_VERSION).await {
        Ok(list) => {
            let served: Vec<&str> = list.resources.iter().map(|resource| resource.name.as_str()).collect();
            let wanted = ["workloads", "workloaddeployments", "instances"];
            let missing: Vec<&str> = wanted.into_iter().filter(|kind| !served.contains(kind)).collect();
            match missing.is_empty() {
                true => Check::good("kinds", format!("{} is served", compute::API_VERSION)),
                false => {
                    no_kinds(format!("{} is served without {}", compute::API_VERSION, missing.join(", ")))
                }
            }
        }
        Err(kube::Error::Api(status)) if status.code == 404 => {
            no_kinds(format!("{} is not served", compute::API_VERSION))
        }
        Err(error) => Check::fault("kinds", Fault::request("failed to list kinds", &error)),
    }
}

fn no_kinds(says: String) -> Check {
    Check::wrong(
        "kinds",
        Mood::Stuck,
        says,
        "this is no project of Polis: choose one with --project or --context, or install the CRDs",
    )
}

async fn permission(reach: &Reach) -> Check {
    let question = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(compute::GROUP.into()),
                resource: Some("workloads".into()),
                verb: Some("create".into()),
                namespace: Some(reach.namespace.clone()),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    let answer = Api::<SelfSubjectAccessReview>::all(reach.client.clone())
        .create(&Default::default(), &question)
        .await;
    match answer {
        Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => {
            Check::good("permission", format!("you may deploy in {}", reach.in_words()))
        }
        Ok(_) => Check::wrong(
            "permission",
            Mood::Stuck,
            format!("you may not create workloads in {}", reach.in_words()),
            "ask the owner of the project for a role, or choose another project",
        ),
        Err(error) => {
            let fault = Fault::request("failed to ask", &error);
            Check::wrong("permission", Mood::Moving, fault.why, "the server does not say what you may do")
        }
    }
}

async fn namespace(reach: &Reach) -> Check {
    let name = &reach.namespace;
    match Api::<Namespace>::all(reach.client.clone()).get_opt(name).await {
        Ok(Some(_)) => match reach.api::<Workload>().list(&Default::default()).await {
            Ok(list) => Check::good("namespace", format!("{name}, with workloads: {}", list.items.len())),
            Err(error) => Check::fault("namespace", Fault::request("failed to list workloads", &error)),
        },
        Ok(None) => {
            let advice = "create it, or choose another with --namespace";
            Check::wrong("namespace", Mood::Stuck, format!("{name} does not exist"), advice)
        }
        Err(error) => {
            let fault = Fault::request("failed to read it", &error);
            Check::wrong("namespace", Mood::Moving, fault.why, "")
        }
    }
}

async fn cities(reach: &Reach) -> Check {
    match optional(reach.all::<LocationBinding>(), "cities").await {
        Ok(None) => Check::good("cities", "any city may be used"),
        Ok(Some(bindings)) => {
            let (cities, skipped) = Cities::bound(&bindings);
            match &cities {
                Cities::Bound(bound) if bound.is_empty() => {
                    let says = format!("{}, {} bindings do not count", cities.in_words(), skipped.len());
                    Check::wrong("cities", Mood::Stuck, says, "the operator binds locations to the project")
                }
                _ => Check::good("cities", cities.in_words()),
            }
        }
        Err(fault) => Check { mood: Mood::Moving, ..Check::fault("cities", fault) },
    }
}

async fn network(reach: &Reach) -> Check {
    let name = draft::NETWORK;
    match reach.api::<Network>().get_opt(name).await {
        Ok(Some(_)) => Check::good("network", format!("{name} is there")),
        Ok(None) => Check::wrong(
            "network",
            Mood::Moving,
            format!("{name} does not exist in namespace {}", reach.namespace),
            "`polis deploy` joins it unless --network names another; create it or name one",
        ),
        Err(error) => {
            let fault = Fault::request("failed to read it", &error);
            Check::wrong("network", Mood::Moving, fault.why, "")
        }
    }
}

async fn plane(name: &str, client: Result<Client, Fault>) -> Check {
    let answer = match client {
        Ok(client) => client
            .apiserver_version()
            .await
            .map_err(|error| Fault::request(format!("{name} does not answer"), &error)),
        Err(fault) => Err(fault),
    };
    match answer {
        Ok(info) => Check::good(name, info.git_version),
        Err(fault) => Check::fault(name, fault),
    }
}
