//! Validation of network interfaces, and the networks whose access must be checked.

use std::collections::BTreeMap;

use polis_api::ObjectExt;
use polis_api::compute::{NetworkReference, Workload};
use polis_api::names::is_dns_label;

use super::placements::placement_cities;
use super::{DNS_LABEL, FieldError, Path};

/// Maximum number of distinct networks of a workload. Each costs the project's plane one access review for
/// each review of the workload.
pub const MAX_NETWORKS: usize = 64;

/// A network that a workload attaches something new to, so that the access of the user must be checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkUse {
    /// Namespace of the network: that of the interface, else the workload's.
    pub namespace: String,
    /// Name of the network.
    pub name: String,
    /// Paths of the interfaces that reference it.
    pub at: Vec<Path>,
}

/// The result of an access review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessDecision {
    /// The user has the right.
    Allowed,
    /// The user has not the right; with the reason, which may be empty.
    Denied(String),
    /// The check failed; with the error.
    Failed(String),
}

/// Checks that there is at least one interface, that the networks are not too many, and that their names are
/// valid.
pub(super) fn check(workload: &Workload, at: &Path, errors: &mut Vec<FieldError>) {
    let (spec, at) = (&workload.spec.template.spec, at.at("networkInterfaces"));
    if spec.network_interfaces.is_empty() {
        errors.push(at.required("an instance is attached to at least one network"));
    }
    let networks = networks(workload).len();
    if networks > MAX_NETWORKS {
        let detail = format!("has {networks} distinct networks; must have at most {MAX_NETWORKS}");
        errors.push(at.forbidden(detail));
    }
    for (index, interface) in spec.network_interfaces.iter().enumerate() {
        let (network, at) = (&interface.network, at.index(index).at("network"));
        if !is_dns_label(&network.name) {
            errors.push(at.at("name").invalid(network.name.as_str(), DNS_LABEL));
        }
        if let Some(namespace) = other_namespace(network).filter(|namespace| !is_dns_label(namespace)) {
            errors.push(at.at("namespace").invalid(namespace, DNS_LABEL));
        }
    }
}

/// The networks that a workload attaches something new to, each once, sorted by namespace and name.
///
/// Networks with invalid names are omitted, and all if there are more than [`MAX_NETWORKS`]:
/// [`super::validate`] reports them.
pub fn network_uses(workload: &Workload, before: Option<&Workload>) -> Vec<NetworkUse> {
    if before.is_some_and(|before| attaches_nothing(workload, before)) {
        return Vec::new();
    }
    let networks = networks(workload);
    if networks.len() > MAX_NETWORKS {
        return Vec::new();
    }
    let at = Path::new("spec.template.spec.networkInterfaces");
    let named = |((namespace, name), interfaces): ((&str, &str), Vec<usize>)| NetworkUse {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        at: interfaces.into_iter().map(|index| at.index(index).at("network")).collect(),
    };
    networks.into_iter().map(named).collect()
}

/// The distinct networks with valid names, by namespace and name, with the indexes of their interfaces.
fn networks(workload: &Workload) -> BTreeMap<(&str, &str), Vec<usize>> {
    let own_namespace = workload.namespace();
    let mut found = BTreeMap::<(&str, &str), Vec<usize>>::new();
    for (index, interface) in workload.spec.template.spec.network_interfaces.iter().enumerate() {
        let network = &interface.network;
        let namespace = other_namespace(network).unwrap_or(own_namespace);
        if is_dns_label(&network.name) && is_dns_label(namespace) {
            found.entry((namespace, &network.name)).or_default().push(index);
        }
    }
    found
}

/// The errors that follow from the access checks.
pub fn access_errors(results: impl IntoIterator<Item = (NetworkUse, AccessDecision)>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (NetworkUse { namespace, name, at }, result) in results {
        let network = format!("network {namespace}/{name}");
        let error = |path: &Path| match &result {
            AccessDecision::Allowed => None,
            AccessDecision::Denied(reason) if reason.is_empty() => {
                Some(path.forbidden(format!("you may not use {network}")))
            }
            AccessDecision::Denied(reason) => {
                Some(path.forbidden(format!("you may not use {network}: {reason}")))
            }
            AccessDecision::Failed(reason) => {
                Some(path.internal(format!("failed to check access to {network}: {reason}; try again")))
            }
        };
        errors.extend(at.iter().filter_map(error));
    }
    errors
}

/// Whether an update attaches nothing new: the template is the same, and no city is added.
fn attaches_nothing(workload: &Workload, before: &Workload) -> bool {
    let known = placement_cities(before);
    workload.spec.template == before.spec.template
        && placement_cities(workload).iter().all(|pair| known.contains(pair))
}

/// The namespace that an interface sets; an empty one counts as not set.
fn other_namespace(network: &NetworkReference) -> Option<&str> {
    network.namespace.as_deref().filter(|namespace| !namespace.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{mk_placement, mk_template, mk_workload};

    fn mk_networks(networks: &[(&str, Option<&str>)]) -> Workload {
        let mut workload = mk_workload("web", &["dfw"]);
        let template = workload.spec.template.spec.network_interfaces[0].clone();
        let mk = |(name, namespace): &(&str, Option<&str>)| {
            let mut interface = template.clone();
            interface.network =
                NetworkReference { name: name.to_string(), namespace: namespace.map(str::to_owned) };
            interface
        };
        workload.spec.template.spec.network_interfaces = networks.iter().map(mk).collect();
        workload
    }

    fn named(uses: &[NetworkUse]) -> Vec<String> {
        uses.iter().map(|one| format!("{}/{}", one.namespace, one.name)).collect()
    }

    #[test]
    fn each_network_is_checked_once_in_the_namespace_of_its_interface() {
        let workload = mk_networks(&[("b", None), ("a", Some("nets")), ("b", Some("shop")), ("b", Some(""))]);
        let uses = network_uses(&workload, None);
        assert_eq!(named(&uses), ["nets/a", "shop/b"]);
        let paths: Vec<_> = uses[1].at.iter().map(ToString::to_string).collect();
        let path = |index| format!("spec.template.spec.networkInterfaces[{index}].network");
        assert_eq!(paths, [path(0), path(2), path(3)]);
    }

    #[test]
    fn a_network_with_an_invalid_name_is_not_checked() {
        assert_eq!(network_uses(&mk_networks(&[("Big", None), ("a", Some("../up"))]), None), []);
    }

    #[test]
    fn too_many_networks_are_reported_and_not_checked() {
        let names: Vec<String> = (0..=MAX_NETWORKS).map(|index| format!("n{index}")).collect();
        let mut networks: Vec<(&str, Option<&str>)> =
            names.iter().map(|name| (name.as_str(), None)).collect();
        let errors = |workload: &Workload| {
            let mut errors = Vec::new();
            check(workload, &Path::new("spec.template.spec"), &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let workload = mk_networks(&networks);
        assert_eq!(network_uses(&workload, None), []);
        assert_eq!(
            errors(&workload),
            [
                "spec.template.spec.networkInterfaces: Forbidden: has 65 distinct networks; must have at most 64"
            ]
        );
        networks[0] = networks[1]; // the same network twice counts once
        let workload = mk_networks(&networks);
        assert_eq!(network_uses(&workload, None).len(), MAX_NETWORKS);
        assert_eq!(errors(&workload), [] as [&str; 0]);
    }

    #[test]
    fn scaling_and_removing_a_city_need_no_access_check() {
        let before = mk_workload("web", &["dfw", "ord"]);
        let mut after = mk_workload("web", &["ord"]);
        after.spec.placements[0].scale_settings.min_replicas = 9;
        assert_eq!(network_uses(&after, Some(&before)), []);
    }

    #[test]
    fn a_new_template_and_a_new_city_need_an_access_check() {
        let before = mk_workload("web", &["dfw"]);
        let mut other = before.clone();
        other.spec.template = mk_template("app:2");
        assert_eq!(named(&network_uses(&other, Some(&before))), ["shop/test-network"]);
        assert_eq!(
            named(&network_uses(&mk_workload("web", &["dfw", "ord"]), Some(&before))),
            ["shop/test-network"]
        );
        let mut moved = before.clone();
        moved.spec.placements.push(mk_placement("more", &["dfw"]));
        assert_eq!(named(&network_uses(&moved, Some(&before))), ["shop/test-network"]);
    }

    #[test]
    fn denied_and_failed_checks_are_different_errors_on_every_interface() {
        let of = |result: AccessDecision| {
            let workload = mk_networks(&[("a", None), ("a", None)]);
            let errors =
                access_errors(network_uses(&workload, None).into_iter().map(|one| (one, result.clone())));
            errors.iter().map(|error| error.kind.reason()).collect::<Vec<_>>()
        };
        assert_eq!(of(AccessDecision::Allowed), [""; 0]);
        assert_eq!(of(AccessDecision::Denied("no".into())), ["FieldValueForbidden"; 2]);
        assert_eq!(of(AccessDecision::Failed("timeout".into())), ["InternalError"; 2]);
    }
}
