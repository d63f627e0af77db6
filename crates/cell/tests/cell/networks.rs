//! Networks: instances start when theirs are ready, and are not held up where none are kept.

use polis_api::compute::Instance;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::labels;
use polis_api::networking::{
    Location, LocationReference, NetworkBinding, NetworkContext, NetworkContextReference, NetworkContextSpec,
    NetworkReference, Subnet, SubnetClaim, SubnetReference,
};
use polis_engine::{Exactly, Object};

use crate::world::{HOME, LONG, Setup, World, change_on, change_status, gates, mk_condition, mk_deployment};

const WITH_NETWORKS: Setup = Setup { networks: true, quota: false, networks_off: false };

fn mk_meta(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.into()), namespace: Some(HOME.into()), ..ObjectMeta::default() }
}

async fn locate(world: &World) {
    let mut location = Location { metadata: mk_meta("dfw-a"), ..Location::default() };
    if polis_engine::Kind::of::<Location>().scope == polis_engine::Scope::Cluster {
        location.metadata.namespace = None;
    }
    location.spec.topology.insert(labels::TOPOLOGY_CITY_CODE.into(), "dfw".into());
    world.at_cell().create(&location).await.unwrap();
}

async fn there<K: Object>(world: &World, name: &str) -> K {
    world.until(name, async || world.at_cell().live().get::<K>((HOME, name)).await.unwrap()).await
}

async fn answer_binding(world: &World, status: &'static str, reason: &'static str) {
    there::<NetworkBinding>(world, "web-net-0").await;
    let now = world.now();
    change_status::<NetworkBinding>(&world.at_cell(), (HOME, "web-net-0"), |binding| {
        let state = binding.status.get_or_insert_default();
        state.network_context_ref =
            Some(NetworkContextReference { name: "ctx".into(), ..Default::default() });
        state.conditions = vec![mk_condition("Ready", status, reason, &now)];
    })
    .await;
}

/// Plays the network service to its end.
async fn provide_networks(world: &World) {
    let cell = world.at_cell();
    answer_binding(world, "True", "Ready").await;
    let spec = NetworkContextSpec {
        network: NetworkReference { name: "test-network".into(), ..Default::default() },
        location: LocationReference { name: "dfw-a".into(), ..Default::default() },
        ..Default::default()
    };
    cell.create(&NetworkContext { metadata: mk_meta("ctx"), spec, status: None }).await.unwrap();
    let now = world.now();
    let ready = mk_condition("Ready", "True", "Ready", &now);
    change_status::<NetworkContext>(&cell, (HOME, "ctx"), |context| {
        context.status.get_or_insert_default().conditions = vec![ready.clone()];
    })
    .await;
    let claim = there::<SubnetClaim>(world, "ctx-0").await;
    let mut subnet = Subnet { metadata: mk_meta("ctx-0"), ..Subnet::default() };
    subnet.spec.subnet_class = claim.spec.subnet_class;
    subnet.spec.network_context = claim.spec.network_context;
    subnet.spec.location = claim.spec.location;
    subnet.spec.ip_family = claim.spec.ip_family;
    cell.create(&subnet).await.unwrap();
    change_status::<SubnetClaim>(&cell, (HOME, "ctx-0"), |claim| {
        let state = claim.status.get_or_insert_default();
        state.subnet_ref = Some(SubnetReference { name: "ctx-0".into(), ..Default::default() });
        state.conditions = vec![ready.clone()];
    })
    .await;
    change_status::<Subnet>(&cell, (HOME, "ctx-0"), |subnet| {
        subnet.status.get_or_insert_default().conditions = vec![ready.clone()];
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_waits_for_its_networks_and_starts_when_they_are_ready() {
    let mut world = World::running(WITH_NETWORKS).await;
    world.provider();
    locate(&world).await;
    world.deploy(&mk_deployment("web", 1)).await;
    let waiting = world.until_says("web-0", "Ready", "False", "SchedulingGatesPresent").await;
    assert!(gates(&waiting).contains(&"Network"));
    provide_networks(&world).await;
    world.until_ready(&["web-0"]).await;
    // What comes later finds them ready and is born without that gate.
    world.no_provider();
    world.change("web", |deployment| deployment.spec.scale_settings.min_replicas = 2).await;
    let second = world.until("web-1", async || world.instance("web-1").await).await;
    assert!(!gates(&second).contains(&"Network"));
    assert_eq!(second.spec.location.unwrap().name, "dfw-a");
}

#[tokio::test(start_paused = true)]
async fn a_refused_network_is_told_on_instance_and_deployment() {
    let world = World::running(WITH_NETWORKS).await;
    locate(&world).await;
    world.deploy(&mk_deployment("web", 1)).await;
    answer_binding(&world, "False", "NetworkFailedToCreate").await;
    world.until_says("web-0", "Ready", "False", "NetworkFailedToCreate").await;
    world
        .until("the deployment says so", async || {
            let status = world.deployment("web").await?.status?;
            polis_core::conditions::find(&status.conditions, "Available")
                .filter(|a| a.reason == "NetworkFailedToCreate")
                .map(|_| ())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_cell_without_a_location_for_the_city_waits_until_there_is_one() {
    let world = World::running(WITH_NETWORKS).await;
    world.deploy(&mk_deployment("web", 1)).await;
    world.until_says("web-0", "Ready", "False", "SchedulingGatesPresent").await;
    world.quiet(LONG).await;
    let binding = world.at_cell().live().get::<NetworkBinding>((HOME, "web-net-0")).await.unwrap();
    assert_eq!(binding, None);
    locate(&world).await;
    provide_networks(&world).await;
    world.until_says("web-0", "Ready", "False", "PendingProgramming").await;
}

#[tokio::test(start_paused = true)]
async fn a_cell_told_to_keep_no_networks_asks_for_none_and_opens_gates_that_are_left() {
    let world = World::running(Setup { networks_off: true, ..WITH_NETWORKS }).await;
    world.deploy(&mk_deployment("web", 1)).await;
    world.until_says("web-0", "Ready", "False", "PendingProgramming").await;
    change_on::<Instance>(&world.at_cell(), "web-0", |instance| {
        let gate = polis_api::compute::SchedulingGate { name: "Network".into() };
        instance.spec.controller.as_mut().unwrap().scheduling_gates = vec![gate];
    })
    .await;
    world
        .until("no gate", async || {
            world.instance("web-0").await.filter(|instance| gates(instance).is_empty())
        })
        .await;
    assert_eq!(world.at_cell().live().get::<NetworkBinding>((HOME, "web-net-0")).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn bindings_go_with_their_deployment() {
    let world = World::running(WITH_NETWORKS).await;
    locate(&world).await;
    world.deploy(&mk_deployment("web", 1)).await;
    there::<NetworkBinding>(&world, "web-net-0").await;
    let deployment = world.deployment("web").await.unwrap();
    world.at_cell().delete(&deployment, Exactly::Object).await.unwrap();
    world
        .until("no binding", async || {
            world
                .at_cell()
                .live()
                .get::<NetworkBinding>((HOME, "web-net-0"))
                .await
                .unwrap()
                .is_none()
                .then_some(())
        })
        .await;
}
