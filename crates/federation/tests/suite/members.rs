//! Members: join, readiness, loss and removal.

use serde_json::{Value, json};

use super::bad_input::await_event;
use super::fixture::*;

pub async fn a_member_reports_readiness_and_apis(federation: &TestFederation) {
    let cluster = federation
        .hub
        .has(&CLUSTER, "", "dfw", |cluster| {
            condition(cluster, "Ready")["status"] == "True" && cluster["status"]["apiEnablements"].is_array()
        })
        .await;
    assert_eq!(condition(&cluster, "Ready")["reason"], "ClusterReady");
    let served = cluster["status"]["apiEnablements"].as_array().expect("a list");
    let things =
        served.iter().find(|group| group["groupVersion"] == "suite.polis.test/v1").expect("our group");
    assert!(
        things["resources"]
            .as_array()
            .expect("a list")
            .iter()
            .any(|resource| resource["kind"] == "Thing" && resource["name"] == "things")
    );
    assert!(
        cluster["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|all| all.contains(&json!("karmada.io/cluster-controller")))
    );
    let space = federation.hub.arrives(&NAMESPACE, "", "karmada-es-dfw").await;
    assert_eq!(space["metadata"]["labels"]["karmada.io/system"], "true");
}

pub async fn a_cluster_without_a_secret_reports_the_error(federation: &TestFederation) {
    let name = unique("lost");
    federation
        .hub
        .create(json!({
            "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
            "spec": {"syncMode": "Push", "apiEndpoint": "https://127.0.0.1:1", "secretRef": {"namespace": "karmada-cluster", "name": name}},
        }))
        .await;
    let cluster = federation
        .hub
        .has(&CLUSTER, "", &name, |cluster| condition(cluster, "Ready")["status"] == "False")
        .await;
    assert!(
        condition(&cluster, "Ready")["message"]
            .as_str()
            .is_some_and(|message| message.contains("does not exist")),
        "{cluster:#?}"
    );
    assert!(cluster["spec"]["taints"].to_string().contains("not-ready"));
    federation.hub.delete(&CLUSTER, "", &name).await;
    federation.hub.loses(&CLUSTER, "", &name).await;
}

pub async fn an_unreachable_cluster_is_not_ready_and_can_be_removed(federation: &TestFederation) {
    let name = unique("dead");
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "karmada-cluster", "name": name}, "stringData": {"token": "t"},
    });
    if federation.hub.get(&NAMESPACE, "", "karmada-cluster").await.is_none() {
        federation
            .hub
            .create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "karmada-cluster"}}))
            .await;
    }
    federation.hub.create(secret).await;
    federation
        .hub
        .create(json!({
            "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
            "spec": {
                "syncMode": "Push", "apiEndpoint": "https://127.0.0.1:1", "insecureSkipTLSVerification": true,
                "secretRef": {"namespace": "karmada-cluster", "name": name},
            },
        }))
        .await;
    let cluster = federation
        .hub
        .has(&CLUSTER, "", &name, |cluster| condition(cluster, "Ready")["status"] == "False")
        .await;
    assert_eq!(condition(&cluster, "Ready")["reason"], "ClusterNotReachable");
    federation.hub.arrives(&NAMESPACE, "", &format!("karmada-es-{name}")).await;
    federation.hub.delete(&CLUSTER, "", &name).await;
    federation.hub.loses(&CLUSTER, "", &name).await;
    federation.hub.loses(&NAMESPACE, "", &format!("karmada-es-{name}")).await;
}

async fn await_ready(federation: &TestFederation, cluster: &str, ready: &str) {
    federation.hub.has(&CLUSTER, "", cluster, |cluster| condition(cluster, "Ready")["status"] == ready).await;
}

pub async fn objects_stay_while_a_member_is_unreachable_and_sync_when_it_returns(
    federation: &TestFederation,
) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    for name in ["changed", "deleted", "stays"] {
        federation.hub.create(mk_thing(&shop, name)).await;
        federation.dfw().arrives(&THING, &shop, name).await;
    }
    federation.disconnect("dfw");
    await_ready(federation, "dfw", "False").await;
    federation
        .hub
        .has(&CLUSTER, "", "dfw", |cluster| cluster["spec"]["taints"].to_string().contains("not-ready"))
        .await;
    federation.hub.change(&THING, &shop, "changed", |thing| thing["spec"]["n"] = json!(2)).await;
    federation.hub.delete(&THING, &shop, "deleted").await;
    federation.hub.loses(&BINDING, &shop, "deleted-thing").await;
    let tombstone = polis_federation::names::work("Thing", &shop, "deleted");
    federation.hub.keeps(&WORK, "karmada-es-dfw", &tombstone, |_| true).await;
    federation.binding(&shop, "stays", |binding| names(&binding["spec"]["clusters"]) == ["dfw"]).await;
    federation.reconnect("dfw");
    await_ready(federation, "dfw", "True").await;
    federation.dfw().has(&THING, &shop, "changed", |copy| copy["spec"]["n"] == 2).await;
    federation.dfw().loses(&THING, &shop, "deleted").await;
    federation.hub.loses(&WORK, "karmada-es-dfw", &tombstone).await;
    federation.dfw().keeps(&THING, &shop, "stays", |_| true).await;
    federation
        .hub
        .has(&CLUSTER, "", "dfw", |cluster| !cluster["spec"]["taints"].to_string().contains("not-ready"))
        .await;
}

pub async fn a_removed_member_is_drained(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", json!({}))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.ord().arrives(&THING, &shop, "a").await;
    federation.hub.delete(&CLUSTER, "", "ord").await;
    federation.ord().loses(&THING, &shop, "a").await;
    federation.hub.loses(&CLUSTER, "", "ord").await;
    federation.hub.loses(&NAMESPACE, "", "karmada-es-ord").await;
    federation.dfw().keeps(&THING, &shop, "a", |_| true).await;
    federation.binding(&shop, "a", |binding| names(&binding["spec"]["clusters"]) == ["dfw"]).await;
}

pub async fn a_new_member_gets_existing_objects(federation: &TestFederation) {
    let shop = federation.namespace().await;
    let cluster = federation.hub.arrives(&CLUSTER, "", "ord").await;
    federation.hub.delete(&CLUSTER, "", "ord").await;
    federation.hub.loses(&CLUSTER, "", "ord").await;
    federation.hub.create(mk_policy(&shop, "p", json!({}))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.dfw().arrives(&THING, &shop, "a").await;
    let fresh: Value = json!({"apiVersion": cluster["apiVersion"], "kind": "Cluster", "metadata": {"name": "ord"}, "spec": {"syncMode": "Push"}});
    federation.hub.create(fresh).await;
    federation.ord().arrives(&NAMESPACE, "", &shop).await;
    federation.ord().arrives(&THING, &shop, "a").await;
}

pub async fn an_unreachable_member_can_be_removed(federation: &TestFederation) {
    let shop = federation.namespace().await;
    federation.hub.create(mk_policy(&shop, "p", to(&["ord"]))).await;
    federation.hub.create(mk_thing(&shop, "a")).await;
    federation.ord().arrives(&THING, &shop, "a").await;
    federation.disconnect("ord");
    await_ready(federation, "ord", "False").await;
    federation.hub.delete(&CLUSTER, "", "ord").await;
    federation.hub.loses(&CLUSTER, "", "ord").await;
    // The event is on the Cluster: those of the Works are deleted with the execution namespace.
    let message = await_event(federation, ("Cluster", "ord"), "LeftBehind").await;
    assert!(message.contains("it keeps the copies that it has"), "{message}");
    federation.reconnect("ord");
    // The copy was not deleted, because the member was unreachable.
    federation.ord().keeps(&THING, &shop, "a", |_| true).await;
}

pub async fn a_member_cannot_be_joined_twice(federation: &TestFederation) {
    federation.hub.change(&CLUSTER, "", "dfw", |cluster| cluster["spec"]["id"] = json!("the-same")).await;
    let name = unique("zz-twin");
    federation
        .hub
        .create(json!({
            "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
            "spec": {"id": "the-same", "syncMode": "Push", "apiEndpoint": "https://127.0.0.1:1"},
        }))
        .await;
    federation
        .hub
        .has(&CLUSTER, "", &name, |cluster| {
            condition(cluster, "Ready")["message"]
                .as_str()
                .is_some_and(|message| message.contains("joined twice"))
        })
        .await;
    federation.hub.delete(&CLUSTER, "", &name).await;
    federation.hub.loses(&CLUSTER, "", &name).await;
}

pub async fn user_fields_of_a_cluster_are_kept(federation: &TestFederation) {
    let key = format!("suite.polis.test/{}", unique("note"));
    federation
        .hub
        .change(&CLUSTER, "", "dfw", |cluster| {
            cluster["metadata"]["annotations"][&key] = json!("of the owner");
            cluster["spec"]["region"] = json!("south");
        })
        .await;
    // Each probe may write the status of the Cluster, but no other fields.
    federation
        .hub
        .keeps(&CLUSTER, "", "dfw", |cluster| {
            cluster["metadata"]["annotations"][&key] == "of the owner" && cluster["spec"]["region"] == "south"
        })
        .await;
}
