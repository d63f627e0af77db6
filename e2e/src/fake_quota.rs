//! A fake quota service of a project: grants every claim.

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

use crate::recorder::PlaneRecorder;

/// The fake quota service of one project. It stops when it is dropped.
pub struct FakeQuotaService {
    _task: JoinSet<()>,
}

impl FakeQuotaService {
    /// Starts the service on the plane of a project.
    pub fn start(recorder: Arc<PlaneRecorder>) -> FakeQuotaService {
        let mut work = JoinSet::new();
        work.spawn(async move {
            let mut changes = recorder.changes();
            loop {
                changes.mark_unchanged();
                let pending =
                    recorder.all("ResourceClaim").into_iter().filter(|(_, claim)| is_pending(claim));
                let updates = pending.map(|(key, _)| {
                    let api: Api<ResourceClaim> = Api::namespaced(recorder.client().clone(), &key.namespace);
                    async move {
                        let patch = Patch::Merge(json!({"status": {"conditions": [{
                            "type": "Granted", "status": "True", "reason": "QuotaAvailable",
                            "message": "granted by the fake quota service",
                            "lastTransitionTime": jiff::Timestamp::now().to_string(),
                        }]}}));
                        api.patch_status(&key.name, &PatchParams::default(), &patch).await.is_ok()
                    }
                });
                // The recorder lags behind the plane: a failed update is retried.
                let updates = futures::future::join_all(updates).await;
                if !updates.is_empty() {
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                } else if changes.changed().await.is_err() {
                    return;
                }
            }
        });
        FakeQuotaService { _task: work }
    }
}

/// Whether a claim has no decision yet and is not being deleted.
fn is_pending(claim: &Value) -> bool {
    let conditions = claim.pointer("/status/conditions").and_then(Value::as_array);
    claim["metadata"]["deletionTimestamp"].is_null()
        && !conditions.into_iter().flatten().any(|condition| condition["type"] == "Granted")
}
