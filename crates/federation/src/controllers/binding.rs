//! A binding: one Work for each cluster that it names, and none elsewhere.
//!
//! Reads   the binding, its object, clusters, its Works
//! Writes  the binding: clusters when an input of their choice changed, its finalizer · Works; its status is a key of its own
//!
//! A binding whose object is gone for certain is deleted here as well as by the garbage collector of the hub: whoever
//! comes first. One that no policy claims is left as it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use polis_api::karmada::{ResourceBindingSpec, TargetCluster};
use polis_api::{annotations, finalizers, labels};
use serde::Deserialize;
use serde_json::{Value, json};

use super::dependencies::targets;
use super::template::binding_kind;
use super::{has_finalizer, without_finalizer};
use crate::claim;
use crate::error::Error;
use crate::interpreter::ScriptError;
use crate::manifest::{self, Origin};
use crate::names;
use crate::object::{self, Identity};
use crate::planes::Fault;
use crate::queue::Outcome;
use crate::routing::resource_of;
use crate::world::{World, kinds};

impl World {
    pub(super) async fn settle_binding(&self, namespace: Option<&str>, name: &str) -> Result<Outcome, Error> {
        let mirror = self.bindings(namespace);
        let Some(binding) = mirror.get(namespace.unwrap_or_default(), name) else {
            return Ok(Outcome::Settled);
        };
        if object::is_deleting(&binding) {
            return self.withdraw_binding(namespace, &binding).await;
        }
        let template = match self.template(&resource_of(&binding)).await {
            Ok(template) => {
                template.filter(|template| binding["spec"]["resource"]["uid"] == template["metadata"]["uid"])
            }
            Err(Error::UnknownKind(_)) => return Ok(Outcome::Settled),
            Err(error) => return Err(error),
        };
        let Some(template) = template else {
            return self.confirm_orphan(namespace, &binding).await;
        };
        let mut wanted = (*binding).clone();
        let scheduled = self.schedule(&mut wanted)?;
        let binding = if wanted == *binding {
            binding
        } else {
            mirror.learn(self.hub.api.replace(&binding_kind(namespace), &wanted).await?)
        };
        if self.forget_gone_dependents(&binding).await? {
            return Ok(Outcome::Settled); // the change leads back here
        }
        let mut troubles = Vec::new();
        let what = || Identity::of(&binding).to_string();
        let spec = ResourceBindingSpec::deserialize(&binding["spec"])
            .map_err(|source| Error::Decode { what: what(), source })?;
        let mut works = Ok(());
        if claim::is_marked(&binding) || !spec.required_by.is_empty() {
            works = self.settle_works(namespace, &binding, &spec, &template, &mut troubles).await;
        }
        if works.as_ref().is_err_and(|error| !is_refusal(error)) {
            return works.map(|()| Outcome::Settled);
        }
        if namespace.is_some() {
            self.settle_dependencies(&binding, &spec, &template, &mut troubles).await?;
        }
        // Also when the hub does not take a Work: then this is all that is ever known.
        self.look_out(&binding, scheduled, &troubles);
        works.map(|()| Outcome::Settled)
    }

    /// Its object is not in sight. Only the word of the hub itself counts: if it is gone, the binding goes.
    async fn confirm_orphan(&self, namespace: Option<&str>, binding: &Value) -> Result<Outcome, Error> {
        let resource = resource_of(binding);
        let target = crate::interpreter::Target {
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
        };
        let Some(mirror) = self.templates(&target) else { return Ok(Outcome::Settled) };
        let there = self.hub.api.get(mirror.kind(), &resource.namespace, &resource.name).await?;
        if there.is_some_and(|there| there["metadata"]["uid"] == binding["spec"]["resource"]["uid"]) {
            return Err(Error::Waiting(format!("{resource} is there, but not in sight yet")));
        }
        let uid = object::meta(binding, "uid");
        self.hub
            .api
            .delete(
                &binding_kind(namespace),
                object::meta(binding, "namespace"),
                object::meta(binding, "name"),
                uid,
            )
            .await?;
        Ok(Outcome::Settled)
    }

    /// Lets the Works go, then itself. Each Work stays as a tombstone until its member confirms.
    async fn withdraw_binding(&self, namespace: Option<&str>, binding: &Value) -> Result<Outcome, Error> {
        for work in self.works_of(binding_id(binding)) {
            self.delete_work(&work).await?;
        }
        if namespace.is_some() {
            self.release_dependencies(binding).await?;
        }
        let finalizer = if namespace.is_some() {
            finalizers::karmada::BINDING
        } else {
            finalizers::karmada::CLUSTER_BINDING
        };
        if has_finalizer(binding, finalizer) {
            let patch = json!({"metadata": {
                "uid": object::meta(binding, "uid"),
                "resourceVersion": object::meta(binding, "resourceVersion"),
                "finalizers": without_finalizer(binding, finalizer),
            }});
            let (at, name) = (object::meta(binding, "namespace"), object::meta(binding, "name"));
            match self.hub.api.patch(&binding_kind(namespace), at, name, &patch).await {
                Ok(answer) => self.bindings(namespace).release(answer),
                Err(error) if error.fault == Fault::NotFound => {} // gone is what was wanted
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Outcome::Settled)
    }

    pub(super) async fn delete_work(&self, work: &Value) -> Result<(), Error> {
        if !object::is_deleting(work) {
            let uid = object::meta(work, "uid");
            self.hub
                .api
                .delete(&kinds::WORK, object::meta(work, "namespace"), object::meta(work, "name"), uid)
                .await?;
        }
        Ok(())
    }

    async fn settle_works(
        &self,
        namespace: Option<&str>,
        binding: &Value,
        spec: &ResourceBindingSpec,
        template: &Value,
        troubles: &mut Vec<ScriptError>,
    ) -> Result<(), Error> {
        let mut standing: BTreeMap<String, Arc<Value>> = self
            .works_of(binding_id(binding))
            .into_iter()
            .filter_map(|work| {
                Some((
                    names::cluster_of_execution_namespace(object::meta(&work, "namespace"))?.to_owned(),
                    work,
                ))
            })
            .collect();
        let mut failed = Ok(());
        for target in &targets(spec) {
            let work = standing.remove(&target.name);
            if self.cluster(&target.name).is_none_or(|facts| facts.candidate.deleting) {
                continue; // it leaves: the choice of clusters is about to change
            }
            match self.wanted_work(namespace, binding, spec, target, template, work.as_deref()) {
                Ok(wanted) => {
                    // What cannot be said to one member is still said to the others.
                    if let Err(error) = self.settle_one_work(work.as_deref(), wanted).await {
                        self.tell_of_failed_work(binding, template, &error).await;
                        failed = failed.and(Err(error));
                    }
                }
                Err(error) => troubles.push(error),
            }
        }
        for orphan in standing.values() {
            self.delete_work(orphan).await?;
        }
        failed
    }

    /// A Work that the hub does not take, for its size or for want of a right, is named on its binding and its object.
    async fn tell_of_failed_work(&self, binding: &Value, template: &Value, error: &Error) {
        if is_refusal(error) {
            for about in [binding, template] {
                self.tell(about, true, "SyncWorkFailed", &error.to_string()).await;
            }
        }
    }

    fn wanted_work(
        &self,
        namespace: Option<&str>,
        binding: &Value,
        spec: &ResourceBindingSpec,
        target: &TargetCluster,
        template: &Value,
        standing: Option<&Value>,
    ) -> Result<Value, ScriptError> {
        let identity = Identity::of(template);
        let revised = match target.replicas {
            Some(replicas) => self.interpreter().revise_replicas(template.clone(), replicas)?,
            None => template.clone(),
        };
        let standing_id = standing.map(|work| object::label(work, labels::karmada::WORK_ID).to_owned());
        let work_id = standing_id.filter(|id| !id.is_empty()).unwrap_or_else(|| self.new_id());
        let origin = Origin {
            binding_namespace: namespace,
            binding_name: object::meta(binding, "name"),
            binding_id: binding_id(binding),
            work_id: &work_id,
            cluster: &target.name,
            conflict_resolution: spec.conflict_resolution.as_deref(),
        };
        let suspended = spec.suspension.as_ref().is_some_and(|suspension| {
            let here = suspension
                .dispatching_on_clusters
                .as_ref()
                .is_some_and(|on| on.cluster_names.contains(&target.name));
            suspension.dispatching == Some(true) || here
        });
        let mut work = json!({
            "apiVersion": kinds::WORK.api_version, "kind": kinds::WORK.kind,
            "metadata": {
                "name": names::work(&identity.kind, &identity.namespace, &identity.name),
                "namespace": names::execution_namespace(&target.name),
                "finalizers": [finalizers::karmada::WORK],
                "labels": {labels::karmada::WORK_ID: work_id},
                "annotations": {annotations::karmada::CONFLICT_RESOLUTION: manifest::conflict_word(template, spec.conflict_resolution.as_deref())},
            },
            "spec": {
                "workload": {"manifests": [manifest::build(&revised, &origin)]},
                "suspendDispatching": suspended,
                "preserveResourcesOnDeletion": spec.preserve_resources_on_deletion.unwrap_or(false),
            },
        });
        match namespace {
            Some(namespace) => {
                object::set_label(&mut work, labels::karmada::BINDING_ID, origin.binding_id);
                object::set_annotation(&mut work, annotations::karmada::BINDING_NAMESPACE, namespace);
                object::set_annotation(&mut work, annotations::karmada::BINDING_NAME, origin.binding_name);
            }
            None => {
                object::set_label(&mut work, labels::karmada::CLUSTER_BINDING_ID, origin.binding_id);
                object::set_annotation(
                    &mut work,
                    annotations::karmada::CLUSTER_BINDING_NAME,
                    origin.binding_name,
                );
            }
        }
        Ok(work)
    }

    /// Brings one Work to what is wanted: one write, or none.
    pub(super) async fn settle_one_work(&self, standing: Option<&Value>, wanted: Value) -> Result<(), Error> {
        let Some(standing) = standing else {
            let namesake =
                self.hub.works.get(object::meta(&wanted, "namespace"), object::meta(&wanted, "name"));
            if namesake.is_some() {
                return Err(Error::Waiting(format!(
                    "the Work of this name in {} belongs to another binding",
                    object::meta(&wanted, "namespace")
                )));
            }
            self.hub.works.learn(self.hub.api.create(&kinds::WORK, &wanted).await?);
            return Ok(());
        };
        if object::is_deleting(standing) {
            return Ok(()); // its end leads back to the binding
        }
        let mut merged = standing.clone();
        merged["spec"] = wanted["spec"].clone();
        for map in ["labels", "annotations"] {
            for (key, value) in object::texts(&wanted["metadata"][map]) {
                match map {
                    "labels" => object::set_label(&mut merged, &key, &value),
                    _ => object::set_annotation(&mut merged, &key, &value),
                }
            }
        }
        super::add_finalizer(&mut merged, finalizers::karmada::WORK);
        if merged != *standing {
            self.hub.works.learn(self.hub.api.replace(&kinds::WORK, &merged).await?);
        }
        Ok(())
    }
}

/// Whether the hub will not take something however often it is asked.
fn is_refusal(error: &Error) -> bool {
    matches!(error.fault(), Some(Fault::Invalid | Fault::Forbidden))
}

/// The permanent id of a binding.
pub(super) fn binding_id(binding: &Value) -> &str {
    let id = object::label(binding, labels::karmada::BINDING_ID);
    if id.is_empty() { object::label(binding, labels::karmada::CLUSTER_BINDING_ID) } else { id }
}
