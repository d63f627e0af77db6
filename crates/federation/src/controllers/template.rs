//! Template controller: claims a resource template for a policy and ensures its binding.
//!
//! Reads   the template, policies, Clusters, its binding
//! Writes  the template (claim labels and annotations) · its binding, including its clusters, in one write
//! Order   claim before binding: no binding exists whose template has no claim

use std::sync::Arc;

use polis_api::karmada::PropagationSpec;
use polis_api::{finalizers, labels};
use serde_json::{Value, json};

use super::{add_finalizer, tree};
use crate::claim::{self, Claim};
use crate::error::Error;
use crate::interpreter::TypeMeta;
use crate::matching::{AnyPolicy, is_propagatable, is_propagatable_namespace};
use crate::names;
use crate::object::{self, ObjectKey};
use crate::planes::{ApiErrorKind, ResourceKind};
use crate::queue::Requeue;
use crate::state::{FederationState, Key, kinds};

impl FederationState {
    pub(super) async fn reconcile_template(&self, key: &ObjectKey) -> Result<Requeue, Error> {
        if !is_propagatable(&key.api_version, &key.kind) || !is_propagatable_namespace(&key.namespace) {
            return Ok(Requeue::OnChange);
        }
        let namespace = (!key.namespace.is_empty()).then(|| key.namespace.clone());
        let binding_key = Key::Binding(namespace.clone(), names::binding(&key.kind, &key.name));
        let template = match self.template(key).await {
            Ok(template) => template,
            // Not discovered yet; the kind has its own key.
            Err(Error::UnknownKind(_)) => return Ok(Requeue::OnChange),
            Err(error) => return Err(error),
        };
        let Some(template) = template.filter(|template| !object::is_deleting(template)) else {
            self.queue.add(binding_key); // which checks whether the template was deleted
            return Ok(Requeue::OnChange);
        };
        let policies = self.policies.read().for_kind_of(&template);
        let claim = claim::decide(&policies, &template);
        if let Claim::Existing(owner) | Claim::New(owner) = claim
            && let Some(rival) = claim::rival(&policies, owner, &template)
        {
            self.record_rival_event(rival, owner).await;
        }
        let result = self.apply_claim(key, &template, claim).await;
        if let Err(error) = &result
            && error.kind() == Some(ApiErrorKind::Invalid)
        {
            self.record_event(&template, true, "ApplyPolicyFailed", &error.to_string()).await;
        }
        result.map(|()| Requeue::OnChange)
    }

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

    /// Records an event on a policy whose selected object belongs to another policy. Once per pair of
    /// policies.
    async fn record_rival_event(&self, rival: &AnyPolicy, owner: &AnyPolicy) {
        let informer = match rival.namespace {
            Some(_) => &self.hub.policies,
            None => &self.hub.cluster_policies,
        };
        let Some(object) = informer.get(rival.namespace.as_deref().unwrap_or_default(), &rival.name) else {
            return;
        };
        let owner = match &owner.namespace {
            Some(namespace) => format!("PropagationPolicy {namespace}/{}", owner.name),
            None => format!("ClusterPropagationPolicy {}", owner.name),
        };
        let message = format!(
            "objects that this policy selects are claimed by {owner}, which was first by time or by name; a claim is kept \
             until its policy is deleted or no longer selects the object"
        );
        self.record_event(&object, true, "ClaimedByAnother", &message).await;
    }

    /// Patches the claim labels and annotations of an object, and nothing else.
    async fn patch_claim(&self, existing: &Value, wanted: Value) -> Result<Arc<Value>, Error> {
        let key = ObjectKey::of(existing);
        let type_meta = TypeMeta::of(existing);
        let informer = self.template_informer(&type_meta).ok_or(Error::UnknownKind(type_meta))?;
        if wanted == *existing {
            return Ok(Arc::new(wanted));
        }
        let patch = json!({"metadata": {
            "uid": object::meta(existing, "uid"),
            "resourceVersion": object::meta(existing, "resourceVersion"),
            "labels": difference(&existing["metadata"]["labels"], &wanted["metadata"]["labels"]),
            "annotations": difference(&existing["metadata"]["annotations"], &wanted["metadata"]["annotations"]),
        }});
        let answer = self.hub.api.patch(informer.kind(), &key.namespace, &key.name, &patch).await?;
        Ok(informer.write_through(answer))
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
        let informer = self.bindings(namespace);
        let existing = informer.get(&key.namespace, &name);
        if let Some(existing) = &existing {
            if object::is_deleting(existing) {
                return Ok(()); // of a deleted object with the same name; its deletion requeues this one
            }
            let of = &existing["spec"]["resource"];
            if of["uid"].as_str().is_some_and(|uid| uid != object::meta(template, "uid")) {
                self.queue.add(Key::Binding(namespace.map(str::to_owned), name));
                return Ok(());
            }
            if (&of["apiVersion"], &of["kind"]) != (&template["apiVersion"], &template["kind"]) {
                let message = format!(
                    "binding {name} belongs to {} {}: binding names do not include the API group, so this object cannot be propagated",
                    of["apiVersion"], of["kind"]
                );
                self.record_event(template, true, "BindingNameTaken", &message).await;
                return Ok(());
            }
            let lazy = policy.spec.activation_preference.as_deref() == Some("Lazy");
            let unchanged = of["resourceVersion"] == template["metadata"]["resourceVersion"];
            if lazy && !taken && unchanged {
                return Ok(()); // a lazy policy takes effect when the object changes
            }
        }
        let mut wanted = self.wanted_binding(template, policy, existing.as_deref()).await?;
        self.schedule(&mut wanted)?;
        let kind = binding_kind(namespace);
        match &existing {
            None => informer.write_through(self.hub.api.create(&kind, &wanted).await?),
            Some(existing) if !equal_except_version(existing, &wanted) => {
                informer.write_through(self.hub.api.replace(&kind, &wanted).await?)
            }
            Some(_) => return Ok(()),
        };
        Ok(())
    }

    async fn wanted_binding(
        &self,
        template: &Value,
        policy: &AnyPolicy,
        existing: Option<&Value>,
    ) -> Result<Value, Error> {
        let key = ObjectKey::of(template);
        let (kind, finalizer, id) = if key.namespace.is_empty() {
            (
                kinds::CLUSTER_BINDING,
                finalizers::karmada::CLUSTER_BINDING,
                labels::karmada::CLUSTER_BINDING_ID,
            )
        } else {
            (kinds::BINDING, finalizers::karmada::BINDING, labels::karmada::BINDING_ID)
        };
        let mut wanted = existing.cloned().unwrap_or_else(|| {
            let mut fresh = json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": names::binding(&key.kind, &key.name)}, "spec": {}});
            if !key.namespace.is_empty() {
                fresh["metadata"]["namespace"] = Value::String(key.namespace.clone());
            }
            fresh
        });
        claim::set_claim(&mut wanted, policy);
        if object::label(&wanted, id).is_empty() {
            object::set_label(&mut wanted, id, &self.new_id());
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
        match self.interpreter().replicas(template) {
            Ok(Some(replicas)) => {
                spec["replicas"] = Value::from(replicas.count);
                set(spec, "replicaRequirements", replicas.requirements);
            }
            Ok(None) => {
                set(spec, "replicas", None);
                set(spec, "replicaRequirements", None);
            }
            // The previous count is kept; the condition Interpreted reports the error.
            Err(error) => self.record_event(template, true, "GetReplicasFailed", &error.to_string()).await,
        }
        Ok(wanted)
    }

    /// Removes the claim from the binding of an object that no policy claims. The binding is otherwise
    /// unchanged.
    async fn release_binding_of(&self, key: &ObjectKey) -> Result<(), Error> {
        let namespace = (!key.namespace.is_empty()).then_some(key.namespace.as_str());
        let name = names::binding(&key.kind, &key.name);
        match self.bindings(namespace).get(&key.namespace, &name) {
            Some(binding) => self.release_binding(&binding).await,
            None => Ok(()),
        }
    }

    pub(super) async fn release_binding(&self, binding: &Value) -> Result<(), Error> {
        let mut unclaimed = binding.clone();
        claim::clear_claim(&mut unclaimed);
        if unclaimed == *binding {
            return Ok(());
        }
        let namespace = binding["metadata"]["namespace"].as_str();
        let answer = self.hub.api.replace(&binding_kind(namespace), &unclaimed).await?;
        self.bindings(namespace).write_through(answer);
        Ok(())
    }
}

pub(super) fn binding_kind(namespace: Option<&str>) -> ResourceKind {
    if namespace.is_some() { kinds::BINDING } else { kinds::CLUSTER_BINDING }
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
