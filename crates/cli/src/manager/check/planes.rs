//! Checks of the planes: each responds, accepts the credentials, serves the kinds and grants the permissions.

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
use polis_core::heartbeat;
use polis_engine::{Plane, TransportError};
use serde_json::Value;

use super::permissions::{self, Grant, Permission};
use super::{Findings, kinds};
use crate::manager::config::{Config, Mode, RuntimeKind, SecretRef};
use crate::manager::flags::Flags;
use crate::manager::planes::Planes;

/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of projects that are checked. There may be thousands, all served by the same server.
const PROJECTS_CHECKED: usize = 3;
/// Concurrent access reviews.
const REVIEWS_AT_ONCE: usize = 8;
/// Number of missing fields that are printed for an old CRD.
const FIELDS_NAMED: usize = 3;
/// API groups that a role can work without.
const OPTIONAL: &[&str] = &["networking.datumapis.com"];
/// The ResourceInterpreterCustomization that Karmada needs to aggregate the status of deployments.
const INTERPRETER: &str = "workloaddeployment";

/// A plane to check, with the requirements of the roles.
struct PlaneCheck {
    /// Name of the plane in messages.
    name: String,
    plane: Plane,
    grants: Vec<Grant>,
    /// How to install the kinds.
    kinds: &'static str,
}

/// Checks every plane of the flags and the configuration.
pub(super) async fn examine(flags: &Flags, config: &Config, findings: &mut Findings) {
    let planes = match Planes::connect(flags, config).await {
        Ok(planes) => planes,
        Err(error) => {
            return findings.error(
                "planes",
                format!("{error:#}"),
                "correct the kubeconfig that the message names",
            );
        }
    };
    let (management, cell) = (flags.enable_management_controllers, flags.enable_cell_controllers);
    let when = |yes: bool, grant: Grant| yes.then_some(grant);
    let single = config.discovery.mode == Mode::Single;
    let pods = cell && config.runtime == RuntimeKind::Pods;
    let own = PlaneCheck {
        name: "own cluster".into(),
        plane: planes.own.clone(),
        grants: [
            when(flags.leader_elect, permissions::LEASES),
            when(cell, permissions::CELL),
            when(pods, permissions::PODS_IN_CELL),
            when(pods && planes.cluster().is_none(), permissions::PODS),
            when(management && single, permissions::PROJECT),
            when(config.metrics_server.is_secure(), permissions::METRICS_REVIEWS),
        ]
        .into_iter()
        .flatten()
        .collect(),
        kinds: if cell {
            "the hub installs them in its members: kubectl --context hub apply --server-side -k deploy/components/federation"
        } else {
            "kubectl apply --server-side -k deploy/base/crds"
        },
    };
    let webhooks = config.webhook_server.as_ref().and_then(|server| server.tls.secret_ref.as_ref());
    let metrics = config.metrics_server.tls.secret_ref.as_ref().filter(|_| config.metrics_server.is_secure());
    if check_plane(&own, flags, findings).await {
        for secret in webhooks.into_iter().chain(metrics.filter(|secret| webhooks != Some(secret))) {
            certificate(&own, secret, findings).await;
        }
    }
    let hub = PlaneCheck {
        name: "hub".into(),
        plane: planes.hub.clone(),
        grants: [
            when(management, permissions::MANAGEMENT_ON_HUB),
            when(cell, permissions::CELL_ON_HUB),
            when(cell, permissions::CELL_CITY_ON_HUB),
            when(cell, permissions::HEARTBEAT_ON_HUB),
        ]
        .into_iter()
        .flatten()
        .collect(),
        kinds: "kubectl --context hub apply --server-side -k deploy/components/federation",
    };
    if check_plane(&hub, flags, findings).await && management {
        interpreter(&hub.plane, findings).await;
    }
    if management && !single {
        projects(flags, config, &planes, findings).await;
    }
    if let Some(cluster) = planes.cluster().filter(|_| pods) {
        let cluster = PlaneCheck {
            name: "cluster".into(),
            plane: cluster.clone(),
            grants: vec![permissions::PODS, permissions::PODS_APART],
            kinds: "",
        };
        check_plane(&cluster, flags, findings).await;
    }
    if let Some(quota) = planes.quota().filter(|_| cell) {
        let quota_check =
            PlaneCheck { name: "quota".into(), plane: quota.clone(), grants: Vec::new(), kinds: "" };
        if check_plane(&quota_check, flags, findings).await {
            findings.note(
                "quota: the permissions on the projects (deploy/components/rbac/quota) are not checked, because a cell knows its projects only from its deployments",
            );
        }
    }
}

async fn projects(flags: &Flags, config: &Config, planes: &Planes, findings: &mut Findings) {
    let discovery = PlaneCheck {
        name: "platform".into(),
        plane: planes.discovery().clone(),
        grants: if config.discovery.internal_service_discovery {
            vec![]
        } else {
            vec![permissions::PROJECTS]
        },
        kinds: "set discovery.discoveryKubeconfigPath to the plane with the Project objects",
    };
    if !check_plane(&discovery, flags, findings).await {
        return;
    }
    if config.discovery.internal_service_discovery {
        return findings
            .note("projects: they are served by their own Services and not checked; see `/readyz?verbose` of a running manager");
    }
    let api = Api::<Project>::all(discovery.plane.kube_client());
    let listed = match with_timeout(api.list(&ListParams::default())).await {
        Ok(listed) => listed.items,
        // The missing permission is already reported.
        Err(_) => return,
    };
    let ready = |project: &Project| {
        let conditions = project.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let names: Vec<String> =
        listed.iter().filter(|project| ready(project)).filter_map(|p| p.metadata.name.clone()).collect();
    findings.ok(format!("platform: {} projects, {} of them ready", listed.len(), names.len()));
    for name in names.iter().take(PROJECTS_CHECKED) {
        let project = PlaneCheck {
            name: format!("project {name}"),
            plane: planes.host().of_project(name),
            grants: vec![permissions::PROJECT],
            kinds: "kubectl --context projects apply --server-side -k deploy/base/crds",
        };
        check_plane(&project, flags, findings).await;
    }
    if names.len() > PROJECTS_CHECKED {
        findings.note(format!("projects: {} more are not checked", names.len() - PROJECTS_CHECKED));
    }
}

/// Checks one plane. Returns false if it does not respond; then no further checks are made.
async fn check_plane(check: &PlaneCheck, flags: &Flags, findings: &mut Findings) -> bool {
    let client = check.plane.kube_client();
    if let Err(error) = with_timeout(get(&client, "/version")).await
        && let Some((why, next)) = unreachable(&error)
    {
        findings.error(check.name.clone(), why, next);
        return false;
    }
    let before = findings.errors.len();
    served(check, &client, findings).await;
    granted(check, &client, flags, findings).await;
    if findings.errors.len() == before {
        findings.ok(format!("{}: responds, serves the kinds and grants the permissions", check.name));
    }
    true
}

/// Checks that the kinds are served, and those of Polis with all fields.
async fn served(check: &PlaneCheck, client: &Client, findings: &mut Findings) {
    let permissions: BTreeSet<Permission> = check.grants.iter().flat_map(Grant::permissions).collect();
    let mut groups: BTreeMap<(String, &'static str), BTreeSet<String>> = BTreeMap::new();
    for permission in permissions.into_iter().filter(|permission| permission.subresource.is_empty()) {
        if let Some(version) = kinds::version(&permission.group, &permission.resource) {
            groups.entry((permission.group, version)).or_default().insert(permission.resource);
        }
    }
    for ((group, version), plurals) in groups {
        let document =
            with_timeout(get(client, &format!("/apis/{group}/{version}"))).await.unwrap_or_default();
        let resources: BTreeSet<&str> = document["resources"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|r| r["name"].as_str())
            .collect();
        let (there, missing): (Vec<&String>, Vec<&String>) =
            plurals.iter().partition(|plural| resources.contains(plural.as_str()));
        if !missing.is_empty() {
            let message = format!(
                "{}.{group}/{version} {} not served",
                missing.iter().map(|plural| plural.as_str()).collect::<Vec<_>>().join(", "),
                if missing.len() == 1 { "is" } else { "are" },
            );
            match OPTIONAL.contains(&group.as_str()) {
                true => findings.note(format!("{}: {message}; Polis works without", check.name)),
                false => findings.error(check.name.clone(), message, check.kinds),
            }
        }
        if group == polis_api::compute::GROUP && !there.is_empty() {
            let Ok(document) =
                with_timeout(get(client, &format!("/openapi/v3/apis/{group}/{version}"))).await
            else {
                findings.note(format!(
                    "{}: the fields of its kinds are not checked: failed to read its OpenAPI",
                    check.name
                ));
                continue;
            };
            for plural in there {
                let missing = kinds::missing_fields(plural, &document);
                if !missing.is_empty() {
                    let named =
                        missing.iter().take(FIELDS_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
                    findings.error(
                        check.name.clone(),
                        format!(
                            "the CRD of {plural}.{group} is too old: it has {} fields less, such as {named}",
                            missing.len()
                        ),
                        check.kinds,
                    );
                }
            }
        }
    }
}

/// Checks the permissions of the roles.
async fn granted(check: &PlaneCheck, client: &Client, flags: &Flags, findings: &mut Findings) {
    let by_namespace = permissions::CELL_CITY_ON_HUB.file;
    for grant in check.grants.iter().filter(|grant| grant.file != by_namespace) {
        let namespace = match grant.file {
            file if file == permissions::LEASES.file => Some(flags.leader_elect_namespace.as_str()),
            file if file == permissions::HEARTBEAT_ON_HUB.file => Some(heartbeat::NAMESPACE),
            _ => None,
        };
        review(check, client, grant, grant.permissions(), namespace, findings).await;
    }
}

/// Checks the permission to read the Secret of a server's certificate.
async fn certificate(check: &PlaneCheck, secret: &SecretRef, findings: &mut Findings) {
    let permissions = permissions::WEBHOOK_SECRET.permissions().into_iter();
    let permissions =
        permissions.map(|permission| Permission { name: secret.name.clone(), ..permission }).collect();
    let (client, before) = (check.plane.kube_client(), findings.errors.len());
    review(check, &client, &permissions::WEBHOOK_SECRET, permissions, Some(&secret.namespace), findings)
        .await;
    if findings.errors.len() == before {
        findings.ok(format!("{}: may read Secret {}/{}", check.name, secret.namespace, secret.name));
    }
}

/// Reviews the permissions of an RBAC file.
async fn review(
    check: &PlaneCheck,
    client: &Client,
    grant: &Grant,
    permissions: Vec<Permission>,
    namespace: Option<&str>,
    findings: &mut Findings,
) {
    let reviews = Api::<SelfSubjectAccessReview>::all(client.clone());
    let asked = permissions.into_iter().map(|permission| {
        let (reviews, namespace) = (reviews.clone(), namespace.map(str::to_owned));
        async move { (allowed(&reviews, &permission, namespace).await, permission) }
    });
    let results: Vec<_> = futures::stream::iter(asked).buffered(REVIEWS_AT_ONCE).collect().await;
    let mut refused: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (result, permission) in results {
        match result {
            Ok(true) => {}
            Ok(false) => refused.entry(permission.subject()).or_default().push(permission.verb),
            Err(error) => {
                return findings.error(
                    check.name.clone(),
                    format!("failed to create a SelfSubjectAccessReview: {}", describe(&error)),
                    "bind ClusterRole system:basic-user to system:authenticated, which grants it to every client",
                );
            }
        }
    }
    for (subject, verbs) in refused {
        findings.error(
            check.name.clone(),
            format!("the manager may not {} {subject}", verbs.join(", ")),
            match grant.group() {
                Some(group) => format!(
                    "{} grants it to group {group}: run kubectl apply -k {} on this plane, and put the manager's credential into the group",
                    grant.file,
                    grant.folder()
                ),
                None => {
                    format!("{} grants it: run kubectl apply -k {} on this plane", grant.file, grant.folder())
                }
            },
        );
    }
}

async fn allowed(
    reviews: &Api<SelfSubjectAccessReview>,
    permission: &Permission,
    namespace: Option<String>,
) -> Result<bool, RequestError> {
    let attributes = ResourceAttributes {
        group: Some(permission.group.clone()),
        resource: Some(permission.resource.clone()),
        subresource: Some(permission.subresource.clone()).filter(|name| !name.is_empty()),
        name: Some(permission.name.clone()).filter(|name| !name.is_empty()),
        verb: Some(permission.verb.clone()),
        namespace,
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..Default::default() };
    let review = with_timeout(reviews.create(&PostParams::default(), &review)).await?;
    Ok(review.status.is_some_and(|status| status.allowed))
}

/// Checks that the hub has the resource interpreter of WorkloadDeployment.
async fn interpreter(hub: &Plane, findings: &mut Findings) {
    let api = Api::<ResourceInterpreterCustomization>::all(hub.kube_client());
    match with_timeout(api.get_opt(INTERPRETER)).await {
        Ok(Some(_)) => findings.ok(format!("hub: interpreter {INTERPRETER}")),
        Ok(None) => findings.error(
            "hub",
            format!("the interpreter {INTERPRETER} is missing: the status of the cells is not aggregated"),
            "run kubectl --context hub apply --server-side -k deploy/components/federation (interpreter.yaml)",
        ),
        Err(error) => findings.note(format!(
            "hub: the interpreter {INTERPRETER} is not checked ({}); see `kubectl --context hub get resourceinterpretercustomizations`",
            describe(&error)
        )),
    }
}

async fn get(client: &Client, path: &str) -> kube::Result<Value> {
    let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    client.request::<Value>(request).await
}

/// Why a request failed.
enum RequestError {
    TimedOut,
    Failed(Box<kube::Error>),
}

async fn with_timeout<T>(asked: impl Future<Output = kube::Result<T>>) -> Result<T, RequestError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, asked).await {
        Ok(result) => result.map_err(|error| RequestError::Failed(Box::new(error))),
        Err(_) => Err(RequestError::TimedOut),
    }
}

fn describe(error: &RequestError) -> String {
    match error {
        RequestError::TimedOut => format!("no response within {REQUEST_TIMEOUT:?}"),
        RequestError::Failed(error) => match transport(error) {
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

/// Why a plane cannot be used and what to do; `None` if it responds, even with an error.
fn unreachable(error: &RequestError) -> Option<(String, &'static str)> {
    let next = match error {
        RequestError::TimedOut => {
            "check the address, and that a NetworkPolicy allows the manager to connect to it"
        }
        RequestError::Failed(error) => match (transport(error), &**error) {
            (Some(TransportError::Tls { .. }), _) => {
                "set certificate-authority-data of the kubeconfig to the authority of the server's certificate, or tls-server-name to its name"
            }
            (Some(TransportError::Credentials { .. }), _) => "check the users of the kubeconfig",
            (Some(_), _) => "check the address, and that a NetworkPolicy allows the manager to connect to it",
            (None, kube::Error::Api(status)) if status.code == 401 => {
                "the server does not accept the credentials: the token is expired, has another audience, or its issuer is not trusted (docs/operations/install.md, \"The hub\")"
            }
            (None, kube::Error::Api(_)) => return None,
            (None, _) => "check that the address is that of a Kubernetes API server",
        },
    };
    Some((describe(error), next))
}
