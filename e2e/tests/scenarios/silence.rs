//! Silence: a world that has converged says nothing.

use std::time::{Duration, Instant};

use polis_e2e::{
    draft::{deployment, workload},
    place::DEADLINE,
    seek::worked,
    staff::Role,
    wire::{Call, Verb},
    world::{World, alone},
};

use crate::chain;

/// How long nothing may be said.
const SILENCE: Duration = Duration::from_secs(60);
/// What counts as calm before the window begins: namespaces of earlier scenarios may still be on their way out, and a
/// count of events that happened again is held back for up to 30 s.
const CALM: Duration = Duration::from_secs(35);

/// What the processes said that was not the beginning of a watch.
fn said(world: &World, since: Instant) -> Vec<(Role, Call)> {
    world.calls_since(since).into_iter().filter(|(_, call)| call.verb != Verb::Watch).collect()
}

#[test]
fn a_converged_world_neither_writes_nor_reads() {
    alone(async |world| {
        let project = world.project("quiet").await;
        let other = world.twin_of(&project).await;
        let web = project.run(workload("web").placed("main", &["dfw", "ord"], 2)).await;
        web.spreads_to(&["dfw", "ord"]).await;
        other.deploy(deployment("a").to("dfw").replicas(2)).await;
        project.deploy(deployment("b").to("ord")).await;
        chain::runs(world, &other, "a", "dfw", 2).await;
        chain::runs(world, &project, "b", "ord", 1).await;
        project.here().has(worked("web").counting(2, 4, 4)).await;

        let start = Instant::now();
        let deadline = start + DEADLINE;
        loop {
            let noise = said(world, start);
            let last = noise.iter().map(|(_, call)| call.at).max().unwrap_or(start);
            let rest = CALM.saturating_sub(last.elapsed());
            if rest.is_zero() {
                break;
            }
            assert!(last < deadline, "the processes do not come to rest: {noise:#?}");
            tokio::time::sleep(rest).await;
        }

        let start = Instant::now();
        tokio::time::sleep(SILENCE).await;
        let noise = said(world, start);
        assert!(noise.is_empty(), "{} calls in {SILENCE:?} of silence: {noise:#?}", noise.len());
        let namespaces = [project.namespaces(), other.namespaces()].concat();
        for eye in world.eyes() {
            let moved: Vec<_> = eye
                .journal(start)
                .into_iter()
                .filter(|note| namespaces.contains(&note.key.namespace))
                .collect();
            assert!(moved.is_empty(), "something moved on {}: {moved:#?}", eye.plane);
        }
    });
}
