//! Objects beside a workload whose conditions explain what it waits for: the Cluster of its city, the Work
//! and the policy on the hub, quota claims and grants, network objects in the cell, the Project.

use jiff::Timestamp;
use polis_api::conditions::karmada::{APPLIED, DISPATCHING};
use polis_api::conditions::{ACTIVE, GRANTED, READY, RESOURCE_CLEANUP};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use polis_api::kube::Resource;
use polis_api::reasons::karmada::SUSPEND_DISPATCHING;

use super::{Finding, from_condition};
use crate::view::{Severity, reasons};

/// An object with conditions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RelatedObject {
    /// The plane, as in messages.
    pub plane: String,
    /// City that it belongs to; none if it concerns the whole workload.
    pub city: Option<String>,
    /// Its kind.
    pub kind: &'static str,
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// Its conditions.
    pub conditions: Vec<Condition>,
}

/// The conditions that explain something, with the kinds that have them.
const EXPLAINING: [(&str, &str); 8] = [
    ("Cluster", READY),
    ("Work", APPLIED),
    ("Work", DISPATCHING),
    ("PropagationPolicy", DISPATCHING),
    ("ResourceClaim", GRANTED),
    ("ResourceGrant", ACTIVE),
    ("ResourceRegistration", ACTIVE),
    ("Project", RESOURCE_CLEANUP),
];
/// Kinds of the network service; `Ready` explains.
const NETWORKING: [&str; 4] = ["NetworkBinding", "NetworkContext", "SubnetClaim", "Subnet"];

impl RelatedObject {
    /// An object as it was read.
    pub fn of<K: Resource<DynamicType = ()>>(
        plane: &str,
        city: Option<&str>,
        kind: &'static str,
        object: &K,
        conditions: Option<&[Condition]>,
    ) -> Self {
        RelatedObject {
            plane: plane.to_owned(),
            city: city.map(str::to_owned),
            kind,
            metadata: object.meta().clone(),
            conditions: conditions.unwrap_or_default().to_vec(),
        }
    }

    /// A policy that suspends the dispatch of changes. It has no conditions of its own.
    pub fn suspended_policy(plane: &str, city: &str, metadata: ObjectMeta) -> Self {
        let created = metadata.creation_timestamp.clone();
        let condition = Condition {
            type_: DISPATCHING.to_owned(),
            status: "False".to_owned(),
            reason: SUSPEND_DISPATCHING.to_owned(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: created.unwrap_or(Time(Timestamp::UNIX_EPOCH)),
        };
        RelatedObject {
            plane: plane.to_owned(),
            city: Some(city.to_owned()),
            kind: "PropagationPolicy",
            metadata,
            conditions: vec![condition],
        }
    }

    /// Whether what it reports concerns the workload even while all instances are ready: the city is not
    /// reachable, or changes do not get there.
    pub fn concerns_healthy(&self) -> bool {
        matches!(self.kind, "Cluster" | "Work" | "PropagationPolicy" | "Project")
    }

    /// The finding from the first condition that is not True and whose reason is known.
    pub fn finding(&self, about: &str) -> Option<Finding> {
        let explains = |condition: &&Condition| {
            let type_ = condition.type_.as_str();
            condition.status != "True"
                && (EXPLAINING.contains(&(self.kind, type_))
                    || (NETWORKING.contains(&self.kind) && type_ == READY))
                && reasons::entry(&condition.reason).is_some_and(|entry| entry.severity != Severity::Ok)
        };
        let condition = self.conditions.iter().find(explains)?;
        let mut finding = from_condition(about, &self.plane, &self.metadata, condition);
        let place = format!("{} {}", self.kind, self.metadata.name.as_deref().unwrap_or_default());
        finding.message = match finding.message.as_str() {
            "" => place,
            message => format!("{place}: {message}"),
        };
        Some(finding)
    }
}

/// An event about an object of the workload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventNote {
    /// Name of the object.
    pub about: String,
    /// Reason of the event.
    pub reason: String,
    /// Whether it is a warning.
    pub warning: bool,
    /// When it was first recorded.
    pub first: Option<Timestamp>,
}

/// When the newest warning with a reason about an object was first recorded.
pub fn warned_at(events: &[EventNote], about: &str, reason: &str) -> Option<Timestamp> {
    let matching = events.iter().filter(|event| event.warning && event.about == about);
    matching.filter(|event| event.reason == reason).filter_map(|event| event.first).max()
}

/// A plane that could not be read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UnreadPlane {
    /// The plane, as in messages.
    pub plane: String,
    /// City of the cell; empty for other planes.
    pub city: String,
    /// Why it could not be read.
    pub why: String,
    /// Whether it does not respond, in contrast to a refusal.
    pub unreachable: bool,
}

impl UnreadPlane {
    /// A plane or a part of one that refused to be read.
    pub fn refused(plane: impl Into<String>, why: impl Into<String>) -> Self {
        UnreadPlane { plane: plane.into(), why: why.into(), ..Default::default() }
    }

    /// The line in the output.
    pub fn describe(&self) -> String {
        format!("{}: {}", self.plane, self.why)
    }
}
