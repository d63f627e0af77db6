//! What the federation sees and holds while it runs. Everything here can be rebuilt from the hub and the members: a
//! restart loses nothing but a few digests that save writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use polis_api::karmada::Cluster;
use polis_api::kube::Client;
use polis_api::{annotations, conditions, labels};
use serde::Deserialize;
use serde_json::Value;

use crate::controllers::{Outlook, is_follower};
use crate::error::Error;
use crate::interpreter::{Interpreter, Target};
use crate::matching::Policy;
use crate::member::Member;
use crate::object::{self, Identity};
use crate::placement::Candidate;
use crate::planes::{Api, Change, Kind, Mirror};
use crate::queue::Queue;
use crate::retain::Written;

/// Kinds that the federation itself is made of.
pub(crate) mod kinds {
    use crate::planes::Kind;

    pub(crate) const CLUSTER: Kind = Kind::known("cluster.karmada.io/v1alpha1", "Cluster", "clusters", false);
    pub(crate) const POLICY: Kind =
        Kind::known("policy.karmada.io/v1alpha1", "PropagationPolicy", "propagationpolicies", true);
    pub(crate) const CLUSTER_POLICY: Kind = Kind::known(
        "policy.karmada.io/v1alpha1",
        "ClusterPropagationPolicy",
        "clusterpropagationpolicies",
        false,
    );
    pub(crate) const BINDING: Kind =
        Kind::known("work.karmada.io/v1alpha2", "ResourceBinding", "resourcebindings", true);
    pub(crate) const CLUSTER_BINDING: Kind =
        Kind::known("work.karmada.io/v1alpha2", "ClusterResourceBinding", "clusterresourcebindings", false);
    pub(crate) const WORK: Kind = Kind::known("work.karmada.io/v1alpha1", "Work", "works", true);
    pub(crate) const INTERPRETER: Kind = Kind::known(
        "config.karmada.io/v1alpha1",
        "ResourceInterpreterCustomization",
        "resourceinterpretercustomizations",
        false,
    );
    pub(crate) const NAMESPACE: Kind = Kind::known("v1", "Namespace", "namespaces", false);
    pub(crate) const SECRET: Kind = Kind::known("v1", "Secret", "secrets", true);
    pub(crate) const EVENT: Kind = Kind::known("v1", "Event", "events", true);
    pub(crate) const CRD: Kind = Kind::known(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        false,
    );
    /// What a hub must serve before a federation can see it as a whole.
    pub(crate) const OF_A_HUB: [Kind; 7] =
        [CLUSTER, POLICY, CLUSTER_POLICY, BINDING, CLUSTER_BINDING, WORK, INTERPRETER];
}

/// A piece of work.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// The customizations as a whole.
    Interpreters,
    /// A member.
    Cluster(String),
    /// A kind that a policy or binding names.
    Kind(Target),
    /// A policy; of a namespace, or of the whole hub.
    Policy(Option<String>, String),
    /// A namespace, on every member.
    Namespace(String),
    /// Every namespace, on one member.
    NamespacesOn(String),
    /// An object that may be propagated.
    Template(Identity),
    /// A binding; of a namespace, or of the whole hub.
    Binding(Option<String>, String),
    /// The clusters that a binding names, after one of them has changed; of a namespace, or of the whole hub.
    Placement(Option<String>, String),
    /// What a binding says about its copies; of a namespace, or of the whole hub.
    Status(Option<String>, String),
    /// A Work: member and name.
    Work(String, String),
}

/// What may be set from outside.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) probe_every: Duration,
    pub(crate) failure_threshold: Duration,
    pub(crate) clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    pub(crate) ids: Arc<dyn Fn() -> String + Send + Sync>,
    /// Members that are reached in another way than by their Cluster's endpoint and Secret.
    pub(crate) given: BTreeMap<String, Client>,
}

/// The hub: its API and the mirrors of what the federation is made of.
pub(crate) struct Hub {
    pub(crate) api: Api,
    pub(crate) clusters: Mirror,
    pub(crate) policies: Mirror,
    pub(crate) cluster_policies: Mirror,
    pub(crate) bindings: Mirror,
    pub(crate) cluster_bindings: Mirror,
    pub(crate) works: Mirror,
    pub(crate) interpreters: Mirror,
    pub(crate) namespaces: Mirror,
    /// Nothing depends on it but the speed with which a new kind is noticed; it may never sync.
    pub(crate) _definitions: Mirror,
    /// Objects that are propagated, by kind.
    pub(crate) templates: RwLock<BTreeMap<Target, Mirror>>,
}

/// What is known about a cluster, decoded once per change.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClusterFacts {
    pub(crate) candidate: Arc<Candidate>,
    pub(crate) ready: bool,
}

/// All policies, found by the kinds that they speak of.
#[derive(Default)]
pub(crate) struct Policies {
    all: BTreeMap<(Option<String>, String), Arc<Policy>>,
    by_kind: BTreeMap<(Target, Option<String>), BTreeSet<String>>,
}

impl Policies {
    pub(crate) fn put(&mut self, policy: Policy) {
        self.remove(policy.namespace.as_deref(), &policy.name);
        for selector in &policy.spec.resource_selectors {
            let target = Target { api_version: selector.api_version.clone(), kind: selector.kind.clone() };
            self.by_kind.entry((target, policy.namespace.clone())).or_default().insert(policy.name.clone());
        }
        self.all.insert((policy.namespace.clone(), policy.name.clone()), Arc::new(policy));
    }

    pub(crate) fn remove(&mut self, namespace: Option<&str>, name: &str) {
        let Some(old) = self.all.remove(&(namespace.map(str::to_owned), name.to_owned())) else { return };
        for selector in &old.spec.resource_selectors {
            let target = Target { api_version: selector.api_version.clone(), kind: selector.kind.clone() };
            let place = (target, old.namespace.clone());
            if let Some(names) = self.by_kind.get_mut(&place) {
                names.remove(name);
                if names.is_empty() {
                    self.by_kind.remove(&place);
                }
            }
        }
    }

    pub(crate) fn get(&self, namespace: Option<&str>, name: &str) -> Option<Arc<Policy>> {
        self.all.get(&(namespace.map(str::to_owned), name.to_owned())).cloned()
    }

    /// Every kind that a policy speaks of.
    pub(crate) fn targets(&self) -> BTreeSet<Target> {
        self.by_kind.keys().map(|(target, _)| target.clone()).collect()
    }

    /// The policies that may concern an object: those that speak of its kind.
    pub(crate) fn about(&self, template: &Value) -> Vec<Arc<Policy>> {
        let target = Target::of(template);
        let namespace = object::meta(template, "namespace");
        let mut found = Vec::new();
        for of in [Some(namespace.to_owned()), None] {
            let names = self.by_kind.get(&(target.clone(), of.clone()));
            found.extend(
                names
                    .into_iter()
                    .flatten()
                    .filter_map(|name| self.all.get(&(of.clone(), name.clone())).cloned()),
            );
        }
        found
    }
}

/// Names by namespace.
pub(crate) type Names = BTreeMap<String, BTreeSet<String>>;

/// Puts a name into a list or takes it out.
fn note(list: &RwLock<Names>, namespace: &str, name: &str, is_in: bool) {
    let mut list = list.write();
    if is_in {
        list.entry(namespace.to_owned()).or_default().insert(name.to_owned());
    } else if let Some(names) = list.get_mut(namespace) {
        names.remove(name);
        if names.is_empty() {
            list.remove(namespace);
        }
    }
}

/// Everything.
pub(crate) struct World {
    pub(crate) me: Weak<World>,
    pub(crate) settings: Settings,
    pub(crate) hub: Hub,
    pub(crate) members: RwLock<BTreeMap<String, Arc<Member>>>,
    pub(crate) clusters: RwLock<BTreeMap<String, Arc<ClusterFacts>>>,
    pub(crate) policies: RwLock<Policies>,
    pub(crate) interpreter: RwLock<Interpreter>,
    /// Works by the permanent id of their binding, as (namespace, name).
    pub(crate) works_of: RwLock<BTreeMap<String, BTreeSet<(String, String)>>>,
    /// What was last written to members, by member and Work.
    pub(crate) written: Mutex<BTreeMap<(String, String), Written>>,
    /// How often a hand edit was undone lately, by member and Work.
    pub(crate) fights: Mutex<BTreeMap<(String, String), crate::controllers::Fight>>,
    /// Kinds that no policy names but something that is propagated needs.
    pub(crate) needed_kinds: RwLock<BTreeSet<Target>>,
    /// Bindings that take what they need along, by namespace.
    pub(crate) leaders: RwLock<Names>,
    /// Bindings that go along with others, by namespace.
    pub(crate) followers: RwLock<Names>,
    /// What the last look at a binding came to, for those who tell of it; by namespace and name.
    pub(crate) outlooks: Mutex<BTreeMap<(String, String), Outlook>>,
    pub(crate) told: Mutex<BTreeSet<String>>,
    pub(crate) queue: Queue<Key>,
}

impl World {
    pub(crate) fn new(hub: Client, settings: Settings, interpreter: Interpreter) -> Arc<Self> {
        let api = Api::new("the hub", hub);
        Arc::new_cyclic(|me: &Weak<World>| {
            let mirror = |kind: Kind| Self::hub_mirror(me, &api, kind);
            World {
                me: me.clone(),
                settings,
                hub: Hub {
                    clusters: mirror(kinds::CLUSTER),
                    policies: mirror(kinds::POLICY),
                    cluster_policies: mirror(kinds::CLUSTER_POLICY),
                    bindings: mirror(kinds::BINDING),
                    cluster_bindings: mirror(kinds::CLUSTER_BINDING),
                    works: mirror(kinds::WORK),
                    interpreters: mirror(kinds::INTERPRETER),
                    namespaces: mirror(kinds::NAMESPACE),
                    _definitions: Self::definitions(me, &api),
                    templates: RwLock::default(),
                    api: api.clone(),
                },
                members: RwLock::default(),
                clusters: RwLock::default(),
                policies: RwLock::default(),
                interpreter: RwLock::new(interpreter),
                works_of: RwLock::default(),
                written: Mutex::default(),
                fights: Mutex::default(),
                needed_kinds: RwLock::default(),
                leaders: RwLock::default(),
                followers: RwLock::default(),
                outlooks: Mutex::default(),
                told: Mutex::default(),
                queue: Queue::new(),
            }
        })
    }

    fn hub_mirror(me: &Weak<World>, api: &Api, kind: Kind) -> Mirror {
        let me = me.clone();
        let sink = Arc::new(move |kind: &Kind, change: Change| {
            if let Some(world) = me.upgrade() {
                world.hub_changed(kind, &change);
            }
        });
        Mirror::start(api.clone(), kind, sink)
    }

    /// Definitions tell when the hub serves other kinds.
    fn definitions(me: &Weak<World>, api: &Api) -> Mirror {
        let me = me.clone();
        Mirror::told(api, kinds::CRD, move || {
            if let Some(world) = me.upgrade() {
                world.definition_changed();
            }
        })
    }

    /// Waits until the hub is seen as a whole, then looks at everything once. Nothing is decided before: what the mirrors
    /// saw while the world was being made reached nobody.
    pub(crate) async fn open(&self) {
        let hub = &self.hub;
        let mirrors = [
            &hub.clusters,
            &hub.policies,
            &hub.cluster_policies,
            &hub.bindings,
            &hub.cluster_bindings,
            &hub.works,
            &hub.interpreters,
            &hub.namespaces,
        ];
        for mirror in mirrors {
            mirror.synced().await;
        }
        for mirror in mirrors {
            for object in mirror.all() {
                self.hub_changed(mirror.kind(), &Change { before: None, after: Some(object) });
            }
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.settings.clock)()
    }

    pub(crate) fn new_id(&self) -> String {
        (self.settings.ids)()
    }

    /// The mirror of a propagated kind, if one was begun.
    pub(crate) fn templates(&self, target: &Target) -> Option<Mirror> {
        self.hub.templates.read().get(target).cloned()
    }

    /// Begins to mirror a propagated kind.
    pub(crate) fn mirror_templates(&self, kind: &Kind) -> Mirror {
        let mut templates = self.hub.templates.write();
        templates
            .entry(kind.target())
            .or_insert_with(|| Self::hub_mirror(&self.me, &self.hub.api, kind.clone()))
            .clone()
    }

    /// A propagated object: from the mirror, or asked for while the mirror is not complete.
    pub(crate) async fn template(&self, identity: &Identity) -> Result<Option<Arc<Value>>, Error> {
        let target = Target { api_version: identity.api_version.clone(), kind: identity.kind.clone() };
        let Some(mirror) = self.templates(&target) else { return Err(Error::UnknownKind(target)) };
        if mirror.is_synced() {
            return Ok(mirror.get(&identity.namespace, &identity.name));
        }
        Ok(self.hub.api.get(mirror.kind(), &identity.namespace, &identity.name).await?.map(Arc::new))
    }

    /// The mirror of bindings of a namespace, or of the whole hub.
    pub(crate) fn bindings(&self, namespace: Option<&str>) -> &Mirror {
        if namespace.is_some() { &self.hub.bindings } else { &self.hub.cluster_bindings }
    }

    pub(crate) fn member(&self, cluster: &str) -> Option<Arc<Member>> {
        self.members.read().get(cluster).cloned()
    }

    pub(crate) fn cluster(&self, name: &str) -> Option<Arc<ClusterFacts>> {
        self.clusters.read().get(name).cloned()
    }

    pub(crate) fn candidates(&self) -> Vec<Arc<Candidate>> {
        self.clusters.read().values().map(|facts| facts.candidate.clone()).collect()
    }

    pub(crate) fn interpreter(&self) -> Interpreter {
        self.interpreter.read().clone()
    }

    /// The Works of a binding.
    pub(crate) fn works_of(&self, binding_id: &str) -> Vec<Arc<Value>> {
        let works_of = self.works_of.read();
        let places = works_of.get(binding_id).into_iter().flatten();
        places.filter_map(|(namespace, name)| self.hub.works.get(namespace, name)).collect()
    }

    pub(crate) fn note_cluster(
        &self,
        change: &Change,
    ) -> (Option<Arc<ClusterFacts>>, Option<Arc<ClusterFacts>>) {
        let name = change.object().map(|object| object::meta(object, "name").to_owned()).unwrap_or_default();
        let facts =
            change.after.as_ref().and_then(|after| Cluster::deserialize(&**after).ok()).map(|cluster| {
                let told =
                    cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
                let ready = crate::conditions::status(told, conditions::READY) == Some("True");
                Arc::new(ClusterFacts { candidate: Arc::new(Candidate::from(&cluster)), ready })
            });
        let mut clusters = self.clusters.write();
        let before = match &facts {
            Some(facts) => clusters.insert(name, facts.clone()),
            None => clusters.remove(&name),
        };
        (before, facts)
    }

    pub(crate) fn note_binding(&self, change: &Change) {
        let Some(binding) = change.object() else { return };
        let (namespace, name) = (object::meta(binding, "namespace"), object::meta(binding, "name"));
        let after = change.after.as_deref();
        let leads = after.is_some_and(|after| after["spec"]["propagateDeps"] == true);
        note(&self.leaders, namespace, name, leads);
        note(&self.followers, namespace, name, after.is_some_and(is_follower));
        if after.is_none() {
            self.outlooks.lock().remove(&(namespace.to_owned(), name.to_owned()));
        }
    }

    /// Bindings of a namespace that go along with others.
    pub(crate) fn followers(&self, namespace: &str) -> Vec<Arc<Value>> {
        let followers = self.followers.read();
        let names = followers.get(namespace).into_iter().flatten();
        names.filter_map(|name| self.hub.bindings.get(namespace, name)).collect()
    }

    pub(crate) fn note_work(&self, change: &Change) {
        let id = |work: &Value| {
            let id = [labels::karmada::BINDING_ID, labels::karmada::CLUSTER_BINDING_ID]
                .map(|key| object::label(work, key).to_owned());
            id.into_iter().find(|id| !id.is_empty())
        };
        let place = |work: &Value| {
            (object::meta(work, "namespace").to_owned(), object::meta(work, "name").to_owned())
        };
        let mut works_of = self.works_of.write();
        if let Some(before) = &change.before
            && let Some(id) = id(before)
        {
            let places = works_of.entry(id.clone()).or_default();
            places.remove(&place(before));
            if places.is_empty() {
                works_of.remove(&id);
            }
        }
        if let Some(after) = &change.after
            && let Some(id) = id(after)
        {
            works_of.entry(id).or_default().insert(place(after));
        }
    }

    /// The binding that a Work or member object says it belongs to.
    pub(crate) fn binding_of(object: &Value) -> Option<Key> {
        let name = object::annotation(object, annotations::karmada::BINDING_NAME);
        if !name.is_empty() {
            let namespace = object::annotation(object, annotations::karmada::BINDING_NAMESPACE);
            return Some(Key::Binding(Some(namespace.to_owned()), name.to_owned()));
        }
        let name = object::annotation(object, annotations::karmada::CLUSTER_BINDING_NAME);
        (!name.is_empty()).then(|| Key::Binding(None, name.to_owned()))
    }
}
