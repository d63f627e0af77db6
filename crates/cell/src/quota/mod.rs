//! Quota: what a project allows, asked for each instance.
//!
//! Where quota is kept, every instance claims what it needs in its project's own plane and starts once the claim is
//! granted. Where it is not, every instance is let in, and that is said loudly: nobody should find out from the bill.

mod claims;
mod links;
mod waiting;

use std::time::Duration;

use polis_api::compute::Instance;
use polis_api::labels;
use polis_api::quota::{AllowanceBucket, ResourceClaim};
use polis_core::conditions::Verdict;
use polis_core::quota::{self, Answer, ResourceRefKind, Room};
use polis_core::{metadata, owner};
use polis_engine::{Clock, Engine, Key, Plane, PlaneName, PlaneSet, Recorder, Tone, Unresolved, Watch};

use crate::Error;
use crate::metrics::Metrics;
use claims::Claims;
use waiting::{Waiting, WaitingProjects};

/// Where quota is claimed.
#[derive(Clone, Debug)]
pub struct Quota {
    /// The API that serves the planes of all projects under their paths.
    pub projects: Plane,
    /// What claims say they are for.
    pub resource_ref: ResourceRefKind,
}

/// Who is asked for quota.
pub(crate) enum Treasury {
    /// Nobody.
    Open { recorder: Recorder, metrics: Metrics },
    /// The projects.
    Kept(Box<Claims>),
}

impl Treasury {
    /// Declares the planes that quota takes, if it is kept.
    pub(crate) fn declare(
        engine: &mut Engine,
        quota: Option<Quota>,
        cell: &str,
        clock: &Clock,
        metrics: &Metrics,
    ) -> Self {
        metrics.quota_enforced(quota.is_some());
        let (recorder, metrics) = (engine.recorder("instance"), metrics.clone());
        let Some(quota) = quota else {
            tracing::error!(
                "no quota is configured: every instance is let in without a claim; name the projects' API to change that"
            );
            return Treasury::Open { recorder, metrics };
        };
        let base = engine.plane("quota", quota.projects, []).role("project");
        let waiting = Waiting::default();
        let provider = WaitingProjects { waiting: waiting.clone(), base: base.clone() };
        let ours = format!("{}={cell}", labels::SOURCE_CLUSTER);
        let watches =
            [Watch::of::<ResourceClaim>().labels(ours), Watch::of::<AllowanceBucket>().if_allowed()];
        let watched = engine.planes("claims", provider, watches);
        let (cell, resource_ref) = (cell.to_owned(), quota.resource_ref);
        let clock = clock.clone();
        Treasury::Kept(Box::new(Claims::new(
            base,
            watched,
            waiting,
            cell,
            resource_ref,
            clock,
            recorder,
            metrics,
        )))
    }

    /// Whether instances claim quota.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self, Treasury::Kept(_))
    }

    /// The planes on which grants are seen, and who waits for them.
    pub(crate) fn planes(&self) -> Option<(PlaneSet, Waiting)> {
        match self {
            Treasury::Open { .. } => None,
            Treasury::Kept(claims) => Some((claims.planes(), claims.waiting())),
        }
    }

    /// What `QuotaGranted` should say, and when to look again if no event will say so. Failures are verdicts, too.
    pub(crate) async fn look(
        &self,
        cell: &Plane,
        key: &Key,
        instance: &Instance,
    ) -> (Verdict, Option<Duration>) {
        match self {
            Treasury::Open { .. } => (quota::verdict(Answer::Disabled), None),
            Treasury::Kept(claims) => claims.look(cell, key, instance).await,
        }
    }

    /// Gives back the claim of an instance that goes. None once it is gone, or if nobody can say where it is.
    pub(crate) async fn give_back(
        &self,
        cell: &Plane,
        key: &Key,
        instance: &Instance,
    ) -> Result<Option<Duration>, Error> {
        match self {
            Treasury::Kept(claims) => claims.give_back(cell, key, instance).await,
            Treasury::Open { recorder, metrics } => {
                orphaned(recorder, metrics, cell, instance, "quota was switched off");
                Ok(None)
            }
        }
    }

    /// The instance is gone.
    pub(crate) fn forget(&self, key: &Key) {
        if let Treasury::Kept(claims) = self {
            claims.forget(key);
        }
    }
}

/// The claim of an instance cannot be found any more; the instance is let go all the same.
fn orphaned(recorder: &Recorder, metrics: &Metrics, cell: &Plane, instance: &Instance, why: &str) {
    metrics.claim_orphaned();
    let note = format!("The instance goes and its quota claim, if it has one, stays in the project: {why}");
    tracing::error!(instance = owner::name(&instance.metadata), %why, "quota claim orphaned");
    recorder.record(cell, instance, Tone::Warning, "QuotaClaimOrphaned", "Claim", &note);
}

/// The denied instances for which there is room in the project that a bucket is of.
pub(crate) fn keys_of_bucket(
    waiting: &Waiting,
    project: &Plane,
    _: &AllowanceBucket,
) -> Result<Vec<Key>, Unresolved> {
    let name = project.name().as_str();
    Ok(waiting.called(name, &Room::of(name, &project.list::<AllowanceBucket>()?)))
}

/// The instance that a claim is for. A claim that does not say leads nowhere.
pub(crate) fn key_of_claim(cell: &PlaneName, claim: &ResourceClaim) -> Vec<Key> {
    let namespace = metadata::label(&claim.metadata, labels::INSTANCE_NAMESPACE);
    let name = owner::name(&claim.metadata).strip_prefix("instance-");
    namespace.zip(name).map(|(namespace, name)| Key::new(cell.clone(), namespace, name)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use polis_api::names;

    #[test]
    fn a_claim_leads_to_its_instance() {
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
