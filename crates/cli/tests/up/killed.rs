//! `polis up` killed without notice, again and again, at any moment of its own start and of its workloads' lives.
//!
//! A user makes, scales and deletes workloads meanwhile and keeps a book of what was acknowledged. Whenever things have
//! settled, every plane and the host must say what the book says: nothing lost, nothing left over, nothing twice, and
//! what ran before still runs under the same process id.

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

use crate::site::{Site, mk_workload};
use crate::{is_ready, run};

const CITIES: [&str; 2] = ["dfw", "ord"];
/// Workloads at once: enough that a kill meets several of them half-way, few enough for a laptop.
const WORKLOADS: usize = 4;
/// Time to settle after a kill, on two cores that build something else.
const PATIENCE: Duration = Duration::from_secs(180);

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Something that the user asks for.
#[derive(Clone, Debug)]
enum Act {
    Create(String, Vec<&'static str>, i32),
    Scale(String, i32),
    Delete(String),
}

/// What a workload was promised to have.
#[derive(Clone, Debug, PartialEq)]
struct Promise {
    cities: Vec<&'static str>,
    replicas: i32,
}

/// What the user was promised, and what was asked for when the other side fell silent.
#[derive(Default)]
struct Book {
    promised: BTreeMap<String, Promise>,
    unsure: Option<Act>,
    made: usize,
}

impl Book {
    fn think(&mut self, dice: &mut Dice) -> Act {
        let names: Vec<&String> = self.promised.keys().filter(|name| *name != "steady").collect();
        let some = |dice: &mut Dice| names[dice.roll(names.len() as u64) as usize].clone();
        match dice.roll(4) {
            0 | 1 if names.len() < WORKLOADS => {
                self.made += 1;
                let cities: &[&[&str]] = &[&["dfw"], &["ord"], &CITIES];
                let cities = cities[dice.roll(3) as usize].to_vec();
                Act::Create(format!("web-{}", self.made), cities, 1 + dice.roll(2) as i32)
            }
            2 if !names.is_empty() => Act::Scale(some(dice), 1 + dice.roll(3) as i32),
            _ if !names.is_empty() => Act::Delete(some(dice)),
            _ => Act::Scale("steady".to_owned(), 1),
        }
    }

    fn write(&mut self, act: Act) {
        match act {
            Act::Create(name, cities, replicas) => {
                self.promised.insert(name, Promise { cities, replicas });
            }
            Act::Scale(name, replicas) => {
                if let Some(promise) = self.promised.get_mut(&name) {
                    promise.replicas = replicas;
                }
            }
            Act::Delete(name) => {
                self.promised.remove(&name);
            }
        }
    }

    /// Whatever was asked for when the other side fell silent has been done or has not: finds out which.
    async fn find_out(&mut self, api: &Api<Workload>) {
        let Some(act) = self.unsure.take() else { return };
        let (Act::Create(name, ..) | Act::Scale(name, _) | Act::Delete(name)) = &act;
        let found = api.get_opt(name).await.expect("an answer");
        let found = found.filter(|workload| workload.metadata.deletion_timestamp.is_none());
        let done = match &act {
            Act::Create(..) => found.is_some(),
            Act::Delete(_) => found.is_none(),
            Act::Scale(_, replicas) => found
                .is_some_and(|workload| workload.spec.placements[0].scale_settings.min_replicas == *replicas),
        };
        if done {
            self.write(act);
        }
    }

    /// Asks for one thing after the other, until the moment comes.
    async fn live(&mut self, api: &Api<Workload>, dice: &mut Dice, until: Instant) {
        self.find_out(api).await;
        while Instant::now() < until {
            let act = self.think(dice);
            match tokio::time::timeout_at(until.into(), ask(api, &act)).await {
                Ok(()) => self.write(act),
                Err(_) => self.unsure = Some(act),
            }
            let pause = Duration::from_millis(dice.roll(200));
            tokio::time::sleep_until((Instant::now() + pause).min(until).into()).await;
        }
    }
}

async fn ask(api: &Api<Workload>, act: &Act) {
    let done = match act {
        Act::Create(name, cities, replicas) => {
            let workload = mk_workload(name, cities, *replicas);
            api.create(&PostParams::default(), &workload).await.map(drop)
        }
        Act::Scale(name, replicas) => {
            let path = "/spec/placements/0/scaleSettings/minReplicas";
            let patch = json!([{"op": "replace", "path": path, "value": replicas}]);
            let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).expect("a patch"));
            api.patch(name, &PatchParams::default(), &patch).await.map(drop)
        }
        Act::Delete(name) => api.delete(name, &DeleteParams::default()).await.map(drop),
    };
    done.unwrap_or_else(|error| panic!("{act:?}: {error}"));
}

/// The programs that run for the instances of a data directory: their process ids by the UID of the instance.
fn programs(data: &Path) -> BTreeMap<String, Vec<u32>> {
    let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let home = format!("HOME={}", data.display());
    for entry in fs::read_dir("/proc").expect("a Linux host").flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let environment = String::from_utf8_lossy(&environment).into_owned();
        let mut entries = environment.split('\0');
        if entries.clone().any(|entry| entry.starts_with(&home)) {
            let seat = entries.find_map(|entry| entry.strip_prefix("POLIS_SEAT=")).unwrap_or_default();
            found.entry(seat.split('/').next().unwrap_or_default().to_owned()).or_default().push(pid);
        }
    }
    found
}

/// Ends what a failed test leaves behind: the program of a shim dies with it.
struct Sweep<'a>(&'a Path);

impl Drop for Sweep<'_> {
    fn drop(&mut self) {
        for pid in Site::shims_in(self.0) {
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

/// Compares every plane and the host with the book; gives the process of each instance.
async fn compare(site: &Site, data: &Path, book: &Book) -> Result<BTreeMap<String, u32>, String> {
    let project = site.client("polis-default").await;
    let listed = Api::<Workload>::all(project.clone()).list(&Default::default()).await;
    let workloads: BTreeMap<String, i32> = listed
        .map_err(|error| error.to_string())?
        .iter()
        .map(|workload| (workload.name_any(), workload.spec.placements[0].scale_settings.min_replicas))
        .collect();
    let promised = book.promised.iter().map(|(name, promise)| (name.clone(), promise.replicas)).collect();
    same("workloads", workloads, &promised)?;

    let mut wanted = BTreeMap::new();
    for (name, promise) in &book.promised {
        for city in &promise.cities {
            wanted.insert((name.clone(), (*city).to_owned()), promise.replicas);
        }
    }
    let shown = Api::<Instance>::all(project.clone()).list(&Default::default()).await;
    let shown = shown.map_err(|error| error.to_string())?.items;
    let mut there: BTreeMap<(String, String), i32> = BTreeMap::new();
    for instance in &shown {
        let label = |key: &str| instance.labels().get(key).cloned().unwrap_or_default();
        *there.entry((label(labels::WORKLOAD_NAME), label(labels::CITY_CODE))).or_default() += 1;
        if !is_ready(instance) {
            return Err(format!("{} is not ready: {:?}", instance.name_any(), instance.status));
        }
    }
    same("instances by workload and city", there, &wanted)?;

    let instances: BTreeSet<String> = shown.iter().map(|instance| instance.name_any()).collect();
    let deployments = names::<WorkloadDeployment>(&project).await?;
    let hub = site.client("polis-hub").await;
    same("instances on the hub", names::<Instance>(&hub).await?, &instances)?;
    same("deployments on the hub", names::<WorkloadDeployment>(&hub).await?, &deployments)?;
    same("quota claims", names::<ResourceClaim>(&project).await?.len(), &instances.len())?;

    let (mut in_cells, mut deployed, mut uids) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for city in CITIES {
        let cell = site.client(&format!("polis-cell-{city}")).await;
        let listed = Api::<Instance>::all(cell.clone()).list(&Default::default()).await;
        for instance in listed.map_err(|error| error.to_string())? {
            let fresh = in_cells.insert(instance.name_any());
            same(&format!("{} in one cell only", instance.name_any()), fresh, &true)?;
            uids.insert(instance.uid().unwrap_or_default());
        }
        deployed.extend(names::<WorkloadDeployment>(&cell).await?);
    }
    same("instances in the cells", in_cells, &instances)?;
    same("deployments in the cells", deployed, &deployments)?;

    let running = programs(data);
    same("instances with a program", running.keys().cloned().collect::<BTreeSet<_>>(), &uids)?;
    same("shims", Site::shims_in(data).len(), &uids.len())?;
    let mut pids = BTreeMap::new();
    for (uid, found) in running {
        let [pid] = found[..] else { return Err(format!("instance {uid} runs as {found:?}")) };
        pids.insert(uid, pid);
    }
    Ok(pids)
}

/// Waits until every plane and the host say what the book says.
async fn settled(site: &Site, data: &Path, book: &Book) -> BTreeMap<String, u32> {
    let until = Instant::now() + PATIENCE;
    loop {
        match compare(site, data, book).await {
            Ok(pids) => return pids,
            Err(why) => assert!(Instant::now() < until, "not settled within {PATIENCE:?}: {why}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Lives through so many kills, and looks whether everything is in order after every so many.
async fn lives_through(kills: u64, look_after: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path();
    let _sweep = Sweep(data);
    let place = data.display().to_string();
    let args = ["--data-dir", &place, "--cities", "dfw,ord"];
    let mut dice = Dice(42);
    let mut book = Book::default();

    let mut site = Site::start(&args).await;
    site.give_plenty("polis-default").await;
    run(&site, &mk_workload("steady", &["dfw"], 1)).await;
    book.write(Act::Create("steady".to_owned(), vec!["dfw"], 1));
    let mut before = settled(&site, data, &book).await;
    for kill in 1..=kills {
        let api: Api<Workload> = Api::namespaced(site.client("polis-default").await, "default");
        let moment = Instant::now() + Duration::from_millis(dice.roll(1500));
        book.live(&api, &mut dice, moment).await;
        site.kill();
        if dice.roll(3) == 0 {
            Site::killed_while_starting(&args, Duration::from_millis(dice.roll(600))).await;
        }
        site = Site::start(&args).await;
        if kill % look_after != 0 && kill != kills {
            continue;
        }
        let api: Api<Workload> = Api::namespaced(site.client("polis-default").await, "default");
        book.find_out(&api).await;
        let now = settled(&site, data, &book).await;
        for (uid, pid) in &now {
            let kept = before.get(uid).is_none_or(|earlier| earlier == pid);
            assert!(kept, "instance {uid} was {:?} and is {pid}", before[uid]);
        }
        println!("after {kill} kills: {} workloads, {} instances", book.promised.len(), now.len());
        before = now;
    }

    let api: Api<Workload> = Api::namespaced(site.client("polis-default").await, "default");
    for name in book.promised.keys() {
        api.delete(name, &DeleteParams::default()).await.expect("a workload that goes");
    }
    book.promised.clear();
    assert!(settled(&site, data, &book).await.is_empty(), "nothing is left");
    site.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_moment_it_loses_nothing_leaves_nothing_and_runs_nothing_twice() {
    lives_through(10, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes three minutes: cargo test -p polis --test up -- --ignored --nocapture a_hundred_kills"]
async fn a_hundred_kills_lose_nothing_leave_nothing_and_run_nothing_twice() {
    lives_through(100, 10).await;
}
