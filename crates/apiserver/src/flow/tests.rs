//! The levels at work: who computes while others are blocked.

use std::sync::{
    Arc, Condvar, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use polis_apimachinery::clock::Clock;

use super::*;
use crate::{
    common::eventually,
    metrics::{AuditCollector, StorageCollector},
    store::{HistoryLimits, MemoryStore},
    user::UserInfo,
};

/// A request that computes until the gate opens.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    turned: Condvar,
    computing: AtomicUsize,
}

impl Gate {
    async fn compute(self: Arc<Self>) -> Result<(), StatusError> {
        self.computing.fetch_add(1, Ordering::SeqCst);
        let open = self.open.lock().expect("unpoisoned");
        drop(self.turned.wait_while(open, |open| !*open).expect("unpoisoned"));
        Ok(())
    }

    fn open(&self) {
        *self.open.lock().expect("unpoisoned") = true;
        self.turned.notify_all();
    }
}

fn mk_caller(name: &str) -> Caller {
    Caller::of(Origin::Connection, "project:p", &UserInfo::new(name, ["tenants"]))
}

fn mk_flows() -> (Arc<Flows>, Arc<Metrics>) {
    let store = MemoryStore::new(HistoryLimits::default(), Clock::system());
    let metrics = Metrics::new(StorageCollector::new(Arc::new(store)), AuditCollector::new(None));
    (Arc::new(Flows::new(metrics.clone())), metrics)
}

fn spawn(
    flows: &Arc<Flows>,
    plane: &str,
    user: &str,
    gate: &Arc<Gate>,
) -> tokio::task::JoinHandle<Result<(), StatusError>> {
    let (flows, plane, caller, gate) = (flows.clone(), Arc::from(plane), mk_caller(user), gate.clone());
    tokio::spawn(async move { flows.run(&caller, &plane, Work::Large, gate.compute()).await })
}

/// One thread serves all connections. Were the work done there, nothing else would run.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_tenant_that_fills_its_permits_blocks_neither_health_nor_its_neighbours() {
    let (flows, metrics) = mk_flows();
    let permits = limits(PriorityLevel::Tenants, std::thread::available_parallelism().map_or(2, usize::from));
    let gate = Arc::new(Gate::default());
    let users = ["a", "b", "c", "d"];
    let attack: Vec<_> =
        (0..permits.permits * 8).map(|n| spawn(&flows, "project:attacker", users[n % 4], &gate)).collect();
    eventually("the attacker to compute", || async {
        (gate.computing.load(Ordering::SeqCst) >= permits.tenant_permits).then_some(())
    })
    .await;

    let other = Arc::new(Gate::default());
    other.open();
    let neighbour = spawn(&flows, "project:neighbour", "n", &other);
    neighbour.await.expect("no panic").expect("has a permit while the attacker computes");
    let (platform, root) = (Caller::internal(), Arc::from(""));
    let health = flows.run(&platform, &root, Work::Small, async { Ok(()) });
    health.await.expect("small work needs no permit");
    let admin = flows.run(&platform, &root, Work::Large, other.compute());
    admin.await.expect("the platform needs no permit");
    assert_eq!(gate.computing.load(Ordering::SeqCst), permits.tenant_permits, "no more than its permits");
    let text = metrics.text();
    let executing = format!(
        "apiserver_flowcontrol_current_executing_requests{{priority_level=\"tenants\"}} {}",
        permits.tenant_permits
    );
    assert!(text.contains(&executing), "{text}");

    gate.open();
    for request in attack {
        request.await.expect("no panic").expect("is computed in its turn");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_full_queue_answers_429_and_a_dropped_request_leaves_it() {
    let (flows, metrics) = mk_flows();
    let gate = Arc::new(Gate::default());
    let permits = limits(PriorityLevel::Tenants, std::thread::available_parallelism().map_or(2, usize::from));
    let held = permits.tenant_permits + permits.flow_queue;
    let mut requests: Vec<_> = (0..held).map(|_| spawn(&flows, "project:p", "a", &gate)).collect();
    let queued = |count: usize| {
        let line = format!("inqueue_requests{{priority_level=\"tenants\"}} {count}\n");
        let metrics = metrics.clone();
        eventually("the queue", move || {
            let found = metrics.text().contains(&line).then_some(());
            async move { found }
        })
    };
    queued(permits.flow_queue).await;
    let refused = spawn(&flows, "project:p", "a", &gate).await.expect("no panic").expect_err("full");
    assert_eq!((refused.code, refused.retry_after()), (429, Some(1)), "{refused}");
    requests.pop().expect("a request").abort();
    queued(permits.flow_queue - 1).await;
    requests.push(spawn(&flows, "project:p", "a", &gate));
    queued(permits.flow_queue).await;
    gate.open();
    for request in requests {
        request.await.expect("no panic").expect("is computed");
    }
    queued(0).await;
    assert!(metrics.text().contains("reason=\"queue-full\"} 1"));
}

/// A request without a permit would wait for the fifteen seconds of the queue, and then fail.
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_a_webhook_holds_no_permit() {
    let (flows, _) = mk_flows();
    let plane: Arc<str> = "project:p".into();
    let answered = tokio::sync::Notify::new();
    let caller = mk_caller("a");
    let slow = || {
        flows.run(&caller, &plane, Work::Large, async {
            answered.notified().await;
            Ok(())
        })
    };
    let mut slow: Vec<_> = (0..40).map(|_| Box::pin(slow())).collect();
    for request in &mut slow {
        assert!(futures::poll!(request).is_pending());
    }
    flows.run(&caller, &plane, Work::Large, async { Ok(()) }).await.expect("a permit is free");
    answered.notify_waiters();
    for request in slow {
        request.await.expect("continues on a permit");
    }
    let never = flows.run(&caller, &plane, Work::Large, std::future::pending::<Result<(), StatusError>>());
    assert_eq!(never.await.expect_err("has a deadline").code, 504);
}

#[tokio::test]
async fn a_panic_is_answered_with_500_and_gives_the_permit_back() {
    let (flows, _) = mk_flows();
    let (plane, caller): (Arc<str>, _) = ("project:p".into(), mk_caller("a"));
    for _ in 0..limits(PriorityLevel::Tenants, 64).permits {
        let request = flows.run(&caller, &plane, Work::Large, async {
            let empty: Vec<u8> = Vec::new();
            Ok(empty[std::hint::black_box(0)])
        });
        assert_eq!(request.await.expect_err("panics").code, 500);
    }
    flows.run(&caller, &plane, Work::Large, async { Ok(()) }).await.expect("a permit is free");
}

#[test]
fn the_bodies_of_one_identity_and_of_one_plane_are_limited_in_bytes() {
    let (flows, metrics) = mk_flows();
    let plane: Arc<str> = "project:p".into();
    let hold = |user: &str, bytes| flows.hold_body(&mk_caller(user), &plane, bytes);
    let first = hold("a", IDENTITY_BYTES).expect("up to the limit");
    assert_eq!(hold("a", 1).map(drop).expect_err("too much").code, 429);
    let second = hold("b", PLANE_BYTES - IDENTITY_BYTES).expect("another identity");
    assert_eq!(hold("c", 1).map(drop).expect_err("too much for the plane").code, 429);
    assert!(flows.hold_body(&Caller::internal(), &plane, usize::MAX).expect("unlimited").is_none());
    drop((first, second));
    drop(hold("c", 1).expect("released"));
    assert!(metrics.text().contains("reason=\"memory\"} 2"));
}
