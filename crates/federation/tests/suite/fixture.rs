//! Fixture of the conformance cases: a hub with two members, independent of the federation, with polling
//! helpers.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use polis_api::kube::Client;
pub use polis_engine::Kind;
use polis_engine::ResourceScope::{Cluster, Namespaced};
use polis_engine::{Error, ListOptions};
use serde_json::{Value, json};

pub const THING: Kind = Kind::known("suite.polis.test", "v1", "Thing", "things", Namespaced);
pub const PLACE: Kind = Kind::known("suite.polis.test", "v1", "Place", "places", Cluster);
pub const CONFIG_MAP: Kind = Kind::known("", "v1", "ConfigMap", "configmaps", Namespaced);
pub const NAMESPACE: Kind = Kind::known("", "v1", "Namespace", "namespaces", Cluster);
pub const CLUSTER: Kind = Kind::known("cluster.karmada.io", "v1alpha1", "Cluster", "clusters", Cluster);
pub const POLICY: Kind =
    Kind::known("policy.karmada.io", "v1alpha1", "PropagationPolicy", "propagationpolicies", Namespaced);
pub const CLUSTER_POLICY: Kind = Kind::known(
    "policy.karmada.io",
    "v1alpha1",
    "ClusterPropagationPolicy",
    "clusterpropagationpolicies",
    Cluster,
);
pub const BINDING: Kind =
    Kind::known("work.karmada.io", "v1alpha2", "ResourceBinding", "resourcebindings", Namespaced);
pub const CLUSTER_BINDING: Kind =
    Kind::known("work.karmada.io", "v1alpha2", "ClusterResourceBinding", "clusterresourcebindings", Cluster);
pub const WORK: Kind = Kind::known("work.karmada.io", "v1alpha1", "Work", "works", Namespaced);
pub const SCRIPTS: Kind = Kind::known(
    "config.karmada.io",
    "v1alpha1",
    "ResourceInterpreterCustomization",
    "resourceinterpretercustomizations",
    Cluster,
);
pub const SECRET: Kind = Kind::known("", "v1", "Secret", "secrets", Namespaced);
pub const CRD: Kind = Kind::known(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    Cluster,
);

/// Timeout of a wait. Karmada discovers new kinds every 30 s, and the machine may be busy.
const TIMEOUT: Duration = Duration::from_secs(90);
/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Makes a member unreachable (false) or reachable (true).
pub type Connectivity = Box<dyn Fn(&str, bool) + Send + Sync>;

/// A client of one plane.
#[derive(Clone)]
pub struct Api(polis_engine::Plane);

impl Api {
    /// The plane behind a client.
    pub fn new(name: &str, client: Client) -> Self {
        Api(polis_engine::Plane::from_kube_client(name, client))
    }

    #[allow(dead_code, reason = "the federation of some tests has planes of its own")]
    pub fn into_plane(self) -> polis_engine::Plane {
        self.0
    }

    pub async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Option<Value>, Error> {
        self.0.untyped(kind).read((namespace, name)).await
    }

    pub async fn list(&self, kind: &Kind) -> Result<Vec<Value>, Error> {
        self.0.untyped(kind).read_all(&ListOptions::all()).await
    }

    pub async fn create(&self, kind: &Kind, wanted: &Value) -> Result<Value, Error> {
        self.0.untyped(kind).create(wanted).await.map(|made| (*made).clone())
    }

    pub async fn replace(&self, kind: &Kind, wanted: &Value) -> Result<Value, Error> {
        self.0.untyped(kind).update(wanted).await.map(|made| (*made).clone())
    }

    pub async fn replace_status(&self, kind: &Kind, wanted: &Value) -> Result<Value, Error> {
        self.0.untyped(kind).update_status(wanted).await.map(|made| (*made).clone())
    }

    pub async fn delete(&self, kind: &Kind, namespace: &str, name: &str, uid: &str) -> Result<(), Error> {
        match self.0.untyped(kind).delete((namespace, name), uid).await {
            Err(error) if error.is_conflict() => Ok(()),
            result => result.map(drop),
        }
    }

    /// Whether the plane serves a kind.
    pub async fn serves(&self, kind: &Kind) -> bool {
        matches!(self.0.uncached().find_kind(&kind.api_version(), &kind.kind).await, Ok(Some(_)))
    }
}

/// One plane.
#[derive(Clone)]
pub struct Plane {
    pub api: Api,
    pub name: String,
    /// How long [`Plane::keeps`] and [`Plane::lacks`] observe.
    pub observe_for: Duration,
}

/// A hub and its members.
pub struct TestFederation {
    pub hub: Plane,
    members: BTreeMap<String, Plane>,
    /// Set if the fixture can disconnect members.
    set_reachable: Option<Connectivity>,
    /// Resources that live as long as the fixture.
    _resources: Box<dyn Any + Send + Sync>,
}

static COUNTER: AtomicUsize = AtomicUsize::new(0);

/// A unique name.
pub fn unique(base: &str) -> String {
    format!("{base}-{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
}

impl TestFederation {
    pub fn new(
        hub: Plane,
        members: Vec<Plane>,
        set_reachable: Option<Connectivity>,
        resources: impl Any + Send + Sync,
    ) -> Self {
        let members = members.into_iter().map(|member| (member.name.clone(), member)).collect();
        TestFederation { hub, members, set_reachable, _resources: Box::new(resources) }
    }

    pub fn member(&self, name: &str) -> &Plane {
        &self.members[name]
    }

    pub fn dfw(&self) -> &Plane {
        self.member("dfw")
    }

    pub fn ord(&self) -> &Plane {
        self.member("ord")
    }

    pub fn disconnect(&self, member: &str) {
        self.set_reachable.as_ref().expect("a fixture that can disconnect members")(member, false);
    }

    pub fn reconnect(&self, member: &str) {
        self.set_reachable.as_ref().expect("a fixture that can disconnect members")(member, true);
    }

    /// Creates a namespace for one case.
    pub async fn namespace(&self) -> String {
        let name = unique("shop");
        self.hub.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
        name
    }

    /// Creates a namespace in which the policy `p`, with these fields set, has propagated the Thing `a` to
    /// dfw.
    pub async fn delivered(&self, fields: &[(&str, Value)]) -> String {
        let shop = self.namespace().await;
        let policy = mk_policy(&shop, "p", to(&["dfw"]));
        let policy = fields.iter().fold(policy, |policy, (path, value)| with(policy, path, value.clone()));
        self.hub.create(policy).await;
        self.hub.create(mk_thing(&shop, "a")).await;
        self.dfw().arrives(&THING, &shop, "a").await;
        shop
    }

    /// Waits until an object of the hub has the claim of this policy.
    pub async fn claimed_by(&self, kind: &Kind, namespace: &str, name: &str, policy: &str) -> Value {
        self.hub
            .has(kind, namespace, name, |object| {
                let marks = &object["metadata"]["annotations"];
                marks["propagationpolicy.karmada.io/name"] == policy
                    || marks["clusterpropagationpolicy.karmada.io/name"] == policy
            })
            .await
    }

    /// The binding of a Thing.
    pub async fn binding(&self, namespace: &str, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
        self.hub.has(&BINDING, namespace, &format!("{name}-thing"), holds).await
    }
}

impl Plane {
    pub async fn create(&self, object: Value) -> Value {
        let kind = kind_of(&object);
        match self.api.create(&kind, &object).await {
            Ok(made) => made,
            Err(error) => panic!("{error}"),
        }
    }

    pub async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Value> {
        // A reconnected member may still fail.
        eventually(&format!("{} responds", self.name), || async {
            self.api.get(kind, namespace, name).await.ok()
        })
        .await
    }

    /// Updates an object; retries on conflict.
    pub async fn change(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        change: impl Fn(&mut Value),
    ) -> Value {
        eventually(&format!("{kind} {namespace}/{name} on {} can be changed", self.name), || async {
            let mut object = self.api.get(kind, namespace, name).await.ok()??;
            change(&mut object);
            match self.api.replace(kind, &object).await {
                Ok(changed) => Some(changed),
                Err(error) if error.is_conflict() => None,
                Err(error) => panic!("{error}"),
            }
        })
        .await
    }

    pub async fn set_status(&self, kind: &Kind, namespace: &str, name: &str, status: Value) -> Value {
        eventually(
            &format!("the status of {kind} {namespace}/{name} on {} can be set", self.name),
            || async {
                let mut object = self.api.get(kind, namespace, name).await.ok()??;
                object["status"] = status.clone();
                self.api.replace_status(kind, &object).await.ok()
            },
        )
        .await
    }

    pub async fn delete(&self, kind: &Kind, namespace: &str, name: &str) {
        let Some(object) = self.get(kind, namespace, name).await else { return };
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        self.api.delete(kind, namespace, name, uid).await.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits until the object exists and the condition holds.
    pub async fn has(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        let mut last = None;
        let started = Instant::now();
        while started.elapsed() < TIMEOUT {
            if let Ok(found) = self.api.get(kind, namespace, name).await {
                if let Some(object) = found.as_ref().filter(|object| holds(object)) {
                    return object.clone();
                }
                last = found;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        panic!("{kind} {namespace}/{name} on {} does not meet the condition: {last:#?}", self.name)
    }

    pub async fn arrives(&self, kind: &Kind, namespace: &str, name: &str) -> Value {
        self.has(kind, namespace, name, |_| true).await
    }

    /// Waits until the object is deleted.
    pub async fn loses(&self, kind: &Kind, namespace: &str, name: &str) {
        eventually(&format!("{kind} {namespace}/{name} is deleted on {}", self.name), || async {
            matches!(self.api.get(kind, namespace, name).await, Ok(None)).then_some(())
        })
        .await;
    }

    /// Checks that the object does not exist and is not created.
    pub async fn lacks(&self, kind: &Kind, namespace: &str, name: &str) {
        self.consistently(
            || async { self.api.get(kind, namespace, name).await.ok().flatten().is_none() },
            || format!("{kind} {namespace}/{name} came to {}", self.name),
        )
        .await;
    }

    /// Something holds of the object, and goes on holding.
    pub async fn keeps(&self, kind: &Kind, namespace: &str, name: &str, holds: impl Fn(&Value) -> bool) {
        self.consistently(
            || async {
                self.api.get(kind, namespace, name).await.ok().flatten().is_some_and(|object| holds(&object))
            },
            || format!("{kind} {namespace}/{name} on {} did not stay as it was", self.name),
        )
        .await;
    }

    async fn consistently<F: Future<Output = bool>>(
        &self,
        holds: impl Fn() -> F,
        otherwise: impl Fn() -> String,
    ) {
        let started = Instant::now();
        while started.elapsed() < self.observe_for {
            assert!(holds().await, "{}", otherwise());
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Polls until there is a value.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut poll: impl FnMut() -> F) -> T {
    let started = Instant::now();
    while started.elapsed() < TIMEOUT {
        if let Some(found) = poll().await {
            return found;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    panic!("timed out after {TIMEOUT:?}: {what}")
}

fn kind_of(object: &Value) -> Kind {
    let all = [
        THING,
        PLACE,
        CONFIG_MAP,
        NAMESPACE,
        CLUSTER,
        POLICY,
        CLUSTER_POLICY,
        BINDING,
        WORK,
        SCRIPTS,
        SECRET,
        CRD,
    ];
    let found = all
        .into_iter()
        .find(|kind| object["apiVersion"] == kind.api_version() && object["kind"] == *kind.kind);
    found.unwrap_or_else(|| panic!("unknown kind in the suite: {object}"))
}

pub fn mk_thing(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "suite.polis.test/v1", "kind": "Thing", "metadata": {"namespace": namespace, "name": name}, "spec": {"n": 1}})
}

pub fn labelled(mut object: Value, key: &str, value: &str) -> Value {
    if !object["metadata"]["labels"].is_object() {
        object["metadata"]["labels"] = json!({});
    }
    object["metadata"]["labels"][key] = json!(value);
    object
}

/// A policy for all Things of its namespace.
pub fn mk_policy(namespace: &str, name: &str, placement: Value) -> Value {
    json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"namespace": namespace, "name": name},
        "spec": {"resourceSelectors": [{"apiVersion": "suite.polis.test/v1", "kind": "Thing"}], "placement": placement},
    })
}

pub fn with(mut object: Value, path: &str, value: Value) -> Value {
    let (parent, field) = path.rsplit_once('/').expect("a pointer");
    object.pointer_mut(parent).unwrap_or_else(|| panic!("nothing at {parent}"))[field] = value;
    object
}

/// A ClusterPropagationPolicy for the Things of one namespace.
pub fn mk_cluster_policy(namespace: &str, name: &str, placement: Value) -> Value {
    json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "ClusterPropagationPolicy", "metadata": {"name": name},
        "spec": {"resourceSelectors": [{"apiVersion": "suite.polis.test/v1", "kind": "Thing", "namespace": namespace}], "placement": placement},
    })
}

pub fn to(clusters: &[&str]) -> Value {
    json!({"clusterAffinity": {"clusterNames": clusters}})
}

pub fn names(list: &Value) -> Vec<String> {
    list.as_array()
        .into_iter()
        .flatten()
        .map(|item| item["name"].as_str().unwrap_or_default().to_owned())
        .collect()
}

pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    object["status"]["conditions"]
        .as_array()
        .and_then(|all| all.iter().find(|condition| condition["type"] == kind))
        .unwrap_or(&Value::Null)
}
