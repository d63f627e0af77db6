//! What the federation costs in requests, and that it is silent when nothing happens.

use std::time::Duration;

use serde_json::json;

use crate::suite::world::*;
use crate::world::{Tapped, tapped};

/// Waits until no request but probes was made for a while.
async fn silence(tapped: &Tapped) {
    eventually("the federation falls silent", || async {
        tapped.tap.drain();
        tokio::time::sleep(Duration::from_millis(300)).await;
        tapped.tap.drain().is_empty().then_some(())
    })
    .await;
}

fn writes(requests: &[(String, String, String)], plane: &str) -> usize {
    requests
        .iter()
        .filter(|(on, method, path)| on == plane && method != "GET" && !path.contains("/events"))
        .count()
}

#[tokio::test]
async fn an_object_costs_one_write_on_the_member_and_five_on_the_hub() {
    let tapped = tapped().await;
    let world = &tapped.world;
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "first")).await;
    world.binding(&shop, "first", |binding| condition(binding, "FullyApplied")["status"] == "True").await;
    silence(&tapped).await;

    world.hub.create(mk_thing(&shop, "a")).await;
    world.binding(&shop, "a", |binding| condition(binding, "FullyApplied")["status"] == "True").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let made = tapped.tap.drain();
    // Marks on the object, the binding with its clusters, the Work; then the status of the Work and of the binding.
    assert_eq!((writes(&made, "dfw"), writes(&made, "ord"), writes(&made, "hub")), (1, 0, 5), "{made:#?}");
    let reads = made.iter().filter(|(_, method, _)| method == "GET").count();
    assert_eq!(reads, 0, "{made:#?}");

    world.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    world.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let changed = tapped.tap.drain();
    assert_eq!((writes(&changed, "dfw"), writes(&changed, "hub")), (1, 1), "{changed:#?}");

    world.dfw().set_status(&THING, &shop, "a", json!({"ready": 1})).await;
    world
        .binding(&shop, "a", |binding| binding["status"]["aggregatedStatus"][0]["status"]["ready"] == 1)
        .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let told = tapped.tap.drain();
    assert_eq!((writes(&told, "dfw"), writes(&told, "hub")), (0, 2), "{told:#?}");
}

#[tokio::test]
async fn the_end_of_an_object_costs_one_write_on_the_member_and_two_for_each_of_its_records() {
    let tapped = tapped().await;
    let world = &tapped.world;
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.binding(&shop, "a", |binding| condition(binding, "FullyApplied")["status"] == "True").await;
    silence(&tapped).await;

    world.hub.delete(&THING, &shop, "a").await;
    world.hub.loses(&WORK, "karmada-es-dfw", &polis_federation::names::work("Thing", &shop, "a")).await;
    world.hub.loses(&BINDING, &shop, "a-thing").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let made = tapped.tap.drain();
    assert_eq!((writes(&made, "dfw"), writes(&made, "ord")), (1, 0), "{made:#?}");
    // A deletion and the end of the finalizer each, for the Work and the binding; the garbage collector of the hub may be
    // faster with the binding.
    assert!((3..=4).contains(&writes(&made, "hub")), "{made:#?}");
    // The member is asked once what it has, and its answer to the deletion is its word that it is gone.
    let asked = made.iter().filter(|(on, method, _)| on == "dfw" && method == "GET").count();
    assert_eq!(asked, 1, "{made:#?}");
}

#[tokio::test]
async fn an_idle_federation_is_silent() {
    let tapped = tapped().await;
    let world = &tapped.world;
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", json!({}))).await;
    for name in ["a", "b", "c"] {
        world.hub.create(mk_thing(&shop, name)).await;
        world.binding(&shop, name, |binding| condition(binding, "FullyApplied")["status"] == "True").await;
    }
    silence(&tapped).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(tapped.tap.drain(), []);
}

#[tokio::test]
async fn a_federation_that_starts_anew_asks_for_lists_and_not_for_each_copy() {
    let tapped = tapped().await;
    let world = &tapped.world;
    let shop = world.delivered(&[]).await;
    for name in ["b", "c"] {
        world.hub.create(mk_thing(&shop, name)).await;
        world.binding(&shop, name, |binding| condition(binding, "FullyApplied")["status"] == "True").await;
    }
    silence(&tapped).await;
    tapped.tap.stop();
    world.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    tapped.tap.drain();

    tapped.tap.start();

    world.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    let asked = tapped.tap.drain();
    let on_member = |method: &str, part: &str| {
        asked.iter().filter(|(on, by, path)| on == "dfw" && by == method && path.contains(part)).count()
    };
    assert_eq!(on_member("GET", &format!("/namespaces/{shop}/things/")), 0, "{asked:#?}");
    assert_eq!(on_member("PUT", "/things/"), 1, "{asked:#?}");
}

#[tokio::test]
async fn a_label_of_one_cluster_rewrites_only_what_it_moves() {
    let tapped = tapped().await;
    let world = &tapped.world;
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    for name in ["a", "b", "c"] {
        world.hub.create(mk_thing(&shop, name)).await;
        world.binding(&shop, name, |binding| condition(binding, "FullyApplied")["status"] == "True").await;
    }
    silence(&tapped).await;
    world
        .hub
        .change(&CLUSTER, "", "ord", |cluster| cluster["metadata"]["labels"]["more"] = json!("yes"))
        .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(tapped.tap.drain(), []);
}

/// Prints how long an object takes from the hub to the member, and how many a second.
#[tokio::test]
async fn a_burst_of_objects_arrives_whole() {
    let tapped = tapped().await;
    let world = &tapped.world;
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    world.hub.create(mk_thing(&shop, "first")).await;
    world.dfw().arrives(&THING, &shop, "first").await;
    let mut latencies = Vec::new();
    for n in 0..30 {
        let begun = std::time::Instant::now();
        world.hub.create(mk_thing(&shop, &format!("one-{n}"))).await;
        while world.dfw().api.get(&THING, &shop, &format!("one-{n}")).await.expect("an answer").is_none() {
            tokio::task::yield_now().await;
        }
        latencies.push(begun.elapsed());
    }
    latencies.sort();
    let begun = std::time::Instant::now();
    for n in 0..200 {
        world.hub.create(mk_thing(&shop, &format!("burst-{n}"))).await;
    }
    eventually("all have arrived", || async {
        (world.dfw().api.list(&THING).await.ok()?.0.len() >= 231).then_some(())
    })
    .await;
    let per_second = 200.0 / begun.elapsed().as_secs_f64();
    println!(
        "hub write to member object p50 {:?} max {:?}; burst of 200: {per_second:.0} objects/s",
        latencies[15], latencies[29]
    );
    assert_eq!(latencies.len(), 30);
}
