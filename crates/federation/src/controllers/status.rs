//! What a binding and its object say about the copies.
//!
//! Reads   the Works of a binding
//! Writes  the binding's status, whole, in one write · the object's status, where someone said how to add it up

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
use crate::conditions::{self, Fact};
use crate::error::Error;
use crate::interpreter::{ScriptError, Target};
use crate::names;
use crate::object::{self, Identity};
use crate::planes::Fault;
use crate::queue::Outcome;
use crate::routing::resource_of;
use crate::world::{Key, World};

/// Condition of a binding: scripts about its kind do what they should. Karmada has no such condition, only silence.
pub const INTERPRETED: &str = "Interpreted";

/// Copies up to which their binding tells of every change at once.
const FEW: usize = 10;
/// How long a binding with more copies keeps silent after it has told of them, for each. Whoever tells of a thousand
/// copies reads a thousand Works: doing so at the word of each would be a million reads for one object.
const SILENCE: Duration = Duration::from_millis(1);

/// What the last look at a binding came to.
#[derive(Debug, Clone)]
pub(crate) struct Outlook {
    scheduled: Option<Scheduled>,
    /// The generation that this is about.
    generation: Option<i64>,
    troubles: Vec<String>,
    /// When its copies were last told of.
    told: Option<Instant>,
}

impl World {
    /// Notes what a look at a binding came to, and has it told.
    pub(super) fn look_out(&self, binding: &Value, scheduled: Option<Scheduled>, troubles: &[ScriptError]) {
        let Identity { namespace, name, .. } = Identity::of(binding);
        let troubles = troubles.iter().map(ToString::to_string).collect();
        {
            let mut outlooks = self.outlooks.lock();
            let told = outlooks.get(&(namespace.clone(), name.clone())).and_then(|outlook| outlook.told);
            let generation = binding["metadata"]["generation"].as_i64();
            let outlook = Outlook { scheduled, generation, troubles, told };
            outlooks.insert((namespace.clone(), name.clone()), outlook);
        }
        self.queue.add(Key::Status((!namespace.is_empty()).then_some(namespace), name));
    }

    /// Whether the last look at a binding, as it is now, came to the same.
    pub(super) fn is_told(&self, binding: &Value, scheduled: Option<&Scheduled>) -> bool {
        let Identity { namespace, name, .. } = Identity::of(binding);
        self.outlooks.lock().get(&(namespace, name)).is_some_and(|outlook| {
            outlook.scheduled.as_ref() == scheduled
                && outlook.generation == binding["metadata"]["generation"].as_i64()
        })
    }

    pub(super) async fn settle_status(&self, namespace: Option<&str>, name: &str) -> Result<Outcome, Error> {
        let at = namespace.unwrap_or_default();
        let Some(binding) =
            self.bindings(namespace).get(at, name).filter(|binding| !object::is_deleting(binding))
        else {
            return Ok(Outcome::Settled);
        };
        let place = (at.to_owned(), name.to_owned());
        let outlook = self.outlooks.lock().get(&place).cloned();
        let Some(outlook) = outlook else {
            self.queue.add(Key::Binding(namespace.map(str::to_owned), name.to_owned()));
            return Ok(Outcome::Settled);
        };
        let copies = self.works_of.read().get(binding_id(&binding)).map_or(0, BTreeSet::len);
        if let Some(rest) = rest(copies, outlook.told.map(|told| told.elapsed())) {
            return Ok(Outcome::After(rest));
        }
        let template = match self.template(&resource_of(&binding)).await {
            Ok(template) => template,
            Err(Error::UnknownKind(_)) => return Ok(Outcome::Settled),
            Err(error) => return Err(error),
        };
        let Some(template) =
            template.filter(|template| binding["spec"]["resource"]["uid"] == template["metadata"]["uid"])
        else {
            return Ok(Outcome::Settled); // the binding is about to go
        };
        if let Some(outlook) = self.outlooks.lock().get_mut(&place) {
            outlook.told = Some(Instant::now());
        }
        self.tell_of_copies(namespace, &binding, &template, outlook).await
    }

    async fn tell_of_copies(
        &self,
        namespace: Option<&str>,
        binding: &Value,
        template: &Value,
        Outlook { scheduled, generation, mut troubles, .. }: Outlook,
    ) -> Result<Outcome, Error> {
        let read = |source| Error::Decode { what: Identity::of(binding).to_string(), source };
        let spec = ResourceBindingSpec::deserialize(&binding["spec"]).map_err(read)?;
        let standing: BindingStatus =
            Option::deserialize(&binding["status"]).map_err(read)?.unwrap_or_default();
        let works = self.works_of(binding_id(binding));
        // The first word about a new binding waits for its Works, which are about to report: one write instead of two.
        if standing.conditions.is_empty() && works.iter().any(|work| self.is_about_to_report(work)) {
            return Ok(Outcome::Settled);
        }
        let works: Vec<Work> = works.iter().filter_map(|work| told_by(work)).collect();
        let items = aggregate::items(&works);
        let interpreter = self.interpreter();
        if let Err(error) = interpreter.replicas(template) {
            troubles.push(error.to_string());
        }
        let script_items = aggregate::script_items(&items);
        let silent = items.is_empty() && template.get("status").is_none();
        let aggregated = match interpreter.aggregate_status(template, &script_items) {
            _ if silent => None,
            Ok(status) => status,
            Err(error) => {
                troubles.push(error.to_string());
                None
            }
        };
        let mut wanted = standing.clone();
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
            conditions::set(&mut wanted.conditions, scheduled.fact, now);
        }
        let fact = aggregate::fully_applied(targets(&spec).iter().map(|target| target.name.as_str()), &items);
        conditions::set(&mut wanted.conditions, fact, now);
        wanted.aggregated_status = items;
        self.judge_scripts(&mut wanted, template, &troubles).await;
        if wanted != standing {
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
    fn is_about_to_report(&self, work: &Value) -> bool {
        let silent = work["status"]["conditions"].as_array().is_none_or(Vec::is_empty);
        let cluster = names::cluster_of_execution_namespace(object::meta(work, "namespace"))
            .and_then(|cluster| self.cluster(cluster));
        silent && cluster.is_some_and(|facts| facts.ready)
    }

    async fn judge_scripts(&self, status: &mut BindingStatus, template: &Value, troubles: &[String]) {
        let failing = troubles.join("; ");
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

/// How long a binding has still to wait before it tells of its copies again, when it last did so this long ago.
fn rest(copies: usize, since: Option<Duration>) -> Option<Duration> {
    let pause = SILENCE * u32::try_from(copies).unwrap_or(u32::MAX);
    let rest = pause.checked_sub(since?)?;
    (copies > FEW && !rest.is_zero()).then_some(rest)
}

/// A Work without what it carries: only what it tells is read here, and the rest is most of it.
fn told_by(work: &Value) -> Option<Work> {
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
    fn a_binding_with_many_copies_tells_of_them_together() {
        let ms = Duration::from_millis;
        for (copies, since, expected) in [
            (1000, None, None),
            (1000, Some(ms(300)), Some(ms(700))),
            (1000, Some(ms(1000)), None),
            (1000, Some(ms(5000)), None),
            (11, Some(ms(1)), Some(ms(10))),
            (10, Some(ms(0)), None),
        ] {
            assert_eq!(rest(copies, since), expected, "{copies} copies, told of {since:?} ago");
        }
    }
}
