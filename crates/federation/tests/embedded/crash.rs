//! The federation may end after any write, and the next one brings everything to the same end.

use futures::StreamExt;
use serde_json::json;

use crate::lives::{self, Life};
use crate::suite::world::*;
use crate::world::{Tapped, tapped};

/// Lives through a life once, and then again for each of its writes that `chosen` takes, with a federation that ends right
/// after it. A life itself says how it must end. A few more writes than were counted: the order of status writes is not
/// the same every time.
async fn die_everywhere(life: Life, chosen: impl Fn(usize) -> bool) {
    let Tapped { world, tap } = tapped().await;
    tap.arm(usize::MAX);
    life(&world).await;
    let writes = tap.writes();
    drop(world);
    assert!(writes > 10, "{writes} writes are too few for a life");
    let ends = futures::stream::iter((1..=writes + 2).filter(|last| chosen(*last))).map(|last| async move {
        let Tapped { world, tap } = tapped().await;
        tap.arm(last);
        life(&world).await;
        println!("ended after write {last} of {writes}, and came to the same end");
    });
    ends.buffer_unordered(4).collect::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_federation_that_ends_after_any_write_leaves_no_orphan() {
    die_everywhere(lives::of_an_object, |_| true).await;
}

/// A few writes of each life, other ones for each; `every_write_of_every_life` takes them all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_federation_that_ends_in_other_lives_leaves_no_orphan() {
    for (first, (_, life)) in lives::OTHERS.into_iter().enumerate() {
        die_everywhere(life, |last| last % 11 == first + 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: cargo test -p polis-federation --test embedded -- --ignored every_write"]
async fn every_write_of_every_life() {
    for (name, life) in lives::OTHERS {
        println!("the life of {name}");
        die_everywhere(life, |_| true).await;
    }
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

#[tokio::test]
async fn a_member_that_was_told_to_leave_while_nobody_looked_is_drained() {
    let Tapped { world, tap } = tapped().await;
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", json!({}))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.ord().arrives(&THING, &shop, "a").await;
    tap.stop();
    world.hub.delete(&CLUSTER, "", "ord").await;
    tap.start();
    world.hub.loses(&CLUSTER, "", "ord").await;
    world.ord().loses(&THING, &shop, "a").await;
    world.dfw().arrives(&THING, &shop, "a").await;
}
