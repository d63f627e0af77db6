//! A runtime that is killed again and again, at any moment, while instances come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::world::*;

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Kills of the runtime; `POLIS_TEST_KILLS` for more.
fn kills() -> u64 {
    std::env::var("POLIS_TEST_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(12)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_is_killed_at_any_moment_loses_nothing_and_runs_nothing_twice() {
    let mut world = World::new().await;
    let mut dice = Dice(42);
    let steady = world.create(&mk_instance("steady", "polis.local/sleep", &[])).await;
    world.until_running("steady").await;
    let before = world.state(&steady).unwrap();

    let (mut there, mut gone) = (BTreeMap::new(), BTreeSet::new());
    for kill in 0..kills() {
        for n in 0..2 {
            let name = format!("web-{kill}-{n}");
            let uid = world.create(&mk_instance(&name, "polis.local/sleep", &[])).await;
            there.insert(name, uid);
        }
        if dice.roll(2) == 0 {
            let leaving = there.keys().nth(dice.roll(there.len() as u64) as usize).cloned().unwrap();
            world.delete(&leaving).await;
            gone.insert(there.remove(&leaving).unwrap());
        }
        // Some kills hit right at the start, some in the middle of things.
        tokio::time::sleep(Duration::from_millis(dice.roll(400))).await;
        world.kill().await;
        world.start();
    }

    for (name, uid) in &there {
        world.until_running(name).await;
        assert_eq!(processes_of(uid).len(), 1, "{name}");
        assert_eq!(world.state(uid).unwrap().restarts, 0, "{name} was started once");
    }
    for uid in &gone {
        world.until("what was deleted has ended", async || processes_of(uid).is_empty().then_some(())).await;
        world.until("its folder is gone", async || world.state(uid).is_none().then_some(())).await;
    }
    assert_eq!(world.state(&steady).unwrap(), before, "what ran all the time was never touched");
}
