//! Policies and the kinds that they speak of.
//!
//! Reads   PropagationPolicy, ClusterPropagationPolicy, the objects that they claimed
//! Writes  the policy: permanent id, finalizer, defaults; its finalizer goes when nothing bears its marks any more
//!
//! Karmada does the first in webhooks. The id must be there before anything is claimed: it is what tells a policy from
//! its next namesake.

use std::time::Duration;

use polis_api::{finalizers, labels};
use serde_json::{Value, json};

use super::{add_finalizer, has_finalizer, without_finalizer};
use crate::claim;
use crate::error::Error;
use crate::interpreter::Target;
use crate::matching::is_propagatable;
use crate::object::{self, Identity};
use crate::planes::{Kind, Mirror};
use crate::queue::Outcome;
use crate::routing::{read_policy, resource_of};
use crate::world::{Key, World, kinds};

/// A kind that a policy names and the hub does not serve is asked for this often, unless a definition appears.
const ASK_AGAIN: Duration = Duration::from_secs(30);

impl World {
    pub(super) async fn settle_policy(&self, namespace: Option<&str>, name: &str) -> Result<Outcome, Error> {
        let (kind, mirror, finalizer, id) = if namespace.is_some() {
            (kinds::POLICY, &self.hub.policies, finalizers::karmada::POLICY, labels::karmada::POLICY_ID)
        } else {
            (
                kinds::CLUSTER_POLICY,
                &self.hub.cluster_policies,
                finalizers::karmada::CLUSTER_POLICY,
                labels::karmada::CLUSTER_POLICY_ID,
            )
        };
        let Some(policy) = mirror.get(namespace.unwrap_or_default(), name) else {
            return Ok(Outcome::Settled);
        };
        if object::is_deleting(&policy) {
            return self.withdraw_policy(&kind, mirror, &policy, finalizer).await;
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
            mirror.learn(self.hub.api.replace(&kind, &wanted).await?);
        }
        for selector in wanted["spec"]["resourceSelectors"].as_array().into_iter().flatten() {
            let text = |field: &str| selector[field].as_str().unwrap_or_default().to_owned();
            let target = Target { api_version: text("apiVersion"), kind: text("kind") };
            if !is_propagatable(&target.api_version, &target.kind) {
                let message = format!(
                    "{} {} belongs to the federation itself and is never propagated",
                    target.api_version, target.kind
                );
                self.tell(&wanted, true, "NotPropagatable", &message).await;
            }
        }
        Ok(Outcome::Settled)
    }

    /// Takes the policy's marks off everything; what it propagated stays where it is.
    async fn withdraw_policy(
        &self,
        kind: &Kind,
        mirror: &Mirror,
        policy: &Value,
        finalizer: &str,
    ) -> Result<Outcome, Error> {
        if !has_finalizer(policy, finalizer) {
            return Ok(Outcome::Settled);
        }
        let Some(read) = read_policy(policy) else { return Ok(Outcome::Settled) };
        let mirrors: Vec<Mirror> = self.hub.templates.read().values().cloned().collect();
        for templates in mirrors {
            templates.synced().await;
            for template in templates.all().iter().filter(|template| claim::is_marked_by(template, &read)) {
                Box::pin(self.settle_template(&Identity::of(template))).await?;
            }
        }
        // Bindings whose object is of a kind that is no longer mirrored, or gone.
        for bindings in [&self.hub.bindings, &self.hub.cluster_bindings] {
            for binding in bindings.all().iter().filter(|binding| claim::is_marked_by(binding, &read)) {
                if self
                    .template(&resource_of(binding))
                    .await
                    .ok()
                    .flatten()
                    .is_some_and(|template| claim::is_marked(&template))
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
        mirror.learn(answer);
        Ok(Outcome::Settled)
    }

    /// Looks a kind up on the hub and begins to mirror it.
    pub(super) async fn settle_kind(&self, target: &Target) -> Result<Outcome, Error> {
        if self.templates(target).is_some() || !is_propagatable(&target.api_version, &target.kind) {
            return Ok(Outcome::Settled);
        }
        let wanted = self.policies.read().targets().contains(target)
            || self.needed_kinds.read().contains(target)
            || self.hub.bindings.all().iter().chain(&self.hub.cluster_bindings.all()).any(|binding| {
                let resource = resource_of(binding);
                resource.api_version == target.api_version && resource.kind == target.kind
            });
        if !wanted {
            return Ok(Outcome::Settled);
        }
        match self.hub.api.find_kind(target).await? {
            Some(kind) => {
                let mirror = self.mirror_templates(&kind);
                mirror.synced().await;
                // What was seen while the mirror was not yet known did not lead anywhere.
                self.look_at_templates(target, None);
                self.look_at_all_bindings(Key::Binding);
                Ok(Outcome::Settled)
            }
            None => Ok(Outcome::After(ASK_AGAIN)),
        }
    }
}

/// Selectors of a policy in a namespace speak of that namespace unless they say otherwise.
fn default_namespaces(policy: &mut Value, namespace: &str) {
    for selector in policy["spec"]["resourceSelectors"].as_array_mut().into_iter().flatten() {
        if selector["namespace"].as_str().unwrap_or_default().is_empty() {
            selector["namespace"] = Value::String(namespace.to_owned());
        }
    }
}
