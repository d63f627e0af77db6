//! Networks that a workload uses, and whether its author may.

use std::collections::BTreeMap;

use polis_api::compute::{InstanceSpec, NetworkReference, Workload};
use polis_api::names::is_dns_label;

use super::placements::sites;
use super::{DNS_LABEL, FieldError, Path};

/// A network that a workload attaches something new to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// Namespace of the network: the workload's own unless the interface names another.
    pub namespace: String,
    /// Name of the network.
    pub name: String,
    /// The interfaces that name it.
    pub at: Vec<Path>,
}

/// What the plane said about one [`Use`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The author may use the network.
    Allowed,
    /// The author may not, and perhaps why.
    Denied(String),
    /// No answer was had, and why.
    Failed(String),
}

/// At least one interface, each on a network that can be.
pub(super) fn check(spec: &InstanceSpec, at: &Path, errors: &mut Vec<FieldError>) {
    let at = at.at("networkInterfaces");
    if spec.network_interfaces.is_empty() {
        errors.push(at.required("an instance is attached to at least one network"));
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

/// The networks that a workload attaches something new to, each once, in the order of their names.
///
/// Names that cannot be are left out: they are wrong already.
pub fn uses(workload: &Workload, before: Option<&Workload>) -> Vec<Use> {
    if before.is_some_and(|before| attaches_nothing(workload, before)) {
        return Vec::new();
    }
    let home = workload.metadata.namespace.as_deref().unwrap_or_default();
    let at = Path::new("spec.template.spec.networkInterfaces");
    let mut found = BTreeMap::<(&str, &str), Vec<Path>>::new();
    for (index, interface) in workload.spec.template.spec.network_interfaces.iter().enumerate() {
        let network = &interface.network;
        let namespace = other_namespace(network).unwrap_or(home);
        if is_dns_label(&network.name) && is_dns_label(namespace) {
            found.entry((namespace, &network.name)).or_default().push(at.index(index).at("network"));
        }
    }
    let named = |((namespace, name), at): ((&str, &str), _)| Use {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        at,
    };
    found.into_iter().map(named).collect()
}

/// What is wrong about the networks, given an answer for each use.
pub fn access_errors(answers: impl IntoIterator<Item = (Use, Answer)>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (Use { namespace, name, at }, answer) in answers {
        let network = format!("network {namespace}/{name}");
        let error =
            |path: &Path| match &answer {
                Answer::Allowed => None,
                Answer::Denied(why) if why.is_empty() => {
                    Some(path.forbidden(format!("you may not use {network}")))
                }
                Answer::Denied(why) => Some(path.forbidden(format!("you may not use {network}: {why}"))),
                Answer::Failed(why) => Some(path.internal(format!(
                    "whether you may use {network} could not be found out: {why}; try again"
                ))),
            };
        errors.extend(at.iter().filter_map(error));
    }
    errors
}

/// Whether a change only takes away or scales: same template, no new city.
fn attaches_nothing(workload: &Workload, before: &Workload) -> bool {
    let known = sites(before);
    workload.spec.template == before.spec.template && sites(workload).iter().all(|site| known.contains(site))
}

/// The namespace that an interface names; an empty one is none.
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

    fn named(uses: &[Use]) -> Vec<String> {
        uses.iter().map(|one| format!("{}/{}", one.namespace, one.name)).collect()
    }

    #[test]
    fn each_network_is_asked_about_once_where_the_interface_says_it_is() {
        let workload = mk_networks(&[("b", None), ("a", Some("nets")), ("b", Some("shop")), ("b", Some(""))]);
        let uses = uses(&workload, None);
        assert_eq!(named(&uses), ["nets/a", "shop/b"]);
        let paths: Vec<_> = uses[1].at.iter().map(ToString::to_string).collect();
        let path = |index| format!("spec.template.spec.networkInterfaces[{index}].network");
        assert_eq!(paths, [path(0), path(2), path(3)]);
    }

    #[test]
    fn a_network_that_cannot_be_is_not_asked_about() {
        assert_eq!(uses(&mk_networks(&[("Big", None), ("a", Some("../up"))]), None), []);
    }

    #[test]
    fn scaling_and_leaving_a_city_need_no_leave() {
        let before = mk_workload("web", &["dfw", "ord"]);
        let mut after = mk_workload("web", &["ord"]);
        after.spec.placements[0].scale_settings.min_replicas = 9;
        assert_eq!(uses(&after, Some(&before)), []);
    }

    #[test]
    fn a_new_template_and_a_new_city_do() {
        let before = mk_workload("web", &["dfw"]);
        let mut other = before.clone();
        other.spec.template = mk_template("app:2");
        assert_eq!(named(&uses(&other, Some(&before))), ["shop/test-network"]);
        assert_eq!(named(&uses(&mk_workload("web", &["dfw", "ord"]), Some(&before))), ["shop/test-network"]);
        let mut moved = before.clone();
        moved.spec.placements.push(mk_placement("more", &["dfw"]));
        assert_eq!(named(&uses(&moved, Some(&before))), ["shop/test-network"]);
    }

    #[test]
    fn denied_and_failed_are_told_apart_on_every_interface() {
        let of = |answer: Answer| {
            let workload = mk_networks(&[("a", None), ("a", None)]);
            let errors = access_errors(uses(&workload, None).into_iter().map(|one| (one, answer.clone())));
            errors.iter().map(|error| error.fault.reason()).collect::<Vec<_>>()
        };
        assert_eq!(of(Answer::Allowed), [""; 0]);
        assert_eq!(of(Answer::Denied("no".into())), ["FieldValueForbidden"; 2]);
        assert_eq!(of(Answer::Failed("away".into())), ["InternalError"; 2]);
    }
}
