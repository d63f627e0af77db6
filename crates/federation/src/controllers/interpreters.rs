//! Interpreter controller: compiles the ResourceInterpreterCustomizations into the active rule set.
//!
//! Reads   ResourceInterpreterCustomization
//! Writes  Events. A change requeues the objects, bindings and Works of its kind, and no others.

use std::sync::Arc;

use polis_api::karmada::ResourceInterpreterCustomization;
use serde::Deserialize;
use serde_json::Value;

use crate::error::Error;
use crate::interpreter::{self, RuleSet, TypeMeta};
use crate::names;
use crate::object::{self, ObjectKey};
use crate::queue::Requeue;
use crate::routing::resource_of;
use crate::state::{FederationState, Key};

impl FederationState {
    pub(super) async fn reconcile_interpreters(&self) -> Result<Requeue, Error> {
        let objects = self.hub.interpreters.list();
        let mut all = Vec::new();
        for object in &objects {
            match ResourceInterpreterCustomization::deserialize(&**object) {
                Ok(customization) => all.push((object.clone(), customization)),
                Err(error) => self.record_event(object, true, "NotUnderstood", &error.to_string()).await,
            }
        }
        self.record_unknown_kinds(&all).await;
        let current = self.interpreter();
        let mut customizations = Vec::new();
        for (object, customization) in &all {
            match interpreter::check(current.host(), customization) {
                Ok(()) => customizations.push(customization),
                Err((operation, error)) => {
                    let message = match operation {
                        Some(operation) => format!("{operation:?}: {error}"),
                        None => format!("GetDependencies: {error}"),
                    };
                    self.record_event(object, true, "ScriptDoesNotCompile", &message).await;
                    // Kept: its other scripts may be valid, and failing ones are reported on bindings.
                    customizations.push(customization);
                }
            }
        }
        let (table, conflicts) = RuleSet::collect(customizations);
        for conflict in conflicts {
            if let Some((object, _)) =
                all.iter().find(|(object, _)| object::meta(object, "name") == conflict.name)
            {
                self.record_event(
                    object,
                    true,
                    "AlreadyAnswered",
                    &format!(
                        "{:?} for this kind is defined by {}, which has precedence",
                        conflict.operation, conflict.winner
                    ),
                )
                .await;
            }
        }
        let touched = table.differing(current.rules());
        if touched.is_empty() {
            return Ok(Requeue::OnChange);
        }
        *self.interpreter.write() = current.with_rules(table);
        for type_meta in touched {
            self.enqueue_kind(&type_meta);
        }
        Ok(Requeue::OnChange)
    }

    /// Records an event for customizations of kinds that the hub does not serve.
    async fn record_unknown_kinds(&self, all: &[(Arc<Value>, ResourceInterpreterCustomization)]) {
        for (object, _) in all {
            let text = |field: &str| object["spec"]["target"][field].as_str().unwrap_or_default().to_owned();
            let type_meta = TypeMeta { api_version: text("apiVersion"), kind: text("kind") };
            if self.template_informer(&type_meta).is_none()
                && matches!(self.hub.api.find_kind(&type_meta).await, Ok(None))
            {
                let message = format!(
                    "the hub does not serve {} {}: the scripts take effect when it does",
                    type_meta.api_version, type_meta.kind
                );
                self.record_event(object, true, "KindNotServed", &message).await;
            }
        }
    }

    /// Enqueues all templates, bindings and Works of a kind.
    fn enqueue_kind(&self, type_meta: &TypeMeta) {
        self.enqueue_templates(type_meta, None);
        for binding in self.hub.bindings.list().iter().chain(&self.hub.cluster_bindings.list()) {
            let resource = resource_of(binding);
            if resource.api_version == type_meta.api_version && resource.kind == type_meta.kind {
                let namespace = binding["metadata"]["namespace"].as_str().map(str::to_owned);
                self.queue.add(Key::Binding(namespace, object::meta(binding, "name").to_owned()));
            }
        }
        for work in self.hub.works.list() {
            let manifest = ObjectKey::of(&work["spec"]["workload"]["manifests"][0]);
            let cluster = names::cluster_of_execution_namespace(object::meta(&work, "namespace"));
            if let Some(cluster) = cluster
                .filter(|_| manifest.api_version == type_meta.api_version && manifest.kind == type_meta.kind)
            {
                self.queue.add(Key::Work(cluster.to_owned(), object::meta(&work, "name").to_owned()));
            }
        }
    }
}
