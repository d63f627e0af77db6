//! Whether a cell has the data that a deployment expects, and the conditions that follow from it.

use polis_api::ObjectExt;
use polis_api::annotations::{EXPECTED_REFERENCED_DATA, REFERENCED_DATA_ERROR};
use polis_api::compute::{GATE_REFERENCED_DATA, Instance, WorkloadDeployment};
use polis_api::conditions::REFERENCED_DATA_READY;
use polis_api::reasons;

use super::{DataKind, Failure, references};
use crate::conditions::DesiredCondition;
use crate::gates;

/// The referenced data of a deployment in its cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryState {
    /// The template refers to nothing.
    Unused,
    /// All of it is in the cell.
    Ready,
    /// Some of it is on its way.
    Pending(Failure),
    /// Some of it cannot be delivered.
    Failed(Failure),
}

impl DeliveryState {
    /// Whether instances may start.
    pub fn is_ready(&self) -> bool {
        matches!(self, DeliveryState::Unused | DeliveryState::Ready)
    }

    /// Why instances may not start.
    pub fn cause(&self) -> Option<&Failure> {
        match self {
            DeliveryState::Unused | DeliveryState::Ready => None,
            DeliveryState::Pending(cause) | DeliveryState::Failed(cause) => Some(cause),
        }
    }
}

/// The companions that a deployment of a hub or a cell expects: kind, name and content hash. None if the
/// federator has not written the list.
pub fn expected(deployment: &WorkloadDeployment) -> Option<Vec<(DataKind, String, String)>> {
    let tokens: Vec<String> = serde_json::from_str(deployment.annotation(EXPECTED_REFERENCED_DATA)?).ok()?;
    let parsed = tokens.iter().map(|token| {
        let (object, hash) = token.split_once('@')?;
        let (kind, name) = object.split_once('/')?;
        let kind = DataKind::ALL.into_iter().find(|known| known.as_str() == kind)?;
        Some((kind, name.to_owned(), hash.to_owned()))
    });
    parsed.collect()
}

/// The state of the referenced data of a deployment. `delivered` returns the content hash of a companion in
/// the cell.
pub fn delivery<E>(
    deployment: &WorkloadDeployment,
    delivered: impl Fn(DataKind, &str) -> Result<Option<String>, E>,
) -> Result<DeliveryState, E> {
    let references = references(&deployment.spec.template.spec);
    if references.is_empty() {
        return Ok(DeliveryState::Unused);
    }
    let error = deployment.annotation(REFERENCED_DATA_ERROR);
    if let Some(failure) = error.and_then(|error| serde_json::from_str::<Failure>(error).ok()) {
        return Ok(DeliveryState::Failed(failure));
    }
    let Some(expected) = expected(deployment) else {
        return Ok(pending(reasons::RESOLVING, "the config maps and secrets are being looked up"));
    };
    let mut missing = Vec::new();
    for (kind, companion, hash) in expected {
        if delivered(kind, &companion)? != Some(hash) {
            let of = |it: &&super::Reference| it.kind == kind && it.companion() == companion;
            let reference = references.iter().find(of);
            missing.push(reference.map_or(companion.clone(), |reference| reference.to_string()));
        }
    }
    if missing.is_empty() {
        return Ok(DeliveryState::Ready);
    }
    let message = format!("{} is not in the cell yet", missing.join(", "));
    Ok(pending(reasons::AWAITING_PROPAGATION, &message))
}

fn pending(reason: &str, message: &str) -> DeliveryState {
    DeliveryState::Pending(Failure { reason: reason.to_owned(), message: message.to_owned() })
}

/// The condition of an instance of the deployment; none if the instance refers to nothing. An instance
/// without the gate has started with its data, and does not wait for newer data.
pub fn instance_condition(instance: &Instance, state: &DeliveryState) -> Option<DesiredCondition> {
    if references(&instance.spec).is_empty() {
        return None;
    }
    let waits = gates::has(instance, GATE_REFERENCED_DATA);
    Some(condition(state, waits))
}

/// The condition of a deployment; none if its template refers to nothing. While no instance waits for data,
/// data on its way is no reason to report: the next instances wait for it.
pub fn deployment_condition(state: &DeliveryState, instances: &[&Instance]) -> Option<DesiredCondition> {
    let waits = instances.is_empty() || instances.iter().any(|it| gates::has(it, GATE_REFERENCED_DATA));
    (*state != DeliveryState::Unused).then(|| condition(state, waits))
}

fn condition(state: &DeliveryState, waits: bool) -> DesiredCondition {
    let new_false =
        |why: &Failure| DesiredCondition::new_false(REFERENCED_DATA_READY, why.reason.clone(), &*why.message);
    match state {
        DeliveryState::Pending(why) if waits => new_false(why),
        DeliveryState::Failed(why) => new_false(why),
        _ => DesiredCondition::new_true(REFERENCED_DATA_READY, reasons::READY, ""),
    }
}
