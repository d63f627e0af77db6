//! Projection: the copy of an instance in its project.
//!
//! The projection has the name, spec, status and labels of the hub copy, without Karmada's labels. Its owner
//! is the project's deployment that the label `workload-deployment-name` names. The owner is looked up by
//! name in the project, because UIDs of other planes mean nothing there. Without that deployment there is no
//! projection.
//!
//! A projection is deleted only if an uncached read of the hub shows that its hub copy is gone or
//! terminating. Only projections are deleted: they have the labels of their project and namespace, and a
//! deployment owns them.

use polis_api::ObjectExt;
use polis_api::compute::{API_VERSION, Instance, WorkloadDeployment};
use polis_api::labels;

use crate::instances::LINKING_LABELS;
use crate::metadata::Map;
use crate::mirror::{self, CopyAction, DesiredCopy};
use crate::owner::{self, ObjectRef};
use crate::tenant::Tenant;

/// Why no projection of an instance is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProjectionRefusal {
    /// The project's deployment does not exist or is being deleted: retry when it exists.
    NoOwner,
    /// An Instance of that name exists and is not a projection.
    Foreign,
}

/// What is known about the hub copy of a projection.
#[derive(Clone, Copy, Debug)]
pub enum HubCopyState<'a> {
    /// An uncached read of the hub found no object of the name.
    Absent,
    /// An uncached read found this object.
    Present(&'a Instance),
    /// The hub could not be read, or only its cache was.
    Unknown,
}

/// What to do about a projection whose hub copy may be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProjectionDeletion {
    /// Keep the projection.
    Retain,
    /// Delete the projection.
    Delete(ObjectRef),
    /// The Instance is not a projection, or is terminating already.
    NotOurs,
}

/// Plans the projection of a hub copy.
///
/// `tenant` is that of the hub namespace; `deployment` is the project's deployment that the copy's label
/// names.
pub fn plan(
    copy: &Instance,
    tenant: &Tenant,
    deployment: Option<&WorkloadDeployment>,
    existing: Option<&Instance>,
) -> Result<CopyAction, ProjectionRefusal> {
    let deployment = mirror::owner_of(copy.label(labels::WORKLOAD_DEPLOYMENT_NAME), deployment);
    let deployment = deployment.ok_or(ProjectionRefusal::NoOwner)?;
    let (labels, owner) = (projection_labels(copy, tenant), owner::reference(deployment));
    let is_projection =
        |existing: &Instance| is_ours(existing, tenant) || owner::is_owned_by(&existing.metadata, &owner.uid);
    if existing.is_some_and(|existing| !existing.is_deleting() && !is_projection(existing)) {
        return Err(ProjectionRefusal::Foreign);
    }
    let (namespace, owned_labels) = (tenant.namespace.as_str(), &LINKING_LABELS);
    Ok(DesiredCopy { source: copy, namespace, labels, owned_labels, owner }.plan(existing))
}

/// Whether to delete an existing projection, given the state of its hub copy.
pub fn plan_deletion(existing: &Instance, tenant: &Tenant, hub_copy: HubCopyState) -> ProjectionDeletion {
    if !is_ours(existing, tenant) || existing.is_deleting() {
        return ProjectionDeletion::NotOurs;
    }
    match hub_copy {
        HubCopyState::Unknown => ProjectionDeletion::Retain,
        HubCopyState::Present(copy) if !copy.is_deleting() => ProjectionDeletion::Retain,
        HubCopyState::Present(_) | HubCopyState::Absent => {
            ProjectionDeletion::Delete(ObjectRef::of(existing))
        }
    }
}

/// Whether an Instance of a project is a projection from this hub namespace, owned by the deployment it
/// names.
pub fn is_ours(existing: &Instance, tenant: &Tenant) -> bool {
    let name = existing.label(labels::WORKLOAD_DEPLOYMENT_NAME);
    tenant.labels().iter().all(|(key, value)| existing.label(key) == Some(value.as_str()))
        && existing.metadata.owner_references.iter().flatten().any(|reference| {
            reference.api_version == API_VERSION
                && reference.kind == "WorkloadDeployment"
                && Some(reference.name.as_str()) == name
        })
}

/// The labels of a projection: those of the hub copy without Karmada's, and those of the tenant.
fn projection_labels(copy: &Instance, tenant: &Tenant) -> Map {
    let of_karmada = |key: &str| key.split('/').next().is_some_and(|domain| domain.ends_with("karmada.io"));
    let mut labels = copy.metadata.labels.clone().unwrap_or_default();
    labels.retain(|key, _| !of_karmada(key));
    labels.extend(tenant.labels());
    labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::InstanceChanges;
    use crate::tenant::mk_tenant;
    use crate::testing::{deleting, mk_deployment, mk_instance, mk_meta, mk_template, ready};
    use crate::writeback::mk_hub_copy;

    fn mk_copy() -> Instance {
        let mut hub_owner = mk_deployment("web");
        hub_owner.metadata.uid = Some("uid-on-the-hub".into());
        let mut copy = mk_hub_copy(&ready(mk_instance(&mk_deployment("web"), 0)), &hub_owner);
        copy.metadata.labels.as_mut().unwrap().insert("work.karmada.io/permanent-id".into(), "x".into());
        copy
    }

    fn mk_project_deployment() -> WorkloadDeployment {
        let mut deployment = mk_deployment("web");
        deployment.metadata.namespace = Some("shop".into());
        deployment.metadata.uid = Some("uid-in-the-project".into());
        deployment
    }

    fn plan_of(existing: Option<&Instance>) -> Result<CopyAction, ProjectionRefusal> {
        plan(&mk_copy(), &mk_tenant(), Some(&mk_project_deployment()), existing)
    }

    fn changes_of(existing: Option<&Instance>) -> InstanceChanges {
        let Ok(CopyAction::Write(changes)) = plan_of(existing) else { panic!("nothing to write") };
        changes
    }

    fn mk_projection() -> Instance {
        let mut made = changes_of(None).object.unwrap();
        let meta = std::mem::replace(&mut made.metadata, mk_meta("shop", "web-0"));
        made.metadata.labels = meta.labels;
        made.metadata.owner_references = meta.owner_references;
        made.status = mk_copy().status;
        *made
    }

    #[test]
    fn a_projection_has_spec_and_labels_and_is_owned_by_the_projects_deployment() {
        let made = changes_of(None).object.unwrap();
        assert_eq!(made.spec, mk_copy().spec);
        assert_eq!(
            (made.metadata.namespace.as_deref(), made.metadata.name.as_deref()),
            (Some("shop"), Some("web-0"))
        );
        let owners = made.metadata.owner_references.unwrap();
        assert_eq!(owners, [owner::reference(&mk_project_deployment())]);
        assert_eq!((owners[0].uid.as_str(), owners[0].controller), ("uid-in-the-project", None));
        let labels = made.metadata.labels.unwrap();
        assert_eq!(labels["compute.datumapis.com/workload-deployment-name"], "web");
        assert!(!labels.contains_key("work.karmada.io/permanent-id"));
    }

    #[test]
    fn without_the_projects_deployment_nothing_is_projected() {
        let mut other = mk_project_deployment();
        other.metadata.name = Some("api".into());
        for deployment in [None, Some(deleting(mk_project_deployment())), Some(other)] {
            let plan = plan(&mk_copy(), &mk_tenant(), deployment.as_ref(), None);
            assert_eq!(plan, Err(ProjectionRefusal::NoOwner));
        }
    }

    #[test]
    fn an_unchanged_copy_causes_no_write() {
        let mut existing = mk_projection();
        existing.metadata.labels.as_mut().unwrap().insert("team".into(), "blue".into());
        assert_eq!(plan_of(Some(&existing)), Ok(CopyAction::None));
    }

    #[test]
    fn a_changed_spec_and_status_are_written() {
        let mut existing = mk_projection();
        existing.spec = mk_template("app:0").spec;
        existing.status = None;
        let changes = changes_of(Some(&existing));
        assert_eq!(changes.object.unwrap().spec, mk_copy().spec);
        assert_eq!(changes.status.map(|status| *status), mk_copy().status);
    }

    #[test]
    fn an_instance_of_the_same_name_that_is_not_a_projection_is_left_alone() {
        let mut theirs = mk_projection();
        theirs.metadata.owner_references = None;
        assert_eq!(plan_of(Some(&theirs)), Err(ProjectionRefusal::Foreign));
        let mut of_another_project = mk_projection();
        of_another_project
            .metadata
            .labels
            .as_mut()
            .unwrap()
            .insert(labels::UPSTREAM_CLUSTER_NAME.into(), "cluster-x".into());
        of_another_project.metadata.owner_references.as_mut().unwrap()[0].uid = "uid-x".into();
        assert_eq!(plan_of(Some(&of_another_project)), Err(ProjectionRefusal::Foreign));
    }

    #[test]
    fn a_projection_of_an_earlier_deployment_of_the_same_name_gets_the_new_owner() {
        let mut existing = mk_projection();
        existing.metadata.owner_references.as_mut().unwrap()[0].uid = "uid-earlier".into();
        let changes = changes_of(Some(&existing));
        assert!(owner::is_owned_by(&changes.object.unwrap().metadata, "uid-in-the-project"));
    }

    #[test]
    fn a_terminating_projection_is_awaited() {
        assert_eq!(plan_of(Some(&deleting(mk_projection()))), Ok(CopyAction::AwaitDeletion));
    }

    #[test]
    fn a_projection_is_deleted_only_if_its_hub_copy_is_known_to_be_gone() {
        let (existing, tenant) = (mk_projection(), mk_tenant());
        let gone = ProjectionDeletion::Delete(ObjectRef::of(&existing));
        assert_eq!(plan_deletion(&existing, &tenant, HubCopyState::Absent), gone);
        assert_eq!(plan_deletion(&existing, &tenant, HubCopyState::Present(&deleting(mk_copy()))), gone);
        assert_eq!(
            plan_deletion(&existing, &tenant, HubCopyState::Present(&mk_copy())),
            ProjectionDeletion::Retain
        );
        assert_eq!(plan_deletion(&existing, &tenant, HubCopyState::Unknown), ProjectionDeletion::Retain);
    }

    #[test]
    fn only_projections_are_deleted() {
        let tenant = mk_tenant();
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
        for existing in [unlabelled, unowned, of_another, deleting(mk_projection())] {
            assert_eq!(plan_deletion(&existing, &tenant, HubCopyState::Absent), ProjectionDeletion::NotOurs);
        }
    }
}
