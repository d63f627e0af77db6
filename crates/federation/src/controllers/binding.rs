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
use polis_engine::{Action, Change, Engine, Key, Plane, Reconciler, Unresolved};
use serde::Deserialize;
use serde_json::{Value, json};

use super::dependencies::{Dependencies, attached_to, targets};
use super::scheduler::schedule;
use crate::claim;
use crate::error::Error;
use crate::hub::{Hub, binding_id, binding_kind, resource_of, spec_changed};
use crate::interpreter::{ScriptError, TypeMeta};
use crate::kinds;
use crate::manifest::{self, Origin};
use crate::names;
use crate::object::{self, ObjectKey};
use crate::shared::Shared;
use crate::works::{self, delete_unless_replaced, remove_finalizer};

struct Bindings(Arc<Shared>);

pub(super) fn declare(engine: &mut Engine, shared: &Arc<Shared>) {
    let hub = &shared.hub.plane;
    let mut controller = engine.controller("binding", hub, Bindings(shared.clone())).skips_own_writes();
    for bindings in [&kinds::BINDING, &kinds::CLUSTER_BINDING] {
        let shared = shared.clone();
        controller =
            controller.watches_untyped(hub, bindings, move |_, change| of_binding(&shared.hub, change));
    }
    let (added, namespaces) = (shared.clone(), shared.clone());
    let controller = controller
        .watches_untyped(hub, &kinds::WORK, |hub, change| {
            let binding =
                change.object().filter(|_| spec_changed(change)).and_then(|work| key_of_origin(hub, work));
            Ok(binding.into_iter().collect())
        })
        .watches_added(hub, move |_, change| of_template(&added, change))
        .watches_untyped(hub, &kinds::NAMESPACE, move |_, change| of_template(&namespaces, change));
    shared.triggers.binding.declare(controller);
}

/// The key of the binding in the annotations of a Work or member object.
pub(super) fn key_of_origin(hub: &Plane, object: &Value) -> Option<Key> {
    let name = object::annotation(object, annotations::karmada::BINDING_NAME);
    if !name.is_empty() {
        let namespace = object::annotation(object, annotations::karmada::BINDING_NAMESPACE);
        return Some(crate::hub::key(hub, namespace, name));
    }
    let name = object::annotation(object, annotations::karmada::CLUSTER_BINDING_NAME);
    (!name.is_empty()).then(|| crate::hub::key(hub, "", name))
}

fn of_binding(hub: &Hub, change: &Change<'_>) -> Result<Vec<Key>, Unresolved> {
    if !spec_changed(change) {
        return Ok(Vec::new());
    }
    let name = change.name();
    let namespace = name.namespace.unwrap_or_default();
    let mut keys = vec![hub.key(namespace, name.name)];
    if let Some(binding) = change.object().filter(|_| change.is_deletion() && !namespace.is_empty()) {
        // The bindings of its dependencies may be attached to no other binding now.
        keys.extend(attached_to(hub, binding)?.iter().map(|attached| hub.key(namespace, attached)));
    }
    Ok(keys)
}

/// The binding of a template, and the bindings that depend on the template.
fn of_template(shared: &Shared, change: &Change<'_>) -> Result<Vec<Key>, Unresolved> {
    if !shared.kinds.is_watched(change.kind()) || !spec_changed(change) {
        return Ok(Vec::new());
    }
    let (hub, name) = (&shared.hub, change.name());
    let namespace = name.namespace.unwrap_or_default();
    let mut keys = vec![hub.key(namespace, &names::binding(&change.kind().kind, name.name))];
    let TypeMeta { api_version, kind } = kinds::type_meta(change.kind());
    let template =
        ObjectKey { api_version, kind, namespace: namespace.to_owned(), name: name.name.to_owned() };
    let dependents = shared.dependents.of(&template);
    keys.extend(dependents.iter().map(|(namespace, dependent)| hub.key(namespace, dependent)));
    Ok(keys)
}

impl Reconciler for Bindings {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let (shared, hub) = (&*self.0, &self.0.hub);
        let namespace = key.namespace.as_deref();
        let Some(binding) = hub.binding(key)? else { return Ok(Action::AwaitChange) };
        if object::is_deleting(&binding) {
            self.finalize(namespace, &binding).await?;
            return Ok(Action::AwaitChange);
        }
        let template = match shared.kinds.template(&resource_of(&binding)).await {
            Ok(template) => {
                template.filter(|template| binding["spec"]["resource"]["uid"] == template["metadata"]["uid"])
            }
            Err(Error::UnknownKind(_)) => return Ok(Action::AwaitChange),
            Err(error) => return Err(error),
        };
        let Some(template) = template else {
            self.confirm_orphan(namespace, &binding).await?;
            return Ok(Action::AwaitChange);
        };
        let mut wanted = (*binding).clone();
        let scheduled = schedule(&shared.clusters, &mut wanted)?;
        let mut binding = binding;
        if wanted != *binding {
            binding = hub.of(binding_kind(namespace)).update(&wanted).await?;
        }
        if Dependencies(shared).drop_stale_dependents(&binding).await? {
            shared.triggers.binding.add(key.clone());
            return Ok(Action::AwaitChange);
        }
        let mut script_errors = Vec::new();
        let what = || ObjectKey::of(&binding).to_string();
        let spec = ResourceBindingSpec::deserialize(&binding["spec"])
            .map_err(|source| Error::Decode { what: what(), source })?;
        let mut works = Ok(());
        if claim::is_claimed(&binding) || !spec.required_by.is_empty() {
            works = self.ensure_works(namespace, &binding, &spec, &template, &mut script_errors).await;
        }
        if works.as_ref().is_err_and(|error| !error.is_refusal()) {
            return works.map(|()| Action::AwaitChange);
        }
        if namespace.is_some() {
            let dependencies = Dependencies(shared);
            dependencies.ensure_dependencies(&binding, &spec, &template, &mut script_errors).await?;
        }
        // Also if the hub rejects a Work: the status then reports at least the other Works.
        shared.results.set(&binding, scheduled, &script_errors);
        shared.triggers.status.add(key.clone());
        works.map(|()| Action::AwaitChange)
    }
}

impl Bindings {
    /// The cache does not have the template. If the hub does not have it either, the binding is deleted.
    async fn confirm_orphan(&self, namespace: Option<&str>, binding: &Value) -> Result<(), Error> {
        let resource = resource_of(binding);
        let type_meta = TypeMeta { api_version: resource.api_version.clone(), kind: resource.kind.clone() };
        let Some(kind) = self.0.kinds.get(&type_meta) else { return Ok(()) };
        let hub = &self.0.hub;
        let live = hub.of(&kind).read((resource.namespace.as_str(), resource.name.as_str())).await?;
        if live.is_some_and(|live| live["metadata"]["uid"] == binding["spec"]["resource"]["uid"]) {
            return Err(Error::Waiting(format!("{resource} exists but is not in the cache yet")));
        }
        delete_unless_replaced(hub, binding_kind(namespace), binding).await?;
        Ok(())
    }

    /// Deletes the Works, then removes the finalizer. Each Work is terminating until its member confirms the
    /// deletion.
    async fn finalize(&self, namespace: Option<&str>, binding: &Value) -> Result<(), Error> {
        let hub = &self.0.hub;
        for work in works::of_binding(hub, binding_id(binding))? {
            works::delete(hub, &work).await?;
        }
        let finalizer = if namespace.is_some() {
            Dependencies(&self.0).detach_dependencies(binding).await?;
            finalizers::karmada::BINDING
        } else {
            finalizers::karmada::CLUSTER_BINDING
        };
        remove_finalizer(hub, binding_kind(namespace), binding, finalizer).await
    }

    async fn ensure_works(
        &self,
        namespace: Option<&str>,
        binding: &Value,
        spec: &ResourceBindingSpec,
        template: &Value,
        script_errors: &mut Vec<ScriptError>,
    ) -> Result<(), Error> {
        let hub = &self.0.hub;
        let mut existing: BTreeMap<String, Arc<Value>> = works::of_binding(hub, binding_id(binding))?
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
            if !self.0.clusters.stays(&target.name)? {
                continue; // the Cluster is being deleted: the binding is about to be rescheduled
            }
            match self.wanted_work(namespace, binding, spec, target, template, work.as_deref()) {
                Ok(wanted) => {
                    // A failure for one member does not stop the others.
                    if let Err(error) = works::ensure(hub, work.as_deref(), wanted).await {
                        self.warn_failed_work(binding, template, &error);
                        failed = failed.and(Err(error));
                    }
                }
                Err(error) => script_errors.push(error),
            }
        }
        for orphan in existing.values() {
            works::delete(hub, orphan).await?;
        }
        failed
    }

    /// Records an event on the binding and its template if the hub rejects a Work, for example for its size
    /// or a missing permission.
    fn warn_failed_work(&self, binding: &Value, template: &Value, error: &Error) {
        if error.is_refusal() {
            for about in [binding, template] {
                self.0.hub.warn(about, "SyncWorkFailed", &error.to_string());
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
            Some(replicas) => self.0.scripts.current().revise_replicas(template.clone(), replicas)?,
            None => template.clone(),
        };
        let existing_id = existing.map(|work| object::label(work, labels::karmada::WORK_ID).to_owned());
        let work_id = existing_id.filter(|id| !id.is_empty()).unwrap_or_else(|| self.0.hub.new_id());
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
            "apiVersion": kinds::WORK.api_version(), "kind": kinds::WORK.kind,
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
}
