//! The controllers, one file each. A reconcile reads, decides, and writes each object at most once.

mod binding;
mod cluster;
mod dependencies;
mod interpreters;
mod kind;
mod member_namespaces;
mod namespace;
mod placement;
mod policy;
mod scheduler;
mod status;
mod template;
mod work;

use std::sync::Arc;

use polis_engine::{Engine, Watch};
use serde_json::Value;

pub(crate) use status::BindingResults;

use crate::error::Error;
use crate::kinds;
use crate::shared::Shared;

/// The watches of the hub.
pub(crate) fn hub_watches() -> Vec<Watch> {
    let of = |kind: &polis_engine::Kind| Watch::kind(kind.clone()).keep_decoded();
    let by_kind = crate::clusters::by_selected_kind;
    let by_id = |watch: Watch| kinds::BINDING_IDS.into_iter().fold(watch, Watch::index);
    vec![
        of(&kinds::CLUSTER),
        of(&kinds::POLICY).index(by_kind()),
        of(&kinds::CLUSTER_POLICY).index(by_kind()),
        of(&kinds::BINDING).index(dependencies::by_dependent()),
        of(&kinds::CLUSTER_BINDING),
        by_id(of(&kinds::WORK)),
        of(&kinds::INTERPRETER),
        of(&kinds::NAMESPACE),
        // Only shortens the time until a new kind is discovered.
        Watch::kind(kinds::CRD.clone()).metadata_only().if_allowed(),
    ]
}

/// Registers all controllers with an engine.
pub(crate) fn declare(engine: &mut Engine, shared: &Arc<Shared>) {
    interpreters::declare(engine, shared);
    cluster::declare(engine, shared);
    kind::declare(engine, shared);
    policy::declare(engine, shared);
    namespace::declare(engine, shared);
    member_namespaces::declare(engine, shared);
    template::declare(engine, shared);
    binding::declare(engine, shared);
    placement::declare(engine, shared);
    status::declare(engine, shared);
    work::declare(engine, shared);
}

/// Encodes a value as JSON.
fn tree<T: serde::Serialize>(what: &str, part: &T) -> Result<Value, Error> {
    serde_json::to_value(part).map_err(|source| Error::Decode { what: what.to_owned(), source })
}
