//! Workload: makes and keeps the deployments that a workload asks for, and says how they are.
//!
//! Reads   project: Workload, WorkloadDeployment, Network, LocationBinding, Namespace
//! Writes  project: Workload (finalizer, status), WorkloadDeployment (all but status), Event
//! Order   finalizer → networks exist → deployments → status. Deletion: deployments, then the finalizer.
//!
//! A deployment is born with the federator's finalizer and the record of its hub namespace, so that carrying it to the
//! hub needs no further write in the project.

use polis_api::compute::{Workload, WorkloadDeployment};
use polis_api::conditions::AVAILABLE;
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::networking::{LocationBinding, Network};
use polis_api::{annotations, finalizers, names, reasons};
use polis_core::cities::{Cities, Ground, Skipped};
use polis_core::deployments::{self, Birth, Plan, Step, Withdrawal};
use polis_core::workload_status::{self, Facts};
use polis_core::{Time, conditions, metadata, networks, news, owner};
use polis_engine::{
    Clock, Index, Key, Lag, Outcome, Plane, PlaneSet, Query, Reconciler, Recorder, Tone, Unresolved,
};

use crate::Error;
use crate::journeys::{Hop, Journeys};

/// See the head of this file.
pub struct WorkloadController {
    /// The planes of the projects.
    pub projects: PlaneSet,
    /// What they stand on.
    pub ground: Ground,
    /// Tells people.
    pub recorder: Recorder,
    /// For transition times.
    pub clock: Clock,
    /// Workloads whose status is behind.
    pub lag: Lag,
    /// How long what they ask for is on its way.
    pub journeys: Journeys,
}

/// Deployments by the workload that they name.
pub(crate) fn by_workload() -> Index {
    Index::field("spec.workloadRef.uid")
}

/// Workloads by the networks that they name.
pub(crate) fn by_network() -> Index {
    Index::field("spec.template.spec.networkInterfaces.network.name")
}

impl Reconciler for WorkloadController {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        self.lag.after(key, self.pass(key).await)
    }
}

impl WorkloadController {
    async fn pass(&self, key: &Key) -> Result<Outcome, Error> {
        let project = self.projects.plane(key)?;
        let Some(workload) = project.get::<Workload>(key)? else {
            return Ok(Outcome::Settled); // gone, and its finalizer saw to the rest
        };
        if owner::is_deleting(&workload.metadata) {
            return self.withdraw(&project, key, &workload).await;
        }
        self.journeys.sets_out(&workload);
        let workload =
            project.add_finalizer(&workload, finalizers::WORKLOAD).await?.into_object().unwrap_or(workload);
        let (cities, skipped) = cities(self.ground, &project)?;
        let missing_networks = missing_networks(&project, &workload)?;
        let mut standing = standing(&project, key, &workload)?;
        if missing_networks.is_empty() {
            let plan = deployments::plan(&workload, &standing, &cities, &birth(&project, key)?);
            self.carry_out(&project, key, &workload, &mut standing, plan).await?;
        }
        let facts = Facts {
            deployments: &standing,
            cities: &cities,
            skipped: &skipped,
            missing_networks: &missing_networks,
        };
        self.report(&project, key, &workload, &facts).await
    }

    /// Takes the steps of a plan. What they make and change is put into `standing`, so that the status of this very
    /// pass counts it.
    async fn carry_out(
        &self,
        project: &Plane,
        key: &Key,
        workload: &Workload,
        standing: &mut Vec<WorkloadDeployment>,
        plan: Plan,
    ) -> Result<(), Error> {
        for step in plan.steps {
            match step {
                Step::Create(deployment) => {
                    let made = project.create(&*deployment).await?;
                    self.journeys.passes(owner::uid(&workload.metadata), Hop::Deployment);
                    let note = format!(
                        "Created deployment {} for city {}",
                        owner::name(&made.metadata),
                        made.spec.city_code
                    );
                    self.recorder.record(
                        project,
                        workload,
                        Tone::Normal,
                        "DeploymentCreated",
                        "Place",
                        &note,
                    );
                    standing.push(made);
                }
                Step::Update(wanted) => {
                    let current =
                        standing.iter_mut().find(|current| current.metadata.uid == wanted.metadata.uid);
                    if let Some(current) = current
                        && let Some(made) = project.update(current, &wanted).await?.into_object()
                    {
                        *current = made;
                        self.journeys.passes(owner::uid(&workload.metadata), Hop::Deployment);
                    }
                }
                Step::Remove(exact) => {
                    project
                        .delete_at::<WorkloadDeployment>(
                            (key.namespace(), exact.name.as_str()),
                            &exact.uid,
                            None,
                        )
                        .await?;
                    let note = format!("Removed deployment {}, which nothing asks for any more", exact.name);
                    self.recorder.record(
                        project,
                        workload,
                        Tone::Normal,
                        "DeploymentRemoved",
                        "Place",
                        &note,
                    );
                }
                Step::AwaitRemoval { .. } => {} // its last event brings the key back
                Step::Refuse { name, workload_uid } => {
                    let note = format!(
                        "Deployment {name} belongs to the workload with UID {workload_uid} and is left as it is"
                    );
                    self.recorder.record(
                        project,
                        workload,
                        Tone::Warning,
                        "DeploymentNotOurs",
                        "Place",
                        &note,
                    );
                }
            }
        }
        for site in plan.stranded {
            let note =
                format!("City {} is no longer open to this project; the deployment there goes on", site.city);
            self.recorder.record(project, workload, Tone::Warning, reasons::LOCATION_LOST, "Place", &note);
        }
        Ok(())
    }

    async fn report(
        &self,
        project: &Plane,
        key: &Key,
        workload: &Workload,
        facts: &Facts<'_>,
    ) -> Result<Outcome, Error> {
        let Some(status) = workload_status::status(workload, facts, &Time(self.clock.now())) else {
            return Ok(Outcome::Settled);
        };
        if let Some(rest) = self.lag.hold(key, news::of_workload(workload.status.as_ref(), &status)) {
            return Ok(Outcome::After(rest));
        }
        let mut reported = workload.clone();
        reported.status = Some(status);
        project.update_status(workload, &reported).await?;
        self.tell(project, workload, &reported);
        Ok(Outcome::Settled)
    }

    /// An event when the workload becomes available, stops being so, or is held up by something else than before.
    fn tell(&self, project: &Plane, before: &Workload, after: &Workload) {
        let available = |workload: &Workload| {
            let condition = conditions::find(&workload.status.as_ref()?.conditions, AVAILABLE)?;
            Some((condition.status.clone(), condition.reason.clone(), condition.message.clone()))
        };
        let (was, is) = (available(before), available(after));
        if let Some((status, reason, message)) = &is
            && was.as_ref().map(|was| (&was.0, &was.1)) != Some((status, reason))
        {
            let tone = if status == "True" || was.is_none() { Tone::Normal } else { Tone::Warning };
            self.recorder.record(project, after, tone, reason, "Observe", message);
        }
    }

    /// Removes the deployments and releases the workload once a live read finds none.
    async fn withdraw(&self, project: &Plane, key: &Key, workload: &Workload) -> Result<Outcome, Error> {
        if !metadata::has_finalizer(&workload.metadata, finalizers::WORKLOAD) {
            return Ok(Outcome::Settled);
        }
        let mut withdrawal = deployments::withdrawal(workload, &standing(project, key, workload)?);
        if withdrawal == Withdrawal::Done {
            // The cache may not have seen the newest yet: nothing is released on its word alone.
            let live = project.live().list::<WorkloadDeployment>(&Query::within(key.namespace())).await?;
            withdrawal = deployments::withdrawal(workload, &live);
        }
        match withdrawal {
            Withdrawal::Done => _ = project.remove_finalizer(workload, finalizers::WORKLOAD).await?,
            Withdrawal::Remove(going) => {
                for exact in going {
                    let place = (key.namespace(), exact.name.as_str());
                    project.delete_at::<WorkloadDeployment>(place, &exact.uid, None).await?;
                }
            }
        }
        Ok(Outcome::Settled) // the last event of each brings the key back
    }
}

/// The deployments that a plan for this workload must know: its own, and any that bears a name it would use.
fn standing(project: &Plane, key: &Key, workload: &Workload) -> Result<Vec<WorkloadDeployment>, Error> {
    let uid = owner::uid(&workload.metadata);
    let mut standing: Vec<WorkloadDeployment> = project.find(&by_workload(), uid)?;
    standing.retain(|deployment| deployment.metadata.namespace.as_deref() == Some(key.namespace()));
    for placement in &workload.spec.placements {
        for city in &placement.city_codes {
            let name = names::deployment(&key.name, uid, &placement.name, city);
            if standing.iter().any(|deployment| owner::name(&deployment.metadata) == name) {
                continue;
            }
            standing.extend(project.get::<WorkloadDeployment>((key.namespace(), name.as_str()))?);
        }
    }
    Ok(standing)
}

/// Finalizer and record of the federator, from the first write on. A namespace that is not seen yet gives none: the
/// federator then writes them itself.
fn birth(project: &Plane, key: &Key) -> Result<Birth, Error> {
    let Some(namespace) = project.get::<Namespace>(key.namespace())? else { return Ok(Birth::default()) };
    let record = names::hub_namespace(owner::uid(&namespace.metadata));
    Ok(Birth {
        finalizers: vec![finalizers::FEDERATOR.to_owned()],
        annotations: metadata::map([(annotations::FEDERATION_NAMESPACE, record)]),
    })
}

/// The cities that a project may use, and its bindings that do not count.
fn cities(ground: Ground, project: &Plane) -> Result<(Cities, Vec<Skipped>), Error> {
    let served = project.serves::<LocationBinding>()?;
    let bindings = served.then(|| project.list::<LocationBinding>()).transpose()?;
    Ok(Cities::of_project(ground, bindings.as_deref()))
}

/// The networks that the template names and the project does not have. A plane without networks is not asked.
fn missing_networks(project: &Plane, workload: &Workload) -> Result<Vec<String>, Error> {
    let mut missing = Vec::new();
    if project.serves::<Network>()? {
        for (namespace, name) in networks::required(workload) {
            if project.get::<Network>((namespace.as_str(), name.as_str()))?.is_none() {
                missing.push(format!("{namespace}/{name}"));
            }
        }
    }
    Ok(missing)
}

/// The workload that a deployment names.
pub(crate) fn key_of_deployment(
    project: &Plane,
    deployment: &WorkloadDeployment,
) -> Result<Vec<Key>, Unresolved> {
    let namespace = deployment.metadata.namespace.as_deref().unwrap_or_default();
    Ok(vec![Key::new(project.name().clone(), namespace, &deployment.spec.workload_ref.name)])
}

/// The workloads that name a network.
pub(crate) fn keys_of_network(project: &Plane, network: &Network) -> Result<Vec<Key>, Unresolved> {
    let workloads: Vec<Workload> = project.find(&by_network(), owner::name(&network.metadata))?;
    Ok(workloads.iter().map(|workload| key_of(project, workload)).collect())
}

/// Every workload of the project: which cities it may use has changed.
pub(crate) fn keys_of_binding(project: &Plane, _: &LocationBinding) -> Result<Vec<Key>, Unresolved> {
    Ok(project.list::<Workload>()?.iter().map(|workload| key_of(project, workload)).collect())
}

fn key_of(project: &Plane, workload: &Workload) -> Key {
    let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
    Key::new(project.name().clone(), namespace, owner::name(&workload.metadata))
}
