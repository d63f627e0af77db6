//! Placement controller: checks every binding after a change of a Cluster.
//!
//! Reads   Clusters, bindings, Works
//! Writes  nothing; queues the bindings that are out of date
//!
//! A changed Cluster is an input of every binding, but changes the result of few. This controller checks each
//! binding without writes and without building Works; only a binding with another result is reconciled.

use std::collections::BTreeSet;
use std::sync::Arc;

use polis_api::karmada::ResourceBindingSpec;
use polis_engine::{Action, Engine, Key, Reconciler};
use serde::Deserialize;
use serde_json::Value;

use super::dependencies::targets;
use super::scheduler::schedule;
use crate::error::Error;
use crate::hub::binding_id;
use crate::kinds;
use crate::names;
use crate::object;
use crate::shared::Shared;
use crate::works;

struct Placement(Arc<Shared>);

pub(super) fn declare(engine: &mut Engine, shared: &Arc<Shared>) {
    let (hub, of_clusters) = (&shared.hub.plane, shared.clone());
    engine.controller("placement", hub, Placement(shared.clone())).watches_untyped(
        hub,
        &kinds::CLUSTER,
        move |_, change| {
            let [before, after] = [change.before(), change.after()]
                .map(|object| of_clusters.clusters.info(object).map(|info| info.candidate.clone()));
            Ok(if before == after { Vec::new() } else { of_clusters.hub.binding_keys()? })
        },
    );
}

impl Reconciler for Placement {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        if let Some(binding) = self.0.hub.binding(key)?
            && (object::is_deleting(&binding) || !self.is_up_to_date(&binding)?)
        {
            self.0.triggers.binding.add(key.clone());
        }
        Ok(Action::AwaitChange)
    }
}

impl Placement {
    /// Whether the clusters and status of a binding are current, and it has a Work for each existing cluster.
    /// The content of a Work does not depend on Clusters.
    fn is_up_to_date(&self, binding: &Value) -> Result<bool, Error> {
        let mut wanted = binding.clone();
        let scheduled = schedule(&self.0.clusters, &mut wanted)?;
        if wanted != *binding || !self.0.results.is_current(binding, scheduled.as_ref()) {
            return Ok(false);
        }
        let spec = ResourceBindingSpec::deserialize(&binding["spec"])
            .map_err(|source| Error::Decode { what: object::ObjectKey::of(binding).to_string(), source })?;
        let mut due = BTreeSet::new();
        for target in targets(&spec) {
            if self.0.clusters.stays(&target.name)? {
                due.insert(target.name);
            }
        }
        let works = works::of_binding(&self.0.hub, binding_id(binding))?;
        let cluster = |work: &Value| {
            names::cluster_of_execution_namespace(object::meta(work, "namespace")).map(str::to_owned)
        };
        Ok(due == works.iter().filter_map(|work| cluster(work)).collect())
    }
}
