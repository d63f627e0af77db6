//! Write-back: how an instance of a cell stands on the hub.
//!
//! The copy has the instance's name, its spec whole, the labels that link it, and the identity of the hub namespace. It
//! is owned by the hub's deployment of the name in its label: without that owner there is no copy, so what the hub has
//! given up is never brought back by a cell that has not heard of it yet. One that somebody else controls, an earlier
//! deployment of the name included, is left alone for the garbage collector. One without a controller is adopted if it
//! bears the UID that the deployment has in this cell, as copies of other implementations do: the right name alone proves
//! nothing, and what is taken for ours is overwritten and one day deleted.
//!
//! The copy also names its cell, so that a cell need only look at its own. When a deployment moves to another cell of the
//! city, both have an instance of the name for a while: the copy changes hands when the hub says that the deployment
//! is reported by the new cell, and not before.

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::labels;

use crate::identity::Identity;
use crate::instances::LINKING_LABELS;
use crate::metadata::{self, Map};
use crate::mirror::{self, Changes};
use crate::owner;

/// What to do about the hub copy of an instance.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It is as it should be.
    Leave,
    /// The hub's deployment is gone or going: no copy, and no complaint.
    NoOwner,
    /// Make it, then write the instance's status to it.
    Create(Box<Instance>),
    /// Bring it up to date.
    Update(Changes),
    /// An earlier copy is on its way out: come back when it is gone.
    AwaitRemoval,
    /// The object of that name is none of ours.
    Foreign {
        /// Kind and name of its controller, if it has one.
        controller: Option<String>,
    },
    /// It shows the instance of another cell, from which the deployment has not moved here yet.
    OtherCell {
        /// Name of that cell.
        cell: String,
    },
}

/// Why an instance cannot be shown on the hub.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "failed to write back instance {instance}: label {label} is missing; the deployment controller sets it"
)]
pub struct MissingLabel {
    /// Name of the instance.
    pub instance: String,
    /// The label.
    pub label: &'static str,
}

/// Name of the deployment that an instance belongs to, by its label: the same on every plane.
pub fn deployment_name(instance: &Instance) -> Result<&str, MissingLabel> {
    read(instance, labels::WORKLOAD_DEPLOYMENT_NAME)
}

/// What to do about the copy of `instance` on the hub.
///
/// `cell` is the name of the cell that asks, `hub_owner` the hub's deployment named by [`deployment_name`], `identity`
/// that of the hub namespace, `standing` the copy that is there.
pub fn step(
    instance: &Instance,
    identity: &Identity,
    cell: &str,
    hub_owner: Option<&WorkloadDeployment>,
    standing: Option<&Instance>,
) -> Result<Step, MissingLabel> {
    let labels = copy_labels(instance, identity, cell)?;
    let name = deployment_name(instance)?;
    let owns = |owner: &&WorkloadDeployment| {
        owner::name(&owner.metadata) == name
            && !owner::uid(&owner.metadata).is_empty()
            && !owner::is_deleting(&owner.metadata)
    };
    let Some(hub_owner) = hub_owner.filter(owns) else { return Ok(Step::NoOwner) };
    let reference = owner::controller_reference(hub_owner);

    let Some(standing) = standing else {
        let namespace = hub_owner.metadata.namespace.as_deref().unwrap_or_default();
        return Ok(Step::Create(Box::new(mirror::new(instance, namespace, labels, reference))));
    };
    if owner::is_deleting(&standing.metadata) {
        return Ok(Step::AwaitRemoval);
    }
    match owner::controller(&standing.metadata) {
        Some(controller) if controller.uid != reference.uid => {
            let controller = Some(format!("{} {}", controller.kind, controller.name));
            return Ok(Step::Foreign { controller });
        }
        None if !was_made_for(standing, instance) => return Ok(Step::Foreign { controller: None }),
        _ => {}
    }
    let reported_by = hub_owner.status.as_ref().and_then(|status| status.cell.as_deref());
    if let Some(other) = source(standing).filter(|other| *other != cell && reported_by != Some(cell)) {
        return Ok(Step::OtherCell { cell: other.to_owned() });
    }
    let changes = mirror::changes(instance, standing, &labels, &[], reference);
    Ok(if changes.is_nothing() { Step::Leave } else { Step::Update(changes) })
}

/// Whether a copy on the hub shows this instance of this cell. A copy that names no cell was made by somebody who knew of
/// none, one that nobody controls by somebody who knew of no owner; both are recognised by the deployment's UID in the
/// cell.
pub fn is_copy_of(copy: &Instance, instance: &Instance, cell: &str) -> bool {
    match source(copy) {
        Some(source) if source != cell => false,
        Some(_) if owner::controller(&copy.metadata).is_some() => true,
        _ => was_made_for(copy, instance),
    }
}

/// Whether a copy names the deployment that the instance belongs to by the UID that only this cell knows it by.
fn was_made_for(copy: &Instance, instance: &Instance) -> bool {
    read(instance, labels::WORKLOAD_DEPLOYMENT_UID)
        .is_ok_and(|uid| metadata::label(&copy.metadata, labels::WORKLOAD_DEPLOYMENT_UID) == Some(uid))
}

/// The cell that a copy says it comes from.
fn source(copy: &Instance) -> Option<&str> {
    metadata::label(&copy.metadata, labels::SOURCE_CLUSTER)
}

/// The labels of a copy: all linking labels, and where it comes from.
fn copy_labels(instance: &Instance, identity: &Identity, cell: &str) -> Result<Map, MissingLabel> {
    let mut wanted = identity.labels();
    wanted.insert(labels::SOURCE_CLUSTER.to_owned(), cell.to_owned());
    for label in LINKING_LABELS {
        wanted.insert(label.to_owned(), read(instance, label)?.to_owned());
    }
    Ok(wanted)
}

fn read<'a>(instance: &'a Instance, label: &'static str) -> Result<&'a str, MissingLabel> {
    metadata::label(&instance.metadata, label)
        .ok_or_else(|| MissingLabel { instance: owner::name(&instance.metadata).to_owned(), label })
}

#[cfg(test)]
pub(crate) fn mk_hub_copy(instance: &Instance, hub_owner: &WorkloadDeployment) -> Instance {
    use crate::testing::mk_meta;
    let identity = crate::identity::mk_identity();
    let Ok(Step::Create(mut copy)) = step(instance, &identity, "dfw-1", Some(hub_owner), None) else {
        panic!()
    };
    let made = std::mem::replace(&mut copy.metadata, mk_meta("ns-1", owner::name(&instance.metadata)));
    copy.metadata.labels = made.labels;
    copy.metadata.owner_references = made.owner_references;
    copy.status = instance.status.clone();
    *copy
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::mk_identity;
    use crate::testing::{deleting, mk_deployment, mk_gates, mk_instance, ready};

    fn mk_cell_instance() -> Instance {
        let mut instance = ready(mk_instance(&mk_deployment("web"), 0));
        instance.metadata.annotations = Some(metadata::map([("note", "cell")]));
        instance.metadata.finalizers = Some(vec!["compute.datumapis.com/instance-controller".into()]);
        instance.metadata.labels.as_mut().unwrap().insert("tier".into(), "front".into());
        instance
    }

    fn mk_hub_owner() -> WorkloadDeployment {
        let mut deployment = mk_deployment("web");
        deployment.metadata.uid = Some("uid-on-the-hub".into());
        deployment
    }

    fn step_of(instance: &Instance, standing: Option<&Instance>) -> Step {
        step(instance, &mk_identity(), "dfw-1", Some(&mk_hub_owner()), standing).unwrap()
    }

    #[test]
    fn the_copy_has_spec_linking_labels_identity_and_owner_and_nothing_else() {
        let instance = mk_cell_instance();
        let Step::Create(copy) = step_of(&instance, None) else { panic!() };
        assert_eq!(copy.spec, instance.spec);
        let labels = copy.metadata.labels.unwrap();
        assert_eq!(labels.len(), LINKING_LABELS.len() + 3);
        assert_eq!(labels["compute.datumapis.com/source-cluster"], "dfw-1");
        assert_eq!(labels["meta.datumapis.com/upstream-cluster-name"], "cluster-acme");
        assert_eq!(labels["meta.datumapis.com/upstream-namespace"], "shop");
        assert_eq!(labels["compute.datumapis.com/workload-deployment-uid"], "uid-web");
        assert_eq!(copy.metadata.owner_references.unwrap(), [owner::controller_reference(&mk_hub_owner())]);
        assert_eq!((copy.metadata.annotations, copy.metadata.finalizers), (None, None));
        assert_eq!(copy.metadata.namespace.as_deref(), Some("ns-1"));
    }

    #[test]
    fn without_a_living_owner_on_the_hub_there_is_no_copy() {
        let instance = mk_cell_instance();
        let mut other = mk_hub_owner();
        other.metadata.name = Some("api".into());
        for owner in [None, Some(deleting(mk_hub_owner())), Some(other)] {
            assert_eq!(step(&instance, &mk_identity(), "dfw-1", owner.as_ref(), None), Ok(Step::NoOwner));
        }
    }

    #[test]
    fn an_unchanged_instance_is_no_write() {
        let instance = mk_cell_instance();
        let mut copy = mk_hub_copy(&instance, &mk_hub_owner());
        copy.metadata.labels.as_mut().unwrap().insert("karmada.io/theirs".into(), "1".into());
        copy.metadata.annotations = Some(metadata::map([("theirs", "1")]));
        assert_eq!(step_of(&instance, Some(&copy)), Step::Leave);
    }

    #[test]
    fn a_dropped_gate_is_carried_over_and_foreign_labels_stay() {
        let mut instance = mk_cell_instance();
        let mut copy = mk_hub_copy(&instance, &mk_hub_owner());
        copy.metadata.labels.as_mut().unwrap().insert("karmada.io/theirs".into(), "1".into());
        instance.spec.controller.as_mut().unwrap().scheduling_gates = mk_gates(&["Quota"]);
        let Step::Update(Changes { object: Some(new), status: None }) = step_of(&instance, Some(&copy))
        else {
            panic!()
        };
        assert_eq!(new.spec, instance.spec);
        assert_eq!(new.metadata, copy.metadata);
    }

    #[test]
    fn a_changed_status_is_carried_over_alone() {
        let instance = mk_cell_instance();
        let mut copy = mk_hub_copy(&instance, &mk_hub_owner());
        copy.status = None;
        let Step::Update(Changes { object: None, status }) = step_of(&instance, Some(&copy)) else {
            panic!()
        };
        assert_eq!(status.map(|status| *status), instance.status);
    }

    #[test]
    fn an_instance_without_status_writes_none() {
        let mut instance = mk_cell_instance();
        let copy = mk_hub_copy(&instance, &mk_hub_owner());
        instance.status = None;
        assert_eq!(step_of(&instance, Some(&copy)), Step::Leave);
    }

    #[test]
    fn a_copy_without_controller_is_adopted_by_the_deployment_whose_uid_it_bears() {
        let instance = mk_cell_instance();
        let mut copy = mk_hub_copy(&instance, &mk_hub_owner());
        copy.metadata.owner_references = None;
        let Step::Update(Changes { object: Some(new), .. }) = step_of(&instance, Some(&copy)) else {
            panic!()
        };
        assert!(owner::is_controlled_by(&new.metadata, "uid-on-the-hub"));
    }

    #[test]
    fn an_instance_that_only_has_the_name_is_nobodys_to_take_or_to_remove() {
        let instance = mk_cell_instance();
        let unowned = {
            let mut copy = mk_hub_copy(&instance, &mk_hub_owner());
            copy.metadata.owner_references = None;
            copy
        };
        let mut bare = unowned.clone();
        bare.metadata.labels = None;
        let mut of_another = unowned;
        let labels = of_another.metadata.labels.as_mut().unwrap();
        labels.insert(labels::WORKLOAD_DEPLOYMENT_UID.into(), "uid-of-another".into());
        for stranger in [bare, of_another] {
            assert_eq!(step_of(&instance, Some(&stranger)), Step::Foreign { controller: None });
            assert!(!is_copy_of(&stranger, &instance, "dfw-1"));
        }
    }

    #[test]
    fn a_copy_that_somebody_else_controls_is_left_alone() {
        let instance = mk_cell_instance();
        let mut earlier = mk_hub_owner();
        earlier.metadata.uid = Some("uid-earlier".into());
        let copy = mk_hub_copy(&instance, &earlier);
        assert_eq!(
            step_of(&instance, Some(&copy)),
            Step::Foreign { controller: Some("WorkloadDeployment web".into()) }
        );
    }

    #[test]
    fn a_copy_on_its_way_out_is_waited_for() {
        let instance = mk_cell_instance();
        let copy = deleting(mk_hub_copy(&instance, &mk_hub_owner()));
        assert_eq!(step_of(&instance, Some(&copy)), Step::AwaitRemoval);
    }

    fn from_cell(copy: &Instance, cell: Option<&str>) -> Instance {
        let mut copy = copy.clone();
        let labels = copy.metadata.labels.get_or_insert_default();
        labels.remove(labels::SOURCE_CLUSTER);
        labels.extend(cell.map(|cell| (labels::SOURCE_CLUSTER.to_owned(), cell.to_owned())));
        copy
    }

    #[test]
    fn the_copy_of_another_cell_is_left_alone_until_the_deployment_is_reported_from_here() {
        let instance = mk_cell_instance();
        let copy = from_cell(&mk_hub_copy(&instance, &mk_hub_owner()), Some("dfw-2"));
        assert_eq!(step_of(&instance, Some(&copy)), Step::OtherCell { cell: "dfw-2".into() });

        let mut moved = mk_hub_owner();
        moved.status.get_or_insert_default().cell = Some("dfw-1".into());
        let step = step(&instance, &mk_identity(), "dfw-1", Some(&moved), Some(&copy)).unwrap();
        let Step::Update(Changes { object: Some(new), .. }) = step else { panic!() };
        assert_eq!(source(&new), Some("dfw-1"));
    }

    #[test]
    fn a_copy_that_names_no_cell_is_given_one() {
        let instance = mk_cell_instance();
        let copy = from_cell(&mk_hub_copy(&instance, &mk_hub_owner()), None);
        let Step::Update(Changes { object: Some(new), status: None }) = step_of(&instance, Some(&copy))
        else {
            panic!()
        };
        assert_eq!(source(&new), Some("dfw-1"));
    }

    #[test]
    fn a_copy_is_known_by_its_cell_or_else_by_the_deployment_it_was_made_for() {
        let instance = mk_cell_instance();
        let copy = mk_hub_copy(&instance, &mk_hub_owner());
        assert!(is_copy_of(&copy, &instance, "dfw-1"));
        assert!(!is_copy_of(&copy, &instance, "dfw-2"));
        let mut unnamed = from_cell(&copy, None);
        assert!(is_copy_of(&unnamed, &instance, "dfw-1"));
        unnamed.metadata.labels.as_mut().unwrap().remove(labels::WORKLOAD_DEPLOYMENT_UID);
        assert!(!is_copy_of(&unnamed, &instance, "dfw-1"));
    }

    #[test]
    fn every_linking_label_is_required() {
        for label in LINKING_LABELS {
            for empty in [false, true] {
                let mut instance = mk_cell_instance();
                let labels = instance.metadata.labels.as_mut().unwrap();
                labels.remove(label);
                if empty {
                    labels.insert(label.to_owned(), String::new());
                }
                let error =
                    step(&instance, &mk_identity(), "dfw-1", Some(&mk_hub_owner()), None).unwrap_err();
                assert_eq!(error, MissingLabel { instance: "web-0".into(), label });
            }
        }
    }
}
