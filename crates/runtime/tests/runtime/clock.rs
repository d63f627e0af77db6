//! A clock that jumps: what runs runs on, what failed is started again in its time, and what is deleted goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use jiff::{SignedDuration, Timestamp};
use polis_engine::Clock;

use crate::world::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_stops_nothing_holds_nothing_up_and_loses_nothing() {
    let hours = Arc::new(AtomicI64::new(0));
    let clock = Clock::custom({
        let hours = hours.clone();
        move || Timestamp::now() + SignedDuration::from_hours(hours.load(Ordering::Relaxed))
    });
    let mut world = World::at(clock).await;
    let calm = world.create(&mk_instance("calm", "polis.local/sleep", &[])).await;
    world.until_running("calm").await;
    let running = world.state(&calm).unwrap().pid;
    let broken = world.create(&mk_instance("broken", "polis.local/crash", &["7"])).await;

    for (number, jump) in [-48, 72, -24 * 365, 24 * 365].into_iter().enumerate() {
        hours.store(jump, Ordering::Relaxed);
        let before = world.until("it has run", async || world.state(&broken)).await.restarts;
        world
            .until("what fails is started again", async || {
                world.state(&broken).filter(|state| state.restarts > before + 1)
            })
            .await;
        let name = format!("new-{number}");
        let new = world.create(&mk_instance(&name, "polis.local/sleep", &[])).await;
        world.until_running(&name).await;
        world.delete(&name).await;
        world.until_gone(&name).await;
        assert_eq!(processes_of(&new), [] as [i32; 0]);
        assert_eq!(world.state(&calm).unwrap().pid, running, "what runs is left alone");
    }

    // The next start is on a day long before the one on which everything was written.
    world.kill().await;
    hours.store(-24 * 1000, Ordering::Relaxed);
    world.start();
    world.until_running("calm").await;
    let before = world.state(&broken).unwrap().restarts;
    world
        .until("it is started again", async || world.state(&broken).filter(|state| state.restarts > before))
        .await;
    assert_eq!(world.state(&calm).unwrap().pid, running, "adopted, not started again");
}
