//! Template controller: claims a resource template for a policy and ensures its binding.
//!
//! Reads   the template, policies, Clusters, its binding
//! Writes  the template (claim labels and annotations) · its binding, including its clusters, in one write
//! Order   claim before binding: no binding exists whose template has no claim

use std::sync::Arc;

use polis_api::karmada::PropagationSpec;
use polis_api::{finalizers, labels};
use polis_engine::{Action, Change, Engine, ErrorClass, Key, Plane, Reconciler, Unresolved};
use serde_json::{Value, json};

use super::{kind, scheduler, tree};
use crate::claim::{self, Claim};
use crate::error::Error;
use crate::finalizers::add_finalizer;
use crate::hub::{Hub, binding_kind, resource_of, spec_changed};
use crate::interpreter::TypeMeta;
use crate::kinds;
use crate::matching::{AnyPolicy, is_propagatable, is_propagatable_namespace};
use crate::names;
use crate::object::{self, ObjectKey};
use crate::shared::Shared;

struct Templates(Arc<Shared>);

/// The key of a template.
fn key_of(hub: &Plane, object: &ObjectKey) -> Key {
    crate::hub::key(
        hub,
        &object.namespace,
        &format!("{}/{}/{}", object.kind, object.name, object.api_version),
    )
}

fn object_of(key: &Key) -> ObjectKey {
    let mut parts = key.name.splitn(3, '/').map(str::to_owned);
    let mut next = || parts.next().unwrap_or_default();
    let (kind, name, api_version) = (next(), next(), next());
    ObjectKey { api_version, kind, namespace: key.namespace().to_owned(), name }
}

/// The keys of all objects of a kind, in one namespace or, if it is empty, in all. A kind that is not watched
/// has none; its own controller queues them when it is.
pub(super) fn keys_of_kind(
    shared: &Shared,
    type_meta: &TypeMeta,
    namespace: &str,
) -> Result<Vec<Key>, polis_engine::Error> {
    let Some(kind) = shared.kinds.get(type_meta) else { return Ok(Vec::new()) };
    let within = |(of, name): (Option<String>, String)| {
        let of = of.unwrap_or_default();
        let TypeMeta { api_version, kind } = type_meta.clone();
        (namespace.is_empty() || of == namespace)
            .then(|| key_of(&shared.hub.plane, &ObjectKey { api_version, kind, namespace: of, name }))
    };
    Ok(shared.hub.of(&kind).names()?.into_iter().filter_map(within).collect())
}

pub(super) fn declare(engine: &mut Engine, shared: &Arc<Shared>) {
    let hub = &shared.hub.plane;
    let mut controller = engine.controller("template", hub, Templates(shared.clone())).skips_own_writes();
    for policies in [&kinds::POLICY, &kinds::CLUSTER_POLICY] {
        let shared = shared.clone();
        controller = controller.watches_untyped(hub, policies, move |_, change| of_policy(&shared, change));
    }
    for bindings in [&kinds::BINDING, &kinds::CLUSTER_BINDING] {
        let shared = shared.clone();
        controller = controller.watches_untyped(hub, bindings, move |_, change| {
            let deleted = change.object().filter(|_| change.is_deletion());
            Ok(deleted.map(|binding| key_of(&shared.hub.plane, &resource_of(binding))).into_iter().collect())
        });
    }
    let (added, namespaces) = (shared.clone(), shared.clone());
    let controller = controller
        .watches_added(hub, move |_, change| of_object(&added, change))
        .watches_untyped(hub, &kinds::NAMESPACE, move |_, change| of_object(&namespaces, change));
    shared.triggers.template.declare(controller);
}

/// The objects of the kinds that a policy selects or has selected.
fn of_policy(shared: &Shared, change: &Change<'_>) -> Result<Vec<Key>, Unresolved> {
    let mut keys = Vec::new();
    for object in [change.before(), change.after()] {
        let Some(policy) = shared.policies.decoded(object) else { continue };
        for type_meta in crate::clusters::selected_kinds(&policy) {
            keys.extend(keys_of_kind(shared, &type_meta, policy.namespace.as_deref().unwrap_or_default())?);
        }
    }
    Ok(keys)
}

fn of_object(shared: &Shared, change: &Change<'_>) -> Result<Vec<Key>, Unresolved> {
    if !shared.kinds.is_watched(change.kind()) || !spec_changed(change) {
        return Ok(Vec::new());
    }
    Ok(change.object().map(|object| key_of(&shared.hub.plane, &ObjectKey::of(object))).into_iter().collect())
}

impl Reconciler for Templates {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        reconcile(&self.0, &object_of(key)).await?;
        Ok(Action::AwaitChange)
    }
}

/// Reconciles one template.
pub(super) async fn reconcile(shared: &Shared, key: &ObjectKey) -> Result<(), Error> {
    if !is_propagatable(&key.api_version, &key.kind) || !is_propagatable_namespace(&key.namespace) {
        return Ok(());
    }
    let template = match shared.kinds.template(key).await {
        Ok(template) => template,
        Err(Error::UnknownKind(type_meta)) => {
            shared.triggers.kind.add(kind::key_of(&shared.hub, &type_meta));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let Some(template) = template.filter(|template| !object::is_deleting(template)) else {
        // The binding's reconcile checks whether the template was deleted.
        let binding = shared.hub.key(&key.namespace, &names::binding(&key.kind, &key.name));
        shared.triggers.binding.add(binding);
        return Ok(());
    };
    let policies = shared.policies.for_kind_of(&template)?;
    let claim = claim::decide(&policies, &template);
    let work = ClaimedTemplate { shared, hub: &shared.hub };
    if let Claim::Existing(owner) | Claim::New(owner) = claim
        && let Some(rival) = claim::rival(&policies, owner, &template)
    {
        work.warn_rival(rival, owner)?;
    }
    let result = work.apply_claim(key, &template, claim).await;
    if let Err(error) = &result
        && error.class() == Some(ErrorClass::Invalid)
    {
        shared.hub.warn(&template, "ApplyPolicyFailed", &error.to_string());
    }
    result
}

struct ClaimedTemplate<'a> {
    shared: &'a Shared,
    hub: &'a Hub,
}

impl ClaimedTemplate<'_> {
    async fn apply_claim(
        &self,
        key: &ObjectKey,
        template: &Arc<Value>,
        claim: Claim<'_>,
    ) -> Result<(), Error> {
        match claim {
            Claim::None => {}
            Claim::Release => {
                let mut unclaimed = (**template).clone();
                claim::clear_claim(&mut unclaimed);
                self.patch_claim(template, unclaimed).await?;
                self.release_binding_of(key).await?;
            }
            Claim::Existing(policy) => self.ensure_binding_of(template, policy, false).await?,
            Claim::New(policy) => {
                let mut claimed = (**template).clone();
                claim::set_claim(&mut claimed, policy);
                let template = self.patch_claim(template, claimed).await?;
                self.ensure_binding_of(&template, policy, true).await?;
            }
        }
        Ok(())
    }

    /// Records an event on a policy whose selected object belongs to another policy.
    fn warn_rival(&self, rival: &AnyPolicy, owner: &AnyPolicy) -> Result<(), Error> {
        let (kind, namespace) = match &rival.namespace {
            Some(namespace) => (&kinds::POLICY, namespace.as_str()),
            None => (&kinds::CLUSTER_POLICY, ""),
        };
        let Some(object) = self.hub.get(kind, namespace, &rival.name)? else { return Ok(()) };
        let owner = match &owner.namespace {
            Some(namespace) => format!("PropagationPolicy {namespace}/{}", owner.name),
            None => format!("ClusterPropagationPolicy {}", owner.name),
        };
        let message = format!(
            "objects that this policy selects are claimed by {owner}, which was first by time or by name; a claim is kept \
             until its policy is deleted or no longer selects the object"
        );
        self.hub.warn(&object, "ClaimedByAnother", &message);
        Ok(())
    }

    /// Patches the claim labels and annotations of an object, and nothing else.
    async fn patch_claim(&self, existing: &Value, wanted: Value) -> Result<Arc<Value>, Error> {
        let key = ObjectKey::of(existing);
        let type_meta = TypeMeta::of(existing);
        let kind = self.shared.kinds.get(&type_meta).ok_or(Error::UnknownKind(type_meta))?;
        if wanted == *existing {
            return Ok(Arc::new(wanted));
        }
        let patch = json!({"metadata": {
            "uid": object::meta(existing, "uid"),
            "resourceVersion": object::meta(existing, "resourceVersion"),
            "labels": difference(&existing["metadata"]["labels"], &wanted["metadata"]["labels"]),
            "annotations": difference(&existing["metadata"]["annotations"], &wanted["metadata"]["annotations"]),
        }});
        Ok(self.hub.of(&kind).patch((key.namespace.as_str(), key.name.as_str()), &patch).await?)
    }

    /// Creates or updates the binding of a claimed object.
    async fn ensure_binding_of(
        &self,
        template: &Value,
        policy: &AnyPolicy,
        taken: bool,
    ) -> Result<(), Error> {
        let key = ObjectKey::of(template);
        let namespace = (!key.namespace.is_empty()).then_some(key.namespace.as_str());
        let name = names::binding(&key.kind, &key.name);
        let bindings = self.hub.of(binding_kind(namespace));
        let existing = bindings.get((key.namespace.as_str(), name.as_str()))?;
        if let Some(existing) = &existing {
            if object::is_deleting(existing) {
                return Ok(()); // of a deleted object with the same name; its deletion requeues this one
            }
            let of = &existing["spec"]["resource"];
            if of["uid"].as_str().is_some_and(|uid| uid != object::meta(template, "uid")) {
                self.shared.triggers.binding.add(self.hub.key(&key.namespace, &name));
                return Ok(());
            }
            if (&of["apiVersion"], &of["kind"]) != (&template["apiVersion"], &template["kind"]) {
                let message = format!(
                    "binding {name} belongs to {} {}: binding names do not include the API group, so this object cannot be propagated",
                    of["apiVersion"], of["kind"]
                );
                self.hub.warn(template, "BindingNameTaken", &message);
                return Ok(());
            }
            let lazy = policy.spec.activation_preference.as_deref() == Some("Lazy");
            let unchanged = of["resourceVersion"] == template["metadata"]["resourceVersion"];
            if lazy && !taken && unchanged {
                return Ok(()); // a lazy policy takes effect when the object changes
            }
        }
        let mut wanted = self.wanted_binding(template, policy, existing.as_deref())?;
        scheduler::schedule(&self.shared.clusters, &mut wanted)?;
        match &existing {
            None => drop(bindings.create(&wanted).await?),
            Some(existing) if !equal_except_version(existing, &wanted) => {
                drop(bindings.update(&wanted).await?)
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn wanted_binding(
        &self,
        template: &Value,
        policy: &AnyPolicy,
        existing: Option<&Value>,
    ) -> Result<Value, Error> {
        let key = ObjectKey::of(template);
        let (kind, finalizer, id) = if key.namespace.is_empty() {
            (
                &kinds::CLUSTER_BINDING,
                finalizers::karmada::CLUSTER_BINDING,
                labels::karmada::CLUSTER_BINDING_ID,
            )
        } else {
            (&kinds::BINDING, finalizers::karmada::BINDING, labels::karmada::BINDING_ID)
        };
        let mut wanted = existing.cloned().unwrap_or_else(|| {
            let mut fresh = json!({"apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {"name": names::binding(&key.kind, &key.name)}, "spec": {}});
            if !key.namespace.is_empty() {
                fresh["metadata"]["namespace"] = Value::String(key.namespace.clone());
            }
            fresh
        });
        claim::set_claim(&mut wanted, policy);
        if object::label(&wanted, id).is_empty() {
            object::set_label(&mut wanted, id, &self.hub.new_id());
        }
        add_finalizer(&mut wanted, finalizer);
        wanted["metadata"]["ownerReferences"] = json!([{
            "apiVersion": key.api_version, "kind": key.kind, "name": key.name, "uid": object::meta(template, "uid"),
            "controller": true, "blockOwnerDeletion": true,
        }]);
        let mut resource = json!({
            "apiVersion": key.api_version, "kind": key.kind, "name": key.name, "uid": object::meta(template, "uid"),
            "resourceVersion": object::meta(template, "resourceVersion"),
        });
        if !key.namespace.is_empty() {
            resource["namespace"] = Value::String(key.namespace.clone());
        }
        let spec = &mut wanted["spec"];
        spec["resource"] = resource;
        apply_policy(spec, &policy.spec)?;
        match self.shared.scripts.current().replicas(template) {
            Ok(Some(replicas)) => {
                spec["replicas"] = Value::from(replicas.count);
                set(spec, "replicaRequirements", replicas.requirements);
            }
            Ok(None) => {
                set(spec, "replicas", None);
                set(spec, "replicaRequirements", None);
            }
            // The previous count is kept; the condition Interpreted reports the error.
            Err(error) => self.hub.warn(template, "GetReplicasFailed", &error.to_string()),
        }
        Ok(wanted)
    }

    /// Removes the claim from the binding of an object that no policy claims. The binding is otherwise
    /// unchanged.
    async fn release_binding_of(&self, key: &ObjectKey) -> Result<(), Error> {
        let namespace = (!key.namespace.is_empty()).then_some(key.namespace.as_str());
        let name = names::binding(&key.kind, &key.name);
        match self.hub.get(binding_kind(namespace), &key.namespace, &name)? {
            Some(binding) => release_binding(self.hub, &binding).await,
            None => Ok(()),
        }
    }
}

/// Removes the claim from a binding.
pub(super) async fn release_binding(hub: &Hub, binding: &Value) -> Result<(), Error> {
    let mut unclaimed = binding.clone();
    claim::clear_claim(&mut unclaimed);
    if unclaimed != *binding {
        hub.of(binding_kind(binding["metadata"]["namespace"].as_str())).update(&unclaimed).await?;
    }
    Ok(())
}

/// Copies the fields of the policy to the spec of a binding.
fn apply_policy(spec: &mut Value, policy: &PropagationSpec) -> Result<(), Error> {
    spec["placement"] = tree("placement", &policy.placement)?;
    spec["schedulerName"] = json!(policy.scheduler_name.as_deref().unwrap_or("default-scheduler"));
    spec["conflictResolution"] = json!(policy.conflict_resolution.as_deref().unwrap_or("Abort"));
    set(spec, "propagateDeps", policy.propagate_deps.then_some(Value::Bool(true)));
    set(spec, "preserveResourcesOnDeletion", policy.preserve_resources_on_deletion.map(Value::Bool));
    set(spec, "failover", policy.extra.get("failover").cloned());
    // Not part of the policy: another controller may have suspended scheduling.
    let scheduling = spec["suspension"].get("scheduling").cloned();
    let mut suspension = match &policy.suspension {
        Some(suspension) => tree("suspension", suspension)?,
        None => json!({}),
    };
    set(&mut suspension, "scheduling", scheduling);
    set(
        spec,
        "suspension",
        Some(suspension).filter(|suspension| suspension.as_object().is_some_and(|fields| !fields.is_empty())),
    );
    Ok(())
}

fn set(object: &mut Value, field: &str, value: Option<Value>) {
    if let Some(fields) = object.as_object_mut() {
        match value {
            Some(value) => fields.insert(field.to_owned(), value),
            None => fields.remove(field),
        };
    }
}

/// The merge patch from one map to another; null removes a key.
fn difference(existing: &Value, wanted: &Value) -> Value {
    let (existing, wanted) = (object::string_map(existing), object::string_map(wanted));
    let removed =
        existing.keys().filter(|key| !wanted.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let new = wanted
        .iter()
        .filter(|(key, value)| existing.get(*key) != Some(value))
        .map(|(key, value)| (key.clone(), Value::String(value.clone())));
    Value::Object(removed.chain(new).collect())
}

/// Whether two bindings differ at most in the resource version of their template. Such a change goes to the
/// Works directly and needs no write of the binding.
fn equal_except_version(existing: &Value, wanted: &Value) -> bool {
    let bare = |binding: &Value| {
        let mut binding = binding.clone();
        object::remove(&mut binding, &["spec", "resource", "resourceVersion"]);
        binding
    };
    existing == wanted || bare(existing) == bare(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_one_object() {
        let hub = polis_engine::Plane::new("hub", polis_engine::Transport::unavailable("a test"));
        for (api_version, namespace) in [("v1", "shop"), ("suite.polis.test/v1", "shop"), ("v1", "")] {
            let object = ObjectKey {
                api_version: api_version.to_owned(),
                kind: "Thing".to_owned(),
                namespace: namespace.to_owned(),
                name: "a:b".to_owned(),
            };
            assert_eq!(object_of(&key_of(&hub, &object)), object);
        }
    }
}
