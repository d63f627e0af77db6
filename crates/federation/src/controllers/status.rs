//! Status controller: aggregates the status of the Works of a binding.
//!
//! Reads   Works
//! Writes  the status of the binding, in one write · the status of the template, if its kind has an
//!         aggregation

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::karmada::{BindingStatus, ResourceBindingSpec, Work};
use polis_engine::{Action, Engine, Key, Reconciler};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::binding::key_of_origin;
use super::dependencies::targets;
use super::scheduler::Scheduled;
use super::tree;
use crate::aggregate;
use crate::conditions::{self, ConditionUpdate};
use crate::error::Error;
use crate::hub::{binding_id, binding_kind, resource_of, spec_changed};
use crate::interpreter::{ScriptError, TypeMeta};
use crate::kinds;
use crate::names;
use crate::object::{self, ObjectKey};
use crate::shared::Shared;
use crate::works;

/// Condition of a binding: the interpreter scripts of its kind succeed. Karmada does not report script
/// errors.
pub const INTERPRETED: &str = "Interpreted";

/// Number of copies up to which the status is written at once after every change.
const IMMEDIATE_COPIES: usize = 10;
/// Minimum interval between two status writes of a binding with more copies, per copy. The aggregation of a
/// thousand copies reads a thousand Works; after every change of a Work that would be a million reads for one
/// object.
const DELAY_PER_COPY: Duration = Duration::from_millis(1);

/// The result of the last reconcile of a binding, as input of its status.
#[derive(Debug, Clone)]
struct BindingResult {
    scheduled: Option<Scheduled>,
    /// The generation of the binding.
    generation: Option<i64>,
    script_errors: Vec<String>,
    /// The time of the last status write.
    last_written: Option<Instant>,
}

/// The results of the last reconcile of each binding, by (namespace, name).
#[derive(Default)]
pub(crate) struct BindingResults(Mutex<BTreeMap<(String, String), BindingResult>>);

impl BindingResults {
    /// Stores the result of a reconcile of a binding.
    pub(super) fn set(&self, binding: &Value, scheduled: Option<Scheduled>, script_errors: &[ScriptError]) {
        let ObjectKey { namespace, name, .. } = ObjectKey::of(binding);
        let script_errors = script_errors.iter().map(ToString::to_string).collect();
        let mut results = self.0.lock();
        let key = (namespace, name);
        let last_written = results.get(&key).and_then(|result| result.last_written);
        let generation = binding["metadata"]["generation"].as_i64();
        results.insert(key, BindingResult { scheduled, generation, script_errors, last_written });
    }

    /// Whether the result is of the current generation and equal.
    pub(super) fn is_current(&self, binding: &Value, scheduled: Option<&Scheduled>) -> bool {
        let ObjectKey { namespace, name, .. } = ObjectKey::of(binding);
        self.0.lock().get(&(namespace, name)).is_some_and(|result| {
            result.scheduled.as_ref() == scheduled
                && result.generation == binding["metadata"]["generation"].as_i64()
        })
    }

    fn get(&self, key: &Key) -> Option<BindingResult> {
        self.0.lock().get(&(key.namespace().to_owned(), key.name.to_string())).cloned()
    }

    fn set_written(&self, key: &Key) {
        if let Some(result) = self.0.lock().get_mut(&(key.namespace().to_owned(), key.name.to_string())) {
            result.last_written = Some(Instant::now());
        }
    }

    fn forget(&self, key: &Key) {
        self.0.lock().remove(&(key.namespace().to_owned(), key.name.to_string()));
    }
}

struct Statuses(Arc<Shared>);

pub(super) fn declare(engine: &mut Engine, shared: &Arc<Shared>) {
    let hub = &shared.hub.plane;
    let mut controller = engine.controller("status", hub, Statuses(shared.clone())).skips_own_writes();
    for bindings in [&kinds::BINDING, &kinds::CLUSTER_BINDING] {
        // A foreign write to the status is corrected. Other changes go through the binding, and a deletion
        // ends the record of its result.
        controller = controller.watches_untyped(hub, bindings, |hub, change| {
            let name = change.name();
            let key = crate::hub::key(hub, name.namespace.unwrap_or_default(), name.name);
            let is_of_status = change.is_deletion() || (change.before().is_some() && !spec_changed(change));
            Ok(if is_of_status { vec![key] } else { Vec::new() })
        });
    }
    let controller = controller.watches_untyped(hub, &kinds::WORK, |hub, change| {
        let work = change.object().filter(|_| !spec_changed(change));
        Ok(work.and_then(|work| key_of_origin(hub, work)).into_iter().collect())
    });
    shared.triggers.status.declare(controller);
}

impl Reconciler for Statuses {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let (shared, hub) = (&*self.0, &self.0.hub);
        let Some(binding) = hub.binding(key)? else {
            shared.results.forget(key);
            return Ok(Action::AwaitChange);
        };
        if object::is_deleting(&binding) {
            return Ok(Action::AwaitChange);
        }
        let Some(result) = shared.results.get(key) else {
            shared.triggers.binding.add(key.clone());
            return Ok(Action::AwaitChange);
        };
        let copies = works::count_of_binding(hub, binding_id(&binding))?;
        let since = result.last_written.map(|last_written| last_written.elapsed());
        if let Some(coalesce_delay) = coalesce_delay(copies, since) {
            return Ok(Action::RequeueAfter(coalesce_delay));
        }
        let template = match shared.kinds.template(&resource_of(&binding)).await {
            Ok(template) => template,
            Err(Error::UnknownKind(_)) => return Ok(Action::AwaitChange),
            Err(error) => return Err(error),
        };
        let Some(template) =
            template.filter(|template| binding["spec"]["resource"]["uid"] == template["metadata"]["uid"])
        else {
            return Ok(Action::AwaitChange); // the binding is about to be deleted
        };
        shared.results.set_written(key);
        self.write_status(key, &binding, &template, result).await?;
        Ok(Action::AwaitChange)
    }
}

impl Statuses {
    async fn write_status(
        &self,
        key: &Key,
        binding: &Value,
        template: &Value,
        BindingResult { scheduled, generation, mut script_errors, .. }: BindingResult,
    ) -> Result<(), Error> {
        let read = |source| Error::Decode { what: ObjectKey::of(binding).to_string(), source };
        let spec = ResourceBindingSpec::deserialize(&binding["spec"]).map_err(read)?;
        let existing: BindingStatus =
            Option::deserialize(&binding["status"]).map_err(read)?.unwrap_or_default();
        let works = works::of_binding(&self.0.hub, binding_id(binding))?;
        // The first status of a new binding waits for the status of its Works: one write instead of two.
        if existing.conditions.is_empty() && works.iter().any(|work| self.is_about_to_report(work)) {
            return Ok(());
        }
        let works: Vec<Work> = works.iter().filter_map(|work| without_manifest(work)).collect();
        let items = aggregate::items(&works);
        let interpreter = self.0.scripts.current();
        if let Err(error) = interpreter.replicas(template) {
            script_errors.push(error.to_string());
        }
        let script_items = aggregate::script_items(&items);
        let empty = items.is_empty() && template.get("status").is_none();
        let aggregated = match interpreter.aggregate_status(template, &script_items) {
            _ if empty => None,
            Ok(status) => status,
            Err(error) => {
                script_errors.push(error.to_string());
                None
            }
        };
        let mut wanted = existing.clone();
        let now = self.0.hub.now();
        if let Some(scheduled) = scheduled {
            if wanted.scheduler_observed_generation != generation {
                wanted.scheduler_observed_generation = generation;
                wanted.last_scheduled_time =
                    Some(polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                        jiff::Timestamp::from_second(now.as_second()).unwrap_or(now),
                    ));
            }
            wanted.scheduler_observing_affinity_name = scheduled.affinity;
            conditions::set(&mut wanted.conditions, scheduled.desired, now);
        }
        let desired =
            aggregate::fully_applied(targets(&spec).iter().map(|target| target.name.as_str()), &items);
        conditions::set(&mut wanted.conditions, desired, now);
        wanted.aggregated_status = items;
        self.set_interpreted_condition(&mut wanted, template, &script_errors);
        if wanted != existing {
            let mut object = binding.clone();
            object["status"] = tree("status", &wanted)?;
            self.0.hub.of(binding_kind(key.namespace.as_deref())).update_status(&object).await?;
        }
        if let Some(status) = aggregated {
            self.ensure_template_status(template, status).await?;
        }
        Ok(())
    }

    /// Whether a Work has no conditions yet and its member is ready, so that it gets them soon.
    fn is_about_to_report(&self, work: &Value) -> bool {
        let unreported = work["status"]["conditions"].as_array().is_none_or(Vec::is_empty);
        let cluster = names::cluster_of_execution_namespace(object::meta(work, "namespace"))
            .and_then(|cluster| self.0.clusters.get(cluster).ok().flatten());
        unreported && cluster.is_some_and(|info| info.ready)
    }

    fn set_interpreted_condition(
        &self,
        status: &mut BindingStatus,
        template: &Value,
        script_errors: &[String],
    ) {
        let failing = script_errors.join("; ");
        if failing.is_empty() {
            // Set to True only if it was False before.
            if status.conditions.iter().any(|condition| condition.type_ == INTERPRETED) {
                conditions::set(
                    &mut status.conditions,
                    ConditionUpdate::new(
                        INTERPRETED,
                        true,
                        "ScriptsAnswer",
                        "the scripts for this kind succeed",
                    ),
                    self.0.hub.now(),
                );
            }
            return;
        }
        conditions::set(
            &mut status.conditions,
            ConditionUpdate::new(INTERPRETED, false, "ScriptFailed", failing.clone()),
            self.0.hub.now(),
        );
        self.0.hub.warn(template, "InterpretFailed", &failing);
    }

    async fn ensure_template_status(&self, template: &Value, status: Value) -> Result<(), Error> {
        if template["status"] == status {
            return Ok(());
        }
        let type_meta = TypeMeta::of(template);
        let kind = self.0.kinds.get(&type_meta).ok_or(Error::UnknownKind(type_meta))?;
        let mut object = template.clone();
        object["status"] = status;
        match self.0.hub.of(&kind).update_status(&object).await {
            Ok(_) => Ok(()),
            // A kind without a status subresource has no status to write.
            Err(error) if error.is_not_found() => {
                let message = format!(
                    "a script aggregates a status, but {} has no status subresource on the hub",
                    kinds::describe(&kind)
                );
                self.0.hub.warn(template, "NoStatusSubresource", &message);
                Ok(())
            }
            Err(error) => {
                tracing::debug!(%error, object = object::meta(template, "name"), "failed to write the status");
                Err(error.into())
            }
        }
    }
}

/// The remaining delay before the next status write of a binding; `since` is the time since the last one.
fn coalesce_delay(copies: usize, since: Option<Duration>) -> Option<Duration> {
    let pause = DELAY_PER_COPY * u32::try_from(copies).unwrap_or(u32::MAX);
    let coalesce_delay = pause.checked_sub(since?)?;
    (copies > IMMEDIATE_COPIES && !coalesce_delay.is_zero()).then_some(coalesce_delay)
}

/// Decodes a Work without its manifest, which is most of its size and not needed here.
fn without_manifest(work: &Value) -> Option<Work> {
    let slim = serde_json::json!({
        "apiVersion": work["apiVersion"], "kind": work["kind"], "metadata": work["metadata"], "spec": {},
        "status": work["status"],
    });
    serde_json::from_value(slim).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_binding_with_many_copies_is_coalesced() {
        let ms = Duration::from_millis;
        for (copies, since, expected) in [
            (1000, None, None),
            (1000, Some(ms(300)), Some(ms(700))),
            (1000, Some(ms(1000)), None),
            (1000, Some(ms(5000)), None),
            (11, Some(ms(1)), Some(ms(10))),
            (10, Some(ms(0)), None),
        ] {
            assert_eq!(coalesce_delay(copies, since), expected, "{copies} copies, written {since:?} ago");
        }
    }
}
