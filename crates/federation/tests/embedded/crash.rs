//! Crash tests: the federation may crash after any write, and its successor reaches the same final state.

use futures::StreamExt;
use serde_json::json;

use crate::fixture::{RecordedFederation, recorded};
use crate::lifecycles::{self, Lifecycle};
use crate::suite::fixture::*;

/// Runs a lifecycle once to count its writes, then once for each write that `selected` accepts, with a crash
/// after that write. The lifecycle checks the final state. Two more writes than counted are tried, because
/// the number of status writes varies.
async fn crash_after_each_write(lifecycle: Lifecycle, selected: impl Fn(usize) -> bool) {
    let RecordedFederation { federation, requests } = recorded().await;
    requests.arm(usize::MAX);
    lifecycle(&federation).await;
    let writes = requests.writes();
    drop(federation);
    assert!(writes > 10, "{writes} writes are too few for a lifecycle");
    let runs =
        futures::stream::iter((1..=writes + 2).filter(|last| selected(*last))).map(|last| async move {
            let RecordedFederation { federation, requests } = recorded().await;
            requests.arm(last);
            lifecycle(&federation).await;
            println!("crashed after write {last} of {writes} and reached the final state");
        });
    runs.buffer_unordered(4).collect::<()>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_after_any_write_leaves_no_orphan() {
    crash_after_each_write(lifecycles::plain_object, |_| true).await;
}

/// Some writes of each lifecycle, different ones for each; `every_write_of_every_lifecycle` tries all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_in_other_lifecycles_leaves_no_orphan() {
    for (first, (_, lifecycle)) in lifecycles::OTHERS.into_iter().enumerate() {
        crash_after_each_write(lifecycle, |last| last % 11 == first + 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes: cargo test -p polis-federation --test embedded -- --ignored every_write"]
async fn every_write_of_every_lifecycle() {
    for (name, lifecycle) in lifecycles::OTHERS {
        println!("lifecycle: {name}");
        crash_after_each_write(lifecycle, |_| true).await;
    }
}

#[tokio::test]
async fn a_work_reconciled_before_its_member_is_connected_is_requeued() {
    let RecordedFederation { federation, requests } = recorded().await;
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    let (space, work) = ("karmada-es-dfw", polis_federation::names::work("Thing", &shop, "a"));
    requests.stop();
    federation.hub.delete(&THING, &shop, "a").await;
    federation.hub.delete(&WORK, space, &work).await;
    // The finalizer must be written first, so the member is connected late, although it was ready before.
    federation.hub.change(&CLUSTER, "", "dfw", |cluster| cluster["metadata"]["finalizers"] = json!([])).await;

    requests.start();

    federation.dfw().loses(&THING, &shop, "a").await;
    federation.hub.loses(&WORK, space, &work).await;
}

#[tokio::test]
async fn a_work_created_after_the_deletion_of_its_binding_is_deleted() {
    let RecordedFederation { federation, .. } = recorded().await;
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    let (space, name) = ("karmada-es-dfw", polis_federation::names::work("Thing", &shop, "a"));
    let mut late = federation.hub.arrives(&WORK, space, &name).await;
    late["metadata"].as_object_mut().expect("metadata").retain(|key, _| {
        ["name", "namespace", "labels", "annotations", "finalizers"].contains(&key.as_str())
    });
    federation.hub.delete(&THING, &shop, "a").await;
    federation.hub.loses(&WORK, space, &name).await;

    federation.hub.create(late).await;

    federation.hub.loses(&WORK, space, &name).await;
    federation.dfw().loses(&THING, &shop, "a").await;
}

#[tokio::test]
async fn a_member_may_be_unreachable_in_every_phase_of_a_lifecycle() {
    let RecordedFederation { federation, .. } = recorded().await;
    let shop = federation.namespace().await;
    federation.dfw().arrives(&NAMESPACE, "", &shop).await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    let disconnect = async || {
        federation.disconnect("dfw");
        federation
            .hub
            .has(&CLUSTER, "", "dfw", |cluster| condition(cluster, "Ready")["status"] == "False")
            .await;
    };
    let reconnect = async || {
        federation.reconnect("dfw");
        federation
            .hub
            .has(&CLUSTER, "", "dfw", |cluster| condition(cluster, "Ready")["status"] == "True")
            .await;
    };
    // Before scheduling: the object waits, because a member that is not ready gets no new objects.
    disconnect().await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.binding(&shop, "a", |binding| condition(binding, "Scheduled")["status"] == "False").await;
    reconnect().await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    // During a change.
    disconnect().await;
    federation.hub.change(&THING, &shop, "a", |thing| thing["spec"]["n"] = json!(2)).await;
    reconnect().await;
    federation.dfw().has(&THING, &shop, "a", |copy| copy["spec"]["n"] == 2).await;
    // During a move.
    disconnect().await;
    federation.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["ord"])).await;
    federation.ord().arrives(&THING, &shop, "a").await;
    reconnect().await;
    federation.dfw().loses(&THING, &shop, "a").await;
    // During the deletion.
    federation.hub.change(&POLICY, &shop, "p", |policy| policy["spec"]["placement"] = to(&["dfw"])).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    disconnect().await;
    federation.hub.delete(&THING, &shop, "a").await;
    federation.hub.loses(&BINDING, &shop, "a-thing").await;
    reconnect().await;
    federation.dfw().loses(&THING, &shop, "a").await;
    federation.hub.loses(&WORK, "karmada-es-dfw", &polis_federation::names::work("Thing", &shop, "a")).await;
}

#[tokio::test]
async fn a_member_removed_while_the_federation_is_stopped_is_drained() {
    let RecordedFederation { federation, requests } = recorded().await;
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", json!({}))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.ord().arrives(&THING, &shop, "a").await;
    requests.stop();
    federation.hub.delete(&CLUSTER, "", "ord").await;
    requests.start();
    federation.hub.loses(&CLUSTER, "", "ord").await;
    federation.ord().loses(&THING, &shop, "a").await;
    federation.dfw().arrives(&THING, &shop, "a").await;
}
