//! Replicas: two processes of the management role, of which one acts, and it is always another one that dies.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use polis_api::{compute::Workload, kube::ResourceExt as _};
use polis_e2e::{
    draft::workload,
    eye::Change,
    seek::worked,
    staff::{Role, Terms},
    world::alone,
};

use crate::chain;

/// Workloads that come; half of them go again.
const WORKLOADS: usize = 200;
/// Time between two deaths.
const EVERY: Duration = Duration::from_secs(5);
/// Time for everything to settle once the dying is over: Karmada moves four to sixteen objects a second here.
const SETTLED_WITHIN: Duration = Duration::from_secs(180);

#[test]
fn two_replicas_of_which_one_dies_every_five_seconds_end_where_one_would() {
    alone(async |world| {
        let project = world.project("herd").await;
        world.member(&Role::Management).kill();
        let mut replicas = Vec::new();
        for replica in 1..=2 {
            let member = world.hire(Role::Management, Terms { replica, elects: true }).await;
            member.launch().unwrap();
            replicas.push(member);
        }

        let coming_and_going = async {
            let herd = stream::iter(0..WORKLOADS).map(async |number| {
                let city = if number % 2 == 0 { "dfw" } else { "ord" };
                let one = project.run(workload(&format!("w{number:03}")).placed("main", &[city], 1)).await;
                // Every other one goes, at whatever point of its way it is then.
                if number % 4 < 2 {
                    tokio::time::sleep(Duration::from_millis(150 * (number as u64 % 40))).await;
                    one.delete().await;
                }
            });
            herd.buffer_unordered(8).collect::<Vec<()>>().await;
        };
        let dying = async {
            let mut deaths = 0;
            loop {
                tokio::time::sleep(EVERY).await;
                let victim = &replicas[deaths % 2];
                victim.kill();
                victim.launch().unwrap();
                deaths += 1;
            }
        };
        tokio::select! {
            () = coming_and_going => {}
            () = dying => {}
        }

        let here = project.here();
        let kept: Vec<String> = (0..WORKLOADS).filter(|n| n % 4 >= 2).map(|n| format!("w{n:03}")).collect();
        let deadline = Instant::now() + SETTLED_WITHIN;
        loop {
            let there = here.all::<Workload>();
            let ready =
                |w: &Workload| w.status.as_ref().is_some_and(|s| (s.deployments, s.ready_replicas) == (1, 1));
            let left = there.iter().filter(|w| !kept.contains(&w.name_any())).count();
            let done = there.iter().filter(|w| kept.contains(&w.name_any()) && ready(w)).count();
            if left == 0 && done == kept.len() {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "{done} of {} run and {left} that were deleted are left",
                kept.len()
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }

        // No double work: one deployment per workload ever, and one start per instance that stayed.
        let mut made: BTreeMap<String, usize> = BTreeMap::new();
        for note in project.eye.journal(world.began()) {
            if note.key.kind == "WorkloadDeployment"
                && note.key.namespace == project.namespace
                && note.change == Change::Came
            {
                let of = note
                    .object
                    .pointer("/spec/workloadRef/name")
                    .and_then(|name| name.as_str())
                    .unwrap_or("?");
                *made.entry(of.to_owned()).or_default() += 1;
            }
        }
        assert!(made.values().all(|count| *count == 1), "deployments were made twice: {made:?}");
        let mut starts: BTreeMap<String, usize> = BTreeMap::new();
        for city in world.cities() {
            for start in world.provider(city).starts_in(&project.hub_namespace()) {
                *starts.entry(start.name).or_default() += 1;
            }
        }
        assert!(starts.values().all(|count| *count == 1), "machines were started twice: {starts:?}");

        for name in &kept {
            here.has(worked(name).counting(1, 1, 1)).await;
            drop(here.api::<Workload>().delete(name, &Default::default()).await.unwrap());
        }
        let cleared = Instant::now() + SETTLED_WITHIN;
        while !here.all::<Workload>().is_empty() {
            assert!(Instant::now() < cleared, "{} workloads do not go", here.all::<Workload>().len());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        chain::is_clean(world, &project).await;
    });
}
