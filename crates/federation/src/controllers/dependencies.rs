//! Dependency propagation: an object's dependencies are propagated to the clusters of the object.
//!
//! Reads   the dependencies of the object, from its interpreter · attached bindings
//! Writes  an attached binding for each dependency, with a snapshot of the clusters of the dependent binding
//!
//! An attached binding has the clusters of every binding in its `requiredBy`, and those of its own policy if
//! one claims it. It is deleted when no binding requires it and no policy claims it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use polis_api::karmada::{ResourceBindingSpec, TargetCluster};
use polis_api::{finalizers, labels};
use polis_engine::Index;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{kind, tree};
use crate::claim;
use crate::dependents::Dependency;
use crate::error::Error;
use crate::finalizers::add_finalizer;
use crate::hub::{Hub, binding_kind, resource_of};
use crate::interpreter::{ScriptError, TypeMeta};
use crate::kinds;
use crate::matching::{is_propagatable, matches_labels};
use crate::names;
use crate::object::{self, ObjectKey};
use crate::shared::Shared;
use crate::works::delete_unless_replaced;

/// Prefix of the label with the hash of a dependent binding.
const DEPENDED_BY: &str = "resourcebinding.karmada.io/depended-by-";

/// Attached bindings by the label of each binding that they are or were attached to.
pub(super) fn by_dependent() -> Index {
    Index::Computed("dependent binding", dependents)
}

fn dependents(binding: &[u8]) -> Vec<String> {
    #[derive(Deserialize)]
    struct Binding {
        metadata: Metadata,
        #[serde(default)]
        spec: Spec,
    }
    #[derive(Deserialize)]
    struct Metadata {
        #[serde(default)]
        labels: BTreeMap<String, String>,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        #[serde(default)]
        required_by: Vec<Value>,
    }
    let Ok(Binding { metadata, spec }) = serde_json::from_slice(binding) else { return Vec::new() };
    let labels = metadata.labels.into_keys().filter(|label| label.starts_with(DEPENDED_BY));
    let snapshots = spec.required_by.iter().map(|snapshot| {
        let text = |field: &str| snapshot[field].as_str().unwrap_or_default();
        label_for(text("namespace"), text("name"))
    });
    labels.chain(snapshots).collect::<BTreeSet<String>>().into_iter().collect()
}

/// The names of the bindings that are or were attached to a binding.
pub(super) fn attached_to(hub: &Hub, binding: &Value) -> Result<Vec<String>, Error> {
    let namespace = object::meta(binding, "namespace");
    Ok(hub.of(&kinds::BINDING).names_within(namespace, &by_dependent(), &label_of(binding))?)
}

/// Propagates the dependencies of objects.
pub(super) struct Dependencies<'a>(pub(super) &'a Shared);

impl Dependencies<'_> {
    /// Ensures the attached bindings of all dependencies of an object.
    pub(super) async fn ensure_dependencies(
        &self,
        binding: &Value,
        spec: &ResourceBindingSpec,
        template: &Value,
        script_errors: &mut Vec<ScriptError>,
    ) -> Result<(), Error> {
        let mut needed = Vec::new();
        if !spec.propagate_deps || !claim::is_claimed(binding) {
            self.0.dependents.set(name_of(binding), BTreeSet::new());
        } else {
            match self.0.scripts.current().dependencies(template) {
                Ok(references) => {
                    // Before the objects are read: a later event of one of them queues the binding again.
                    self.0.dependents.set(name_of(binding), dependencies(&references));
                    needed = self.resolve(&references)?;
                }
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
        for attached in self.attached(binding)? {
            if !needed.contains(&resource_of(&attached)) {
                self.detach(&attached, binding).await?;
            }
        }
        Ok(())
    }

    /// Detaches all bindings from a binding that is being deleted.
    pub(super) async fn detach_dependencies(&self, binding: &Value) -> Result<(), Error> {
        self.0.dependents.set(name_of(binding), BTreeSet::new());
        for attached in self.attached(binding)? {
            self.detach(&attached, binding).await?;
        }
        Ok(())
    }

    /// The bindings with the label of a binding.
    fn attached(&self, binding: &Value) -> Result<Vec<Arc<Value>>, Error> {
        let (namespace, label) = (object::meta(binding, "namespace"), label_of(binding));
        let mut attached = Vec::new();
        for name in attached_to(&self.0.hub, binding)? {
            let found = self.0.hub.get(&kinds::BINDING, namespace, &name)?;
            attached.extend(found.filter(|found| !object::label(found, &label).is_empty()));
        }
        Ok(attached)
    }

    /// Removes a snapshot of a deleted binding from an attached binding; true if one was removed.
    pub(super) async fn drop_stale_dependents(&self, binding: &Value) -> Result<bool, Error> {
        for snapshot in binding["spec"]["requiredBy"].as_array().into_iter().flatten() {
            let (namespace, name) = (
                snapshot["namespace"].as_str().unwrap_or_default(),
                snapshot["name"].as_str().unwrap_or_default(),
            );
            let scope = (!namespace.is_empty()).then_some(namespace);
            let bindings = self.0.hub.of(binding_kind(scope));
            if bindings.get((namespace, name))?.is_none() && bindings.read((namespace, name)).await?.is_none()
            {
                let deleted = json!({"metadata": {"namespace": namespace, "name": name}});
                self.detach(binding, &deleted).await?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The objects that references select, by name or by labels. A kind that is not watched is enqueued; its
    /// sync requeues the bindings.
    fn resolve(&self, references: &[Value]) -> Result<Vec<ObjectKey>, Error> {
        let mut found = Vec::new();
        for reference in references {
            let text = |field: &str| reference[field].as_str().unwrap_or_default().to_owned();
            let type_meta = TypeMeta { api_version: text("apiVersion"), kind: text("kind") };
            if !is_propagatable(&type_meta.api_version, &type_meta.kind) {
                continue;
            }
            self.0.kinds.set_needed(type_meta.clone());
            let Some(watched) = self.0.kinds.get(&type_meta) else {
                self.0.triggers.kind.add(kind::key_of(&self.0.hub, &type_meta));
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
            let selected = self
                .0
                .hub
                .of(&watched)
                .list_within(&namespace)?
                .into_iter()
                .filter(|object| matches_labels(&selector, &object::labels(object)));
            found.extend(selected.map(|object| ObjectKey::of(&object)));
        }
        found.sort();
        found.dedup();
        Ok(found)
    }

    async fn attach(&self, by: &Value, spec: &ResourceBindingSpec, key: &ObjectKey) -> Result<(), Error> {
        let template = match self.0.kinds.template(key).await {
            Ok(Some(template)) if !object::is_deleting(&template) => template,
            Ok(_) | Err(Error::UnknownKind(_)) => return Ok(()), // its creation requeues the binding
            Err(error) => return Err(error),
        };
        let name = names::binding(&key.kind, &key.name);
        let existing = self.0.hub.get(&kinds::BINDING, &key.namespace, &name)?;
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
                "apiVersion": kinds::BINDING.api_version(), "kind": kinds::BINDING.kind,
                "metadata": {
                    "namespace": key.namespace, "name": name,
                    "labels": {labels::karmada::BINDING_ID: self.0.hub.new_id()},
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
            None => drop(self.0.hub.of(&kinds::BINDING).create(&wanted).await?),
            Some(existing) if *existing != wanted => {
                drop(self.0.hub.of(&kinds::BINDING).update(&wanted).await?)
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
            delete_unless_replaced(&self.0.hub, &kinds::BINDING, attached).await?;
            return Ok(());
        }
        match self.0.hub.of(&kinds::BINDING).update(&wanted).await {
            Err(error) if error.is_not_found() => Ok(()),
            result => Ok(result.map(drop)?),
        }
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

/// Namespace and name of a binding.
fn name_of(binding: &Value) -> (String, String) {
    (object::meta(binding, "namespace").to_owned(), object::meta(binding, "name").to_owned())
}

/// What references select.
fn dependencies(references: &[Value]) -> BTreeSet<Dependency> {
    let dependency = |reference: &Value| {
        let text = |field: &str| reference[field].as_str().unwrap_or_default().to_owned();
        Dependency {
            type_meta: TypeMeta { api_version: text("apiVersion"), kind: text("kind") },
            namespace: text("namespace"),
            name: Some(text("name")).filter(|name| !name.is_empty()),
        }
    };
    references.iter().map(dependency).collect()
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

fn label_of(by: &Value) -> String {
    label_for(object::meta(by, "namespace"), object::meta(by, "name"))
}

fn label_for(namespace: &str, name: &str) -> String {
    format!("{DEPENDED_BY}{}", names::binding_reference(namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attached_binding_is_found_by_its_labels_and_by_its_snapshots() {
        let (by_label, by_snapshot) = (label_for("shop", "a"), label_for("shop", "b"));
        for (binding, expected) in [
            (json!({"metadata": {"name": "x"}}), vec![]),
            (json!({"metadata": {"name": "x", "labels": {"other": "1"}}, "spec": {"clusters": []}}), vec![]),
            (json!({"metadata": {"labels": {&by_label: "true"}}}), vec![by_label.clone()]),
            (
                json!({"metadata": {}, "spec": {"requiredBy": [{"namespace": "shop", "name": "b"}]}}),
                vec![by_snapshot.clone()],
            ),
            (
                json!({"metadata": {"labels": {&by_label: "true"}}, "spec": {"requiredBy": [{"namespace": "shop", "name": "a"}]}}),
                vec![by_label.clone()],
            ),
        ] {
            assert_eq!(dependents(binding.to_string().as_bytes()), expected, "{binding}");
        }
    }
}
