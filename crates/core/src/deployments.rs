//! The WorkloadDeployments that a workload needs.
//!
//! A workload has one deployment per placement and city, in the cities that the project may use. A deployment
//! belongs to a workload if its spec has the workload's UID and no other controller owns it; its name does
//! not matter. A deployment that already exists under another name, created by an earlier version, is kept.
//!
//! When the project loses a LocationBinding, no new deployment is created in that city, and the existing one
//! is kept and updated. It is deleted only when the user removes the city from the workload.
//!
//! The workload controller writes the spec except `replicas`, which belongs to the scale subresource, the
//! label with the workload's UID, and the owner reference. All other metadata belongs to other writers.

use std::collections::{BTreeMap, BTreeSet};

use polis_api::compute::{
    ScaleSettings, Workload, WorkloadDeployment, WorkloadDeploymentSpec, WorkloadPlacement,
    WorkloadReference, WorkloadSpec,
};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::{ObjectExt, labels, names};

use crate::canonical;
use crate::cities::Cities;
use crate::metadata::{self, Map};
use crate::owner::{self, DeletionPlan, ObjectRef};

/// Metadata that a new deployment is created with, so that no second write has to add it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InitialMetadata {
    /// Finalizers, such as the federator's.
    pub finalizers: Vec<String>,
    /// Annotations, such as the recorded hub namespace.
    pub annotations: Map,
}

/// An action on one deployment. The actions of a plan are independent of one another.
#[derive(Clone, Debug, PartialEq)]
pub enum DeploymentAction {
    /// Create this deployment.
    Create(Box<WorkloadDeployment>),
    /// Replace the existing deployment; the object carries its resource version.
    Update(Box<WorkloadDeployment>),
    /// Delete a deployment that the workload no longer needs.
    Delete(ObjectRef),
    /// The needed deployment is terminating: create it again when it is gone.
    AwaitDeletion {
        /// Name of the deployment.
        name: String,
    },
    /// A deployment of another owner has the name; it is left unchanged.
    NameConflict {
        /// Name of the deployment.
        name: String,
        /// UID of the workload in its spec.
        workload_uid: String,
    },
}

/// All actions on the deployments of a workload.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeploymentPlan {
    /// Deletions first, then by placement and city.
    pub actions: Vec<DeploymentAction>,
    /// Cities of the spec that the project may not use and that have no deployment.
    pub unbound: Vec<PlacementCity>,
    /// Cities that the project may no longer use and whose deployment is kept.
    pub stranded: Vec<PlacementCity>,
}

/// One city of one placement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlacementCity {
    /// Name of the placement.
    pub placement: String,
    /// City code, verbatim.
    pub city: String,
}

/// Whether a deployment belongs to a workload.
pub fn belongs(deployment: &WorkloadDeployment, workload: &Workload) -> bool {
    let uid = workload.uid();
    !uid.is_empty()
        && deployment.spec.workload_ref.uid == uid
        && owner::controller(&deployment.metadata).is_none_or(|controller| controller.uid == uid)
}

/// Plans the deployments of a workload.
///
/// `existing` contains at least the deployments that have the workload's UID in their spec, and those with a
/// name that the workload would use.
pub fn plan(
    workload: &Workload,
    existing: &[WorkloadDeployment],
    cities: &Cities,
    initial: &InitialMetadata,
) -> DeploymentPlan {
    let mut plan = DeploymentPlan::default();
    let mut deployed = by_city(workload, existing);
    let mut requested = BTreeSet::new();
    let mut actions = BTreeMap::new();

    for placement in &workload.spec.placements {
        for city in &placement.city_codes {
            let target = PlacementCity { placement: placement.name.clone(), city: city.clone() };
            if !requested.insert(target.clone()) {
                continue; // listed twice
            }
            let current = deployed.remove(&target);
            if !cities.allows(city) {
                let list = if current.is_some() { &mut plan.stranded } else { &mut plan.unbound };
                list.push(target.clone());
            }
            let action = match current {
                Some(current) if current.is_deleting() => {
                    Some(DeploymentAction::AwaitDeletion { name: current.name().to_owned() })
                }
                Some(current) => updated(current, workload, placement, city)
                    .map(|new| DeploymentAction::Update(Box::new(new))),
                None if !cities.allows(city) => None,
                None => Some(create(workload, placement, city, existing, initial)),
            };
            actions.extend(action.map(|action| (target, action)));
        }
    }
    plan.actions = orphans(workload, existing, &requested);
    plan.actions.extend(actions.into_values());
    plan.unbound.sort();
    plan.stranded.sort();
    plan
}

/// Plans the deletion of the deployments of a workload that is being deleted.
pub fn deletion_plan(workload: &Workload, existing: &[WorkloadDeployment]) -> DeletionPlan {
    let owned: Vec<_> = existing.iter().filter(|deployment| belongs(deployment, workload)).collect();
    if owned.is_empty() {
        return DeletionPlan::Done;
    }
    DeletionPlan::Delete(object_refs(owned.into_iter()))
}

/// The deployment of each city. Of two for one city, the one with the expected name is kept, then the older,
/// then the first by name.
fn by_city<'a>(
    workload: &Workload,
    existing: &'a [WorkloadDeployment],
) -> BTreeMap<PlacementCity, &'a WorkloadDeployment> {
    let mut owned: Vec<_> = existing.iter().filter(|deployment| belongs(deployment, workload)).collect();
    owned.sort_by_key(|deployment| preference(workload, deployment));
    let mut deployed = BTreeMap::new();
    for deployment in owned {
        deployed.entry(placement_city(deployment)).or_insert(deployment);
    }
    deployed
}

fn preference(workload: &Workload, deployment: &WorkloadDeployment) -> (bool, Option<crate::Time>, String) {
    let name = deployment.name();
    let target = placement_city(deployment);
    let expected = deployment_name(workload, &target.placement, &target.city);
    (name != expected, deployment.metadata.creation_timestamp.clone(), name.to_owned())
}

fn placement_city(deployment: &WorkloadDeployment) -> PlacementCity {
    PlacementCity {
        placement: deployment.spec.placement_name.clone(),
        city: deployment.spec.city_code.clone(),
    }
}

fn deployment_name(workload: &Workload, placement: &str, city: &str) -> String {
    names::deployment(workload.name(), workload.uid(), placement, city)
}

/// Deletes deployments of the workload in cities that the spec does not list, and second deployments of one
/// city.
fn orphans(
    workload: &Workload,
    existing: &[WorkloadDeployment],
    requested: &BTreeSet<PlacementCity>,
) -> Vec<DeploymentAction> {
    let kept: BTreeSet<_> =
        by_city(workload, existing).values().map(|deployment| deployment.name().to_owned()).collect();
    let orphaned = existing.iter().filter(|deployment| belongs(deployment, workload)).filter(|deployment| {
        !requested.contains(&placement_city(deployment)) || !kept.contains(deployment.name())
    });
    object_refs(orphaned).into_iter().map(DeploymentAction::Delete).collect()
}

/// The deployments that are not terminating, sorted by name.
fn object_refs<'a>(deployments: impl Iterator<Item = &'a WorkloadDeployment>) -> Vec<ObjectRef> {
    let remaining = deployments.filter(|deployment| !deployment.is_deleting());
    let mut objects: Vec<_> = remaining.map(ObjectRef::of).collect();
    objects.sort_by(|a, b| a.name.cmp(&b.name));
    objects
}

fn create(
    workload: &Workload,
    placement: &WorkloadPlacement,
    city: &str,
    existing: &[WorkloadDeployment],
    initial: &InitialMetadata,
) -> DeploymentAction {
    let name = deployment_name(workload, &placement.name, city);
    if let Some(other) = existing.iter().find(|deployment| deployment.name() == name) {
        return DeploymentAction::NameConflict { name, workload_uid: other.spec.workload_ref.uid.clone() };
    }
    let metadata = ObjectMeta {
        name: Some(name),
        namespace: workload.metadata.namespace.clone(),
        labels: Some(own_labels(workload)),
        annotations: Some(initial.annotations.clone()).filter(|map| !map.is_empty()),
        finalizers: Some(initial.finalizers.clone()).filter(|list| !list.is_empty()),
        owner_references: Some(vec![owner::controller_reference(workload)]),
        ..Default::default()
    };
    DeploymentAction::Create(Box::new(WorkloadDeployment {
        metadata,
        spec: desired_spec(workload, placement, city, None),
        status: None,
    }))
}

/// The deployment with the desired spec and metadata, or `None` if it is up to date.
fn updated(
    current: &WorkloadDeployment,
    workload: &Workload,
    placement: &WorkloadPlacement,
    city: &str,
) -> Option<WorkloadDeployment> {
    let mut new = current.clone();
    let spec = desired_spec(workload, placement, city, current.spec.replicas);
    let mut changed = !canonical::same(&spec, &current.spec);
    if changed {
        new.spec = spec;
    }
    changed |= metadata::merge_labels(&mut new.metadata, &own_labels(workload), &[]);
    changed |= owner::add(&mut new.metadata, owner::controller_reference(workload));
    changed.then_some(new)
}

fn desired_spec(
    workload: &Workload,
    placement: &WorkloadPlacement,
    city: &str,
    replicas: Option<i32>,
) -> WorkloadDeploymentSpec {
    WorkloadDeploymentSpec {
        workload_ref: WorkloadReference { name: workload.name().to_owned(), uid: workload.uid().to_owned() },
        placement_name: placement.name.clone(),
        city_code: city.to_owned(),
        template: workload.spec.template.clone(),
        scale_settings: scale_settings(&workload.spec, placement),
        replicas,
    }
}

/// The scale settings of a placement: `spec.replicas` of the workload takes precedence over `minReplicas`,
/// and raises a lower `maxReplicas`.
pub fn scale_settings(spec: &WorkloadSpec, placement: &WorkloadPlacement) -> ScaleSettings {
    let mut settings = placement.scale_settings.clone();
    if let Some(replicas) = spec.replicas {
        settings.min_replicas = replicas;
        settings.max_replicas = settings.max_replicas.map(|most| most.max(replicas));
    }
    settings
}

fn own_labels(workload: &Workload) -> Map {
    metadata::map([(labels::WORKLOAD_UID, workload.uid())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cities::mk_cities;
    use crate::testing::{deleting, mk_placement, mk_template, mk_workload};

    fn plan_of(workload: &Workload, existing: &[WorkloadDeployment], cities: &[&str]) -> DeploymentPlan {
        plan(workload, existing, &mk_cities(cities), &InitialMetadata::default())
    }

    /// The stored deployments of a workload that was planned in an empty namespace.
    fn mk_deployed(workload: &Workload, cities: &[&str]) -> Vec<WorkloadDeployment> {
        let deployed = plan_of(workload, &[], cities).actions.into_iter().map(|action| match action {
            DeploymentAction::Create(deployment) => {
                let mut deployment = *deployment;
                deployment.metadata.uid = Some(format!("uid-{}", deployment.name()));
                deployment.metadata.resource_version = Some("7".into());
                deployment
            }
            other => panic!("{other:?}"),
        });
        deployed.collect()
    }

    #[test]
    fn a_placement_gets_one_deployment_per_city() {
        let workload = mk_workload("web", &["ord", "dfw"]);
        let deployed = mk_deployed(&workload, &["dfw", "ord"]);
        assert_eq!(deployed.iter().map(|d| d.spec.city_code.as_str()).collect::<Vec<_>>(), ["dfw", "ord"]);
        let first = &deployed[0];
        assert_eq!(first.spec.workload_ref, WorkloadReference { name: "web".into(), uid: "uid-web".into() });
        assert_eq!(first.metadata.labels, Some(metadata::map([(labels::WORKLOAD_UID, "uid-web")])));
        assert!(owner::is_controlled_by(&first.metadata, "uid-web"));
        assert_eq!(first.metadata.name, Some(names::deployment("web", "uid-web", "default", "dfw")));
        assert_eq!(first.metadata.namespace.as_deref(), Some("shop"));
    }

    #[test]
    fn the_replicas_of_a_workload_take_precedence_in_every_city_of_every_placement() {
        let mut workload = mk_workload("web", &["dfw"]);
        workload.spec.placements.push(mk_placement("edge", &["ord"]));
        workload.spec.placements[1].scale_settings.max_replicas = Some(2);
        workload.spec.replicas = Some(3);
        let deployed = mk_deployed(&workload, &["dfw", "ord"]);
        let scales: Vec<_> = deployed
            .iter()
            .map(|d| (d.spec.scale_settings.min_replicas, d.spec.scale_settings.max_replicas))
            .collect();
        assert_eq!(scales, [(3, None), (3, Some(3))]);
        workload.spec.replicas = None;
        let updated = plan_of(&workload, &deployed, &["dfw", "ord"]).actions;
        assert_eq!(updated.len(), 2, "minReplicas holds again: {updated:?}");
    }

    #[test]
    fn deployments_that_are_up_to_date_need_no_action() {
        let workload = mk_workload("web", &["dfw", "ord"]);
        assert_eq!(
            plan_of(&workload, &mk_deployed(&workload, &["dfw", "ord"]), &["dfw", "ord"]),
            DeploymentPlan::default()
        );
    }

    #[test]
    fn a_new_deployment_is_created_with_finalizer_and_recorded_hub_namespace() {
        let initial =
            InitialMetadata { finalizers: vec!["f".into()], annotations: metadata::map([("a", "ns-1")]) };
        let workload = mk_workload("web", &["dfw"]);
        let DeploymentAction::Create(deployed) = &plan(&workload, &[], &Cities::Any, &initial).actions[0]
        else {
            panic!()
        };
        assert_eq!(deployed.metadata.finalizers, Some(vec!["f".to_owned()]));
        assert_eq!(deployed.metadata.annotations, Some(metadata::map([("a", "ns-1")])));
    }

    #[test]
    fn a_city_that_the_project_may_not_use_gets_no_deployment() {
        let plan = plan_of(&mk_workload("web", &["dfw", "lhr"]), &[], &["dfw"]);
        assert_eq!(plan.actions.len(), 1);
        assert_eq!(plan.unbound, [PlacementCity { placement: "default".into(), city: "lhr".into() }]);
    }

    #[test]
    fn a_city_that_is_bound_later_gets_its_deployment() {
        let workload = mk_workload("web", &["dfw", "lhr"]);
        let plan = plan_of(&workload, &mk_deployed(&workload, &["dfw"]), &["dfw", "lhr"]);
        assert!(
            matches!(plan.actions.as_slice(), [DeploymentAction::Create(deployed)] if deployed.spec.city_code == "lhr")
        );
    }

    #[test]
    fn losing_a_city_deletes_nothing_and_is_reported() {
        let workload = mk_workload("web", &["dfw"]);
        let plan = plan_of(&workload, &mk_deployed(&workload, &["dfw"]), &[]);
        assert_eq!(plan.actions, []);
        assert_eq!(plan.stranded, [PlacementCity { placement: "default".into(), city: "dfw".into() }]);
    }

    #[test]
    fn a_deployment_in_a_lost_city_is_still_updated() {
        let mut workload = mk_workload("web", &["dfw"]);
        let deployed = mk_deployed(&workload, &["dfw"]);
        workload.spec.template = mk_template("app:2");
        assert!(matches!(
            plan_of(&workload, &deployed, &[]).actions.as_slice(),
            [DeploymentAction::Update(_)]
        ));
    }

    #[test]
    fn removing_a_city_from_the_workload_deletes_its_deployment_and_no_other() {
        let deployed = mk_deployed(&mk_workload("web", &["dfw", "ord"]), &["dfw", "ord"]);
        let plan = plan_of(&mk_workload("web", &["dfw"]), &deployed, &["dfw", "ord"]);
        assert_eq!(plan.actions, [DeploymentAction::Delete(ObjectRef::of(&deployed[1]))]);
    }

    #[test]
    fn a_terminating_orphan_is_not_deleted_again() {
        let deployed = mk_deployed(&mk_workload("web", &["dfw"]), &["dfw"]);
        let plan = plan_of(&mk_workload("web", &["ord"]), &[deleting(deployed[0].clone())], &[]);
        assert_eq!(plan.actions, []);
    }

    #[test]
    fn a_changed_template_is_updated_in_place_and_fields_of_other_writers_are_kept() {
        let mut workload = mk_workload("web", &["dfw"]);
        let mut deployed = mk_deployed(&workload, &["dfw"]);
        deployed[0].spec.replicas = Some(4);
        deployed[0].metadata.annotations =
            Some(metadata::map([("compute.datumapis.com/federation-namespace", "ns-1")]));
        deployed[0].metadata.labels.as_mut().unwrap().insert("team".into(), "blue".into());
        assert_eq!(plan_of(&workload, &deployed, &["dfw"]).actions, []);

        workload.spec.template = mk_template("app:2");
        let plan = plan_of(&workload, &deployed, &["dfw"]);
        let [DeploymentAction::Update(new)] = plan.actions.as_slice() else { panic!("{plan:?}") };
        assert_eq!(new.spec.template, mk_template("app:2"));
        assert_eq!(new.spec.replicas, Some(4));
        assert_eq!(new.metadata, deployed[0].metadata);
    }

    #[test]
    fn a_name_taken_by_another_workload_is_a_conflict() {
        let workload = mk_workload("web", &["dfw"]);
        let mut deployed = mk_deployed(&workload, &["dfw"]);
        deployed[0].spec.workload_ref.uid = "uid-other".into();
        deployed[0].metadata.owner_references = None;
        let name = deployed[0].name().to_owned();
        let conflict = DeploymentAction::NameConflict { name, workload_uid: "uid-other".into() };
        assert_eq!(plan_of(&workload, &deployed, &["dfw"]).actions, [conflict]);
    }

    #[test]
    fn a_deployment_with_another_controller_is_neither_updated_nor_deleted() {
        let workload = mk_workload("web", &["dfw"]);
        let mut deployed = mk_deployed(&workload, &["dfw"]);
        deployed[0].metadata.owner_references.as_mut().unwrap()[0].uid = "uid-other".into();
        assert!(matches!(
            plan_of(&workload, &deployed, &["dfw"]).actions.as_slice(),
            [DeploymentAction::NameConflict { .. }]
        ));
        assert_eq!(plan_of(&mk_workload("web", &["ord"]), &deployed, &[]).actions, []);
        assert_eq!(deletion_plan(&workload, &deployed), DeletionPlan::Done);
    }

    #[test]
    fn a_deployment_without_controller_that_references_the_workload_is_adopted() {
        let workload = mk_workload("web", &["dfw"]);
        let mut deployed = mk_deployed(&workload, &["dfw"]);
        deployed[0].metadata.owner_references = None;
        deployed[0].metadata.labels = None;
        let plan = plan_of(&workload, &deployed, &["dfw"]);
        let [DeploymentAction::Update(new)] = plan.actions.as_slice() else { panic!("{plan:?}") };
        assert!(owner::is_controlled_by(&new.metadata, "uid-web"));
        assert_eq!(new.label(labels::WORKLOAD_UID), Some("uid-web"));
    }

    #[test]
    fn a_deployment_under_an_older_name_is_kept() {
        let workload = mk_workload("web", &["dfw"]);
        let mut deployed = mk_deployed(&workload, &["dfw"]);
        deployed[0].metadata.name = Some("web-default-dfw".into());
        assert_eq!(plan_of(&workload, &deployed, &["dfw"]).actions, []);
    }

    #[test]
    fn of_two_deployments_for_one_city_the_one_with_the_expected_name_is_kept() {
        let workload = mk_workload("web", &["dfw"]);
        let mut deployed = mk_deployed(&workload, &["dfw"]);
        let mut older = deployed[0].clone();
        older.metadata.name = Some("a-web".into());
        deployed.insert(0, older);
        assert_eq!(
            plan_of(&workload, &deployed, &["dfw"]).actions,
            [DeploymentAction::Delete(ObjectRef::of(&deployed[0]))]
        );
    }

    #[test]
    fn a_needed_deployment_that_is_terminating_is_awaited() {
        let workload = mk_workload("web", &["dfw"]);
        let deployed = deleting(mk_deployed(&workload, &["dfw"]).remove(0));
        let name = deployed.name().to_owned();
        assert_eq!(
            plan_of(&workload, &[deployed], &["dfw"]).actions,
            [DeploymentAction::AwaitDeletion { name }]
        );
    }

    #[test]
    fn a_city_listed_twice_gets_one_deployment_and_two_placements_get_two() {
        let mut workload = mk_workload("web", &["dfw", "dfw"]);
        workload.spec.placements.push(mk_placement("extra", &["dfw"]));
        let deployed = mk_deployed(&workload, &["dfw"]);
        assert_eq!(deployed.len(), 2);
        assert_ne!(deployed[0].metadata.name, deployed[1].metadata.name);
    }

    #[test]
    fn the_order_of_the_input_does_not_matter() {
        let mut workload = mk_workload("web", &["dfw", "ord"]);
        workload.spec.placements.push(mk_placement("a", &["ord"]));
        let mut deployed = mk_deployed(&workload, &["dfw", "ord"]);
        workload.spec.placements.truncate(1);
        workload.spec.template = mk_template("app:2");
        let one = plan_of(&workload, &deployed, &["dfw"]);
        deployed.reverse();
        assert_eq!(plan_of(&workload, &deployed, &["dfw"]), one);
    }

    #[test]
    fn deleting_a_workload_deletes_all_its_deployments_and_waits_for_them() {
        let workload = mk_workload("web", &["dfw", "ord"]);
        let mut deployed = mk_deployed(&workload, &["dfw", "ord"]);
        deployed[0] = deleting(deployed[0].clone());
        assert_eq!(
            deletion_plan(&workload, &deployed),
            DeletionPlan::Delete(vec![ObjectRef::of(&deployed[1])])
        );
        assert_eq!(deletion_plan(&workload, &[deployed.remove(0)]), DeletionPlan::Delete(vec![]));
        assert_eq!(deletion_plan(&workload, &[]), DeletionPlan::Done);
    }

    #[test]
    fn an_empty_uid_owns_no_deployment() {
        let mut workload = mk_workload("web", &["dfw"]);
        let mut deployed = mk_deployed(&workload, &["dfw"]);
        workload.metadata.uid = None;
        deployed[0].spec.workload_ref.uid = String::new();
        deployed[0].metadata.owner_references = None;
        assert!(!belongs(&deployed[0], &workload));
    }
}
