//! Kind controller: watches the kinds that policies, bindings and dependencies name, while they name them.
//!
//! Reads   policies and bindings · the discovery of the hub
//! Writes  nothing; starts and stops the watches of the hub
//!
//! Its key is a kind.

use std::sync::Arc;
use std::time::Duration;

use polis_engine::{Action, Change, Engine, Key, Reconciler, Unresolved};

use crate::clusters::selected_kinds;
use crate::error::Error;
use crate::hub::{Hub, resource_of};
use crate::interpreter::TypeMeta;
use crate::kinds;
use crate::matching::is_propagatable;
use crate::shared::Shared;

/// Interval of the discovery of a kind that the hub does not serve. A new CRD triggers it at once.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(30);
/// How long a reconcile waits for the first list of a kind; a slower one is awaited by the next.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);

struct KindController(Arc<Shared>);

/// The key of a kind.
pub(super) fn key_of(hub: &Hub, type_meta: &TypeMeta) -> Key {
    hub.key("", &format!("{}/{}", type_meta.kind, type_meta.api_version))
}

fn kind_of(key: &Key) -> TypeMeta {
    let (kind, api_version) = key.name.split_once('/').unwrap_or((&key.name, ""));
    TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() }
}

pub(super) fn declare(engine: &mut Engine, shared: &Arc<Shared>) {
    let hub = &shared.hub.plane;
    let mut controller = engine.controller("kind", hub, KindController(shared.clone()));
    for policies in [&kinds::POLICY, &kinds::CLUSTER_POLICY] {
        let shared = shared.clone();
        controller = controller.watches_untyped(hub, policies, move |_, change| {
            let policies = [change.before(), change.after()].map(|object| shared.policies.decoded(object));
            let kinds = policies.into_iter().flatten().flat_map(|policy| selected_kinds(&policy));
            Ok(kinds.map(|type_meta| key_of(&shared.hub, &type_meta)).collect())
        });
    }
    for bindings in [&kinds::BINDING, &kinds::CLUSTER_BINDING] {
        let shared = shared.clone();
        controller = controller.watches_untyped(hub, bindings, move |_, change| of_binding(&shared, change));
    }
    let unserved = shared.clone();
    let controller = controller.watches_untyped(hub, &kinds::CRD, move |_, _| {
        let named = unserved.policies.kinds()?;
        let unserved = named
            .iter()
            .filter(|type_meta| unserved.kinds.get(type_meta).is_none())
            .map(|type_meta| key_of(&unserved.hub, type_meta));
        Ok(unserved.collect())
    });
    shared.triggers.kind.declare(controller);
}

/// The kind of a binding that appears or disappears.
fn of_binding(shared: &Shared, change: &Change<'_>) -> Result<Vec<Key>, Unresolved> {
    let Some(binding) = change.object() else { return Ok(Vec::new()) };
    let resource = resource_of(binding);
    let type_meta = TypeMeta { api_version: resource.api_version, kind: resource.kind };
    let is_watched = shared.kinds.get(&type_meta).is_some();
    Ok(if is_watched == change.is_deletion() { vec![key_of(&shared.hub, &type_meta)] } else { Vec::new() })
}

impl Reconciler for KindController {
    type Error = Error;

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let (shared, type_meta) = (&*self.0, kind_of(key));
        if !is_propagatable(&type_meta.api_version, &type_meta.kind) {
            return Ok(Action::AwaitChange);
        }
        if !self.is_wanted(&type_meta)? {
            shared.kinds.unwatch(&type_meta);
            return Ok(Action::AwaitChange);
        }
        let kind = match shared.kinds.get(&type_meta) {
            Some(kind) if shared.hub.plane.is_synced(&kind) => return Ok(Action::AwaitChange),
            Some(kind) => kind,
            None => {
                let uncached = shared.hub.plane.uncached();
                match uncached.find_kind(&type_meta.api_version, &type_meta.kind).await? {
                    Some(kind) => {
                        shared.kinds.watch(kind.clone())?;
                        Arc::new(kind)
                    }
                    None => return Ok(Action::RequeueAfter(DISCOVERY_INTERVAL)),
                }
            }
        };
        let synced = shared.hub.plane.wait_until_synced(&kind);
        match tokio::time::timeout(LIST_TIMEOUT, synced).await {
            Ok(synced) => synced?,
            Err(_) => return Ok(Action::RequeueAfter(Duration::ZERO)),
        }
        // Its objects are queued when it is synced; bindings may wait for them too.
        shared.hub.binding_keys()?.into_iter().for_each(|binding| shared.triggers.binding.add(binding));
        Ok(Action::AwaitChange)
    }
}

impl KindController {
    /// Whether a policy, a binding or a dependency names the kind.
    fn is_wanted(&self, type_meta: &TypeMeta) -> Result<bool, Error> {
        let shared = &*self.0;
        if shared.policies.select(type_meta)? || shared.kinds.is_needed(type_meta) {
            return Ok(true);
        }
        for bindings in [&kinds::BINDING, &kinds::CLUSTER_BINDING] {
            let of_kind = |resource: crate::object::ObjectKey| {
                resource.api_version == type_meta.api_version && resource.kind == type_meta.kind
            };
            if shared.hub.of(bindings).list()?.iter().any(|binding| of_kind(resource_of(binding))) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
