//! Federator: carries each deployment of a project to the hub, and its status back.
//!
//! Reads   project: WorkloadDeployment, Namespace · hub: Namespace, WorkloadDeployment, PropagationPolicy, Cluster
//! Writes  project: WorkloadDeployment (finalizer, record, status), Event
//!         hub: Namespace, WorkloadDeployment, PropagationPolicy
//! Order   record on the project → hub namespace → policy → hub copy → status back. Deletion runs it backwards.
//!         A record that leads into the namespace of somebody else is told of and leads to nothing.
//!
//! Keys are deployments of projects. What happens on the hub (a copy's status, a policy that goes) is mapped to the
//! deployments it concerns, so that every pass puts right what it finds; nothing is polled.

use polis_api::compute::WorkloadDeployment;
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::karmada::{Cluster, PropagationPolicy};
use polis_api::{annotations, finalizers, labels, names};
use polis_core::hub_copy::{self, CityError, Record};
use polis_core::identity::{self, Identity};
use polis_core::{Time, metadata, news, owner, policy};
use polis_engine::{
    Clock, Exactly, Index, Key, Lag, Outcome, Plane, PlaneSet, Query, Reconciler, Recorder, Tone, Unresolved,
};

use crate::Error;
use crate::city_guard::{self, city_of};
use crate::journeys::{Hop, Journeys};
use crate::strangers::Strangers;

/// Deployments by their city.
pub(crate) fn by_city() -> Index {
    Index::field("spec.cityCode")
}

/// See the head of this file.
pub struct Federator {
    /// The planes of the projects.
    pub projects: PlaneSet,
    /// The hub.
    pub hub: Plane,
    /// Tells people.
    pub recorder: Recorder,
    /// For transition times.
    pub clock: Clock,
    /// Deployments that differ from their copies on the hub.
    pub lag: Lag,
    /// How long what workloads ask for is on its way.
    pub journeys: Journeys,
}

impl Reconciler for Federator {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Outcome, Error> {
        self.lag.after(key, self.pass(key).await)
    }
}

/// Where the deployments of a project's namespace live on the hub.
struct Home {
    namespace: String,
    identity: Identity,
}

impl Federator {
    async fn pass(&self, key: &Key) -> Result<Outcome, Error> {
        let project = self.projects.plane(key)?;
        let Some(deployment) = project.get::<WorkloadDeployment>(key)? else {
            return Ok(Outcome::Settled); // gone, and its finalizer saw to the rest
        };
        if owner::is_deleting(&deployment.metadata) {
            return self.withdraw(&project, key, &deployment).await;
        }
        if let Err(error) = hub_copy::check_city(&deployment) {
            return self.refuse(&project, &deployment, &error);
        }
        let home = self.home(&project, key)?;
        let Some(deployment) = self.claim(&project, deployment, &home).await? else {
            return Ok(Outcome::Settled);
        };
        self.settle_namespace(&project, &home, &deployment).await?;
        let settled = self.settle_policy(&project, &home, &deployment).await?
            && self.settle_copy(&home, &deployment).await?;
        if !settled {
            return Ok(Outcome::Settled); // what is waited for comes as an event of the hub
        }
        let reported = self.report_back(&project, key, &deployment, &home).await?;
        self.retire_idle_policies(&project, key, &home.namespace).await?;
        Ok(reported)
    }

    fn home(&self, project: &Plane, key: &Key) -> Result<Home, Error> {
        let namespace = project.get::<Namespace>(key.namespace())?;
        let uid =
            namespace.as_ref().map(|namespace| owner::uid(&namespace.metadata)).filter(|uid| !uid.is_empty());
        let unseen =
            || Error::NamespaceUnseen { deployment: key.to_string(), namespace: key.namespace().to_owned() };
        let namespace = names::hub_namespace(uid.ok_or_else(unseen)?);
        let identity =
            Identity::new(key.plane.as_str(), key.namespace()).map_err(identity::IdentityError::from)?;
        Ok(Home { namespace, identity })
    }

    /// Finalizer and record, in one write and before anything exists on the hub. None if the record contradicts the
    /// project: a person has to look, because a copy may stand where it points.
    async fn claim(
        &self,
        project: &Plane,
        deployment: WorkloadDeployment,
        home: &Home,
    ) -> Result<Option<WorkloadDeployment>, Error> {
        match hub_copy::record(&deployment, &home.namespace) {
            Record::Kept => Ok(Some(deployment)),
            Record::Write(claimed) => {
                Ok(Some(project.update(&deployment, &claimed).await?.into_object().unwrap_or(deployment)))
            }
            Record::Contradicted { recorded } => {
                let belongs = format!("is not {}, where the deployment belongs", home.namespace);
                self.contradicts(project, &deployment, &recorded, &belongs);
                Ok(None)
            }
        }
    }

    /// Tells whoever looks at a deployment that what it has recorded cannot be true.
    fn contradicts(&self, project: &Plane, deployment: &WorkloadDeployment, recorded: &str, why: &str) {
        let note = format!(
            "Annotation {} says that the deployment is in hub namespace {recorded}, which {why}; nothing is touched there. See what stands in it, then remove the annotation",
            annotations::FEDERATION_NAMESPACE
        );
        let (reason, action) = ("RecordContradicted", "Federate");
        self.recorder.record(project, deployment, Tone::Warning, reason, action, &note);
    }

    async fn settle_namespace(
        &self,
        project: &Plane,
        home: &Home,
        deployment: &WorkloadDeployment,
    ) -> Result<(), Error> {
        let standing = self.hub.get::<Namespace>(&home.namespace)?;
        let city = &deployment.spec.city_code;
        let tell = |error: &identity::IdentityError| {
            let (reason, note) = ("HubNamespaceTaken", error.to_string());
            self.recorder.record(project, deployment, Tone::Warning, reason, "Federate", &note);
        };
        match identity::step(&home.namespace, &home.identity, city, standing.as_ref()).inspect_err(tell)? {
            identity::Step::Leave => {}
            identity::Step::Create(wanted) => _ = self.hub.create(&*wanted).await?,
            identity::Step::Relabel(wanted) => match &standing {
                Some(standing) => _ = self.hub.update(standing, &wanted).await?,
                None => unreachable!("what does not stand is not relabelled"),
            },
            identity::Step::AwaitRemoval => {
                return Err(Error::NamespaceTerminating { namespace: home.namespace.clone() });
            }
        }
        Ok(())
    }

    /// Brings the policy of the deployment's city to where `core::policy` says it should be. While this deployment
    /// stays, the policy is wanted; a cached look is enough, because every change of the policy brings the key back.
    async fn settle_policy(
        &self,
        project: &Plane,
        home: &Home,
        deployment: &WorkloadDeployment,
    ) -> Result<bool, Error> {
        let city = &deployment.spec.city_code;
        let wanted = policy::wanted(&home.namespace, city);
        let current =
            self.hub.get::<PropagationPolicy>((home.namespace.as_str(), owner::name(&wanted.metadata)))?;
        let standing = current.as_ref().map(|current| policy::Standing::of(current, &wanted));
        match (policy::step(&[policy::Tenant::of(deployment)], standing.as_ref()), current) {
            (policy::Step::Create, _) => _ = self.hub.create(&wanted).await?,
            (policy::Step::Restore, Some(current)) => {
                self.hub.update(&current, &policy::restored(&current, &wanted)).await?;
            }
            (policy::Step::AwaitRemoval, _) => return Ok(false),
            (policy::Step::Contested { city: other }, _) => {
                let note =
                    format!("City {city} and city {other} share the name of a policy; rename one of them");
                self.recorder.record(project, deployment, Tone::Warning, "CityContested", "Federate", &note);
                return Ok(false);
            }
            _ => {}
        }
        Ok(true)
    }

    async fn settle_copy(&self, home: &Home, deployment: &WorkloadDeployment) -> Result<bool, Error> {
        let standing = self.copy(&home.namespace, deployment)?;
        match (hub_copy::step(deployment, &home.namespace, &home.identity, standing.as_ref())?, &standing) {
            (hub_copy::Step::Create(wanted), _) => _ = self.hub.create(&*wanted).await?,
            (hub_copy::Step::Update(wanted), Some(standing)) => {
                _ = self.hub.update(standing, &wanted).await?
            }
            (hub_copy::Step::AwaitRemoval, _) => return Ok(false),
            _ => return Ok(true),
        }
        self.journeys.passes(&deployment.spec.workload_ref.uid, Hop::Hub);
        Ok(true)
    }

    /// The status that the hub has gathered from the cell, whole; or that there is no cell to have one from.
    async fn report_back(
        &self,
        project: &Plane,
        key: &Key,
        deployment: &WorkloadDeployment,
        home: &Home,
    ) -> Result<Outcome, Error> {
        let copy = self.copy(&home.namespace, deployment)?;
        let status = match copy.filter(|copy| copy.status.is_some()) {
            Some(copy) => {
                self.journeys.passes(&deployment.spec.workload_ref.uid, Hop::Cell);
                hub_copy::status_back(deployment, &copy)
            }
            None if self.is_served(&deployment.spec.city_code)? => None,
            None => hub_copy::unserved(deployment, &Time(self.clock.now())),
        };
        let Some(status) = status else { return Ok(Outcome::Settled) };
        if let Some(rest) = self.lag.hold(key, news::of_deployment(deployment.status.as_ref(), &status)) {
            return Ok(Outcome::After(rest));
        }
        let mut reported = deployment.clone();
        reported.status = Some(status);
        project.update_status(deployment, &reported).await?;
        Ok(Outcome::Settled)
    }

    /// Whether a member of the hub carries the city. A hub that does not show its members leaves it open.
    fn is_served(&self, city: &str) -> Result<bool, Error> {
        Ok(!self.hub.serves::<Cluster>()?
            || !self.hub.names_within::<Cluster>("", &city_guard::by_city(), city)?.is_empty())
    }

    /// Takes the deployment from the hub and releases it, in that order. The record alone says where it was; without
    /// one nothing was ever written there.
    async fn withdraw(
        &self,
        project: &Plane,
        key: &Key,
        deployment: &WorkloadDeployment,
    ) -> Result<Outcome, Error> {
        if !metadata::has_finalizer(&deployment.metadata, finalizers::FEDERATOR) {
            return Ok(Outcome::Settled);
        }
        if let Some(namespace) = hub_copy::recorded(deployment) {
            let city = &deployment.spec.city_code;
            let removed = async {
                if !self.is_ours(project, key, namespace)? {
                    self.contradicts(project, deployment, namespace, "belongs to somebody else");
                    return Ok(true);
                }
                let gone = self.remove_copy(namespace, deployment).await?;
                // A city that can be no label was never federated: no policy was made for it.
                if gone && hub_copy::check_city(deployment).is_ok() {
                    self.retire_policy(project, key, namespace, city, deployment.metadata.name.as_deref())
                        .await?;
                }
                Ok::<_, Error>(gone)
            };
            match removed.await {
                Ok(true) => {}
                Ok(false) => return Ok(Outcome::Settled), // the copy's last event brings the key back
                Err(error) => {
                    let note = format!("The deployment cannot be taken from the hub yet: {error}");
                    self.recorder.record(
                        project,
                        deployment,
                        Tone::Warning,
                        "WithdrawalFailed",
                        "Withdraw",
                        &note,
                    );
                    return Err(error);
                }
            }
        }
        project.remove_finalizer(deployment, finalizers::FEDERATOR).await?;
        Ok(Outcome::Settled)
    }

    /// Whether a hub namespace that a deployment has recorded belongs to the deployment's own. The record is in the hands
    /// of the project's users: it must not lead to the copies of others.
    fn is_ours(&self, project: &Plane, key: &Key, recorded: &str) -> Result<bool, Error> {
        if self.home(project, key).is_ok_and(|home| home.namespace == recorded) {
            return Ok(true);
        }
        let ours =
            Identity::new(key.plane.as_str(), key.namespace()).map_err(identity::IdentityError::from)?;
        let namespace = self.hub.get::<Namespace>(recorded)?;
        Ok(namespace.is_some_and(|namespace| Identity::of(&namespace).is_ok_and(|found| found == ours)))
    }

    /// True once the hub says that the copy is gone.
    async fn remove_copy(&self, namespace: &str, deployment: &WorkloadDeployment) -> Result<bool, Error> {
        let place = (namespace, owner::name(&deployment.metadata));
        let Some(copy) = self.hub.live().get::<WorkloadDeployment>(place).await? else { return Ok(true) };
        if !owner::is_deleting(&copy.metadata) {
            self.hub.delete(&copy, Exactly::Object).await?;
        }
        // Somebody's finalizer holds it: not ours to wait for here, its end is an event.
        Ok(copy.metadata.finalizers.is_none_or(|finalizers| finalizers.is_empty()))
    }

    /// Policies of cities that no deployment of the namespace names any more: a deployment that moved leaves one
    /// behind. A look at the cache decides whether it is worth asking the hub.
    async fn retire_idle_policies(&self, project: &Plane, key: &Key, namespace: &str) -> Result<(), Error> {
        for city in self.hub.list_within::<PropagationPolicy>(namespace)?.iter().filter_map(policy::city_of) {
            let of_city = |plane: &Plane, namespace: &str| {
                plane.names_within::<WorkloadDeployment>(namespace, &by_city(), &city)
            };
            if of_city(&self.hub, namespace)?.is_empty() && of_city(project, key.namespace())?.is_empty() {
                self.retire_policy(project, key, namespace, &city, None).await?;
            }
        }
        Ok(())
    }

    /// Removes the policy of a city when no deployment is left, read live, `leaving` aside. Deployments of the project
    /// that are still on their way to the hub count, so that none is left without a policy.
    async fn retire_policy(
        &self,
        project: &Plane,
        key: &Key,
        namespace: &str,
        city: &str,
        leaving: Option<&str>,
    ) -> Result<(), Error> {
        let of_city = Query::within(namespace).labels(format!("{}={city}", labels::TOPOLOGY_CITY_CODE));
        let mut tenants = self.hub.live().list::<WorkloadDeployment>(&of_city).await?;
        tenants.retain(|tenant| tenant.metadata.name.as_deref() != leaving);
        let coming = project.list_within::<WorkloadDeployment>(key.namespace())?;
        tenants.extend(coming.into_iter().filter(|other| other.spec.city_code == city));
        let tenants: Vec<_> = tenants.iter().map(policy::Tenant::of).collect();

        let wanted = policy::wanted(namespace, city);
        let place = (namespace, owner::name(&wanted.metadata));
        let current = self.hub.live().get::<PropagationPolicy>(place).await?;
        let standing = current.as_ref().map(|current| policy::Standing::of(current, &wanted));
        if let policy::Step::Remove(exact) = policy::step(&tenants, standing.as_ref()) {
            self.hub.delete_at::<PropagationPolicy>(place, &exact.uid, Some(&exact.resource_version)).await?;
        }
        Ok(())
    }

    fn refuse(
        &self,
        project: &Plane,
        deployment: &WorkloadDeployment,
        why: &CityError,
    ) -> Result<Outcome, Error> {
        self.recorder.record(project, deployment, Tone::Warning, "CityInvalid", "Federate", &why.to_string());
        Ok(Outcome::Settled) // only a change of the deployment helps
    }

    fn copy(
        &self,
        namespace: &str,
        deployment: &WorkloadDeployment,
    ) -> Result<Option<WorkloadDeployment>, Error> {
        Ok(self.hub.get::<WorkloadDeployment>((namespace, owner::name(&deployment.metadata)))?)
    }
}

/// The deployments in their project that a policy serves, whether or not they have a copy yet: one that found the policy
/// on its way out has none and waits for exactly this event.
pub(crate) fn keys_of_policy(
    projects: &PlaneSet,
    strangers: &Strangers,
    hub: &Plane,
    policy: &PropagationPolicy,
) -> Result<Vec<Key>, Unresolved> {
    let identity = strangers.origin(hub, policy)?;
    let name = owner::name(&policy.metadata);
    let deployments =
        projects.named(&identity.project)?.list_within::<WorkloadDeployment>(&identity.namespace)?;
    let served = deployments.iter().filter(|deployment| names::policy(&deployment.spec.city_code) == name);
    let key = |deployment: &WorkloadDeployment| {
        Key::new(&identity.project, &identity.namespace, owner::name(&deployment.metadata))
    };
    Ok(served.map(key).collect())
}

/// The deployments in their projects that are of a member's city: it may just have come to be served.
pub(crate) fn keys_of_cluster(
    strangers: &Strangers,
    hub: &Plane,
    cluster: &Cluster,
) -> Result<Vec<Key>, Unresolved> {
    let mut keys = Vec::new();
    for copy in hub.find::<WorkloadDeployment>(&by_city(), city_of(cluster))? {
        keys.extend(strangers.keys_of_copy(hub, &copy)?);
    }
    Ok(keys)
}
