//! Projection: how an instance shows in its project.
//!
//! The projection has the name of the hub copy, its spec, status and labels (less what Karmada keeps for itself), and is
//! owned by the project's deployment of the name in its label, found by name and read in the project: UIDs of other
//! planes mean nothing there. Without that deployment there is no projection.
//!
//! A projection goes when its hub copy has gone, on evidence: a live read of the hub that found nothing, or the copy on
//! its way out. Only our own goes: it carries the labels of its project and namespace and is owned by a deployment.

use polis_api::compute::{API_VERSION, Instance, WorkloadDeployment};
use polis_api::labels;

use crate::identity::Identity;
use crate::instances::LINKING_LABELS;
use crate::metadata::{self, Map};
use crate::mirror::{self, Changes};
use crate::owner::{self, Exact};

/// What to do about the projection of an instance.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It is as it should be.
    Leave,
    /// Make it, then write the hub copy's status to it.
    Create(Box<Instance>),
    /// Bring it up to date.
    Update(Changes),
    /// An earlier projection is on its way out: come back when it is gone.
    AwaitRemoval,
    /// The project has no such deployment, or it is going: try again when it appears.
    NoOwner,
    /// An Instance of that name is there and is none of ours.
    Foreign,
}

/// What is known about the hub copy behind a projection.
#[derive(Clone, Copy, Debug)]
pub enum Evidence<'a> {
    /// A live read of the hub found nothing under the name.
    Gone,
    /// A live read found this.
    Stands(&'a Instance),
    /// The hub could not be asked, or only a cache was.
    Unknown,
}

/// What to do about a projection whose hub copy may be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Keep it.
    Keep,
    /// Delete this one.
    Remove(Exact),
    /// It is none of ours, or already on its way.
    NotOurs,
}

/// What to do about the projection of a hub copy.
///
/// `identity` is that of the hub namespace; `deployment` is the project's deployment of the name in the copy's label.
pub fn step(
    copy: &Instance,
    identity: &Identity,
    deployment: Option<&WorkloadDeployment>,
    standing: Option<&Instance>,
) -> Step {
    let name = metadata::label(&copy.metadata, labels::WORKLOAD_DEPLOYMENT_NAME);
    let owns = |deployment: &&WorkloadDeployment| {
        name == Some(owner::name(&deployment.metadata))
            && !owner::uid(&deployment.metadata).is_empty()
            && !owner::is_deleting(&deployment.metadata)
    };
    let Some(deployment) = deployment.filter(owns) else { return Step::NoOwner };
    let (labels, reference) = (shown_labels(copy, identity), owner::reference(deployment));

    let Some(standing) = standing else {
        return Step::Create(Box::new(mirror::new(copy, &identity.namespace, labels, reference)));
    };
    if !is_ours(standing, identity) && !owner::is_owned_by(&standing.metadata, &reference.uid) {
        return Step::Foreign;
    }
    if owner::is_deleting(&standing.metadata) {
        return Step::AwaitRemoval;
    }
    let changes = mirror::changes(copy, standing, &labels, &LINKING_LABELS, reference);
    if changes.is_nothing() { Step::Leave } else { Step::Update(changes) }
}

/// What to do about a standing projection, given what is known about its hub copy.
pub fn removal(standing: &Instance, identity: &Identity, evidence: Evidence) -> Removal {
    if !is_ours(standing, identity) || owner::is_deleting(&standing.metadata) {
        return Removal::NotOurs;
    }
    match evidence {
        Evidence::Unknown => Removal::Keep,
        Evidence::Stands(copy) if !owner::is_deleting(&copy.metadata) => Removal::Keep,
        Evidence::Stands(_) | Evidence::Gone => Removal::Remove(Exact::of(&standing.metadata)),
    }
}

/// Whether an Instance of a project is a projection: made from this hub namespace, owned by the deployment it names.
pub fn is_ours(standing: &Instance, identity: &Identity) -> bool {
    let meta = &standing.metadata;
    let name = metadata::label(meta, labels::WORKLOAD_DEPLOYMENT_NAME);
    identity.labels().iter().all(|(key, value)| metadata::label(meta, key) == Some(value.as_str()))
        && meta.owner_references.iter().flatten().any(|reference| {
            reference.api_version == API_VERSION
                && reference.kind == "WorkloadDeployment"
                && Some(reference.name.as_str()) == name
        })
}

/// The labels of a projection: those of the hub copy without Karmada's, and the identity of the hub namespace.
fn shown_labels(copy: &Instance, identity: &Identity) -> Map {
    let of_karmada = |key: &str| key.split('/').next().is_some_and(|domain| domain.ends_with("karmada.io"));
    let mut shown = copy.metadata.labels.clone().unwrap_or_default();
    shown.retain(|key, _| !of_karmada(key));
    shown.extend(identity.labels());
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::mk_identity;
    use crate::testing::{deleting, mk_deployment, mk_instance, mk_meta, mk_template, ready};
    use crate::writeback::mk_hub_copy;

    fn mk_copy() -> Instance {
        let mut hub_owner = mk_deployment("web");
        hub_owner.metadata.uid = Some("uid-on-the-hub".into());
        let mut copy = mk_hub_copy(&ready(mk_instance(&mk_deployment("web"), 0)), &hub_owner);
        copy.metadata.labels.as_mut().unwrap().insert("work.karmada.io/permanent-id".into(), "x".into());
        copy
    }

    fn mk_home() -> WorkloadDeployment {
        let mut deployment = mk_deployment("web");
        deployment.metadata.namespace = Some("shop".into());
        deployment.metadata.uid = Some("uid-in-the-project".into());
        deployment
    }

    fn step_of(standing: Option<&Instance>) -> Step {
        step(&mk_copy(), &mk_identity(), Some(&mk_home()), standing)
    }

    fn mk_projection() -> Instance {
        let Step::Create(mut made) = step_of(None) else { panic!() };
        let meta = std::mem::replace(&mut made.metadata, mk_meta("shop", "web-0"));
        made.metadata.labels = meta.labels;
        made.metadata.owner_references = meta.owner_references;
        made.status = mk_copy().status;
        *made
    }

    #[test]
    fn a_projection_is_owned_by_the_projects_deployment_and_shows_spec_and_labels() {
        let Step::Create(made) = step_of(None) else { panic!() };
        assert_eq!(made.spec, mk_copy().spec);
        assert_eq!(
            (made.metadata.namespace.as_deref(), made.metadata.name.as_deref()),
            (Some("shop"), Some("web-0"))
        );
        let owners = made.metadata.owner_references.unwrap();
        assert_eq!(owners, [owner::reference(&mk_home())]);
        assert_eq!((owners[0].uid.as_str(), owners[0].controller), ("uid-in-the-project", None));
        let labels = made.metadata.labels.unwrap();
        assert_eq!(labels["compute.datumapis.com/workload-deployment-name"], "web");
        assert!(!labels.contains_key("work.karmada.io/permanent-id"));
    }

    #[test]
    fn without_the_projects_deployment_nothing_is_projected() {
        let mut other = mk_home();
        other.metadata.name = Some("api".into());
        for deployment in [None, Some(deleting(mk_home())), Some(other)] {
            assert_eq!(step(&mk_copy(), &mk_identity(), deployment.as_ref(), None), Step::NoOwner);
        }
    }

    #[test]
    fn an_unchanged_copy_is_no_write() {
        let mut standing = mk_projection();
        standing.metadata.labels.as_mut().unwrap().insert("team".into(), "blue".into());
        assert_eq!(step_of(Some(&standing)), Step::Leave);
    }

    #[test]
    fn a_changed_spec_and_status_are_shown() {
        let mut standing = mk_projection();
        standing.spec = mk_template("app:0").spec;
        standing.status = None;
        let Step::Update(changes) = step_of(Some(&standing)) else { panic!() };
        assert_eq!(changes.object.unwrap().spec, mk_copy().spec);
        assert_eq!(changes.status.map(|status| *status), mk_copy().status);
    }

    #[test]
    fn an_instance_of_the_same_name_that_is_none_of_ours_is_left_alone() {
        let mut theirs = mk_projection();
        theirs.metadata.owner_references = None;
        assert_eq!(step_of(Some(&theirs)), Step::Foreign);
        let mut of_another_project = mk_projection();
        of_another_project
            .metadata
            .labels
            .as_mut()
            .unwrap()
            .insert(labels::UPSTREAM_CLUSTER_NAME.into(), "cluster-x".into());
        of_another_project.metadata.owner_references.as_mut().unwrap()[0].uid = "uid-x".into();
        assert_eq!(step_of(Some(&of_another_project)), Step::Foreign);
    }

    #[test]
    fn a_projection_of_an_earlier_deployment_of_the_name_gets_the_new_owner() {
        let mut standing = mk_projection();
        standing.metadata.owner_references.as_mut().unwrap()[0].uid = "uid-earlier".into();
        let Step::Update(changes) = step_of(Some(&standing)) else { panic!() };
        assert!(owner::is_owned_by(&changes.object.unwrap().metadata, "uid-in-the-project"));
    }

    #[test]
    fn a_projection_on_its_way_out_is_waited_for() {
        assert_eq!(step_of(Some(&deleting(mk_projection()))), Step::AwaitRemoval);
    }

    #[test]
    fn a_projection_goes_only_on_evidence() {
        let (standing, identity) = (mk_projection(), mk_identity());
        let gone = Removal::Remove(Exact::of(&standing.metadata));
        assert_eq!(removal(&standing, &identity, Evidence::Gone), gone);
        assert_eq!(removal(&standing, &identity, Evidence::Stands(&deleting(mk_copy()))), gone);
        assert_eq!(removal(&standing, &identity, Evidence::Stands(&mk_copy())), Removal::Keep);
        assert_eq!(removal(&standing, &identity, Evidence::Unknown), Removal::Keep);
    }

    #[test]
    fn only_our_own_projections_go() {
        let identity = mk_identity();
        let mut unlabelled = mk_projection();
        unlabelled.metadata.labels.as_mut().unwrap().remove(labels::UPSTREAM_NAMESPACE);
        let mut unowned = mk_projection();
        unowned.metadata.owner_references = None;
        let mut of_another = mk_projection();
        of_another
            .metadata
            .labels
            .as_mut()
            .unwrap()
            .insert(labels::UPSTREAM_CLUSTER_NAME.into(), "cluster-x".into());
        for standing in [unlabelled, unowned, of_another, deleting(mk_projection())] {
            assert_eq!(removal(&standing, &identity, Evidence::Gone), Removal::NotOurs);
        }
    }
}
