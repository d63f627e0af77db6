//! What a binding and its object say about the copies.
//!
//! Reads   the Works of a binding
//! Writes  the binding's status, whole, in one write · the object's status, where someone said how to add it up

use polis_api::karmada::{BindingStatus, ResourceBindingSpec, Work};
use serde::Deserialize;
use serde_json::Value;

use super::binding::binding_id;
use super::dependencies::targets;
use super::scheduler::Scheduled;
use super::template::binding_kind;
use super::tree;
use crate::aggregate;
use crate::conditions::{self, Fact};
use crate::error::Error;
use crate::interpreter::{ScriptError, Target};
use crate::names;
use crate::object::{self, Identity};
use crate::planes::Fault;
use crate::queue::Outcome;
use crate::world::World;

/// Condition of a binding: scripts about its kind do what they should. Karmada has no such condition, only silence.
pub const INTERPRETED: &str = "Interpreted";

impl World {
    pub(super) async fn settle_status(
        &self,
        namespace: Option<&str>,
        binding: &Value,
        template: &Value,
        scheduled: Option<Scheduled>,
        mut troubles: Vec<ScriptError>,
    ) -> Result<Outcome, Error> {
        let read = |source| Error::Decode { what: Identity::of(binding).to_string(), source };
        let spec = ResourceBindingSpec::deserialize(&binding["spec"]).map_err(read)?;
        let standing: BindingStatus =
            Option::deserialize(&binding["status"]).map_err(read)?.unwrap_or_default();
        let works: Vec<Work> = self
            .works_of(binding_id(binding))
            .iter()
            .filter_map(|work| Work::deserialize(&**work).ok())
            .collect();
        let items = aggregate::items(&works);
        let interpreter = self.interpreter();
        if let Err(error) = interpreter.replicas(template) {
            troubles.push(error);
        }
        let script_items = aggregate::script_items(&items);
        let silent = items.is_empty() && template.get("status").is_none();
        let aggregated = match interpreter.aggregate_status(template, &script_items) {
            _ if silent => None,
            Ok(status) => status,
            Err(error) => {
                troubles.push(error);
                None
            }
        };
        let mut wanted = standing.clone();
        let now = self.now();
        if let Some(scheduled) = scheduled {
            let generation = binding["metadata"]["generation"].as_i64();
            if wanted.scheduler_observed_generation != generation {
                wanted.scheduler_observed_generation = generation;
                wanted.last_scheduled_time =
                    Some(polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                        jiff::Timestamp::from_second(now.as_second()).unwrap_or(now),
                    ));
            }
            wanted.scheduler_observing_affinity_name = scheduled.affinity;
            conditions::set(&mut wanted.conditions, scheduled.fact, now);
        }
        let fact = aggregate::fully_applied(targets(&spec).iter().map(|target| target.name.as_str()), &items);
        conditions::set(&mut wanted.conditions, fact, now);
        wanted.aggregated_status = items;
        self.judge_scripts(&mut wanted, template, &troubles).await;
        // The first word about a new binding waits for its Works, which are about to report: one write instead of two.
        let fresh = standing.conditions.is_empty() && !wanted.conditions.is_empty();
        let about_to_report = fresh && works.iter().any(|work| self.is_about_to_report(work));
        if wanted != standing && !about_to_report {
            let mut object = binding.clone();
            object["status"] = tree("status", &wanted)?;
            let answer = self.hub.api.replace_status(&binding_kind(namespace), &object).await?;
            self.bindings(namespace).learn(answer);
        }
        if let Some(status) = aggregated {
            self.settle_template_status(template, status).await?;
        }
        Ok(Outcome::Settled)
    }

    /// Whether a Work has said nothing yet and soon will: its member is there and may be written to.
    fn is_about_to_report(&self, work: &Work) -> bool {
        let silent = work.status.as_ref().is_none_or(|status| status.conditions.is_empty());
        let namespace = work.metadata.namespace.as_deref().unwrap_or_default();
        let cluster =
            names::cluster_of_execution_namespace(namespace).and_then(|cluster| self.cluster(cluster));
        silent && cluster.is_some_and(|facts| facts.ready)
    }

    async fn judge_scripts(&self, status: &mut BindingStatus, template: &Value, troubles: &[ScriptError]) {
        let failing = troubles.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        if failing.is_empty() {
            // Said only where it was ever in question.
            if status.conditions.iter().any(|condition| condition.type_ == INTERPRETED) {
                conditions::set(
                    &mut status.conditions,
                    Fact::new(INTERPRETED, true, "ScriptsAnswer", "the scripts for this kind answer"),
                    self.now(),
                );
            }
            return;
        }
        conditions::set(
            &mut status.conditions,
            Fact::new(INTERPRETED, false, "ScriptFailed", failing.clone()),
            self.now(),
        );
        self.tell(template, true, "InterpretFailed", &failing).await;
    }

    async fn settle_template_status(&self, template: &Value, status: Value) -> Result<(), Error> {
        if template["status"] == status {
            return Ok(());
        }
        let target = Target::of(template);
        let mirror = self.templates(&target).ok_or(Error::UnknownKind(target))?;
        let mut object = template.clone();
        object["status"] = status;
        match self.hub.api.replace_status(mirror.kind(), &object).await {
            Ok(answer) => {
                mirror.learn(answer);
                Ok(())
            }
            // A kind without a status subresource has no status to write.
            Err(error) if error.fault == Fault::NotFound => {
                let message = format!(
                    "a script adds up a status, but {} has no status subresource on the hub",
                    mirror.kind()
                );
                self.tell(template, true, "NoStatusSubresource", &message).await;
                Ok(())
            }
            Err(error) => {
                tracing::debug!(%error, object = object::meta(template, "name"), "status not written");
                Err(error.into())
            }
        }
    }
}
