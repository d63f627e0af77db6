//! Replicas: two management processes with leader election, of which one is killed every five seconds.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use polis_api::{
    compute::Workload,
    k8s_openapi::api::coordination::v1::Lease,
    kube::{Api, ResourceExt as _},
};
use polis_e2e::{
    builders::workload,
    manager_process::{ProcessOptions, Role},
    recorder::ObjectChange,
    view::NamespaceView,
    world::{World, disruptive_scenario},
};

use crate::rollout;

/// Number of workloads; half of them are deleted again.
const WORKLOADS: usize = 200;
/// Time between two kills.
const KILL_INTERVAL: Duration = Duration::from_secs(5);
/// Lease duration. With the default of 15 s no replica would become leader: a replica runs for ten seconds,
/// and can acquire the lease only after it has expired.
const LEASE: Duration = Duration::from_secs(2);
/// Required number of leader changes; how many kills that takes depends on the machine.
const LEADER_CHANGES: i32 = 3;
const MAX_KILLS: usize = 60;
/// After the last kill, the remaining work must decrease within this time: the total time depends on the
/// machine.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(90);

#[test]
fn two_replicas_with_a_kill_every_five_seconds_converge_like_one() {
    disruptive_scenario(async |world| {
        let project = world.project("replicas").await;
        world.process(&Role::Management).kill();
        let mut replicas = Vec::new();
        for replica in 1..=2 {
            let process = world
                .prepare_process(
                    Role::Management,
                    ProcessOptions { replica, leader_election: Some(LEASE), ..ProcessOptions::default() },
                )
                .await;
            process.launch().unwrap();
            replicas.push(process);
        }

        let workloads = async {
            let creations = stream::iter(0..WORKLOADS).map(async |number| {
                let city = if number % 2 == 0 { "dfw" } else { "ord" };
                let one = project.run(workload(&name(number)).placed("main", &[city], 1)).await;
                // Every other workload is deleted at some point of its rollout.
                if is_deleted(number) {
                    tokio::time::sleep(Duration::from_millis(150 * (number as u64 % 40))).await;
                    one.delete().await;
                }
            });
            creations.buffer_unordered(8).collect::<Vec<()>>().await;
        };
        let kill_one = async |kill: usize| {
            tokio::time::sleep(KILL_INTERVAL).await;
            let replica = &replicas[kill % 2];
            replica.kill();
            replica.launch().unwrap();
        };
        let mut kills = 0;
        let killing = async {
            loop {
                kill_one(kills).await;
                kills += 1;
            }
        };
        let started = Instant::now();
        tokio::select! {
            () = workloads => {}
            () = killing => {}
        }
        let elapsed = started.elapsed();
        // If the workloads finish within a few leader changes, the kills continue during the remaining work.
        while leader_changes(world).await < LEADER_CHANGES {
            assert!(kills < MAX_KILLS, "the leader changed only {} times", leader_changes(world).await);
            kill_one(kills).await;
            kills += 1;
        }
        let leader_changes = leader_changes(world).await;

        let view = project.view();
        let kept = (0..WORKLOADS).filter(|number| !is_deleted(*number)).count();
        until_done(&view, |workloads_now| {
            let runs = |w: &&Workload| {
                w.status.as_ref().is_some_and(|s| (s.deployments, s.ready_replicas) == (1, 1))
            };
            let deleting = workloads_now.iter().filter(|w| w.metadata.deletion_timestamp.is_some()).count();
            deleting + kept
                - workloads_now
                    .iter()
                    .filter(runs)
                    .filter(|w| w.metadata.deletion_timestamp.is_none())
                    .count()
        })
        .await;

        // No duplicate work: one deployment per workload, and one start per remaining instance.
        let mut created: BTreeMap<String, usize> = BTreeMap::new();
        for entry in project.recorder.journal(world.started_at()) {
            if entry.key.kind == "WorkloadDeployment"
                && entry.key.namespace == project.namespace
                && entry.change == ObjectChange::Added
            {
                let of = entry
                    .object
                    .pointer("/spec/workloadRef/name")
                    .and_then(|name| name.as_str())
                    .unwrap_or("?");
                *created.entry(of.to_owned()).or_default() += 1;
            }
        }
        assert!(created.values().all(|count| *count == 1), "deployments were created twice: {created:?}");
        let mut starts: BTreeMap<String, usize> = BTreeMap::new();
        for city in world.cities() {
            for start in world.provider(city).starts_in(&project.hub_namespace()) {
                *starts.entry(start.name).or_default() += 1;
            }
        }
        assert!(starts.values().all(|count| *count == 1), "machines were started twice: {starts:?}");
        assert!(starts.len() >= kept, "{} of {kept} machines were started", starts.len());

        for number in (0..WORKLOADS).filter(|number| !is_deleted(*number)) {
            drop(view.api::<Workload>().delete(&name(number), &Default::default()).await.unwrap());
        }
        until_done(&view, |workloads_now| workloads_now.len()).await;
        rollout::until_clean(world, &project).await;
        println!(
            "{WORKLOADS} workloads were created and {} deleted within {elapsed:.0?}, with {kills} kills and {leader_changes} leader changes; \
             everything converged and was deleted after {:.0?}",
            WORKLOADS - kept,
            started.elapsed()
        );
    });
}

fn name(number: usize) -> String {
    format!("w{number:03}")
}

fn is_deleted(number: usize) -> bool {
    number % 4 < 2
}

/// Waits until no work is left; fails when the remaining work does not decrease for [`PROGRESS_TIMEOUT`].
async fn until_done(view: &NamespaceView, left: impl Fn(&[Workload]) -> usize) {
    let mut lowest = usize::MAX;
    let mut deadline = Instant::now() + PROGRESS_TIMEOUT;
    loop {
        let workloads_now = view.all::<Workload>();
        let now = left(&workloads_now);
        if now == 0 {
            return;
        }
        if now < lowest {
            (lowest, deadline) = (now, Instant::now() + PROGRESS_TIMEOUT);
        }
        let names: Vec<String> = workloads_now.iter().map(|workload| workload.name_any()).collect();
        assert!(Instant::now() < deadline, "{now} have not converged, of {names:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Number of leader changes of the management role.
async fn leader_changes(world: &World) -> i32 {
    let platform = world.fixture().planes.layout().platform.clone();
    let leases: Api<Lease> = Api::namespaced(world.recorder(&platform).client().clone(), "compute-system");
    let leases = leases.list(&Default::default()).await.unwrap();
    leases.iter().filter_map(|lease| lease.spec.as_ref()?.lease_transitions).max().unwrap_or(0)
}
