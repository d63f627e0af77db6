//! An object that may be propagated: whose it is, and the binding that says so.
//!
//! Reads   the object, policies, clusters, its binding
//! Writes  the object: claim marks · its binding: everything but what others chose, with the clusters in the same write
//! Order   marks before the binding, so that no binding exists whose object does not show its owner.

use std::sync::Arc;

use polis_api::karmada::PropagationSpec;
use polis_api::{finalizers, labels};
use serde_json::{Value, json};

use super::{add_finalizer, tree};
use crate::claim::{self, Claim};
use crate::error::Error;
use crate::interpreter::Target;
use crate::matching::{Policy, is_propagatable, is_propagatable_namespace};
use crate::names;
use crate::object::{self, Identity};
use crate::planes::{Fault, Kind};
use crate::queue::Outcome;
use crate::world::{Key, World, kinds};

impl World {
    pub(super) async fn settle_template(&self, identity: &Identity) -> Result<Outcome, Error> {
        if !is_propagatable(&identity.api_version, &identity.kind)
            || !is_propagatable_namespace(&identity.namespace)
        {
            return Ok(Outcome::Settled);
        }
        let namespace = (!identity.namespace.is_empty()).then(|| identity.namespace.clone());
        let binding_key = Key::Binding(namespace.clone(), names::binding(&identity.kind, &identity.name));
        let template = match self.template(identity).await {
            Ok(template) => template,
            // Not looked up yet; the kind has a key of its own.
            Err(Error::UnknownKind(_)) => return Ok(Outcome::Settled),
            Err(error) => return Err(error),
        };
        let Some(template) = template.filter(|template| !object::is_deleting(template)) else {
            self.queue.add(binding_key); // which finds out whether its object is gone
            return Ok(Outcome::Settled);
        };
        let policies = self.policies.read().about(&template);
        let claim = claim::decide(&policies, &template);
        if let Claim::Keep(owner) | Claim::Take(owner) = claim
            && let Some(rival) = claim::rival(&policies, owner, &template)
        {
            self.tell_rival(rival, owner).await;
        }
        let settled = self.settle_claim(identity, &template, claim).await;
        if let Err(error) = &settled
            && error.fault() == Some(Fault::Invalid)
        {
            self.tell(&template, true, "ApplyPolicyFailed", &error.to_string()).await;
        }
        settled.map(|()| Outcome::Settled)
    }

    async fn settle_claim(
        &self,
        identity: &Identity,
        template: &Arc<Value>,
        claim: Claim<'_>,
    ) -> Result<(), Error> {
        match claim {
            Claim::None => {}
            Claim::Release => {
                let mut free = (**template).clone();
                claim::unmark(&mut free);
                self.remark(template, free).await?;
                self.release_binding_of(identity).await?;
            }
            Claim::Keep(policy) => self.settle_binding_of(template, policy, false).await?,
            Claim::Take(policy) => {
                let mut marked = (**template).clone();
                claim::mark(&mut marked, policy);
                let template = self.remark(template, marked).await?;
                self.settle_binding_of(&template, policy, true).await?;
            }
        }
        Ok(())
    }

    /// Says on a policy that another one has what it selects. Once for each pair, whatever the number of objects.
    async fn tell_rival(&self, rival: &Policy, owner: &Policy) {
        let mirror = match rival.namespace {
            Some(_) => &self.hub.policies,
            None => &self.hub.cluster_policies,
        };
        let Some(object) = mirror.get(rival.namespace.as_deref().unwrap_or_default(), &rival.name) else {
            return;
        };
        let owner = match &owner.namespace {
            Some(namespace) => format!("PropagationPolicy {namespace}/{}", owner.name),
            None => format!("ClusterPropagationPolicy {}", owner.name),
        };
        let message = format!(
            "objects that this policy selects belong to {owner}, which was first, by time or by name; a claim is kept until \
             its policy goes or no longer selects the object"
        );
        self.tell(&object, true, "ClaimedByAnother", &message).await;
    }

    /// Writes the marks of an object, and nothing else of it.
    async fn remark(&self, standing: &Value, wanted: Value) -> Result<Arc<Value>, Error> {
        let identity = Identity::of(standing);
        let target = Target::of(standing);
        let mirror = self.templates(&target).ok_or(Error::UnknownKind(target))?;
        if wanted == *standing {
            return Ok(Arc::new(wanted));
        }
        let patch = json!({"metadata": {
            "uid": object::meta(standing, "uid"),
            "resourceVersion": object::meta(standing, "resourceVersion"),
            "labels": difference(&standing["metadata"]["labels"], &wanted["metadata"]["labels"]),
            "annotations": difference(&standing["metadata"]["annotations"], &wanted["metadata"]["annotations"]),
        }});
        let answer = self.hub.api.patch(mirror.kind(), &identity.namespace, &identity.name, &patch).await?;
        Ok(mirror.learn(answer))
    }

    /// Brings the binding of a claimed object to where it should be.
    async fn settle_binding_of(&self, template: &Value, policy: &Policy, taken: bool) -> Result<(), Error> {
        let identity = Identity::of(template);
        let namespace = (!identity.namespace.is_empty()).then_some(identity.namespace.as_str());
        let name = names::binding(&identity.kind, &identity.name);
        let mirror = self.bindings(namespace);
        let standing = mirror.get(&identity.namespace, &name);
        if let Some(standing) = &standing {
            if object::is_deleting(standing) {
                return Ok(()); // of an object that was here before; its end leads back here
            }
            let of = &standing["spec"]["resource"];
            if of["uid"].as_str().is_some_and(|uid| uid != object::meta(template, "uid")) {
                self.queue.add(Key::Binding(namespace.map(str::to_owned), name));
                return Ok(());
            }
            if (&of["apiVersion"], &of["kind"]) != (&template["apiVersion"], &template["kind"]) {
                let message = format!(
                    "binding {name} belongs to {} {}: names of bindings leave out the API group, so this object cannot be propagated",
                    of["apiVersion"], of["kind"]
                );
                self.tell(template, true, "BindingNameTaken", &message).await;
                return Ok(());
            }
            let lazy = policy.spec.activation_preference.as_deref() == Some("Lazy");
            let seen = of["resourceVersion"] == template["metadata"]["resourceVersion"];
            if lazy && !taken && seen {
                return Ok(()); // changes of the policy wait until the object changes
            }
        }
        let mut wanted = self.wanted_binding(template, policy, standing.as_deref()).await?;
        self.schedule(&mut wanted)?;
        let kind = binding_kind(namespace);
        match &standing {
            None => mirror.learn(self.hub.api.create(&kind, &wanted).await?),
            Some(standing) if !same_but_version(standing, &wanted) => {
                mirror.learn(self.hub.api.replace(&kind, &wanted).await?)
            }
            Some(_) => return Ok(()),
        };
        Ok(())
    }

    async fn wanted_binding(
        &self,
        template: &Value,
        policy: &Policy,
        standing: Option<&Value>,
    ) -> Result<Value, Error> {
        let identity = Identity::of(template);
        let (kind, finalizer, id) = if identity.namespace.is_empty() {
            (
                kinds::CLUSTER_BINDING,
                finalizers::karmada::CLUSTER_BINDING,
                labels::karmada::CLUSTER_BINDING_ID,
            )
        } else {
            (kinds::BINDING, finalizers::karmada::BINDING, labels::karmada::BINDING_ID)
        };
        let mut wanted = standing.cloned().unwrap_or_else(|| {
            let mut fresh = json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": names::binding(&identity.kind, &identity.name)}, "spec": {}});
            if !identity.namespace.is_empty() {
                fresh["metadata"]["namespace"] = Value::String(identity.namespace.clone());
            }
            fresh
        });
        claim::mark(&mut wanted, policy);
        if object::label(&wanted, id).is_empty() {
            object::set_label(&mut wanted, id, &self.new_id());
        }
        add_finalizer(&mut wanted, finalizer);
        wanted["metadata"]["ownerReferences"] = json!([{
            "apiVersion": identity.api_version, "kind": identity.kind, "name": identity.name, "uid": object::meta(template, "uid"),
            "controller": true, "blockOwnerDeletion": true,
        }]);
        let mut resource = json!({
            "apiVersion": identity.api_version, "kind": identity.kind, "name": identity.name, "uid": object::meta(template, "uid"),
            "resourceVersion": object::meta(template, "resourceVersion"),
        });
        if !identity.namespace.is_empty() {
            resource["namespace"] = Value::String(identity.namespace.clone());
        }
        let spec = &mut wanted["spec"];
        spec["resource"] = resource;
        lay_policy(spec, &policy.spec)?;
        match self.interpreter().replicas(template) {
            Ok(Some(replicas)) => {
                spec["replicas"] = Value::from(replicas.count);
                set(spec, "replicaRequirements", replicas.requirements);
            }
            Ok(None) => {
                set(spec, "replicas", None);
                set(spec, "replicaRequirements", None);
            }
            // The count of before stands; the condition of the binding says what is wrong.
            Err(error) => self.tell(template, true, "GetReplicasFailed", &error.to_string()).await,
        }
        Ok(wanted)
    }

    /// Takes the marks off the binding of an object that nobody claims any more. The rest of it stays as it is.
    async fn release_binding_of(&self, identity: &Identity) -> Result<(), Error> {
        let namespace = (!identity.namespace.is_empty()).then_some(identity.namespace.as_str());
        let name = names::binding(&identity.kind, &identity.name);
        match self.bindings(namespace).get(&identity.namespace, &name) {
            Some(binding) => self.release_binding(&binding).await,
            None => Ok(()),
        }
    }

    pub(super) async fn release_binding(&self, binding: &Value) -> Result<(), Error> {
        let mut free = binding.clone();
        claim::unmark(&mut free);
        if free == *binding {
            return Ok(());
        }
        let namespace = binding["metadata"]["namespace"].as_str();
        let answer = self.hub.api.replace(&binding_kind(namespace), &free).await?;
        self.bindings(namespace).learn(answer);
        Ok(())
    }
}

pub(super) fn binding_kind(namespace: Option<&str>) -> Kind {
    if namespace.is_some() { kinds::BINDING } else { kinds::CLUSTER_BINDING }
}

/// Carries over what the policy says.
fn lay_policy(spec: &mut Value, policy: &PropagationSpec) -> Result<(), Error> {
    spec["placement"] = tree("placement", &policy.placement)?;
    spec["schedulerName"] = json!(policy.scheduler_name.as_deref().unwrap_or("default-scheduler"));
    spec["conflictResolution"] = json!(policy.conflict_resolution.as_deref().unwrap_or("Abort"));
    set(spec, "propagateDeps", policy.propagate_deps.then_some(Value::Bool(true)));
    set(spec, "preserveResourcesOnDeletion", policy.preserve_resources_on_deletion.map(Value::Bool));
    set(spec, "failover", policy.extra.get("failover").cloned());
    // Whether clusters are chosen at all is not the policy's business: another controller may have said so.
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

/// What a merge patch must say to bring one map to another; null removes.
fn difference(standing: &Value, wanted: &Value) -> Value {
    let (standing, wanted) = (object::texts(standing), object::texts(wanted));
    let gone = standing.keys().filter(|key| !wanted.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let new = wanted
        .iter()
        .filter(|(key, value)| standing.get(*key) != Some(value))
        .map(|(key, value)| (key.clone(), Value::String(value.clone())));
    Value::Object(gone.chain(new).collect())
}

/// A binding need not be written only because its object has another version: what changed in it goes to the Works directly.
fn same_but_version(standing: &Value, wanted: &Value) -> bool {
    let bare = |binding: &Value| {
        let mut binding = binding.clone();
        object::remove(&mut binding, &["spec", "resource", "resourceVersion"]);
        binding
    };
    standing == wanted || bare(standing) == bare(wanted)
}
