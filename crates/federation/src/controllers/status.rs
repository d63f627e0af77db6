//! Status controller: aggregates the status of the Works of a binding.
//!
//! Reads   Works
//! Writes  the status of the binding, in one write · the status of the template, if its kind has an
//!         aggregation

use std::collections::BTreeSet;
use std::time::Duration;

use polis_api::karmada::{BindingStatus, ResourceBindingSpec, Work};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::binding::binding_id;
use super::dependencies::targets;
use super::scheduler::Scheduled;
use super::template::binding_kind;
use super::tree;
use crate::aggregate;
use crate::conditions::{self, ConditionUpdate};
use crate::error::Error;
use crate::interpreter::{ScriptError, TypeMeta};
use crate::names;
use crate::object::{self, ObjectKey};
use crate::planes::ApiErrorKind;
use crate::queue::Requeue;
use crate::routing::resource_of;
use crate::state::{FederationState, Key};

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
pub(crate) struct CachedStatus {
    scheduled: Option<Scheduled>,
    /// The generation of the binding.
    generation: Option<i64>,
    script_errors: Vec<String>,
    /// The time of the last status write.
    last_written: Option<Instant>,
}

impl FederationState {
    /// Stores the result of a reconcile of a binding and enqueues its status.
    pub(super) fn cache_status(
        &self,
        binding: &Value,
        scheduled: Option<Scheduled>,
        script_errors: &[ScriptError],
    ) {
        let ObjectKey { namespace, name, .. } = ObjectKey::of(binding);
        let script_errors = script_errors.iter().map(ToString::to_string).collect();
        {
            let mut cached_statuses = self.cached_statuses.lock();
            let last_written = cached_statuses
                .get(&(namespace.clone(), name.clone()))
                .and_then(|cached| cached.last_written);
            let generation = binding["metadata"]["generation"].as_i64();
            let cached = CachedStatus { scheduled, generation, script_errors, last_written };
            cached_statuses.insert((namespace.clone(), name.clone()), cached);
        }
        self.queue.add(Key::Status((!namespace.is_empty()).then_some(namespace), name));
    }

    /// Whether the cached result is of the current generation and equal.
    pub(super) fn is_status_current(&self, binding: &Value, scheduled: Option<&Scheduled>) -> bool {
        let ObjectKey { namespace, name, .. } = ObjectKey::of(binding);
        self.cached_statuses.lock().get(&(namespace, name)).is_some_and(|cached| {
            cached.scheduled.as_ref() == scheduled
                && cached.generation == binding["metadata"]["generation"].as_i64()
        })
    }

    pub(super) async fn reconcile_status(
        &self,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Requeue, Error> {
        let at = namespace.unwrap_or_default();
        let Some(binding) =
            self.bindings(namespace).get(at, name).filter(|binding| !object::is_deleting(binding))
        else {
            return Ok(Requeue::OnChange);
        };
        let binding_key = (at.to_owned(), name.to_owned());
        let cached = self.cached_statuses.lock().get(&binding_key).cloned();
        let Some(cached) = cached else {
            self.queue.add(Key::Binding(namespace.map(str::to_owned), name.to_owned()));
            return Ok(Requeue::OnChange);
        };
        let copies = self.works_of.read().get(binding_id(&binding)).map_or(0, BTreeSet::len);
        if let Some(coalesce_delay) =
            coalesce_delay(copies, cached.last_written.map(|last_written| last_written.elapsed()))
        {
            return Ok(Requeue::After(coalesce_delay));
        }
        let template = match self.template(&resource_of(&binding)).await {
            Ok(template) => template,
            Err(Error::UnknownKind(_)) => return Ok(Requeue::OnChange),
            Err(error) => return Err(error),
        };
        let Some(template) =
            template.filter(|template| binding["spec"]["resource"]["uid"] == template["metadata"]["uid"])
        else {
            return Ok(Requeue::OnChange); // the binding is about to be deleted
        };
        if let Some(cached) = self.cached_statuses.lock().get_mut(&binding_key) {
            cached.last_written = Some(Instant::now());
        }
        self.write_status(namespace, &binding, &template, cached).await
    }

    async fn write_status(
        &self,
        namespace: Option<&str>,
        binding: &Value,
        template: &Value,
        CachedStatus { scheduled, generation, mut script_errors, .. }: CachedStatus,
    ) -> Result<Requeue, Error> {
        let read = |source| Error::Decode { what: ObjectKey::of(binding).to_string(), source };
        let spec = ResourceBindingSpec::deserialize(&binding["spec"]).map_err(read)?;
        let existing: BindingStatus =
            Option::deserialize(&binding["status"]).map_err(read)?.unwrap_or_default();
        let works = self.works_of(binding_id(binding));
        // The first status of a new binding waits for the status of its Works: one write instead of two.
        if existing.conditions.is_empty() && works.iter().any(|work| self.is_about_to_report(work)) {
            return Ok(Requeue::OnChange);
        }
        let works: Vec<Work> = works.iter().filter_map(|work| without_manifest(work)).collect();
        let items = aggregate::items(&works);
        let interpreter = self.interpreter();
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
        let now = self.now();
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
        self.set_interpreted_condition(&mut wanted, template, &script_errors).await;
        if wanted != existing {
            let mut object = binding.clone();
            object["status"] = tree("status", &wanted)?;
            let answer = self.hub.api.replace_status(&binding_kind(namespace), &object).await?;
            self.bindings(namespace).write_through(answer);
        }
        if let Some(status) = aggregated {
            self.ensure_template_status(template, status).await?;
        }
        Ok(Requeue::OnChange)
    }

    /// Whether a Work has no conditions yet and its member is ready, so that it gets them soon.
    fn is_about_to_report(&self, work: &Value) -> bool {
        let unreported = work["status"]["conditions"].as_array().is_none_or(Vec::is_empty);
        let cluster = names::cluster_of_execution_namespace(object::meta(work, "namespace"))
            .and_then(|cluster| self.cluster(cluster));
        unreported && cluster.is_some_and(|info| info.ready)
    }

    async fn set_interpreted_condition(
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
                    self.now(),
                );
            }
            return;
        }
        conditions::set(
            &mut status.conditions,
            ConditionUpdate::new(INTERPRETED, false, "ScriptFailed", failing.clone()),
            self.now(),
        );
        self.record_event(template, true, "InterpretFailed", &failing).await;
    }

    async fn ensure_template_status(&self, template: &Value, status: Value) -> Result<(), Error> {
        if template["status"] == status {
            return Ok(());
        }
        let type_meta = TypeMeta::of(template);
        let informer = self.template_informer(&type_meta).ok_or(Error::UnknownKind(type_meta))?;
        let mut object = template.clone();
        object["status"] = status;
        match self.hub.api.replace_status(informer.kind(), &object).await {
            Ok(answer) => {
                informer.write_through(answer);
                Ok(())
            }
            // A kind without a status subresource has no status to write.
            Err(error) if error.kind == ApiErrorKind::NotFound => {
                let message = format!(
                    "a script aggregates a status, but {} has no status subresource on the hub",
                    informer.kind()
                );
                self.record_event(template, true, "NoStatusSubresource", &message).await;
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
