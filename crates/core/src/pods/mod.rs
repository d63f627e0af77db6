//! The Pod that runs an instance in a Kubernetes cluster.
//!
//! - [`pod`] maps an Instance to its Pod, [`network_policy()`] to the NetworkPolicy of its interface;
//! - [`observe`] maps the status of the Pod to conditions and the address of the Instance;
//! - [`plan`] decides what happens to the Pod.
//!
//! A Pod has the name and the namespace of its Instance, and a label with the Instance's UID. So an Instance
//! never has two Pods, and the Pod of an earlier Instance of the name is known as such. A Pod is replaced
//! only when it is gone from the API server: as long as its object exists, its node may still run it.

mod environment;
mod network_policy;
mod spec;
mod status;
#[cfg(test)]
mod tests;

use polis_api::compute::Instance;
use polis_api::k8s_openapi::api::core::v1::Pod;
use polis_api::{ObjectExt, annotations, labels, names};

use crate::referenced_data::DataKind;
use crate::template;

pub use network_policy::network_policy;
pub use spec::{PodOptions, pod};
pub use status::{PodObservation, observe, status as instance_status};

/// The name that a source of the project has in the cell.
fn companion(kind: DataKind, source: &str) -> String {
    names::companion(kind.as_str(), source)
}

/// Why an Instance cannot run as a Pod: a field of its spec, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedField {
    /// Path of the field in the Instance.
    pub path: String,
    /// What is wrong, and what to do.
    pub why: String,
}

/// The longest list of refused fields in a message.
const MAX_REFUSED: usize = 5;

/// The message of a condition for refused fields.
pub fn refusal_message(refused: &[RefusedField]) -> String {
    let shown: Vec<String> =
        refused.iter().take(MAX_REFUSED).map(|field| format!("{}: {}", field.path, field.why)).collect();
    let more = refused.len().saturating_sub(MAX_REFUSED);
    let more = if more == 0 { String::new() } else { format!("; and {more} more fields") };
    format!("the instance cannot run as a Pod: {}{more}", shown.join("; "))
}

/// What an Instance should have in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredPod {
    /// A Pod of its current template.
    Running,
    /// No Pod: it is suspended, deleted, or refused.
    Absent,
}

/// What to do about the Pod of an Instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodAction {
    /// Create it.
    Create,
    /// It runs as desired.
    Unchanged,
    /// Delete it, with the UID and resource version that the decision is based on.
    Delete(PodDeletion),
    /// It is being deleted: wait until its node has ended it.
    AwaitDeletion,
    /// A Pod of that name was not created for an Instance: it is never changed.
    NameTaken,
    /// The Instance has no Pod, as desired.
    None,
}

/// Why a Pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodDeletion {
    /// The Instance must not run.
    NotDesired,
    /// It belongs to an earlier Instance of the name.
    EarlierInstance,
    /// The template of the Instance has changed.
    Outdated,
    /// All its containers have ended for good: the Pod was evicted, or its node shut down.
    Ended,
}

/// Decides about the Pod of the Instance's name. `instance` is its UID; `existing` the Pod, from the server
/// if the cache has none.
pub fn plan(instance: &Instance, desired: DesiredPod, existing: Option<&Pod>) -> PodAction {
    let Some(pod) = existing else {
        return match desired {
            DesiredPod::Running => PodAction::Create,
            DesiredPod::Absent => PodAction::None,
        };
    };
    let own = match pod.label(labels::INSTANCE_UID) {
        None if desired == DesiredPod::Absent => return PodAction::None,
        None => return PodAction::NameTaken,
        Some(uid) => uid == instance.uid(),
    };
    match desired {
        // That of another Instance is another key's matter.
        DesiredPod::Absent if !own => PodAction::None,
        _ if pod.is_deleting() => PodAction::AwaitDeletion,
        DesiredPod::Absent => PodAction::Delete(PodDeletion::NotDesired),
        DesiredPod::Running if !own => PodAction::Delete(PodDeletion::EarlierInstance),
        DesiredPod::Running if template_hash(pod) != template::instance_hash(instance) => {
            PodAction::Delete(PodDeletion::Outdated)
        }
        DesiredPod::Running if status::has_ended(pod) => PodAction::Delete(PodDeletion::Ended),
        DesiredPod::Running => PodAction::Unchanged,
    }
}

/// The template hash that a Pod was created from.
fn template_hash(pod: &Pod) -> Option<&str> {
    pod.metadata.annotations.as_ref()?.get(annotations::TEMPLATE_HASH).map(String::as_str)
}
