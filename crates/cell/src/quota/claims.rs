//! Quota claims: one ResourceClaim per instance, on the plane of the instance's project.
//!
//! The labels of the instance's namespace in the cell name the project. In projects with pending instances
//! the cell watches its own claims and, where RBAC permits it, the AllowanceBuckets. A claim event delivers
//! the decision; without that watch the claim is polled at growing intervals. A bucket event shows when a
//! denied claim is worth a retry, and for which instance.
//!
//! While the project plane does not respond, no new instance starts and running instances continue.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use polis_api::compute::{GATE_QUOTA, Instance, WorkloadDeployment};
use polis_api::conditions::QUOTA_GRANTED;
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::kube::core::response::StatusCause;
use polis_api::quota::{AllowanceBucket, ResourceClaim};
use polis_api::reasons;
use polis_api::{ObjectExt, events, labels};
use polis_core::conditions::{self, ConditionStatus, DesiredCondition};
use polis_core::quota::{
    self, ClaimAction, ClaimError, ClaimState, Headroom, PendingClaim, ResourceRefKind, SizeError,
};
use polis_core::tenant::Tenant;
use polis_core::{Time, gates};
use polis_engine::{
    Clock, Error as EngineError, ErrorClass, EventRecorder, Key, Plane, PlaneSet, Preconditions,
};

use super::pending::PendingInstances;
use crate::Error;
use crate::circuit_breaker::{CallError, CircuitBreaker};
use crate::metrics::{Metrics, UnresolvedReference};

/// Requeue delay while a claim is being created or deleted.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Message of `QuotaGranted` while the API of the projects does not respond. It is constant, so that retries
/// do not change the status.
const NO_RESPONSE: &str = "no response";

/// Creates, evaluates and deletes the quota claims of a cell's instances.
pub(crate) struct Claims {
    base: Plane,
    watched: PlaneSet,
    pending: PendingInstances,
    /// Name of the cell.
    cell: String,
    resource_ref: ResourceRefKind,
    breaker: CircuitBreaker,
    /// When this process last created a claim for an instance. The back-off after a denial starts there.
    last_attempts: Mutex<BTreeMap<Key, Time>>,
    clock: Clock,
    recorder: EventRecorder,
    metrics: Metrics,
}

/// The result of reading a claim.
struct ExistingClaim {
    claim: Option<ResourceClaim>,
    /// Whether the watch delivers changes of the claim.
    watched: bool,
}

impl Claims {
    #[allow(clippy::too_many_arguments)] // one call site
    pub(crate) fn new(
        base: Plane,
        watched: PlaneSet,
        pending: PendingInstances,
        cell: String,
        resource_ref: ResourceRefKind,
        clock: Clock,
        recorder: EventRecorder,
        metrics: Metrics,
    ) -> Self {
        let (breaker, last_attempts) = (CircuitBreaker::default(), Mutex::default());
        Self { base, watched, pending, cell, resource_ref, breaker, last_attempts, clock, recorder, metrics }
    }

    pub(crate) fn planes(&self) -> PlaneSet {
        self.watched.clone()
    }

    pub(crate) fn pending(&self) -> PendingInstances {
        self.pending.clone()
    }

    /// The plane of a project: the watched one if there is one, so that its cache includes the writes.
    fn plane(&self, project: &str) -> Plane {
        self.watched.named(project).unwrap_or_else(|_| self.base.of_project(project))
    }

    /// Returns the desired `QuotaGranted` condition and the requeue delay; no delay if an event follows.
    pub(crate) async fn evaluate(
        &self,
        cell: &Plane,
        key: &Key,
        instance: &Instance,
    ) -> (DesiredCondition, Option<Duration>) {
        if let Some(condition) = granted_before(instance) {
            self.forget(key);
            self.restore_claim(cell, key, instance).await;
            return (condition, None);
        }
        let failure = match self.ensure_claim(cell, key, instance).await {
            Ok((condition, requeue_after)) => {
                if condition.reason == reasons::QUOTA_NO_BUDGET {
                    self.metrics.quota_failed("no_budget");
                }
                return (condition, requeue_after);
            }
            Err(failure) => failure,
        };
        self.metrics.quota_failed(metric_reason(&failure));
        let requeue_after = match failure {
            // Only new labels on the namespace or a new template can help, and both are events.
            ClaimError::ProjectUnresolvable(_) | ClaimError::Size(_) => None,
            _ => Some(quota::poll_interval(instance, &Time(self.clock.now()))),
        };
        (quota::condition(ClaimState::Failed(&failure)), requeue_after)
    }

    fn desired_claim(
        &self,
        cell: &Plane,
        instance: &Instance,
        tenant: &Tenant,
    ) -> Result<ResourceClaim, SizeError> {
        let name = instance.label(labels::WORKLOAD_DEPLOYMENT_NAME).unwrap_or_default();
        let deployment = cell.get::<WorkloadDeployment>((instance.namespace(), name)).ok().flatten();
        quota::desired_claim(instance, deployment.as_ref(), tenant, &self.cell, self.resource_ref)
    }

    async fn ensure_claim(
        &self,
        cell: &Plane,
        key: &Key,
        instance: &Instance,
    ) -> Result<(DesiredCondition, Option<Duration>), ClaimError> {
        let tenant = self.tenant(cell, key)?;
        let desired = self.desired_claim(cell, instance, &tenant)?;
        self.pending.enqueue(&tenant.project, key, pending_claim(key, instance, &desired));
        let ExistingClaim { claim, watched } = self.existing_claim(&tenant, &desired).await?;
        let now = Time(self.clock.now());
        let last_attempt = self.last_attempts.lock().get(key).cloned();
        let decision = || self.pending.decide(key, &self.headroom(&tenant.project));
        let action =
            quota::plan_claim(instance, &desired, claim.as_ref(), last_attempt.as_ref(), decision, &now);
        let condition = quota::condition_after(&action, claim.as_ref());
        self.pending.set_denied(key, condition.status == ConditionStatus::False);
        let poll = (!watched).then(|| quota::poll_interval(instance, &now));
        match action {
            ClaimAction::None if condition.status == ConditionStatus::True => {
                self.forget(key);
                Ok((condition, None))
            }
            ClaimAction::None | ClaimAction::AwaitDeletion => Ok((condition, poll)),
            ClaimAction::Create => match self.create(key, &tenant, &desired, now).await? {
                Some(created) => Ok((quota::condition(ClaimState::Existing(&created)), poll)),
                None => Ok((condition, Some(RECHECK_INTERVAL))), // exists, but is not cached yet
            },
            ClaimAction::Delete(claim_ref) => {
                let created_at = claim.as_ref().and_then(|claim| claim.metadata.creation_timestamp.clone());
                self.last_attempts.lock().entry(key.clone()).or_insert(created_at.unwrap_or(now));
                let plane = self.plane(&tenant.project);
                let claim_name = (tenant.namespace.as_str(), claim_ref.name.as_str());
                let version = Some(claim_ref.resource_version.as_str());
                let delete = plane.delete_at::<ResourceClaim>(claim_name, &claim_ref.uid, version);
                self.call(&tenant, delete).await?;
                Ok((condition, Some(RECHECK_INTERVAL)))
            }
            ClaimAction::WaitInQueue(at) => {
                // The back-off starts at the creation of the instance.
                let created_at = instance.metadata.creation_timestamp.clone().unwrap_or(now.clone());
                self.last_attempts.lock().entry(key.clone()).or_insert(created_at);
                Ok((condition, Some(until(&at, &now))))
            }
            ClaimAction::RetryAt(at) => Ok((condition, Some(until(&at, &now)))),
            ClaimAction::Foreign(_) => Ok((condition, Some(quota::poll_interval(instance, &now)))),
        }
    }

    /// Creates the claim of a running instance again if it was deleted, so that the instance counts against
    /// the quota. The deletion is noticed only while the project is watched for other reasons. The instance
    /// keeps running if the claim cannot be created.
    async fn restore_claim(&self, cell: &Plane, key: &Key, instance: &Instance) {
        let Ok(tenant) = self.tenant(cell, key) else { return };
        let Ok(desired) = self.desired_claim(cell, instance, &tenant) else {
            return;
        };
        let claim_name = (tenant.namespace.as_str(), desired.name());
        let Ok(watched) = self.watched.named(&tenant.project) else { return };
        let missing = watched.serves::<ResourceClaim>().unwrap_or(false)
            && matches!(watched.get::<ResourceClaim>(claim_name), Ok(None));
        if !missing {
            return;
        }
        let plane = self.plane(&tenant.project);
        let deleted =
            matches!(self.call(&tenant, plane.uncached().get::<ResourceClaim>(claim_name)).await, Ok(None));
        if !deleted {
            return;
        }
        match self.breaker.call(&tenant.project, plane.create(&desired)).await {
            Err(CallError::Failed(error)) if error.is_already_exists() || is_terminating(&error) => {
                tracing::debug!(%key, %error, "the claim of a running instance was deleted with its namespace or project");
            }
            Err(CallError::Failed(error)) => {
                tracing::warn!(%key, %error, "failed to recreate the deleted claim of a running instance");
            }
            Err(CallError::Unavailable { .. }) | Ok(_) => {} // `call` has logged the failure
        }
    }

    /// The unallocated quota of the project, from its cached buckets.
    fn headroom(&self, project: &str) -> Headroom {
        let buckets = self.watched.named(project).and_then(|plane| plane.list::<AllowanceBucket>());
        Headroom::of(project, &buckets.unwrap_or_default())
    }

    /// Creates the claim. Returns none if a claim of that name exists.
    async fn create(
        &self,
        key: &Key,
        tenant: &Tenant,
        desired: &ResourceClaim,
        now: Time,
    ) -> Result<Option<ResourceClaim>, ClaimError> {
        let plane = self.plane(&tenant.project);
        match self.breaker.call(&tenant.project, plane.create(desired)).await {
            Ok(created) => {
                self.last_attempts.lock().insert(key.clone(), now);
                Ok(Some(created))
            }
            Err(CallError::Failed(error)) if error.is_already_exists() => Ok(None),
            Err(CallError::Failed(error)) => Err(create_error(&error, tenant)),
            Err(error) => Err(unavailable(error)),
        }
    }

    /// Reads the claim from the cache, or uncached if the cache does not have it.
    async fn existing_claim(
        &self,
        tenant: &Tenant,
        desired: &ResourceClaim,
    ) -> Result<ExistingClaim, ClaimError> {
        let claim_name = (tenant.namespace.as_str(), desired.name());
        let plane = self.watched.named(&tenant.project).ok();
        let watched = plane.as_ref().is_some_and(|plane| plane.serves::<ResourceClaim>().unwrap_or(false));
        if let Some(plane) = plane.filter(|_| watched)
            && let Ok(Some(claim)) = plane.get::<ResourceClaim>(claim_name)
        {
            return Ok(ExistingClaim { claim: Some(claim), watched });
        }
        let plane = self.plane(&tenant.project);
        let claim = self.call(tenant, plane.uncached().get::<ResourceClaim>(claim_name)).await?;
        Ok(ExistingClaim { claim, watched })
    }

    /// Deletes the claim of an instance that is being deleted. Returns the requeue delay, or none once the
    /// claim is gone or its project cannot be resolved.
    pub(crate) async fn release(
        &self,
        cell: &Plane,
        key: &Key,
        instance: &Instance,
    ) -> Result<Option<Duration>, Error> {
        let tenant = match self.tenant(cell, key) {
            Ok(tenant) => tenant,
            Err(failure) => {
                super::record_orphaned(&self.recorder, &self.metrics, cell, instance, &failure.to_string());
                return Ok(None);
            }
        };
        let Ok(desired) = self.desired_claim(cell, instance, &tenant) else {
            return Ok(None); // an instance of invalid size never had a claim
        };
        let error = match self.delete_claim(&tenant, &desired).await {
            Ok(gone) => return Ok((!gone).then_some(RECHECK_INTERVAL)),
            Err(error) => error,
        };
        let note = format!(
            "Deletion of the instance waits until its quota claim in project {} can be deleted",
            tenant.project
        );
        self.recorder.warn(cell, instance, events::QUOTA_UNREACHABLE, "Claim", &note);
        match error {
            CallError::Unavailable { retry_after, .. } => Ok(Some(retry_after)),
            CallError::Failed(source) => Err(Error::Claim { instance: key.to_string(), source }),
        }
    }

    /// Returns true once the claim is gone, or if another cell owns it.
    async fn delete_claim(&self, tenant: &Tenant, desired: &ResourceClaim) -> Result<bool, CallError> {
        let plane = self.plane(&tenant.project);
        let claim_name = (tenant.namespace.as_str(), desired.name());
        let existing =
            self.breaker.call(&tenant.project, plane.uncached().get::<ResourceClaim>(claim_name)).await?;
        let Some(claim) = existing.filter(|claim| quota::is_from_same_cell(claim, desired)) else {
            return Ok(true);
        };
        if !claim.is_deleting() {
            self.breaker.call(&tenant.project, plane.delete(&claim, Preconditions::Uid)).await?;
        }
        Ok(claim.metadata.finalizers.is_none_or(|finalizers| finalizers.is_empty()))
    }

    /// Drops the state of an instance that waits for no claim any more.
    pub(crate) fn forget(&self, key: &Key) {
        self.pending.remove(key);
        self.last_attempts.lock().remove(key);
        self.metrics.remove_unresolved(UnresolvedReference::Project, key);
    }

    /// The project and namespace of the instance, from the labels of its namespace in the cell.
    fn tenant(&self, cell: &Plane, key: &Key) -> Result<Tenant, ClaimError> {
        let unresolvable = |why: String| {
            if self.metrics.add_unresolved(UnresolvedReference::Project, key) {
                tracing::error!(%key, %why, "failed to resolve the project of the instance; it cannot claim quota");
            }
            ClaimError::ProjectUnresolvable(why)
        };
        let namespace =
            cell.get::<Namespace>(key.namespace()).map_err(|error| unresolvable(error.to_string()))?;
        let namespace = namespace
            .ok_or_else(|| unresolvable(format!("namespace {} is not in the cache", key.namespace())))?;
        let tenant = Tenant::of(&namespace).map_err(|error| unresolvable(error.to_string()))?;
        self.metrics.remove_unresolved(UnresolvedReference::Project, key);
        Ok(tenant)
    }

    async fn call<T>(
        &self,
        tenant: &Tenant,
        request: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, ClaimError> {
        self.breaker.call(&tenant.project, request).await.map_err(unavailable)
    }
}

/// The condition of an instance that was granted quota earlier. Quota is checked once, before the instance
/// starts: after the gate is removed, a lowered quota or a deleted claim does not stop the instance.
fn granted_before(instance: &Instance) -> Option<DesiredCondition> {
    let granted = conditions::find(&instance.status.as_ref()?.conditions, QUOTA_GRANTED)?;
    let by_claim = granted.status == "True" && granted.reason == reasons::QUOTA_AVAILABLE;
    (by_claim && !gates::has(instance, GATE_QUOTA))
        .then(|| DesiredCondition::new_true(QUOTA_GRANTED, reasons::QUOTA_AVAILABLE, granted.message.clone()))
}

/// Time from `now` to `at`.
fn until(at: &Time, now: &Time) -> Duration {
    Duration::try_from(at.0.duration_since(now.0)).unwrap_or(RECHECK_INTERVAL)
}

/// The entry of an instance in the queue of its project.
fn pending_claim(key: &Key, instance: &Instance, desired: &ResourceClaim) -> PendingClaim {
    let status = instance.status.as_ref();
    PendingClaim {
        created: instance.metadata.creation_timestamp.clone(),
        name: format!("{}/{}", key.namespace(), key.name),
        requests: desired.spec.requests.clone(),
        denied: status.is_some_and(|status| conditions::is_false(&status.conditions, QUOTA_GRANTED)),
    }
}

fn unavailable(error: CallError) -> ClaimError {
    match error {
        CallError::Unavailable { cause, .. } => {
            if let Some(cause) = cause {
                tracing::warn!(%cause, "the API of the projects does not respond; new instances wait for quota");
            }
            ClaimError::BackendUnavailable(NO_RESPONSE.into())
        }
        CallError::Failed(error) => ClaimError::BackendUnavailable(error.to_string()),
    }
}

/// Whether the error shows that the project, or the namespace in it, is deleted or being deleted. Its claims
/// are deleted with it, and the instances follow.
fn is_terminating(error: &EngineError) -> bool {
    let terminating = |cause: &StatusCause| cause.reason == "NamespaceTerminating";
    match error {
        EngineError::Refused { status, .. } => {
            error.is_not_found()
                || status.details.as_ref().is_some_and(|details| details.causes.iter().any(terminating))
        }
        _ => false,
    }
}

fn create_error(error: &EngineError, tenant: &Tenant) -> ClaimError {
    let kind = match error {
        EngineError::Refused { status, .. } => status.details.as_ref().map(|details| details.kind.as_str()),
        _ => None,
    };
    match (error.class(), kind) {
        (ErrorClass::NotFound, Some("namespaces" | "Namespace" | "namespace")) => {
            ClaimError::NamespaceNotFound(tenant.namespace.clone())
        }
        (ErrorClass::NotFound, _) => ClaimError::ProjectNotFound(tenant.project.clone()),
        (ErrorClass::Forbidden | ErrorClass::Invalid, _) => ClaimError::Misconfigured(error.to_string()),
        _ => ClaimError::BackendUnavailable(error.to_string()),
    }
}

/// The value of label `reason` in metrics.
fn metric_reason(failure: &ClaimError) -> &'static str {
    match failure {
        ClaimError::BackendUnavailable(_) => "backend_unavailable",
        ClaimError::ProjectNotFound(_) => "project_not_found",
        ClaimError::NamespaceNotFound(_) => "namespace_not_found",
        ClaimError::Misconfigured(_) => "misconfigured",
        ClaimError::ProjectUnresolvable(_) => "project_id_unresolvable",
        ClaimError::Size(_) => "size_invalid",
        ClaimError::OtherCell { .. } => "other_cell",
    }
}

#[cfg(test)]
mod tests {
    use polis_api::kube::core::Status;
    use polis_api::kube::core::response::StatusDetails;

    use super::*;

    fn mk_api_error(code: u16, reason: &str, cause: Option<&str>) -> EngineError {
        let cause = cause.map(|reason| StatusCause {
            reason: reason.into(),
            message: String::new(),
            field: String::new(),
        });
        let details = StatusDetails {
            name: "instance-web-0".into(),
            group: "quota.miloapis.com".into(),
            kind: "resourceclaims".into(),
            uid: String::new(),
            causes: cause.into_iter().collect(),
            retry_after_seconds: 0,
        };
        let status = Status { code, reason: reason.into(), details: Some(details), ..Status::default() };
        EngineError::Refused { plane: "acme".into(), action: "create".into(), status: Box::new(status) }
    }

    #[test]
    fn every_error_has_a_reason_that_is_initialised_in_metrics() {
        let named = |name: &str| name.to_owned();
        for failure in [
            ClaimError::BackendUnavailable(named("acme")),
            ClaimError::ProjectNotFound(named("acme")),
            ClaimError::NamespaceNotFound(named("shop")),
            ClaimError::Misconfigured(named("so")),
            ClaimError::ProjectUnresolvable(named("so")),
            ClaimError::OtherCell { claim: named("web"), cell: named("ord") },
        ] {
            assert!(crate::metrics::QUOTA_REASONS.contains(&metric_reason(&failure)), "{failure}");
        }
    }

    #[test]
    fn errors_of_a_terminating_project_or_namespace_are_recognised() {
        for (code, reason, cause, terminating) in [
            (404, "NotFound", None, true),
            (403, "Forbidden", Some("NamespaceTerminating"), true),
            (403, "Forbidden", None, false),
            (422, "Invalid", Some("FieldValueInvalid"), false),
        ] {
            assert_eq!(is_terminating(&mk_api_error(code, reason, cause)), terminating, "{code} {cause:?}");
        }
    }
}
