//! Networks: bindings, contexts, subnets and addresses in a cell.

use std::net::Ipv4Addr;

use polis_api::networking::{
    IPV4, Location, NetworkBinding, NetworkContext, Subnet, SubnetClaim, SubnetClaimSpec,
};
use polis_core::owner;
use polis_engine::Query;
use polis_platform::networks::Pool;

use crate::world::{LONG, World, mk_meta, mk_namespace, told};

const HOME: &str = "ns-1";

fn mk_pool() -> Pool {
    Pool::new(Ipv4Addr::new(127, 8, 0, 0), 23, 24).unwrap()
}

async fn mk_cell() -> World {
    let mut world = World::new(&["dfw"]).await;
    world.at("dfw").create(&mk_namespace(HOME)).await.unwrap();
    world.start_networks("dfw", mk_pool());
    world.has::<Location>(&world.at("dfw"), "dfw", |location| location.status.is_some()).await;
    world
}

fn mk_binding(name: &str, network: &str, location: &str) -> NetworkBinding {
    let mut binding = NetworkBinding { metadata: mk_meta(Some(HOME), name), ..NetworkBinding::default() };
    binding.spec.network.name = network.into();
    binding.spec.location.name = location.into();
    binding
}

async fn claim(world: &World, context: &str) -> SubnetClaim {
    let cell = world.at("dfw");
    let context: NetworkContext = cell.live().get((HOME, context)).await.unwrap().unwrap();
    let mut metadata = mk_meta(Some(HOME), &format!("{}-0", owner::name(&context.metadata)));
    metadata.owner_references = Some(vec![owner::reference(&context)]);
    let spec = SubnetClaimSpec {
        subnet_class: "private".into(),
        network_context: polis_api::networking::NetworkContextReference {
            name: owner::name(&context.metadata).into(),
            ..Default::default()
        },
        location: context.spec.location.clone(),
        ip_family: IPV4.into(),
        ..Default::default()
    };
    cell.create(&SubnetClaim { metadata, spec, status: None }).await.unwrap()
}

fn says(binding: &NetworkBinding) -> Option<(String, String)> {
    told(&binding.status.as_ref()?.conditions, "Ready")
}

async fn binding_says(world: &World, name: &str, status: &str, reason: &str) -> NetworkBinding {
    let wanted = Some((status.to_owned(), reason.to_owned()));
    world.has::<NetworkBinding>(&world.at("dfw"), (HOME, name), |binding| says(binding) == wanted).await
}

async fn addressed(world: &World, name: &str) -> String {
    let claim = world
        .has::<SubnetClaim>(&world.at("dfw"), (HOME, name), |claim| {
            let status = claim.status.as_ref();
            status.and_then(|s| told(&s.conditions, "Ready")).is_some_and(|(status, _)| status == "True")
        })
        .await;
    let status = claim.status.unwrap();
    format!("{}/{}", status.start_address.unwrap(), status.prefix_length.unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_network_is_made_where_it_is_wanted_and_goes_with_its_last_binding() {
    let world = mk_cell().await;
    let cell = world.at("dfw");
    cell.create(&mk_binding("web-net-0", "net", "dfw")).await.unwrap();
    let bound = binding_says(&world, "web-net-0", "True", "NetworkContextReady").await;
    assert_eq!(bound.status.unwrap().network_context_ref.unwrap().name, "net-dfw");
    claim(&world, "net-dfw").await;
    assert_eq!(addressed(&world, "net-dfw-0").await, "127.8.0.0/24");
    let subnet: Subnet = cell.live().get((HOME, "net-dfw-0")).await.unwrap().unwrap();
    let told = |kind| told(&subnet.status.as_ref().unwrap().conditions, kind).unwrap().0;
    assert_eq!([told("Allocated"), told("Programmed"), told("Ready")], ["True", "True", "True"]);

    cell.create(&mk_binding("api-net-0", "net", "dfw")).await.unwrap();
    binding_says(&world, "api-net-0", "True", "NetworkContextReady").await;
    world.delete::<NetworkBinding>(&cell, (HOME, "web-net-0")).await;
    world.quiet(LONG).await;
    assert!(cell.live().get::<NetworkContext>((HOME, "net-dfw")).await.unwrap().is_some());
    world.delete::<NetworkBinding>(&cell, (HOME, "api-net-0")).await;
    world.loses::<NetworkContext>(&cell, (HOME, "net-dfw")).await;
    world.loses::<Subnet>(&cell, (HOME, "net-dfw-0")).await;
}

#[tokio::test(start_paused = true)]
async fn a_network_that_cannot_be_made_says_so_and_is_made_when_it_can() {
    let world = mk_cell().await;
    let cell = world.at("dfw");
    for network in ["a", "b", "c"] {
        let name = format!("{network}-net-0");
        cell.create(&mk_binding(&name, network, "dfw")).await.unwrap();
        binding_says(&world, &name, "True", "NetworkContextReady").await;
        claim(&world, &format!("{network}-dfw")).await;
        if network != "c" {
            addressed(&world, &format!("{network}-dfw-0")).await;
        }
    }
    let refused = binding_says(&world, "c-net-0", "False", "NetworkFailedToCreate").await;
    assert!(refused.status.unwrap().conditions[0].message.contains("used up"));
    world.delete::<NetworkBinding>(&cell, (HOME, "a-net-0")).await;
    assert_eq!(addressed(&world, "c-dfw-0").await, "127.8.0.0/24");
    binding_says(&world, "c-net-0", "True", "NetworkContextReady").await;
}

#[tokio::test(start_paused = true)]
async fn a_location_that_is_not_this_cells_is_refused_until_it_is() {
    let world = mk_cell().await;
    world.at("dfw").create(&mk_binding("web-net-0", "net", "ord")).await.unwrap();
    binding_says(&world, "web-net-0", "False", "NetworkFailedToCreate").await;
    world
        .at("dfw")
        .create(&Location { metadata: mk_meta(None, "ord"), ..Location::default() })
        .await
        .unwrap();
    binding_says(&world, "web-net-0", "True", "NetworkContextReady").await;
}

#[tokio::test(start_paused = true)]
async fn claims_at_once_never_share_addresses_and_a_restart_forgets_none() {
    let mut world = World::new(&["dfw"]).await;
    let cell = world.at("dfw");
    cell.create(&mk_namespace(HOME)).await.unwrap();
    world.start_networks("dfw", Pool::loopback(0).expect("the first of many"));
    world.has::<Location>(&cell, "dfw", |location| location.status.is_some()).await;
    for n in 0..20 {
        cell.create(&mk_binding(&format!("{n}-net-0"), &format!("net{n}"), "dfw")).await.unwrap();
    }
    for n in 0..20 {
        binding_says(&world, &format!("{n}-net-0"), "True", "NetworkContextReady").await;
    }
    for n in 0..10 {
        claim(&world, &format!("net{n}-dfw")).await;
    }
    world.stop("networks-dfw").await;
    for n in 10..20 {
        claim(&world, &format!("net{n}-dfw")).await;
    }
    world.start_networks("dfw", Pool::loopback(0).expect("the first of many"));
    let mut blocks = Vec::new();
    for n in 0..20 {
        blocks.push(addressed(&world, &format!("net{n}-dfw-0")).await);
    }
    let subnets = cell.live().list::<Subnet>(&Query::all()).await.unwrap();
    blocks.sort();
    blocks.dedup();
    assert_eq!((blocks.len(), subnets.len()), (20, 20));
}
