//! Strangers: objects of the hub that cannot be told to belong to a project.
//!
//! Such an object stays invisible; it is never shown in a project that might be the wrong one. So that it is not forgotten
//! either, an event on it says why, and it is counted from the moment it was first met until its namespace says whose it
//! is, or it is gone.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::labels;
use polis_core::identity::Identity;
use polis_core::owner;
use polis_engine::{Key, Kind, Metrics, Object, Plane, Recorder, Tone, Unresolved};
use prometheus_client::metrics::gauge::Gauge;

/// The strangers of one hub. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Strangers(Arc<Inner>);

struct Inner {
    recorder: Recorder,
    count: Gauge,
    /// By kind, namespace and name.
    known: Mutex<BTreeSet<(String, String, String)>>,
}

impl Strangers {
    pub(crate) fn new(recorder: Recorder, metrics: &Metrics) -> Self {
        let inner = Inner { recorder, count: Gauge::default(), known: Mutex::default() };
        metrics.register(|registry| {
            let help = "Objects of the hub whose project is not known; they stay invisible until it is";
            registry.register("compute_hub_objects_unresolved", help, inner.count.clone());
        });
        Self(Arc::new(inner))
    }

    /// Where an object of the hub comes from, by the labels of its namespace.
    pub(crate) fn origin<K: Object>(&self, hub: &Plane, object: &K) -> Result<Identity, Unresolved> {
        let meta = object.meta();
        let origin = origin(hub, meta);
        // The last word on an object that is gone may come when its namespace is gone as well.
        let stands = origin.is_err() && hub.get::<K>((namespace_of(meta), owner::name(meta)))?.is_some();
        self.tell(hub, object, origin.as_ref().err().filter(|_| stands));
        origin
    }

    /// Notes why an object of the hub belongs to no project that is known; none if it does, or is gone. Whoever looks at
    /// the object is told once.
    pub(crate) fn tell<K: Object>(&self, hub: &Plane, object: &K, why: Option<&Unresolved>) {
        let meta = object.meta();
        let stranger =
            (Kind::of::<K>().to_string(), namespace_of(meta).to_owned(), owner::name(meta).to_owned());
        if let Some(why) = why
            && self.note(stranger.clone(), true)
        {
            let (kind, namespace, name) = stranger;
            let told = format!("{kind} {namespace}/{name}");
            tracing::error!(object = told, %why, "an object of the hub belongs to no known project and stays invisible");
            let note = format!("This object belongs to no known project and stays invisible: {why}");
            self.0.recorder.record(hub, object, Tone::Warning, "ProjectUnknown", "Identify", &note);
        } else if why.is_none() {
            self.note(stranger, false);
        }
    }

    /// The object in its project that a copy on the hub stands for: the same name, in the namespace that it came from.
    pub(crate) fn keys_of_copy<K: Object>(&self, hub: &Plane, copy: &K) -> Result<Vec<Key>, Unresolved> {
        let identity = self.origin(hub, copy)?;
        Ok(vec![Key::new(&identity.project, &identity.namespace, owner::name(copy.meta()))])
    }

    /// The same of all copies in a namespace of the hub: its labels have come, changed or gone. Whom they named before is
    /// asked as well as whom they name now, since `home` is what the namespace was and then what it is.
    pub(crate) fn keys_of_home<K: Object>(
        &self,
        hub: &Plane,
        home: &Namespace,
    ) -> Result<Vec<Key>, Unresolved> {
        let copies = hub.list_within::<K>(owner::name(&home.metadata))?;
        for copy in &copies {
            _ = self.origin(hub, copy); // one that cannot be told is noted
        }
        let Ok(identity) = Identity::of(home) else { return Ok(Vec::new()) };
        let key = |copy: &K| Key::new(&identity.project, &identity.namespace, owner::name(copy.meta()));
        Ok(copies.iter().map(key).collect())
    }

    /// Notes whether an object is a stranger. True if that is new.
    fn note(&self, object: (String, String, String), stranger: bool) -> bool {
        let mut known = self.0.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let new = if stranger { known.insert(object) } else { known.remove(&object) };
        self.0.count.set(i64::try_from(known.len()).unwrap_or(i64::MAX));
        new
    }
}

fn namespace_of(meta: &ObjectMeta) -> &str {
    meta.namespace.as_deref().unwrap_or_default()
}

fn origin(hub: &Plane, meta: &ObjectMeta) -> Result<Identity, Unresolved> {
    let namespace = namespace_of(meta);
    let home = hub.get::<Namespace>(namespace)?.ok_or_else(|| {
        Unresolved(format!(
            "namespace {namespace} is not seen on the hub, or carries no {}",
            labels::UPSTREAM_CLUSTER_NAME
        ))
    })?;
    Identity::of(&home).map_err(|error| Unresolved(error.to_string()))
}

#[cfg(test)]
mod tests {
    use polis_engine::Engine;

    use super::*;

    fn mk_object(name: &str) -> (String, String, String) {
        ("Instance".into(), "ns-1".into(), name.into())
    }

    #[test]
    fn a_stranger_is_counted_until_it_is_known_or_gone() {
        let engine = Engine::new();
        let metrics = engine.handle().registry();
        let strangers = Strangers::new(engine.recorder("strangers"), &metrics);
        let counts = |count: &str| {
            let line = format!("polis_compute_hub_objects_unresolved {count}");
            assert!(metrics.render().lines().any(|found| found == line), "{count}");
        };
        counts("0");
        assert!(strangers.note(mk_object("a"), true));
        assert!(!strangers.note(mk_object("a"), true), "it is told of once");
        assert!(strangers.note(mk_object("b"), true));
        counts("2");
        strangers.note(mk_object("a"), false);
        strangers.note(mk_object("b"), false);
        counts("0");
        assert!(strangers.note(mk_object("a"), true), "it is told of again when it is one again");
    }
}
