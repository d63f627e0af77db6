//! Jumps of the wall clock: running instances keep running, failed ones restart in time, deleted ones are
//! removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use jiff::{SignedDuration, Timestamp};
use polis_engine::Clock;

use crate::test_cell::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_jump_neither_stops_instances_nor_delays_restarts_and_deletions() {
    let hours = Arc::new(AtomicI64::new(0));
    let clock = Clock::custom({
        let hours = hours.clone();
        move || Timestamp::now() + SignedDuration::from_hours(hours.load(Ordering::Relaxed))
    });
    let mut cell = TestCell::at(clock).await;
    let calm = cell.create(&mk_instance("calm", "polis.local/sleep", &[])).await;
    cell.until_running("calm").await;
    let running = cell.state(&calm).unwrap().pid;
    let broken = cell.create(&mk_instance("broken", "polis.local/crash", &["7"])).await;

    for (number, jump) in [-48, 72, -24 * 365, 24 * 365].into_iter().enumerate() {
        hours.store(jump, Ordering::Relaxed);
        let before = cell.until("a first run", async || cell.state(&broken)).await.restarts;
        cell.until("the failing instance restarts", async || {
            cell.state(&broken).filter(|state| state.restarts > before + 1)
        })
        .await;
        let name = format!("new-{number}");
        let new = cell.create(&mk_instance(&name, "polis.local/sleep", &[])).await;
        cell.until_running(&name).await;
        cell.delete(&name).await;
        cell.until_gone(&name).await;
        assert_eq!(processes_of(&new), [] as [i32; 0]);
        assert_eq!(cell.state(&calm).unwrap().pid, running, "a running instance keeps its process");
    }

    // The runtime starts with a clock far before the times in its state files.
    cell.kill().await;
    hours.store(-24 * 1000, Ordering::Relaxed);
    cell.start();
    cell.until_running("calm").await;
    let before = cell.state(&broken).unwrap().restarts;
    cell.until("a restart", async || cell.state(&broken).filter(|state| state.restarts > before)).await;
    assert_eq!(cell.state(&calm).unwrap().pid, running, "adopted, not restarted");
}
