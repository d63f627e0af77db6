//! Two replicas and one lease: never two leaders acting, whatever the network and the clocks do.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use parking_lot::Mutex;
use polis_api::k8s_openapi::api::coordination::v1::Lease;
use polis_engine::{Clock, Election, Leadership, Plane, Random, Transport};
use tokio::time::Instant;

use crate::desk::eventually;
use crate::stand_in::StandIn;

const LEASE: Duration = Duration::from_secs(15);

/// The way of one replica to the lease, which can be cut.
#[derive(Clone)]
struct Link {
    server: StandIn,
    random: Random,
    /// Longest delay of a message, in milliseconds.
    late: u64,
    cut: Arc<Mutex<bool>>,
}

impl tower::Service<http::Request<bytes::Bytes>> for Link {
    type Response = http::Response<crate::stand_in::body::StandInBody>;
    type Error = polis_engine::transport::TransportError;
    type Future = futures::future::BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<bytes::Bytes>) -> Self::Future {
        let mut link = self.clone();
        Box::pin(async move {
            // Late both ways, lost either way: the deed may be done and the answer never come, or come seconds later.
            let there = Duration::from_millis(link.random.next() % link.late);
            tokio::time::sleep(there).await;
            if *link.cut.lock() {
                return std::future::pending().await;
            }
            let answer = link.server.call(request).await;
            let back = Duration::from_millis(link.random.next() % link.late);
            tokio::time::sleep(back).await;
            if *link.cut.lock() {
                return std::future::pending().await;
            }
            answer
        })
    }
}

/// What a replica did while it believed to lead: the fencing numbers, in order of time.
async fn act(
    name: usize,
    mut leadership: Leadership,
    acting: Arc<Mutex<Vec<(usize, i64)>>>,
    seen: Arc<Mutex<Vec<i64>>>,
) {
    loop {
        let fence = leadership.gained().await;
        {
            let mut acting = acting.lock();
            acting.push((name, fence));
            assert_eq!(acting.len(), 1, "two leaders at once: {acting:?}");
            let mut seen = seen.lock();
            assert!(seen.last().is_none_or(|last| *last < fence), "fencing number {fence} after {seen:?}");
            seen.push(fence);
        }
        leadership.lost().await;
        acting.lock().retain(|(acting, _)| *acting != name);
    }
}

async fn one_seed(seed: u64) {
    let server = StandIn::usual();
    let random = Random::from_seed(seed);
    let wall = Clock::anchored("2026-01-01T00:00:00Z".parse().unwrap());
    let acting: Arc<Mutex<Vec<(usize, i64)>>> = Arc::default();
    let seen: Arc<Mutex<Vec<i64>>> = Arc::default();
    let mut cuts = Vec::new();
    let mut tasks = Vec::new();
    let mut leaderships = Vec::new();
    for replica in 0..2 {
        let random = random.split(&format!("replica {replica}"));
        // From a good network to one on which an attempt hardly ever makes it in time.
        let late = [50, 500, 1500, 3000][(random.next() % 4) as usize];
        let cut = Arc::new(Mutex::new(false));
        cuts.push(cut.clone());
        let link = Link { server: server.clone(), random: random.split("link"), late, cut };
        let plane = Plane::new("main", Transport::in_process(link));
        // Clocks are off by up to an hour either way.
        let skew = SignedDuration::from_secs((random.next() % 7200) as i64 - 3600);
        let election = Election::new(plane, "system", "leader", format!("replica-{replica}")).lease(LEASE);
        let (elector, leadership) = election.stand(wall.skewed(skew), &random);
        leaderships.push(leadership.clone());
        tasks.push(tokio::spawn(act(replica, leadership, acting.clone(), seen.clone())));
        drop(elector);
    }
    // Partitions come and go for four minutes.
    let script = random.split("script");
    let end = Instant::now() + Duration::from_secs(4 * 60);
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(1000 + script.next() % 20_000)).await;
        let both = script.next();
        *cuts[0].lock() = both.is_multiple_of(3);
        *cuts[1].lock() = (both / 3).is_multiple_of(3);
        assert!(tasks.iter().all(|task| !task.is_finished()), "seed {seed}");
    }
    // Healed: one of them leads before long; on the worst of these networks most attempts still fail.
    cuts.iter().for_each(|cut| *cut.lock() = false);
    let bound = LEASE * 20;
    let healed = tokio::time::timeout(bound, async {
        while leaderships.iter().all(|leadership| leadership.fence().is_none()) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    assert!(healed.await.is_ok(), "seed {seed}: nobody leads after {bound:?}");
    assert!(tasks.iter().all(|task| !task.is_finished()), "seed {seed}");
    assert!(!seen.lock().is_empty());
}

#[test]
fn there_are_never_two_leaders_in_a_thousand_seeds_of_partitions_and_skew() {
    let seeds: u64 = std::env::var("POLIS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(1000);
    // Two threads, for two cores; each seed has a runtime of its own.
    std::thread::scope(|scope| {
        for half in 0..2 {
            scope.spawn(move || {
                for seed in (half..seeds).step_by(2) {
                    let mut builder = tokio::runtime::Builder::new_current_thread();
                    builder.enable_time().start_paused(true).build().unwrap().block_on(one_seed(seed));
                }
            });
        }
    });
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_vanishes_is_replaced_within_the_lease_time() {
    let server = StandIn::usual();
    let cut = Arc::new(Mutex::new(false));
    let link = |server: &StandIn, cut: &Arc<Mutex<bool>>| Link {
        server: server.clone(),
        random: Random::from_seed(0),
        late: 200,
        cut: cut.clone(),
    };
    let stand = |name: &str, link: Link, seed| {
        let plane = Plane::new("main", Transport::in_process(link));
        Election::new(plane, "system", "leader", name)
            .lease(LEASE)
            .stand(Clock::system(), &Random::from_seed(seed))
    };
    let (_first, mut leads) = stand("first", link(&server, &cut), 1);
    let fence = leads.gained().await;
    let (_second, mut follows) = stand("second", link(&server, &Arc::default()), 2);
    tokio::time::sleep(LEASE * 4).await;
    assert_eq!(follows.fence(), None);
    *cut.lock() = true;
    let start = Instant::now();
    leads.lost().await;
    assert!(start.elapsed() < LEASE, "the first stops before anyone can follow");
    assert_eq!(follows.fence(), None);
    assert!(follows.gained().await > fence);
    assert!(start.elapsed() <= LEASE * 2, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_resigns_is_replaced_at_once() {
    let server = StandIn::usual();
    let stand = |name: &str, seed| {
        let election = Election::new(server.plane("main"), "system", "leader", name).lease(LEASE);
        election.stand(Clock::system(), &Random::from_seed(seed))
    };
    let (first, mut leads) = stand("first", 1);
    leads.gained().await;
    let (_second, mut follows) = stand("second", 2);
    tokio::time::sleep(LEASE).await;
    let start = Instant::now();
    first.resign().await;
    assert_eq!(leads.fence(), None);
    follows.gained().await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let lease: Lease = serde_json::from_value(
        server.objects("", "coordination.k8s.io/v1", "leases")["system/leader"].clone(),
    )
    .unwrap();
    assert_eq!(lease.spec.unwrap().lease_transitions, Some(2));
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_acts_but_both_see() {
    use crate::desk::{Notebook, Running, mk_engine, mk_map};
    use polis_api::k8s_openapi::api::core::v1::ConfigMap;
    use polis_engine::Watch;

    let server = StandIn::usual();
    let mut replicas = Vec::new();
    for number in 0..2 {
        let mut engine = mk_engine(number);
        let plane = engine.plane("plane", server.plane("main"), [Watch::of::<ConfigMap>()]);
        let notebook = Notebook::default();
        engine.controller("notes", &plane, notebook.clone()).on::<ConfigMap>();
        engine
            .lead(Election::new(server.plane("main"), "system", "leader", format!("r{number}")).lease(LEASE));
        replicas.push((Running::start(engine), plane, notebook));
    }
    server.put("", "v1", "configmaps", mk_map("shop", "a", "x"));
    let seen = |plane: &Plane| plane.list::<ConfigMap>().unwrap().len();
    eventually("both see it", || replicas.iter().all(|(_, plane, _)| seen(plane) == 1)).await;
    eventually("one acts", || {
        replicas.iter().map(|(.., notebook)| notebook.keys().len()).sum::<usize>() == 1
    })
    .await;
    tokio::time::sleep(LEASE * 3).await;
    assert_eq!(replicas.iter().map(|(.., notebook)| notebook.keys().len()).sum::<usize>(), 1);

    assert_eq!(replicas.iter().filter(|(running, ..)| running.handle.fence() == Some(1)).count(), 1);
    let leader = replicas.iter().position(|(.., notebook)| !notebook.keys().is_empty()).unwrap();
    let (running, ..) = replicas.remove(leader);
    running.stop().await;
    let (_, _, other) = &replicas[0];
    eventually("the other takes over", || other.keys() == ["main/shop/a"]).await;
}
