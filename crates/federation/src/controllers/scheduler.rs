//! Which clusters a binding names. Whoever writes a binding chooses them in the same write.
//!
//! A cluster that comes, goes or changes is an input of every choice, and most choices come out as before. Those are made
//! with a key of their own, which writes nothing and builds no Work: a binding that stands is left alone.

use std::collections::BTreeSet;

use polis_api::annotations;
use polis_api::conditions::karmada::SCHEDULED;
use polis_api::karmada::{BindingStatus, ResourceBindingSpec};
use serde::Deserialize;
use serde_json::Value;

use super::binding::binding_id;
use super::dependencies::targets;
use super::tree;
use crate::claim;
use crate::conditions::Fact;
use crate::error::Error;
use crate::names;
use crate::object;
use crate::placement::{self, NoPlace, Request};
use crate::queue::Outcome;
use crate::world::{Key, World};

/// What choosing clusters came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scheduled {
    pub(super) fact: Fact,
    pub(super) affinity: Option<String>,
}

impl World {
    /// A cluster has changed: a binding that chooses otherwise now is looked at as a whole.
    pub(super) fn settle_placement(&self, namespace: Option<&str>, name: &str) -> Result<Outcome, Error> {
        let Some(binding) = self.bindings(namespace).get(namespace.unwrap_or_default(), name) else {
            return Ok(Outcome::Settled);
        };
        if object::is_deleting(&binding) || !self.stands(&binding)? {
            self.queue.add(Key::Binding(namespace.map(str::to_owned), name.to_owned()));
        }
        Ok(Outcome::Settled)
    }

    /// Whether a binding names the clusters that it would choose, has told so, and has a Work for each that is there. What
    /// is in a Work does not depend on clusters.
    fn stands(&self, binding: &Value) -> Result<bool, Error> {
        let mut wanted = binding.clone();
        let scheduled = self.schedule(&mut wanted)?;
        if wanted != *binding || !self.is_told(binding, scheduled.as_ref()) {
            return Ok(false);
        }
        let spec = ResourceBindingSpec::deserialize(&binding["spec"])
            .map_err(|source| Error::Decode { what: object::Identity::of(binding).to_string(), source })?;
        let stays = |name: &String| self.cluster(name).is_some_and(|facts| !facts.candidate.deleting);
        let due: BTreeSet<String> =
            targets(&spec).into_iter().map(|target| target.name).filter(stays).collect();
        let works = self.works_of(binding_id(binding));
        let cluster = |work: &Value| {
            names::cluster_of_execution_namespace(object::meta(work, "namespace")).map(str::to_owned)
        };
        Ok(due == works.iter().filter_map(|work| cluster(work)).collect())
    }

    /// Chooses the clusters of a binding in hand. Nothing if nobody may choose now: the binding is released or suspended.
    pub(super) fn schedule(&self, binding: &mut Value) -> Result<Option<Scheduled>, Error> {
        let read = |source| Error::Decode { what: object::Identity::of(binding).to_string(), source };
        let spec = ResourceBindingSpec::deserialize(&binding["spec"]).map_err(read)?;
        let suspended = spec.suspension.as_ref().and_then(|suspension| suspension.scheduling) == Some(true);
        let Some(placement) = spec.placement.as_ref().filter(|_| claim::is_marked(binding) && !suspended)
        else {
            return Ok(None);
        };
        let status: BindingStatus =
            Option::deserialize(&binding["status"]).map_err(read)?.unwrap_or_default();
        let placement_tree = tree("placement", placement)?;
        let applied: Option<Value> =
            serde_json::from_str(object::annotation(binding, annotations::karmada::APPLIED_PLACEMENT)).ok();
        let has_replicas =
            spec.replicas.is_some_and(|count| count > 0) || spec.extra.contains_key("replicaRequirements");
        let request = Request {
            api: (&spec.resource.api_version, &spec.resource.kind),
            uid: spec.resource.uid.as_deref().unwrap_or_default(),
            replicas: spec.replicas.filter(|_| has_replicas),
            current: &spec.clusters,
            affinity: status.scheduler_observing_affinity_name.as_deref().unwrap_or_default(),
            placement_changed: applied.is_none_or(|applied| applied != placement_tree),
        };
        let (clusters, scheduled) = match placement::decide(placement, &request, &self.candidates()) {
            Ok(decision) => {
                let fact = Fact::new(SCHEDULED, true, "Success", "binding has been scheduled successfully");
                (decision.clusters, Scheduled { fact, affinity: decision.affinity })
            }
            Err(why) => {
                let fact = Fact::new(SCHEDULED, false, why.reason(), why.to_string());
                let kept =
                    if matches!(why, NoPlace::NoneFits { .. }) { Vec::new() } else { spec.clusters.clone() };
                (kept, Scheduled { fact, affinity: status.scheduler_observing_affinity_name.clone() })
            }
        };
        match clusters.is_empty() {
            true => drop(object::remove(binding, &["spec", "clusters"])),
            false => binding["spec"]["clusters"] = tree("clusters", &clusters)?,
        }
        object::set_annotation(binding, annotations::karmada::APPLIED_PLACEMENT, &placement_tree.to_string());
        Ok(Some(scheduled))
    }
}
