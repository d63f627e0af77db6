//! Lifecycles for the crash tests. Each checks its final state, which must be the same after a crash at any
//! write.

use std::pin::Pin;

use serde_json::{Value, json};

use crate::suite::dependencies::{mk_config, mk_object, with_dependency};
use crate::suite::fixture::*;

/// A sequence of operations on a federation with a fixed final state.
pub type Lifecycle = for<'a> fn(&'a TestFederation) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// All lifecycles except that of a plain object.
pub const OTHERS: [(&str, Lifecycle); 4] = [
    ("a member that is removed", member_removal),
    ("dependencies", dependencies),
    ("a suspended object", suspension),
    ("a preserved copy", preserved_copy),
];

fn work(namespace: &str, name: &str) -> String {
    polis_federation::names::work("Thing", namespace, name)
}

fn is_unclaimed(object: &Value) -> bool {
    object["metadata"]["annotations"].get("propagationpolicy.karmada.io/name").is_none()
}

/// Waits until the binding, Works and copies of an object are deleted.
async fn await_deletion(federation: &TestFederation, namespace: &str, name: &str) {
    federation.hub.loses(&BINDING, namespace, &format!("{name}-thing")).await;
    for member in ["dfw", "ord"] {
        federation.hub.loses(&WORK, &format!("karmada-es-{member}"), &work(namespace, name)).await;
        federation.member(member).loses(&THING, namespace, name).await;
    }
}

/// An object is created, changed, moved and deleted, then its policy.
pub fn plain_object(federation: &TestFederation) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    Box::pin(async move {
        let shop = federation.namespace().await;
        federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
        federation.hub.create(mk_thing(&shop, "a")).await;
        federation.hub.create(mk_thing(&shop, "stays")).await;
        federation.dfw().arrives(&THING, &shop, "a").await;
        federation.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
        federation.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
        federation.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["ord"])).await;
        federation.ord().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
        federation.dfw().loses(&THING, &shop, "a").await;
        federation.hub.delete(&THING, &shop, "a").await;
        federation.ord().loses(&THING, &shop, "a").await;
        federation.hub.delete(&POLICY, &shop, "p").await;
        federation.hub.loses(&POLICY, &shop, "p").await;

        await_deletion(federation, &shop, "a").await;
        federation.ord().arrives(&THING, &shop, "stays").await;
        federation.dfw().loses(&THING, &shop, "stays").await;
        federation.hub.has(&THING, &shop, "stays", is_unclaimed).await;
        let released =
            |binding: &Value| is_unclaimed(binding) && names(&binding["spec"]["clusters"]) == ["ord"];
        federation.binding(&shop, "stays", released).await;
    })
}

/// A removed member is drained; other members keep their objects.
fn member_removal(federation: &TestFederation) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    Box::pin(async move {
        let shop = federation.namespace().await;
        federation.hub.create(mk_policy(&shop, "p", json!({}))).await;
        for name in ["a", "b"] {
            federation.hub.create(mk_thing(&shop, name)).await;
            federation.ord().arrives(&THING, &shop, name).await;
        }
        federation.hub.delete(&CLUSTER, "", "ord").await;
        federation.hub.loses(&CLUSTER, "", "ord").await;
        federation.hub.delete(&THING, &shop, "b").await;

        await_deletion(federation, &shop, "b").await;
        federation.hub.loses(&NAMESPACE, "", "karmada-es-ord").await;
        federation.ord().loses(&THING, &shop, "a").await;
        federation.dfw().arrives(&THING, &shop, "a").await;
        federation.binding(&shop, "a", |binding| names(&binding["spec"]["clusters"]) == ["dfw"]).await;
    })
}

/// A dependency is propagated, moved and removed with its dependent object; it stays on the hub.
fn dependencies(federation: &TestFederation) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    Box::pin(async move {
        let (kind, shop) = with_dependency(federation, to(&["dfw"])).await;
        federation.hub.create(mk_config(&shop, "settings")).await;
        federation.hub.api.create(&kind, &mk_object(&kind, &shop, "a", "settings")).await.expect("created");
        federation.dfw().arrives(&CONFIG_MAP, &shop, "settings").await;
        federation.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["ord"])).await;
        federation.ord().arrives(&CONFIG_MAP, &shop, "settings").await;
        federation.hub.delete(&kind, &shop, "a").await;

        federation.hub.loses(&BINDING, &shop, &polis_federation::names::binding(&kind.kind, "a")).await;
        federation.hub.loses(&BINDING, &shop, "settings-configmap").await;
        for member in [federation.dfw(), federation.ord()] {
            member.loses(&kind, &shop, "a").await;
            member.loses(&CONFIG_MAP, &shop, "settings").await;
        }
        federation.hub.arrives(&CONFIG_MAP, &shop, "settings").await;
    })
}

/// An object is created suspended, resumed, suspended again and deleted.
fn suspension(federation: &TestFederation) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    Box::pin(async move {
        let shop = federation.namespace().await;
        let suspend = async |on: bool| {
            let change = move |policy: &mut Value| policy["spec"]["suspension"] = json!({"dispatching": on});
            federation.hub.change(&POLICY, &shop, "p", change).await;
            let suspended = move |work: &Value| work["spec"]["suspendDispatching"] == on;
            federation.hub.has(&WORK, "karmada-es-dfw", &work(&shop, "a"), suspended).await;
        };
        let policy = mk_policy(&shop, "p", to(&["dfw"]));
        federation.hub.create(with(policy, "/spec/suspension", json!({"dispatching": true}))).await;
        federation.hub.create(mk_thing(&shop, "a")).await;
        let held = |work: &Value| condition(work, "Dispatching")["status"] == "False";
        federation.hub.has(&WORK, "karmada-es-dfw", &work(&shop, "a"), held).await;
        assert_eq!(federation.dfw().get(&THING, &shop, "a").await, None);
        suspend(false).await;
        federation.dfw().arrives(&THING, &shop, "a").await;
        suspend(true).await;
        federation.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
        federation.hub.delete(&THING, &shop, "a").await;

        await_deletion(federation, &shop, "a").await;
    })
}

/// The hub object is deleted; the member keeps its copy without the federation's metadata.
fn preserved_copy(federation: &TestFederation) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    Box::pin(async move {
        let shop = federation.namespace().await;
        let policy = mk_policy(&shop, "p", to(&["dfw", "ord"]));
        federation.hub.create(with(policy, "/spec/preserveResourcesOnDeletion", json!(true))).await;
        federation.hub.create(mk_thing(&shop, "a")).await;
        for member in [federation.dfw(), federation.ord()] {
            member.arrives(&THING, &shop, "a").await;
        }
        federation.hub.delete(&THING, &shop, "a").await;

        federation.hub.loses(&BINDING, &shop, "a-thing").await;
        for member in ["dfw", "ord"] {
            federation.hub.loses(&WORK, &format!("karmada-es-{member}"), &work(&shop, "a")).await;
            let free = |copy: &Value| {
                copy["metadata"]["labels"].get("karmada.io/managed").is_none()
                    && copy["metadata"].get("deletionTimestamp").is_none()
            };
            federation.member(member).has(&THING, &shop, "a", free).await;
        }
    })
}
