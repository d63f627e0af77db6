//! Quiescence: converged controllers make no requests.

use std::time::{Duration, Instant};

use polis_e2e::{
    builders::{deployment, workload},
    manager_process::Role,
    matchers::workload_named,
    proxy::{RecordedRequest, RequestVerb},
    view::TIMEOUT,
    world::{World, disruptive_scenario},
};

use crate::rollout;

/// How long no request may be made.
const QUIET_WINDOW: Duration = Duration::from_secs(60);
/// Required time without requests before the window starts: namespaces of earlier scenarios may still be
/// terminating, and updates of event counts are delayed by up to 30 s.
const IDLE_TIME: Duration = Duration::from_secs(35);

/// Requests other than watches and heartbeats. A cell renews its Lease once a minute, and makes no other
/// request.
fn requests(world: &World, since: Instant) -> Vec<(Role, RecordedRequest)> {
    world
        .requests_since(since)
        .into_iter()
        .filter(|(_, request)| request.verb != RequestVerb::Watch && !request.is_heartbeat())
        .collect()
}

#[test]
fn converged_controllers_neither_write_nor_read() {
    disruptive_scenario(async |world| {
        let project = world.project("quiet").await;
        let other = world.twin_of(&project).await;
        let web = project.run(workload("web").placed("main", &["dfw", "ord"], 2)).await;
        web.until_deployed_to(&["dfw", "ord"]).await;
        other.deploy(deployment("a").to("dfw").replicas(2)).await;
        project.deploy(deployment("b").to("ord")).await;
        rollout::until_running(world, &other, "a", "dfw", 2).await;
        rollout::until_running(world, &project, "b", "ord", 1).await;
        project.view().eventually_has(workload_named("web").with_counts(2, 4, 4)).await;

        let start = Instant::now();
        let deadline = start + TIMEOUT;
        loop {
            let noise = requests(world, start);
            let last = noise.iter().map(|(_, request)| request.at).max().unwrap_or(start);
            let remaining = IDLE_TIME.saturating_sub(last.elapsed());
            if remaining.is_zero() {
                break;
            }
            assert!(last < deadline, "the controllers do not become quiet: {noise:#?}");
            tokio::time::sleep(remaining).await;
        }

        let start = Instant::now();
        tokio::time::sleep(QUIET_WINDOW).await;
        let noise = requests(world, start);
        assert!(noise.is_empty(), "{} requests within {QUIET_WINDOW:?}: {noise:#?}", noise.len());
        let namespaces = [project.namespaces(), other.namespaces()].concat();
        for recorder in world.recorders() {
            let changed: Vec<_> = recorder
                .journal(start)
                .into_iter()
                .filter(|entry| namespaces.contains(&entry.key.namespace))
                .collect();
            assert!(changed.is_empty(), "objects changed on {}: {changed:#?}", recorder.plane);
        }
    });
}
