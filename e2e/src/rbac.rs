//! Compares the permissions of the roles in `deploy/` with the recorded requests.
//!
//! A rule consists of several permissions: one per group, resource and verb. A permission is needed if at
//! least one recorded request would be forbidden without it.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use crate::{planes::ClientIdentity, proxy::RecordedRequest};

/// One permission of a role.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permission {
    /// The API group; empty for the core group.
    pub group: String,
    /// The plural, with a subresource after a slash.
    pub resource: String,
    /// The verb of the rule.
    pub verb: String,
    /// The namespace that it is limited to.
    pub namespace: Option<String>,
    /// The names that it is limited to; empty for all names.
    pub names: Vec<String>,
}

/// A request as an API server authorizes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AccessRequest {
    /// The API group; empty for the core group.
    pub group: String,
    /// The plural, with a subresource after a slash.
    pub resource: String,
    /// The verb of the rule.
    pub verb: String,
    /// The namespace of the request.
    pub namespace: Option<String>,
    /// The name of the object; none for a create.
    pub name: Option<String>,
}

/// The result of [`audit`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RbacAudit {
    /// Requests that no permission allows.
    pub forbidden: BTreeSet<AccessRequest>,
    /// Permissions that no request needs.
    pub unused: Vec<Permission>,
}

impl Permission {
    /// Whether it permits a request.
    pub fn permits(&self, request: &AccessRequest) -> bool {
        let named = || request.name.as_ref().is_some_and(|name| self.names.contains(name));
        self.group == request.group
            && self.resource == request.resource
            && self.verb == request.verb
            && (self.namespace.is_none() || self.namespace == request.namespace)
            && (self.names.is_empty() || named())
    }

    /// The permissions of a rule.
    fn of_rule(rule: &Value, namespace: Option<&str>) -> Vec<Permission> {
        let strings = |field: &str| -> Vec<String> {
            let list = rule[field].as_array().into_iter().flatten();
            list.filter_map(|item| item.as_str().map(str::to_owned)).collect()
        };
        let (verbs, names) = (strings("verbs"), strings("resourceNames"));
        let mut permissions = Vec::new();
        for group in strings("apiGroups") {
            for resource in strings("resources") {
                permissions.extend(verbs.iter().map(|verb| Permission {
                    group: group.clone(),
                    resource: resource.clone(),
                    verb: verb.clone(),
                    namespace: namespace.map(str::to_owned),
                    names: names.clone(),
                }));
            }
        }
        permissions
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}.{}", self.verb, self.resource, self.group)
    }
}

impl fmt::Display for AccessRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AccessRequest { group, resource, verb, namespace, name } = self;
        let (namespace, name) =
            (namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default());
        write!(f, "{verb} {resource}.{group} {namespace}/{name}")
    }
}

/// Whether an object is a role binding.
pub fn is_binding(object: &Value) -> bool {
    matches!(object["kind"].as_str(), Some("ClusterRoleBinding" | "RoleBinding"))
}

/// Whether a binding has this identity as a subject.
pub fn is_for(binding: &Value, identity: &ClientIdentity) -> bool {
    binding["subjects"].as_array().into_iter().flatten().any(|subject| match subject["kind"].as_str() {
        Some("User") => subject["name"] == *identity.user,
        Some("Group") => identity.groups.iter().any(|group| subject["name"] == **group),
        _ => false,
    })
}

/// The permissions of an identity through the roles and bindings among these objects. A permission that two
/// roles grant is listed once; one that a single role grants twice is listed twice, and so both are found to
/// be unused.
pub fn granted(objects: &[Value], identity: &ClientIdentity) -> Vec<Permission> {
    let mut permissions: Vec<Permission> = Vec::new();
    for binding in objects.iter().filter(|object| is_binding(object) && is_for(object, identity)) {
        let namespace =
            binding["metadata"]["namespace"].as_str().filter(|_| binding["kind"] == "RoleBinding");
        let bound = objects.iter().filter(|object| {
            object["kind"] == binding["roleRef"]["kind"]
                && object["metadata"]["name"] == binding["roleRef"]["name"]
        });
        for role in bound {
            let rules = role["rules"].as_array().into_iter().flatten();
            let of_role: Vec<Permission> =
                rules.flat_map(|rule| Permission::of_rule(rule, namespace)).collect();
            let before = permissions.clone();
            permissions.extend(of_role.into_iter().filter(|permission| !before.contains(permission)));
        }
    }
    permissions
}

/// The authorizations that an API server checks for a request: the request itself, the verb `bind` for the
/// role of a created RoleBinding and, with `OwnerReferencesPermissionEnforcement`, an update of the
/// finalizers of each blocking owner.
pub fn requests(request: &RecordedRequest) -> Vec<AccessRequest> {
    let own = AccessRequest {
        group: request.group.clone(),
        resource: request.resource.clone(),
        verb: request.verb.as_str().to_owned(),
        namespace: request.namespace.clone(),
        name: request.name.clone(),
    };
    let of_owner = request.owners.iter().map(|owner| AccessRequest {
        group: owner.group.clone(),
        // The plural of all owning kinds is regular.
        resource: format!("{}s/finalizers", owner.kind.to_lowercase()),
        verb: "update".to_owned(),
        namespace: request.namespace.clone(),
        name: Some(owner.name.clone()),
    });
    let bound = request.bound_role.iter().map(|role| AccessRequest {
        group: "rbac.authorization.k8s.io".to_owned(),
        resource: "clusterroles".to_owned(),
        verb: "bind".to_owned(),
        namespace: request.namespace.clone(),
        name: Some(role.clone()),
    });
    [own].into_iter().chain(of_owner).chain(bound).collect()
}

/// Finds forbidden requests, and permissions that no request needs.
pub fn audit(permissions: &[Permission], requests: &BTreeSet<AccessRequest>) -> RbacAudit {
    let is_forbidden_without = |removed: Option<usize>, request: &AccessRequest| {
        let rest = permissions.iter().enumerate().filter(|(at, _)| Some(*at) != removed);
        !rest.into_iter().any(|(_, permission)| permission.permits(request))
    };
    let forbidden: BTreeSet<AccessRequest> =
        requests.iter().filter(|request| is_forbidden_without(None, request)).cloned().collect();
    let unused = permissions.iter().enumerate().filter(|(at, _)| {
        !requests
            .iter()
            .any(|request| is_forbidden_without(Some(*at), request) && !forbidden.contains(request))
    });
    RbacAudit { unused: unused.map(|(_, permission)| permission.clone()).collect(), forbidden }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk_objects(rules: Value) -> Vec<Value> {
        vec![
            json!({"kind": "ClusterRole", "metadata": {"name": "one"}, "rules": rules}),
            json!({"kind": "ClusterRoleBinding", "metadata": {"name": "one"},
                "roleRef": {"kind": "ClusterRole", "name": "one"}, "subjects": [{"kind": "User", "name": "me"}]}),
        ]
    }

    fn mk_identity() -> ClientIdentity {
        ClientIdentity { user: "me".to_owned(), groups: vec!["us".to_owned()] }
    }

    fn mk_request(verb: &str, resource: &str, name: Option<&str>) -> AccessRequest {
        AccessRequest {
            group: "g".to_owned(),
            resource: resource.to_owned(),
            verb: verb.to_owned(),
            namespace: Some("shop".to_owned()),
            name: name.map(str::to_owned),
        }
    }

    fn names(permissions: &[Permission]) -> Vec<String> {
        permissions.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn unused_permissions_and_forbidden_requests_are_found() {
        let rules = json!([{"apiGroups": ["g"], "resources": ["a", "b"], "verbs": ["get", "list"]}]);
        let permissions = granted(&mk_objects(rules), &mk_identity());
        assert_eq!(names(&permissions), ["get a.g", "list a.g", "get b.g", "list b.g"]);
        let requests = ["a", "b"].map(|resource| mk_request("get", resource, Some("x")));
        let requests = BTreeSet::from_iter(
            requests.into_iter().chain([mk_request("list", "a", None), mk_request("delete", "a", None)]),
        );
        let audit = audit(&permissions, &requests);
        assert_eq!(names(&audit.unused), ["list b.g"]);
        assert_eq!(audit.forbidden, BTreeSet::from([mk_request("delete", "a", None)]));
    }

    #[test]
    fn a_duplicate_in_one_role_is_unused_and_one_in_two_roles_is_not() {
        let rule = json!({"apiGroups": ["g"], "resources": ["a"], "verbs": ["get"]});
        let requests = BTreeSet::from([mk_request("get", "a", Some("x"))]);
        let twice = mk_objects(json!([rule, rule]));
        assert_eq!(audit(&granted(&twice, &mk_identity()), &requests).unused.len(), 2);
        let mut two = mk_objects(json!([rule]));
        two.push(json!({"kind": "ClusterRole", "metadata": {"name": "two"}, "rules": [rule]}));
        two.push(json!({"kind": "ClusterRoleBinding", "metadata": {"name": "two"},
            "roleRef": {"kind": "ClusterRole", "name": "two"}, "subjects": [{"kind": "Group", "name": "us"}]}));
        assert_eq!(audit(&granted(&two, &mk_identity()), &requests), RbacAudit::default());
    }

    #[test]
    fn a_permission_is_limited_to_names_and_namespaces() {
        let mut objects = mk_objects(
            json!([{"apiGroups": ["g"], "resources": ["a"], "resourceNames": ["x"], "verbs": ["get", "create"]}]),
        );
        let permissions = granted(&objects, &mk_identity());
        assert!(permissions[0].permits(&mk_request("get", "a", Some("x"))));
        assert!(!permissions[0].permits(&mk_request("get", "a", Some("y"))));
        assert!(!permissions[1].permits(&mk_request("create", "a", None)), "a create has no name yet");
        objects[1]["kind"] = json!("RoleBinding");
        objects[1]["metadata"]["namespace"] = json!("elsewhere");
        assert!(!granted(&objects, &mk_identity())[0].permits(&mk_request("get", "a", Some("x"))));
    }

    #[test]
    fn another_identity_has_no_permissions() {
        let objects = mk_objects(json!([{"apiGroups": ["g"], "resources": ["a"], "verbs": ["get"]}]));
        let other = ClientIdentity { user: "other".to_owned(), groups: vec!["me".to_owned()] };
        assert_eq!(granted(&objects, &other), []);
    }
}
