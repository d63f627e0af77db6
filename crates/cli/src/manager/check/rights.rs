//! What each role does on each plane: read from the very files that grant it, so that a fault can name its file.

use serde::Deserialize;

/// A file of `deploy/` that grants something.
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

/// Leases of either role, on the cluster of the process.
pub(super) const LEASES: Grant = grant!("deploy/components/leader-election/role.yaml");
/// The cell role on its own cell.
pub(super) const CELL: Grant = grant!("deploy/components/rbac/cell/controllers.yaml");
/// The cell role on the hub.
pub(super) const CELL_ON_HUB: Grant = grant!("deploy/components/rbac/hub/cell.yaml");
/// The management role on the hub.
pub(super) const MANAGEMENT_ON_HUB: Grant = grant!("deploy/components/rbac/hub/management.yaml");
/// The management role where the projects are listed.
pub(super) const PROJECTS: Grant = grant!("deploy/components/rbac/management/projects.yaml");
/// The management role on the plane of a project.
pub(super) const PROJECT: Grant = grant!("deploy/components/rbac/project/management.yaml");
/// Reading the certificate of the webhooks from a Secret, on the cluster of the process.
pub(super) const WEBHOOK_SECRET: Grant = grant!("deploy/components/secret-webhook-cert/role.yaml");

/// Asking who scrapes and whether they may, on the cluster of the process.
pub(super) const SCRAPES: Grant = grant!("deploy/components/secure-metrics/role.yaml");

/// One thing that a role does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Right {
    /// API group; empty for the core group.
    pub(super) group: String,
    /// Plural name of the kind.
    pub(super) resource: String,
    /// Subresource; empty for the object itself.
    pub(super) subresource: String,
    /// The one object that it is about; empty for all of them.
    pub(super) name: String,
    /// The verb.
    pub(super) verb: String,
}

impl Right {
    /// `resource[/subresource][.group]`, as people write it.
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
    /// The folder that `kubectl apply -k` takes.
    pub(super) fn folder(&self) -> &'static str {
        self.file.rsplit_once('/').map_or(self.file, |(folder, _)| folder)
    }

    /// Every right in the file.
    pub(super) fn rights(&self) -> Vec<Right> {
        // Bindings stand in the same file and have no rules.
        let roles: Vec<Role> = serde_saphyr::from_multiple(self.text).unwrap_or_default();
        let mut rights = Vec::new();
        for rule in roles.into_iter().flat_map(|role| role.rules) {
            for (group, resource) in
                rule.api_groups.iter().flat_map(|group| rule.resources.iter().map(move |name| (group, name)))
            {
                let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                let all = [String::new()];
                let names = if rule.resource_names.is_empty() { &all[..] } else { &rule.resource_names };
                for name in names {
                    rights.extend(rule.verbs.iter().map(|verb| Right {
                        group: group.clone(),
                        resource: resource.to_owned(),
                        subresource: subresource.to_owned(),
                        name: name.clone(),
                        verb: verb.clone(),
                    }));
                }
            }
        }
        rights
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_rights_is_understood() {
        for grant in
            [LEASES, CELL, CELL_ON_HUB, MANAGEMENT_ON_HUB, PROJECTS, PROJECT, WEBHOOK_SECRET, SCRAPES]
        {
            let rights = grant.rights();
            assert!(!rights.is_empty(), "{}", grant.file);
            assert!(rights.iter().all(|right| !right.resource.is_empty() && !right.verb.is_empty()));
        }
    }

    #[test]
    fn a_rule_is_its_verbs_times_its_resources_with_subresources_apart() {
        let rights = CELL.rights();
        let has = |group: &str, resource: &str, subresource: &str, verb: &str| {
            let (group, resource) = (group.to_owned(), resource.to_owned());
            let (subresource, verb) = (subresource.to_owned(), verb.to_owned());
            rights.contains(&Right { group, resource, subresource, name: String::new(), verb })
        };
        assert!(has("compute.datumapis.com", "instances", "status", "update"));
        assert!(has("", "namespaces", "", "watch"));
        assert!(!has("compute.datumapis.com", "instances", "status", "delete"));
        let named: Vec<Right> =
            MANAGEMENT_ON_HUB.rights().into_iter().filter(|right| !right.name.is_empty()).collect();
        assert_eq!(named.len(), 1, "{named:?}");
        assert_eq!(LEASES.folder(), "deploy/components/leader-election");
        assert_eq!(rights[0].subject(), "workloaddeployments.compute.datumapis.com");
    }
}
