//! From what changed to what must be looked at: the one place that knows which input touches which decision.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::interpreter::Target;
use crate::matching::{Policy, is_propagatable};
use crate::names;
use crate::object::{self, Identity};
use crate::planes::{Change, Kind};
use crate::world::{ClusterFacts, Key, World, kinds};

/// What was known about a cluster, if anything.
type Known = Option<Arc<ClusterFacts>>;

impl World {
    /// Something changed on the hub.
    pub(crate) fn hub_changed(&self, kind: &Kind, change: &Change) {
        let Some(object) = change.object() else { return };
        let (namespace, name) = (object::meta(object, "namespace"), object::meta(object, "name"));
        let known = [
            (kinds::CLUSTER, Self::cluster_changed as fn(&World, &Change, &str, &str)),
            (kinds::POLICY, Self::policy_changed),
            (kinds::CLUSTER_POLICY, Self::policy_changed),
            (kinds::BINDING, Self::binding_changed),
            (kinds::CLUSTER_BINDING, Self::binding_changed),
            (kinds::WORK, Self::work_changed),
            (kinds::INTERPRETER, |world, _, _, _| world.queue.add(Key::Interpreters)),
        ];
        if let Some((_, changed)) = known.iter().find(|(known, _)| known == kind) {
            return changed(self, change, namespace, name);
        }
        if *kind == kinds::NAMESPACE {
            self.namespace_changed(change, name);
        }
        self.template_changed(change);
    }

    /// Something changed on a member: the Work that it belongs to, or would belong to, is looked at again.
    pub(crate) fn member_changed(&self, cluster: &str, change: &Change) {
        let Some(object) = change.object() else { return };
        let identity = Identity::of(object);
        let work = names::work(&identity.kind, &identity.namespace, &identity.name);
        if self.hub.works.get(&names::execution_namespace(cluster), &work).is_some() {
            self.queue.add(Key::Work(cluster.to_owned(), work));
        }
    }

    fn cluster_changed(&self, change: &Change, _: &str, name: &str) {
        let (before, after) = self.note_cluster(change);
        self.queue.add(Key::Cluster(name.to_owned()));
        let candidate = |facts: &Known| facts.as_ref().map(|facts| facts.candidate.clone());
        if candidate(&before) != candidate(&after) {
            self.look_at_all_bindings(Key::Placement);
        }
        let ready = |facts: &Known| facts.as_ref().is_some_and(|facts| facts.ready);
        let leaving = |facts: &Known| facts.as_ref().is_none_or(|facts| facts.candidate.deleting);
        if ready(&before) != ready(&after) || leaving(&before) != leaving(&after) {
            self.look_at_works(name);
        }
        if leaving(&before) && !leaving(&after) {
            self.queue.add(Key::NamespacesOn(name.to_owned()));
        }
    }

    /// Looks at everything that a member should have or lose.
    pub(crate) fn look_at_works(&self, cluster: &str) {
        for work in self.hub.works.within(&names::execution_namespace(cluster)) {
            self.queue.add(Key::Work(cluster.to_owned(), object::meta(&work, "name").to_owned()));
        }
    }

    /// Looks at every binding, in this respect.
    pub(crate) fn look_at_all_bindings(&self, respect: fn(Option<String>, String) -> Key) {
        for binding in self.hub.bindings.all() {
            let namespace = object::meta(&binding, "namespace").to_owned();
            self.queue.add(respect(Some(namespace), object::meta(&binding, "name").to_owned()));
        }
        for binding in self.hub.cluster_bindings.all() {
            self.queue.add(respect(None, object::meta(&binding, "name").to_owned()));
        }
    }

    fn policy_changed(&self, change: &Change, namespace: &str, name: &str) {
        let namespace = (!namespace.is_empty()).then_some(namespace);
        let read = |object: &Value| read_policy(object);
        let before = self.policies.read().get(namespace, name);
        match change.after.as_deref().and_then(read) {
            Some(policy) => self.policies.write().put(policy),
            None => self.policies.write().remove(namespace, name),
        }
        let after = self.policies.read().get(namespace, name);
        self.queue.add(Key::Policy(namespace.map(str::to_owned), name.to_owned()));
        for policy in [before, after].into_iter().flatten() {
            for selector in &policy.spec.resource_selectors {
                let target =
                    Target { api_version: selector.api_version.clone(), kind: selector.kind.clone() };
                self.look_at_templates(&target, policy.namespace.as_deref());
            }
        }
    }

    /// Looks at the objects of a kind, of one namespace or of all; at the kind first, if it is new.
    pub(crate) fn look_at_templates(&self, target: &Target, namespace: Option<&str>) {
        if !is_propagatable(&target.api_version, &target.kind) {
            return;
        }
        let Some(mirror) = self.templates(target) else {
            self.queue.add(Key::Kind(target.clone()));
            return;
        };
        let templates = namespace.map_or_else(|| mirror.all(), |namespace| mirror.within(namespace));
        for template in templates {
            self.queue.add(Key::Template(Identity::of(&template)));
        }
    }

    fn binding_changed(&self, change: &Change, namespace: &str, name: &str) {
        self.note_binding(change);
        let scope = (!namespace.is_empty()).then(|| namespace.to_owned());
        if !wish_changed(change) {
            // Its own word about its copies: whoever else wrote it is corrected, and nothing more.
            self.queue.add(Key::Status(scope, name.to_owned()));
            return;
        }
        self.queue.add(Key::Binding(scope, name.to_owned()));
        let Some(binding) = change.object() else { return };
        let resource = resource_of(binding);
        let target = Target { api_version: resource.api_version.clone(), kind: resource.kind.clone() };
        if self.templates(&target).is_none() {
            self.queue.add(Key::Kind(target));
        }
        if change.after.is_none() {
            self.queue.add(Key::Template(resource));
            // What it needed must hear that it is gone.
            for follower in self.followers(namespace) {
                let name = object::meta(&follower, "name").to_owned();
                self.queue.add(Key::Binding(Some(namespace.to_owned()), name));
            }
        }
    }

    fn work_changed(&self, change: &Change, namespace: &str, name: &str) {
        self.note_work(change);
        let Some(cluster) = names::cluster_of_execution_namespace(namespace) else { return };
        let Some(work) = change.object() else { return };
        let binding = World::binding_of(work);
        if !wish_changed(change) {
            // What a member says of its copy, as we wrote it: the Work itself has nothing to do.
            if let Some(Key::Binding(namespace, name)) = binding {
                self.queue.add(Key::Status(namespace, name));
            }
            return;
        }
        self.queue.add(Key::Work(cluster.to_owned(), name.to_owned()));
        match binding {
            Some(binding) => self.queue.add(binding),
            None if change.after.is_none() => {
                let manifest = Identity::of(&work["spec"]["workload"]["manifests"][0]);
                self.queue.add(Key::Namespace(manifest.name));
            }
            None => {}
        }
        if change.after.is_none() {
            let place = (cluster.to_owned(), name.to_owned());
            self.written.lock().remove(&place);
            self.fights.lock().remove(&place);
            if self.cluster(cluster).is_none_or(|facts| facts.candidate.deleting) {
                self.queue.add(Key::Cluster(cluster.to_owned()));
            }
        }
    }

    fn namespace_changed(&self, change: &Change, name: &str) {
        match names::cluster_of_execution_namespace(name) {
            Some(cluster) => self.queue.add(Key::Cluster(cluster.to_owned())),
            None if wish_changed(change) => self.queue.add(Key::Namespace(name.to_owned())),
            None => {}
        }
    }

    /// A definition changed on a member: it may have learned or lost an API.
    pub(crate) fn apis_changed(&self, cluster: &str) {
        if let Some(member) = self.member(cluster) {
            member.doubt_apis();
        }
        self.queue.add(Key::Cluster(cluster.to_owned()));
    }

    /// A definition came or went on the hub: kinds that were missing may be there now.
    pub(crate) fn definition_changed(&self) {
        for mirror in self.hub.templates.read().values().filter(|mirror| !mirror.is_synced()) {
            mirror.nudge();
        }
        let named: Vec<Target> = {
            let policies = self.policies.read();
            policies.targets().into_iter().filter(|target| self.templates(target).is_none()).collect()
        };
        for target in named {
            self.queue.add(Key::Kind(target));
        }
    }

    fn template_changed(&self, change: &Change) {
        let Some(template) = change.object() else { return };
        let identity = Identity::of(template);
        let target = Target { api_version: identity.api_version.clone(), kind: identity.kind.clone() };
        if self.templates(&target).is_none() || !wish_changed(change) {
            return;
        }
        let namespace = (!identity.namespace.is_empty()).then(|| identity.namespace.clone());
        self.queue.add(Key::Binding(namespace, names::binding(&identity.kind, &identity.name)));
        // Something may have waited for it to come, or followed its labels.
        for leader in self.leaders.read().get(&identity.namespace).into_iter().flatten() {
            self.queue.add(Key::Binding(Some(identity.namespace.clone()), leader.clone()));
        }
        self.queue.add(Key::Template(identity));
    }
}

/// Whether anything but the status changed: the federation writes that itself.
fn wish_changed(change: &Change) -> bool {
    let (Some(before), Some(after)) = (&change.before, &change.after) else { return true };
    let same_meta = |field: &&str| before["metadata"].get(field) == after["metadata"].get(field);
    let meta = ["uid", "generation", "labels", "annotations", "finalizers", "deletionTimestamp"];
    !(meta.iter().all(same_meta) && wish(before) == wish(after))
}

/// Everything of an object but its metadata and status.
fn wish(object: &Value) -> BTreeMap<&str, &Value> {
    let fields = object.as_object().into_iter().flatten();
    fields
        .filter(|(key, _)| !matches!(key.as_str(), "metadata" | "status"))
        .map(|(key, value)| (key.as_str(), value))
        .collect()
}

/// The object that a binding is about.
pub(crate) fn resource_of(binding: &Value) -> Identity {
    let resource = &binding["spec"]["resource"];
    let text = |field: &str| resource[field].as_str().unwrap_or_default().to_owned();
    Identity {
        api_version: text("apiVersion"),
        kind: text("kind"),
        namespace: text("namespace"),
        name: text("name"),
    }
}

/// A policy of either sort from its object; nothing if it does not have the shape of one.
pub(crate) fn read_policy(object: &Value) -> Option<Policy> {
    use polis_api::karmada::{ClusterPropagationPolicy, PropagationPolicy};
    use serde::Deserialize;
    if object["kind"] == "PropagationPolicy" {
        PropagationPolicy::deserialize(object).ok().map(Policy::from)
    } else {
        ClusterPropagationPolicy::deserialize(object).ok().map(Policy::from)
    }
}
