//! Replicas: two processes of the management role, of which one acts, and it is always another one that dies.

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
    draft::workload,
    eye::Change,
    place::Place,
    staff::{Role, Terms},
    world::{World, alone},
};

use crate::chain;

/// Workloads that come; half of them go again.
const WORKLOADS: usize = 200;
/// Time between two deaths.
const EVERY: Duration = Duration::from_secs(5);
/// Time without a word after which the other replica acts. With the lease of an installation, 15 s, nobody would lead
/// here: a replica lives for ten seconds, and must see the lease idle for the whole of its time to take it.
const LEASE: Duration = Duration::from_secs(2);
/// The lease must have changed hands so often; how many deaths that takes depends on the machine.
const REIGNS: i32 = 3;
const MOST_DEATHS: usize = 60;
/// Once the dying is over, something must come nearer to its end within this time: how long it takes for all of them
/// depends on the machine.
const PATIENCE: Duration = Duration::from_secs(90);

#[test]
fn two_replicas_of_which_one_dies_every_five_seconds_end_where_one_would() {
    alone(async |world| {
        let project = world.project("herd").await;
        world.member(&Role::Management).kill();
        let mut replicas = Vec::new();
        for replica in 1..=2 {
            let member = world
                .hire(Role::Management, Terms { replica, elects: Some(LEASE), ..Terms::default() })
                .await;
            member.launch().unwrap();
            replicas.push(member);
        }

        let coming_and_going = async {
            let herd = stream::iter(0..WORKLOADS).map(async |number| {
                let city = if number % 2 == 0 { "dfw" } else { "ord" };
                let one = project.run(workload(&name(number)).placed("main", &[city], 1)).await;
                // Every other one goes, at whatever point of its way it is then.
                if goes(number) {
                    tokio::time::sleep(Duration::from_millis(150 * (number as u64 % 40))).await;
                    one.delete().await;
                }
            });
            herd.buffer_unordered(8).collect::<Vec<()>>().await;
        };
        let one_dies = async |death: usize| {
            tokio::time::sleep(EVERY).await;
            let victim = &replicas[death % 2];
            victim.kill();
            victim.launch().unwrap();
        };
        let mut deaths = 0;
        let dying = async {
            loop {
                one_dies(deaths).await;
                deaths += 1;
            }
        };
        let began = Instant::now();
        tokio::select! {
            () = coming_and_going => {}
            () = dying => {}
        }
        let took = began.elapsed();
        // Where all came and went in less time than a few reigns take, the dying goes on while the work is finished.
        while reigns(world).await < REIGNS {
            assert!(deaths < MOST_DEATHS, "the lease changed hands {} times only", reigns(world).await);
            one_dies(deaths).await;
            deaths += 1;
        }
        let reigns = reigns(world).await;

        let here = project.here();
        let kept = (0..WORKLOADS).filter(|number| !goes(*number)).count();
        comes_to(&here, |there| {
            let runs = |w: &&Workload| {
                w.status.as_ref().is_some_and(|s| (s.deployments, s.ready_replicas) == (1, 1))
            };
            let going = there.iter().filter(|w| w.metadata.deletion_timestamp.is_some()).count();
            going + kept
                - there.iter().filter(runs).filter(|w| w.metadata.deletion_timestamp.is_none()).count()
        })
        .await;

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
        assert!(starts.len() >= kept, "{} of {kept} machines were started", starts.len());

        for number in (0..WORKLOADS).filter(|number| !goes(*number)) {
            drop(here.api::<Workload>().delete(&name(number), &Default::default()).await.unwrap());
        }
        comes_to(&here, |there| there.len()).await;
        chain::is_clean(world, &project).await;
        println!(
            "{WORKLOADS} workloads came and {} went within {took:.0?}, through {deaths} deaths and {reigns} reigns; \
             all was settled and cleared after {:.0?}",
            WORKLOADS - kept,
            began.elapsed()
        );
    });
}

fn name(number: usize) -> String {
    format!("w{number:03}")
}

fn goes(number: usize) -> bool {
    number % 4 < 2
}

/// Waits until nothing is left to be done, as long as it becomes less.
async fn comes_to(here: &Place, left: impl Fn(&[Workload]) -> usize) {
    let mut least = usize::MAX;
    let mut deadline = Instant::now() + PATIENCE;
    loop {
        let there = here.all::<Workload>();
        let now = left(&there);
        if now == 0 {
            return;
        }
        if now < least {
            (least, deadline) = (now, Instant::now() + PATIENCE);
        }
        let names: Vec<String> = there.iter().map(|workload| workload.name_any()).collect();
        assert!(Instant::now() < deadline, "{now} have not come to their end, of {names:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// How often the lease of the management role changed hands.
async fn reigns(world: &World) -> i32 {
    let platform = world.stage().planes.layout().platform.clone();
    let leases: Api<Lease> = Api::namespaced(world.eye(&platform).client().clone(), "compute-system");
    let leases = leases.list(&Default::default()).await.unwrap();
    leases.iter().filter_map(|lease| lease.spec.as_ref()?.lease_transitions).max().unwrap_or(0)
}
