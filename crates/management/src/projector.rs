//! Projector: shows each instance of a project's deployments in the project.
//!
//! Reads   hub: Instance, Namespace · project: Instance, WorkloadDeployment, Namespace
//! Writes  project: Instance (projections, with status)
//!
//! Keys are instances of projects: a hub copy is mapped to the project that the labels of its hub namespace name, and
//! to none when they name none. A projection goes when a live read of the hub finds its copy gone, and only if it is
//! one of ours.

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::{labels, names};
use polis_core::identity::{Identity, IdentityError};
use polis_core::projection::{self, Evidence, Removal, Step};
use polis_core::{Changes, metadata, news, owner, template};
use polis_engine::{
    Exactly, Index, Key, Lag, Outcome, Plane, PlaneSet, Reconciler, Recorder, Tone, Unresolved,
};

use crate::Error;
use crate::journeys::{Hop, Journeys};

/// See the head of this file.
pub struct Projector {
    /// The planes of the projects.
    pub projects: PlaneSet,
    /// The hub.
    pub hub: Plane,
    /// Tells people.
    pub recorder: Recorder,
    /// Projections that differ from what they show.
    pub lag: Lag,
    /// How long what workloads ask for is on its way.
    pub journeys: Journeys,
}

impl Reconciler for Projector {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        self.lag.after(key, self.pass(key).await)
    }
}

impl Projector {
    async fn pass(&self, key: &Key) -> Result<Outcome, Error> {
        let project = self.projects.plane(key)?;
        let Some(namespace) = project.get::<Namespace>(key.namespace())? else {
            return Ok(Outcome::Settled); // without its namespace there is no projection
        };
        let hub_namespace = names::hub_namespace(owner::uid(&namespace.metadata));
        let standing = project.get::<Instance>(key)?;
        match self.hub.get::<Instance>((hub_namespace.as_str(), &*key.name))? {
            Some(copy) if !owner::is_deleting(&copy.metadata) => {
                self.show(&project, key, &hub_namespace, &copy, standing).await
            }
            _ => {
                self.hide(&project, key, &hub_namespace, standing).await?;
                Ok(Outcome::Settled)
            }
        }
    }

    async fn show(
        &self,
        project: &Plane,
        key: &Key,
        hub_namespace: &str,
        copy: &Instance,
        standing: Option<Instance>,
    ) -> Result<Outcome, Error> {
        let Some(home) = self.hub.get::<Namespace>(hub_namespace)? else { return Ok(Outcome::Settled) };
        let identity = Identity::of(&home)?;
        if identity != self.own_identity(key)? {
            return Ok(Outcome::Settled); // the federator tells whoever owns it; what is shown stays as it is
        }
        let name = metadata::label(&copy.metadata, labels::WORKLOAD_DEPLOYMENT_NAME).unwrap_or_default();
        let deployment = project.get::<WorkloadDeployment>((key.namespace(), name))?;
        let step = projection::step(copy, &identity, deployment.as_ref(), standing.as_ref());
        self.pass_hop(Hop::Instance, deployment.as_ref(), copy);
        let shown = match (step, standing) {
            (Step::Create(wanted), _) => {
                let made = project.create(&*wanted).await?;
                self.pass_hop(Hop::Projection, deployment.as_ref(), copy);
                let status = copy.status.clone().map(Box::new);
                self.write(project, key, &made, Changes { object: None, status }).await?
            }
            (Step::Update(changes), Some(standing)) => {
                let shown = self.write(project, key, &standing, changes).await?;
                if shown == Outcome::Settled {
                    self.pass_hop(Hop::Projection, deployment.as_ref(), copy);
                }
                shown
            }
            // A deployment that is going takes its projections with it; one that is still coming has to be waited for.
            (Step::NoOwner, _) if deployment.is_none() => {
                return Err(Error::OwnerUnseen { instance: key.to_string(), deployment: name.to_owned() });
            }
            (Step::Foreign, Some(standing)) => {
                let note = "An Instance of this name runs for this project and cannot be shown: the name is taken by this object";
                self.recorder.record(project, &standing, Tone::Warning, "ProjectionBlocked", "Project", note);
                Outcome::Settled
            }
            _ => Outcome::Settled,
        };
        Ok(shown)
    }

    /// Writes what differs, unless it is no news and may wait a moment for more.
    async fn write(
        &self,
        project: &Plane,
        key: &Key,
        standing: &Instance,
        changes: Changes,
    ) -> Result<Outcome, Error> {
        if changes.is_nothing() {
            return Ok(Outcome::Settled);
        }
        let news = |status| news::of_instance(standing.status.as_ref(), status);
        if let Some(rest) = self.lag.hold(key, changes.status.as_deref().is_some_and(news)) {
            return Ok(Outcome::After(rest));
        }
        let mut current = standing.clone();
        if let Some(object) = changes.object {
            current = project.update(standing, &object).await?.into_object().unwrap_or(current);
        }
        if let Some(status) = changes.status {
            let mut wanted = current.clone();
            wanted.status = Some(*status);
            project.update_status(&current, &wanted).await?;
        }
        Ok(Outcome::Settled)
    }

    /// What the hub namespace of a key must say of itself.
    fn own_identity(&self, key: &Key) -> Result<Identity, IdentityError> {
        Ok(Identity::new(key.plane.as_str(), key.namespace())?)
    }

    /// An instance made from what the deployment asks for now has come to a hop.
    fn pass_hop(&self, hop: Hop, deployment: Option<&WorkloadDeployment>, copy: &Instance) {
        let Some(spec) = deployment.map(|deployment| &deployment.spec) else { return };
        let uid = &spec.workload_ref.uid;
        if self.journeys.awaits(uid, hop)
            && template::is_current(copy, &spec.template, &template::hash(&spec.template))
        {
            self.journeys.passes(uid, hop);
        }
    }

    async fn hide(
        &self,
        project: &Plane,
        key: &Key,
        hub_namespace: &str,
        standing: Option<Instance>,
    ) -> Result<(), Error> {
        let Some(standing) = standing else { return Ok(()) };
        let identity = self.own_identity(key)?;
        if !projection::is_ours(&standing, &identity) {
            return Ok(());
        }
        let live = self.hub.live().get::<Instance>((hub_namespace, &*key.name)).await?;
        let evidence = live.as_ref().map_or(Evidence::Gone, Evidence::Stands);
        if let Removal::Remove(_) = projection::removal(&standing, &identity, evidence) {
            project.delete(&standing, Exactly::Object).await?;
        }
        Ok(())
    }
}

/// Copies of instances by the name of their deployment.
pub(crate) fn by_deployment() -> Index {
    Index::label(labels::WORKLOAD_DEPLOYMENT_NAME)
}

/// The instances of a deployment, by their copies on the hub: a projection waits for its owner.
pub(crate) fn keys_of_deployment(
    hub: &Plane,
    project: &Plane,
    deployment: &WorkloadDeployment,
) -> Result<Vec<Key>, Unresolved> {
    let namespace = deployment.metadata.namespace.as_deref().unwrap_or_default();
    let Some(home) = project.get::<Namespace>(namespace)? else { return Ok(Vec::new()) };
    let hub_namespace = names::hub_namespace(owner::uid(&home.metadata));
    let copies =
        hub.names_within::<Instance>(&hub_namespace, &by_deployment(), owner::name(&deployment.metadata))?;
    Ok(copies.iter().map(|copy| Key::new(project.name().clone(), namespace, copy)).collect())
}
