//! Namespaces go to every member by themselves, with their labels, so that whatever comes after them has a place.
//!
//! Reads   Namespace, Cluster
//! Writes  Works, owned by the namespace and belonging to no binding

use polis_api::{annotations, finalizers, labels};
use serde_json::{Value, json};

use crate::error::Error;
use crate::manifest;
use crate::matching::is_propagatable_namespace;
use crate::names;
use crate::object;
use crate::queue::Outcome;
use crate::world::{World, kinds};

impl World {
    pub(super) async fn settle_namespace(&self, name: &str) -> Result<Outcome, Error> {
        // Every plane has its own `default`.
        if name == "default" || !is_propagatable_namespace(name) {
            return Ok(Outcome::Settled);
        }
        let work_name = names::work("Namespace", "", name);
        let Some(namespace) = self.hub.namespaces.get("", name) else {
            for cluster in self.cluster_names() {
                if let Some(work) = self.hub.works.get(&names::execution_namespace(&cluster), &work_name) {
                    self.delete_work(&work).await?;
                }
            }
            return Ok(Outcome::Settled);
        };
        for cluster in self.cluster_names() {
            self.settle_namespace_on(&namespace, &cluster).await?;
        }
        Ok(Outcome::Settled)
    }

    /// A member has come: it gets all namespaces, and nobody else is looked at.
    pub(super) async fn settle_namespaces_on(&self, cluster: &str) -> Result<Outcome, Error> {
        for namespace in self.hub.namespaces.all() {
            let name = object::meta(&namespace, "name");
            if name != "default" && is_propagatable_namespace(name) {
                self.settle_namespace_on(&namespace, cluster).await?;
            }
        }
        Ok(Outcome::Settled)
    }

    async fn settle_namespace_on(&self, namespace: &Value, cluster: &str) -> Result<(), Error> {
        let name = object::meta(namespace, "name");
        let space = names::execution_namespace(cluster);
        let stays = object::label(namespace, labels::karmada::SKIP_AUTO_PROPAGATION) == "true";
        let leaving = self.cluster(cluster).is_none_or(|facts| facts.candidate.deleting);
        if object::is_deleting(namespace) || stays || leaving || self.hub.namespaces.get("", &space).is_none()
        {
            return Ok(()); // what is not there yet leads back here when it comes
        }
        let work_name = names::work("Namespace", "", name);
        let standing = self.hub.works.get(&space, &work_name);
        let standing_id =
            standing.as_ref().map(|work| object::label(work, labels::karmada::WORK_ID).to_owned());
        let work_id = standing_id.filter(|id| !id.is_empty()).unwrap_or_else(|| self.new_id());
        let mut manifest = manifest::build_namespace(namespace, cluster, &work_id);
        // A namespace that a member already has is shared, not fought over.
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
        self.settle_one_work(standing.as_deref(), wanted).await
    }

    fn cluster_names(&self) -> Vec<String> {
        self.clusters.read().keys().cloned().collect()
    }
}
