//! Scheduler: selects the clusters of a binding, in the same write as its other fields.

use polis_api::annotations;
use polis_api::conditions::karmada::SCHEDULED;
use polis_api::karmada::{BindingStatus, ResourceBindingSpec};
use serde::Deserialize;
use serde_json::Value;

use super::tree;
use crate::claim;
use crate::clusters::Clusters;
use crate::conditions::ConditionUpdate;
use crate::error::Error;
use crate::object;
use crate::placement::{self, PlacementError, PlacementRequest};

/// The result of scheduling a binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scheduled {
    pub(super) desired: ConditionUpdate,
    pub(super) affinity: Option<String>,
}

/// Selects the clusters of a binding, in memory. `None` if no policy claims the binding or scheduling is
/// suspended.
pub(super) fn schedule(clusters: &Clusters, binding: &mut Value) -> Result<Option<Scheduled>, Error> {
    let read = |source| Error::Decode { what: object::ObjectKey::of(binding).to_string(), source };
    let spec = ResourceBindingSpec::deserialize(&binding["spec"]).map_err(read)?;
    let suspended = spec.suspension.as_ref().and_then(|suspension| suspension.scheduling) == Some(true);
    let Some(placement) = spec.placement.as_ref().filter(|_| claim::is_claimed(binding) && !suspended) else {
        return Ok(None);
    };
    let status: BindingStatus = Option::deserialize(&binding["status"]).map_err(read)?.unwrap_or_default();
    let placement_tree = tree("placement", placement)?;
    let applied: Option<Value> =
        serde_json::from_str(object::annotation(binding, annotations::karmada::APPLIED_PLACEMENT)).ok();
    let has_replicas =
        spec.replicas.is_some_and(|count| count > 0) || spec.extra.contains_key("replicaRequirements");
    let request = PlacementRequest {
        api: (&spec.resource.api_version, &spec.resource.kind),
        uid: spec.resource.uid.as_deref().unwrap_or_default(),
        replicas: spec.replicas.filter(|_| has_replicas),
        current: &spec.clusters,
        affinity: status.scheduler_observing_affinity_name.as_deref().unwrap_or_default(),
        placement_changed: applied.is_none_or(|applied| applied != placement_tree),
    };
    let (clusters, scheduled) = match placement::decide(placement, &request, &clusters.candidates()?) {
        Ok(decision) => {
            let desired =
                ConditionUpdate::new(SCHEDULED, true, "Success", "binding has been scheduled successfully");
            (decision.clusters, Scheduled { desired, affinity: decision.affinity })
        }
        Err(why) => {
            let desired = ConditionUpdate::new(SCHEDULED, false, why.reason(), why.to_string());
            let kept = if matches!(why, PlacementError::NoClusterFits { .. }) {
                Vec::new()
            } else {
                spec.clusters.clone()
            };
            (kept, Scheduled { desired, affinity: status.scheduler_observing_affinity_name.clone() })
        }
    };
    match clusters.is_empty() {
        true => drop(object::remove(binding, &["spec", "clusters"])),
        false => binding["spec"]["clusters"] = tree("clusters", &clusters)?,
    }
    object::set_annotation(binding, annotations::karmada::APPLIED_PLACEMENT, &placement_tree.to_string());
    Ok(Some(scheduled))
}
