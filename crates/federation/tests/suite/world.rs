//! A hub with two members, whoever federates them, in the words of the cases.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use polis_federation::planes::{Api, Fault, Kind};
use serde_json::{Value, json};

pub const THING: Kind = Kind::known("suite.polis.test/v1", "Thing", "things", true);
pub const PLACE: Kind = Kind::known("suite.polis.test/v1", "Place", "places", false);
pub const CONFIG_MAP: Kind = Kind::known("v1", "ConfigMap", "configmaps", true);
pub const NAMESPACE: Kind = Kind::known("v1", "Namespace", "namespaces", false);
pub const CLUSTER: Kind = Kind::known("cluster.karmada.io/v1alpha1", "Cluster", "clusters", false);
pub const POLICY: Kind =
    Kind::known("policy.karmada.io/v1alpha1", "PropagationPolicy", "propagationpolicies", true);
pub const CLUSTER_POLICY: Kind = Kind::known(
    "policy.karmada.io/v1alpha1",
    "ClusterPropagationPolicy",
    "clusterpropagationpolicies",
    false,
);
pub const BINDING: Kind =
    Kind::known("work.karmada.io/v1alpha2", "ResourceBinding", "resourcebindings", true);
pub const CLUSTER_BINDING: Kind =
    Kind::known("work.karmada.io/v1alpha2", "ClusterResourceBinding", "clusterresourcebindings", false);
pub const WORK: Kind = Kind::known("work.karmada.io/v1alpha1", "Work", "works", true);
pub const SCRIPTS: Kind = Kind::known(
    "config.karmada.io/v1alpha1",
    "ResourceInterpreterCustomization",
    "resourceinterpretercustomizations",
    false,
);
pub const SECRET: Kind = Kind::known("v1", "Secret", "secrets", true);
pub const CRD: Kind =
    Kind::known("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", false);

/// How long a condition may take to come true. Karmada looks for new kinds every 30 s, and the machine may be busy.
const WITHIN: Duration = Duration::from_secs(90);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// Cuts a member off (false), or brings it back (true).
pub type Cut = Box<dyn Fn(&str, bool) + Send + Sync>;

/// One API server.
#[derive(Clone)]
pub struct Plane {
    pub api: Api,
    pub name: String,
    /// How long "still the same" is watched.
    pub quiet: Duration,
}

/// The whole.
pub struct World {
    pub hub: Plane,
    members: BTreeMap<String, Plane>,
    /// Where the world can do that.
    cut: Option<Cut>,
    /// What must live as long as the world.
    _keep: Box<dyn Any + Send + Sync>,
}

static COUNTER: AtomicUsize = AtomicUsize::new(0);

/// A name that no other case has.
pub fn unique(base: &str) -> String {
    format!("{base}-{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
}

impl World {
    pub fn new(hub: Plane, members: Vec<Plane>, cut: Option<Cut>, keep: impl Any + Send + Sync) -> Self {
        let members = members.into_iter().map(|member| (member.name.clone(), member)).collect();
        World { hub, members, cut, _keep: Box::new(keep) }
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

    pub fn cut_off(&self, member: &str) {
        self.cut.as_ref().expect("a world that can cut members off")(member, false);
    }

    pub fn bring_back(&self, member: &str) {
        self.cut.as_ref().expect("a world that can cut members off")(member, true);
    }

    /// A namespace of its own for a case.
    pub async fn namespace(&self) -> String {
        let name = unique("shop");
        self.hub.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
        name
    }

    /// A namespace of its own, in which the policy `p`, with these fields set, has brought the Thing `a` to dfw.
    pub async fn delivered(&self, fields: &[(&str, Value)]) -> String {
        let shop = self.namespace().await;
        let policy = mk_policy(&shop, "p", to(&["dfw"]));
        let policy = fields.iter().fold(policy, |policy, (path, value)| with(policy, path, value.clone()));
        self.hub.create(policy).await;
        self.hub.create(mk_thing(&shop, "a")).await;
        self.dfw().arrives(&THING, &shop, "a").await;
        shop
    }

    /// The marks on an object of the hub: label and annotations of whoever claimed it.
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
        // A world that was just brought back may still refuse.
        eventually(&format!("{} answers", self.name), || async {
            self.api.get(kind, namespace, name).await.ok()
        })
        .await
    }

    /// Changes an object as it is now; again if someone was faster.
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
                Err(error) if error.fault == Fault::Conflict => None,
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

    /// Waits until the object is there and something holds of it.
    pub async fn has(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Value {
        let mut last = None;
        let begun = Instant::now();
        while begun.elapsed() < WITHIN {
            if let Ok(found) = self.api.get(kind, namespace, name).await {
                if let Some(object) = found.as_ref().filter(|object| holds(object)) {
                    return object.clone();
                }
                last = found;
            }
            tokio::time::sleep(LOOK).await;
        }
        panic!("{kind} {namespace}/{name} on {} is not as it should be: {last:#?}", self.name)
    }

    pub async fn arrives(&self, kind: &Kind, namespace: &str, name: &str) -> Value {
        self.has(kind, namespace, name, |_| true).await
    }

    /// Waits until the object is gone.
    pub async fn loses(&self, kind: &Kind, namespace: &str, name: &str) {
        eventually(&format!("{kind} {namespace}/{name} is gone from {}", self.name), || async {
            matches!(self.api.get(kind, namespace, name).await, Ok(None)).then_some(())
        })
        .await;
    }

    /// The object is not there, and does not come.
    pub async fn lacks(&self, kind: &Kind, namespace: &str, name: &str) {
        self.throughout(
            || async { self.api.get(kind, namespace, name).await.ok().flatten().is_none() },
            || format!("{kind} {namespace}/{name} came to {}", self.name),
        )
        .await;
    }

    /// Something holds of the object, and goes on holding.
    pub async fn keeps(&self, kind: &Kind, namespace: &str, name: &str, holds: impl Fn(&Value) -> bool) {
        self.throughout(
            || async {
                self.api.get(kind, namespace, name).await.ok().flatten().is_some_and(|object| holds(&object))
            },
            || format!("{kind} {namespace}/{name} on {} did not stay as it was", self.name),
        )
        .await;
    }

    async fn throughout<F: Future<Output = bool>>(
        &self,
        holds: impl Fn() -> F,
        otherwise: impl Fn() -> String,
    ) {
        let begun = Instant::now();
        while begun.elapsed() < self.quiet {
            assert!(holds().await, "{}", otherwise());
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Waits until something is there.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let begun = Instant::now();
    while begun.elapsed() < WITHIN {
        if let Some(found) = look().await {
            return found;
        }
        tokio::time::sleep(LOOK).await;
    }
    panic!("not within {WITHIN:?}: {what}")
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
        .find(|kind| object["apiVersion"] == *kind.api_version && object["kind"] == *kind.kind);
    found.unwrap_or_else(|| panic!("a kind that the suite does not know: {object}"))
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

/// A policy over all Things of its namespace.
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

/// A ClusterPropagationPolicy over the Things of one namespace.
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
