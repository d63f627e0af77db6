//! Namespace controller: propagates every Namespace with its labels to every member, without a policy.
//!
//! Reads   Namespace, Cluster
//! Writes  Works, owned by the Namespace, without a binding

use polis_api::{annotations, finalizers, labels};
use serde_json::{Value, json};

use crate::error::Error;
use crate::manifest;
use crate::matching::is_propagatable_namespace;
use crate::names;
use crate::object;
use crate::queue::Requeue;
use crate::state::{FederationState, kinds};

impl FederationState {
    pub(super) async fn reconcile_namespace(&self, name: &str) -> Result<Requeue, Error> {
        // Every plane creates `default` itself.
        if name == "default" || !is_propagatable_namespace(name) {
            return Ok(Requeue::OnChange);
        }
        let work_name = names::work("Namespace", "", name);
        let Some(namespace) = self.hub.namespaces.get("", name) else {
            for cluster in self.cluster_names() {
                if let Some(work) = self.hub.works.get(&names::execution_namespace(&cluster), &work_name) {
                    self.delete_work(&work).await?;
                }
            }
            return Ok(Requeue::OnChange);
        };
        for cluster in self.cluster_names() {
            self.ensure_namespace_on(&namespace, &cluster).await?;
        }
        Ok(Requeue::OnChange)
    }

    /// Ensures all Namespaces on one new member.
    pub(super) async fn reconcile_namespaces_on(&self, cluster: &str) -> Result<Requeue, Error> {
        for namespace in self.hub.namespaces.list() {
            let name = object::meta(&namespace, "name");
            if name != "default" && is_propagatable_namespace(name) {
                self.ensure_namespace_on(&namespace, cluster).await?;
            }
        }
        Ok(Requeue::OnChange)
    }

    async fn ensure_namespace_on(&self, namespace: &Value, cluster: &str) -> Result<(), Error> {
        let name = object::meta(namespace, "name");
        let space = names::execution_namespace(cluster);
        let stays = object::label(namespace, labels::karmada::SKIP_AUTO_PROPAGATION) == "true";
        let leaving = self.cluster(cluster).is_none_or(|info| info.candidate.deleting);
        if object::is_deleting(namespace) || stays || leaving || self.hub.namespaces.get("", &space).is_none()
        {
            return Ok(()); // a change of any of these requeues the Namespace
        }
        let work_name = names::work("Namespace", "", name);
        let existing = self.hub.works.get(&space, &work_name);
        let existing_id =
            existing.as_ref().map(|work| object::label(work, labels::karmada::WORK_ID).to_owned());
        let work_id = existing_id.filter(|id| !id.is_empty()).unwrap_or_else(|| self.new_id());
        let mut manifest = manifest::build_namespace(namespace, cluster, &work_id);
        // An existing Namespace of the member is taken over.
        object::set_annotation(&mut manifest, annotations::karmada::CONFLICT_RESOLUTION, "overwrite");
        let wanted = json!({
            "apiVersion": kinds::WORK.api_version, "kind": kinds::WORK.kind,
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
        self.ensure_work(existing.as_deref(), wanted).await
    }

    fn cluster_names(&self) -> Vec<String> {
        self.clusters.read().keys().cloned().collect()
    }
}
