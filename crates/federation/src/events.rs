//! Kubernetes Events on the hub. An event with the same object, reason and message is recorded once:
//! repeating it on every retry would flood the hub.

use serde_json::json;

use crate::object::{self, ObjectKey};
use crate::state::{FederationState, kinds};

/// Size of the set of recorded events; when it is full it is cleared, and events may repeat.
const MAX_RECORDED_EVENTS: usize = 10_000;

impl FederationState {
    /// Records an event about an object of the hub, unless it was recorded before. A failure is only logged
    /// and never fails the reconcile.
    pub(crate) async fn record_event(
        &self,
        for_kind_of: &serde_json::Value,
        warning: bool,
        reason: &str,
        message: &str,
    ) {
        let key = ObjectKey::of(for_kind_of);
        {
            let mut recorded_events = self.recorded_events.lock();
            if recorded_events.len() >= MAX_RECORDED_EVENTS {
                recorded_events.clear();
            }
            if !recorded_events.insert(format!("{key} {reason} {message}")) {
                return;
            }
        }
        let namespace = if key.namespace.is_empty() { "default" } else { &key.namespace };
        let now = self.now();
        let seconds = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"namespace": namespace, "name": format!("{}.{}", key.name, self.new_id())},
            "involvedObject": {
                "apiVersion": key.api_version, "kind": key.kind, "namespace": key.namespace, "name": key.name,
                "uid": object::meta(for_kind_of, "uid"),
            },
            "type": if warning { "Warning" } else { "Normal" },
            "reason": reason, "message": message, "count": 1, "firstTimestamp": seconds, "lastTimestamp": seconds,
            "source": {"component": "polis-federation"},
        });
        if let Err(error) = self.hub.api.create(&kinds::EVENT, &event).await {
            tracing::debug!(%error, reason, message, "failed to record an event");
        }
    }
}
