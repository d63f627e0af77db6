//! Unresolved objects: hub objects whose project cannot be determined.
//!
//! An unresolved object is never projected, because the project could be the wrong one. An event on the
//! object gives the reason, and a gauge counts it until its namespace names a known project or the object is
//! deleted.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::labels;
use polis_api::{ObjectExt, events};
use polis_core::tenant::Tenant;
use polis_engine::{EventRecorder, Key, Kind, Metrics, Object, Plane, Unresolved, Watch};
use prometheus_client::metrics::gauge::Gauge;

/// The watch of the hub namespaces that have a tenant, which every user of [`UnresolvedObjects`] needs.
pub(crate) fn watch() -> Watch {
    Watch::of::<Namespace>().labels(labels::UPSTREAM_CLUSTER_NAME)
}

/// The unresolved objects of one hub. Cheap to clone.
#[derive(Clone)]
pub(crate) struct UnresolvedObjects(Arc<Inner>);

struct Inner {
    recorder: EventRecorder,
    count: Gauge,
    /// By kind, namespace and name.
    objects: Mutex<BTreeSet<(String, String, String)>>,
}

impl UnresolvedObjects {
    pub(crate) fn new(recorder: EventRecorder, metrics: &Metrics) -> Self {
        let inner = Inner { recorder, count: Gauge::default(), objects: Mutex::default() };
        metrics.register(|registry| {
            let help = "Objects of the hub whose project cannot be determined; they are not projected";
            registry.register("compute_hub_objects_unresolved", help, inner.count.clone());
        });
        Self(Arc::new(inner))
    }

    /// The tenant of a hub object, from the labels of its namespace.
    pub(crate) fn tenant_of<K: Object>(&self, hub: &Plane, object: &K) -> Result<Tenant, Unresolved> {
        let tenant = tenant_of(hub, object.namespace());
        // The delete event of an object may follow the deletion of its namespace.
        let exists = tenant.is_err() && hub.get::<K>((object.namespace(), object.name()))?.is_some();
        self.report(hub, object, tenant.as_ref().err().filter(|_| exists));
        tenant
    }

    /// Adds an unresolved hub object and reports it once, as an event and in the log. Without a reason it
    /// removes the object: it is resolved or deleted.
    pub(crate) fn report<K: Object>(&self, hub: &Plane, object: &K, why: Option<&Unresolved>) {
        let id = (Kind::of::<K>().to_string(), object.namespace().to_owned(), object.name().to_owned());
        if let Some(why) = why
            && self.set(id.clone(), true)
        {
            let (kind, namespace, name) = id;
            let object_id = format!("{kind} {namespace}/{name}");
            tracing::error!(object = object_id, %why, "failed to determine the project of a hub object; it is not projected");
            let note =
                format!("The project of this object cannot be determined, so it is not projected: {why}");
            self.0.recorder.warn(hub, object, events::PROJECT_UNKNOWN, "Identify", &note);
        } else if why.is_none() {
            self.set(id, false);
        }
    }

    /// Maps a hub copy to the project object of the same name, in the namespace it was copied from.
    pub(crate) fn keys_of_copy<K: Object>(&self, hub: &Plane, copy: &K) -> Result<Vec<Key>, Unresolved> {
        let tenant = self.tenant_of(hub, copy)?;
        Ok(vec![Key::new(&tenant.project, &tenant.namespace, copy.name())])
    }

    /// Maps a hub namespace to the project objects of all copies in it, when its labels change. The engine
    /// calls it with the old and the new namespace, so that the previous and the current tenant are both
    /// requeued.
    pub(crate) fn keys_of_namespace<K: Object>(
        &self,
        hub: &Plane,
        namespace: &Namespace,
    ) -> Result<Vec<Key>, Unresolved> {
        let copies = hub.list_within::<K>(namespace.name())?;
        for copy in &copies {
            _ = self.tenant_of(hub, copy); // counts unresolved copies
        }
        let Ok(tenant) = Tenant::of(namespace) else { return Ok(Vec::new()) };
        let key = |copy: &K| Key::new(&tenant.project, &tenant.namespace, copy.name());
        Ok(copies.iter().map(key).collect())
    }

    /// Sets whether an object is unresolved. Returns true if that changed.
    fn set(&self, object: (String, String, String), unresolved: bool) -> bool {
        let mut objects = self.0.objects.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let changed = if unresolved { objects.insert(object) } else { objects.remove(&object) };
        self.0.count.set(i64::try_from(objects.len()).unwrap_or(i64::MAX));
        changed
    }
}

/// The tenant of a hub namespace, from its labels.
fn tenant_of(hub: &Plane, namespace: &str) -> Result<Tenant, Unresolved> {
    let labelled = hub.get::<Namespace>(namespace)?.ok_or_else(|| {
        Unresolved(format!(
            "namespace {namespace} is not in the hub's cache or has no label {}",
            labels::UPSTREAM_CLUSTER_NAME
        ))
    })?;
    Tenant::of(&labelled).map_err(|error| Unresolved(error.to_string()))
}

#[cfg(test)]
mod tests {
    use polis_engine::Engine;

    use super::*;

    fn mk_object(name: &str) -> (String, String, String) {
        ("Instance".into(), "ns-1".into(), name.into())
    }

    #[test]
    fn an_object_is_counted_until_it_is_resolved_or_deleted() {
        let engine = Engine::new();
        let metrics = engine.handle().registry();
        let unresolved = UnresolvedObjects::new(engine.recorder("unresolved-objects"), &metrics);
        let counts = |count: &str| {
            let line = format!("polis_compute_hub_objects_unresolved {count}");
            assert!(metrics.render().lines().any(|found| found == line), "{count}");
        };
        counts("0");
        assert!(unresolved.set(mk_object("a"), true));
        assert!(!unresolved.set(mk_object("a"), true), "it is reported once");
        assert!(unresolved.set(mk_object("b"), true));
        counts("2");
        unresolved.set(mk_object("a"), false);
        unresolved.set(mk_object("b"), false);
        counts("0");
        assert!(unresolved.set(mk_object("a"), true), "it is reported again when it is unresolved again");
    }
}
