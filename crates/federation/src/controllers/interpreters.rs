//! Interpreter controller: compiles the ResourceInterpreterCustomizations into the active rule set.
//!
//! Reads   ResourceInterpreterCustomization
//! Writes  Events. A change requeues the objects, bindings and Works of its kind, and no others.

use std::sync::Arc;

use polis_api::karmada::ResourceInterpreterCustomization;
use polis_engine::{Action, Engine, Key, Reconciler};
use serde::Deserialize;
use serde_json::Value;

use super::template;
use crate::error::Error;
use crate::hub::resource_of;
use crate::interpreter::{self, RuleSet, TypeMeta};
use crate::kinds;
use crate::names;
use crate::object::{self, ObjectKey};
use crate::shared::Shared;

/// The one key: all customizations make one set of rules.
const ALL: &str = "all";

struct Interpreters(Arc<Shared>);

pub(super) fn declare(engine: &mut Engine, shared: &Arc<Shared>) {
    let (hub, all) = (&shared.hub.plane, shared.hub.key("", ALL));
    engine.controller("interpreters", hub, Interpreters(shared.clone())).watches_untyped(
        hub,
        &kinds::INTERPRETER,
        move |_, _| Ok(vec![all.clone()]),
    );
}

impl Reconciler for Interpreters {
    type Error = Error;

    async fn reconcile(&self, _: &Key) -> Result<Action, Error> {
        let objects = self.0.hub.of(&kinds::INTERPRETER).list()?;
        let mut all = Vec::new();
        for object in &objects {
            match ResourceInterpreterCustomization::deserialize(&**object) {
                Ok(customization) => all.push((object.clone(), customization)),
                Err(error) => self.0.hub.warn(object, "NotUnderstood", &error.to_string()),
            }
        }
        self.record_unknown_kinds(&all).await;
        let current = self.0.scripts.current();
        let mut customizations = Vec::new();
        for (object, customization) in &all {
            match interpreter::check(current.host(), customization) {
                Ok(()) => customizations.push(customization),
                Err((operation, error)) => {
                    let message = match operation {
                        Some(operation) => format!("{operation:?}: {error}"),
                        None => format!("GetDependencies: {error}"),
                    };
                    self.0.hub.warn(object, "ScriptDoesNotCompile", &message);
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
                self.0.hub.warn(
                    object,
                    "AlreadyAnswered",
                    &format!(
                        "{:?} for this kind is defined by {}, which has precedence",
                        conflict.operation, conflict.winner
                    ),
                );
            }
        }
        let touched = table.differing(current.rules());
        if touched.is_empty() {
            return Ok(Action::AwaitChange);
        }
        self.0.scripts.set(current.with_rules(table));
        for type_meta in touched {
            self.enqueue_kind(&type_meta)?;
        }
        Ok(Action::AwaitChange)
    }
}

impl Interpreters {
    /// Records an event for customizations of kinds that the hub does not serve.
    async fn record_unknown_kinds(&self, all: &[(Arc<Value>, ResourceInterpreterCustomization)]) {
        for (object, _) in all {
            let text = |field: &str| object["spec"]["target"][field].as_str().unwrap_or_default().to_owned();
            let type_meta = TypeMeta { api_version: text("apiVersion"), kind: text("kind") };
            let uncached = self.0.hub.plane.uncached();
            if self.0.kinds.get(&type_meta).is_none()
                && matches!(uncached.find_kind(&type_meta.api_version, &type_meta.kind).await, Ok(None))
            {
                let message = format!(
                    "the hub does not serve {} {}: the scripts take effect when it does",
                    type_meta.api_version, type_meta.kind
                );
                self.0.hub.warn(object, "KindNotServed", &message);
            }
        }
    }

    /// Enqueues all templates, bindings and Works of a kind.
    fn enqueue_kind(&self, type_meta: &TypeMeta) -> Result<(), Error> {
        let (hub, triggers) = (&self.0.hub, &self.0.triggers);
        let is_of_kind =
            |object: &ObjectKey| object.api_version == type_meta.api_version && object.kind == type_meta.kind;
        for key in template::keys_of_kind(&self.0, type_meta, "")? {
            triggers.template.add(key);
        }
        for bindings in [&kinds::BINDING, &kinds::CLUSTER_BINDING] {
            let all = hub.of(bindings).list()?;
            for binding in all.iter().filter(|binding| is_of_kind(&resource_of(binding))) {
                let namespace = object::meta(binding, "namespace");
                triggers.binding.add(hub.key(namespace, object::meta(binding, "name")));
            }
        }
        for work in hub.of(&kinds::WORK).list()? {
            let manifest = ObjectKey::of(&work["spec"]["workload"]["manifests"][0]);
            let cluster = names::cluster_of_execution_namespace(object::meta(&work, "namespace"));
            if let Some(cluster) = cluster.filter(|_| is_of_kind(&manifest)) {
                triggers.work.add(Key::cluster(cluster, object::meta(&work, "name")));
            }
        }
        Ok(())
    }
}
