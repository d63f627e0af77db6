//! Write-back: copies the instances of a cell to the hub.
//!
//! The decision to write uses the cached hub copies and makes no request. An existing copy names its owner
//! and project, which were read from the hub when the copy was created. A missing copy is created only after
//! an uncached read of the hub's WorkloadDeployment, so that an instance of a deleted deployment is never
//! recreated on the hub. The labels of the hub namespace alone determine the project.
//!
//! The cell has rights only in the hub namespaces where its city has deployments, and watches only those in
//! which it has instances. The hub withdraws the rights in a namespace when no copy of the city is left there
//! (see [`cell_access`]).

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::{ObjectExt, events, labels};
use polis_core::mirror::{CopyAction, InstanceChanges};
use polis_core::tenant::Tenant;
use polis_core::writeback::{self, WriteBackRefusal};
use polis_core::{cell_access, owner};
use polis_engine::{Engine, ErrorClass, EventRecorder, Key, Plane, PlaneSet, StatusCoalescer, Watch};
use tokio::time::{Instant, timeout_at};

use crate::Error;
use crate::circuit_breaker::{CallError, CircuitBreaker};
use crate::hub_namespaces::{HubNamespaces, WatchedNamespaces};
use crate::metrics::{Metrics, UNREACHABLE, UnresolvedReference};

/// Requeue delay for a state that only a change of an unwatched hub object can resolve.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Requeue delay after a transient error of the hub.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// How long the first reconciles of a new namespace wait until its copies are in the cache. After that they
/// read the copy uncached.
const ENGAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// Creates, updates and deletes the hub copies of a cell's instances.
pub(crate) struct WriteBack {
    /// The hub, without a cache.
    hub: Plane,
    namespaces: HubNamespaces,
    /// The watched namespaces of the hub: the copies of this cell there.
    watched: PlaneSet,
    /// Name of the cell.
    cell: String,
    breaker: CircuitBreaker,
    recorder: EventRecorder,
    metrics: Metrics,
    /// Since when the hub has had no deployment for an instance.
    unknown: Mutex<BTreeMap<Key, Instant>>,
    /// Delays insignificant status updates and tracks instances that differ from their copies.
    coalescer: StatusCoalescer,
}

/// State of the hub copy of an instance after a reconcile.
enum CopyState {
    /// Up to date, or an event follows that continues the work.
    UpToDate,
    /// Out of date for this time: the change is not significant and is coalesced with later ones.
    Delayed(Duration),
    /// Not on the hub: the hub has no deployment for it, or the copy of another cell has the name.
    Withheld,
    /// Not on the hub: an uncached read of the hub finds no deployment for it.
    Unknown,
    /// Not on the hub, until an operator resolves the reference.
    Unresolved(UnresolvedReference, String),
}

/// The tenant and the owner of a copy on the hub.
struct CopyTarget {
    tenant: Tenant,
    owner: WorkloadDeployment,
}

impl WriteBack {
    /// Declares the watched namespaces of the hub on an engine.
    pub(crate) fn declare(engine: &mut Engine, hub: Plane, cell: String, metrics: Metrics) -> Self {
        let namespaces = HubNamespaces::default();
        let provider = WatchedNamespaces { namespaces: namespaces.clone(), hub: hub.clone() };
        let copies = Watch::of::<Instance>().labels(format!("{}={cell}", labels::SOURCE_CLUSTER));
        Self {
            hub,
            namespaces,
            watched: engine.planes("hub-namespaces", provider, [copies]),
            cell,
            breaker: CircuitBreaker::default(),
            recorder: engine.recorder("instance"),
            metrics,
            unknown: Mutex::default(),
            coalescer: engine.handle().registry().status_coalescer("instance"),
        }
    }

    /// The watched namespaces of the hub.
    pub(crate) fn planes(&self) -> PlaneSet {
        self.watched.clone()
    }

    /// Creates or updates the copy of an instance. Returns the requeue delay; none if an event follows.
    pub(crate) async fn sync(
        &self,
        cell: &Plane,
        key: &Key,
        instance: &Instance,
    ) -> Result<Option<Duration>, Error> {
        let watched = self.watched(key).await;
        let state = match self.try_sync(watched.as_ref(), key, instance).await {
            Err(CallError::Failed(error)) if error.class() == ErrorClass::Forbidden => {
                match self.is_withdrawn(key, instance).await {
                    Ok(true) => Ok(CopyState::Unknown),
                    Ok(false) => Err(CallError::Failed(error)),
                    Err(error) => Err(error),
                }
            }
            state => state,
        };
        match state {
            Ok(CopyState::UpToDate) => {
                self.clear(key);
                // Without the watch no event shows a change of the copy.
                Ok(watched.is_none().then_some(RETRY_INTERVAL))
            }
            Ok(CopyState::Delayed(left)) => Ok(Some(left)),
            Ok(CopyState::Withheld) => Ok(Some(RECHECK_INTERVAL)),
            Ok(CopyState::Unknown) => {
                self.record_unknown(cell, key, instance);
                Ok(Some(RECHECK_INTERVAL))
            }
            Ok(CopyState::Unresolved(reference, why)) => {
                if self.metrics.add_unresolved(reference, key) {
                    tracing::error!(%key, %why, "failed to copy the instance to the hub; it is not visible in its project");
                    self.recorder.warn(cell, instance, events::NOT_SHOWN_ON_HUB, "WriteBack", &why);
                }
                Ok(Some(RECHECK_INTERVAL))
            }
            Err(error) => {
                self.coalescer.mark_stale(key);
                self.handle_error(cell, key, instance, error)
            }
        }
    }

    /// Deletes the copy of an instance. Returns the requeue delay, or none once the copy is gone.
    pub(crate) async fn delete_copy(
        &self,
        cell: &Plane,
        key: &Key,
        instance: &Instance,
    ) -> Result<Option<Duration>, Error> {
        let error = match self.try_delete_copy(key, instance).await {
            Ok(gone) => return Ok((!gone).then_some(RETRY_INTERVAL)),
            Err(error) => error,
        };
        if let CallError::Unavailable { .. } = error {
            let note = "Deletion of the instance waits until its copy on the hub can be deleted; the hub does not respond";
            self.recorder.warn(cell, instance, events::HUB_UNREACHABLE, "Withdraw", note);
        }
        self.handle_error(cell, key, instance, error)
    }

    /// Drops the state of a deleted instance.
    pub(crate) fn forget(&self, key: &Key) {
        self.clear(key);
        self.namespaces.remove(key);
    }

    /// Marks the copy as current and its references as resolved.
    fn clear(&self, key: &Key) {
        self.coalescer.mark_current(key);
        self.metrics.remove_unresolved(UnresolvedReference::Origin, key);
        self.metrics.remove_unresolved(UnresolvedReference::Copy, key);
        if self.unknown.lock().remove(key).is_some() {
            self.metrics.remove_unresolved(UnresolvedReference::Deployment, key);
        }
    }

    /// Reports an instance that runs while the hub has no deployment for it, once that has lasted: a
    /// deployment that is being deleted disappears on the hub shortly before it does here. The instance keeps
    /// running: the hub may have lost the deployment, which is no evidence that its project has deleted it.
    fn record_unknown(&self, cell: &Plane, key: &Key, instance: &Instance) {
        let since = *self.unknown.lock().entry(key.clone()).or_insert_with(Instant::now);
        if since.elapsed() >= RECHECK_INTERVAL
            && self.metrics.add_unresolved(UnresolvedReference::Deployment, key)
        {
            tracing::error!(%key, "the hub has no deployment for a running instance; it is not visible in its project");
            let note = "The hub has no deployment for this instance, so it is not visible in its project. It keeps running. If its project has deleted it, delete the deployment in the cell";
            self.recorder.warn(cell, instance, events::UNKNOWN_ON_HUB, "WriteBack", note);
        }
    }

    /// The hub namespace of an instance with its copies in the cache. None while it is not watched: the hub
    /// does not respond, or forbids it.
    async fn watched(&self, key: &Key) -> Option<Plane> {
        let since = self.namespaces.add(key);
        if let Ok(namespace) = self.watched.named(key.namespace()) {
            return Some(namespace);
        }
        if self.breaker.is_open(self.hub.name().as_str()) {
            return None;
        }
        let engaged = self.watched.wait_until_engaged(key.namespace());
        timeout_at(since + ENGAGE_TIMEOUT, engaged).await.ok()
    }

    async fn try_sync(
        &self,
        watched: Option<&Plane>,
        key: &Key,
        instance: &Instance,
    ) -> Result<CopyState, CallError> {
        let deployment = match writeback::deployment_name(instance) {
            Ok(name) => name,
            Err(missing) => {
                return Ok(CopyState::Unresolved(UnresolvedReference::Origin, missing.to_string()));
            }
        };
        let hub = watched.unwrap_or(&self.hub);
        let mut copy = match watched {
            Some(watched) => watched.get::<Instance>(key).map_err(CallError::Failed)?,
            None => self.uncached_copy(key).await?,
        };
        let target = match copy.as_ref().and_then(|copy| CopyTarget::from_copy(copy, deployment)) {
            Some(target) => target,
            None => match self.target(key, deployment).await? {
                Ok(target) => target,
                Err(state) => return Ok(state),
            },
        };
        loop {
            let plan =
                writeback::plan(instance, &target.tenant, &self.cell, Some(&target.owner), copy.as_ref());
            let changes = match plan {
                Ok(CopyAction::Write(changes)) => changes,
                Ok(CopyAction::None | CopyAction::AwaitDeletion) => return Ok(CopyState::UpToDate),
                Err(WriteBackRefusal::MissingLabel(missing)) => {
                    return Ok(CopyState::Unresolved(UnresolvedReference::Origin, missing.to_string()));
                }
                Err(WriteBackRefusal::NoOwner | WriteBackRefusal::OtherCell { .. }) => {
                    return Ok(CopyState::Withheld);
                }
                Err(WriteBackRefusal::Foreign { controller }) => {
                    return Ok(name_taken(&target, copy.as_ref(), controller.as_deref()));
                }
            };
            if let Some(left) = self.coalescer.delay(key, changes.significant) {
                return Ok(CopyState::Delayed(left));
            }
            let InstanceChanges { object, status, .. } = changes;
            let status = status.map(|status| *status);
            let write = hub.write_copy(copy.as_ref(), object.as_deref(), status);
            match self.breaker.call(self.hub.name(), write).await {
                Ok(_) => return Ok(CopyState::UpToDate),
                // The cache holds only copies that are labelled with this cell.
                Err(CallError::Failed(error)) if error.is_already_exists() && copy.is_none() => {
                    copy = self.uncached_copy(key).await?;
                    if copy.is_none() {
                        return Err(CallError::Failed(error));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads the target of a deployment's copies from the hub, uncached.
    async fn target(&self, key: &Key, deployment: &str) -> Result<Result<CopyTarget, CopyState>, CallError> {
        let (hub, name) = (&self.hub, (key.namespace(), deployment));
        let owner = self.breaker.call(hub.name(), hub.uncached().get::<WorkloadDeployment>(name)).await?;
        let Some(owner) = owner else { return Ok(Err(CopyState::Unknown)) };
        if owner.is_deleting() {
            return Ok(Err(CopyState::Withheld));
        }
        let Some(namespace) = self.hub_namespace(key).await? else {
            return Ok(Err(CopyState::Withheld));
        };
        let target = Tenant::of(&namespace).map(|tenant| CopyTarget { tenant, owner });
        Ok(target.map_err(|error| CopyState::Unresolved(UnresolvedReference::Origin, error.to_string())))
    }

    /// Returns true once the copy is gone, or if it is not a copy of this instance.
    async fn try_delete_copy(&self, key: &Key, instance: &Instance) -> Result<bool, CallError> {
        let watched = self.watched(key).await;
        let cached = watched.as_ref().map(|watched| watched.get::<Instance>(key)).transpose();
        let copy = match cached.map_err(CallError::Failed)?.flatten() {
            Some(copy) => Ok(Some(copy)),
            None => self.uncached_copy(key).await,
        };
        let deleted = match copy.map(|copy| copy.filter(|it| writeback::is_copy_of(it, instance, &self.cell)))
        {
            Ok(None) => return Ok(true),
            Ok(Some(copy)) => {
                let hub = watched.as_ref().unwrap_or(&self.hub);
                self.breaker.call(self.hub.name(), hub.delete_copy(&copy)).await
            }
            Err(error) => Err(error),
        };
        match deleted {
            Err(CallError::Failed(error)) if error.class() == ErrorClass::Forbidden => {
                match self.is_withdrawn(key, instance).await? {
                    true => Ok(true),
                    false => Err(CallError::Failed(error)),
                }
            }
            deleted => deleted,
        }
    }

    /// Whether the hub has withdrawn the cell's rights in the namespace of the instance: then it has neither
    /// a deployment nor a copy of the city there.
    async fn is_withdrawn(&self, key: &Key, instance: &Instance) -> Result<bool, CallError> {
        let city = instance.label(labels::CITY_CODE).unwrap_or_default();
        Ok(cell_access::is_withdrawn(self.hub_namespace(key).await?.as_ref(), city))
    }

    async fn uncached_copy(&self, key: &Key) -> Result<Option<Instance>, CallError> {
        self.breaker.call(self.hub.name(), self.hub.uncached().get::<Instance>(key)).await
    }

    async fn hub_namespace(&self, key: &Key) -> Result<Option<Namespace>, CallError> {
        self.breaker.call(self.hub.name(), self.hub.uncached().get::<Namespace>(key.namespace())).await
    }

    /// Handles a failed request: returns a requeue delay if the hub is unavailable, else an error, which the
    /// engine retries with back-off. The reconcile of the cell's own objects is complete in both cases.
    fn handle_error(
        &self,
        cell: &Plane,
        key: &Key,
        instance: &Instance,
        error: CallError,
    ) -> Result<Option<Duration>, Error> {
        let error = match error {
            CallError::Unavailable { retry_after, cause, .. } => {
                if let Some(cause) = cause {
                    self.metrics.hub_failed(UNREACHABLE);
                    tracing::warn!(%cause, "the hub does not respond; the cell continues without it");
                }
                return Ok(Some(retry_after));
            }
            CallError::Failed(error) => error,
        };
        self.metrics.hub_failed(error.class().as_str());
        match error.class() {
            ErrorClass::Transient => {
                tracing::warn!(%key, %error, "failed to write to the hub; retrying");
                return Ok(Some(RETRY_INTERVAL));
            }
            ErrorClass::Conflict | ErrorClass::AlreadyExists | ErrorClass::NotFound => {}
            _ => {
                let note = format!("The hub rejects the copy of this instance: {error}");
                self.recorder.warn(cell, instance, events::HUB_REFUSED, "WriteBack", &note);
            }
        }
        Err(Error::WriteBack { instance: key.to_string(), source: error })
    }
}

/// The hub's garbage collector deletes the copy of an earlier deployment of the same name. Any other Instance
/// blocks the name.
fn name_taken(target: &CopyTarget, copy: Option<&Instance>, controller: Option<&str>) -> CopyState {
    let earlier = copy
        .and_then(|copy| owner::controller(&copy.metadata))
        .is_some_and(|owner| owner.kind == "WorkloadDeployment" && owner.name == target.owner.name());
    if earlier {
        return CopyState::Withheld;
    }
    let holder = controller.map_or_else(
        || "an Instance without a controller that was not created for this deployment".to_owned(),
        |controller| format!("an Instance of {controller}"),
    );
    let why = format!("failed to copy the instance to the hub: its name is taken by {holder}");
    CopyState::Unresolved(UnresolvedReference::Copy, why)
}

impl CopyTarget {
    /// Reads the target from the labels and owner reference of an existing copy; none if one of them is
    /// missing.
    fn from_copy(copy: &Instance, deployment: &str) -> Option<Self> {
        let meta = &copy.metadata;
        let controller = owner::controller(meta)
            .filter(|owner| owner.kind == "WorkloadDeployment" && owner.name == deployment)?;
        let owner = ObjectMeta {
            name: Some(controller.name.clone()),
            namespace: meta.namespace.clone(),
            uid: Some(controller.uid.clone()),
            ..ObjectMeta::default()
        };
        let labels =
            ObjectMeta { name: meta.namespace.clone(), labels: meta.labels.clone(), ..ObjectMeta::default() };
        let tenant = Tenant::of(&Namespace { metadata: labels, ..Namespace::default() }).ok()?;
        Some(CopyTarget {
            tenant,
            owner: WorkloadDeployment { metadata: owner, ..WorkloadDeployment::default() },
        })
    }
}
