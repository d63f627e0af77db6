//! Namespace controller: propagates every Namespace with its labels to every member, without a policy.
//!
//! Reads   Namespace, Cluster
//! Writes  Works, owned by the Namespace, without a binding

use std::sync::Arc;

use polis_api::{annotations, finalizers, labels};
use polis_engine::{Action, Engine, Key, Reconciler};
use serde_json::{Value, json};

use crate::error::Error;
use crate::hub::{binding_id, spec_changed};
use crate::kinds;
use crate::manifest;
use crate::matching::is_propagatable_namespace;
use crate::names;
use crate::object;
use crate::shared::Shared;
use crate::works;

struct Namespaces(Arc<Shared>);

pub(super) fn declare(engine: &mut Engine, shared: &Arc<Shared>) {
    let hub = &shared.hub.plane;
    engine
        .controller("namespace", hub, Namespaces(shared.clone()))
        .skips_own_writes()
        .watches_untyped(hub, &kinds::NAMESPACE, |hub, change| {
            let name = change.name().name;
            let is_own = names::cluster_of_execution_namespace(name).is_some();
            Ok(if is_own || !spec_changed(change) {
                Vec::new()
            } else {
                vec![crate::hub::key(hub, "", name)]
            })
        })
        .watches_untyped(hub, &kinds::WORK, |hub, change| {
            // The Work of a Namespace has no binding.
            let Some(work) =
                change.object().filter(|work| change.is_deletion() && binding_id(work).is_empty())
            else {
                return Ok(Vec::new());
            };
            let manifest = &work["spec"]["workload"]["manifests"][0];
            Ok(vec![crate::hub::key(hub, "", object::meta(manifest, "name"))])
        });
}

impl Reconciler for Namespaces {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let (shared, name) = (&*self.0, &*key.name);
        if !is_propagated(name) {
            return Ok(Action::AwaitChange);
        }
        let namespace = shared.hub.get(&kinds::NAMESPACE, "", name)?;
        let work_name = names::work("Namespace", "", name);
        for cluster in shared.clusters.names()? {
            match &namespace {
                Some(namespace) => ensure_on_member(shared, namespace, &cluster).await?,
                None => {
                    let space = names::execution_namespace(&cluster);
                    if let Some(work) = shared.hub.get(&kinds::WORK, &space, &work_name)? {
                        works::delete(&shared.hub, &work).await?;
                    }
                }
            }
        }
        Ok(Action::AwaitChange)
    }
}

/// Whether a Namespace is propagated. Every plane creates `default` itself.
pub(super) fn is_propagated(name: &str) -> bool {
    name != "default" && is_propagatable_namespace(name)
}

/// Ensures the Work of a Namespace for one member.
pub(super) async fn ensure_on_member(shared: &Shared, namespace: &Value, cluster: &str) -> Result<(), Error> {
    let hub = &shared.hub;
    let name = object::meta(namespace, "name");
    let space = names::execution_namespace(cluster);
    let stays = object::label(namespace, labels::karmada::SKIP_AUTO_PROPAGATION) == "true";
    if object::is_deleting(namespace)
        || stays
        || !shared.clusters.stays(cluster)?
        || hub.get(&kinds::NAMESPACE, "", &space)?.is_none()
    {
        return Ok(()); // a change of any of these requeues the Namespace
    }
    let work_name = names::work("Namespace", "", name);
    let existing = hub.get(&kinds::WORK, &space, &work_name)?;
    let existing_id = existing.as_ref().map(|work| object::label(work, labels::karmada::WORK_ID).to_owned());
    let work_id = existing_id.filter(|id| !id.is_empty()).unwrap_or_else(|| hub.new_id());
    let mut manifest = manifest::build_namespace(namespace, cluster, &work_id);
    // An existing Namespace of the member is taken over.
    object::set_annotation(&mut manifest, annotations::karmada::CONFLICT_RESOLUTION, "overwrite");
    let wanted = json!({
        "apiVersion": kinds::WORK.api_version(), "kind": kinds::WORK.kind,
        "metadata": {
            "name": work_name, "namespace": space, "finalizers": [finalizers::karmada::WORK],
            "labels": {labels::karmada::WORK_ID: work_id},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Namespace", "name": name, "uid": object::meta(namespace, "uid"),
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {"workload": {"manifests": [manifest]}, "suspendDispatching": false, "preserveResourcesOnDeletion": false},
    });
    works::ensure(hub, existing.as_deref(), wanted).await
}
