//! Rights: what the roles of `deploy/` permit, right by right, and whether each of them is used.
//!
//! A rule of a role is several rights: one for each group, resource and verb. A right is needed if there was a request that
//! is forbidden once this right alone is taken away. So it is asked of every right, with what the wires have written down.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use crate::{planes::Identity, wire::Call, wire::Verb};

/// One thing that somebody may do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// The group of the kind; empty for the core group.
    pub group: String,
    /// Plural of the kind, with the subresource after a slash.
    pub resource: String,
    /// As rules name it.
    pub verb: String,
    /// The only namespace that it holds in.
    pub namespace: Option<String>,
    /// The only names that it holds for; all where there is none.
    pub names: Vec<String>,
}

/// One thing that somebody did, as an API server judges it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// The group of the kind; empty for the core group.
    pub group: String,
    /// Plural of the kind, with the subresource after a slash.
    pub resource: String,
    /// As rules name it.
    pub verb: String,
    /// The namespace that it was made in.
    pub namespace: Option<String>,
    /// The name of the object; a new one has none yet.
    pub name: Option<String>,
}

/// What comes of holding requests against rights.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// What no right permits, and was asked for.
    pub forbidden: BTreeSet<Request>,
    /// What can be taken away without any request being forbidden that was not before.
    pub needless: Vec<Right>,
}

impl Right {
    /// Whether it permits a request.
    pub fn permits(&self, request: &Request) -> bool {
        let named = || request.name.as_ref().is_some_and(|name| self.names.contains(name));
        self.group == request.group
            && self.resource == request.resource
            && self.verb == request.verb
            && (self.namespace.is_none() || self.namespace == request.namespace)
            && (self.names.is_empty() || named())
    }

    /// The rights of a rule, one by one.
    fn of_rule(rule: &Value, namespace: Option<&str>) -> Vec<Right> {
        let words = |field: &str| -> Vec<String> {
            let list = rule[field].as_array().into_iter().flatten();
            list.filter_map(|word| word.as_str().map(str::to_owned)).collect()
        };
        let (verbs, names) = (words("verbs"), words("resourceNames"));
        let mut rights = Vec::new();
        for group in words("apiGroups") {
            for resource in words("resources") {
                rights.extend(verbs.iter().map(|verb| Right {
                    group: group.clone(),
                    resource: resource.clone(),
                    verb: verb.clone(),
                    namespace: namespace.map(str::to_owned),
                    names: names.clone(),
                }));
            }
        }
        rights
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}.{}", self.verb, self.resource, self.group)
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Request { group, resource, verb, namespace, name } = self;
        let (namespace, name) =
            (namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default());
        write!(f, "{verb} {resource}.{group} {namespace}/{name}")
    }
}

/// Whether an object binds a role to somebody.
pub fn is_binding(object: &Value) -> bool {
    matches!(object["kind"].as_str(), Some("ClusterRoleBinding" | "RoleBinding"))
}

/// Whether a binding means this one.
pub fn is_for(binding: &Value, who: &Identity) -> bool {
    binding["subjects"].as_array().into_iter().flatten().any(|subject| match subject["kind"].as_str() {
        Some("User") => subject["name"] == *who.user,
        Some("Group") => who.groups.iter().any(|group| subject["name"] == **group),
        _ => false,
    })
}

/// What somebody may do by the roles and bindings among these objects. What two roles give is there once; what one role
/// gives twice is there twice, and so found to be needless.
pub fn granted(objects: &[Value], who: &Identity) -> Vec<Right> {
    let mut rights: Vec<Right> = Vec::new();
    for binding in objects.iter().filter(|object| is_binding(object) && is_for(object, who)) {
        let namespace =
            binding["metadata"]["namespace"].as_str().filter(|_| binding["kind"] == "RoleBinding");
        let bound = objects.iter().filter(|object| {
            object["kind"] == binding["roleRef"]["kind"]
                && object["metadata"]["name"] == binding["roleRef"]["name"]
        });
        for role in bound {
            let rules = role["rules"].as_array().into_iter().flatten();
            let of_role: Vec<Right> = rules.flat_map(|rule| Right::of_rule(rule, namespace)).collect();
            let before = rights.clone();
            rights.extend(of_role.into_iter().filter(|right| !before.contains(right)));
        }
    }
    rights
}

/// The requests that an API server judges for a call: the call itself, and who makes an object that its owner waits for
/// must be able to change the finalizers of the owner, where `OwnerReferencesPermissionEnforcement` is on.
pub fn requests(call: &Call) -> Vec<Request> {
    let verb = match call.verb {
        Verb::Delete if call.name.is_none() => "deletecollection".to_owned(),
        verb => format!("{verb:?}").to_lowercase(),
    };
    let itself = Request {
        group: call.group.clone(),
        resource: call.resource.clone(),
        verb,
        namespace: call.namespace.clone(),
        name: call.name.clone(),
    };
    let of_owner = call.owners.iter().map(|owner| Request {
        group: owner.group.clone(),
        // Regular in all kinds of ours that own something.
        resource: format!("{}s/finalizers", owner.kind.to_lowercase()),
        verb: "update".to_owned(),
        namespace: call.namespace.clone(),
        name: Some(owner.name.clone()),
    });
    [itself].into_iter().chain(of_owner).collect()
}

/// Holds requests against rights, with all of them and with each of them taken away.
pub fn audit(rights: &[Right], requests: &BTreeSet<Request>) -> Audit {
    let without = |taken: Option<usize>, request: &Request| {
        let rest = rights.iter().enumerate().filter(|(at, _)| Some(*at) != taken);
        !rest.into_iter().any(|(_, right)| right.permits(request))
    };
    let forbidden: BTreeSet<Request> =
        requests.iter().filter(|request| without(None, request)).cloned().collect();
    let needless = rights.iter().enumerate().filter(|(at, _)| {
        !requests.iter().any(|request| without(Some(*at), request) && !forbidden.contains(request))
    });
    Audit { needless: needless.map(|(_, right)| right.clone()).collect(), forbidden }
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

    fn me() -> Identity {
        Identity { user: "me".to_owned(), groups: vec!["us".to_owned()] }
    }

    fn mk_request(verb: &str, resource: &str, name: Option<&str>) -> Request {
        Request {
            group: "g".to_owned(),
            resource: resource.to_owned(),
            verb: verb.to_owned(),
            namespace: Some("shop".to_owned()),
            name: name.map(str::to_owned),
        }
    }

    fn words(rights: &[Right]) -> Vec<String> {
        rights.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_right_that_no_request_needs_is_found_and_so_is_a_request_that_no_right_permits() {
        let rules = json!([{"apiGroups": ["g"], "resources": ["a", "b"], "verbs": ["get", "list"]}]);
        let rights = granted(&mk_objects(rules), &me());
        assert_eq!(words(&rights), ["get a.g", "list a.g", "get b.g", "list b.g"]);
        let made = ["a", "b"].map(|resource| mk_request("get", resource, Some("x")));
        let made = BTreeSet::from_iter(
            made.into_iter().chain([mk_request("list", "a", None), mk_request("delete", "a", None)]),
        );
        let audit = audit(&rights, &made);
        assert_eq!(words(&audit.needless), ["list b.g"]);
        assert_eq!(audit.forbidden, BTreeSet::from([mk_request("delete", "a", None)]));
    }

    #[test]
    fn a_right_that_one_role_gives_twice_is_needless_and_one_that_two_roles_give_is_not() {
        let rule = json!({"apiGroups": ["g"], "resources": ["a"], "verbs": ["get"]});
        let made = BTreeSet::from([mk_request("get", "a", Some("x"))]);
        let twice = mk_objects(json!([rule, rule]));
        assert_eq!(audit(&granted(&twice, &me()), &made).needless.len(), 2);
        let mut two = mk_objects(json!([rule]));
        two.push(json!({"kind": "ClusterRole", "metadata": {"name": "two"}, "rules": [rule]}));
        two.push(json!({"kind": "ClusterRoleBinding", "metadata": {"name": "two"},
            "roleRef": {"kind": "ClusterRole", "name": "two"}, "subjects": [{"kind": "Group", "name": "us"}]}));
        assert_eq!(audit(&granted(&two, &me()), &made), Audit::default());
    }

    #[test]
    fn names_and_namespaces_bound_a_right() {
        let mut objects = mk_objects(
            json!([{"apiGroups": ["g"], "resources": ["a"], "resourceNames": ["x"], "verbs": ["get", "create"]}]),
        );
        let rights = granted(&objects, &me());
        assert!(rights[0].permits(&mk_request("get", "a", Some("x"))));
        assert!(!rights[0].permits(&mk_request("get", "a", Some("y"))));
        assert!(!rights[1].permits(&mk_request("create", "a", None)), "a new object has no name yet");
        objects[1]["kind"] = json!("RoleBinding");
        objects[1]["metadata"]["namespace"] = json!("elsewhere");
        assert!(!granted(&objects, &me())[0].permits(&mk_request("get", "a", Some("x"))));
    }

    #[test]
    fn somebody_else_has_none_of_it() {
        let objects = mk_objects(json!([{"apiGroups": ["g"], "resources": ["a"], "verbs": ["get"]}]));
        let other = Identity { user: "other".to_owned(), groups: vec!["me".to_owned()] };
        assert_eq!(granted(&objects, &other), []);
    }
}
