//! Binding controller: ensures one Work for each target cluster of a binding, and no other Works.
//!
//! Reads   the binding, its resource template, Clusters, Works
//! Writes  the binding (clusters, finalizer) · Works. The status of the binding has its own key.
//!
//! A binding without its template is deleted here or by the garbage collector of the hub, whichever is first.
//! A binding that no policy claims is not changed.

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
use crate::object::{self, ObjectKey};
use crate::planes::ApiErrorKind;
use crate::queue::Requeue;
use crate::routing::resource_of;
use crate::state::{FederationState, kinds};

impl FederationState {
    pub(super) async fn reconcile_binding(
        &self,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Requeue, Error> {
        let informer = self.bindings(namespace);
        let Some(binding) = informer.get(namespace.unwrap_or_default(), name) else {
            return Ok(Requeue::OnChange);
        };
        if object::is_deleting(&binding) {
            return self.finalize_binding(namespace, &binding).await;
        }
        let template = match self.template(&resource_of(&binding)).await {
            Ok(template) => {
                template.filter(|template| binding["spec"]["resource"]["uid"] == template["metadata"]["uid"])
            }
            Err(Error::UnknownKind(_)) => return Ok(Requeue::OnChange),
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
            informer.write_through(self.hub.api.replace(&binding_kind(namespace), &wanted).await?)
        };
        if self.drop_stale_dependents(&binding).await? {
            return Ok(Requeue::OnChange); // the change requeues the binding
        }
        let mut script_errors = Vec::new();
        let what = || ObjectKey::of(&binding).to_string();
        let spec = ResourceBindingSpec::deserialize(&binding["spec"])
            .map_err(|source| Error::Decode { what: what(), source })?;
        let mut works = Ok(());
        if claim::is_claimed(&binding) || !spec.required_by.is_empty() {
            works = self.ensure_works(namespace, &binding, &spec, &template, &mut script_errors).await;
        }
        if works.as_ref().is_err_and(|error| !is_refusal(error)) {
            return works.map(|()| Requeue::OnChange);
        }
        if namespace.is_some() {
            self.ensure_dependencies(&binding, &spec, &template, &mut script_errors).await?;
        }
        // Also if the hub rejects a Work: the status then reports at least the other Works.
        self.cache_status(&binding, scheduled, &script_errors);
        works.map(|()| Requeue::OnChange)
    }

    /// The informer does not have the template. If the hub does not have it either, the binding is deleted.
    async fn confirm_orphan(&self, namespace: Option<&str>, binding: &Value) -> Result<Requeue, Error> {
        let resource = resource_of(binding);
        let type_meta = crate::interpreter::TypeMeta {
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
        };
        let Some(informer) = self.template_informer(&type_meta) else { return Ok(Requeue::OnChange) };
        let live = self.hub.api.get(informer.kind(), &resource.namespace, &resource.name).await?;
        if live.is_some_and(|live| live["metadata"]["uid"] == binding["spec"]["resource"]["uid"]) {
            return Err(Error::Waiting(format!("{resource} exists but is not in the informer yet")));
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
        Ok(Requeue::OnChange)
    }

    /// Deletes the Works, then removes the finalizer. Each Work is terminating until its member confirms the
    /// deletion.
    async fn finalize_binding(&self, namespace: Option<&str>, binding: &Value) -> Result<Requeue, Error> {
        for work in self.works_of(binding_id(binding)) {
            self.delete_work(&work).await?;
        }
        if namespace.is_some() {
            self.detach_dependencies(binding).await?;
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
                Ok(answer) => self.bindings(namespace).finalizer_removed(answer),
                Err(error) if error.kind == ApiErrorKind::NotFound => {} // already deleted
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Requeue::OnChange)
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

    async fn ensure_works(
        &self,
        namespace: Option<&str>,
        binding: &Value,
        spec: &ResourceBindingSpec,
        template: &Value,
        script_errors: &mut Vec<ScriptError>,
    ) -> Result<(), Error> {
        let mut existing: BTreeMap<String, Arc<Value>> = self
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
            let work = existing.remove(&target.name);
            if self.cluster(&target.name).is_none_or(|info| info.candidate.deleting) {
                continue; // the Cluster is being deleted: the binding is about to be rescheduled
            }
            match self.wanted_work(namespace, binding, spec, target, template, work.as_deref()) {
                Ok(wanted) => {
                    // A failure for one member does not stop the others.
                    if let Err(error) = self.ensure_work(work.as_deref(), wanted).await {
                        self.record_failed_work(binding, template, &error).await;
                        failed = failed.and(Err(error));
                    }
                }
                Err(error) => script_errors.push(error),
            }
        }
        for orphan in existing.values() {
            self.delete_work(orphan).await?;
        }
        failed
    }

    /// Records an event on the binding and its template if the hub rejects a Work, for example for its size
    /// or a missing permission.
    async fn record_failed_work(&self, binding: &Value, template: &Value, error: &Error) {
        if is_refusal(error) {
            for for_kind_of in [binding, template] {
                self.record_event(for_kind_of, true, "SyncWorkFailed", &error.to_string()).await;
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
        existing: Option<&Value>,
    ) -> Result<Value, ScriptError> {
        let key = ObjectKey::of(template);
        let revised = match target.replicas {
            Some(replicas) => self.interpreter().revise_replicas(template.clone(), replicas)?,
            None => template.clone(),
        };
        let existing_id = existing.map(|work| object::label(work, labels::karmada::WORK_ID).to_owned());
        let work_id = existing_id.filter(|id| !id.is_empty()).unwrap_or_else(|| self.new_id());
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
                "name": names::work(&key.kind, &key.namespace, &key.name),
                "namespace": names::execution_namespace(&target.name),
                "finalizers": [finalizers::karmada::WORK],
                "labels": {labels::karmada::WORK_ID: work_id},
                "annotations": {annotations::karmada::CONFLICT_RESOLUTION: manifest::conflict_resolution(template, spec.conflict_resolution.as_deref())},
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

    /// Creates or updates one Work; at most one write.
    pub(super) async fn ensure_work(&self, existing: Option<&Value>, wanted: Value) -> Result<(), Error> {
        let Some(existing) = existing else {
            let other = self.hub.works.get(object::meta(&wanted, "namespace"), object::meta(&wanted, "name"));
            if other.is_some() {
                return Err(Error::Waiting(format!(
                    "the Work with this name in {} belongs to another binding",
                    object::meta(&wanted, "namespace")
                )));
            }
            self.hub.works.write_through(self.hub.api.create(&kinds::WORK, &wanted).await?);
            return Ok(());
        };
        if object::is_deleting(existing) {
            return Ok(()); // its deletion requeues the binding
        }
        let mut merged = existing.clone();
        merged["spec"] = wanted["spec"].clone();
        for map in ["labels", "annotations"] {
            for (key, value) in object::string_map(&wanted["metadata"][map]) {
                match map {
                    "labels" => object::set_label(&mut merged, &key, &value),
                    _ => object::set_annotation(&mut merged, &key, &value),
                }
            }
        }
        super::add_finalizer(&mut merged, finalizers::karmada::WORK);
        if merged != *existing {
            self.hub.works.write_through(self.hub.api.replace(&kinds::WORK, &merged).await?);
        }
        Ok(())
    }
}

/// Whether a retry of a rejected request cannot succeed.
fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), Some(ApiErrorKind::Invalid | ApiErrorKind::Forbidden))
}

/// The permanent id of a binding.
pub(super) fn binding_id(binding: &Value) -> &str {
    let id = object::label(binding, labels::karmada::BINDING_ID);
    if id.is_empty() { object::label(binding, labels::karmada::CLUSTER_BINDING_ID) } else { id }
}
