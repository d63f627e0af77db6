//! Kills the runtime repeatedly, at random times, while instances are created and deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::test_cell::*;

/// A seeded pseudo-random generator: the same numbers in every run.
struct PseudoRandom(u64);

impl PseudoRandom {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Number of kills; `POLIS_TEST_KILLS` overrides it.
fn kills() -> u64 {
    std::env::var("POLIS_TEST_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(12)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_killed_at_any_time_loses_no_instance_and_starts_none_twice() {
    let mut cell = TestCell::new().await;
    let mut random = PseudoRandom(42);
    let steady = cell.create(&mk_instance("steady", "polis.local/sleep", &[])).await;
    cell.until_running("steady").await;
    let before = cell.state(&steady).unwrap();

    let (mut existing, mut deleted) = (BTreeMap::new(), BTreeSet::new());
    for kill in 0..kills() {
        for n in 0..2 {
            let name = format!("web-{kill}-{n}");
            let uid = cell.create(&mk_instance(&name, "polis.local/sleep", &[])).await;
            existing.insert(name, uid);
        }
        if random.below(2) == 0 {
            let victim = existing.keys().nth(random.below(existing.len() as u64) as usize).cloned().unwrap();
            cell.delete(&victim).await;
            deleted.insert(existing.remove(&victim).unwrap());
        }
        // Some kills hit the start of the runtime, some its normal operation.
        tokio::time::sleep(Duration::from_millis(random.below(400))).await;
        cell.kill().await;
        cell.start();
    }

    for (name, uid) in &existing {
        cell.until_running(name).await;
        assert_eq!(processes_of(uid).len(), 1, "{name}");
        assert_eq!(cell.state(uid).unwrap().restarts, 0, "{name} was started once");
    }
    for uid in &deleted {
        cell.until("deleted instances have exited", async || processes_of(uid).is_empty().then_some(()))
            .await;
        cell.until("the instance directory is deleted", async || cell.state(uid).is_none().then_some(()))
            .await;
    }
    assert_eq!(cell.state(&steady).unwrap(), before, "the steady instance kept running");
}
