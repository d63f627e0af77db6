//! Events on the hub, for people. One story is told once: repeating it with every attempt is how a hub drowns.

use serde_json::json;

use crate::object::{self, Identity};
use crate::world::{World, kinds};

/// Stories remembered before all are forgotten and may be told again.
const REMEMBERED: usize = 10_000;

impl World {
    /// Records an event about an object of the hub, unless the same was told before. An event that cannot be written is
    /// only logged: it must never hold up what it is about.
    pub(crate) async fn tell(&self, about: &serde_json::Value, warning: bool, reason: &str, message: &str) {
        let identity = Identity::of(about);
        {
            let mut told = self.told.lock();
            if told.len() >= REMEMBERED {
                told.clear();
            }
            if !told.insert(format!("{identity} {reason} {message}")) {
                return;
            }
        }
        let namespace = if identity.namespace.is_empty() { "default" } else { &identity.namespace };
        let now = self.now();
        let seconds = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"namespace": namespace, "name": format!("{}.{}", identity.name, self.new_id())},
            "involvedObject": {
                "apiVersion": identity.api_version, "kind": identity.kind, "namespace": identity.namespace, "name": identity.name,
                "uid": object::meta(about, "uid"),
            },
            "type": if warning { "Warning" } else { "Normal" },
            "reason": reason, "message": message, "count": 1, "firstTimestamp": seconds, "lastTimestamp": seconds,
            "source": {"component": "polis-federation"},
        });
        if let Err(error) = self.hub.api.create(&kinds::EVENT, &event).await {
            tracing::debug!(%error, reason, message, "event not recorded");
        }
    }
}
