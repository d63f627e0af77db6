//! Dependency propagation: an object's dependencies are propagated to the clusters of the object.
//!
//! Reads   the dependencies of the object, from its interpreter · attached bindings
//! Writes  an attached binding for each dependency, with a snapshot of the clusters of the dependent binding
//!
//! An attached binding has the clusters of every binding in its `requiredBy`, and those of its own policy if
//! one claims it. It is deleted when no binding requires it and no policy claims it.

use polis_api::karmada::{ResourceBindingSpec, TargetCluster};
use polis_api::{finalizers, labels};
use serde_json::{Value, json};

use super::template::binding_kind;
use super::{add_finalizer, tree};
use crate::claim;
use crate::error::Error;
use crate::interpreter::{ScriptError, TypeMeta};
use crate::matching::{is_propagatable, matches_labels};
use crate::names;
use crate::object::{self, ObjectKey};
use crate::planes::ApiErrorKind;
use crate::state::{FederationState, Key, kinds};

/// Prefix of the label with the hash of a dependent binding.
const DEPENDED_BY: &str = "resourcebinding.karmada.io/depended-by-";

impl FederationState {
    /// Ensures the attached bindings of all dependencies of an object.
    pub(super) async fn ensure_dependencies(
        &self,
        binding: &Value,
        spec: &ResourceBindingSpec,
        template: &Value,
        script_errors: &mut Vec<ScriptError>,
    ) -> Result<(), Error> {
        let mut needed = Vec::new();
        if spec.propagate_deps && claim::is_claimed(binding) {
            match self.interpreter().dependencies(template) {
                Ok(references) => needed = self.resolve(&references),
                // Existing attached bindings stay: a failing script must not remove objects.
                Err(error) => {
                    script_errors.push(error);
                    return Ok(());
                }
            }
        }
        for key in &needed {
            self.attach(binding, spec, key).await?;
        }
        let label = label_of(binding);
        for attached in self.attached_bindings(object::meta(binding, "namespace")) {
            if !object::label(&attached, &label).is_empty()
                && !needed.contains(&crate::routing::resource_of(&attached))
            {
                self.detach(&attached, binding).await?;
            }
        }
        Ok(())
    }

    /// Detaches all bindings from a binding that is being deleted.
    pub(super) async fn detach_dependencies(&self, binding: &Value) -> Result<(), Error> {
        let label = label_of(binding);
        for attached in self.attached_bindings(object::meta(binding, "namespace")) {
            if !object::label(&attached, &label).is_empty() {
                self.detach(&attached, binding).await?;
            }
        }
        Ok(())
    }

    /// Removes a snapshot of a deleted binding from an attached binding; true if one was removed.
    pub(super) async fn drop_stale_dependents(&self, binding: &Value) -> Result<bool, Error> {
        for snapshot in binding["spec"]["requiredBy"].as_array().into_iter().flatten() {
            let (namespace, name) = (
                snapshot["namespace"].as_str().unwrap_or_default(),
                snapshot["name"].as_str().unwrap_or_default(),
            );
            let scope = (!namespace.is_empty()).then_some(namespace);
            if self.bindings(scope).get(namespace, name).is_none()
                && self.hub.api.get(&binding_kind(scope), namespace, name).await?.is_none()
            {
                let deleted = json!({"metadata": {"namespace": namespace, "name": name}});
                self.detach(binding, &deleted).await?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The objects that references select, by name or by labels. A kind without an informer is enqueued; its
    /// sync requeues the bindings.
    fn resolve(&self, references: &[Value]) -> Vec<ObjectKey> {
        let mut found = Vec::new();
        for reference in references {
            let text = |field: &str| reference[field].as_str().unwrap_or_default().to_owned();
            let type_meta = TypeMeta { api_version: text("apiVersion"), kind: text("kind") };
            if !is_propagatable(&type_meta.api_version, &type_meta.kind) {
                continue;
            }
            let Some(informer) = self.template_informer(&type_meta) else {
                self.needed_kinds.write().insert(type_meta.clone());
                self.queue.add(Key::Kind(type_meta));
                continue;
            };
            let (namespace, name) = (text("namespace"), text("name"));
            if !name.is_empty() {
                found.push(ObjectKey {
                    api_version: type_meta.api_version,
                    kind: type_meta.kind,
                    namespace,
                    name,
                });
                continue;
            }
            let Ok(selector) = serde_json::from_value(reference["labelSelector"].clone()) else { continue };
            let selected = informer
                .list_namespace(&namespace)
                .into_iter()
                .filter(|object| matches_labels(&selector, &object::labels(object)));
            found.extend(selected.map(|object| ObjectKey::of(&object)));
        }
        found.sort();
        found.dedup();
        found
    }

    async fn attach(&self, by: &Value, spec: &ResourceBindingSpec, key: &ObjectKey) -> Result<(), Error> {
        let template = match self.template(key).await {
            Ok(Some(template)) if !object::is_deleting(&template) => template,
            Ok(_) | Err(Error::UnknownKind(_)) => return Ok(()), // its creation requeues the binding
            Err(error) => return Err(error),
        };
        let name = names::binding(&key.kind, &key.name);
        let existing = self.hub.bindings.get(&key.namespace, &name);
        if existing.as_ref().is_some_and(|existing| {
            object::is_deleting(existing)
                || existing["spec"]["resource"]["uid"] != template["metadata"]["uid"]
        }) {
            return Err(Error::Waiting(format!(
                "binding {name} of a deleted object with the same name still exists"
            )));
        }
        let mut wanted = existing.as_deref().cloned().unwrap_or_else(|| {
            json!({
                "apiVersion": kinds::BINDING.api_version, "kind": kinds::BINDING.kind,
                "metadata": {
                    "namespace": key.namespace, "name": name,
                    "labels": {labels::karmada::BINDING_ID: self.new_id()},
                    "ownerReferences": [{
                        "apiVersion": key.api_version, "kind": key.kind, "name": key.name, "uid": object::meta(&template, "uid"),
                        "controller": true, "blockOwnerDeletion": true,
                    }],
                },
                "spec": {"resource": {
                    "apiVersion": key.api_version, "kind": key.kind, "namespace": key.namespace, "name": key.name,
                    "uid": object::meta(&template, "uid"), "resourceVersion": object::meta(&template, "resourceVersion"),
                }},
            })
        });
        add_finalizer(&mut wanted, finalizers::karmada::BINDING);
        object::set_label(&mut wanted, &label_of(by), "true");
        let snapshot = json!({"namespace": object::meta(by, "namespace"), "name": object::meta(by, "name"), "clusters": tree("clusters", &bare(&spec.clusters))?});
        let mut required: Vec<Value> = wanted["spec"]["requiredBy"].as_array().cloned().unwrap_or_default();
        required.retain(|other| !is_of(other, by));
        required.push(snapshot);
        required.sort_by_key(|snapshot| (snapshot["namespace"].to_string(), snapshot["name"].to_string()));
        wanted["spec"]["requiredBy"] = Value::Array(required);
        match existing {
            None => {
                drop(self.hub.bindings.write_through(self.hub.api.create(&kinds::BINDING, &wanted).await?))
            }
            Some(existing) if *existing != wanted => {
                drop(self.hub.bindings.write_through(self.hub.api.replace(&kinds::BINDING, &wanted).await?))
            }
            Some(_) => {}
        }
        Ok(())
    }

    async fn detach(&self, attached: &Value, by: &Value) -> Result<(), Error> {
        if object::is_deleting(attached) {
            return Ok(());
        }
        let mut wanted = attached.clone();
        object::remove_keys(&mut wanted, "labels", &[&label_of(by)]);
        let mut required: Vec<Value> = wanted["spec"]["requiredBy"].as_array().cloned().unwrap_or_default();
        required.retain(|other| !is_of(other, by));
        let unrequired = required.is_empty();
        match unrequired {
            true => drop(object::remove(&mut wanted, &["spec", "requiredBy"])),
            false => wanted["spec"]["requiredBy"] = Value::Array(required),
        }
        if unrequired && !claim::is_claimed(attached) {
            let (namespace, name) = (object::meta(attached, "namespace"), object::meta(attached, "name"));
            self.hub.api.delete(&kinds::BINDING, namespace, name, object::meta(attached, "uid")).await?;
            return Ok(());
        }
        match self.hub.api.replace(&kinds::BINDING, &wanted).await {
            Ok(answer) => drop(self.hub.bindings.write_through(answer)),
            Err(error) if error.kind == ApiErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// The target clusters of a binding: its scheduled clusters, and those of every binding in `requiredBy`.
pub(super) fn targets(spec: &ResourceBindingSpec) -> Vec<TargetCluster> {
    let mut targets = spec.clusters.clone();
    for snapshot in &spec.required_by {
        for cluster in snapshot["clusters"].as_array().into_iter().flatten() {
            let name = cluster["name"].as_str().unwrap_or_default();
            if !name.is_empty() && !targets.iter().any(|target| target.name == name) {
                targets.push(TargetCluster { name: name.to_owned(), ..TargetCluster::default() });
            }
        }
    }
    targets
}

fn bare(clusters: &[TargetCluster]) -> Vec<TargetCluster> {
    clusters
        .iter()
        .map(|target| TargetCluster { name: target.name.clone(), ..TargetCluster::default() })
        .collect()
}

fn is_of(snapshot: &Value, by: &Value) -> bool {
    snapshot["namespace"] == *object::meta(by, "namespace") && snapshot["name"] == *object::meta(by, "name")
}

/// Whether a binding is or was attached to another. Only the dependent binding removes its label.
pub(crate) fn is_attached(binding: &Value) -> bool {
    let labels = binding["metadata"]["labels"].as_object();
    binding["spec"]["requiredBy"].is_array()
        || labels.is_some_and(|labels| labels.keys().any(|key| key.starts_with(DEPENDED_BY)))
}

fn label_of(by: &Value) -> String {
    format!(
        "{DEPENDED_BY}{}",
        names::binding_reference(object::meta(by, "namespace"), object::meta(by, "name"))
    )
}
