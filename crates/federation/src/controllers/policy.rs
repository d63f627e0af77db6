//! Policy controller: defaults policies, releases their claims on deletion, and starts informers for their
//! kinds.
//!
//! Reads   PropagationPolicy, ClusterPropagationPolicy, claimed templates and bindings
//! Writes  the policy (permanent id, finalizer, default namespaces) · claims of a deleted policy
//! Order   the finalizer is removed after all claims
//!
//! Karmada sets id and defaults in webhooks. The id must exist before the first claim: it distinguishes a
//! policy from a later one with the same name.

use std::time::Duration;

use polis_api::{finalizers, labels};
use serde_json::{Value, json};

use super::{add_finalizer, has_finalizer, without_finalizer};
use crate::claim;
use crate::error::Error;
use crate::interpreter::TypeMeta;
use crate::matching::is_propagatable;
use crate::object::{self, ObjectKey};
use crate::planes::{Informer, ResourceKind};
use crate::queue::Requeue;
use crate::routing::{read_policy, resource_of};
use crate::state::{FederationState, Key, kinds};

/// Interval of the discovery of a kind that the hub does not serve. A new CRD triggers it at once.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(30);

impl FederationState {
    pub(super) async fn reconcile_policy(
        &self,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Requeue, Error> {
        let (kind, informer, finalizer, id) = if namespace.is_some() {
            (kinds::POLICY, &self.hub.policies, finalizers::karmada::POLICY, labels::karmada::POLICY_ID)
        } else {
            (
                kinds::CLUSTER_POLICY,
                &self.hub.cluster_policies,
                finalizers::karmada::CLUSTER_POLICY,
                labels::karmada::CLUSTER_POLICY_ID,
            )
        };
        let Some(policy) = informer.get(namespace.unwrap_or_default(), name) else {
            return Ok(Requeue::OnChange);
        };
        if object::is_deleting(&policy) {
            return self.finalize_policy(&kind, informer, &policy, finalizer).await;
        }
        let mut wanted = (*policy).clone();
        if object::label(&wanted, id).is_empty() {
            object::set_label(&mut wanted, id, &self.new_id());
        }
        add_finalizer(&mut wanted, finalizer);
        if let Some(namespace) = namespace {
            default_namespaces(&mut wanted, namespace);
        }
        if wanted != *policy {
            informer.write_through(self.hub.api.replace(&kind, &wanted).await?);
        }
        for selector in wanted["spec"]["resourceSelectors"].as_array().into_iter().flatten() {
            let text = |field: &str| selector[field].as_str().unwrap_or_default().to_owned();
            let type_meta = TypeMeta { api_version: text("apiVersion"), kind: text("kind") };
            if !is_propagatable(&type_meta.api_version, &type_meta.kind) {
                let message = format!(
                    "{} {} belongs to the federation itself and is never propagated",
                    type_meta.api_version, type_meta.kind
                );
                self.record_event(&wanted, true, "NotPropagatable", &message).await;
            }
        }
        Ok(Requeue::OnChange)
    }

    /// Removes the claims of the policy. Its objects stay propagated.
    async fn finalize_policy(
        &self,
        kind: &ResourceKind,
        informer: &Informer,
        policy: &Value,
        finalizer: &str,
    ) -> Result<Requeue, Error> {
        if !has_finalizer(policy, finalizer) {
            return Ok(Requeue::OnChange);
        }
        let Some(read) = read_policy(policy) else { return Ok(Requeue::OnChange) };
        let informers: Vec<Informer> = self.hub.templates.read().values().cloned().collect();
        for templates in informers {
            templates.synced().await;
            for template in templates.list().iter().filter(|template| claim::is_claimed_by(template, &read)) {
                Box::pin(self.reconcile_template(&ObjectKey::of(template))).await?;
            }
        }
        // Bindings whose template is deleted, or of a kind without an informer.
        for bindings in [&self.hub.bindings, &self.hub.cluster_bindings] {
            for binding in bindings.list().iter().filter(|binding| claim::is_claimed_by(binding, &read)) {
                if self
                    .template(&resource_of(binding))
                    .await
                    .ok()
                    .flatten()
                    .is_some_and(|template| claim::is_claimed(&template))
                {
                    continue;
                }
                self.release_binding(binding).await?;
            }
        }
        let patch = json!({"metadata": {
            "uid": object::meta(policy, "uid"),
            "resourceVersion": object::meta(policy, "resourceVersion"),
            "finalizers": without_finalizer(policy, finalizer),
        }});
        let answer = self
            .hub
            .api
            .patch(kind, object::meta(policy, "namespace"), object::meta(policy, "name"), &patch)
            .await?;
        informer.write_through(answer);
        Ok(Requeue::OnChange)
    }

    /// Looks up a kind on the hub and starts its informer.
    pub(super) async fn reconcile_kind(&self, type_meta: &TypeMeta) -> Result<Requeue, Error> {
        if self.template_informer(type_meta).is_some()
            || !is_propagatable(&type_meta.api_version, &type_meta.kind)
        {
            return Ok(Requeue::OnChange);
        }
        let wanted = self.policies.read().kinds().contains(type_meta)
            || self.needed_kinds.read().contains(type_meta)
            || self.hub.bindings.list().iter().chain(&self.hub.cluster_bindings.list()).any(|binding| {
                let resource = resource_of(binding);
                resource.api_version == type_meta.api_version && resource.kind == type_meta.kind
            });
        if !wanted {
            return Ok(Requeue::OnChange);
        }
        match self.hub.api.find_kind(type_meta).await? {
            Some(kind) => {
                let informer = self.start_template_informer(&kind);
                informer.synced().await;
                // Events that arrived before the informer was registered were ignored.
                self.enqueue_templates(type_meta, None);
                self.enqueue_all_bindings(Key::Binding);
                Ok(Requeue::OnChange)
            }
            None => Ok(Requeue::After(DISCOVERY_INTERVAL)),
        }
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
