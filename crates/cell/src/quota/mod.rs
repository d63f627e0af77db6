//! Quota enforcement: an instance starts only after its project grants the resources it needs.
//!
//! With enforcement enabled, every instance creates a ResourceClaim on its project's plane and starts once
//! the claim is granted. With enforcement disabled, every instance is admitted without a claim. The start-up
//! log reports that at level error, because unlimited use may be unintended.

mod claims;
mod pending;

use std::time::Duration;

use polis_api::compute::Instance;
use polis_api::labels;
use polis_api::quota::{AllowanceBucket, ResourceClaim};
use polis_api::{ObjectExt, events};
use polis_core::conditions::DesiredCondition;
use polis_core::quota::{self, ClaimState, Headroom, ResourceRefKind};
use polis_engine::{Clock, Engine, EventRecorder, Key, Plane, PlaneName, PlaneSet, Unresolved, Watch};

use crate::Error;
use crate::metrics::Metrics;
use claims::Claims;
use pending::{PendingInstances, PendingProjects};

/// Where and how a cell claims quota.
#[derive(Clone, Debug)]
pub struct QuotaConfig {
    /// The API server that serves the planes of all projects, each under its own path.
    pub projects: Plane,
    /// The kind that `resourceRef` of a claim names.
    pub resource_ref: ResourceRefKind,
}

/// Whether instances need a quota grant to start.
pub(crate) enum QuotaEnforcement {
    /// Every instance is admitted.
    Disabled { recorder: EventRecorder, metrics: Metrics },
    /// Every instance needs a granted claim on its project's plane.
    Enabled(Box<Claims>),
}

impl QuotaEnforcement {
    /// Declares the planes that enforcement reads and writes, if it is enabled.
    pub(crate) fn declare(
        engine: &mut Engine,
        quota: Option<QuotaConfig>,
        cell: &str,
        clock: &Clock,
        metrics: &Metrics,
    ) -> Self {
        metrics.quota_enforced(quota.is_some());
        let (recorder, metrics) = (engine.recorder("instance"), metrics.clone());
        let Some(quota) = quota else {
            tracing::error!(
                "quota enforcement is disabled: every instance is admitted without a claim; configure the API of the projects to enable it"
            );
            return QuotaEnforcement::Disabled { recorder, metrics };
        };
        let base = engine.plane("quota", quota.projects, []).with_role("project");
        let pending = PendingInstances::default();
        let provider = PendingProjects { pending: pending.clone(), base: base.clone() };
        let ours = format!("{}={cell}", labels::SOURCE_CLUSTER);
        let watches =
            [Watch::of::<ResourceClaim>().labels(ours), Watch::of::<AllowanceBucket>().if_allowed()];
        let watched = engine.planes("claims", provider, watches);
        let (cell, resource_ref) = (cell.to_owned(), quota.resource_ref);
        let clock = clock.clone();
        QuotaEnforcement::Enabled(Box::new(Claims::new(
            base,
            watched,
            pending,
            cell,
            resource_ref,
            clock,
            recorder,
            metrics,
        )))
    }

    /// Whether instances claim quota.
    pub(crate) fn is_enabled(&self) -> bool {
        matches!(self, QuotaEnforcement::Enabled(_))
    }

    /// The watched project planes and the pending instances; none if enforcement is disabled.
    pub(crate) fn watched(&self) -> Option<(PlaneSet, PendingInstances)> {
        match self {
            QuotaEnforcement::Disabled { .. } => None,
            QuotaEnforcement::Enabled(claims) => Some((claims.planes(), claims.pending())),
        }
    }

    /// Returns the desired `QuotaGranted` condition and the requeue delay; no delay if an event follows. A
    /// failure is also reported as a condition.
    pub(crate) async fn evaluate(
        &self,
        cell: &Plane,
        key: &Key,
        instance: &Instance,
    ) -> (DesiredCondition, Option<Duration>) {
        match self {
            QuotaEnforcement::Disabled { .. } => (quota::condition(ClaimState::Disabled), None),
            QuotaEnforcement::Enabled(claims) => claims.evaluate(cell, key, instance).await,
        }
    }

    /// Deletes the claim of an instance that is being deleted. Returns the requeue delay, or none once the
    /// claim is gone or its project cannot be resolved.
    pub(crate) async fn release_claim(
        &self,
        cell: &Plane,
        key: &Key,
        instance: &Instance,
    ) -> Result<Option<Duration>, Error> {
        match self {
            QuotaEnforcement::Enabled(claims) => claims.release(cell, key, instance).await,
            QuotaEnforcement::Disabled { recorder, metrics } => {
                record_orphaned(recorder, metrics, cell, instance, "quota enforcement was disabled");
                Ok(None)
            }
        }
    }

    /// Drops the state of a deleted instance.
    pub(crate) fn forget(&self, key: &Key) {
        if let QuotaEnforcement::Enabled(claims) = self {
            claims.forget(key);
        }
    }
}

/// Reports an instance that is deleted without its claim, because the claim cannot be found.
fn record_orphaned(
    recorder: &EventRecorder,
    metrics: &Metrics,
    cell: &Plane,
    instance: &Instance,
    why: &str,
) {
    metrics.claim_orphaned();
    let note = format!(
        "The instance is deleted without its quota claim, which stays in the project if it exists: {why}"
    );
    tracing::error!(instance = instance.name(), %why, "quota claim record_orphaned");
    recorder.warn(cell, instance, events::QUOTA_CLAIM_ORPHANED, "Claim", &note);
}

/// Maps an AllowanceBucket to the denied instances of its project that fit into the headroom.
pub(crate) fn keys_of_bucket(
    pending: &PendingInstances,
    project: &Plane,
    _: &AllowanceBucket,
) -> Result<Vec<Key>, Unresolved> {
    let name = project.name().as_str();
    Ok(pending.admissible(name, &Headroom::of(name, &project.list::<AllowanceBucket>()?)))
}

/// Maps a claim to its instance. A claim without the label or name prefix maps to nothing.
pub(crate) fn key_of_claim(cell: &PlaneName, claim: &ResourceClaim) -> Vec<Key> {
    let namespace = claim.label(labels::INSTANCE_NAMESPACE);
    let name = claim.name().strip_prefix("instance-");
    namespace.zip(name).map(|(namespace, name)| Key::new(cell.clone(), namespace, name)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use polis_api::names;
    use polis_core::metadata;

    use super::*;

    #[test]
    fn a_claim_is_mapped_to_its_instance() {
        let cell = PlaneName::from("cell");
        let mut claim = ResourceClaim::default();
        claim.metadata.name = Some(names::resource_claim("web-0"));
        assert!(key_of_claim(&cell, &claim).is_empty());
        claim.metadata.labels = Some(metadata::map([(labels::INSTANCE_NAMESPACE, "ns-1")]));
        assert_eq!(key_of_claim(&cell, &claim), [Key::new("cell", "ns-1", "web-0")]);
        claim.metadata.name = Some("by-hand".into());
        assert!(key_of_claim(&cell, &claim).is_empty());
    }
}
