//! Leader election of two replicas: never two leaders at once, whatever the network and the clocks do.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use parking_lot::Mutex;
use polis_api::k8s_openapi::api::coordination::v1::Lease;
use polis_engine::{Clock, LeaderElection, Leadership, Plane, Random, Transport, anchored_clock};
use tokio::time::Instant;

use crate::fake_apiserver::FakeApiServer;
use crate::harness::eventually;

const LEASE: Duration = Duration::from_secs(15);

/// The network between one replica and the API server, with delays and partitions.
#[derive(Clone)]
struct SimulatedNetwork {
    server: FakeApiServer,
    random: Random,
    /// Maximum delay of a message, in milliseconds.
    max_delay: u64,
    partitioned: Arc<Mutex<bool>>,
}

impl tower::Service<http::Request<bytes::Bytes>> for SimulatedNetwork {
    type Response = http::Response<crate::fake_apiserver::body::FakeBody>;
    type Error = polis_engine::transport::TransportError;
    type Future = futures::future::BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<bytes::Bytes>) -> Self::Future {
        let mut network = self.clone();
        Box::pin(async move {
            // Requests and responses are delayed or lost. The server may process a request whose response is
            // lost or late.
            let there = Duration::from_millis(network.random.next() % network.max_delay);
            tokio::time::sleep(there).await;
            if *network.partitioned.lock() {
                return std::future::pending().await;
            }
            let response = network.server.call(request).await;
            let back = Duration::from_millis(network.random.next() % network.max_delay);
            tokio::time::sleep(back).await;
            if *network.partitioned.lock() {
                return std::future::pending().await;
            }
            response
        })
    }
}

/// Checks that only one replica leads at a time, and that the fencing tokens grow.
async fn check_terms(
    name: usize,
    mut leadership: Leadership,
    leading: Arc<Mutex<Vec<(usize, i64)>>>,
    tokens: Arc<Mutex<Vec<i64>>>,
) {
    loop {
        let token = leadership.acquired().await;
        {
            let mut leading = leading.lock();
            leading.push((name, token));
            assert_eq!(leading.len(), 1, "two leaders at once: {leading:?}");
            let mut tokens = tokens.lock();
            assert!(tokens.last().is_none_or(|last| *last < token), "fencing token {token} after {tokens:?}");
            tokens.push(token);
        }
        leadership.lost().await;
        leading.lock().retain(|(leading, _)| *leading != name);
    }
}

async fn run_seed(seed: u64) {
    let server = FakeApiServer::with_default_kinds();
    let random = Random::from_seed(seed);
    let wall = anchored_clock("2026-01-01T00:00:00Z".parse().unwrap());
    let leading: Arc<Mutex<Vec<(usize, i64)>>> = Arc::default();
    let tokens: Arc<Mutex<Vec<i64>>> = Arc::default();
    let mut partitions = Vec::new();
    let mut tasks = Vec::new();
    let mut leaderships = Vec::new();
    for replica in 0..2 {
        let random = random.split(&format!("replica {replica}"));
        // From a fast network to one on which an attempt rarely succeeds in time.
        let max_delay = [50, 500, 1500, 3000][(random.next() % 4) as usize];
        let partitioned = Arc::new(Mutex::new(false));
        partitions.push(partitioned.clone());
        let network =
            SimulatedNetwork { server: server.clone(), random: random.split("link"), max_delay, partitioned };
        let plane = Plane::new("main", Transport::in_process(network));
        // Clock skew of up to an hour in either direction.
        let skew = SignedDuration::from_secs((random.next() % 7200) as i64 - 3600);
        let election =
            LeaderElection::new(plane, "system", "leader", format!("replica-{replica}")).lease(LEASE);
        let (elector, leadership) = election.campaign(wall.skewed(skew), &random);
        leaderships.push(leadership.clone());
        tasks.push(tokio::spawn(check_terms(replica, leadership, leading.clone(), tokens.clone())));
        drop(elector);
    }
    // Random partitions for four minutes.
    let script = random.split("script");
    let end = Instant::now() + Duration::from_secs(4 * 60);
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(1000 + script.next() % 20_000)).await;
        let both = script.next();
        *partitions[0].lock() = both.is_multiple_of(3);
        *partitions[1].lock() = (both / 3).is_multiple_of(3);
        assert!(tasks.iter().all(|task| !task.is_finished()), "seed {seed}");
    }
    // Without partitions one replica leads soon. On the slowest network most attempts still fail.
    partitions.iter().for_each(|partitioned| *partitioned.lock() = false);
    let bound = LEASE * 20;
    let healed = tokio::time::timeout(bound, async {
        while leaderships.iter().all(|leadership| leadership.fencing_token().is_none()) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    assert!(healed.await.is_ok(), "seed {seed}: no replica leads after {bound:?}");
    assert!(tasks.iter().all(|task| !task.is_finished()), "seed {seed}");
    assert!(!tokens.lock().is_empty());
}

#[test]
fn there_are_never_two_leaders_in_a_thousand_seeds_of_partitions_and_skew() {
    let seeds: u64 = std::env::var("POLIS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(1000);
    // Two threads; each seed has its own runtime.
    std::thread::scope(|scope| {
        for half in 0..2 {
            scope.spawn(move || {
                for seed in (half..seeds).step_by(2) {
                    let mut builder = tokio::runtime::Builder::new_current_thread();
                    builder.enable_time().start_paused(true).build().unwrap().block_on(run_seed(seed));
                }
            });
        }
    });
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_disappears_is_replaced_within_two_lease_durations() {
    let server = FakeApiServer::with_default_kinds();
    let partitioned = Arc::new(Mutex::new(false));
    let mk_network = |server: &FakeApiServer, partitioned: &Arc<Mutex<bool>>| SimulatedNetwork {
        server: server.clone(),
        random: Random::from_seed(0),
        max_delay: 200,
        partitioned: partitioned.clone(),
    };
    let campaign = |name: &str, network: SimulatedNetwork, seed| {
        let plane = Plane::new("main", Transport::in_process(network));
        LeaderElection::new(plane, "system", "leader", name)
            .lease(LEASE)
            .campaign(Clock::system(), &Random::from_seed(seed))
    };
    let (_first, mut leads) = campaign("first", mk_network(&server, &partitioned), 1);
    let token = leads.acquired().await;
    let (_second, mut follows) = campaign("second", mk_network(&server, &Arc::default()), 2);
    tokio::time::sleep(LEASE * 4).await;
    assert_eq!(follows.fencing_token(), None);
    *partitioned.lock() = true;
    let start = Instant::now();
    leads.lost().await;
    assert!(start.elapsed() < LEASE, "the first stops before the second can lead");
    assert_eq!(follows.fencing_token(), None);
    assert!(follows.acquired().await > token);
    assert!(start.elapsed() <= LEASE * 2, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_resigns_is_replaced_at_once() {
    let server = FakeApiServer::with_default_kinds();
    let campaign = |name: &str, seed| {
        let election = LeaderElection::new(server.plane("main"), "system", "leader", name).lease(LEASE);
        election.campaign(Clock::system(), &Random::from_seed(seed))
    };
    let (first, mut leads) = campaign("first", 1);
    leads.acquired().await;
    let (_second, mut follows) = campaign("second", 2);
    tokio::time::sleep(LEASE).await;
    let start = Instant::now();
    first.resign().await;
    assert_eq!(leads.fencing_token(), None);
    follows.acquired().await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let lease: Lease = serde_json::from_value(
        server.objects("", "coordination.k8s.io/v1", "leases")["system/leader"].clone(),
    )
    .unwrap();
    assert_eq!(lease.spec.unwrap().lease_transitions, Some(2));
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_reconciles_but_both_replicas_watch() {
    use crate::harness::{KeyRecorder, Running, mk_engine, mk_map};
    use polis_api::k8s_openapi::api::core::v1::ConfigMap;
    use polis_engine::Watch;

    let server = FakeApiServer::with_default_kinds();
    let mut replicas = Vec::new();
    for number in 0..2 {
        let mut engine = mk_engine(number);
        let plane = engine.plane("plane", server.plane("main"), [Watch::of::<ConfigMap>()]);
        let recorder = KeyRecorder::default();
        engine.controller("notes", &plane, recorder.clone()).for_kind::<ConfigMap>();
        engine.leader_election(
            LeaderElection::new(server.plane("main"), "system", "leader", format!("r{number}")).lease(LEASE),
        );
        replicas.push((Running::spawn(engine), plane, recorder));
    }
    server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
    let cached_objects = |plane: &Plane| plane.list::<ConfigMap>().unwrap().len();
    eventually("both replicas have cached the object", || {
        replicas.iter().all(|(_, plane, _)| cached_objects(plane) == 1)
    })
    .await;
    eventually("one replica reconciles", || {
        replicas.iter().map(|(.., recorder)| recorder.keys().len()).sum::<usize>() == 1
    })
    .await;
    tokio::time::sleep(LEASE * 3).await;
    assert_eq!(replicas.iter().map(|(.., recorder)| recorder.keys().len()).sum::<usize>(), 1);

    assert_eq!(replicas.iter().filter(|(running, ..)| running.handle.fencing_token() == Some(1)).count(), 1);
    let leader = replicas.iter().position(|(.., recorder)| !recorder.keys().is_empty()).unwrap();
    let (running, ..) = replicas.remove(leader);
    running.stop().await;
    let (_, _, other) = &replicas[0];
    eventually("the other replica takes over", || other.keys() == ["main/shop/a"]).await;
}
