//! Grants: plays the quota service of a project, which grants whatever it is asked for.

use std::sync::Arc;

use polis_api::{
    kube::{
        Api,
        api::{Patch, PatchParams},
    },
    quota::ResourceClaim,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::eye::Eye;

/// The quota service of one project. It leaves when it is dropped.
pub struct QuotaService {
    _work: JoinSet<()>,
}

impl QuotaService {
    /// Puts the service to work on the plane of a project.
    pub fn at_work(eye: Arc<Eye>) -> QuotaService {
        let mut work = JoinSet::new();
        work.spawn(async move {
            let mut changes = eye.changes();
            loop {
                changes.mark_unchanged();
                let waiting = eye.all("ResourceClaim").into_iter().filter(|(_, claim)| waits(claim));
                let told = waiting.map(|(key, _)| {
                    let api: Api<ResourceClaim> = Api::namespaced(eye.client().clone(), &key.namespace);
                    async move {
                        let patch = Patch::Merge(json!({"status": {"conditions": [{
                            "type": "Granted", "status": "True", "reason": "QuotaAvailable",
                            "message": "said by the quota service of the suite",
                            "lastTransitionTime": jiff::Timestamp::now().to_string(),
                        }]}}));
                        api.patch_status(&key.name, &PatchParams::default(), &patch).await.is_ok()
                    }
                });
                // A mirror is always a little late: what is refused here is looked at again.
                let told = futures::future::join_all(told).await;
                if !told.is_empty() {
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                } else if changes.changed().await.is_err() {
                    return;
                }
            }
        });
        QuotaService { _work: work }
    }
}

/// Whether nobody has decided on a claim that stays.
fn waits(claim: &Value) -> bool {
    let conditions = claim.pointer("/status/conditions").and_then(Value::as_array);
    claim["metadata"]["deletionTimestamp"].is_null()
        && !conditions.into_iter().flatten().any(|condition| condition["type"] == "Granted")
}
