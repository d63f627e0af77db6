//! Member namespaces controller: propagates every Namespace to a member that has joined.
//!
//! Reads   Namespace, Cluster
//! Writes  Works, as the namespace controller
//!
//! Its key is a member.

use std::sync::Arc;

use polis_engine::{Action, Engine, Key, Reconciler};

use super::namespace::{ensure_on_member, is_propagated};
use crate::error::Error;
use crate::kinds;
use crate::names;
use crate::object;
use crate::shared::Shared;

struct MemberNamespaces(Arc<Shared>);

pub(super) fn declare(engine: &mut Engine, shared: &Arc<Shared>) {
    let hub = &shared.hub.plane;
    let clusters = shared.clone();
    engine
        .controller("member-namespaces", hub, MemberNamespaces(shared.clone()))
        .skips_own_writes()
        .watches_untyped(hub, &kinds::CLUSTER, move |hub, change| {
            let stays = |object| clusters.clusters.info(object).is_some_and(|info| !info.candidate.deleting);
            let joined = !stays(change.before()) && stays(change.after());
            Ok(if joined { vec![crate::hub::key(hub, "", change.name().name)] } else { Vec::new() })
        })
        .watches_untyped(hub, &kinds::NAMESPACE, |hub, change| {
            // Works can be created when the execution namespace exists.
            let member = names::cluster_of_execution_namespace(change.name().name);
            Ok(member
                .filter(|_| change.before().is_none())
                .map(|member| crate::hub::key(hub, "", member))
                .into_iter()
                .collect())
        });
}

impl Reconciler for MemberNamespaces {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        for namespace in self.0.hub.of(&kinds::NAMESPACE).list()? {
            if is_propagated(object::meta(&namespace, "name")) {
                ensure_on_member(&self.0, &namespace, &key.name).await?;
            }
        }
        Ok(Action::AwaitChange)
    }
}
