//! Matches requests against the rules and selectors of webhooks and policies.

use std::sync::Arc;

use polis_apimachinery::{object, selector::LabelSelector};
use serde_json::Value;

use super::Request;
use crate::kinds::Version;

fn has(list: &Value, wanted: &str) -> bool {
    list.as_array().into_iter().flatten().any(|item| item == "*" || item == wanted)
}

/// Whether a rule names the resource: `a`, `a/status`, `*`, `a/*`, `*/status`, `*/*`.
fn names_resource(list: &Value, resource: &str, subresource: &str) -> bool {
    object::strings(list).iter().any(|item| {
        let (wanted, sub) = item.split_once('/').unwrap_or((item, ""));
        (wanted == "*" || wanted == resource) && (sub == "*" || sub == subresource)
    })
}

/// Whether a rule covers the request in the given version of the kind.
fn rule_covers(rule: &Value, request: &Request<'_>, version: &Version) -> bool {
    let kind = &request.call.kind;
    let scope = match rule["scope"].as_str() {
        Some("Cluster") => !kind.namespaced,
        Some("Namespaced") => kind.namespaced,
        _ => true,
    };
    let named = object::strings(&rule["resourceNames"]);
    scope
        && has(&rule["operations"], request.operation)
        && has(&rule["apiGroups"], &kind.group)
        && has(&rule["apiVersions"], &version.name)
        && names_resource(&rule["resources"], &kind.plural, request.subresource())
        && (named.is_empty() || named.iter().any(|name| name == request.name()))
}

/// The version in which one of the rules covers the request: the version of the request if possible, else
/// (with `matchPolicy: Equivalent`) another served version of the kind.
pub(super) fn covered_version(
    rules: &Value,
    equivalent: bool,
    request: &Request<'_>,
) -> Option<Arc<Version>> {
    let covers = |version: &Version| {
        rules.as_array().into_iter().flatten().any(|rule| rule_covers(rule, request, version))
    };
    if covers(&request.call.version) {
        return Some(request.call.version.clone());
    }
    request
        .call
        .kind
        .versions
        .iter()
        .filter(|_| equivalent)
        .find(|version| version.served && covers(version))
        .cloned()
}

/// Whether a label selector matches one of the objects. An empty selector matches every object.
fn selects(selector: &Value, objects: &[Option<&Value>]) -> bool {
    if selector.as_object().is_none_or(serde_json::Map::is_empty) {
        return true;
    }
    // Validation refuses an invalid selector when the configuration is written.
    LabelSelector::from_object(selector)
        .is_ok_and(|selector| objects.iter().flatten().any(|object| selector.matches_object(object)))
}

/// Whether the namespace selector and the object selector match.
pub(super) fn selected(matching: &Value, request: &Request<'_>) -> bool {
    if !selects(&matching["objectSelector"], &[request.object, request.old]) {
        return false;
    }
    let selector = &matching["namespaceSelector"];
    if selector.as_object().is_none_or(serde_json::Map::is_empty) {
        return true;
    }
    match request.namespace() {
        Some(namespace) => selects(selector, &[Some(&namespace)]),
        // Namespace selectors do not exclude cluster-scoped objects.
        None => true,
    }
}

/// Whether `matchResources` of a policy or binding covers the request, and in which version.
pub(super) fn resources_cover(matching: &Value, request: &Request<'_>) -> Option<Arc<Version>> {
    let equivalent = matching["matchPolicy"] != "Exact";
    if covered_version(&matching["excludeResourceRules"], equivalent, request).is_some()
        || !selected(matching, request)
    {
        return None;
    }
    match matching["resourceRules"].as_array() {
        Some(rules) if !rules.is_empty() => covered_version(&matching["resourceRules"], equivalent, request),
        _ => Some(request.call.version.clone()),
    }
}
