//! Networks: bindings, contexts, subnets and addresses in a cell.

use std::net::Ipv4Addr;

use polis_api::ObjectExt;
use polis_api::networking::{
    IPV4, Location, NetworkBinding, NetworkContext, Subnet, SubnetClaim, SubnetClaimSpec,
};
use polis_core::owner;
use polis_engine::ListOptions;
use polis_platform::networks::AddressPool;

use polis_testing::PlaneExt as _;
use polis_testing::builders::{condition, mk_meta, mk_namespace};

use crate::env::{LONG, TestEnv};

const NAMESPACE: &str = "ns-1";

fn mk_pool() -> AddressPool {
    AddressPool::new(Ipv4Addr::new(127, 8, 0, 0), 23, 24).unwrap()
}

async fn mk_cell() -> TestEnv {
    let mut env = TestEnv::new(&["dfw"]).await;
    env.at("dfw").create(&mk_namespace(NAMESPACE)).await.unwrap();
    env.start_networks("dfw", mk_pool());
    env.at("dfw").eventually_has::<Location>("dfw", |location| location.status.is_some()).await;
    env
}

fn mk_binding(name: &str, network: &str, location: &str) -> NetworkBinding {
    let mut binding =
        NetworkBinding { metadata: mk_meta(Some(NAMESPACE), name), ..NetworkBinding::default() };
    binding.spec.network.name = network.into();
    binding.spec.location.name = location.into();
    binding
}

async fn claim(env: &TestEnv, context: &str) -> SubnetClaim {
    let cell = env.at("dfw");
    let context: NetworkContext = cell.uncached().get((NAMESPACE, context)).await.unwrap().unwrap();
    let mut metadata = mk_meta(Some(NAMESPACE), &format!("{}-0", context.name()));
    metadata.owner_references = Some(vec![owner::reference(&context)]);
    let spec = SubnetClaimSpec {
        subnet_class: "private".into(),
        network_context: polis_api::networking::NetworkContextReference {
            name: context.name().into(),
            ..Default::default()
        },
        location: context.spec.location.clone(),
        ip_family: IPV4.into(),
        ..Default::default()
    };
    cell.create(&SubnetClaim { metadata, spec, status: None }).await.unwrap()
}

fn binding_ready(binding: &NetworkBinding) -> Option<(&str, &str)> {
    condition(&binding.status.as_ref()?.conditions, "Ready")
}

async fn until_binding(env: &TestEnv, name: &str, status: &str, reason: &str) -> NetworkBinding {
    let desired = Some((status, reason));
    env.at("dfw")
        .eventually_has::<NetworkBinding>((NAMESPACE, name), |binding| binding_ready(binding) == desired)
        .await
}

async fn until_allocated(env: &TestEnv, name: &str) -> String {
    let claim = env
        .at("dfw")
        .eventually_has::<SubnetClaim>((NAMESPACE, name), |claim| {
            let status = claim.status.as_ref();
            status.and_then(|s| condition(&s.conditions, "Ready")).is_some_and(|(status, _)| status == "True")
        })
        .await;
    let status = claim.status.unwrap();
    format!("{}/{}", status.start_address.unwrap(), status.prefix_length.unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_network_context_exists_until_its_last_binding_is_deleted() {
    let env = mk_cell().await;
    let cell = env.at("dfw");
    cell.create(&mk_binding("web-net-0", "net", "dfw")).await.unwrap();
    let bound = until_binding(&env, "web-net-0", "True", "NetworkContextReady").await;
    assert_eq!(bound.status.unwrap().network_context_ref.unwrap().name, "net-dfw");
    claim(&env, "net-dfw").await;
    assert_eq!(until_allocated(&env, "net-dfw-0").await, "127.8.0.0/24");
    let subnet: Subnet = cell.uncached().get((NAMESPACE, "net-dfw-0")).await.unwrap().unwrap();
    let status_of = |kind| condition(&subnet.status.as_ref().unwrap().conditions, kind).unwrap().0;
    assert_eq!(
        [status_of("Allocated"), status_of("Programmed"), status_of("Ready")],
        ["True", "True", "True"]
    );

    cell.create(&mk_binding("api-net-0", "net", "dfw")).await.unwrap();
    until_binding(&env, "api-net-0", "True", "NetworkContextReady").await;
    cell.remove::<NetworkBinding>((NAMESPACE, "web-net-0")).await;
    env.idle(LONG).await;
    assert!(cell.uncached().get::<NetworkContext>((NAMESPACE, "net-dfw")).await.unwrap().is_some());
    cell.remove::<NetworkBinding>((NAMESPACE, "api-net-0")).await;
    cell.eventually_lacks::<NetworkContext>((NAMESPACE, "net-dfw")).await;
    cell.eventually_lacks::<Subnet>((NAMESPACE, "net-dfw-0")).await;
}

#[tokio::test(start_paused = true)]
async fn a_network_without_addresses_reports_it_and_gets_them_when_they_are_freed() {
    let env = mk_cell().await;
    let cell = env.at("dfw");
    for network in ["a", "b", "c"] {
        let name = format!("{network}-net-0");
        cell.create(&mk_binding(&name, network, "dfw")).await.unwrap();
        until_binding(&env, &name, "True", "NetworkContextReady").await;
        claim(&env, &format!("{network}-dfw")).await;
        if network != "c" {
            until_allocated(&env, &format!("{network}-dfw-0")).await;
        }
    }
    let failed = until_binding(&env, "c-net-0", "False", "NetworkFailedToCreate").await;
    assert!(failed.status.unwrap().conditions[0].message.contains("exhausted"));
    cell.remove::<NetworkBinding>((NAMESPACE, "a-net-0")).await;
    assert_eq!(until_allocated(&env, "c-dfw-0").await, "127.8.0.0/24");
    until_binding(&env, "c-net-0", "True", "NetworkContextReady").await;
}

#[tokio::test(start_paused = true)]
async fn a_binding_waits_until_its_location_exists() {
    let env = mk_cell().await;
    env.at("dfw").create(&mk_binding("web-net-0", "net", "ord")).await.unwrap();
    until_binding(&env, "web-net-0", "False", "NetworkFailedToCreate").await;
    env.at("dfw").create(&Location { metadata: mk_meta(None, "ord"), ..Location::default() }).await.unwrap();
    until_binding(&env, "web-net-0", "True", "NetworkContextReady").await;
}

#[tokio::test(start_paused = true)]
async fn concurrent_claims_never_share_addresses_even_across_a_restart() {
    let mut env = TestEnv::new(&["dfw"]).await;
    let cell = env.at("dfw");
    cell.create(&mk_namespace(NAMESPACE)).await.unwrap();
    env.start_networks("dfw", AddressPool::loopback(0).expect("the pool of the first city"));
    cell.eventually_has::<Location>("dfw", |location| location.status.is_some()).await;
    for n in 0..20 {
        cell.create(&mk_binding(&format!("{n}-net-0"), &format!("net{n}"), "dfw")).await.unwrap();
    }
    for n in 0..20 {
        until_binding(&env, &format!("{n}-net-0"), "True", "NetworkContextReady").await;
    }
    for n in 0..10 {
        claim(&env, &format!("net{n}-dfw")).await;
    }
    env.stop("networks-dfw").await;
    for n in 10..20 {
        claim(&env, &format!("net{n}-dfw")).await;
    }
    env.start_networks("dfw", AddressPool::loopback(0).expect("the pool of the first city"));
    let mut blocks = Vec::new();
    for n in 0..20 {
        blocks.push(until_allocated(&env, &format!("net{n}-dfw-0")).await);
    }
    let subnets = cell.uncached().list::<Subnet>(&ListOptions::all()).await.unwrap();
    blocks.sort();
    blocks.dedup();
    assert_eq!((blocks.len(), subnets.len()), (20, 20));
}
