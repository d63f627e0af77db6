//! Networks: instances wait for their networks, and start without where networks are disabled.

use polis_api::compute::Instance;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::labels;
use polis_api::networking::{
    Location, LocationReference, NetworkBinding, NetworkContext, NetworkContextReference, NetworkContextSpec,
    NetworkReference, Subnet, SubnetClaim, SubnetReference,
};
use polis_engine::{Object, Preconditions};
use polis_testing::builders::mk_condition;
use polis_testing::{PlaneExt as _, eventually};

use crate::env::{LONG, NAMESPACE, Setup, TestEnv, gates, mk_deployment};

const WITH_NETWORKS: Setup =
    Setup { networks: true, quota: false, networks_off: false, instance_finalizers: &[] };

fn mk_meta(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.into()), namespace: Some(NAMESPACE.into()), ..ObjectMeta::default() }
}

async fn create_location(env: &TestEnv) {
    let mut location = Location { metadata: mk_meta("dfw-a"), ..Location::default() };
    if polis_engine::Kind::of::<Location>().scope == polis_engine::ResourceScope::Cluster {
        location.metadata.namespace = None;
    }
    location.spec.topology.insert(labels::TOPOLOGY_CITY_CODE.into(), "dfw".into());
    env.at_cell().create(&location).await.unwrap();
}

async fn until_exists<K: Object>(env: &TestEnv, name: &str) -> K {
    eventually(name, async || env.at_cell().uncached().get::<K>((NAMESPACE, name)).await.unwrap()).await
}

async fn set_binding_status(env: &TestEnv, status: &'static str, reason: &'static str) {
    until_exists::<NetworkBinding>(env, "web-net-0").await;
    let now = env.now();
    env.at_cell()
        .change_status::<NetworkBinding>((NAMESPACE, "web-net-0"), |binding| {
            let state = binding.status.get_or_insert_default();
            state.network_context_ref =
                Some(NetworkContextReference { name: "ctx".into(), ..Default::default() });
            state.conditions = vec![mk_condition("Ready", status, reason, &now)];
        })
        .await;
}

/// Does everything that the network service does.
async fn provide_networks(env: &TestEnv) {
    let cell = env.at_cell();
    set_binding_status(env, "True", "Ready").await;
    let spec = NetworkContextSpec {
        network: NetworkReference { name: "test-network".into(), ..Default::default() },
        location: LocationReference { name: "dfw-a".into(), ..Default::default() },
        ..Default::default()
    };
    cell.create(&NetworkContext { metadata: mk_meta("ctx"), spec, status: None }).await.unwrap();
    let now = env.now();
    let ready = mk_condition("Ready", "True", "Ready", &now);
    cell.change_status::<NetworkContext>((NAMESPACE, "ctx"), |context| {
        context.status.get_or_insert_default().conditions = vec![ready.clone()];
    })
    .await;
    let claim = until_exists::<SubnetClaim>(env, "ctx-0").await;
    let mut subnet = Subnet { metadata: mk_meta("ctx-0"), ..Subnet::default() };
    subnet.spec.subnet_class = claim.spec.subnet_class;
    subnet.spec.network_context = claim.spec.network_context;
    subnet.spec.location = claim.spec.location;
    subnet.spec.ip_family = claim.spec.ip_family;
    cell.create(&subnet).await.unwrap();
    cell.change_status::<SubnetClaim>((NAMESPACE, "ctx-0"), |claim| {
        let state = claim.status.get_or_insert_default();
        state.subnet_ref = Some(SubnetReference { name: "ctx-0".into(), ..Default::default() });
        state.conditions = vec![ready.clone()];
    })
    .await;
    cell.change_status::<Subnet>((NAMESPACE, "ctx-0"), |subnet| {
        subnet.status.get_or_insert_default().conditions = vec![ready.clone()];
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_waits_for_its_networks_and_starts_when_they_are_ready() {
    let mut env = TestEnv::running(WITH_NETWORKS).await;
    env.provider();
    create_location(&env).await;
    env.deploy(&mk_deployment("web", 1)).await;
    let waiting = env.until_condition("web-0", "Ready", "False", "SchedulingGatesPresent").await;
    assert!(gates(&waiting).contains(&"Network"));
    provide_networks(&env).await;
    env.until_ready(&["web-0"]).await;
    // A later instance is created without that gate.
    env.stop_provider().await;
    env.change("web", |deployment| deployment.spec.scale_settings.min_replicas = 2).await;
    let second = eventually("web-1", async || env.instance("web-1").await).await;
    assert!(!gates(&second).contains(&"Network"));
    assert_eq!(second.spec.location.unwrap().name, "dfw-a");
}

#[tokio::test(start_paused = true)]
async fn a_failed_network_is_reported_on_instance_and_deployment() {
    let env = TestEnv::running(WITH_NETWORKS).await;
    create_location(&env).await;
    env.deploy(&mk_deployment("web", 1)).await;
    set_binding_status(&env, "False", "NetworkFailedToCreate").await;
    env.until_condition("web-0", "Ready", "False", "NetworkFailedToCreate").await;
    eventually("the condition on the deployment", async || {
        let status = env.deployment("web").await?.status?;
        polis_core::conditions::find(&status.conditions, "Available")
            .filter(|a| a.reason == "NetworkFailedToCreate")
            .map(|_| ())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_cell_without_a_location_for_the_city_waits_for_one() {
    let env = TestEnv::running(WITH_NETWORKS).await;
    env.deploy(&mk_deployment("web", 1)).await;
    env.until_condition("web-0", "Ready", "False", "SchedulingGatesPresent").await;
    env.idle(LONG).await;
    let binding = env.at_cell().uncached().get::<NetworkBinding>((NAMESPACE, "web-net-0")).await.unwrap();
    assert_eq!(binding, None);
    create_location(&env).await;
    provide_networks(&env).await;
    env.until_condition("web-0", "Ready", "False", "PendingProgramming").await;
}

#[tokio::test(start_paused = true)]
async fn a_cell_with_networks_disabled_requests_none_and_removes_existing_network_gates() {
    let env = TestEnv::running(Setup { networks_off: true, ..WITH_NETWORKS }).await;
    env.deploy(&mk_deployment("web", 1)).await;
    env.until_condition("web-0", "Ready", "False", "PendingProgramming").await;
    env.at_cell()
        .change::<Instance>((NAMESPACE, "web-0"), |instance| {
            let gate = polis_api::compute::SchedulingGate { name: "Network".into() };
            instance.spec.controller.as_mut().unwrap().scheduling_gates = vec![gate];
        })
        .await;
    eventually("no gate", async || env.instance("web-0").await.filter(|instance| gates(instance).is_empty()))
        .await;
    assert_eq!(env.at_cell().uncached().get::<NetworkBinding>((NAMESPACE, "web-net-0")).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn bindings_are_deleted_with_their_deployment() {
    let env = TestEnv::running(WITH_NETWORKS).await;
    create_location(&env).await;
    env.deploy(&mk_deployment("web", 1)).await;
    until_exists::<NetworkBinding>(&env, "web-net-0").await;
    let deployment = env.deployment("web").await.unwrap();
    env.at_cell().delete(&deployment, Preconditions::Uid).await.unwrap();
    eventually("no binding", async || {
        env.at_cell()
            .uncached()
            .get::<NetworkBinding>((NAMESPACE, "web-net-0"))
            .await
            .unwrap()
            .is_none()
            .then_some(())
    })
    .await;
}
