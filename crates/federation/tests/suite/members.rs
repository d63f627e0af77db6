//! Members: joined, seen, lost and let go.

use serde_json::{Value, json};

use super::bad_input::told;
use super::world::*;

pub async fn a_member_shows_that_it_is_ready_and_what_it_serves(world: &World) {
    let cluster = world
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
    let space = world.hub.arrives(&NAMESPACE, "", "karmada-es-dfw").await;
    assert_eq!(space["metadata"]["labels"]["karmada.io/system"], "true");
}

pub async fn a_cluster_without_a_secret_says_so(world: &World) {
    let name = unique("lost");
    world
        .hub
        .create(json!({
            "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
            "spec": {"syncMode": "Push", "apiEndpoint": "https://127.0.0.1:1", "secretRef": {"namespace": "karmada-cluster", "name": name}},
        }))
        .await;
    let cluster =
        world.hub.has(&CLUSTER, "", &name, |cluster| condition(cluster, "Ready")["status"] == "False").await;
    assert!(
        condition(&cluster, "Ready")["message"]
            .as_str()
            .is_some_and(|message| message.contains("does not exist")),
        "{cluster:#?}"
    );
    assert!(cluster["spec"]["taints"].to_string().contains("not-ready"));
    world.hub.delete(&CLUSTER, "", &name).await;
    world.hub.loses(&CLUSTER, "", &name).await;
}

pub async fn a_cluster_that_cannot_be_reached_is_not_ready_and_can_be_let_go(world: &World) {
    let name = unique("dead");
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "karmada-cluster", "name": name}, "stringData": {"token": "t"},
    });
    if world.hub.get(&NAMESPACE, "", "karmada-cluster").await.is_none() {
        world
            .hub
            .create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "karmada-cluster"}}))
            .await;
    }
    world.hub.create(secret).await;
    world
        .hub
        .create(json!({
            "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
            "spec": {
                "syncMode": "Push", "apiEndpoint": "https://127.0.0.1:1", "insecureSkipTLSVerification": true,
                "secretRef": {"namespace": "karmada-cluster", "name": name},
            },
        }))
        .await;
    let cluster =
        world.hub.has(&CLUSTER, "", &name, |cluster| condition(cluster, "Ready")["status"] == "False").await;
    assert_eq!(condition(&cluster, "Ready")["reason"], "ClusterNotReachable");
    world.hub.arrives(&NAMESPACE, "", &format!("karmada-es-{name}")).await;
    world.hub.delete(&CLUSTER, "", &name).await;
    world.hub.loses(&CLUSTER, "", &name).await;
    world.hub.loses(&NAMESPACE, "", &format!("karmada-es-{name}")).await;
}

async fn until_ready(world: &World, cluster: &str, ready: &str) {
    world.hub.has(&CLUSTER, "", cluster, |cluster| condition(cluster, "Ready")["status"] == ready).await;
}

pub async fn losing_a_member_moves_nothing_and_its_return_settles_everything(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["dfw"]))).await;
    for name in ["changed", "deleted", "stays"] {
        world.hub.create(mk_thing(&shop, name)).await;
        world.dfw().arrives(&THING, &shop, name).await;
    }
    world.cut_off("dfw");
    until_ready(world, "dfw", "False").await;
    world
        .hub
        .has(&CLUSTER, "", "dfw", |cluster| cluster["spec"]["taints"].to_string().contains("not-ready"))
        .await;
    world.hub.change(&THING, &shop, "changed", |thing| thing["spec"]["n"] = json!(2)).await;
    world.hub.delete(&THING, &shop, "deleted").await;
    world.hub.loses(&BINDING, &shop, "deleted-thing").await;
    let tombstone = polis_federation::names::work("Thing", &shop, "deleted");
    world.hub.keeps(&WORK, "karmada-es-dfw", &tombstone, |_| true).await;
    world.binding(&shop, "stays", |binding| names(&binding["spec"]["clusters"]) == ["dfw"]).await;
    world.bring_back("dfw");
    until_ready(world, "dfw", "True").await;
    world.dfw().has(&THING, &shop, "changed", |copy| copy["spec"]["n"] == 2).await;
    world.dfw().loses(&THING, &shop, "deleted").await;
    world.hub.loses(&WORK, "karmada-es-dfw", &tombstone).await;
    world.dfw().keeps(&THING, &shop, "stays", |_| true).await;
    world
        .hub
        .has(&CLUSTER, "", "dfw", |cluster| !cluster["spec"]["taints"].to_string().contains("not-ready"))
        .await;
}

pub async fn a_member_that_leaves_is_drained(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", json!({}))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.ord().arrives(&THING, &shop, "a").await;
    world.hub.delete(&CLUSTER, "", "ord").await;
    world.ord().loses(&THING, &shop, "a").await;
    world.hub.loses(&CLUSTER, "", "ord").await;
    world.hub.loses(&NAMESPACE, "", "karmada-es-ord").await;
    world.dfw().keeps(&THING, &shop, "a", |_| true).await;
    world.binding(&shop, "a", |binding| names(&binding["spec"]["clusters"]) == ["dfw"]).await;
}

pub async fn a_member_that_joins_later_gets_what_is_its_due(world: &World) {
    let shop = world.namespace().await;
    let cluster = world.hub.arrives(&CLUSTER, "", "ord").await;
    world.hub.delete(&CLUSTER, "", "ord").await;
    world.hub.loses(&CLUSTER, "", "ord").await;
    world.hub.create(mk_policy(&shop, "p", json!({}))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.dfw().arrives(&THING, &shop, "a").await;
    let fresh: Value = json!({"apiVersion": cluster["apiVersion"], "kind": "Cluster", "metadata": {"name": "ord"}, "spec": {"syncMode": "Push"}});
    world.hub.create(fresh).await;
    world.ord().arrives(&NAMESPACE, "", &shop).await;
    world.ord().arrives(&THING, &shop, "a").await;
}

pub async fn a_member_that_leaves_while_it_is_lost_is_let_go(world: &World) {
    let shop = world.namespace().await;
    world.hub.create(mk_policy(&shop, "p", to(&["ord"]))).await;
    world.hub.create(mk_thing(&shop, "a")).await;
    world.ord().arrives(&THING, &shop, "a").await;
    world.cut_off("ord");
    until_ready(world, "ord", "False").await;
    world.hub.delete(&CLUSTER, "", "ord").await;
    world.hub.loses(&CLUSTER, "", "ord").await;
    // Said of the member, whose own word on its Works goes with their namespace.
    let said = told(world, ("Cluster", "ord"), "LeftBehind").await;
    assert!(said.contains("it keeps the copies that it has"), "{said}");
    world.bring_back("ord");
    // Nobody took it away: that could not be done.
    world.ord().keeps(&THING, &shop, "a", |_| true).await;
}

pub async fn one_member_joined_twice_is_refused(world: &World) {
    world.hub.change(&CLUSTER, "", "dfw", |cluster| cluster["spec"]["id"] = json!("the-same")).await;
    let name = unique("zz-twin");
    world
        .hub
        .create(json!({
            "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
            "spec": {"id": "the-same", "syncMode": "Push", "apiEndpoint": "https://127.0.0.1:1"},
        }))
        .await;
    world
        .hub
        .has(&CLUSTER, "", &name, |cluster| {
            condition(cluster, "Ready")["message"]
                .as_str()
                .is_some_and(|message| message.contains("joined twice"))
        })
        .await;
    world.hub.delete(&CLUSTER, "", &name).await;
    world.hub.loses(&CLUSTER, "", &name).await;
}

pub async fn what_its_owner_says_of_a_member_stays(world: &World) {
    let key = format!("suite.polis.test/{}", unique("note"));
    world
        .hub
        .change(&CLUSTER, "", "dfw", |cluster| {
            cluster["metadata"]["annotations"][&key] = json!("of the owner");
            cluster["spec"]["region"] = json!("south");
        })
        .await;
    // A member that is probed again and again is described anew each time; what is said of it is not touched.
    world
        .hub
        .keeps(&CLUSTER, "", "dfw", |cluster| {
            cluster["metadata"]["annotations"][&key] == "of the owner" && cluster["spec"]["region"] == "south"
        })
        .await;
}
