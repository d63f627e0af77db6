//! The companions in a cell: watches, the state of a deployment's referenced data, and the mapping from a
//! companion to the deployments that expect it.

use polis_api::compute::WorkloadDeployment;
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use polis_api::{ObjectExt, annotations, labels};
use polis_core::referenced_data::{self, DataKind, DataObject, DeliveryState};
use polis_engine::{Error as EngineError, Index, Object, Plane, Watch};

/// Deployments by the companions that their templates need.
pub(crate) fn by_companion() -> Index {
    Index::Computed("companion", referenced_data::index_values)
}

/// The watches of the companions.
pub(crate) fn watches() -> [Watch; 2] {
    [Watch::of::<ConfigMap>(), Watch::of::<Secret>()].map(|watch| watch.labels(labels::REFERENCED_DATA))
}

/// The state of the referenced data of a deployment.
pub(crate) fn state(cell: &Plane, deployment: &WorkloadDeployment) -> Result<DeliveryState, EngineError> {
    let namespace = deployment.namespace();
    referenced_data::delivery(deployment, |kind, companion| match kind {
        DataKind::ConfigMap => content_hash::<ConfigMap>(cell, namespace, companion),
        DataKind::Secret => content_hash::<Secret>(cell, namespace, companion),
    })
}

fn content_hash<K: Object>(
    cell: &Plane,
    namespace: &str,
    companion: &str,
) -> Result<Option<String>, EngineError> {
    let companion = cell.get::<K>((namespace, companion))?.filter(|companion| !companion.is_deleting());
    Ok(companion.and_then(|companion| companion.annotation(annotations::CONTENT_HASH).map(str::to_owned)))
}

/// The names of the deployments that expect a companion.
pub(crate) fn users<K: Object + DataObject>(cell: &Plane, companion: &K) -> Result<Vec<String>, EngineError> {
    let token = K::KIND.token(companion.name());
    cell.names_within::<WorkloadDeployment>(companion.namespace(), &by_companion(), &token)
}
