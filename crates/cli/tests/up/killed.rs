//! `polis up` is killed with SIGKILL repeatedly, at random moments of its start and of rollouts.
//!
//! Meanwhile a user creates, scales and deletes workloads, and the test records the acknowledged changes.
//! After each convergence, every plane and the host must have exactly the acknowledged state: no object is
//! lost, left over or duplicated, and instances that ran before still have the same process id.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use polis_api::kube::{Api, Client, ResourceExt as _};
use polis_api::labels;
use polis_api::quota::ResourceClaim;
use serde_json::json;

use crate::installation::{Installation, mk_workload};
use crate::{is_ready, run};

const CITIES: [&str; 2] = ["dfw", "ord"];
/// Maximum number of workloads: enough that a kill interrupts several rollouts, few enough for a laptop.
const WORKLOADS: usize = 4;
/// Timeout of the convergence after a kill, on two cores that also build.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(180);

/// A pseudo-random generator with a fixed seed, so that every run is the same.
struct SeededRandom(u64);

impl SeededRandom {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// A request of the user.
#[derive(Clone, Debug)]
enum UserAction {
    Create(String, Vec<&'static str>, i32),
    Scale(String, i32),
    Delete(String),
}

/// Acknowledged cities and replicas of a workload.
#[derive(Clone, Debug, PartialEq)]
struct ExpectedWorkload {
    cities: Vec<&'static str>,
    replicas: i32,
}

/// The acknowledged state, and the request that had no response when the server was killed.
#[derive(Default)]
struct ExpectedState {
    workloads: BTreeMap<String, ExpectedWorkload>,
    unacknowledged: Option<UserAction>,
    created: usize,
}

impl ExpectedState {
    fn next_action(&mut self, random: &mut SeededRandom) -> UserAction {
        let names: Vec<&String> = self.workloads.keys().filter(|name| *name != "steady").collect();
        let any_name = |random: &mut SeededRandom| names[random.below(names.len() as u64) as usize].clone();
        match random.below(4) {
            0 | 1 if names.len() < WORKLOADS => {
                self.created += 1;
                let cities: &[&[&str]] = &[&["dfw"], &["ord"], &CITIES];
                let cities = cities[random.below(3) as usize].to_vec();
                UserAction::Create(format!("web-{}", self.created), cities, 1 + random.below(2) as i32)
            }
            2 if !names.is_empty() => UserAction::Scale(any_name(random), 1 + random.below(3) as i32),
            _ if !names.is_empty() => UserAction::Delete(any_name(random)),
            _ => UserAction::Scale("steady".to_owned(), 1),
        }
    }

    fn apply(&mut self, action: UserAction) {
        match action {
            UserAction::Create(name, cities, replicas) => {
                self.workloads.insert(name, ExpectedWorkload { cities, replicas });
            }
            UserAction::Scale(name, replicas) => {
                if let Some(workload) = self.workloads.get_mut(&name) {
                    workload.replicas = replicas;
                }
            }
            UserAction::Delete(name) => {
                self.workloads.remove(&name);
            }
        }
    }

    /// Reads whether the request without a response was applied, and records it.
    async fn resolve_unacknowledged(&mut self, api: &Api<Workload>) {
        let Some(action) = self.unacknowledged.take() else { return };
        let (UserAction::Create(name, ..) | UserAction::Scale(name, _) | UserAction::Delete(name)) = &action;
        let found = api.get_opt(name).await.expect("a response");
        let found = found.filter(|workload| workload.metadata.deletion_timestamp.is_none());
        let done = match &action {
            UserAction::Create(..) => found.is_some(),
            UserAction::Delete(_) => found.is_none(),
            UserAction::Scale(_, replicas) => found
                .is_some_and(|workload| workload.spec.placements[0].scale_settings.min_replicas == *replicas),
        };
        if done {
            self.apply(action);
        }
    }

    /// Sends requests until the given time.
    async fn run_user(&mut self, api: &Api<Workload>, random: &mut SeededRandom, until: Instant) {
        self.resolve_unacknowledged(api).await;
        while Instant::now() < until {
            let action = self.next_action(random);
            match tokio::time::timeout_at(until.into(), send(api, &action)).await {
                Ok(()) => self.apply(action),
                Err(_) => self.unacknowledged = Some(action),
            }
            let pause = Duration::from_millis(random.below(200));
            tokio::time::sleep_until((Instant::now() + pause).min(until).into()).await;
        }
    }
}

async fn send(api: &Api<Workload>, action: &UserAction) {
    let done = match action {
        UserAction::Create(name, cities, replicas) => {
            let workload = mk_workload(name, cities, *replicas);
            api.create(&PostParams::default(), &workload).await.map(drop)
        }
        UserAction::Scale(name, replicas) => {
            let path = "/spec/placements/0/scaleSettings/minReplicas";
            let patch = json!([{"op": "replace", "path": path, "value": replicas}]);
            let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).expect("a patch"));
            api.patch(name, &PatchParams::default(), &patch).await.map(drop)
        }
        UserAction::Delete(name) => api.delete(name, &DeleteParams::default()).await.map(drop),
    };
    done.unwrap_or_else(|error| panic!("{action:?}: {error}"));
}

/// Process ids of the containers of a data directory, by the UID of their instance.
fn programs(data: &Path) -> BTreeMap<String, Vec<u32>> {
    let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let home = format!("HOME={}", data.display());
    for entry in fs::read_dir("/proc").expect("a Linux host").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        let mut entries = environment.split('\0');
        if entries.clone().any(|entry| entry.starts_with(&home)) {
            let container_id =
                entries.find_map(|entry| entry.strip_prefix("POLIS_SEAT=")).unwrap_or_default();
            found.entry(container_id.split('/').next().unwrap_or_default().to_owned()).or_default().push(pid);
        }
    }
    found
}

/// Kills the shims that a failed test leaves behind. A container exits with its shim.
struct KillShims<'a>(&'a Path);

impl Drop for KillShims<'_> {
    fn drop(&mut self) {
        for pid in Installation::shims_in(self.0) {
            let _gone = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        }
    }
}

/// The names of all objects of a kind on a plane.
async fn names<K>(client: &Client) -> Result<BTreeSet<String>, String>
where
    K: polis_api::kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let listed = Api::<K>::all(client.clone()).list(&Default::default()).await;
    Ok(listed.map_err(|error| error.to_string())?.iter().map(|object| object.name_any()).collect())
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: &T) -> Result<(), String> {
    if found == *expected { Ok(()) } else { Err(format!("{what}: {found:?}, expected {expected:?}")) }
}

/// Compares every plane and the host with the expected state; returns the process id of each instance.
async fn compare(
    installation: &Installation,
    data: &Path,
    expected: &ExpectedState,
) -> Result<BTreeMap<String, u32>, String> {
    let project = installation.client("polis-default").await;
    let listed = Api::<Workload>::all(project.clone()).list(&Default::default()).await;
    let workloads: BTreeMap<String, i32> = listed
        .map_err(|error| error.to_string())?
        .iter()
        .map(|workload| (workload.name_any(), workload.spec.placements[0].scale_settings.min_replicas))
        .collect();
    let replicas =
        expected.workloads.iter().map(|(name, workload)| (name.clone(), workload.replicas)).collect();
    same("workloads", workloads, &replicas)?;

    let mut wanted = BTreeMap::new();
    for (name, workload) in &expected.workloads {
        for city in &workload.cities {
            wanted.insert((name.clone(), (*city).to_owned()), workload.replicas);
        }
    }
    let shown = Api::<Instance>::all(project.clone()).list(&Default::default()).await;
    let shown = shown.map_err(|error| error.to_string())?.items;
    let mut existing: BTreeMap<(String, String), i32> = BTreeMap::new();
    for instance in &shown {
        let label = |key: &str| instance.labels().get(key).cloned().unwrap_or_default();
        *existing.entry((label(labels::WORKLOAD_NAME), label(labels::CITY_CODE))).or_default() += 1;
        if !is_ready(instance) {
            return Err(format!("{} is not ready: {:?}", instance.name_any(), instance.status));
        }
    }
    same("instances by workload and city", existing, &wanted)?;

    let instances: BTreeSet<String> = shown.iter().map(|instance| instance.name_any()).collect();
    let deployments = names::<WorkloadDeployment>(&project).await?;
    let hub = installation.client("polis-hub").await;
    same("instances on the hub", names::<Instance>(&hub).await?, &instances)?;
    same("deployments on the hub", names::<WorkloadDeployment>(&hub).await?, &deployments)?;
    same("quota claims", names::<ResourceClaim>(&project).await?.len(), &instances.len())?;

    let (mut in_cells, mut deployed, mut uids) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for city in CITIES {
        let cell = installation.client(&format!("polis-cell-{city}")).await;
        let listed = Api::<Instance>::all(cell.clone()).list(&Default::default()).await;
        for instance in listed.map_err(|error| error.to_string())? {
            let fresh = in_cells.insert(instance.name_any());
            same(&format!("{} is in only one cell", instance.name_any()), fresh, &true)?;
            uids.insert(instance.uid().unwrap_or_default());
        }
        deployed.extend(names::<WorkloadDeployment>(&cell).await?);
    }
    same("instances in the cells", in_cells, &instances)?;
    same("deployments in the cells", deployed, &deployments)?;

    let running = programs(data);
    same("instances with a program", running.keys().cloned().collect::<BTreeSet<_>>(), &uids)?;
    same("shims", Installation::shims_in(data).len(), &uids.len())?;
    let mut pids = BTreeMap::new();
    for (uid, found) in running {
        let [pid] = found[..] else { return Err(format!("instance {uid} runs as {found:?}")) };
        pids.insert(uid, pid);
    }
    Ok(pids)
}

/// Waits until every plane and the host have the expected state.
async fn wait_for_convergence(
    installation: &Installation,
    data: &Path,
    expected: &ExpectedState,
) -> BTreeMap<String, u32> {
    let until = Instant::now() + CONVERGENCE_TIMEOUT;
    loop {
        match compare(installation, data, expected).await {
            Ok(pids) => return pids,
            Err(why) => {
                assert!(Instant::now() < until, "not converged within {CONVERGENCE_TIMEOUT:?}: {why}")
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Kills `polis up` `kills` times, and waits for convergence after every `check_every` kills.
async fn survives_kills(kills: u64, check_every: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    let _kill_shims = KillShims(data);
    let data_dir = data.display().to_string();
    let args = ["--data-dir", &data_dir, "--cities", "dfw,ord"];
    let mut random = SeededRandom(42);
    let mut expected = ExpectedState::default();

    let mut installation = Installation::start(&args).await;
    installation.raise_quota("polis-default").await;
    run(&installation, &mk_workload("steady", &["dfw"], 1)).await;
    expected.apply(UserAction::Create("steady".to_owned(), vec!["dfw"], 1));
    let mut before = wait_for_convergence(&installation, data, &expected).await;
    for kill in 1..=kills {
        let api: Api<Workload> = Api::namespaced(installation.client("polis-default").await, "default");
        let moment = Instant::now() + Duration::from_millis(random.below(1500));
        expected.run_user(&api, &mut random, moment).await;
        installation.kill();
        if random.below(3) == 0 {
            Installation::killed_while_starting(&args, Duration::from_millis(random.below(600))).await;
        }
        installation = Installation::start(&args).await;
        if kill % check_every != 0 && kill != kills {
            continue;
        }
        let api: Api<Workload> = Api::namespaced(installation.client("polis-default").await, "default");
        expected.resolve_unacknowledged(&api).await;
        let now = wait_for_convergence(&installation, data, &expected).await;
        for (uid, pid) in &now {
            let unchanged = before.get(uid).is_none_or(|earlier| earlier == pid);
            assert!(unchanged, "instance {uid} had process {:?} and has {pid}", before[uid]);
        }
        println!("after {kill} kills: {} workloads, {} instances", expected.workloads.len(), now.len());
        before = now;
    }

    let api: Api<Workload> = Api::namespaced(installation.client("polis-default").await, "default");
    for name in expected.workloads.keys() {
        api.delete(name, &DeleteParams::default()).await.expect("deletes the workload");
    }
    expected.workloads.clear();
    assert!(wait_for_convergence(&installation, data, &expected).await.is_empty(), "nothing is left");
    installation.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random_moments_it_loses_duplicates_and_leaks_nothing() {
    survives_kills(10, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes three minutes: cargo test -p polis --test up -- --ignored --nocapture a_hundred_kills"]
async fn a_hundred_kills_lose_duplicate_and_leak_nothing() {
    survives_kills(100, 10).await;
}
