//! Customizations: which scripts are in force. A change reaches existing objects at once, and only those of its kind.

use std::sync::Arc;

use polis_api::karmada::ResourceInterpreterCustomization;
use serde::Deserialize;
use serde_json::Value;

use crate::error::Error;
use crate::interpreter::{self, Table, Target};
use crate::names;
use crate::object::{self, Identity};
use crate::queue::Outcome;
use crate::routing::resource_of;
use crate::world::{Key, World};

impl World {
    pub(super) async fn settle_interpreters(&self) -> Result<Outcome, Error> {
        let objects = self.hub.interpreters.all();
        let mut all = Vec::new();
        for object in &objects {
            match ResourceInterpreterCustomization::deserialize(&**object) {
                Ok(customization) => all.push((object.clone(), customization)),
                Err(error) => self.tell(object, true, "NotUnderstood", &error.to_string()).await,
            }
        }
        self.tell_of_unknown_kinds(&all).await;
        let current = self.interpreter();
        let mut sound = Vec::new();
        for (object, customization) in &all {
            match interpreter::check(current.host(), customization) {
                Ok(()) => sound.push(customization),
                Err((question, error)) => {
                    let message = match question {
                        Some(question) => format!("{question:?}: {error}"),
                        None => format!("GetDependencies: {error}"),
                    };
                    self.tell(object, true, "ScriptDoesNotCompile", &message).await;
                    // Heard all the same: what it says about other questions may be fine, and the failing ones show on bindings.
                    sound.push(customization);
                }
            }
        }
        let (table, clashes) = Table::collect(sound);
        for clash in clashes {
            if let Some((object, _)) =
                all.iter().find(|(object, _)| object::meta(object, "name") == clash.name)
            {
                self.tell(
                    object,
                    true,
                    "AlreadyAnswered",
                    &format!("{:?} for this kind is answered by {}", clash.question, clash.heard),
                )
                .await;
            }
        }
        let touched = table.differing(current.rules());
        if touched.is_empty() {
            return Ok(Outcome::Settled);
        }
        *self.interpreter.write() = current.with_rules(table);
        for target in touched {
            self.look_again_at(&target);
        }
        Ok(Outcome::Settled)
    }

    /// A script about a kind that the hub does not serve is kept, and its author told.
    async fn tell_of_unknown_kinds(&self, all: &[(Arc<Value>, ResourceInterpreterCustomization)]) {
        for (object, _) in all {
            let text = |field: &str| object["spec"]["target"][field].as_str().unwrap_or_default().to_owned();
            let target = Target { api_version: text("apiVersion"), kind: text("kind") };
            if self.templates(&target).is_none() && matches!(self.hub.api.find_kind(&target).await, Ok(None))
            {
                let message = format!(
                    "the hub does not serve {} {}: the scripts are heard when it does",
                    target.api_version, target.kind
                );
                self.tell(object, true, "KindNotServed", &message).await;
            }
        }
    }

    /// Everything that scripts about a kind have a say in.
    fn look_again_at(&self, target: &Target) {
        self.look_at_templates(target, None);
        for binding in self.hub.bindings.all().iter().chain(&self.hub.cluster_bindings.all()) {
            let resource = resource_of(binding);
            if resource.api_version == target.api_version && resource.kind == target.kind {
                let namespace = binding["metadata"]["namespace"].as_str().map(str::to_owned);
                self.queue.add(Key::Binding(namespace, object::meta(binding, "name").to_owned()));
            }
        }
        for work in self.hub.works.all() {
            let manifest = Identity::of(&work["spec"]["workload"]["manifests"][0]);
            let cluster = names::cluster_of_execution_namespace(object::meta(&work, "namespace"));
            if let Some(cluster) =
                cluster.filter(|_| manifest.api_version == target.api_version && manifest.kind == target.kind)
            {
                self.queue.add(Key::Work(cluster.to_owned(), object::meta(&work, "name").to_owned()));
            }
        }
    }
}
