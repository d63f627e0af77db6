//! Permissions of each role on each plane, read from the RBAC files that grant them, so that an error can
//! name the file.

use polis_api::groups;
use serde::Deserialize;

/// An RBAC file in `deploy/`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    /// Its path in the repository.
    pub(super) file: &'static str,
    text: &'static str,
}

macro_rules! grant {
    ($file:literal) => {
        Grant { file: $file, text: include_str!(concat!("../../../../../", $file)) }
    };
}

/// Leases of both roles, on the cluster of the process.
pub(super) const LEASES: Grant = grant!("deploy/components/leader-election/role.yaml");
/// The cell role in its cell.
pub(super) const CELL: Grant = grant!("deploy/components/rbac/cell/controllers.yaml");
/// The pod runtime in the cell.
pub(super) const PODS_IN_CELL: Grant = grant!("deploy/components/rbac/pods-cell/cell.yaml");
/// The pod runtime in the cluster that runs the Pods.
pub(super) const PODS: Grant = grant!("deploy/components/rbac/pods-cluster/cluster.yaml");
/// The pod runtime in a cluster apart from the cell.
pub(super) const PODS_APART: Grant = grant!("deploy/components/rbac/pods-apart/namespaces.yaml");
/// The cell role on the hub.
pub(super) const CELL_ON_HUB: Grant = grant!("deploy/components/rbac/hub/cell.yaml");
/// The cell role in the hub namespaces where its city has deployments. The management role binds it there, so
/// it cannot be checked for the whole hub.
pub(super) const CELL_CITY_ON_HUB: Grant = grant!("deploy/components/rbac/hub/cell-city.yaml");
/// The heartbeat of the cell role, in the namespace of the heartbeats on the hub.
pub(super) const HEARTBEAT_ON_HUB: Grant = grant!("deploy/components/rbac/hub/cell-heartbeat.yaml");
/// The management role on the hub.
pub(super) const MANAGEMENT_ON_HUB: Grant = grant!("deploy/components/rbac/hub/management.yaml");
/// The management role on the plane with the Project objects.
pub(super) const PROJECTS: Grant = grant!("deploy/components/rbac/management/projects.yaml");
/// The management role on the plane of a project.
pub(super) const PROJECT: Grant = grant!("deploy/components/rbac/project/management.yaml");
/// Reading the certificate of the webhooks from a Secret, on the cluster of the process.
pub(super) const WEBHOOK_SECRET: Grant = grant!("deploy/components/secret-webhook-cert/role.yaml");

/// TokenReviews and SubjectAccessReviews of the metrics server, on the cluster of the process.
pub(super) const METRICS_REVIEWS: Grant = grant!("deploy/components/secure-metrics/role.yaml");

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Permission {
    /// API group; empty for the core group.
    pub(super) group: String,
    /// Plural name of the kind.
    pub(super) resource: String,
    /// Subresource; empty for the object itself.
    pub(super) subresource: String,
    /// Name of the only object; empty for all objects.
    pub(super) name: String,
    /// The verb.
    pub(super) verb: String,
}

impl Permission {
    /// `resource[/subresource][.group]`, as `kubectl auth can-i` writes it.
    pub(super) fn subject(&self) -> String {
        let slash = if self.subresource.is_empty() { "" } else { "/" };
        let dot = if self.group.is_empty() { "" } else { "." };
        format!("{}{slash}{}{dot}{}", self.resource, self.subresource, self.group)
    }
}

#[derive(Deserialize)]
struct Role {
    #[serde(default)]
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    #[serde(default)]
    api_groups: Vec<String>,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
    verbs: Vec<String>,
}

impl Grant {
    /// The group that has the permissions; none if it is a user.
    pub(super) fn group(&self) -> Option<&'static str> {
        [groups::MANAGERS, groups::CELLS].into_iter().find(|group| self.text.contains(group))
    }

    /// The directory for `kubectl apply -k`.
    pub(super) fn folder(&self) -> &'static str {
        self.file.rsplit_once('/').map_or(self.file, |(folder, _)| folder)
    }

    /// All permissions in the file.
    pub(super) fn permissions(&self) -> Vec<Permission> {
        // Bindings in the same file have no rules.
        let roles: Vec<Role> = serde_saphyr::from_multiple(self.text).unwrap_or_default();
        let mut permissions = Vec::new();
        for rule in roles.into_iter().flat_map(|role| role.rules) {
            for (group, resource) in
                rule.api_groups.iter().flat_map(|group| rule.resources.iter().map(move |name| (group, name)))
            {
                let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                let all = [String::new()];
                let names = if rule.resource_names.is_empty() { &all[..] } else { &rule.resource_names };
                for name in names {
                    permissions.extend(rule.verbs.iter().map(|verb| Permission {
                        group: group.clone(),
                        resource: resource.to_owned(),
                        subresource: subresource.to_owned(),
                        name: name.clone(),
                        verb: verb.clone(),
                    }));
                }
            }
        }
        permissions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rbac_file_has_permissions() {
        for grant in [
            LEASES,
            CELL,
            PODS_IN_CELL,
            PODS,
            PODS_APART,
            CELL_ON_HUB,
            CELL_CITY_ON_HUB,
            HEARTBEAT_ON_HUB,
            MANAGEMENT_ON_HUB,
            PROJECTS,
            PROJECT,
            WEBHOOK_SECRET,
            METRICS_REVIEWS,
        ] {
            let permissions = grant.permissions();
            assert!(!permissions.is_empty(), "{}", grant.file);
            assert!(
                permissions
                    .iter()
                    .all(|permission| !permission.resource.is_empty() && !permission.verb.is_empty())
            );
        }
    }

    #[test]
    fn a_rule_is_expanded_to_its_verbs_and_resources_with_subresources() {
        let permissions = CELL.permissions();
        let has = |group: &str, resource: &str, subresource: &str, verb: &str| {
            let (group, resource) = (group.to_owned(), resource.to_owned());
            let (subresource, verb) = (subresource.to_owned(), verb.to_owned());
            permissions.contains(&Permission { group, resource, subresource, name: String::new(), verb })
        };
        assert!(has("compute.datumapis.com", "instances", "status", "update"));
        assert!(has("", "namespaces", "", "watch"));
        assert!(!has("compute.datumapis.com", "instances", "status", "delete"));
        let named: Vec<Permission> = MANAGEMENT_ON_HUB
            .permissions()
            .into_iter()
            .filter(|permission| !permission.name.is_empty())
            .collect();
        assert_eq!(named.len(), 2, "{named:?}");
        assert_eq!(MANAGEMENT_ON_HUB.group(), Some("compute.datumapis.com:managers"));
        assert_eq!((CELL_ON_HUB.group(), CELL.group()), (Some("compute.datumapis.com:cells"), None));
        assert_eq!(LEASES.folder(), "deploy/components/leader-election");
        assert_eq!(permissions[0].subject(), "workloaddeployments.compute.datumapis.com");
    }
}
