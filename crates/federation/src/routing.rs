//! Event handlers: map each change on the hub or a member to the keys that must be reconciled.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::interpreter::TypeMeta;
use crate::matching::{AnyPolicy, is_propagatable};
use crate::names;
use crate::object::{self, ObjectKey};
use crate::planes::{InformerEvent, ResourceKind};
use crate::state::{ClusterInfo, FederationState, Key, kinds};

/// The decoded Cluster, if it exists.
type Known = Option<Arc<ClusterInfo>>;

impl FederationState {
    /// Handles a change of an object on the hub.
    pub(crate) fn hub_changed(&self, kind: &ResourceKind, change: &InformerEvent) {
        let Some(object) = change.object() else { return };
        let (namespace, name) = (object::meta(object, "namespace"), object::meta(object, "name"));
        let known = [
            (kinds::CLUSTER, Self::cluster_changed as fn(&FederationState, &InformerEvent, &str, &str)),
            (kinds::POLICY, Self::policy_changed),
            (kinds::CLUSTER_POLICY, Self::policy_changed),
            (kinds::BINDING, Self::binding_changed),
            (kinds::CLUSTER_BINDING, Self::binding_changed),
            (kinds::WORK, Self::work_changed),
            (kinds::INTERPRETER, |state, _, _, _| state.queue.add(Key::Interpreters)),
        ];
        if let Some((_, changed)) = known.iter().find(|(known, _)| known == kind) {
            return changed(self, change, namespace, name);
        }
        if *kind == kinds::NAMESPACE {
            self.namespace_changed(change, name);
        }
        self.template_changed(change);
    }

    /// Handles a change of an object on a member: enqueues the Work with the name derived from the object.
    pub(crate) fn member_changed(&self, cluster: &str, change: &InformerEvent) {
        let Some(object) = change.object() else { return };
        let key = ObjectKey::of(object);
        let work = names::work(&key.kind, &key.namespace, &key.name);
        if self.hub.works.get(&names::execution_namespace(cluster), &work).is_some() {
            self.queue.add(Key::Work(cluster.to_owned(), work));
        }
    }

    fn cluster_changed(&self, change: &InformerEvent, _: &str, name: &str) {
        let (before, after) = self.index_cluster(change);
        self.queue.add(Key::Cluster(name.to_owned()));
        let candidate = |info: &Known| info.as_ref().map(|info| info.candidate.clone());
        if candidate(&before) != candidate(&after) {
            self.enqueue_all_bindings(Key::Placement);
        }
        let ready = |info: &Known| info.as_ref().is_some_and(|info| info.ready);
        let leaving = |info: &Known| info.as_ref().is_none_or(|info| info.candidate.deleting);
        if ready(&before) != ready(&after) || leaving(&before) != leaving(&after) {
            self.enqueue_works(name);
        }
        if leaving(&before) && !leaving(&after) {
            self.queue.add(Key::NamespacesOn(name.to_owned()));
        }
    }

    /// Enqueues all Works of a member.
    pub(crate) fn enqueue_works(&self, cluster: &str) {
        for work in self.hub.works.list_namespace(&names::execution_namespace(cluster)) {
            self.queue.add(Key::Work(cluster.to_owned(), object::meta(&work, "name").to_owned()));
        }
    }

    /// Enqueues one key for every binding.
    pub(crate) fn enqueue_all_bindings(&self, key: fn(Option<String>, String) -> Key) {
        for binding in self.hub.bindings.list() {
            let namespace = object::meta(&binding, "namespace").to_owned();
            self.queue.add(key(Some(namespace), object::meta(&binding, "name").to_owned()));
        }
        for binding in self.hub.cluster_bindings.list() {
            self.queue.add(key(None, object::meta(&binding, "name").to_owned()));
        }
    }

    fn policy_changed(&self, change: &InformerEvent, namespace: &str, name: &str) {
        let namespace = (!namespace.is_empty()).then_some(namespace);
        let read = |object: &Value| read_policy(object);
        let before = self.policies.read().get(namespace, name);
        match change.after.as_deref().and_then(read) {
            Some(policy) => self.policies.write().insert(policy),
            None => self.policies.write().remove(namespace, name),
        }
        let after = self.policies.read().get(namespace, name);
        self.queue.add(Key::Policy(namespace.map(str::to_owned), name.to_owned()));
        for policy in [before, after].into_iter().flatten() {
            for selector in &policy.spec.resource_selectors {
                let type_meta =
                    TypeMeta { api_version: selector.api_version.clone(), kind: selector.kind.clone() };
                self.enqueue_templates(&type_meta, policy.namespace.as_deref());
            }
        }
    }

    /// Enqueues all objects of a kind, in one namespace or in all; enqueues the kind itself if it has no
    /// informer.
    pub(crate) fn enqueue_templates(&self, type_meta: &TypeMeta, namespace: Option<&str>) {
        if !is_propagatable(&type_meta.api_version, &type_meta.kind) {
            return;
        }
        let Some(informer) = self.template_informer(type_meta) else {
            self.queue.add(Key::Kind(type_meta.clone()));
            return;
        };
        let templates =
            namespace.map_or_else(|| informer.list(), |namespace| informer.list_namespace(namespace));
        for template in templates {
            self.queue.add(Key::Template(ObjectKey::of(&template)));
        }
    }

    fn binding_changed(&self, change: &InformerEvent, namespace: &str, name: &str) {
        self.index_binding(change);
        let scope = (!namespace.is_empty()).then(|| namespace.to_owned());
        if !spec_changed(change) {
            // Only the status changed: a foreign write to it is corrected, nothing else depends on it.
            self.queue.add(Key::Status(scope, name.to_owned()));
            return;
        }
        self.queue.add(Key::Binding(scope, name.to_owned()));
        let Some(binding) = change.object() else { return };
        let resource = resource_of(binding);
        let type_meta = TypeMeta { api_version: resource.api_version.clone(), kind: resource.kind.clone() };
        if self.template_informer(&type_meta).is_none() {
            self.queue.add(Key::Kind(type_meta));
        }
        if change.after.is_none() {
            self.queue.add(Key::Template(resource));
            // The bindings of its dependencies may be attached to no other binding now.
            for attached in self.attached_bindings(namespace) {
                let name = object::meta(&attached, "name").to_owned();
                self.queue.add(Key::Binding(Some(namespace.to_owned()), name));
            }
        }
    }

    fn work_changed(&self, change: &InformerEvent, namespace: &str, name: &str) {
        self.index_work(change);
        let Some(cluster) = names::cluster_of_execution_namespace(namespace) else { return };
        let Some(work) = change.object() else { return };
        let binding = FederationState::binding_of(work);
        if !spec_changed(change) {
            // Only the status changed, by this federation: the binding aggregates it, the Work needs no
            // reconcile.
            if let Some(Key::Binding(namespace, name)) = binding {
                self.queue.add(Key::Status(namespace, name));
            }
            return;
        }
        self.queue.add(Key::Work(cluster.to_owned(), name.to_owned()));
        match binding {
            Some(binding) => self.queue.add(binding),
            None if change.after.is_none() => {
                let manifest = ObjectKey::of(&work["spec"]["workload"]["manifests"][0]);
                self.queue.add(Key::Namespace(manifest.name));
            }
            None => {}
        }
        if change.after.is_none() {
            let work_key = (cluster.to_owned(), name.to_owned());
            self.last_applied.lock().remove(&work_key);
            self.drift_conflicts.lock().remove(&work_key);
            if self.cluster(cluster).is_none_or(|info| info.candidate.deleting) {
                self.queue.add(Key::Cluster(cluster.to_owned()));
            }
        }
    }

    fn namespace_changed(&self, change: &InformerEvent, name: &str) {
        match names::cluster_of_execution_namespace(name) {
            Some(cluster) => self.queue.add(Key::Cluster(cluster.to_owned())),
            None if spec_changed(change) => self.queue.add(Key::Namespace(name.to_owned())),
            None => {}
        }
    }

    /// Handles a change of a CRD on a member: its list of APIs may be out of date.
    pub(crate) fn apis_changed(&self, cluster: &str) {
        if let Some(member) = self.member(cluster) {
            member.mark_apis_stale();
        }
        self.queue.add(Key::Cluster(cluster.to_owned()));
    }

    /// Handles a change of a CRD on the hub: missing kinds may be served now.
    pub(crate) fn definition_changed(&self) {
        for informer in self.hub.templates.read().values().filter(|informer| !informer.is_synced()) {
            informer.retry_now();
        }
        let named: Vec<TypeMeta> = {
            let policies = self.policies.read();
            policies
                .kinds()
                .into_iter()
                .filter(|type_meta| self.template_informer(type_meta).is_none())
                .collect()
        };
        for type_meta in named {
            self.queue.add(Key::Kind(type_meta));
        }
    }

    fn template_changed(&self, change: &InformerEvent) {
        let Some(template) = change.object() else { return };
        let key = ObjectKey::of(template);
        let type_meta = TypeMeta { api_version: key.api_version.clone(), kind: key.kind.clone() };
        if self.template_informer(&type_meta).is_none() || !spec_changed(change) {
            return;
        }
        let namespace = (!key.namespace.is_empty()).then(|| key.namespace.clone());
        self.queue.add(Key::Binding(namespace, names::binding(&key.kind, &key.name)));
        // A binding with dependencies may select this object by name or by labels.
        for name in self.bindings_with_dependencies.read().get(&key.namespace).into_iter().flatten() {
            self.queue.add(Key::Binding(Some(key.namespace.clone()), name.clone()));
        }
        self.queue.add(Key::Template(key));
    }
}

/// Whether anything but the status changed. The federation itself writes the status.
fn spec_changed(change: &InformerEvent) -> bool {
    let (Some(before), Some(after)) = (&change.before, &change.after) else { return true };
    let same_meta = |field: &&str| before["metadata"].get(field) == after["metadata"].get(field);
    let meta = ["uid", "generation", "labels", "annotations", "finalizers", "deletionTimestamp"];
    !(meta.iter().all(same_meta) && spec_fields(before) == spec_fields(after))
}

/// All fields of an object except metadata and status.
fn spec_fields(object: &Value) -> BTreeMap<&str, &Value> {
    let fields = object.as_object().into_iter().flatten();
    fields
        .filter(|(key, _)| !matches!(key.as_str(), "metadata" | "status"))
        .map(|(key, value)| (key.as_str(), value))
        .collect()
}

/// The key of the resource template of a binding.
pub(crate) fn resource_of(binding: &Value) -> ObjectKey {
    let resource = &binding["spec"]["resource"];
    let text = |field: &str| resource[field].as_str().unwrap_or_default().to_owned();
    ObjectKey {
        api_version: text("apiVersion"),
        kind: text("kind"),
        namespace: text("namespace"),
        name: text("name"),
    }
}

/// Decodes a policy of either kind; `None` if the object is malformed.
pub(crate) fn read_policy(object: &Value) -> Option<AnyPolicy> {
    use polis_api::karmada::{ClusterPropagationPolicy, PropagationPolicy};
    use serde::Deserialize;
    if object["kind"] == "PropagationPolicy" {
        PropagationPolicy::deserialize(object).ok().map(AnyPolicy::from)
    } else {
        ClusterPropagationPolicy::deserialize(object).ok().map(AnyPolicy::from)
    }
}
