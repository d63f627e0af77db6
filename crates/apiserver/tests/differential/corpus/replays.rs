//! The scripts of every kind again, as users with few rights: they compare authorization request by request.

use serde_json::{Value, json};

use super::{opening, topics};
use crate::script::{Script, post};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// A user with the same verbs for every resource in the namespaces of its scripts, and no other rights.
pub struct ReplayUser {
    pub name: &'static str,
    /// Begins the names of its namespaces, role and scripts.
    pub prefix: &'static str,
    verbs: &'static [&'static str],
}

/// The users of the replays. None may `escalate` or `bind`.
pub const USERS: [ReplayUser; 3] = [
    ReplayUser {
        name: "namespaced",
        prefix: "n",
        verbs: &["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"],
    },
    ReplayUser { name: "patch-only", prefix: "p", verbs: &["get", "patch"] },
    ReplayUser { name: "system:anonymous", prefix: "a", verbs: &[] },
];

impl ReplayUser {
    /// The scripts, as this user.
    pub fn scripts(&self) -> Vec<Script> {
        let named = |script: Script| {
            let name = format!("as-{}-{}", self.name.trim_start_matches("system:"), script.name);
            Script::new(name, script.steps).by(self.name)
        };
        topics(self.prefix).into_iter().map(|(_, script)| named(script)).collect()
    }

    /// Creates the namespaces, and the rights of the user there, as the administrator.
    pub fn rights(&self) -> Script {
        let rules = json!([{"verbs": self.verbs, "apiGroups": ["*"], "resources": ["*"]}]);
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": self.role()}, "rules": rules});
        let mut steps = Vec::new();
        if !self.verbs.is_empty() {
            steps.push(post(format!("{RBAC}/clusterroles"), &role));
        }
        for (namespace, _) in topics(self.prefix) {
            steps.extend(opening(&namespace));
            if !self.verbs.is_empty() {
                steps.push(post(format!("{RBAC}/namespaces/{namespace}/rolebindings"), &self.binding()));
            }
        }
        Script::new(format!("rights-of-{}", self.name), steps)
    }

    /// The review whose result tells that a server has seen all rights; `None` for a user without rights.
    pub fn review(&self) -> Option<Value> {
        let (namespace, _) = topics(self.prefix).pop()?;
        let attributes =
            json!({"namespace": namespace, "verb": self.verbs.last()?, "resource": "configmaps"});
        Some(
            json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {"user": self.name, "resourceAttributes": attributes}}),
        )
    }

    fn role(&self) -> String {
        format!("replay-{}", self.prefix)
    }

    fn binding(&self) -> Value {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "replay"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": self.role()},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": self.name}]})
    }
}
