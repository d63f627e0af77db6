//! RBAC authorizer.
//!
//! The roles and bindings of a plane are its own and those in the plane of its catalogue. The latter apply to
//! every plane that shares the catalogue.

use std::sync::Arc;

use polis_apimachinery::object;
use serde::Deserialize;
use serde_json::Value;

use super::{Attributes, role_index::RoleReference};
use crate::{
    plane::Plane,
    server::Core,
    status::{GroupResource, StatusError},
    user::{AUTHENTICATED, UNAUTHENTICATED, UserInfo},
    verbs::Call,
};

/// Paths that every authenticated user may get: the ClusterRole `system:discovery` of Kubernetes.
const DISCOVERY: [&str; 11] = [
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/healthz",
    "/livez",
    "/openapi",
    "/openapi/*",
    "/readyz",
    "/version",
    "/version/",
];
/// Paths of the root plane that anonymous users may get, too: `system:public-info-viewer`. On other planes
/// they would show which planes exist.
const PUBLIC: [&str; 5] = ["/healthz", "/livez", "/readyz", "/version", "/version/"];
/// Paths that service accounts may get: `system:service-account-issuer-discovery`.
const ISSUER: [&str; 4] = [
    "/.well-known/openid-configuration",
    "/.well-known/openid-configuration/",
    "/openid/v1/jwks",
    "/openid/v1/jwks/",
];

/// Maximum number of single permissions in a role that a user without the verb `escalate` or `bind` grants.
/// Each is compared with the rules of the user. A rule multiplies its lists: 1.5 MiB of JSON can name more
/// permissions than fit into memory. The largest role of Kubernetes has about 500.
const MAX_CHECKED: usize = 10_000;

/// One rule of a role.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Rule {
    pub(crate) verbs: Vec<String>,
    pub(crate) api_groups: Vec<String>,
    pub(crate) resources: Vec<String>,
    pub(crate) resource_names: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    pub(crate) non_resource_urls: Vec<String>,
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

/// Whether a URL of a rule covers a path. A `*` at its end matches any rest.
fn covers_url(url: &str, path: &str) -> bool {
    url == path || (url.ends_with('*') && path.starts_with(url.trim_end_matches('*')))
}

impl Rule {
    /// Whether the rule allows a request.
    pub(crate) fn allows(&self, attributes: &Attributes) -> bool {
        if !has(&self.verbs, &attributes.verb) {
            return false;
        }
        match &attributes.path {
            Some(path) => self.non_resource_urls.iter().any(|url| covers_url(url, path)),
            None => {
                let resource = attributes.about.resource.as_str();
                let of_any = |known: &String| known.strip_prefix("*/") == Some(&*attributes.subresource);
                let covered = has(&self.resources, resource)
                    || (!attributes.subresource.is_empty() && self.resources.iter().any(of_any));
                covered
                    && has(&self.api_groups, &attributes.about.group)
                    && (self.resource_names.is_empty() || self.resource_names.contains(&attributes.name))
            }
        }
    }

    /// Whether the rule allows everything that `part`, an element of [`Self::parts`], allows.
    fn covers(&self, part: &Self) -> bool {
        let all = |mine: &[String], theirs: &[String]| theirs.iter().all(|item| has(mine, item));
        if !part.non_resource_urls.is_empty() {
            let urls = part.non_resource_urls.iter().all(|url| {
                self.non_resource_urls.iter().any(|mine| {
                    mine == "*"
                        || mine == url
                        || mine.strip_suffix('*').is_some_and(|stem| url.starts_with(stem))
                })
            });
            return urls && all(&self.verbs, &part.verbs);
        }
        let resources = part.resources.iter().all(|wanted| {
            has(&self.resources, wanted)
                || wanted.split_once('/').is_some_and(|(_, sub)| {
                    self.resources.iter().any(|known| known.strip_prefix("*/") == Some(sub))
                })
        });
        let names = self.resource_names.is_empty()
            || (!part.resource_names.is_empty()
                && part.resource_names.iter().all(|name| self.resource_names.contains(name)));
        all(&self.verbs, &part.verbs) && all(&self.api_groups, &part.api_groups) && resources && names
    }

    /// The number of [`Self::parts`].
    fn count(&self) -> usize {
        let resources = self.api_groups.len().saturating_mul(self.resources.len());
        let objects = resources.saturating_mul(self.resource_names.len().max(1));
        self.verbs.len().saturating_mul(self.non_resource_urls.len().saturating_add(objects))
    }

    /// The rule as single permissions: one verb, one group, one resource and one name each.
    fn parts(&self) -> Vec<Self> {
        let mut parts = Vec::new();
        for verb in &self.verbs {
            for url in &self.non_resource_urls {
                parts.push(Self {
                    verbs: vec![verb.clone()],
                    non_resource_urls: vec![url.clone()],
                    ..Self::default()
                });
            }
            for group in &self.api_groups {
                for resource in &self.resources {
                    let base = Self {
                        verbs: vec![verb.clone()],
                        api_groups: vec![group.clone()],
                        resources: vec![resource.clone()],
                        ..Self::default()
                    };
                    if self.resource_names.is_empty() {
                        parts.push(base);
                    } else {
                        parts.extend(
                            self.resource_names
                                .iter()
                                .map(|name| Self { resource_names: vec![name.clone()], ..base.clone() }),
                        );
                    }
                }
            }
        }
        parts
    }
}

/// The rules of a role object.
pub(super) fn rules(role: &Value) -> Vec<Rule> {
    role["rules"].as_array().into_iter().flatten().filter_map(|rule| Rule::deserialize(rule).ok()).collect()
}

/// The rules of every role that applies to a user in a namespace (empty: cluster-wide rules only).
pub(crate) fn rules_for(core: &Core, plane: &Plane, user: &UserInfo, namespace: &str) -> Vec<Arc<[Rule]>> {
    let view = core.store.view();
    let mut found = plane.roles.rules_for(view, user, namespace);
    if plane.catalogue.plane != plane.name
        && let Some(shared) = core.plane(&plane.catalogue.plane)
    {
        found.extend(shared.roles.rules_for(view, user, namespace));
    }
    found
}

/// Whether RBAC allows a user's request.
pub(crate) fn allows(core: &Core, plane: &Plane, user: &UserInfo, attributes: &Attributes) -> bool {
    if user.is_master() {
        return true;
    }
    if let Some(path) = &attributes.path {
        let covered = |urls: &[&str]| urls.iter().any(|url| covers_url(url, path));
        let by_default = (user.is_in(AUTHENTICATED) && covered(&DISCOVERY))
            || (user.is_in(UNAUTHENTICATED) && plane.name.is_empty() && covered(&PUBLIC))
            || (user.is_in("system:serviceaccounts") && covered(&ISSUER));
        if attributes.verb == "get" && by_default {
            return true;
        }
    } else if user.is_in(AUTHENTICATED) && attributes.verb == "create" {
        // Every authenticated user may review its own access and its own user info.
        let own = matches!(
            (attributes.about.group.as_str(), attributes.about.resource.as_str()),
            ("authorization.k8s.io", "selfsubjectaccessreviews" | "selfsubjectrulesreviews")
                | ("authentication.k8s.io", "selfsubjectreviews")
        );
        if own {
            return true;
        }
    }
    rules_for(core, plane, user, &attributes.namespace)
        .iter()
        .flat_map(|rules| rules.iter())
        .any(|rule| rule.allows(attributes))
}

/// Refuses a role or binding that grants permissions which the caller does not have (privilege escalation).
pub(crate) fn check_grant(call: &Call, object: &Value) -> Result<(), StatusError> {
    let namespace = call.namespace.clone().unwrap_or_default();
    let may = |verb: &str, resource: &str, name: &str| {
        let attributes = Attributes {
            verb: verb.into(),
            about: GroupResource::new("rbac.authorization.k8s.io", resource),
            subresource: String::new(),
            name: name.to_owned(),
            namespace: namespace.clone(),
            path: None,
        };
        allows(&call.core, &call.plane, &call.user, &attributes)
    };
    let granted = if call.kind.plural.ends_with("bindings") {
        let name = object["roleRef"]["name"].as_str().unwrap_or_default();
        let role = RoleReference::of(object, &namespace);
        let plural = if matches!(role, RoleReference::Role(_)) { "roles" } else { "clusterroles" };
        if role == RoleReference::Unknown {
            let kind = object["roleRef"]["kind"].as_str().unwrap_or_default();
            return Err(StatusError::new(500, "", format!("unsupported role reference kind: {kind:?}")));
        }
        if may("bind", plural, name) {
            return Ok(());
        }
        // With the resource of the binding, as in Kubernetes.
        call.plane
            .roles
            .role(call.core.store.view(), &role)
            .ok_or_else(|| StatusError::not_found(&call.kind.group_resource(), name))?
    } else {
        // The name of the path, as in Kubernetes: a create has none, so a rule with resourceNames does not
        // allow it.
        if may("escalate", &call.kind.plural, call.name.as_deref().unwrap_or_default()) {
            return Ok(());
        }
        rules(object).into()
    };
    let refuse = |why: &str| {
        Err(StatusError::forbidden(&call.kind.group_resource(), object::meta(object, "name"), why))
    };
    let count = granted.iter().map(Rule::count).fold(0, usize::saturating_add);
    if count > MAX_CHECKED {
        return refuse(&too_many(count));
    }
    let own = rules_for(&call.core, &call.plane, &call.user, &namespace);
    let missing: Vec<Rule> = granted
        .iter()
        .flat_map(Rule::parts)
        .filter(|part| !own.iter().flat_map(|rules| rules.iter()).any(|rule| rule.covers(part)))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let groups = call.user.groups.iter().map(|group| format!("{group:?}")).collect::<Vec<_>>().join(" ");
    let listed = missing.iter().map(describe).collect::<Vec<_>>().join("\n");
    refuse(&format!(
        "user {:?} (groups=[{groups}]) is attempting to grant RBAC permissions not currently held:\n{listed}",
        call.user.name
    ))
}

/// Why a role with this many permissions is refused.
fn too_many(count: usize) -> String {
    format!(
        "the rules grant {count} permissions, and at most {MAX_CHECKED} can be checked for privilege \
         escalation; split the role"
    )
}

fn describe(rule: &Rule) -> String {
    let list = |name: &str, items: &[String]| {
        (!items.is_empty()).then(|| {
            format!("{name}:[{}]", items.iter().map(|item| format!("{item:?}")).collect::<Vec<_>>().join(" "))
        })
    };
    let fields = [
        list("APIGroups", &rule.api_groups),
        list("Resources", &rule.resources),
        list("ResourceNames", &rule.resource_names),
        list("NonResourceURLs", &rule.non_resource_urls),
        list("Verbs", &rule.verbs),
    ];
    format!("{{{}}}", fields.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> Rule {
        let owned = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect();
        Rule {
            verbs: owned(verbs),
            api_groups: owned(groups),
            resources: owned(resources),
            resource_names: owned(names),
            non_resource_urls: Vec::new(),
        }
    }

    fn attributes(verb: &str, resource: &str, name: &str) -> Attributes {
        Attributes {
            verb: verb.into(),
            about: GroupResource::new("g", resource),
            subresource: resource.split_once('/').map_or("", |(_, sub)| sub).to_owned(),
            name: name.into(),
            ..Attributes::default()
        }
    }

    #[test]
    fn the_count_of_a_rule_is_the_number_of_its_parts() {
        let mut rule = mk_rule(&["get", "list"], &["", "apps"], &["a", "b", "c"], &[]);
        assert_eq!((rule.count(), rule.parts().len()), (12, 12));
        rule.resource_names = vec!["x".into(), "y".into()];
        rule.non_resource_urls = vec!["/z".into()];
        assert_eq!((rule.count(), rule.parts().len()), (26, 26));
        assert_eq!(Rule::default().count(), 0);
    }

    #[test]
    fn a_rule_allows_a_request_that_all_its_fields_match() {
        let rule = mk_rule(&["get"], &["g"], &["a", "*/status"], &[]);
        assert!(rule.allows(&attributes("get", "a", "x")));
        assert!(rule.allows(&attributes("get", "b/status", "x")));
        assert!(!rule.allows(&attributes("list", "a", "")));
        assert!(!rule.allows(&attributes("get", "a/status2", "x")));
        let slash = Attributes { subresource: String::new(), ..attributes("get", "b/status", "x") };
        assert!(!rule.allows(&slash), "a resource with a slash in its name has no subresource");
    }

    #[test]
    fn a_named_rule_allows_nothing_without_a_name() {
        let rule = mk_rule(&["*"], &["*"], &["*"], &["x"]);
        assert!(rule.allows(&attributes("get", "a", "x")));
        assert!(!rule.allows(&attributes("list", "a", "")));
        assert!(!rule.allows(&attributes("get", "a", "y")));
    }

    #[test]
    fn a_user_may_grant_only_permissions_that_the_user_holds() {
        let own = [mk_rule(&["get", "list"], &["g"], &["a"], &[]), mk_rule(&["get"], &["g"], &["b"], &["x"])];
        let may = |granted: Rule| granted.parts().iter().all(|part| own.iter().any(|rule| rule.covers(part)));
        assert!(may(mk_rule(&["get"], &["g"], &["a"], &["n"])));
        assert!(may(mk_rule(&["get"], &["g"], &["b"], &["x"])));
        assert!(!may(mk_rule(&["get"], &["g"], &["b"], &[])));
        assert!(!may(mk_rule(&["*"], &["g"], &["a"], &[])));
    }
}
