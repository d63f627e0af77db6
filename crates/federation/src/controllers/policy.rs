//! Policy controller: defaults policies, and releases their claims on deletion.
//!
//! Reads   PropagationPolicy, ClusterPropagationPolicy, claimed templates and bindings
//! Writes  the policy (permanent id, finalizer, default namespaces) · claims of a deleted policy
//! Order   the finalizer is removed after all claims
//!
//! Karmada sets id and defaults in webhooks. The id must exist before the first claim: it distinguishes a
//! policy from a later one with the same name.

use std::sync::Arc;

use polis_api::{finalizers, labels};
use polis_engine::{Action, Engine, Key, Kind, Reconciler};
use serde_json::Value;

use super::template;
use crate::claim;
use crate::clusters::read_policy;
use crate::error::Error;
use crate::finalizers::{add_finalizer, has_finalizer};
use crate::hub::resource_of;
use crate::kinds;
use crate::matching::is_propagatable;
use crate::object::{self, ObjectKey};
use crate::shared::Shared;
use crate::works::remove_finalizer;

struct Policies(Arc<Shared>);

pub(super) fn declare(engine: &mut Engine, shared: &Arc<Shared>) {
    let hub = &shared.hub.plane;
    let key = |hub: &polis_engine::Plane, change: &polis_engine::Change<'_>| {
        let name = change.name();
        Ok(vec![crate::hub::key(hub, name.namespace.unwrap_or_default(), name.name)])
    };
    engine
        .controller("policy", hub, Policies(shared.clone()))
        .skips_own_writes()
        .watches_untyped(hub, &kinds::POLICY, key)
        .watches_untyped(hub, &kinds::CLUSTER_POLICY, key);
}

impl Reconciler for Policies {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let hub = &self.0.hub;
        let (kind, finalizer, id) = if key.namespace.is_some() {
            (&kinds::POLICY, finalizers::karmada::POLICY, labels::karmada::POLICY_ID)
        } else {
            (&kinds::CLUSTER_POLICY, finalizers::karmada::CLUSTER_POLICY, labels::karmada::CLUSTER_POLICY_ID)
        };
        let Some(policy) = hub.of(kind).get(key)? else {
            self.0.policies.forget(key.namespace(), &key.name);
            return Ok(Action::AwaitChange);
        };
        if object::is_deleting(&policy) {
            self.finalize(kind, &policy, finalizer).await?;
            return Ok(Action::AwaitChange);
        }
        let mut wanted = (*policy).clone();
        if object::label(&wanted, id).is_empty() {
            object::set_label(&mut wanted, id, &hub.new_id());
        }
        add_finalizer(&mut wanted, finalizer);
        if let Some(namespace) = &key.namespace {
            default_namespaces(&mut wanted, namespace);
        }
        if wanted != *policy {
            hub.of(kind).update(&wanted).await?;
        }
        for selector in wanted["spec"]["resourceSelectors"].as_array().into_iter().flatten() {
            let text = |field: &str| selector[field].as_str().unwrap_or_default();
            let (api_version, kind) = (text("apiVersion"), text("kind"));
            if !is_propagatable(api_version, kind) {
                let message =
                    format!("{api_version} {kind} belongs to the federation itself and is never propagated");
                hub.warn(&wanted, "NotPropagatable", &message);
            }
        }
        Ok(Action::AwaitChange)
    }
}

impl Policies {
    /// Removes the claims of the policy. Its objects stay propagated.
    async fn finalize(&self, kind: &Kind, policy: &Value, finalizer: &str) -> Result<(), Error> {
        let (shared, hub) = (&*self.0, &self.0.hub);
        if !has_finalizer(policy, finalizer) {
            return Ok(());
        }
        let Some(read) = read_policy(policy) else { return Ok(()) };
        for templates in shared.kinds.all() {
            hub.plane.wait_until_synced(&templates).await?;
            let all = hub.of(&templates).list()?;
            for template in all.iter().filter(|template| claim::is_claimed_by(template, &read)) {
                template::reconcile(shared, &ObjectKey::of(template)).await?;
            }
        }
        // Bindings whose template is deleted, or of a kind that is not watched.
        for bindings in [&kinds::BINDING, &kinds::CLUSTER_BINDING] {
            let all = hub.of(bindings).list()?;
            for binding in all.iter().filter(|binding| claim::is_claimed_by(binding, &read)) {
                let template = shared.kinds.template(&resource_of(binding)).await.ok().flatten();
                if !template.is_some_and(|template| claim::is_claimed(&template)) {
                    template::release_binding(hub, binding).await?;
                }
            }
        }
        remove_finalizer(hub, kind, policy, finalizer).await
    }
}

/// Sets the namespace of selectors of a PropagationPolicy to its own namespace if they have none.
fn default_namespaces(policy: &mut Value, namespace: &str) {
    for selector in policy["spec"]["resourceSelectors"].as_array_mut().into_iter().flatten() {
        if selector["namespace"].as_str().unwrap_or_default().is_empty() {
            selector["namespace"] = Value::String(namespace.to_owned());
        }
    }
}
