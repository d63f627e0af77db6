//! Deployments: what a workload needs in which city.
//!
//! One deployment per placement and city, for the cities that the project may use. It belongs to a workload when its
//! spec names the workload's UID and nobody else controls it; its name is for people. A deployment that the workload
//! asks for and that already exists under another name (made by an earlier version) is kept, not replaced.
//!
//! Losing a city is not asking for less: when a binding goes away, no new deployment is made there and the running one
//! stays, kept up to date. Removal is the user's decision, by taking the city out of the workload.
//!
//! The workload controller writes the spec except `replicas`, which belongs to the scale subresource; the label with
//! the workload's UID; and the owner reference. Every other key of the metadata is somebody else's.

use std::collections::{BTreeMap, BTreeSet};

use polis_api::compute::{
    Workload, WorkloadDeployment, WorkloadDeploymentSpec, WorkloadPlacement, WorkloadReference,
};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::{labels, names};

use crate::canonical;
use crate::cities::Cities;
use crate::metadata::{self, Map};
use crate::owner::{self, Exact};

/// What a new deployment carries from its first write on, so that no second write has to add it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Birth {
    /// Finalizers, such as the federator's.
    pub finalizers: Vec<String>,
    /// Annotations, such as the record of the hub namespace.
    pub annotations: Map,
}

/// One thing to do. Steps are independent of one another.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Make this deployment.
    Create(Box<WorkloadDeployment>),
    /// Write this deployment over the standing one of the same resource version.
    Update(Box<WorkloadDeployment>),
    /// Nobody asks for it any more.
    Remove(Exact),
    /// The deployment that is wanted is on its way out: make it anew when it is gone.
    AwaitRemoval {
        /// Name of the deployment.
        name: String,
    },
    /// The name is taken by a deployment of somebody else, which stays as it is.
    Refuse {
        /// Name of the deployment.
        name: String,
        /// UID of the workload that it names.
        workload_uid: String,
    },
}

/// Everything that a workload needs done about its deployments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// What to do, removals first, then by placement and city.
    pub steps: Vec<Step>,
    /// Cities asked for that the project may not use and that have no deployment, by placement.
    pub unbound: Vec<Site>,
    /// Cities that the project may no longer use and whose deployment goes on.
    pub stranded: Vec<Site>,
}

/// One city of one placement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// Name of the placement.
    pub placement: String,
    /// City code, verbatim.
    pub city: String,
}

/// What to do about a workload that is being deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// Nothing is left: release the finalizer.
    Done,
    /// Delete these and come back when they are gone; empty when all are already on their way.
    Remove(Vec<Exact>),
}

/// Whether a deployment belongs to a workload.
pub fn belongs(deployment: &WorkloadDeployment, workload: &Workload) -> bool {
    let uid = owner::uid(&workload.metadata);
    !uid.is_empty()
        && deployment.spec.workload_ref.uid == uid
        && owner::controller(&deployment.metadata).is_none_or(|controller| controller.uid == uid)
}

/// What a workload needs, given the deployments of its namespace.
///
/// `standing` holds at least those that name the workload's UID and those that bear a name the workload would use.
pub fn plan(workload: &Workload, standing: &[WorkloadDeployment], cities: &Cities, birth: &Birth) -> Plan {
    let mut plan = Plan::default();
    let mut places = places(workload, standing);
    let mut asked = BTreeSet::new();
    let mut steps = BTreeMap::new();

    for placement in &workload.spec.placements {
        for city in &placement.city_codes {
            let site = Site { placement: placement.name.clone(), city: city.clone() };
            if !asked.insert(site.clone()) {
                continue; // named twice
            }
            let current = places.remove(&site);
            if !cities.allow(city) {
                let list = if current.is_some() { &mut plan.stranded } else { &mut plan.unbound };
                list.push(site.clone());
            }
            let step = match current {
                Some(current) if owner::is_deleting(&current.metadata) => {
                    Some(Step::AwaitRemoval { name: owner::name(&current.metadata).to_owned() })
                }
                Some(current) => {
                    updated(current, workload, placement, city).map(|new| Step::Update(Box::new(new)))
                }
                None if !cities.allow(city) => None,
                None => Some(create(workload, placement, city, standing, birth)),
            };
            steps.extend(step.map(|step| (site, step)));
        }
    }
    plan.steps = orphans(workload, standing, &asked);
    plan.steps.extend(steps.into_values());
    plan.unbound.sort();
    plan.stranded.sort();
    plan
}

/// What to do with the deployments of a workload that is being deleted.
pub fn withdrawal(workload: &Workload, standing: &[WorkloadDeployment]) -> Withdrawal {
    let mine: Vec<_> = standing.iter().filter(|deployment| belongs(deployment, workload)).collect();
    if mine.is_empty() {
        return Withdrawal::Done;
    }
    Withdrawal::Remove(exact(mine.into_iter()))
}

/// The deployment of each site. Of two for one site the rightly named one counts, then the older, then by name.
fn places<'a>(
    workload: &Workload,
    standing: &'a [WorkloadDeployment],
) -> BTreeMap<Site, &'a WorkloadDeployment> {
    let mut mine: Vec<_> = standing.iter().filter(|deployment| belongs(deployment, workload)).collect();
    mine.sort_by_key(|deployment| preference(workload, deployment));
    let mut places = BTreeMap::new();
    for deployment in mine {
        places.entry(site(deployment)).or_insert(deployment);
    }
    places
}

fn preference(workload: &Workload, deployment: &WorkloadDeployment) -> (bool, Option<crate::Time>, String) {
    let name = owner::name(&deployment.metadata);
    let site = site(deployment);
    let own = deployment_name(workload, &site.placement, &site.city);
    (name != own, deployment.metadata.creation_timestamp.clone(), name.to_owned())
}

fn site(deployment: &WorkloadDeployment) -> Site {
    Site { placement: deployment.spec.placement_name.clone(), city: deployment.spec.city_code.clone() }
}

fn deployment_name(workload: &Workload, placement: &str, city: &str) -> String {
    names::deployment(owner::name(&workload.metadata), owner::uid(&workload.metadata), placement, city)
}

/// Deployments of the workload that nobody asks for, and seconds for one site.
fn orphans(workload: &Workload, standing: &[WorkloadDeployment], asked: &BTreeSet<Site>) -> Vec<Step> {
    let kept: BTreeSet<_> = places(workload, standing)
        .values()
        .map(|deployment| owner::name(&deployment.metadata).to_owned())
        .collect();
    let orphaned = standing.iter().filter(|deployment| belongs(deployment, workload)).filter(|deployment| {
        !asked.contains(&site(deployment)) || !kept.contains(owner::name(&deployment.metadata))
    });
    exact(orphaned).into_iter().map(Step::Remove).collect()
}

fn exact<'a>(deployments: impl Iterator<Item = &'a WorkloadDeployment>) -> Vec<Exact> {
    let staying = deployments.filter(|deployment| !owner::is_deleting(&deployment.metadata));
    let mut exact: Vec<_> = staying.map(|deployment| Exact::of(&deployment.metadata)).collect();
    exact.sort_by(|a, b| a.name.cmp(&b.name));
    exact
}

fn create(
    workload: &Workload,
    placement: &WorkloadPlacement,
    city: &str,
    standing: &[WorkloadDeployment],
    birth: &Birth,
) -> Step {
    let name = deployment_name(workload, &placement.name, city);
    if let Some(other) = standing.iter().find(|deployment| owner::name(&deployment.metadata) == name) {
        return Step::Refuse { name, workload_uid: other.spec.workload_ref.uid.clone() };
    }
    let metadata = ObjectMeta {
        name: Some(name),
        namespace: workload.metadata.namespace.clone(),
        labels: Some(own_labels(workload)),
        annotations: Some(birth.annotations.clone()).filter(|map| !map.is_empty()),
        finalizers: Some(birth.finalizers.clone()).filter(|list| !list.is_empty()),
        owner_references: Some(vec![owner::controller_reference(workload)]),
        ..Default::default()
    };
    Step::Create(Box::new(WorkloadDeployment {
        metadata,
        spec: wanted(workload, placement, city, None),
        status: None,
    }))
}

/// The deployment as the workload wants it, or `None` when it is so already.
fn updated(
    current: &WorkloadDeployment,
    workload: &Workload,
    placement: &WorkloadPlacement,
    city: &str,
) -> Option<WorkloadDeployment> {
    let mut new = current.clone();
    let spec = wanted(workload, placement, city, current.spec.replicas);
    let mut changed = !canonical::same(&spec, &current.spec);
    if changed {
        new.spec = spec;
    }
    changed |= metadata::merge_labels(&mut new.metadata, &own_labels(workload), &[]);
    changed |= owner::add(&mut new.metadata, owner::controller_reference(workload));
    changed.then_some(new)
}

fn wanted(
    workload: &Workload,
    placement: &WorkloadPlacement,
    city: &str,
    replicas: Option<i32>,
) -> WorkloadDeploymentSpec {
    WorkloadDeploymentSpec {
        workload_ref: WorkloadReference {
            name: owner::name(&workload.metadata).to_owned(),
            uid: owner::uid(&workload.metadata).to_owned(),
        },
        placement_name: placement.name.clone(),
        city_code: city.to_owned(),
        template: workload.spec.template.clone(),
        scale_settings: placement.scale_settings.clone(),
        replicas,
    }
}

fn own_labels(workload: &Workload) -> Map {
    metadata::map([(labels::WORKLOAD_UID, owner::uid(&workload.metadata))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cities::mk_cities;
    use crate::testing::{deleting, mk_placement, mk_template, mk_workload};

    fn plan_of(workload: &Workload, standing: &[WorkloadDeployment], cities: &[&str]) -> Plan {
        plan(workload, standing, &mk_cities(cities), &Birth::default())
    }

    /// The deployments that a workload makes in an empty namespace, as stored.
    fn mk_made(workload: &Workload, cities: &[&str]) -> Vec<WorkloadDeployment> {
        let made = plan_of(workload, &[], cities).steps.into_iter().map(|step| match step {
            Step::Create(deployment) => {
                let mut deployment = *deployment;
                deployment.metadata.uid = Some(format!("uid-{}", owner::name(&deployment.metadata)));
                deployment.metadata.resource_version = Some("7".into());
                deployment
            }
            other => panic!("{other:?}"),
        });
        made.collect()
    }

    #[test]
    fn a_placement_gets_one_deployment_per_city() {
        let workload = mk_workload("web", &["ord", "dfw"]);
        let made = mk_made(&workload, &["dfw", "ord"]);
        assert_eq!(made.iter().map(|d| d.spec.city_code.as_str()).collect::<Vec<_>>(), ["dfw", "ord"]);
        let first = &made[0];
        assert_eq!(first.spec.workload_ref, WorkloadReference { name: "web".into(), uid: "uid-web".into() });
        assert_eq!(first.metadata.labels, Some(metadata::map([(labels::WORKLOAD_UID, "uid-web")])));
        assert!(owner::is_controlled_by(&first.metadata, "uid-web"));
        assert_eq!(first.metadata.name, Some(names::deployment("web", "uid-web", "default", "dfw")));
        assert_eq!(first.metadata.namespace.as_deref(), Some("shop"));
    }

    #[test]
    fn what_is_as_wanted_is_left_alone() {
        let workload = mk_workload("web", &["dfw", "ord"]);
        assert_eq!(
            plan_of(&workload, &mk_made(&workload, &["dfw", "ord"]), &["dfw", "ord"]),
            Plan::default()
        );
    }

    #[test]
    fn a_new_deployment_is_born_with_finalizer_and_record() {
        let birth = Birth { finalizers: vec!["f".into()], annotations: metadata::map([("a", "ns-1")]) };
        let workload = mk_workload("web", &["dfw"]);
        let Step::Create(made) = &plan(&workload, &[], &Cities::Any, &birth).steps[0] else { panic!() };
        assert_eq!(made.metadata.finalizers, Some(vec!["f".to_owned()]));
        assert_eq!(made.metadata.annotations, Some(metadata::map([("a", "ns-1")])));
    }

    #[test]
    fn a_city_that_the_project_may_not_use_gets_no_deployment() {
        let plan = plan_of(&mk_workload("web", &["dfw", "lhr"]), &[], &["dfw"]);
        assert_eq!(plan.steps.len(), 1);
        assert_eq!(plan.unbound, [Site { placement: "default".into(), city: "lhr".into() }]);
    }

    #[test]
    fn a_city_that_is_bound_later_gets_its_deployment() {
        let workload = mk_workload("web", &["dfw", "lhr"]);
        let plan = plan_of(&workload, &mk_made(&workload, &["dfw"]), &["dfw", "lhr"]);
        assert!(matches!(plan.steps.as_slice(), [Step::Create(made)] if made.spec.city_code == "lhr"));
    }

    #[test]
    fn losing_a_city_removes_nothing_and_is_told() {
        let workload = mk_workload("web", &["dfw"]);
        let plan = plan_of(&workload, &mk_made(&workload, &["dfw"]), &[]);
        assert_eq!(plan.steps, []);
        assert_eq!(plan.stranded, [Site { placement: "default".into(), city: "dfw".into() }]);
    }

    #[test]
    fn a_deployment_in_a_lost_city_still_follows_its_workload() {
        let mut workload = mk_workload("web", &["dfw"]);
        let made = mk_made(&workload, &["dfw"]);
        workload.spec.template = mk_template("app:2");
        assert!(matches!(plan_of(&workload, &made, &[]).steps.as_slice(), [Step::Update(_)]));
    }

    #[test]
    fn a_city_taken_out_of_the_workload_removes_its_deployment_and_no_other() {
        let made = mk_made(&mk_workload("web", &["dfw", "ord"]), &["dfw", "ord"]);
        let plan = plan_of(&mk_workload("web", &["dfw"]), &made, &["dfw", "ord"]);
        assert_eq!(plan.steps, [Step::Remove(Exact::of(&made[1].metadata))]);
    }

    #[test]
    fn an_orphan_on_its_way_out_is_not_deleted_again() {
        let made = mk_made(&mk_workload("web", &["dfw"]), &["dfw"]);
        let plan = plan_of(&mk_workload("web", &["ord"]), &[deleting(made[0].clone())], &[]);
        assert_eq!(plan.steps, []);
    }

    #[test]
    fn a_changed_template_updates_in_place_and_keeps_what_others_wrote() {
        let mut workload = mk_workload("web", &["dfw"]);
        let mut made = mk_made(&workload, &["dfw"]);
        made[0].spec.replicas = Some(4);
        made[0].metadata.annotations =
            Some(metadata::map([("compute.datumapis.com/federation-namespace", "ns-1")]));
        made[0].metadata.labels.as_mut().unwrap().insert("team".into(), "blue".into());
        assert_eq!(plan_of(&workload, &made, &["dfw"]).steps, []);

        workload.spec.template = mk_template("app:2");
        let plan = plan_of(&workload, &made, &["dfw"]);
        let [Step::Update(new)] = plan.steps.as_slice() else { panic!("{plan:?}") };
        assert_eq!(new.spec.template, mk_template("app:2"));
        assert_eq!(new.spec.replicas, Some(4));
        assert_eq!(new.metadata, made[0].metadata);
    }

    #[test]
    fn a_name_taken_by_another_workload_is_refused() {
        let workload = mk_workload("web", &["dfw"]);
        let mut made = mk_made(&workload, &["dfw"]);
        made[0].spec.workload_ref.uid = "uid-other".into();
        made[0].metadata.owner_references = None;
        let name = owner::name(&made[0].metadata).to_owned();
        let refusal = Step::Refuse { name, workload_uid: "uid-other".into() };
        assert_eq!(plan_of(&workload, &made, &["dfw"]).steps, [refusal]);
    }

    #[test]
    fn a_deployment_that_somebody_else_controls_is_neither_updated_nor_removed() {
        let workload = mk_workload("web", &["dfw"]);
        let mut made = mk_made(&workload, &["dfw"]);
        made[0].metadata.owner_references.as_mut().unwrap()[0].uid = "uid-stranger".into();
        assert!(matches!(plan_of(&workload, &made, &["dfw"]).steps.as_slice(), [Step::Refuse { .. }]));
        assert_eq!(plan_of(&mk_workload("web", &["ord"]), &made, &[]).steps, []);
        assert_eq!(withdrawal(&workload, &made), Withdrawal::Done);
    }

    #[test]
    fn a_deployment_of_no_controller_that_names_the_workload_is_adopted() {
        let workload = mk_workload("web", &["dfw"]);
        let mut made = mk_made(&workload, &["dfw"]);
        made[0].metadata.owner_references = None;
        made[0].metadata.labels = None;
        let plan = plan_of(&workload, &made, &["dfw"]);
        let [Step::Update(new)] = plan.steps.as_slice() else { panic!("{plan:?}") };
        assert!(owner::is_controlled_by(&new.metadata, "uid-web"));
        assert_eq!(metadata::label(&new.metadata, labels::WORKLOAD_UID), Some("uid-web"));
    }

    #[test]
    fn a_deployment_under_an_older_name_is_kept() {
        let workload = mk_workload("web", &["dfw"]);
        let mut made = mk_made(&workload, &["dfw"]);
        made[0].metadata.name = Some("web-default-dfw".into());
        assert_eq!(plan_of(&workload, &made, &["dfw"]).steps, []);
    }

    #[test]
    fn of_two_deployments_for_one_city_the_rightly_named_one_stays() {
        let workload = mk_workload("web", &["dfw"]);
        let mut made = mk_made(&workload, &["dfw"]);
        let mut older = made[0].clone();
        older.metadata.name = Some("a-web".into());
        made.insert(0, older);
        assert_eq!(plan_of(&workload, &made, &["dfw"]).steps, [Step::Remove(Exact::of(&made[0].metadata))]);
    }

    #[test]
    fn a_wanted_deployment_on_its_way_out_is_waited_for() {
        let workload = mk_workload("web", &["dfw"]);
        let made = deleting(mk_made(&workload, &["dfw"]).remove(0));
        let name = owner::name(&made.metadata).to_owned();
        assert_eq!(plan_of(&workload, &[made], &["dfw"]).steps, [Step::AwaitRemoval { name }]);
    }

    #[test]
    fn a_city_named_twice_is_one_deployment_and_two_placements_are_two() {
        let mut workload = mk_workload("web", &["dfw", "dfw"]);
        workload.spec.placements.push(mk_placement("extra", &["dfw"]));
        let made = mk_made(&workload, &["dfw"]);
        assert_eq!(made.len(), 2);
        assert_ne!(made[0].metadata.name, made[1].metadata.name);
    }

    #[test]
    fn the_order_of_the_input_does_not_matter() {
        let mut workload = mk_workload("web", &["dfw", "ord"]);
        workload.spec.placements.push(mk_placement("a", &["ord"]));
        let mut made = mk_made(&workload, &["dfw", "ord"]);
        workload.spec.placements.truncate(1);
        workload.spec.template = mk_template("app:2");
        let one = plan_of(&workload, &made, &["dfw"]);
        made.reverse();
        assert_eq!(plan_of(&workload, &made, &["dfw"]), one);
    }

    #[test]
    fn a_workload_that_goes_takes_all_its_deployments_and_waits_for_them() {
        let workload = mk_workload("web", &["dfw", "ord"]);
        let mut made = mk_made(&workload, &["dfw", "ord"]);
        made[0] = deleting(made[0].clone());
        assert_eq!(withdrawal(&workload, &made), Withdrawal::Remove(vec![Exact::of(&made[1].metadata)]));
        assert_eq!(withdrawal(&workload, &[made.remove(0)]), Withdrawal::Remove(vec![]));
        assert_eq!(withdrawal(&workload, &[]), Withdrawal::Done);
    }

    #[test]
    fn an_empty_uid_owns_no_deployment() {
        let mut workload = mk_workload("web", &["dfw"]);
        let mut made = mk_made(&workload, &["dfw"]);
        workload.metadata.uid = None;
        made[0].spec.workload_ref.uid = String::new();
        made[0].metadata.owner_references = None;
        assert!(!belongs(&made[0], &workload));
    }
}
