//! What an object needs beside it goes along.
//!
//! Reads   the object's dependencies, as its interpreter names them · the bindings that follow
//! Writes  a binding for each dependency, with a snapshot of where the one that needs it is
//!
//! Such a binding follows every binding that it is `requiredBy`: its copies are wherever theirs are. It may also be
//! claimed by a policy of its own; then it is in all these places. It goes when nobody needs or claims it any more.

use polis_api::karmada::{ResourceBindingSpec, TargetCluster};
use polis_api::{finalizers, labels};
use serde_json::{Value, json};

use super::template::binding_kind;
use super::{add_finalizer, tree};
use crate::claim;
use crate::error::Error;
use crate::interpreter::{ScriptError, Target};
use crate::matching::{is_propagatable, matches_labels};
use crate::names;
use crate::object::{self, Identity};
use crate::planes::Fault;
use crate::world::{Key, World, kinds};

/// Prefix of the label that names, by its digest, a binding which needs this one.
const DEPENDED_BY: &str = "resourcebinding.karmada.io/depended-by-";

impl World {
    /// Brings the bindings of everything that an object needs to where the object is.
    pub(super) async fn settle_dependencies(
        &self,
        binding: &Value,
        spec: &ResourceBindingSpec,
        template: &Value,
        troubles: &mut Vec<ScriptError>,
    ) -> Result<(), Error> {
        let mut needed = Vec::new();
        if spec.propagate_deps && claim::is_marked(binding) {
            match self.interpreter().dependencies(template) {
                Ok(references) => needed = self.resolve(&references),
                // What went along so far goes on: a script that fails takes nothing away.
                Err(error) => {
                    troubles.push(error);
                    return Ok(());
                }
            }
        }
        for identity in &needed {
            self.attach(binding, spec, identity).await?;
        }
        let label = label_of(binding);
        for follower in self.followers(object::meta(binding, "namespace")) {
            if !object::label(&follower, &label).is_empty()
                && !needed.contains(&crate::routing::resource_of(&follower))
            {
                self.detach(&follower, binding).await?;
            }
        }
        Ok(())
    }

    /// Nobody with this binding needs anything any more.
    pub(super) async fn release_dependencies(&self, binding: &Value) -> Result<(), Error> {
        let label = label_of(binding);
        for follower in self.followers(object::meta(binding, "namespace")) {
            if !object::label(&follower, &label).is_empty() {
                self.detach(&follower, binding).await?;
            }
        }
        Ok(())
    }

    /// Snapshots of bindings that are gone for certain are dropped from what followed them.
    pub(super) async fn forget_gone_dependents(&self, binding: &Value) -> Result<bool, Error> {
        for snapshot in binding["spec"]["requiredBy"].as_array().into_iter().flatten() {
            let (namespace, name) = (
                snapshot["namespace"].as_str().unwrap_or_default(),
                snapshot["name"].as_str().unwrap_or_default(),
            );
            let scope = (!namespace.is_empty()).then_some(namespace);
            if self.bindings(scope).get(namespace, name).is_none()
                && self.hub.api.get(&binding_kind(scope), namespace, name).await?.is_none()
            {
                let gone = json!({"metadata": {"namespace": namespace, "name": name}});
                self.detach(binding, &gone).await?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The objects that references name, by name or by labels. Kinds that are new are looked up; that leads back here.
    fn resolve(&self, references: &[Value]) -> Vec<Identity> {
        let mut found = Vec::new();
        for reference in references {
            let text = |field: &str| reference[field].as_str().unwrap_or_default().to_owned();
            let target = Target { api_version: text("apiVersion"), kind: text("kind") };
            if !is_propagatable(&target.api_version, &target.kind) {
                continue;
            }
            let Some(mirror) = self.templates(&target) else {
                self.needed_kinds.write().insert(target.clone());
                self.queue.add(Key::Kind(target));
                continue;
            };
            let (namespace, name) = (text("namespace"), text("name"));
            if !name.is_empty() {
                found.push(Identity { api_version: target.api_version, kind: target.kind, namespace, name });
                continue;
            }
            let Ok(selector) = serde_json::from_value(reference["labelSelector"].clone()) else { continue };
            let fitting = mirror
                .within(&namespace)
                .into_iter()
                .filter(|object| matches_labels(&selector, &object::labels(object)));
            found.extend(fitting.map(|object| Identity::of(&object)));
        }
        found.sort();
        found.dedup();
        found
    }

    async fn attach(&self, by: &Value, spec: &ResourceBindingSpec, identity: &Identity) -> Result<(), Error> {
        let template = match self.template(identity).await {
            Ok(Some(template)) if !object::is_deleting(&template) => template,
            Ok(_) | Err(Error::UnknownKind(_)) => return Ok(()), // its coming leads back here
            Err(error) => return Err(error),
        };
        let name = names::binding(&identity.kind, &identity.name);
        let standing = self.hub.bindings.get(&identity.namespace, &name);
        if standing.as_ref().is_some_and(|standing| {
            object::is_deleting(standing)
                || standing["spec"]["resource"]["uid"] != template["metadata"]["uid"]
        }) {
            return Err(Error::Waiting(format!(
                "binding {name} of an object that was there before is not gone yet"
            )));
        }
        let mut wanted = standing.as_deref().cloned().unwrap_or_else(|| {
            json!({
                "apiVersion": kinds::BINDING.api_version, "kind": kinds::BINDING.kind,
                "metadata": {
                    "namespace": identity.namespace, "name": name,
                    "labels": {labels::karmada::BINDING_ID: self.new_id()},
                    "ownerReferences": [{
                        "apiVersion": identity.api_version, "kind": identity.kind, "name": identity.name, "uid": object::meta(&template, "uid"),
                        "controller": true, "blockOwnerDeletion": true,
                    }],
                },
                "spec": {"resource": {
                    "apiVersion": identity.api_version, "kind": identity.kind, "namespace": identity.namespace, "name": identity.name,
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
        match standing {
            None => drop(self.hub.bindings.learn(self.hub.api.create(&kinds::BINDING, &wanted).await?)),
            Some(standing) if *standing != wanted => {
                drop(self.hub.bindings.learn(self.hub.api.replace(&kinds::BINDING, &wanted).await?))
            }
            Some(_) => {}
        }
        Ok(())
    }

    async fn detach(&self, follower: &Value, by: &Value) -> Result<(), Error> {
        if object::is_deleting(follower) {
            return Ok(());
        }
        let mut wanted = follower.clone();
        object::remove_texts(&mut wanted, "labels", &[&label_of(by)]);
        let mut required: Vec<Value> = wanted["spec"]["requiredBy"].as_array().cloned().unwrap_or_default();
        required.retain(|other| !is_of(other, by));
        let alone = required.is_empty();
        match alone {
            true => drop(object::remove(&mut wanted, &["spec", "requiredBy"])),
            false => wanted["spec"]["requiredBy"] = Value::Array(required),
        }
        if alone && !claim::is_marked(follower) {
            let (namespace, name) = (object::meta(follower, "namespace"), object::meta(follower, "name"));
            self.hub.api.delete(&kinds::BINDING, namespace, name, object::meta(follower, "uid")).await?;
            return Ok(());
        }
        match self.hub.api.replace(&kinds::BINDING, &wanted).await {
            Ok(answer) => drop(self.hub.bindings.learn(answer)),
            Err(error) if error.fault == Fault::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// Where a binding's copies should be: the clusters chosen for it, and those of every binding that needs it.
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

/// Whether a binding goes along with another, or did: only the one that it went along with may say that it no longer does.
pub(crate) fn is_follower(binding: &Value) -> bool {
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
