//! State shared by the controllers: informers, indexes and the work queue.
//!
//! All of it is rebuilt from the hub and the members. A restart loses only the digests of the last applied
//! manifests, which save writes.

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

use crate::controllers::{CachedStatus, is_attached};
use crate::error::Error;
use crate::interpreter::{Interpreter, TypeMeta};
use crate::matching::AnyPolicy;
use crate::member::Member;
use crate::object::{self, ObjectKey};
use crate::placement::Candidate;
use crate::planes::{Api, Informer, InformerEvent, ResourceKind};
use crate::queue::Queue;
use crate::retain::LastApplied;

/// The kinds that the federation itself uses.
pub(crate) mod kinds {
    use crate::planes::ResourceKind;

    pub(crate) const CLUSTER: ResourceKind =
        ResourceKind::known("cluster.karmada.io/v1alpha1", "Cluster", "clusters", false);
    pub(crate) const POLICY: ResourceKind =
        ResourceKind::known("policy.karmada.io/v1alpha1", "PropagationPolicy", "propagationpolicies", true);
    pub(crate) const CLUSTER_POLICY: ResourceKind = ResourceKind::known(
        "policy.karmada.io/v1alpha1",
        "ClusterPropagationPolicy",
        "clusterpropagationpolicies",
        false,
    );
    pub(crate) const BINDING: ResourceKind =
        ResourceKind::known("work.karmada.io/v1alpha2", "ResourceBinding", "resourcebindings", true);
    pub(crate) const CLUSTER_BINDING: ResourceKind = ResourceKind::known(
        "work.karmada.io/v1alpha2",
        "ClusterResourceBinding",
        "clusterresourcebindings",
        false,
    );
    pub(crate) const WORK: ResourceKind =
        ResourceKind::known("work.karmada.io/v1alpha1", "Work", "works", true);
    pub(crate) const INTERPRETER: ResourceKind = ResourceKind::known(
        "config.karmada.io/v1alpha1",
        "ResourceInterpreterCustomization",
        "resourceinterpretercustomizations",
        false,
    );
    pub(crate) const NAMESPACE: ResourceKind = ResourceKind::known("v1", "Namespace", "namespaces", false);
    pub(crate) const SECRET: ResourceKind = ResourceKind::known("v1", "Secret", "secrets", true);
    pub(crate) const EVENT: ResourceKind = ResourceKind::known("v1", "Event", "events", true);
    pub(crate) const CRD: ResourceKind = ResourceKind::known(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        false,
    );
    /// The kinds that a hub must serve before the informers can sync.
    pub(crate) const REQUIRED_ON_HUB: [ResourceKind; 7] =
        [CLUSTER, POLICY, CLUSTER_POLICY, BINDING, CLUSTER_BINDING, WORK, INTERPRETER];
}

/// A key of the work queue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// All ResourceInterpreterCustomizations.
    Interpreters,
    /// A Cluster.
    Cluster(String),
    /// A kind that a policy, binding or dependency names.
    Kind(TypeMeta),
    /// A PropagationPolicy (with namespace) or ClusterPropagationPolicy, as (namespace, name).
    Policy(Option<String>, String),
    /// A Namespace, on every member.
    Namespace(String),
    /// All Namespaces, on one member.
    NamespacesOn(String),
    /// A resource template: an object that may be propagated.
    Template(ObjectKey),
    /// A ResourceBinding (with namespace) or ClusterResourceBinding, as (namespace, name).
    Binding(Option<String>, String),
    /// The clusters of a binding, after a Cluster has changed; as (namespace, name).
    Placement(Option<String>, String),
    /// The status of a binding; as (namespace, name).
    Status(Option<String>, String),
    /// A Work, as (member, name).
    Work(String, String),
}

/// The settings of the builder.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) probe_every: Duration,
    pub(crate) failure_threshold: Duration,
    pub(crate) clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    pub(crate) ids: Arc<dyn Fn() -> String + Send + Sync>,
    /// Clients of members that do not use the endpoint and Secret of their Cluster.
    pub(crate) provided_clients: BTreeMap<String, Client>,
}

/// The hub: its client and its informers.
pub(crate) struct Hub {
    pub(crate) api: Api,
    pub(crate) clusters: Informer,
    pub(crate) policies: Informer,
    pub(crate) cluster_policies: Informer,
    pub(crate) bindings: Informer,
    pub(crate) cluster_bindings: Informer,
    pub(crate) works: Informer,
    pub(crate) interpreters: Informer,
    pub(crate) namespaces: Informer,
    /// Only shortens the time until a new kind is discovered; it may never sync.
    pub(crate) _crds: Informer,
    /// Informers of propagated kinds.
    pub(crate) templates: RwLock<BTreeMap<TypeMeta, Informer>>,
}

/// A Cluster, decoded once per change.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClusterInfo {
    pub(crate) candidate: Arc<Candidate>,
    pub(crate) ready: bool,
}

/// All policies, indexed by the kinds in their selectors.
#[derive(Default)]
pub(crate) struct PolicyIndex {
    all: BTreeMap<(Option<String>, String), Arc<AnyPolicy>>,
    by_kind: BTreeMap<(TypeMeta, Option<String>), BTreeSet<String>>,
}

impl PolicyIndex {
    pub(crate) fn insert(&mut self, policy: AnyPolicy) {
        self.remove(policy.namespace.as_deref(), &policy.name);
        for selector in &policy.spec.resource_selectors {
            let type_meta =
                TypeMeta { api_version: selector.api_version.clone(), kind: selector.kind.clone() };
            self.by_kind
                .entry((type_meta, policy.namespace.clone()))
                .or_default()
                .insert(policy.name.clone());
        }
        self.all.insert((policy.namespace.clone(), policy.name.clone()), Arc::new(policy));
    }

    pub(crate) fn remove(&mut self, namespace: Option<&str>, name: &str) {
        let Some(old) = self.all.remove(&(namespace.map(str::to_owned), name.to_owned())) else { return };
        for selector in &old.spec.resource_selectors {
            let type_meta =
                TypeMeta { api_version: selector.api_version.clone(), kind: selector.kind.clone() };
            let location = (type_meta, old.namespace.clone());
            if let Some(names) = self.by_kind.get_mut(&location) {
                names.remove(name);
                if names.is_empty() {
                    self.by_kind.remove(&location);
                }
            }
        }
    }

    pub(crate) fn get(&self, namespace: Option<&str>, name: &str) -> Option<Arc<AnyPolicy>> {
        self.all.get(&(namespace.map(str::to_owned), name.to_owned())).cloned()
    }

    /// All kinds in selectors of policies.
    pub(crate) fn kinds(&self) -> BTreeSet<TypeMeta> {
        self.by_kind.keys().map(|(type_meta, _)| type_meta.clone()).collect()
    }

    /// The policies whose selectors name the kind of an object, from its namespace and from the whole hub.
    pub(crate) fn for_kind_of(&self, template: &Value) -> Vec<Arc<AnyPolicy>> {
        let type_meta = TypeMeta::of(template);
        let namespace = object::meta(template, "namespace");
        let mut found = Vec::new();
        for of in [Some(namespace.to_owned()), None] {
            let names = self.by_kind.get(&(type_meta.clone(), of.clone()));
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

/// Object names by namespace.
pub(crate) type NameIndex = BTreeMap<String, BTreeSet<String>>;

/// Adds a name to an index or removes it.
fn set_membership(index: &RwLock<NameIndex>, namespace: &str, name: &str, present: bool) {
    let mut index = index.write();
    if present {
        index.entry(namespace.to_owned()).or_default().insert(name.to_owned());
    } else if let Some(names) = index.get_mut(namespace) {
        names.remove(name);
        if names.is_empty() {
            index.remove(namespace);
        }
    }
}

/// The shared state of all controllers.
pub(crate) struct FederationState {
    pub(crate) me: Weak<FederationState>,
    pub(crate) settings: Settings,
    pub(crate) hub: Hub,
    pub(crate) members: RwLock<BTreeMap<String, Arc<Member>>>,
    pub(crate) clusters: RwLock<BTreeMap<String, Arc<ClusterInfo>>>,
    pub(crate) policies: RwLock<PolicyIndex>,
    pub(crate) interpreter: RwLock<Interpreter>,
    /// Works as (namespace, name), by the permanent id of their binding.
    pub(crate) works_of: RwLock<BTreeMap<String, BTreeSet<(String, String)>>>,
    /// The last write to a member, by (member, Work name).
    pub(crate) last_applied: Mutex<BTreeMap<(String, String), LastApplied>>,
    /// Recent corrections of drift, by (member, Work name).
    pub(crate) drift_conflicts: Mutex<BTreeMap<(String, String), crate::controllers::DriftConflict>>,
    /// Kinds that only dependencies of propagated objects name.
    pub(crate) needed_kinds: RwLock<BTreeSet<TypeMeta>>,
    /// Bindings with `propagateDeps`.
    pub(crate) bindings_with_dependencies: RwLock<NameIndex>,
    /// Attached bindings: those of dependencies.
    pub(crate) attached_bindings: RwLock<NameIndex>,
    /// The result of the last reconcile of a binding, for its status; by (namespace, name).
    pub(crate) cached_statuses: Mutex<BTreeMap<(String, String), CachedStatus>>,
    /// Events that were recorded already; see `record_event`.
    pub(crate) recorded_events: Mutex<BTreeSet<String>>,
    pub(crate) queue: Queue<Key>,
}

impl FederationState {
    pub(crate) fn new(hub: Client, settings: Settings, interpreter: Interpreter) -> Arc<Self> {
        let api = Api::new("the hub", hub);
        Arc::new_cyclic(|me: &Weak<FederationState>| {
            let informer = |kind: ResourceKind| Self::start_hub_informer(me, &api, kind);
            FederationState {
                me: me.clone(),
                settings,
                hub: Hub {
                    clusters: informer(kinds::CLUSTER),
                    policies: informer(kinds::POLICY),
                    cluster_policies: informer(kinds::CLUSTER_POLICY),
                    bindings: informer(kinds::BINDING),
                    cluster_bindings: informer(kinds::CLUSTER_BINDING),
                    works: informer(kinds::WORK),
                    interpreters: informer(kinds::INTERPRETER),
                    namespaces: informer(kinds::NAMESPACE),
                    _crds: Self::crds(me, &api),
                    templates: RwLock::default(),
                    api: api.clone(),
                },
                members: RwLock::default(),
                clusters: RwLock::default(),
                policies: RwLock::default(),
                interpreter: RwLock::new(interpreter),
                works_of: RwLock::default(),
                last_applied: Mutex::default(),
                drift_conflicts: Mutex::default(),
                needed_kinds: RwLock::default(),
                bindings_with_dependencies: RwLock::default(),
                attached_bindings: RwLock::default(),
                cached_statuses: Mutex::default(),
                recorded_events: Mutex::default(),
                queue: Queue::new(),
            }
        })
    }

    fn start_hub_informer(me: &Weak<FederationState>, api: &Api, kind: ResourceKind) -> Informer {
        let me = me.clone();
        let handler = Arc::new(move |kind: &ResourceKind, change: InformerEvent| {
            if let Some(state) = me.upgrade() {
                state.hub_changed(kind, &change);
            }
        });
        Informer::start(api.clone(), kind, handler)
    }

    /// Watches CRDs of the hub, to discover new kinds without polling.
    fn crds(me: &Weak<FederationState>, api: &Api) -> Informer {
        let me = me.clone();
        Informer::metadata_only(api, kinds::CRD, move || {
            if let Some(state) = me.upgrade() {
                state.definition_changed();
            }
        })
    }

    /// Waits until all hub informers are synced, then enqueues every object once. Events that the informers
    /// delivered during construction found no state to update.
    pub(crate) async fn sync(&self) {
        let hub = &self.hub;
        let informers = [
            &hub.clusters,
            &hub.policies,
            &hub.cluster_policies,
            &hub.bindings,
            &hub.cluster_bindings,
            &hub.works,
            &hub.interpreters,
            &hub.namespaces,
        ];
        for informer in informers {
            informer.synced().await;
        }
        for informer in informers {
            for object in informer.list() {
                self.hub_changed(informer.kind(), &InformerEvent { before: None, after: Some(object) });
            }
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.settings.clock)()
    }

    pub(crate) fn new_id(&self) -> String {
        (self.settings.ids)()
    }

    /// The informer of a propagated kind, if it was started.
    pub(crate) fn template_informer(&self, type_meta: &TypeMeta) -> Option<Informer> {
        self.hub.templates.read().get(type_meta).cloned()
    }

    /// Starts the informer of a propagated kind.
    pub(crate) fn start_template_informer(&self, kind: &ResourceKind) -> Informer {
        let mut templates = self.hub.templates.write();
        templates
            .entry(kind.type_meta())
            .or_insert_with(|| Self::start_hub_informer(&self.me, &self.hub.api, kind.clone()))
            .clone()
    }

    /// A resource template: from the informer, or by a request while the informer is not synced.
    pub(crate) async fn template(&self, key: &ObjectKey) -> Result<Option<Arc<Value>>, Error> {
        let type_meta = TypeMeta { api_version: key.api_version.clone(), kind: key.kind.clone() };
        let Some(informer) = self.template_informer(&type_meta) else {
            return Err(Error::UnknownKind(type_meta));
        };
        if informer.is_synced() {
            return Ok(informer.get(&key.namespace, &key.name));
        }
        Ok(self.hub.api.get(informer.kind(), &key.namespace, &key.name).await?.map(Arc::new))
    }

    /// The informer of ResourceBindings (with a namespace) or ClusterResourceBindings.
    pub(crate) fn bindings(&self, namespace: Option<&str>) -> &Informer {
        if namespace.is_some() { &self.hub.bindings } else { &self.hub.cluster_bindings }
    }

    pub(crate) fn member(&self, cluster: &str) -> Option<Arc<Member>> {
        self.members.read().get(cluster).cloned()
    }

    pub(crate) fn cluster(&self, name: &str) -> Option<Arc<ClusterInfo>> {
        self.clusters.read().get(name).cloned()
    }

    pub(crate) fn candidates(&self) -> Vec<Arc<Candidate>> {
        self.clusters.read().values().map(|info| info.candidate.clone()).collect()
    }

    pub(crate) fn interpreter(&self) -> Interpreter {
        self.interpreter.read().clone()
    }

    /// The Works of a binding.
    pub(crate) fn works_of(&self, binding_id: &str) -> Vec<Arc<Value>> {
        let works_of = self.works_of.read();
        let locations = works_of.get(binding_id).into_iter().flatten();
        locations.filter_map(|(namespace, name)| self.hub.works.get(namespace, name)).collect()
    }

    pub(crate) fn index_cluster(
        &self,
        change: &InformerEvent,
    ) -> (Option<Arc<ClusterInfo>>, Option<Arc<ClusterInfo>>) {
        let name = change.object().map(|object| object::meta(object, "name").to_owned()).unwrap_or_default();
        let info =
            change.after.as_ref().and_then(|after| Cluster::deserialize(&**after).ok()).map(|cluster| {
                let recorded_events =
                    cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
                let ready = crate::conditions::status(recorded_events, conditions::READY) == Some("True");
                Arc::new(ClusterInfo { candidate: Arc::new(Candidate::from(&cluster)), ready })
            });
        let mut clusters = self.clusters.write();
        let before = match &info {
            Some(info) => clusters.insert(name, info.clone()),
            None => clusters.remove(&name),
        };
        (before, info)
    }

    pub(crate) fn index_binding(&self, change: &InformerEvent) {
        let Some(binding) = change.object() else { return };
        let (namespace, name) = (object::meta(binding, "namespace"), object::meta(binding, "name"));
        let after = change.after.as_deref();
        let propagates = after.is_some_and(|after| after["spec"]["propagateDeps"] == true);
        set_membership(&self.bindings_with_dependencies, namespace, name, propagates);
        set_membership(&self.attached_bindings, namespace, name, after.is_some_and(is_attached));
        if after.is_none() {
            self.cached_statuses.lock().remove(&(namespace.to_owned(), name.to_owned()));
        }
    }

    /// The attached bindings of a namespace.
    pub(crate) fn attached_bindings(&self, namespace: &str) -> Vec<Arc<Value>> {
        let attached_bindings = self.attached_bindings.read();
        let names = attached_bindings.get(namespace).into_iter().flatten();
        names.filter_map(|name| self.hub.bindings.get(namespace, name)).collect()
    }

    pub(crate) fn index_work(&self, change: &InformerEvent) {
        let id = |work: &Value| {
            let id = [labels::karmada::BINDING_ID, labels::karmada::CLUSTER_BINDING_ID]
                .map(|key| object::label(work, key).to_owned());
            id.into_iter().find(|id| !id.is_empty())
        };
        let location = |work: &Value| {
            (object::meta(work, "namespace").to_owned(), object::meta(work, "name").to_owned())
        };
        let mut works_of = self.works_of.write();
        if let Some(before) = &change.before
            && let Some(id) = id(before)
        {
            let locations = works_of.entry(id.clone()).or_default();
            locations.remove(&location(before));
            if locations.is_empty() {
                works_of.remove(&id);
            }
        }
        if let Some(after) = &change.after
            && let Some(id) = id(after)
        {
            works_of.entry(id).or_default().insert(location(after));
        }
    }

    /// The key of the binding in the annotations of a Work or member object.
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
