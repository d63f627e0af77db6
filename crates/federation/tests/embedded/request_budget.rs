//! Request budget of the federation, and its quiescence when idle.

use std::time::Duration;

use polis_testing::{RecordedRequest, RequestVerb};
use serde_json::json;

use crate::fixture::{RecordedFederation, recorded};
use crate::suite::fixture::*;

/// Waits until the federation makes no requests except probes for 300 ms.
async fn quiescence(recorded: &RecordedFederation) {
    eventually("the federation is quiescent", || async {
        recorded.requests.drain();
        tokio::time::sleep(Duration::from_millis(300)).await;
        recorded.requests.drain().is_empty().then_some(())
    })
    .await;
}

fn writes(requests: &[RecordedRequest], plane: &str) -> usize {
    requests.iter().filter(|request| request.plane == plane && request.is_counted_write()).count()
}

fn reads(requests: &[RecordedRequest]) -> usize {
    requests.iter().filter(|request| !request.verb.is_write()).count()
}

#[tokio::test]
async fn a_new_object_needs_one_write_on_the_member_and_five_on_the_hub() {
    let recorded = recorded().await;
    let federation = &recorded.federation;
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "first")).await;
    federation
        .binding(&shop, "first", |binding| condition(binding, "FullyApplied")["status"] == "True")
        .await;
    quiescence(&recorded).await;

    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.binding(&shop, "a", |binding| condition(binding, "FullyApplied")["status"] == "True").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let made = recorded.requests.drain();
    // The claim on the object, the binding with its clusters, the Work; then the status of the Work and of
    // the binding.
    assert_eq!((writes(&made, "dfw"), writes(&made, "ord"), writes(&made, "hub")), (1, 0, 5), "{made:#?}");
    assert_eq!(reads(&made), 0, "{made:#?}");

    federation.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    federation.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let changed = recorded.requests.drain();
    assert_eq!((writes(&changed, "dfw"), writes(&changed, "hub")), (1, 1), "{changed:#?}");

    federation.dfw().set_status(&THING, &shop, "a", json!({"ready": 1})).await;
    federation
        .binding(&shop, "a", |binding| binding["status"]["aggregatedStatus"][0]["status"]["ready"] == 1)
        .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let reported = recorded.requests.drain();
    assert_eq!((writes(&reported, "dfw"), writes(&reported, "hub")), (0, 2), "{reported:#?}");
}

#[tokio::test]
async fn a_deletion_needs_one_write_on_the_member_and_two_per_hub_object() {
    let recorded = recorded().await;
    let federation = &recorded.federation;
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.binding(&shop, "a", |binding| condition(binding, "FullyApplied")["status"] == "True").await;
    quiescence(&recorded).await;

    federation.hub.delete(&THING, &shop, "a").await;
    federation.hub.loses(&WORK, "karmada-es-dfw", &polis_federation::names::work("Thing", &shop, "a")).await;
    federation.hub.loses(&BINDING, &shop, "a-thing").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let made = recorded.requests.drain();
    assert_eq!((writes(&made, "dfw"), writes(&made, "ord")), (1, 0), "{made:#?}");
    // A deletion and a finalizer removal each, for the Work and the binding; the garbage collector of the hub
    // may delete the binding first.
    assert!((3..=4).contains(&writes(&made, "hub")), "{made:#?}");
    // One read of the member's object; the response to its deletion confirms that it is deleted.
    let of_member: Vec<RecordedRequest> = made.into_iter().filter(|request| request.plane == "dfw").collect();
    assert_eq!(reads(&of_member), 1, "{of_member:#?}");
}

#[tokio::test]
async fn an_idle_federation_makes_no_requests() {
    let recorded = recorded().await;
    let federation = &recorded.federation;
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", json!({}))).await;
    for name in ["a", "b", "c"] {
        federation.hub.create(mk_thing(&shop, name)).await;
        federation
            .binding(&shop, name, |binding| condition(binding, "FullyApplied")["status"] == "True")
            .await;
    }
    quiescence(&recorded).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(recorded.requests.drain(), []);
}

#[tokio::test]
async fn a_restarted_federation_lists_and_does_not_read_each_copy() {
    let recorded = recorded().await;
    let federation = &recorded.federation;
    let shop = federation.delivered(&[]).await;
    for name in ["b", "c"] {
        federation.hub.create(mk_thing(&shop, name)).await;
        federation
            .binding(&shop, name, |binding| condition(binding, "FullyApplied")["status"] == "True")
            .await;
    }
    quiescence(&recorded).await;
    recorded.requests.stop();
    federation.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    recorded.requests.drain();

    recorded.requests.start();

    federation.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    let asked = recorded.requests.drain();
    let on_member = |verb: RequestVerb| {
        let of_things = asked.iter().filter(|request| request.plane == "dfw" && request.resource == "things");
        of_things.filter(|request| request.verb == verb).count()
    };
    assert_eq!(on_member(RequestVerb::Get), 0, "{asked:#?}");
    assert_eq!(on_member(RequestVerb::Update), 1, "{asked:#?}");
}

#[tokio::test]
async fn a_cluster_label_that_moves_no_object_causes_no_writes() {
    let recorded = recorded().await;
    let federation = &recorded.federation;
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    for name in ["a", "b", "c"] {
        federation.hub.create(mk_thing(&shop, name)).await;
        federation
            .binding(&shop, name, |binding| condition(binding, "FullyApplied")["status"] == "True")
            .await;
    }
    quiescence(&recorded).await;
    federation
        .hub
        .change(&CLUSTER, "", "ord", |cluster| cluster["metadata"]["labels"]["more"] = json!("yes"))
        .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(recorded.requests.drain(), []);
}

/// Prints the latency from the hub to the member and the throughput.
#[tokio::test]
async fn a_burst_of_objects_is_propagated_completely() {
    let recorded = recorded().await;
    let federation = &recorded.federation;
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "first")).await;
    federation.dfw().arrives(&THING, &shop, "first").await;
    let mut latencies = Vec::new();
    for n in 0..30 {
        let begun = std::time::Instant::now();
        federation.hub.create(mk_thing(&shop, &format!("one-{n}"))).await;
        while federation.dfw().api.get(&THING, &shop, &format!("one-{n}")).await.expect("an answer").is_none()
        {
            tokio::task::yield_now().await;
        }
        latencies.push(begun.elapsed());
    }
    latencies.sort();
    let begun = std::time::Instant::now();
    for n in 0..200 {
        federation.hub.create(mk_thing(&shop, &format!("burst-{n}"))).await;
    }
    eventually("all objects are propagated", || async {
        (federation.dfw().api.list(&THING).await.ok()?.len() >= 231).then_some(())
    })
    .await;
    let per_second = 200.0 / begun.elapsed().as_secs_f64();
    println!(
        "hub write to member object p50 {:?} max {:?}; burst of 200: {per_second:.0} objects/s",
        latencies[15], latencies[29]
    );
    assert_eq!(latencies.len(), 30);
}
