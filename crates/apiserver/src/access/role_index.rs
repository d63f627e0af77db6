//! The roles and bindings of one plane, compiled and indexed by subject.
//!
//! A lookup first applies the writes since the last one, from the history of the store. So an object is
//! decoded once per write, not once per request, and a request sees every role and binding that is visible in
//! the store. The cost of a lookup is proportional to the bindings of the user and its groups; bindings of
//! other subjects and namespaces cost nothing.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use parking_lot::{RwLock, RwLockReadGuard};
use serde_json::Value;

use super::rbac::{Rule, rules};
use crate::{
    store::{ChangeType, Collection, RangeOptions, Revision, Stored, View},
    user::UserInfo,
};

/// The kinds of the index, in the order of [`RoleIndex::collections`].
const KINDS: [Kind; 4] = [Kind::ClusterRole, Kind::Role, Kind::ClusterRoleBinding, Kind::RoleBinding];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    ClusterRole,
    Role,
    ClusterRoleBinding,
    RoleBinding,
}

/// An index of the roles and bindings of one plane, kept up to date by the history of the store.
pub(crate) struct RoleIndex {
    collections: [Collection; 4],
    compiled: RwLock<Compiled>,
}

/// The compiled roles and bindings.
#[derive(Default)]
struct Compiled {
    /// The revision up to which each collection is compiled.
    seen: [Revision; 4],
    /// By name.
    cluster_roles: HashMap<Arc<str>, Role>,
    /// By `namespace/name`.
    roles: HashMap<Arc<str>, Role>,
    /// By `name` for cluster role bindings and `namespace/name` for role bindings. Names contain no slash.
    bindings: HashMap<Arc<str>, Binding>,
    /// The subjects of all bindings, by namespace; those of cluster role bindings are under the empty one.
    subjects: HashMap<Box<str>, Subjects>,
    #[cfg(test)]
    decodes: usize,
}

struct Role {
    revision: Revision,
    rules: Arc<[Rule]>,
}

struct Binding {
    revision: Revision,
    role: RoleReference,
    subjects: Vec<Subject>,
}

/// The role that a binding grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RoleReference {
    /// Name of a ClusterRole.
    ClusterRole(String),
    /// `namespace/name` of a Role.
    Role(String),
    /// A kind that validation refuses; it grants nothing.
    Unknown,
}

impl RoleReference {
    /// The role that a binding in `namespace` (empty: a cluster role binding) refers to.
    pub(crate) fn of(binding: &Value, namespace: &str) -> Self {
        let text = |field: &str| binding["roleRef"][field].as_str().unwrap_or_default();
        match text("kind") {
            "ClusterRole" => Self::ClusterRole(text("name").to_owned()),
            "Role" if !namespace.is_empty() => Self::Role(format!("{namespace}/{}", text("name"))),
            _ => Self::Unknown,
        }
    }
}

/// A subject of a binding. A service account is the user of that name.
enum Subject {
    User(Arc<str>),
    Group(Arc<str>),
}

impl Subject {
    /// The subject in a binding of `namespace`; `None` if it matches no user.
    fn of(subject: &Value, namespace: &str) -> Option<Self> {
        let text = |field: &str| subject[field].as_str().unwrap_or_default();
        match text("kind") {
            "User" => Some(Self::User(text("name").into())),
            "Group" => Some(Self::Group(text("name").into())),
            "ServiceAccount" => {
                let namespace = Some(text("namespace")).filter(|own| !own.is_empty()).unwrap_or(namespace);
                (!namespace.is_empty())
                    .then(|| Self::User(format!("system:serviceaccount:{namespace}:{}", text("name")).into()))
            }
            _ => None,
        }
    }
}

/// The paths of bindings, by the name of a user or group.
type Paths = HashMap<Arc<str>, BTreeSet<Arc<str>>>;

/// The bindings of each subject.
#[derive(Default)]
struct Subjects {
    users: Paths,
    groups: Paths,
}

impl Subjects {
    fn of(&mut self, subject: &Subject) -> (&mut Paths, Arc<str>) {
        match subject {
            Subject::User(name) => (&mut self.users, name.clone()),
            Subject::Group(name) => (&mut self.groups, name.clone()),
        }
    }

    fn insert(&mut self, subject: &Subject, path: &Arc<str>) {
        let (names, name) = self.of(subject);
        names.entry(name).or_default().insert(path.clone());
    }

    fn remove(&mut self, subject: &Subject, path: &Arc<str>) {
        let (names, name) = self.of(subject);
        if let Some(paths) = names.get_mut(&name) {
            paths.remove(path);
            if paths.is_empty() {
                names.remove(&name);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty()
    }
}

/// The namespace of a path; empty for a cluster-scoped object.
fn namespace_of(path: &str) -> &str {
    path.split_once('/').map_or("", |(namespace, _)| namespace)
}

impl RoleIndex {
    pub(crate) fn new(plane: &Arc<str>) -> Self {
        let collection =
            |plural: &str| Collection::new(plane.clone(), format!("{plural}.rbac.authorization.k8s.io"));
        Self {
            collections: ["clusterroles", "roles", "clusterrolebindings", "rolebindings"].map(collection),
            compiled: RwLock::default(),
        }
    }

    /// The rules of the roles that are bound to a user: cluster-wide, and in `namespace` if it is not empty.
    /// Bindings are in the order of their names.
    pub(crate) fn rules_for(&self, view: &View, user: &UserInfo, namespace: &str) -> Vec<Arc<[Rule]>> {
        let compiled = self.up_to_date(view);
        let mut found = compiled.rules_in("", user);
        if !namespace.is_empty() {
            found.extend(compiled.rules_in(namespace, user));
        }
        found
    }

    /// The rules of a role.
    pub(crate) fn role(&self, view: &View, role: &RoleReference) -> Option<Arc<[Rule]>> {
        self.up_to_date(view).role(role)
    }

    /// The compiled objects after all writes that are visible in the store.
    fn up_to_date(&self, view: &View) -> RwLockReadGuard<'_, Compiled> {
        let is_stale = |compiled: &Compiled| {
            self.collections.iter().zip(&compiled.seen).any(|(of, seen)| view.changed_at(of) > *seen)
        };
        let compiled = self.compiled.read();
        if !is_stale(&compiled) {
            return compiled;
        }
        drop(compiled);
        let mut compiled = self.compiled.write();
        for (n, (kind, collection)) in KINDS.into_iter().zip(&self.collections).enumerate() {
            let seen = compiled.seen[n];
            compiled.seen[n] = compiled.catch_up(view, kind, collection, seen);
        }
        parking_lot::RwLockWriteGuard::downgrade(compiled)
    }
}

impl Compiled {
    /// Applies the writes to a collection after `seen`. Returns the revision up to which it is compiled.
    fn catch_up(&mut self, view: &View, kind: Kind, collection: &Collection, seen: Revision) -> Revision {
        if let Ok(events) = view.since(collection, seen) {
            let until = events.last().map_or(seen, |event| event.revision());
            // Only the last write of each object counts.
            let latest: HashMap<_, _> = events.into_iter().map(|event| (event.path.clone(), event)).collect();
            for (path, event) in latest {
                self.set(kind, &path, (event.change == ChangeType::Put).then_some(&event.object));
            }
            return until;
        }
        // The history does not go back that far: compare with all objects. Without a revision to list at, the
        // range cannot fail.
        let Ok(page) = view.range(collection, &RangeOptions::default()) else { return seen };
        let existing: HashSet<&Arc<str>> = page.items.iter().map(|(path, _)| path).collect();
        for path in self.paths(kind).into_iter().filter(|path| !existing.contains(path)) {
            self.set(kind, &path, None);
        }
        for (path, stored) in &page.items {
            if self.revision(kind, path) != Some(stored.revision()) {
                self.set(kind, path, Some(stored));
            }
        }
        page.revision
    }

    fn paths(&self, kind: Kind) -> Vec<Arc<str>> {
        match kind {
            Kind::ClusterRole => self.cluster_roles.keys().cloned().collect(),
            Kind::Role => self.roles.keys().cloned().collect(),
            Kind::ClusterRoleBinding | Kind::RoleBinding => {
                let namespaced = kind == Kind::RoleBinding;
                self.bindings.keys().filter(|path| path.contains('/') == namespaced).cloned().collect()
            }
        }
    }

    fn revision(&self, kind: Kind, path: &str) -> Option<Revision> {
        match kind {
            Kind::ClusterRole => self.cluster_roles.get(path).map(|role| role.revision),
            Kind::Role => self.roles.get(path).map(|role| role.revision),
            Kind::ClusterRoleBinding | Kind::RoleBinding => {
                self.bindings.get(path).map(|binding| binding.revision)
            }
        }
    }

    /// Compiles one object, or removes it.
    fn set(&mut self, kind: Kind, path: &Arc<str>, stored: Option<&Stored>) {
        let stored = stored.map(|stored| {
            #[cfg(test)]
            {
                self.decodes += 1;
            }
            (stored.revision(), stored.value())
        });
        match kind {
            Kind::ClusterRole => set_role(&mut self.cluster_roles, path, stored),
            Kind::Role => set_role(&mut self.roles, path, stored),
            Kind::ClusterRoleBinding | Kind::RoleBinding => self.set_binding(path, stored),
        }
    }

    fn set_binding(&mut self, path: &Arc<str>, stored: Option<(Revision, Value)>) {
        let namespace = namespace_of(path);
        let subjects = self.subjects.entry(namespace.into()).or_default();
        if let Some(old) = self.bindings.remove(path) {
            old.subjects.iter().for_each(|subject| subjects.remove(subject, path));
        }
        if let Some((revision, object)) = stored {
            let listed = object["subjects"].as_array().into_iter().flatten();
            let binding = Binding {
                revision,
                role: RoleReference::of(&object, namespace),
                subjects: listed.filter_map(|subject| Subject::of(subject, namespace)).collect(),
            };
            binding.subjects.iter().for_each(|subject| subjects.insert(subject, path));
            self.bindings.insert(path.clone(), binding);
        }
        if subjects.is_empty() {
            self.subjects.remove(namespace);
        }
    }

    fn role(&self, role: &RoleReference) -> Option<Arc<[Rule]>> {
        match role {
            RoleReference::ClusterRole(name) => self.cluster_roles.get(name.as_str()),
            RoleReference::Role(path) => self.roles.get(path.as_str()),
            RoleReference::Unknown => None,
        }
        .map(|role| role.rules.clone())
    }

    /// The rules that the bindings of a namespace (empty: cluster role bindings) grant to a user.
    fn rules_in(&self, namespace: &str, user: &UserInfo) -> Vec<Arc<[Rule]>> {
        let Some(subjects) = self.subjects.get(namespace) else { return Vec::new() };
        let by_user = subjects.users.get(user.name.as_str());
        let by_group = user.groups.iter().filter_map(|group| subjects.groups.get(group.as_str()));
        let paths: BTreeSet<&Arc<str>> = by_user.into_iter().chain(by_group).flatten().collect();
        paths.iter().filter_map(|path| self.role(&self.bindings.get(*path)?.role)).collect()
    }
}

fn set_role(roles: &mut HashMap<Arc<str>, Role>, path: &Arc<str>, stored: Option<(Revision, Value)>) {
    match stored {
        Some((revision, object)) => {
            roles.insert(path.clone(), Role { revision, rules: rules(&object).into() });
        }
        None => drop(roles.remove(path)),
    }
}

#[cfg(test)]
mod tests {
    use polis_apimachinery::clock::Clock;
    use serde_json::json;

    use super::*;
    use crate::{
        Server,
        access::{Attributes, rbac},
        store::{EncodedObject, HistoryLimits, MemoryStore, Precondition, Write},
    };

    const PLURALS: [&str; 4] = ["clusterroles", "roles", "clusterrolebindings", "rolebindings"];

    async fn put(server: &Server, kind: Kind, path: &str, object: Value) {
        write(server, kind, path, Some(object)).await;
    }

    async fn write(server: &Server, kind: Kind, path: &str, object: Option<Value>) {
        let plural = KINDS.iter().position(|known| *known == kind).map(|n| PLURALS[n]).unwrap();
        let collection = Collection::new("", format!("{plural}.rbac.authorization.k8s.io"));
        let current = server.core.store.view().get(&collection, path);
        let precondition =
            current.map_or(Precondition::Absent, |stored| Precondition::AtRevision(stored.revision()));
        let object = object.as_ref().map(EncodedObject::encode);
        server
            .core
            .store
            .commit(Write { collection, path: path.into(), precondition, object })
            .await
            .unwrap();
    }

    fn mk_role(verb: &str) -> Value {
        json!({"rules": [{"verbs": [verb], "apiGroups": [""], "resources": ["configmaps"]}]})
    }

    fn mk_binding(kind: &str, role: &str, subjects: Value) -> Value {
        json!({"roleRef": {"kind": kind, "name": role}, "subjects": subjects})
    }

    /// The verbs that a user has on config maps in a namespace.
    fn verbs(server: &Server, user: &UserInfo, namespace: &str) -> Vec<String> {
        let plane = server.core.plane("").unwrap();
        let found = plane.roles.rules_for(server.core.store.view(), user, namespace);
        found.iter().flat_map(|rules| rules.iter()).flat_map(|rule| rule.verbs.clone()).collect()
    }

    fn decodes(server: &Server) -> usize {
        server.core.plane("").unwrap().roles.compiled.read().decodes
    }

    fn user(name: &str, groups: &[&str]) -> UserInfo {
        UserInfo::new(name, groups.iter().copied())
    }

    #[tokio::test]
    async fn large_bindings_of_a_tenant_are_decoded_once_and_never_for_the_request_of_another_user() {
        let server = Server::builder().build().await.unwrap();
        let name = "x".repeat(1000);
        let subjects: Vec<Value> =
            (0..1000).map(|n| json!({"kind": "User", "name": format!("{name}-{n}")})).collect();
        let large = mk_binding("Role", "r", json!(subjects));
        assert!(large.to_string().len() > 1_000_000);
        for n in 0..60 {
            put(&server, Kind::RoleBinding, &format!("tenant/b-{n}"), large.clone()).await;
        }
        let attributes =
            Attributes { verb: "get".into(), namespace: "tenant".into(), ..Attributes::default() };
        let anonymous = |server: &Server| {
            let plane = server.core.plane("").unwrap();
            rbac::allows(&server.core, &plane, &UserInfo::anonymous(), &attributes)
        };
        assert!(!anonymous(&server));
        assert_eq!(decodes(&server), 60, "each is decoded once, after it was written");
        for _ in 0..100 {
            assert!(!anonymous(&server));
        }
        assert_eq!(decodes(&server), 60, "a request decodes no binding");
        put(&server, Kind::RoleBinding, "tenant/b-0", large).await;
        assert!(!anonymous(&server));
        assert_eq!(decodes(&server), 61, "a write costs the decoding of one object");
    }

    #[tokio::test]
    async fn rules_follow_every_write_of_roles_and_bindings() {
        let server = Server::builder().build().await.unwrap();
        let ann = user("ann", &["dev"]);
        put(&server, Kind::ClusterRole, "reader", mk_role("get")).await;
        put(
            &server,
            Kind::ClusterRoleBinding,
            "b",
            mk_binding("ClusterRole", "reader", json!([{"kind": "Group", "name": "dev"}])),
        )
        .await;
        assert_eq!(verbs(&server, &ann, ""), ["get"]);
        put(&server, Kind::ClusterRole, "reader", mk_role("list")).await;
        assert_eq!(verbs(&server, &ann, "a"), ["list"]);
        put(&server, Kind::Role, "a/writer", mk_role("update")).await;
        put(
            &server,
            Kind::RoleBinding,
            "a/b",
            mk_binding(
                "Role",
                "writer",
                json!([{"kind": "User", "name": "ann"}, {"kind": "Group", "name": "dev"}]),
            ),
        )
        .await;
        assert_eq!(verbs(&server, &ann, "a"), ["list", "update"]);
        assert_eq!(verbs(&server, &ann, "b"), ["list"], "a role binding applies to its namespace");
        put(
            &server,
            Kind::RoleBinding,
            "a/b",
            mk_binding("Role", "writer", json!([{"kind": "User", "name": "bob"}])),
        )
        .await;
        assert_eq!(verbs(&server, &ann, "a"), ["list"]);
        write(&server, Kind::ClusterRoleBinding, "b", None).await;
        assert_eq!(verbs(&server, &ann, "a"), Vec::<String>::new());
        assert_eq!(verbs(&server, &user("bob", &[]), "a"), ["update"]);
        write(&server, Kind::Role, "a/writer", None).await;
        assert_eq!(verbs(&server, &user("bob", &[]), "a"), Vec::<String>::new());
        let plane = server.core.plane("").unwrap();
        assert_eq!(
            plane.roles.compiled.read().subjects.len(),
            1,
            "subjects of removed bindings are forgotten"
        );
    }

    #[tokio::test]
    async fn subjects_match_as_in_kubernetes() {
        let server = Server::builder().build().await.unwrap();
        put(&server, Kind::ClusterRole, "reader", mk_role("get")).await;
        for (subject, name, groups, cluster, namespaced) in [
            (json!({"kind": "User", "name": "*"}), "ann", ["dev"], false, false),
            (json!({"kind": "User", "name": "ann"}), "ann", ["dev"], true, true),
            (json!({"kind": "Group", "name": "*"}), "ann", ["dev"], false, false),
            (json!({"kind": "Group", "name": "system:authenticated"}), "ann", ["dev"], true, true),
            (json!({"kind": "ServiceAccount", "name": "x"}), "system:serviceaccount:a:x", ["g"], false, true),
            (
                json!({"kind": "ServiceAccount", "name": "x", "namespace": "b"}),
                "system:serviceaccount:b:x",
                ["g"],
                true,
                true,
            ),
            (
                json!({"kind": "ServiceAccount", "name": "x", "namespace": "b"}),
                "system:serviceaccount:a:x",
                ["g"],
                false,
                false,
            ),
            (json!({"kind": "ServiceAccount", "name": ""}), "system:serviceaccount::", ["g"], false, false),
        ] {
            let binding = mk_binding("ClusterRole", "reader", json!([subject]));
            for (kind, path, granted) in
                [(Kind::ClusterRoleBinding, "b", cluster), (Kind::RoleBinding, "a/b", namespaced)]
            {
                put(&server, kind, path, binding.clone()).await;
                let found = verbs(&server, &user(name, &groups), "a");
                assert_eq!(!found.is_empty(), granted, "{path} {subject} {name}");
                write(&server, kind, path, None).await;
            }
        }
    }

    #[tokio::test]
    async fn a_cluster_role_reference_cannot_name_a_role_of_another_namespace() {
        let server = Server::builder().build().await.unwrap();
        put(&server, Kind::Role, "theirs/all", mk_role("*")).await;
        let ann = json!([{"kind": "User", "name": "ann"}]);
        for (kind, name) in [("ClusterRole", "theirs/all"), ("Role", "../theirs/all"), ("Other", "all")] {
            put(&server, Kind::RoleBinding, "mine/b", mk_binding(kind, name, ann.clone())).await;
            assert_eq!(verbs(&server, &user("ann", &[]), "mine"), Vec::<String>::new(), "{kind} {name}");
        }
    }

    #[tokio::test]
    async fn an_index_behind_the_history_decodes_only_what_changed() {
        let history = HistoryLimits { count: 4, ..HistoryLimits::default() };
        let server = Server::builder()
            .store(Arc::new(MemoryStore::new(history, Clock::system())))
            .build()
            .await
            .unwrap();
        let ann = json!([{"kind": "User", "name": "ann"}]);
        put(&server, Kind::ClusterRole, "reader", mk_role("get")).await;
        for n in 0..10 {
            put(
                &server,
                Kind::ClusterRoleBinding,
                &format!("b-{n}"),
                mk_binding("ClusterRole", "reader", ann.clone()),
            )
            .await;
        }
        assert_eq!(verbs(&server, &user("ann", &[]), "").len(), 10);
        let before = decodes(&server);
        write(&server, Kind::ClusterRoleBinding, "b-0", None).await;
        for _ in 0..6 {
            put(&server, Kind::ClusterRoleBinding, "b-1", mk_binding("ClusterRole", "reader", json!([])))
                .await;
        }
        assert_eq!(verbs(&server, &user("ann", &[]), "").len(), 8);
        assert_eq!(decodes(&server), before + 1);
    }

    #[tokio::test]
    async fn a_random_sequence_of_writes_leaves_the_index_of_a_fresh_start() {
        use rand::{Rng, SeedableRng};
        let server = Server::builder().build().await.unwrap();
        let mut random = rand::rngs::StdRng::seed_from_u64(7);
        let names = ["a", "b", "c"];
        for _ in 0..400 {
            let mut any = |of: &[&'static str]| of[random.next_u32() as usize % of.len()];
            let (namespace, name, role, subject) = (any(&names), any(&names), any(&names), any(&names));
            let verb = any(&["get", "list", "watch"]);
            let (kind, path, object) = match any(&["cr", "r", "crb", "rb"]) {
                "cr" => (Kind::ClusterRole, name.to_owned(), mk_role(verb)),
                "r" => (Kind::Role, format!("{namespace}/{name}"), mk_role(verb)),
                "crb" => (
                    Kind::ClusterRoleBinding,
                    name.to_owned(),
                    mk_binding("ClusterRole", role, json!([{"kind": "User", "name": subject}])),
                ),
                _ => (
                    Kind::RoleBinding,
                    format!("{namespace}/{name}"),
                    mk_binding(
                        any(&["Role", "ClusterRole"]),
                        role,
                        json!([{"kind": "Group", "name": subject}, {"kind": "ServiceAccount", "name": subject}]),
                    ),
                ),
            };
            let kept = any(&["put", "put", "delete"]) == "put";
            let collection = Collection::new(
                "",
                format!(
                    "{}.rbac.authorization.k8s.io",
                    PLURALS[KINDS.iter().position(|k| *k == kind).unwrap()]
                ),
            );
            if kept || server.core.store.view().get(&collection, &path).is_some() {
                write(&server, kind, &path, kept.then_some(object)).await;
            }
            let fresh = RoleIndex::new(&"".into());
            let plane = server.core.plane("").unwrap();
            for user in [user("a", &[]), user("b", &["a", "c"]), user("system:serviceaccount:a:b", &["c"])] {
                for namespace in ["", "a", "b"] {
                    let view = server.core.store.view();
                    assert_eq!(
                        plane.roles.rules_for(view, &user, namespace),
                        fresh.rules_for(view, &user, namespace)
                    );
                }
            }
        }
    }
}
