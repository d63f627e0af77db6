//! Namespaces go to every member by themselves, with their labels, so that whatever comes after them has a place.
//!
//! Reads   Namespace, Cluster
//! Writes  Works, owned by the namespace and belonging to no binding

use polis_api::{annotations, finalizers, labels};
use serde_json::json;

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
        if object::is_deleting(&namespace)
            || object::label(&namespace, labels::karmada::SKIP_AUTO_PROPAGATION) == "true"
        {
            return Ok(Outcome::Settled);
        }
        for cluster in self.cluster_names() {
            let space = names::execution_namespace(&cluster);
            let leaving = self.cluster(&cluster).is_none_or(|facts| facts.candidate.deleting);
            if leaving || self.hub.namespaces.get("", &space).is_none() {
                continue; // its coming leads back here
            }
            let standing = self.hub.works.get(&space, &work_name);
            let standing_id =
                standing.as_ref().map(|work| object::label(work, labels::karmada::WORK_ID).to_owned());
            let work_id = standing_id.filter(|id| !id.is_empty()).unwrap_or_else(|| self.new_id());
            let mut manifest = manifest::build_namespace(&namespace, &cluster, &work_id);
            // A namespace that a member already has is shared, not fought over.
            object::set_annotation(&mut manifest, annotations::karmada::CONFLICT_RESOLUTION, "overwrite");
            let wanted = json!({
                "apiVersion": kinds::WORK.api_version, "kind": kinds::WORK.kind,
                "metadata": {
                    "name": work_name, "namespace": space, "finalizers": [finalizers::karmada::WORK],
                    "labels": {labels::karmada::WORK_ID: work_id},
                    "ownerReferences": [{
                        "apiVersion": "v1", "kind": "Namespace", "name": name, "uid": object::meta(&namespace, "uid"),
                        "controller": true, "blockOwnerDeletion": true,
                    }],
                },
                "spec": {"workload": {"manifests": [manifest]}, "suspendDispatching": false, "preserveResourcesOnDeletion": false},
            });
            self.settle_one_work(standing.as_deref(), wanted).await?;
        }
        Ok(Outcome::Settled)
    }

    fn cluster_names(&self) -> Vec<String> {
        self.clusters.read().keys().cloned().collect()
    }
}
