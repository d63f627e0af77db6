//! The instances of a deployment: which one is created or deleted next (as a StatefulSet with
//! `OrderedReady`).
//!
//! A deployment of n replicas has the slots 0 to n−1, with one instance each. Actions come in this order, one
//! at a time:
//!
//! 1. Instances without a slot are deleted: those with no valid ordinal, with the ordinal of another
//!    instance, or with an ordinal that contradicts the name.
//! 2. Surplus instances are deleted one at a time, highest ordinal first. This comes before any waiting: an
//!    instance that waits for quota may need the quota that the surplus holds.
//! 3. Slots are filled from 0 upwards; each waits until the instance before it is ready. An instance that is
//!    not ready and outdated is replaced without waiting, so that a later spec repairs a broken rollout.
//! 4. Outdated instances are deleted from the highest ordinal down; a later reconcile creates the new ones.
//!    Providers cannot change a started instance, so no instance is updated in place.
//!
//! With the policy `Parallel`, steps 2 and 3 do not wait: surplus instances are deleted at once, and slots
//! are filled whether the others are ready or not. Step 4 still replaces one ready instance at a time, when
//! all others are ready.
//!
//! A reconcile carries out only the first action of a plan. So no reconcile both deletes and creates, and no
//! ordinal is created twice. Missing labels of existing instances are added at once, independently of the
//! actions.
//!
//! An instance belongs to the deployment if the deployment is its controller, or if it has no controller and
//! has the name, ordinal label and UID label of a slot. Every other instance is foreign: it is reported and
//! never changed.

use std::collections::BTreeMap;

use polis_api::compute::{
    GATE_NETWORK, GATE_QUOTA, Instance, InstanceController, LocationReference, PARALLEL, SchedulingGate,
    WorkloadDeployment,
};
use polis_api::conditions::READY;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::{ObjectExt, finalizers, labels, names};

use crate::metadata::{self, Map};
use crate::owner::{self, DeletionPlan, ObjectRef};
use crate::{Time, conditions, teardown, template};

/// Labels that link an instance to its deployment and workload, on every plane.
pub const LINKING_LABELS: [&str; 7] = [
    labels::WORKLOAD_UID,
    labels::WORKLOAD_DEPLOYMENT_UID,
    labels::WORKLOAD_DEPLOYMENT_NAME,
    labels::WORKLOAD_NAME,
    labels::PLACEMENT_NAME,
    labels::CITY_CODE,
    labels::INSTANCE_INDEX,
];

/// Fields that a new instance is created with, so that no second write has to add them.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceDefaults {
    /// Gates, in order.
    pub gates: Vec<String>,
    /// Finalizers.
    pub finalizers: Vec<String>,
    /// The location that the cell serves, if it is known.
    pub location: Option<LocationReference>,
}

impl Default for InstanceDefaults {
    fn default() -> Self {
        InstanceDefaults {
            gates: vec![GATE_NETWORK.into(), GATE_QUOTA.into()],
            finalizers: vec![finalizers::INSTANCE.into(), finalizers::QUOTA_CLAIM.into()],
            location: None,
        }
    }
}

/// An action on one instance, or a reason to wait.
#[derive(Clone, Debug, PartialEq)]
pub enum InstanceAction {
    /// Create this instance.
    Create(Box<Instance>),
    /// Delete this instance.
    Delete {
        /// The instance, with the UID and resource version that the decision is based on.
        object: ObjectRef,
        /// Why it is deleted.
        reason: DeleteReason,
    },
    /// No later action may be carried out yet.
    Wait {
        /// The instance.
        name: String,
        /// Why nothing can be done now.
        reason: WaitReason,
    },
}

/// Why an instance is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteReason {
    /// It has no slot of the deployment.
    NoSlot,
    /// Its ordinal is not less than the number of replicas.
    Surplus,
    /// The template has changed.
    Outdated,
}

/// Why the plan waits for an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// The instance is not ready.
    NotReady,
    /// The instance is terminating.
    Terminating,
    /// A foreign Instance has the name.
    NameTaken,
    /// The name has more than 63 characters, the limit of a host name; the deployment needs a shorter name.
    NameTooLong,
}

/// All actions on the instances of a deployment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InstancePlan {
    /// Actions in order. Carry out only the first, then plan again.
    pub actions: Vec<InstanceAction>,
    /// Existing instances with corrected metadata; write all of them, independently of the actions.
    pub backfill: Vec<Instance>,
    /// Names of foreign instances.
    pub foreign: Vec<String>,
}

impl InstancePlan {
    /// The action of this reconcile.
    pub fn next(&self) -> Option<&InstanceAction> {
        self.actions.first()
    }
}

/// The number of instances of a deployment: `spec.replicas`, else `minReplicas`.
///
/// The number is limited to the ordinals that fit into a name: a deployment created by hand passes no
/// admission.
pub fn desired(deployment: &WorkloadDeployment) -> u32 {
    if deployment.is_deleting() || teardown::requested(deployment) {
        return 0;
    }
    let replicas = deployment.spec.replicas.unwrap_or(deployment.spec.scale_settings.min_replicas);
    u32::try_from(replicas).unwrap_or(0).min(names::MAX_ORDINAL + 1)
}

/// Whether an instance belongs to a deployment.
pub fn belongs(instance: &Instance, deployment: &WorkloadDeployment) -> bool {
    let (meta, uid) = (&instance.metadata, deployment.uid());
    match owner::controller(meta) {
        Some(_) => owner::is_controlled_by(meta, uid),
        None => {
            !uid.is_empty()
                && instance.label(labels::WORKLOAD_DEPLOYMENT_UID) == Some(uid)
                && labelled_ordinal(instance).is_some()
                && labelled_ordinal(instance) == named_ordinal(instance, deployment)
        }
    }
}

/// Whether an instance is ready.
pub fn is_ready(instance: &Instance) -> bool {
    instance.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, READY))
}

/// Plans the instances of a deployment.
///
/// `existing` contains at least the instances that the deployment controls, those with its UID label, and
/// those with the name of one of its slots.
pub fn plan(
    deployment: &WorkloadDeployment,
    existing: &[Instance],
    defaults: &InstanceDefaults,
) -> InstancePlan {
    let desired = desired(deployment);
    let hash = template::hash(&deployment.spec.template);
    let Classified { slots, unassigned, foreign } = classify(deployment, existing);
    let (mut filling, mut outdated, mut backfill) = (Vec::new(), Vec::new(), Vec::new());
    let parallel = deployment.spec.scale_settings.instance_management_policy == PARALLEL;
    let mut waiting = Vec::new();

    for ordinal in 0..desired {
        let Some(instance) = slots.get(&ordinal) else {
            filling.push(fill_slot(deployment, ordinal, existing, defaults, &hash));
            continue;
        };
        backfill.extend(relabelled(instance, deployment, ordinal));
        let current = template::is_current(instance, &deployment.spec.template, &hash);
        match (instance.is_deleting(), is_ready(instance), current) {
            (true, _, _) if parallel => waiting.push(wait(instance, WaitReason::Terminating)),
            (true, _, _) => filling.push(wait(instance, WaitReason::Terminating)),
            (false, false, true) if parallel => waiting.push(wait(instance, WaitReason::NotReady)),
            (false, false, true) => filling.push(wait(instance, WaitReason::NotReady)),
            (false, false, false) => filling.push(delete(instance, DeleteReason::Outdated)),
            (false, true, false) => outdated.push(delete(instance, DeleteReason::Outdated)),
            (false, true, true) => {}
        }
    }
    outdated.reverse();

    let surplus: Vec<_> = slots.range(desired..).rev().map(|(_, instance)| *instance).collect();
    let terminating = surplus.iter().filter(|instance| instance.is_deleting());
    let terminating: Vec<_> = terminating.map(|instance| wait(instance, WaitReason::Terminating)).collect();
    let mut actions: Vec<_> =
        unassigned.iter().map(|instance| delete(instance, DeleteReason::NoSlot)).collect();
    if terminating.is_empty() || parallel {
        let surplus = surplus.iter().filter(|instance| !instance.is_deleting());
        actions.extend(surplus.map(|instance| delete(instance, DeleteReason::Surplus)));
    }
    actions.extend(filling);
    actions.extend(waiting);
    actions.extend(outdated);
    actions.extend(terminating);
    InstancePlan { actions, backfill, foreign }
}

/// Plans the deletion of the instances of a deployment that is being deleted.
pub fn deletion_plan(deployment: &WorkloadDeployment, existing: &[Instance]) -> DeletionPlan {
    let owned: Vec<_> = existing.iter().filter(|instance| belongs(instance, deployment)).collect();
    if owned.is_empty() {
        return DeletionPlan::Done;
    }
    let remaining = owned.iter().filter(|instance| !instance.is_deleting());
    let mut objects: Vec<_> = remaining.map(|instance| ObjectRef::of(*instance)).collect();
    objects.sort_by(|a, b| a.name.cmp(&b.name));
    DeletionPlan::Delete(objects)
}

/// A new instance of a deployment.
pub fn new_instance(deployment: &WorkloadDeployment, ordinal: u32, defaults: &InstanceDefaults) -> Instance {
    build(deployment, ordinal, defaults, &template::hash(&deployment.spec.template))
}

/// Existing instances by slot.
struct Classified<'a> {
    slots: BTreeMap<u32, &'a Instance>,
    /// Instances of the deployment without a slot that are not terminating, sorted by name.
    unassigned: Vec<&'a Instance>,
    foreign: Vec<String>,
}

fn classify<'a>(deployment: &WorkloadDeployment, existing: &'a [Instance]) -> Classified<'a> {
    let (mut by_ordinal, mut unassigned, mut foreign) =
        (BTreeMap::<u32, Vec<&Instance>>::new(), Vec::new(), Vec::new());
    for instance in existing {
        match (belongs(instance, deployment), ordinal(instance, deployment)) {
            (false, _) => foreign.push(instance.name().to_owned()),
            (true, Some(ordinal)) => by_ordinal.entry(ordinal).or_default().push(instance),
            (true, None) => unassigned.push(instance),
        }
    }
    let mut slots = BTreeMap::new();
    for (ordinal, mut candidates) in by_ordinal {
        candidates.sort_by_key(|instance| slot_preference(instance, deployment));
        slots.insert(ordinal, candidates.remove(0));
        unassigned.extend(candidates);
    }
    unassigned.retain(|instance| !instance.is_deleting());
    unassigned.sort_by(|a, b| a.name().cmp(b.name()));
    foreign.sort();
    Classified { slots, unassigned, foreign }
}

/// The sort key that decides which of several instances of one ordinal gets the slot, lowest first: not
/// terminating, expected name, ready, oldest, name.
fn slot_preference(
    instance: &Instance,
    deployment: &WorkloadDeployment,
) -> (bool, bool, bool, Option<Time>, String) {
    (
        instance.is_deleting(),
        named_ordinal(instance, deployment).is_none(),
        !is_ready(instance),
        instance.metadata.creation_timestamp.clone(),
        instance.name().to_owned(),
    )
}

/// The ordinal of an instance of the deployment: its label, or its name if the label is invalid. An instance
/// with the name of another slot has no ordinal, because that slot could never be filled.
fn ordinal(instance: &Instance, deployment: &WorkloadDeployment) -> Option<u32> {
    match (labelled_ordinal(instance), named_ordinal(instance, deployment)) {
        (Some(labelled), Some(named)) => (labelled == named).then_some(labelled),
        (labelled, named) => labelled.or(named),
    }
}

fn labelled_ordinal(instance: &Instance) -> Option<u32> {
    decimal(instance.label(labels::INSTANCE_INDEX)?)
}

/// The ordinal in the name of an instance.
fn named_ordinal(instance: &Instance, deployment: &WorkloadDeployment) -> Option<u32> {
    let rest = instance.name().strip_prefix(deployment.name())?;
    decimal(rest.strip_prefix('-')?)
}

/// Parses a decimal number without sign and leading zeros.
fn decimal(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}

/// The action that fills an empty slot.
fn fill_slot(
    deployment: &WorkloadDeployment,
    ordinal: u32,
    existing: &[Instance],
    defaults: &InstanceDefaults,
    hash: &str,
) -> InstanceAction {
    let name = names::instance(deployment.name(), ordinal);
    if name.len() > names::MAX_LABEL {
        return InstanceAction::Wait { name, reason: WaitReason::NameTooLong };
    }
    match existing.iter().find(|instance| instance.name() == name) {
        Some(holder) if holder.is_deleting() || belongs(holder, deployment) => {
            InstanceAction::Wait { name, reason: WaitReason::Terminating }
        }
        Some(_) => InstanceAction::Wait { name, reason: WaitReason::NameTaken },
        None => InstanceAction::Create(Box::new(build(deployment, ordinal, defaults, hash))),
    }
}

fn build(deployment: &WorkloadDeployment, ordinal: u32, defaults: &InstanceDefaults, hash: &str) -> Instance {
    let template = &deployment.spec.template;
    let from_template = template.metadata.clone().unwrap_or_default();
    let mut labels = from_template.labels;
    labels.extend(linking_labels(deployment, ordinal));
    let mut spec = template.spec.clone();
    spec.location = defaults.location.clone();
    spec.controller = Some(InstanceController {
        template_hash: hash.to_owned(),
        scheduling_gates: defaults.gates.iter().map(|name| SchedulingGate { name: name.clone() }).collect(),
    });
    let metadata = ObjectMeta {
        name: Some(names::instance(deployment.name(), ordinal)),
        namespace: deployment.metadata.namespace.clone(),
        labels: Some(labels),
        annotations: Some(from_template.annotations).filter(|map| !map.is_empty()),
        finalizers: Some(defaults.finalizers.clone()).filter(|list| !list.is_empty()),
        owner_references: Some(vec![owner::controller_reference(deployment)]),
        ..Default::default()
    };
    Instance { metadata, spec, status: None }
}

fn linking_labels(deployment: &WorkloadDeployment, ordinal: u32) -> Map {
    let ordinal = ordinal.to_string();
    metadata::map(LINKING_LABELS.into_iter().zip([
        deployment.spec.workload_ref.uid.as_str(),
        deployment.uid(),
        deployment.name(),
        deployment.spec.workload_ref.name.as_str(),
        deployment.spec.placement_name.as_str(),
        deployment.spec.city_code.as_str(),
        ordinal.as_str(),
    ]))
}

/// The instance with its linking labels and controller corrected, or `None` if they are correct.
fn relabelled(instance: &Instance, deployment: &WorkloadDeployment, ordinal: u32) -> Option<Instance> {
    if instance.is_deleting() {
        return None;
    }
    let mut new = instance.clone();
    let mut changed = metadata::merge_labels(&mut new.metadata, &linking_labels(deployment, ordinal), &[]);
    if owner::controller(&new.metadata).is_none() {
        changed |= owner::add(&mut new.metadata, owner::controller_reference(deployment));
    }
    changed.then_some(new)
}

fn delete(instance: &Instance, reason: DeleteReason) -> InstanceAction {
    InstanceAction::Delete { object: ObjectRef::of(instance), reason }
}

fn wait(instance: &Instance, reason: WaitReason) -> InstanceAction {
    InstanceAction::Wait { name: instance.name().to_owned(), reason }
}

#[cfg(test)]
mod tests;
