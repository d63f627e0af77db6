//! The federation may end after any write, and the next one brings everything to the same end.

use futures::StreamExt;
use serde_json::json;

use crate::suite::world::*;
use crate::world::{Tapped, tapped};

/// The life of an object: made, changed, moved, deleted; its policy as well.
async fn live(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.hub.create(mk_thing(&shop, "stays")).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    world.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    world.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    world.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["ord"])).await;
    world.ord().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    world.dfw().loses(&THING, &shop, "a").await;
    world.hub.delete(&THING, &shop, "a").await;
    world.ord().loses(&THING, &shop, "a").await;
    world.hub.delete(&POLICY, &shop, "p").await;
    world.hub.loses(&POLICY, &shop, "p").await;
    // The same end, whatever happened on the way.
    world.hub.loses(&BINDING, &shop, "a-thing").await;
    for member in ["dfw", "ord"] {
        world
            .hub
            .loses(
                &WORK,
                &format!("karmada-es-{member}"),
                &polis_federation::names::work("Thing", &shop, "a"),
            )
            .await;
        world.member(member).loses(&THING, &shop, "a").await;
    }
    world.ord().arrives(&THING, &shop, "stays").await;
    world.dfw().loses(&THING, &shop, "stays").await;
    let unmarked = |object: &serde_json::Value| {
        object["metadata"]["annotations"].get("propagationpolicy.karmada.io/name").is_none()
    };
    world.hub.has(&THING, &shop, "stays", unmarked).await;
    world
        .binding(&shop, "stays", |binding| {
            unmarked(binding) && names(&binding["spec"]["clusters"]) == ["ord"]
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_federation_that_ends_after_any_write_leaves_no_orphan() {
    let Tapped { world, tap } = tapped().await;
    tap.arm(usize::MAX);
    live(&world).await;
    let writes = tap.writes();
    drop(world);
    assert!(writes > 15, "{writes} writes are too few for a life");
    // A few more than were counted: the order of status writes is not the same every time.
    let ends = futures::stream::iter(1..=writes + 2).map(|last| async move {
        let Tapped { world, tap } = tapped().await;
        tap.arm(last);
        live(&world).await;
        last
    });
    let survived: Vec<usize> = ends.buffer_unordered(4).collect().await;
    assert_eq!(survived.len(), writes + 2);
}

#[tokio::test]
async fn a_work_that_is_seen_before_its_member_is_connected_is_not_forgotten() {
    let Tapped { world, tap } = tapped().await;
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    let (space, work) = ("karmada-es-dfw", polis_federation::names::work("Thing", &shop, "a"));
    tap.stop();
    world.hub.delete(&THING, &shop, "a").await;
    world.hub.delete(&WORK, space, &work).await;
    // Its finalizer must be written first, so the member is connected late. It has been ready all the time.
    world.hub.change(&CLUSTER, "", "dfw", |cluster| cluster["metadata"]["finalizers"] = json!([])).await;

    tap.start();

    world.dfw().loses(&THING, &shop, "a").await;
    world.hub.loses(&WORK, space, &work).await;
}

#[tokio::test]
async fn a_work_that_arrives_after_its_binding_has_gone_goes_too() {
    let Tapped { world, .. } = tapped().await;
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    let (space, name) = ("karmada-es-dfw", polis_federation::names::work("Thing", &shop, "a"));
    let mut late = world.hub.arrives(&WORK, space, &name).await;
    late["metadata"].as_object_mut().expect("metadata").retain(|key, _| {
        ["name", "namespace", "labels", "annotations", "finalizers"].contains(&key.as_str())
    });
    world.hub.delete(&THING, &shop, "a").await;
    world.hub.loses(&WORK, space, &name).await;

    world.hub.create(late).await;

    world.hub.loses(&WORK, space, &name).await;
    world.dfw().loses(&THING, &shop, "a").await;
}

#[tokio::test]
async fn a_member_may_be_lost_in_every_phase_of_a_life() {
    let Tapped { world, .. } = tapped().await;
    let shop = world.namespace().await;
    world.dfw().arrives(&NAMESPACE, "", &shop).await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    let lost = async || {
        world.cut_off("dfw");
        world.hub.has(&CLUSTER, "", "dfw", |cluster| condition(cluster, "Ready")["status"] == "False").await;
    };
    let found = async || {
        world.bring_back("dfw");
        world.hub.has(&CLUSTER, "", "dfw", |cluster| condition(cluster, "Ready")["status"] == "True").await;
    };
    // Before it is placed: it waits, for a cluster that is not ready takes nothing new.
    lost().await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.binding(&shop, "a", |binding| condition(binding, "Scheduled")["status"] == "False").await;
    found().await;
    world.dfw().arrives(&THING, &shop, "a").await;
    // While it changes.
    lost().await;
    world.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    found().await;
    world.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    // While it moves away.
    lost().await;
    world.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["ord"])).await;
    world.ord().arrives(&THING, &shop, "a").await;
    found().await;
    world.dfw().loses(&THING, &shop, "a").await;
    // While it ends.
    world.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["dfw"])).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    lost().await;
    world.hub.delete(&THING, &shop, "a").await;
    world.hub.loses(&BINDING, &shop, "a-thing").await;
    found().await;
    world.dfw().loses(&THING, &shop, "a").await;
    world.hub.loses(&WORK, "karmada-es-dfw", &polis_federation::names::work("Thing", &shop, "a")).await;
}
