//! Write-back: the copy of a cell's instance on the hub.
//!
//! The copy has the instance's name, its whole spec, the linking labels and the tenant labels of the hub
//! namespace. Its controller is the hub's deployment that the label `workload-deployment-name` names. Without
//! that deployment no copy is written, so a cell with a stale cache never re-creates what the hub has
//! deleted.
//!
//! An existing copy with another controller, also an earlier deployment of the same name, is left to the
//! garbage collector. A copy without a controller is adopted if it has the UID label that the deployment has
//! in this cell, as copies of other implementations do. The name alone is no proof, and an adopted copy is
//! overwritten and later deleted.
//!
//! A label of the copy names its cell, so that a cell only watches its own copies. When a deployment moves to
//! another cell of the city, both cells have an instance of the same name for some time. The new cell takes
//! the copy over only when `status.cell` of the hub's deployment names it.

use polis_api::ObjectExt;
use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::labels;

use crate::instances::LINKING_LABELS;
use crate::metadata::Map;
use crate::mirror::{self, CopyAction, DesiredCopy};
use crate::owner;
use crate::tenant::Tenant;

/// Why no copy of an instance is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteBackRefusal {
    /// The instance lacks a label.
    MissingLabel(MissingLabel),
    /// The hub's deployment does not exist or is being deleted. This is not an error.
    NoOwner,
    /// The object of that name is not a copy of this instance.
    Foreign {
        /// Kind and name of its controller, if it has one.
        controller: Option<String>,
    },
    /// The copy is of an instance of another cell, and the deployment has not moved to this cell yet.
    OtherCell {
        /// Name of that cell.
        cell: String,
    },
}

impl From<MissingLabel> for WriteBackRefusal {
    fn from(missing: MissingLabel) -> Self {
        Self::MissingLabel(missing)
    }
}

/// A label that an instance needs to be copied to the hub is missing.
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

/// Name of the deployment that an instance belongs to, from its label; the same on every plane.
pub fn deployment_name(instance: &Instance) -> Result<&str, MissingLabel> {
    read(instance, labels::WORKLOAD_DEPLOYMENT_NAME)
}

/// Plans the copy of `instance` on the hub.
///
/// `cell` is the name of this cell, `hub_owner` the hub's deployment that [`deployment_name`] names, `tenant`
/// that of the hub namespace, `existing` the existing copy.
pub fn plan(
    instance: &Instance,
    tenant: &Tenant,
    cell: &str,
    hub_owner: Option<&WorkloadDeployment>,
    existing: Option<&Instance>,
) -> Result<CopyAction, WriteBackRefusal> {
    let labels = copy_labels(instance, tenant, cell)?;
    let hub_owner = mirror::owner_of(Some(deployment_name(instance)?), hub_owner);
    let hub_owner = hub_owner.ok_or(WriteBackRefusal::NoOwner)?;
    let owner = owner::controller_reference(hub_owner);
    if let Some(existing) = existing.filter(|existing| !existing.is_deleting()) {
        match owner::controller(&existing.metadata) {
            Some(controller) if controller.uid != owner.uid => {
                let controller = Some(format!("{} {}", controller.kind, controller.name));
                return Err(WriteBackRefusal::Foreign { controller });
            }
            None if !was_made_for(existing, instance) => {
                return Err(WriteBackRefusal::Foreign { controller: None });
            }
            _ => {}
        }
        let reported_by = hub_owner.status.as_ref().and_then(|status| status.cell.as_deref());
        if let Some(other) = source(existing).filter(|other| *other != cell && reported_by != Some(cell)) {
            return Err(WriteBackRefusal::OtherCell { cell: other.to_owned() });
        }
    }
    let namespace = hub_owner.namespace();
    Ok(DesiredCopy { source: instance, namespace, labels, owned_labels: &[], owner }.plan(existing))
}

/// Whether an object on the hub is the copy of this instance of this cell. Other implementations write copies
/// without a cell label or without a controller; both are recognised by the UID that the deployment has in
/// this cell.
pub fn is_copy_of(copy: &Instance, instance: &Instance, cell: &str) -> bool {
    match source(copy) {
        Some(source) if source != cell => false,
        Some(_) if owner::controller(&copy.metadata).is_some() => true,
        _ => was_made_for(copy, instance),
    }
}

/// Whether a copy has the UID label of the instance's deployment, a UID that exists in this cell only.
fn was_made_for(copy: &Instance, instance: &Instance) -> bool {
    read(instance, labels::WORKLOAD_DEPLOYMENT_UID)
        .is_ok_and(|uid| copy.label(labels::WORKLOAD_DEPLOYMENT_UID) == Some(uid))
}

/// The cell that the label of a copy names.
fn source(copy: &Instance) -> Option<&str> {
    copy.label(labels::SOURCE_CLUSTER)
}

/// The labels of a copy: the linking labels, the tenant and the cell.
fn copy_labels(instance: &Instance, tenant: &Tenant, cell: &str) -> Result<Map, MissingLabel> {
    let mut desired = tenant.labels();
    desired.insert(labels::SOURCE_CLUSTER.to_owned(), cell.to_owned());
    for label in LINKING_LABELS {
        desired.insert(label.to_owned(), read(instance, label)?.to_owned());
    }
    Ok(desired)
}

fn read<'a>(instance: &'a Instance, label: &'static str) -> Result<&'a str, MissingLabel> {
    instance.label(label).ok_or_else(|| MissingLabel { instance: instance.name().to_owned(), label })
}

#[cfg(test)]
pub(crate) fn mk_hub_copy(instance: &Instance, hub_owner: &WorkloadDeployment) -> Instance {
    use crate::testing::mk_meta;
    let tenant = crate::tenant::mk_tenant();
    let Ok(CopyAction::Write(changes)) = plan(instance, &tenant, "dfw-1", Some(hub_owner), None) else {
        panic!()
    };
    let mut copy = changes.object.unwrap();
    let made = std::mem::replace(&mut copy.metadata, mk_meta("ns-1", instance.name()));
    copy.metadata.labels = made.labels;
    copy.metadata.owner_references = made.owner_references;
    copy.status = instance.status.clone();
    *copy
}

#[cfg(test)]
mod tests {
    use polis_api::compute::InstanceStatus;

    use super::*;
    use crate::metadata;
    use crate::tenant::mk_tenant;
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

    fn try_plan(instance: &Instance, existing: Option<&Instance>) -> Result<CopyAction, WriteBackRefusal> {
        plan(instance, &mk_tenant(), "dfw-1", Some(&mk_hub_owner()), existing)
    }

    fn plan_of(instance: &Instance, existing: Option<&Instance>) -> CopyAction {
        try_plan(instance, existing).unwrap()
    }

    /// The changes of a copy: its object and its status.
    fn changes_of(
        instance: &Instance,
        existing: Option<&Instance>,
    ) -> (Option<Instance>, Option<InstanceStatus>) {
        let CopyAction::Write(changes) = plan_of(instance, existing) else { panic!("nothing to write") };
        (changes.object.map(|object| *object), changes.status.map(|status| *status))
    }

    #[test]
    fn the_copy_has_spec_linking_labels_tenant_and_owner_and_no_other_metadata() {
        let instance = mk_cell_instance();
        let copy = changes_of(&instance, None).0.unwrap();
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
    fn without_an_owner_on_the_hub_there_is_no_copy() {
        let instance = mk_cell_instance();
        let mut other = mk_hub_owner();
        other.metadata.name = Some("api".into());
        for owner in [None, Some(deleting(mk_hub_owner())), Some(other)] {
            assert_eq!(
                plan(&instance, &mk_tenant(), "dfw-1", owner.as_ref(), None),
                Err(WriteBackRefusal::NoOwner)
            );
        }
    }

    #[test]
    fn an_unchanged_instance_causes_no_write() {
        let instance = mk_cell_instance();
        let mut copy = mk_hub_copy(&instance, &mk_hub_owner());
        copy.metadata.labels.as_mut().unwrap().insert("karmada.io/theirs".into(), "1".into());
        copy.metadata.annotations = Some(metadata::map([("theirs", "1")]));
        assert_eq!(plan_of(&instance, Some(&copy)), CopyAction::None);
    }

    #[test]
    fn a_removed_gate_is_written_and_foreign_labels_are_kept() {
        let mut instance = mk_cell_instance();
        let mut copy = mk_hub_copy(&instance, &mk_hub_owner());
        copy.metadata.labels.as_mut().unwrap().insert("karmada.io/theirs".into(), "1".into());
        instance.spec.controller.as_mut().unwrap().scheduling_gates = mk_gates(&["Quota"]);
        let (Some(new), None) = changes_of(&instance, Some(&copy)) else { panic!() };
        assert_eq!(new.spec, instance.spec);
        assert_eq!(new.metadata, copy.metadata);
    }

    #[test]
    fn a_changed_status_is_written_alone() {
        let instance = mk_cell_instance();
        let mut copy = mk_hub_copy(&instance, &mk_hub_owner());
        copy.status = None;
        assert_eq!(changes_of(&instance, Some(&copy)), (None, instance.status.clone()));
    }

    #[test]
    fn an_instance_without_status_writes_no_status() {
        let mut instance = mk_cell_instance();
        let copy = mk_hub_copy(&instance, &mk_hub_owner());
        instance.status = None;
        assert_eq!(plan_of(&instance, Some(&copy)), CopyAction::None);
    }

    #[test]
    fn a_copy_without_controller_is_adopted_by_the_deployment_of_its_uid_label() {
        let instance = mk_cell_instance();
        let mut copy = mk_hub_copy(&instance, &mk_hub_owner());
        copy.metadata.owner_references = None;
        let (Some(new), _) = changes_of(&instance, Some(&copy)) else { panic!() };
        assert!(owner::is_controlled_by(&new.metadata, "uid-on-the-hub"));
    }

    #[test]
    fn an_object_that_only_has_the_same_name_is_neither_adopted_nor_deleted() {
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
        for foreign in [bare, of_another] {
            assert_eq!(
                try_plan(&instance, Some(&foreign)),
                Err(WriteBackRefusal::Foreign { controller: None })
            );
            assert!(!is_copy_of(&foreign, &instance, "dfw-1"));
        }
    }

    #[test]
    fn a_copy_with_another_controller_is_left_alone() {
        let instance = mk_cell_instance();
        let mut earlier = mk_hub_owner();
        earlier.metadata.uid = Some("uid-earlier".into());
        let copy = mk_hub_copy(&instance, &earlier);
        assert_eq!(
            try_plan(&instance, Some(&copy)),
            Err(WriteBackRefusal::Foreign { controller: Some("WorkloadDeployment web".into()) })
        );
    }

    #[test]
    fn a_terminating_copy_is_awaited() {
        let instance = mk_cell_instance();
        let copy = deleting(mk_hub_copy(&instance, &mk_hub_owner()));
        assert_eq!(plan_of(&instance, Some(&copy)), CopyAction::AwaitDeletion);
    }

    fn from_cell(copy: &Instance, cell: Option<&str>) -> Instance {
        let mut copy = copy.clone();
        let labels = copy.metadata.labels.get_or_insert_default();
        labels.remove(labels::SOURCE_CLUSTER);
        labels.extend(cell.map(|cell| (labels::SOURCE_CLUSTER.to_owned(), cell.to_owned())));
        copy
    }

    #[test]
    fn the_copy_of_another_cell_is_left_alone_until_the_deployment_is_reported_by_this_cell() {
        let instance = mk_cell_instance();
        let copy = from_cell(&mk_hub_copy(&instance, &mk_hub_owner()), Some("dfw-2"));
        assert_eq!(
            try_plan(&instance, Some(&copy)),
            Err(WriteBackRefusal::OtherCell { cell: "dfw-2".into() })
        );

        let mut moved = mk_hub_owner();
        moved.status.get_or_insert_default().cell = Some("dfw-1".into());
        let action = plan(&instance, &mk_tenant(), "dfw-1", Some(&moved), Some(&copy)).unwrap();
        let CopyAction::Write(changes) = action else { panic!() };
        assert_eq!(source(&changes.object.unwrap()), Some("dfw-1"));
    }

    #[test]
    fn a_copy_without_a_cell_label_gets_one() {
        let instance = mk_cell_instance();
        let copy = from_cell(&mk_hub_copy(&instance, &mk_hub_owner()), None);
        let (Some(new), None) = changes_of(&instance, Some(&copy)) else { panic!() };
        assert_eq!(source(&new), Some("dfw-1"));
    }

    #[test]
    fn a_copy_is_recognised_by_its_cell_label_or_else_by_the_deployment_uid() {
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
                let error = plan(&instance, &mk_tenant(), "dfw-1", Some(&mk_hub_owner()), None).unwrap_err();
                assert_eq!(error, MissingLabel { instance: "web-0".into(), label }.into());
            }
        }
    }
}
