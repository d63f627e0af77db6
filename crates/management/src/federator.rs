//! Federator: copies each WorkloadDeployment of a project to the hub, and the aggregated status back.
//!
//! Reads   project: WorkloadDeployment, Namespace
//!         hub: Namespace, WorkloadDeployment, PropagationPolicy, Cluster
//! Writes  project: WorkloadDeployment (finalizer, hub namespace annotation, status), Event
//!         hub: Namespace, WorkloadDeployment, PropagationPolicy
//! Order   annotate the project object → hub namespace → policy → companions (see `resolver`) → hub copy →
//!         status back. Deletion: see `teardown`.
//!
//! Keys are WorkloadDeployments of projects. Events of the hub (status of a copy, deletion of a policy) are
//! mapped to the deployments they concern, and every reconcile compares the whole state; nothing is polled.
//!
//! An annotation that names the hub namespace of another tenant is reported as an event and not followed.

mod teardown;

use polis_api::compute::{Workload, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::karmada::{Cluster, PropagationPolicy};
use polis_api::{ObjectExt, annotations, events, labels, names, reasons};
use polis_core::contact::Contact;
use polis_core::deployments::InitialMetadata;
use polis_core::hub_copy::{self, CityError, RecordAction};
use polis_core::tenant::{self, Tenant};
use polis_core::{Time, policy, significant_change};
use polis_engine::{
    Action, Clock, Engine, Error as EngineError, ErrorClass, EventRecorder, Index, Key, ListOptions, Plane,
    PlaneSet, Reachability, Reconciler, StatusCoalescer, Unresolved, Watch,
};
use tokio::sync::mpsc;

use crate::city_guard::{self, city_of};
use crate::contact::Contacts;
use crate::hub_contact;
use crate::propagation_latency::{PropagationLatency, Stage};
use crate::resolver::{self, Resolver};
use crate::unresolved_objects::{self, UnresolvedObjects};
use crate::{Error, Management};

/// The watches of the controller in projects.
pub(crate) fn project_watches() -> Vec<Watch> {
    vec![
        Watch::of::<WorkloadDeployment>().index(by_city()).index(resolver::by_companion()),
        Watch::of::<Namespace>(),
        Watch::of::<Workload>(),
    ]
}

/// The watches of the controller on the hub.
pub(crate) fn hub_watches() -> Vec<Watch> {
    let mut watches = vec![
        unresolved_objects::watch(),
        Watch::of::<WorkloadDeployment>().index(by_city()).index(resolver::by_companion()),
        Watch::of::<PropagationPolicy>(),
        Watch::of::<Cluster>().index(city_guard::by_city()),
    ];
    watches.extend(resolver::hub_watches());
    watches
}

/// Registers the controller with an engine. `keys` are deployments with whose cells the contact has changed.
pub(crate) fn declare(engine: &mut Engine, management: &Management, keys: mpsc::UnboundedReceiver<Key>) {
    let (projects, hub) = (&management.projects, &management.hub);
    let resolver = Resolver::new(hub.clone());
    let federator = Federator {
        projects: projects.clone(),
        hub: hub.clone(),
        resolver: resolver.clone(),
        recorder: engine.recorder("federator"),
        clock: management.clock.clone(),
        coalescer: engine.handle().registry().status_coalescer("federator"),
        latency: management.latency.clone(),
        contacts: management.contacts.clone(),
    };
    let [planes, all] = [(); 2].map(|()| projects.clone());
    let [of_copies, of_namespaces, of_policies, of_clusters] =
        [(); 4].map(|()| management.unresolved.clone());
    let controller = engine
        .controller("federator", projects, federator)
        .for_kind::<WorkloadDeployment>()
        .watches::<Workload>(projects, teardown::keys_of_abandoning)
        .watches::<WorkloadDeployment>(hub, move |hub, copy| of_copies.keys_of_copy(hub, copy))
        .watches::<Namespace>(hub, move |hub, namespace| {
            of_namespaces.keys_of_namespace::<WorkloadDeployment>(hub, namespace)
        })
        .watches::<PropagationPolicy>(hub, move |hub, policy| {
            keys_of_policy(&planes, &of_policies, hub, policy)
        })
        .watches::<Cluster>(hub, move |hub, cluster| keys_of_cluster(&of_clusters, hub, cluster))
        .watches_reachability(hub, move || hub_contact::all_deployments(&all))
        .external_source(keys);
    resolver.watch(controller, projects, &management.unresolved);
}

/// The metadata that a new deployment of a project is created with, so that the federator needs no further
/// write before it writes to the hub. Empty while the namespace is not cached: then the federator writes it.
pub(crate) fn initial_metadata(project: &Plane, key: &Key) -> Result<InitialMetadata, Error> {
    let namespace = project.get::<Namespace>(key.namespace())?;
    let initial = |namespace: Namespace| hub_copy::initial_metadata(&names::hub_namespace(namespace.uid()));
    Ok(namespace.map(initial).unwrap_or_default())
}

/// Deployments by their city.
pub(crate) fn by_city() -> Index {
    Index::field("spec.cityCode")
}

/// Copies the WorkloadDeployments of projects to the hub, and their status back.
struct Federator {
    projects: PlaneSet,
    hub: Plane,
    /// Copies the config maps and secrets of deployments.
    resolver: Resolver,
    recorder: EventRecorder,
    clock: Clock,
    /// Delays insignificant status updates and tracks deployments that differ from their hub copies.
    coalescer: StatusCoalescer,
    latency: PropagationLatency,
    contacts: Contacts,
}

impl Reconciler for Federator {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        self.coalescer.record_result(key, Box::pin(self.reconcile_key(key)).await)
    }
}

/// The hub namespace of a project namespace.
struct HubNamespace {
    name: String,
    tenant: Tenant,
}

impl Federator {
    async fn reconcile_key(&self, key: &Key) -> Result<Action, Error> {
        let project = self.projects.plane(key)?;
        let Some(deployment) = project.get::<WorkloadDeployment>(key)? else {
            self.resolver.end_unused_watches(&project)?;
            self.delete_unused_companion(&project, key).await?;
            return self.withdraw_unknown(&project, key).await;
        };
        if deployment.is_deleting() {
            return self.finalize(&project, key, &deployment).await;
        }
        if let Err(error) = hub_copy::check_city(&deployment) {
            return self.reject_city(&project, &deployment, &error);
        }
        let hub_namespace = self.hub_namespace(&project, key)?;
        let Some(deployment) = self.ensure_recorded(&project, deployment, &hub_namespace).await? else {
            return Ok(Action::AwaitChange);
        };
        let ensured = self.ensure_on_hub(&project, &hub_namespace, &deployment).await;
        if !self.record_refusal(&project, &deployment, ensured).await? {
            return Ok(Action::AwaitChange); // an event of the hub requeues the key
        }
        let action = self.sync_status(&project, key, &deployment, &hub_namespace).await?;
        self.delete_unused_policies(&project, key, &hub_namespace.name).await?;
        Ok(action)
    }

    fn hub_namespace(&self, project: &Plane, key: &Key) -> Result<HubNamespace, Error> {
        let namespace = project.get::<Namespace>(key.namespace())?;
        let uid = namespace.as_ref().map(|namespace| namespace.uid()).filter(|uid| !uid.is_empty());
        let not_cached = || Error::NamespaceNotCached {
            deployment: key.to_string(),
            namespace: key.namespace().to_owned(),
        };
        let name = names::hub_namespace(uid.ok_or_else(not_cached)?);
        let tenant = Tenant::new(key.plane.as_str(), key.namespace()).map_err(tenant::TenantError::from)?;
        Ok(HubNamespace { name, tenant })
    }

    /// Writes the finalizer and the hub namespace annotation in one update, before anything exists on the
    /// hub. Returns none if the annotation names another hub namespace: an operator has to check, because a
    /// copy may exist there.
    async fn ensure_recorded(
        &self,
        project: &Plane,
        deployment: WorkloadDeployment,
        hub_namespace: &HubNamespace,
    ) -> Result<Option<WorkloadDeployment>, Error> {
        match hub_copy::plan_record(&deployment, &hub_namespace.name) {
            RecordAction::None => Ok(Some(deployment)),
            RecordAction::Write(recorded) => {
                Ok(Some(project.update(&deployment, &recorded).await?.into_object().unwrap_or(deployment)))
            }
            RecordAction::Conflict { recorded } => {
                let expected = format!("is not {}, the hub namespace of the deployment", hub_namespace.name);
                self.record_conflict(project, &deployment, &recorded, &expected);
                Ok(None)
            }
        }
    }

    /// Records an event: the annotation of the deployment names a wrong hub namespace.
    fn record_conflict(&self, project: &Plane, deployment: &WorkloadDeployment, recorded: &str, why: &str) {
        let note = format!(
            "Annotation {} names hub namespace {recorded}, which {why}; nothing in it is changed. Check the objects in that namespace, then remove the annotation",
            annotations::FEDERATION_NAMESPACE
        );
        let (reason, action) = (events::RECORD_CONTRADICTED, "Federate");
        self.recorder.warn(project, deployment, reason, action, &note);
    }

    /// Ensures namespace, policy and copy. Returns false while they cannot be written.
    async fn ensure_on_hub(
        &self,
        project: &Plane,
        hub_namespace: &HubNamespace,
        deployment: &WorkloadDeployment,
    ) -> Result<bool, Error> {
        self.ensure_namespace(project, hub_namespace, deployment).await?;
        Ok(self.ensure_policy(project, hub_namespace, deployment).await?
            && self.ensure_hub_copy(project, hub_namespace, deployment).await?)
    }

    /// Reports, in an event and a condition, why the hub does not take a deployment, if an operator has to
    /// act.
    async fn record_refusal(
        &self,
        project: &Plane,
        deployment: &WorkloadDeployment,
        ensured: Result<bool, Error>,
    ) -> Result<bool, Error> {
        let refusal =
            ensured.as_ref().err().and_then(|error| Some((self.refusal(error)?, error.to_string())));
        if let Some((reason, why)) = refusal {
            self.recorder.warn(project, deployment, reason, "Federate", &why);
            let now = Time(self.clock.now());
            if let Some(status) = hub_copy::unfederated_status(deployment, reason, &why, &now) {
                project.write_status(deployment, status).await?;
            }
        }
        ensured
    }

    /// The reason of an error that lasts until an operator acts. Others, and those of a project, are only
    /// retried.
    fn refusal(&self, error: &Error) -> Option<&'static str> {
        match error {
            Error::Tenant(_) => Some(reasons::HUB_NAMESPACE_TAKEN),
            Error::NamespaceTerminating { .. } => Some(reasons::HUB_NAMESPACE_TERMINATING),
            Error::Plane(refused @ EngineError::Refused { plane, .. }) if plane == self.hub.name() => {
                let lasts = matches!(refused.class(), ErrorClass::Forbidden | ErrorClass::Invalid);
                lasts.then_some(reasons::HUB_REFUSED)
            }
            _ => None,
        }
    }

    async fn ensure_namespace(
        &self,
        project: &Plane,
        hub_namespace: &HubNamespace,
        deployment: &WorkloadDeployment,
    ) -> Result<(), Error> {
        let cached = self.hub.get::<Namespace>(&hub_namespace.name)?;
        match self.write_namespace(hub_namespace, deployment, cached.as_ref()).await {
            // The cache has only namespaces with a project label: this one exists and has none.
            Err(Error::Plane(error)) if cached.is_none() && error.is_already_exists() => {
                let found = self.hub.uncached().get::<Namespace>(&hub_namespace.name).await?;
                let written = self.write_namespace(hub_namespace, deployment, found.as_ref()).await;
                if written.is_ok() {
                    let note = format!("Hub namespace {} had no project label", hub_namespace.name);
                    let reason = events::HUB_NAMESPACE_RELABELLED;
                    self.recorder.warn(project, deployment, reason, "Federate", &note);
                }
                written
            }
            written => written,
        }
    }

    /// Creates or labels the hub namespace.
    async fn write_namespace(
        &self,
        hub_namespace: &HubNamespace,
        deployment: &WorkloadDeployment,
        existing: Option<&Namespace>,
    ) -> Result<(), Error> {
        let city = &deployment.spec.city_code;
        match tenant::plan_namespace(&hub_namespace.name, &hub_namespace.tenant, city, existing)? {
            tenant::NamespaceAction::None => {}
            tenant::NamespaceAction::Create(desired) => _ = self.hub.create(&*desired).await?,
            tenant::NamespaceAction::Relabel(desired) => match existing {
                Some(existing) => _ = self.hub.update(existing, &desired).await?,
                None => unreachable!("only an existing namespace is relabelled"),
            },
            tenant::NamespaceAction::AwaitDeletion => {
                return Err(Error::NamespaceTerminating { namespace: hub_namespace.name.clone() });
            }
        }
        Ok(())
    }

    /// Creates or updates the policy of the deployment's city as `core::policy::plan` decides. The deployment
    /// itself needs the policy, so a cached read is enough: every change of the policy requeues the key.
    /// Returns false while the policy cannot be used.
    async fn ensure_policy(
        &self,
        project: &Plane,
        hub_namespace: &HubNamespace,
        deployment: &WorkloadDeployment,
    ) -> Result<bool, Error> {
        let city = &deployment.spec.city_code;
        let desired = policy::desired(&hub_namespace.name, city);
        let current = self.hub.get::<PropagationPolicy>((hub_namespace.name.as_str(), desired.name()))?;
        let existing = current.as_ref().map(|current| policy::ExistingPolicy::of(current, &desired));
        match (policy::plan(&[policy::Referrer::of(deployment)], existing.as_ref()), current) {
            (policy::PolicyAction::Create, _) => _ = self.hub.create_missing(&desired).await?,
            (policy::PolicyAction::Update, Some(current)) => {
                self.hub.update(&current, &policy::restored(&current, &desired)).await?;
            }
            (policy::PolicyAction::AwaitDeletion, _) => return Ok(false),
            (policy::PolicyAction::CityConflict { city: other }, _) => {
                let note =
                    format!("City {city} and city {other} share the name of a policy; rename one of them");
                self.recorder.warn(project, deployment, events::CITY_CONTESTED, "Federate", &note);
                return Ok(false);
            }
            _ => {}
        }
        Ok(true)
    }

    async fn ensure_hub_copy(
        &self,
        project: &Plane,
        hub_namespace: &HubNamespace,
        deployment: &WorkloadDeployment,
    ) -> Result<bool, Error> {
        let HubNamespace { name, tenant } = hub_namespace;
        let existing = self.copy(name, deployment)?;
        let data = self.resolver.ensure(project, name, deployment, existing.as_ref()).await?;
        match (hub_copy::plan(deployment, name, tenant, &data, existing.as_ref())?, &existing) {
            (hub_copy::HubCopyAction::Create(desired), _) => _ = self.hub.create(&*desired).await?,
            (hub_copy::HubCopyAction::Update(desired), Some(existing)) => {
                _ = self.hub.update(existing, &desired).await?
            }
            (hub_copy::HubCopyAction::AwaitDeletion, _) => return Ok(false),
            _ => return Ok(true),
        }
        self.latency.reached(&deployment.spec.workload_ref.uid, Stage::Hub);
        Ok(true)
    }

    /// Copies the aggregated status from the hub to the project, and whether the cell is silent. Without a
    /// status, and if no cell serves the city, reports that instead. While the hub is unreachable,
    /// `hub_contact` reports.
    async fn sync_status(
        &self,
        project: &Plane,
        key: &Key,
        deployment: &WorkloadDeployment,
        hub_namespace: &HubNamespace,
    ) -> Result<Action, Error> {
        if let Reachability::Unreachable { .. } = self.hub.reachability() {
            return Ok(Action::AwaitChange); // its return requeues the key
        }
        let (copy, now) = (self.copy(&hub_namespace.name, deployment)?, Time(self.clock.now()));
        let contact = self.contacts.with_cell(&self.hub, deployment, copy.as_ref(), &now)?;
        let status = match copy.filter(|copy| copy.status.is_some()) {
            Some(copy) => {
                self.latency.reached(&deployment.spec.workload_ref.uid, Stage::Cell);
                hub_copy::project_status(deployment, &copy, &contact)
            }
            None if self.is_served(&deployment.spec.city_code)? => {
                hub_copy::unreported_status(deployment, &contact)
            }
            None => hub_copy::unserved_status(deployment, &now),
        };
        let Some(status) = status else {
            return Ok(match contact {
                Contact::Heard { recheck: Some(left) } => Action::RequeueAfter(left),
                _ => Action::AwaitChange,
            });
        };
        if let Some(delay) =
            self.coalescer.delay(key, significant_change::of_deployment(deployment.status.as_ref(), &status))
        {
            return Ok(Action::RequeueAfter(delay));
        }
        let cell_before = deployment.status.as_ref().and_then(|status| status.cell.clone());
        if let (Some(from), Some(to)) = (cell_before, &status.cell)
            && from != *to
        {
            let note = format!("The deployment has moved from cell {from} to cell {to}");
            self.recorder.normal(project, deployment, events::DEPLOYMENT_MOVED, "Federate", &note);
        }
        project.write_status(deployment, status).await?;
        Ok(Action::AwaitChange)
    }

    /// Whether a member of the hub has the city's label. True on a hub that does not serve Cluster.
    fn is_served(&self, city: &str) -> Result<bool, Error> {
        Ok(!self.hub.serves::<Cluster>()?
            || !self.hub.names_within::<Cluster>("", &city_guard::by_city(), city)?.is_empty())
    }

    /// Deletes the policies of cities that no deployment of the namespace names any more, for example after a
    /// deployment moved to another city. The cache decides whether an uncached check is worth the request.
    async fn delete_unused_policies(&self, project: &Plane, key: &Key, namespace: &str) -> Result<(), Error> {
        for city in self.hub.list_within::<PropagationPolicy>(namespace)?.iter().filter_map(policy::city_of) {
            let of_city = |plane: &Plane, namespace: &str| {
                plane.names_within::<WorkloadDeployment>(namespace, &by_city(), &city)
            };
            if of_city(&self.hub, namespace)?.is_empty() && of_city(project, key.namespace())?.is_empty() {
                self.delete_unused_policy(project, key, namespace, &city, None).await?;
            }
        }
        Ok(())
    }

    /// Deletes the policy of a city if an uncached read finds no deployment, apart from `leaving`.
    /// Deployments of the project that are not on the hub yet count, so that none is left without a policy.
    async fn delete_unused_policy(
        &self,
        project: &Plane,
        key: &Key,
        namespace: &str,
        city: &str,
        leaving: Option<&str>,
    ) -> Result<(), Error> {
        let of_city = ListOptions::within(namespace).labels(format!("{}={city}", labels::TOPOLOGY_CITY_CODE));
        let mut referrers = self.hub.uncached().list::<WorkloadDeployment>(&of_city).await?;
        referrers.retain(|referrer| referrer.metadata.name.as_deref() != leaving);
        let in_project = project.list_within::<WorkloadDeployment>(key.namespace())?;
        referrers.extend(in_project.into_iter().filter(|other| other.spec.city_code == city));
        let referrers: Vec<_> = referrers.iter().map(policy::Referrer::of).collect();

        let desired = policy::desired(namespace, city);
        let name = (namespace, desired.name());
        let current = self.hub.uncached().get::<PropagationPolicy>(name).await?;
        let existing = current.as_ref().map(|current| policy::ExistingPolicy::of(current, &desired));
        if let policy::PolicyAction::Delete(object) = policy::plan(&referrers, existing.as_ref()) {
            self.hub
                .delete_at::<PropagationPolicy>(name, &object.uid, Some(&object.resource_version))
                .await?;
        }
        Ok(())
    }

    fn reject_city(
        &self,
        project: &Plane,
        deployment: &WorkloadDeployment,
        why: &CityError,
    ) -> Result<Action, Error> {
        self.recorder.warn(project, deployment, events::CITY_INVALID, "Federate", &why.to_string());
        Ok(Action::AwaitChange) // only a change of the deployment can help
    }

    fn copy(
        &self,
        namespace: &str,
        deployment: &WorkloadDeployment,
    ) -> Result<Option<WorkloadDeployment>, Error> {
        Ok(self.hub.get::<WorkloadDeployment>((namespace, deployment.name()))?)
    }
}

/// Maps a policy to the deployments of its project and city. A deployment without a hub copy is included: it
/// may wait for the deletion of a terminating policy.
fn keys_of_policy(
    projects: &PlaneSet,
    unresolved: &UnresolvedObjects,
    hub: &Plane,
    policy: &PropagationPolicy,
) -> Result<Vec<Key>, Unresolved> {
    let tenant = unresolved.tenant_of(hub, policy)?;
    let name = policy.name();
    let deployments =
        projects.named(&tenant.project)?.list_within::<WorkloadDeployment>(&tenant.namespace)?;
    let served = deployments.iter().filter(|deployment| names::policy(&deployment.spec.city_code) == name);
    let key =
        |deployment: &WorkloadDeployment| Key::new(&tenant.project, &tenant.namespace, deployment.name());
    Ok(served.map(key).collect())
}

/// Maps a member cluster to the deployments of its city, which the cluster may serve now.
fn keys_of_cluster(
    unresolved: &UnresolvedObjects,
    hub: &Plane,
    cluster: &Cluster,
) -> Result<Vec<Key>, Unresolved> {
    let mut keys = Vec::new();
    for copy in hub.find::<WorkloadDeployment>(&by_city(), city_of(cluster))? {
        keys.extend(unresolved.keys_of_copy(hub, &copy)?);
    }
    Ok(keys)
}
