//! Quarantine of admission policies and webhooks that fail hard, so that one of them cannot cost its plane
//! all computing time, or every write the timeout of a webhook.
//!
//! A policy that panics, and a policy or webhook that exhausts its limit again and again, is no longer
//! evaluated for a while. Requests that it matches are handled by its `failurePolicy`. Then it is tried once:
//! a further failure extends the quarantine, a success ends it, and so does a change of the object.
//!
//! Only the configurations of a project are quarantined, those that a tenant writes. A tenant whose requests
//! exhaust a policy of the platform must not switch it to its `failurePolicy` for others.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use polis_apimachinery::{object, time};
use serde_json::{Value, json};

use crate::{flow::Caller, plane::is_project, route::Verb, store::Collection, verbs::Call};

/// Failures in a row after which a configuration is quarantined.
const FAILURES_MAX: u32 = 10;
/// Duration of a quarantine.
const DURATION: SignedDuration = SignedDuration::from_mins(5);
/// Group of the configurations.
const GROUP: &str = "admissionregistration.k8s.io";

/// How a configuration failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HardFailure {
    /// The evaluation panicked.
    Panicked,
    /// The evaluation exceeded its limit of cost or memory.
    Exhausted,
    /// The webhook did not answer in time.
    TimedOut,
}

impl HardFailure {
    fn reason(self) -> &'static str {
        match self {
            Self::Panicked => "Panicked",
            Self::Exhausted => "LimitExceeded",
            Self::TimedOut => "TimedOut",
        }
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Panicked => "its evaluation made the server panic",
            Self::Exhausted => "its evaluation exceeded the limit of cost or memory again and again",
            Self::TimedOut => "it did not answer in time again and again",
        }
    }
}

/// A configuration of a project, in one version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Subject {
    plane: Arc<str>,
    plural: &'static str,
    name: Arc<str>,
    /// Uid and generation.
    version: (String, i64),
}

impl Subject {
    /// The subject of a stored configuration; `None` if it is not one of a project.
    pub(super) fn of(
        plane: &Arc<str>,
        plural: &'static str,
        name: &Arc<str>,
        object: &Value,
    ) -> Option<Self> {
        let metadata = &object["metadata"];
        let version = (
            metadata["uid"].as_str().unwrap_or_default().to_owned(),
            metadata["generation"].as_i64().unwrap_or_default(),
        );
        is_project(plane).then(|| Self { plane: plane.clone(), plural, name: name.clone(), version })
    }
}

/// The failures of one subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Breaker {
    failures: u32,
    until: Option<Timestamp>,
}

/// A change that is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Quarantined(HardFailure),
    Released,
}

impl Breaker {
    fn is_open(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Records a success or a failure.
    fn record(&mut self, failure: Option<HardFailure>, now: Timestamp) -> Option<Change> {
        let Some(failure) = failure else {
            self.failures = 0;
            return self.until.take().map(|_| Change::Released);
        };
        self.failures += if failure == HardFailure::Panicked { FAILURES_MAX } else { 1 };
        if self.failures < FAILURES_MAX {
            return None;
        }
        // After the quarantine one more failure extends it.
        self.failures = FAILURES_MAX - 1;
        let first = self.until.is_none();
        self.until = now.checked_add(DURATION).ok();
        first.then_some(Change::Quarantined(failure))
    }
}

/// The configurations that have failed lately.
#[derive(Default)]
pub(crate) struct Quarantine {
    breakers: Mutex<HashMap<Subject, Breaker>>,
    /// Changes that are not reported yet.
    changes: Mutex<Vec<(Subject, Change)>>,
}

impl Quarantine {
    /// Whether the configuration is quarantined.
    pub(super) fn holds(&self, subject: Option<&Subject>, now: Timestamp) -> bool {
        let Some(subject) = subject else { return false };
        self.breakers.lock().get(subject).is_some_and(|breaker| breaker.is_open(now))
    }

    /// Records a success or a failure of the configuration.
    pub(super) fn record(&self, subject: Option<&Subject>, failure: Option<HardFailure>, now: Timestamp) {
        let Some(subject) = subject else { return };
        let mut breakers = self.breakers.lock();
        let change = match (breakers.get_mut(subject), failure) {
            (None, None) => return,
            (None, Some(_)) => {
                // Older versions of the object are gone.
                breakers.retain(|other, _| {
                    (&other.plane, other.plural, &other.name)
                        != (&subject.plane, subject.plural, &subject.name)
                });
                breakers.entry(subject.clone()).or_default().record(failure, now)
            }
            (Some(breaker), _) => breaker.record(failure, now),
        };
        if failure.is_none() {
            breakers.remove(subject);
        }
        drop(breakers);
        self.changes.lock().extend(change.map(|change| (subject.clone(), change)));
    }

    /// Reports the changes since the last call: an event, and a condition where the kind has a status. `None`
    /// if there are none.
    pub(super) fn report<'a>(&'a self, call: &'a Call) -> Option<BoxFuture<'a, ()>> {
        let changes = std::mem::take(&mut *self.changes.lock());
        if changes.is_empty() {
            return None;
        }
        Some(Box::pin(async move {
            for (subject, change) in changes {
                report_change(call, &subject, change).await;
            }
        }))
    }
}

/// Why a quarantined configuration is not evaluated, for the error of a request.
pub(super) const QUARANTINED: &str = "it is quarantined because it failed hard, and is tried again within five minutes; its events have the cause, and a change of the object ends the quarantine";

async fn report_change(call: &Call, subject: &Subject, change: Change) {
    let core = &call.core;
    let Subject { plane, plural, name, .. } = subject;
    let (status, reason, message) = match change {
        Change::Quarantined(failure) => {
            let why = failure.describe();
            tracing::warn!(
                plane = &**plane,
                plural,
                name = &**name,
                why,
                "admission configuration quarantined"
            );
            let message = format!(
                "{why}; for {} it is not evaluated, and requests that it matches are handled by its failurePolicy. Change it to end this",
                minutes(DURATION)
            );
            ("True", failure.reason(), message)
        }
        Change::Released => ("False", "Evaluated", "it is evaluated again".to_owned()),
    };
    let collection = Collection::new(plane.clone(), format!("{plural}.{GROUP}"));
    let Some(stored) = core.store.view().get(&collection, name) else { return };
    let object = stored.value();
    let kind = if change == Change::Released { "Normal" } else { "Warning" };
    if let Err(failure) = write_event(call, plane, &object, kind, &message).await {
        tracing::warn!(plane = &**plane, name = &**name, %failure, "failed to write the event of a quarantine");
    }
    if *plural != "validatingadmissionpolicies" {
        return;
    }
    let condition = json!({
        "type": "Quarantined", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": time::timestamp(core.clock.now()),
        "observedGeneration": object["metadata"]["generation"],
    });
    let set = core.rewrite(&collection, name, |object| set_condition(object, condition.clone())).await;
    if let Err(failure) = set {
        tracing::warn!(plane = &**plane, name = &**name, %failure, "failed to write the condition of a quarantine");
    }
}

fn minutes(duration: SignedDuration) -> String {
    format!("{} minutes", Duration::try_from(duration).unwrap_or_default().as_secs() / 60)
}

/// Sets the condition of this type in the status.
fn set_condition(object: &mut Value, condition: Value) {
    let old = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let others = old.into_iter().filter(|other| other["type"] != condition["type"]);
    let conditions: Vec<Value> = others.chain([condition.clone()]).collect();
    if !object["status"].is_object() {
        object["status"] = json!({});
    }
    object["status"]["conditions"] = conditions.into();
}

/// Writes an event about a cluster-scoped object, in the namespace `default` as in Kubernetes.
async fn write_event(
    call: &Call,
    plane: &Arc<str>,
    about: &Value,
    kind: &str,
    message: &str,
) -> Result<(), crate::status::StatusError> {
    let core = &call.core;
    let Some(plane) = core.plane(plane) else { return Ok(()) };
    let kinds = plane.catalogue.kinds();
    let Some(events) = kinds.find("", "events") else { return Ok(()) };
    let mut create = Call::internal(core, &plane, events, Verb::Create, Some("default"), None);
    create.caller = Caller::internal();
    let now = time::timestamp(core.clock.now());
    let event = json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"generateName": format!("{}.", object::meta(about, "name")), "namespace": "default"},
        "involvedObject": {
            "apiVersion": about["apiVersion"], "kind": about["kind"],
            "name": about["metadata"]["name"], "uid": about["metadata"]["uid"],
        },
        "type": kind,
        "reason": if kind == "Warning" { "Quarantined" } else { "Released" },
        "message": message,
        "source": {"component": "polis-apiserver"},
        "firstTimestamp": now, "lastTimestamp": now, "count": 1,
    });
    create.create_object(event, false).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes)
    }

    #[test]
    fn failures_in_a_row_quarantine_and_a_success_between_them_starts_over() {
        let mut breaker = Breaker::default();
        for _ in 0..2 {
            for _ in 1..FAILURES_MAX {
                assert_eq!(breaker.record(Some(HardFailure::Exhausted), at(0)), None);
            }
            assert!(!breaker.is_open(at(0)));
            assert_eq!(breaker.record(None, at(0)), None);
        }
        for _ in 1..FAILURES_MAX {
            breaker.record(Some(HardFailure::TimedOut), at(0));
        }
        let opened = breaker.record(Some(HardFailure::TimedOut), at(0));
        assert_eq!(opened, Some(Change::Quarantined(HardFailure::TimedOut)));
        assert!(breaker.is_open(at(4)) && !breaker.is_open(at(5)));
    }

    #[test]
    fn one_panic_is_enough_and_after_a_quarantine_one_attempt_decides() {
        let mut breaker = Breaker::default();
        let opened = breaker.record(Some(HardFailure::Panicked), at(0));
        assert_eq!(opened, Some(Change::Quarantined(HardFailure::Panicked)));
        assert_eq!(breaker.record(Some(HardFailure::Exhausted), at(6)), None, "reported once");
        assert!(breaker.is_open(at(10)));
        assert_eq!(breaker.record(None, at(12)), Some(Change::Released));
        assert!(!breaker.is_open(at(12)));
    }

    #[test]
    fn only_configurations_of_projects_can_be_quarantined_and_a_change_ends_it() {
        let object = |generation| json!({"metadata": {"uid": "u", "generation": generation}});
        let subject = |plane: &str, generation| {
            Subject::of(&plane.into(), "validatingadmissionpolicies", &"p".into(), &object(generation))
        };
        for plane in ["", "hub", "@projects", "cell-dfw"] {
            assert_eq!(subject(plane, 1), None);
        }
        let quarantine = Quarantine::default();
        let (old, new) = (subject("project:a", 1), subject("project:a", 2));
        quarantine.record(old.as_ref(), Some(HardFailure::Panicked), at(0));
        assert!(quarantine.holds(old.as_ref(), at(1)) && !quarantine.holds(new.as_ref(), at(1)));
        quarantine.record(new.as_ref(), Some(HardFailure::Exhausted), at(1));
        assert_eq!(quarantine.breakers.lock().len(), 1, "the old version is forgotten");
    }
}
