//! Asking the planes: whether each answers and knows us, serves the kinds, and grants the rights.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt as _;
use http::Request;
use polis_api::k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use polis_api::karmada::ResourceInterpreterCustomization;
use polis_api::kube::api::{Api, ListParams, PostParams};
use polis_api::kube::{self, Client};
use polis_api::milo::Project;
use polis_engine::{Plane, TransportError};
use serde_json::Value;

use super::rights::{self, Grant, Right};
use super::{Findings, kinds};
use crate::manager::config::{Config, Mode, SecretRef};
use crate::manager::flags::Flags;
use crate::manager::planes::Planes;

/// Time for one answer.
const WITHIN: Duration = Duration::from_secs(10);
/// Projects that are looked at: they are served alike, and there may be thousands.
const PROJECTS_SEEN: usize = 3;
/// Access reviews under way at once.
const REVIEWS_AT_ONCE: usize = 8;
/// Fields named where a definition is too old.
const NAMED: usize = 3;
/// Groups without which a role works, with less.
const OPTIONAL: &[&str] = &["networking.datumapis.com"];
/// The interpreter without which the federation brings back no status.
const INTERPRETER: &str = "workloaddeployment";

/// A plane, with what the roles need of it.
struct Look {
    /// What it is to us, and its name where there are several.
    name: String,
    plane: Plane,
    grants: Vec<Grant>,
    /// What brings the kinds to it.
    kinds: &'static str,
}

/// Looks at every plane that the flags and the configuration lead to.
pub(super) async fn examine(flags: &Flags, config: &Config, findings: &mut Findings) {
    let planes = match Planes::reach(flags, config).await {
        Ok(planes) => planes,
        Err(error) => return findings.fault("planes", format!("{error:#}"), "see the message"),
    };
    let (management, cell) = (flags.enable_management_controllers, flags.enable_cell_controllers);
    let when = |yes: bool, grant: Grant| yes.then_some(grant);
    let single = config.discovery.mode == Mode::Single;
    let own = Look {
        name: "own cluster".into(),
        plane: planes.own.clone(),
        grants: [
            when(flags.leader_elect, rights::LEASES),
            when(cell, rights::CELL),
            when(management && single, rights::PROJECT),
            when(config.metrics_server.is_guarded(), rights::SCRAPES),
        ]
        .into_iter()
        .flatten()
        .collect(),
        kinds: if cell {
            "the hub brings them to a member: kubectl --context hub apply --server-side -k deploy/components/federation"
        } else {
            "kubectl apply --server-side -k deploy/base/crds"
        },
    };
    let webhooks = config.webhook_server.as_ref().and_then(|server| server.tls.secret_ref.as_ref());
    let metrics =
        config.metrics_server.tls.secret_ref.as_ref().filter(|_| config.metrics_server.is_guarded());
    if look(&own, flags, findings).await {
        for secret in webhooks.into_iter().chain(metrics.filter(|secret| webhooks != Some(secret))) {
            certificate(&own, secret, findings).await;
        }
    }
    let hub = Look {
        name: "hub".into(),
        plane: planes.hub.clone(),
        grants: [when(management, rights::MANAGEMENT_ON_HUB), when(cell, rights::CELL_ON_HUB)]
            .into_iter()
            .flatten()
            .collect(),
        kinds: "kubectl --context hub apply --server-side -k deploy/components/federation",
    };
    if look(&hub, flags, findings).await && management {
        interpreter(&hub.plane, findings).await;
    }
    if management && !single {
        projects(flags, config, &planes, findings).await;
    }
    if let Some(quota) = planes.quota().filter(|_| cell) {
        let look_at = Look { name: "quota".into(), plane: quota.clone(), grants: Vec::new(), kinds: "" };
        if look(&look_at, flags, findings).await {
            findings.note(
                "quota: what a claim needs is granted on each project (deploy/components/rbac/quota); a cell does not know them before it has deployments",
            );
        }
    }
}

async fn projects(flags: &Flags, config: &Config, planes: &Planes, findings: &mut Findings) {
    let discovery = Look {
        name: "platform".into(),
        plane: planes.discovery().clone(),
        grants: if config.discovery.internal_service_discovery { vec![] } else { vec![rights::PROJECTS] },
        kinds: "projects are the platform's own: name the plane that holds them in discovery.discoveryKubeconfigPath",
    };
    if !look(&discovery, flags, findings).await {
        return;
    }
    if config.discovery.internal_service_discovery {
        return findings
            .note("projects: each is at a service of its own, which `/readyz?verbose` of a running manager tells of");
    }
    let api = Api::<Project>::all(discovery.plane.kube_client());
    let listed = match answer(api.list(&ListParams::default())).await {
        Ok(listed) => listed.items,
        // The missing right has been said.
        Err(_) => return,
    };
    let ready = |project: &Project| {
        let conditions = project.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let names: Vec<String> =
        listed.iter().filter(|project| ready(project)).filter_map(|p| p.metadata.name.clone()).collect();
    findings.good(format!("platform: {} projects, {} of them ready", listed.len(), names.len()));
    for name in names.iter().take(PROJECTS_SEEN) {
        let project = Look {
            name: format!("project {name}"),
            plane: planes.host().of_project(name),
            grants: vec![rights::PROJECT],
            kinds: "kubectl --context projects apply --server-side -k deploy/base/crds",
        };
        look(&project, flags, findings).await;
    }
    if names.len() > PROJECTS_SEEN {
        findings.note(format!("projects: {} more are taken to be as these", names.len() - PROJECTS_SEEN));
    }
}

/// Looks at one plane. False if it does not answer: then nothing else is worth saying.
async fn look(look: &Look, flags: &Flags, findings: &mut Findings) -> bool {
    let client = look.plane.kube_client();
    if let Err(trouble) = answer(get(&client, "/version")).await
        && let Some((why, next)) = unreachable(&trouble)
    {
        findings.fault(look.name.clone(), why, next);
        return false;
    }
    let before = findings.faults.len();
    served(look, &client, findings).await;
    granted(look, &client, flags, findings).await;
    if findings.faults.len() == before {
        findings.good(format!("{}: answers, serves what is needed and grants it", look.name));
    }
    true
}

/// Whether the kinds that are watched are served, and ours as new as we know them.
async fn served(look: &Look, client: &Client, findings: &mut Findings) {
    let rights: BTreeSet<Right> = look.grants.iter().flat_map(Grant::rights).collect();
    let mut groups: BTreeMap<(String, &'static str), BTreeSet<String>> = BTreeMap::new();
    for right in rights.into_iter().filter(|right| right.subresource.is_empty()) {
        if let Some(version) = kinds::version(&right.group, &right.resource) {
            groups.entry((right.group, version)).or_default().insert(right.resource);
        }
    }
    for ((group, version), plurals) in groups {
        let document = answer(get(client, &format!("/apis/{group}/{version}"))).await.unwrap_or_default();
        let resources: BTreeSet<&str> = document["resources"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|r| r["name"].as_str())
            .collect();
        let (there, missing): (Vec<&String>, Vec<&String>) =
            plurals.iter().partition(|plural| resources.contains(plural.as_str()));
        if !missing.is_empty() {
            let says = format!(
                "{}.{group}/{version} {} not served",
                missing.iter().map(|plural| plural.as_str()).collect::<Vec<_>>().join(", "),
                if missing.len() == 1 { "is" } else { "are" },
            );
            match OPTIONAL.contains(&group.as_str()) {
                true => findings.note(format!("{}: {says}, and is done without", look.name)),
                false => findings.fault(look.name.clone(), says, look.kinds),
            }
        }
        if group == polis_api::compute::GROUP && !there.is_empty() {
            let Ok(document) = answer(get(client, &format!("/openapi/v3/apis/{group}/{version}"))).await
            else {
                findings.note(format!("{}: how old its kinds are cannot be read", look.name));
                continue;
            };
            for plural in there {
                let missing = kinds::missing_fields(plural, &document);
                if !missing.is_empty() {
                    let named = missing.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
                    findings.fault(
                        look.name.clone(),
                        format!(
                            "its {plural}.{group} are of an older version: {} fields are not known there, such as {named}",
                            missing.len()
                        ),
                        look.kinds,
                    );
                }
            }
        }
    }
}

/// Whether we may do what the roles do.
async fn granted(look: &Look, client: &Client, flags: &Flags, findings: &mut Findings) {
    for grant in &look.grants {
        let namespace = (grant.file == rights::LEASES.file).then_some(flags.leader_elect_namespace.as_str());
        review(look, client, grant, grant.rights(), namespace, findings).await;
    }
}

/// Whether we may read the certificate of a server where the configuration says that it is.
async fn certificate(look: &Look, secret: &SecretRef, findings: &mut Findings) {
    let rights = rights::WEBHOOK_SECRET.rights().into_iter();
    let rights = rights.map(|right| Right { name: secret.name.clone(), ..right }).collect();
    let (client, before) = (look.plane.kube_client(), findings.faults.len());
    review(look, &client, &rights::WEBHOOK_SECRET, rights, Some(&secret.namespace), findings).await;
    if findings.faults.len() == before {
        findings.good(format!("{}: Secret {}/{} can be read", look.name, secret.namespace, secret.name));
    }
}

/// Asks for rights that a file grants.
async fn review(
    look: &Look,
    client: &Client,
    grant: &Grant,
    rights: Vec<Right>,
    namespace: Option<&str>,
    findings: &mut Findings,
) {
    let reviews = Api::<SelfSubjectAccessReview>::all(client.clone());
    let asked = rights.into_iter().map(|right| {
        let (reviews, namespace) = (reviews.clone(), namespace.map(str::to_owned));
        async move { (allowed(&reviews, &right, namespace).await, right) }
    });
    let answers: Vec<_> = futures::stream::iter(asked).buffered(REVIEWS_AT_ONCE).collect().await;
    let mut refused: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (answer, right) in answers {
        match answer {
            Ok(true) => {}
            Ok(false) => refused.entry(right.subject()).or_default().push(right.verb),
            Err(trouble) => {
                return findings.fault(
                    look.name.clone(),
                    format!("what we may do cannot be asked: {}", words(&trouble)),
                    "every authenticated client may create SelfSubjectAccessReviews (ClusterRole system:basic-user): bind it again",
                );
            }
        }
    }
    for (subject, verbs) in refused {
        findings.fault(
            look.name.clone(),
            format!("we may not {} {subject}", verbs.join(", ")),
            format!("{} grants it: kubectl apply -k {} there", grant.file, grant.folder()),
        );
    }
}

async fn allowed(
    reviews: &Api<SelfSubjectAccessReview>,
    right: &Right,
    namespace: Option<String>,
) -> Result<bool, Trouble> {
    let attributes = ResourceAttributes {
        group: Some(right.group.clone()),
        resource: Some(right.resource.clone()),
        subresource: Some(right.subresource.clone()).filter(|name| !name.is_empty()),
        name: Some(right.name.clone()).filter(|name| !name.is_empty()),
        verb: Some(right.verb.clone()),
        namespace,
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..Default::default() };
    let review = answer(reviews.create(&PostParams::default(), &review)).await?;
    Ok(review.status.is_some_and(|status| status.allowed))
}

/// Whether the federation has been told what the status of a deployment is.
async fn interpreter(hub: &Plane, findings: &mut Findings) {
    let api = Api::<ResourceInterpreterCustomization>::all(hub.kube_client());
    match answer(api.get_opt(INTERPRETER)).await {
        Ok(Some(_)) => findings.good(format!("hub: interpreter {INTERPRETER}")),
        Ok(None) => findings.fault(
            "hub",
            format!("the interpreter {INTERPRETER} is missing: no status comes back from cells"),
            "kubectl --context hub apply --server-side -k deploy/components/federation (interpreter.yaml)",
        ),
        Err(trouble) => findings.note(format!(
            "hub: whether it has the interpreter {INTERPRETER} cannot be read ({}); `kubectl --context hub get resourceinterpretercustomizations` tells",
            words(&trouble)
        )),
    }
}

async fn get(client: &Client, path: &str) -> kube::Result<Value> {
    let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    client.request::<Value>(request).await
}

/// Why there is no answer, if there is none.
enum Trouble {
    Late,
    Failed(Box<kube::Error>),
}

async fn answer<T>(asked: impl Future<Output = kube::Result<T>>) -> Result<T, Trouble> {
    match tokio::time::timeout(WITHIN, asked).await {
        Ok(answer) => answer.map_err(|error| Trouble::Failed(Box::new(error))),
        Err(_) => Err(Trouble::Late),
    }
}

fn words(trouble: &Trouble) -> String {
    match trouble {
        Trouble::Late => format!("no answer within {WITHIN:?}"),
        Trouble::Failed(error) => match transport(error) {
            Some(error) => error.to_string(),
            None => error.to_string(),
        },
    }
}

fn transport(error: &kube::Error) -> Option<&TransportError> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    if let kube::Error::Service(inner) = error {
        next = Some(inner.as_ref());
    }
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<TransportError>() {
            return Some(found);
        }
        if let Some(boxed) = error.downcast_ref::<Box<TransportError>>() {
            return Some(boxed);
        }
        next = error.source();
    }
    None
}

/// Why a plane cannot be worked with at all and what to do; none if it answers, whatever it says.
fn unreachable(trouble: &Trouble) -> Option<(String, &'static str)> {
    let next = match trouble {
        Trouble::Late => "is the address right, and does the network policy let the manager out to it?",
        Trouble::Failed(error) => match (transport(error), &**error) {
            (Some(TransportError::Tls { .. }), _) => {
                "put the authority that signed the server's certificate into certificate-authority-data of the kubeconfig, or the name it is issued for into tls-server-name"
            }
            (Some(TransportError::Credentials { .. }), _) => "look at the users of the kubeconfig",
            (Some(_), _) => "is the address right, and does the network policy let the manager out to it?",
            (None, kube::Error::Api(status)) if status.code == 401 => {
                "the server does not know us: the token has ended, is for another audience, or its issuer is not trusted there (docs/operations/install.md, \"The hub\")"
            }
            (None, kube::Error::Api(_)) => return None,
            (None, _) => "is it an API server that answers there?",
        },
    };
    Some((words(trouble), next))
}
