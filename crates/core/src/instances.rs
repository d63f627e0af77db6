//! Instance steps: which instance of a deployment is made or removed next.
//!
//! A deployment of n replicas has instances 0 to n−1. One thing happens at a time, in order:
//!
//! 1. *strays* go: instances of ours that stand in no slot (no readable ordinal, a second one of an ordinal, an ordinal
//!    that contradicts the name);
//! 2. *surplus* goes, highest ordinal first, one at a time. It comes before any waiting, because an instance that waits
//!    for quota may be waiting for what the surplus holds;
//! 3. *slots* are filled from 0 upwards, each waiting for the one before to be ready. An instance that is not ready and
//!    out of date is not waited for but replaced: that is how a broken rollout is mended by a later spec;
//! 4. *outdated* instances are replaced from the highest ordinal down, by deleting; the next pass makes the new one.
//!    Providers bake what they start, so nothing is changed in place.
//!
//! Only the first step of a plan is carried out in a pass; so no pass both deletes and creates, and no ordinal is made
//! twice. Labels that are missing on standing instances are added beside the order, at once.
//!
//! An instance is ours when this deployment controls it, or when it has no controller and bears name, ordinal and UID
//! label of a slot. Everything else is foreign: it is reported and never touched.

use std::collections::BTreeMap;

use polis_api::compute::{
    GATE_NETWORK, GATE_QUOTA, Instance, InstanceController, LocationReference, SchedulingGate,
    WorkloadDeployment,
};
use polis_api::conditions::READY;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::{finalizers, labels, names};

use crate::metadata::{self, Map};
use crate::owner::{self, Exact};
use crate::{Time, conditions, template};

/// Labels that link an instance to its deployment and workload; the same keys on every plane.
pub const LINKING_LABELS: [&str; 7] = [
    labels::WORKLOAD_UID,
    labels::WORKLOAD_DEPLOYMENT_UID,
    labels::WORKLOAD_DEPLOYMENT_NAME,
    labels::WORKLOAD_NAME,
    labels::PLACEMENT_NAME,
    labels::CITY_CODE,
    labels::INSTANCE_INDEX,
];

/// What a new instance carries from its first write on, so that no second write has to add it.
#[derive(Clone, Debug, PartialEq)]
pub struct Birth {
    /// Gates, in order.
    pub gates: Vec<String>,
    /// Finalizers.
    pub finalizers: Vec<String>,
    /// The location that the cell serves, where it is known.
    pub location: Option<LocationReference>,
}

impl Default for Birth {
    fn default() -> Self {
        Birth {
            gates: vec![GATE_NETWORK.into(), GATE_QUOTA.into()],
            finalizers: vec![finalizers::INSTANCE.into(), finalizers::QUOTA_CLAIM.into()],
            location: None,
        }
    }
}

/// One thing to do, or to wait for.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Make this instance.
    Create(Box<Instance>),
    /// Delete this instance.
    Delete {
        /// The instance, in the state that was looked at.
        exact: Exact,
        /// Why it goes.
        why: Farewell,
    },
    /// Nothing can be done before this comes about.
    Wait {
        /// The instance.
        name: String,
        /// What must come about.
        until: Until,
    },
}

/// Why an instance goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// It stands in no slot.
    Stray,
    /// Fewer are wanted.
    Surplus,
    /// The template has changed.
    Outdated,
}

/// What a step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// It is ready.
    Ready,
    /// It is gone.
    Gone,
    /// Whoever has its name gives it up: an Instance that is not ours.
    NameFree,
    /// The deployment has a shorter name: an instance name is a host name, of at most 63 characters.
    NameFits,
}

/// Everything to do about the instances of a deployment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Steps in order. Carry out the first, and no other, then plan anew.
    pub order: Vec<Step>,
    /// Standing instances with metadata put right; write each now, whatever the order says.
    pub backfill: Vec<Instance>,
    /// Names of instances that look like ours and are not.
    pub foreign: Vec<String>,
}

impl Plan {
    /// The one step of this pass.
    pub fn next(&self) -> Option<&Step> {
        self.order.first()
    }
}

/// What to do about a deployment that is being deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// Nothing is left: release the finalizer.
    Done,
    /// Delete these and come back when they are gone; empty when all are already on their way.
    Remove(Vec<Exact>),
}

/// How many instances a deployment wants: what the scale subresource says, else the least.
///
/// Bounded by what names leave room for: a deployment applied by hand passes no admission.
pub fn desired(deployment: &WorkloadDeployment) -> u32 {
    if owner::is_deleting(&deployment.metadata) {
        return 0;
    }
    let asked = deployment.spec.replicas.unwrap_or(deployment.spec.scale_settings.min_replicas);
    u32::try_from(asked).unwrap_or(0).min(names::MAX_ORDINAL + 1)
}

/// Whether an instance belongs to a deployment.
pub fn belongs(instance: &Instance, deployment: &WorkloadDeployment) -> bool {
    let (meta, uid) = (&instance.metadata, owner::uid(&deployment.metadata));
    match owner::controller(meta) {
        Some(_) => owner::is_controlled_by(meta, uid),
        None => {
            !uid.is_empty()
                && metadata::label(meta, labels::WORKLOAD_DEPLOYMENT_UID) == Some(uid)
                && labelled_ordinal(instance).is_some()
                && labelled_ordinal(instance) == named_ordinal(instance, deployment)
        }
    }
}

/// Whether an instance is ready.
pub fn is_ready(instance: &Instance) -> bool {
    instance.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, READY))
}

/// What to do, given the instances of the deployment's namespace.
///
/// `standing` holds at least those that the deployment controls, those with its UID label, and those that bear a name
/// of one of its slots.
pub fn plan(deployment: &WorkloadDeployment, standing: &[Instance], birth: &Birth) -> Plan {
    let desired = desired(deployment);
    let hash = template::hash(&deployment.spec.template);
    let Crew { slots, strays, foreign } = muster(deployment, standing);
    let (mut filling, mut outdated, mut backfill) = (Vec::new(), Vec::new(), Vec::new());

    for ordinal in 0..desired {
        let Some(instance) = slots.get(&ordinal) else {
            filling.push(vacancy(deployment, ordinal, standing, birth, &hash));
            continue;
        };
        backfill.extend(relabelled(instance, deployment, ordinal));
        let current = template::is_current(instance, &deployment.spec.template, &hash);
        match (owner::is_deleting(&instance.metadata), is_ready(instance), current) {
            (true, _, _) => filling.push(wait(instance, Until::Gone)),
            (false, false, true) => filling.push(wait(instance, Until::Ready)),
            (false, false, false) => filling.push(delete(instance, Farewell::Outdated)),
            (false, true, false) => outdated.push(delete(instance, Farewell::Outdated)),
            (false, true, true) => {}
        }
    }
    outdated.reverse();

    let surplus: Vec<_> = slots.range(desired..).rev().map(|(_, instance)| *instance).collect();
    let leaving = surplus.iter().filter(|instance| owner::is_deleting(&instance.metadata));
    let leaving: Vec<_> = leaving.map(|instance| wait(instance, Until::Gone)).collect();
    let mut order: Vec<_> = strays.iter().map(|instance| delete(instance, Farewell::Stray)).collect();
    if leaving.is_empty() {
        order.extend(surplus.iter().map(|instance| delete(instance, Farewell::Surplus)));
    }
    order.extend(filling);
    order.extend(outdated);
    order.extend(leaving);
    Plan { order, backfill, foreign }
}

/// What to do with the instances of a deployment that is being deleted.
pub fn withdrawal(deployment: &WorkloadDeployment, standing: &[Instance]) -> Withdrawal {
    let ours: Vec<_> = standing.iter().filter(|instance| belongs(instance, deployment)).collect();
    if ours.is_empty() {
        return Withdrawal::Done;
    }
    let staying = ours.iter().filter(|instance| !owner::is_deleting(&instance.metadata));
    let mut exact: Vec<_> = staying.map(|instance| Exact::of(&instance.metadata)).collect();
    exact.sort_by(|a, b| a.name.cmp(&b.name));
    Withdrawal::Remove(exact)
}

/// A new instance of a deployment.
pub fn new_instance(deployment: &WorkloadDeployment, ordinal: u32, birth: &Birth) -> Instance {
    made(deployment, ordinal, birth, &template::hash(&deployment.spec.template))
}

/// Instances by where they stand.
struct Crew<'a> {
    slots: BTreeMap<u32, &'a Instance>,
    /// Not counting those on their way out, sorted by name.
    strays: Vec<&'a Instance>,
    foreign: Vec<String>,
}

fn muster<'a>(deployment: &WorkloadDeployment, standing: &'a [Instance]) -> Crew<'a> {
    let (mut rivals, mut strays, mut foreign) =
        (BTreeMap::<u32, Vec<&Instance>>::new(), Vec::new(), Vec::new());
    for instance in standing {
        match (belongs(instance, deployment), ordinal(instance, deployment)) {
            (false, _) => foreign.push(owner::name(&instance.metadata).to_owned()),
            (true, Some(ordinal)) => rivals.entry(ordinal).or_default().push(instance),
            (true, None) => strays.push(instance),
        }
    }
    let mut slots = BTreeMap::new();
    for (ordinal, mut rivals) in rivals {
        rivals.sort_by_key(|instance| claim_to_slot(instance, deployment));
        slots.insert(ordinal, rivals.remove(0));
        strays.extend(rivals);
    }
    strays.retain(|instance| !owner::is_deleting(&instance.metadata));
    strays.sort_by(|a, b| owner::name(&a.metadata).cmp(owner::name(&b.metadata)));
    foreign.sort();
    Crew { slots, strays, foreign }
}

/// Who of several instances of one ordinal stays: one that is not leaving, then the rightly named, then the ready, then
/// the oldest, then by name. Lowest first.
fn claim_to_slot(
    instance: &Instance,
    deployment: &WorkloadDeployment,
) -> (bool, bool, bool, Option<Time>, String) {
    (
        owner::is_deleting(&instance.metadata),
        named_ordinal(instance, deployment).is_none(),
        !is_ready(instance),
        instance.metadata.creation_timestamp.clone(),
        owner::name(&instance.metadata).to_owned(),
    )
}

/// The ordinal of an instance of ours: its label. A label that cannot be read is restored from the name; a name that
/// belongs to another slot makes the instance a stray, since that slot could never be filled.
fn ordinal(instance: &Instance, deployment: &WorkloadDeployment) -> Option<u32> {
    match (labelled_ordinal(instance), named_ordinal(instance, deployment)) {
        (Some(labelled), Some(named)) => (labelled == named).then_some(labelled),
        (labelled, named) => labelled.or(named),
    }
}

fn labelled_ordinal(instance: &Instance) -> Option<u32> {
    decimal(metadata::label(&instance.metadata, labels::INSTANCE_INDEX)?)
}

/// The slot whose name an instance bears.
fn named_ordinal(instance: &Instance, deployment: &WorkloadDeployment) -> Option<u32> {
    let rest = owner::name(&instance.metadata).strip_prefix(owner::name(&deployment.metadata))?;
    decimal(rest.strip_prefix('-')?)
}

/// A number as Polis writes it: no sign, no leading zero.
fn decimal(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}

fn vacancy(
    deployment: &WorkloadDeployment,
    ordinal: u32,
    standing: &[Instance],
    birth: &Birth,
    hash: &str,
) -> Step {
    let name = names::instance(owner::name(&deployment.metadata), ordinal);
    if name.len() > names::MAX_LABEL {
        return Step::Wait { name, until: Until::NameFits };
    }
    match standing.iter().find(|instance| owner::name(&instance.metadata) == name) {
        Some(holder) if owner::is_deleting(&holder.metadata) || belongs(holder, deployment) => {
            Step::Wait { name, until: Until::Gone }
        }
        Some(_) => Step::Wait { name, until: Until::NameFree },
        None => Step::Create(Box::new(made(deployment, ordinal, birth, hash))),
    }
}

fn made(deployment: &WorkloadDeployment, ordinal: u32, birth: &Birth, hash: &str) -> Instance {
    let template = &deployment.spec.template;
    let from_template = template.metadata.clone().unwrap_or_default();
    let mut labels = from_template.labels;
    labels.extend(linking_labels(deployment, ordinal));
    let mut spec = template.spec.clone();
    spec.location = birth.location.clone();
    spec.controller = Some(InstanceController {
        template_hash: hash.to_owned(),
        scheduling_gates: birth.gates.iter().map(|name| SchedulingGate { name: name.clone() }).collect(),
    });
    let metadata = ObjectMeta {
        name: Some(names::instance(owner::name(&deployment.metadata), ordinal)),
        namespace: deployment.metadata.namespace.clone(),
        labels: Some(labels),
        annotations: Some(from_template.annotations).filter(|map| !map.is_empty()),
        finalizers: Some(birth.finalizers.clone()).filter(|list| !list.is_empty()),
        owner_references: Some(vec![owner::controller_reference(deployment)]),
        ..Default::default()
    };
    Instance { metadata, spec, status: None }
}

fn linking_labels(deployment: &WorkloadDeployment, ordinal: u32) -> Map {
    let ordinal = ordinal.to_string();
    metadata::map(LINKING_LABELS.into_iter().zip([
        deployment.spec.workload_ref.uid.as_str(),
        owner::uid(&deployment.metadata),
        owner::name(&deployment.metadata),
        deployment.spec.workload_ref.name.as_str(),
        deployment.spec.placement_name.as_str(),
        deployment.spec.city_code.as_str(),
        ordinal.as_str(),
    ]))
}

/// The instance with its linking labels and owner put right, when anything of them is wrong.
fn relabelled(instance: &Instance, deployment: &WorkloadDeployment, ordinal: u32) -> Option<Instance> {
    if owner::is_deleting(&instance.metadata) {
        return None;
    }
    let mut new = instance.clone();
    let mut changed = metadata::merge_labels(&mut new.metadata, &linking_labels(deployment, ordinal), &[]);
    if owner::controller(&new.metadata).is_none() {
        changed |= owner::add(&mut new.metadata, owner::controller_reference(deployment));
    }
    changed.then_some(new)
}

fn delete(instance: &Instance, why: Farewell) -> Step {
    Step::Delete { exact: Exact::of(&instance.metadata), why }
}

fn wait(instance: &Instance, until: Until) -> Step {
    Step::Wait { name: owner::name(&instance.metadata).to_owned(), until }
}

#[cfg(test)]
mod tests;
