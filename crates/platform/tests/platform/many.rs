//! Many projects that come and go while others work: no tenant meets another, nothing is left of those who went, and
//! nobody waits for a bad one.
//!
//! Every project has a workload of the same name, whose image names the project and its life: a project that is made
//! again under its old name has the next. So whatever is found anywhere tells whose it is. The way is the whole way:
//! project, hub, federation, cell, and back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::conditions::{QUOTA_GRANTED, READY};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::karmada::{PropagationPolicy, ResourceBinding, ResourceInterpreterCustomization, Work};
use polis_api::kube::Client;
use polis_api::labels;
use polis_api::milo::Project;
use polis_api::networking::Network;
use polis_api::quota::ResourceClaim;
use polis_core::cities::Ground;
use polis_core::conditions::{self, Verdict};
use polis_core::identity::Identity;
use polis_core::{Time, owner};
use polis_engine::{MiloProjects, Object, Plane, Query};
use polis_federation::Federation;
use polis_platform::{locations, projects, quota};
use tokio::time::{Instant, sleep};

use crate::cells::mk_workload;
use crate::line::{Line, TENANT, tenants};
use crate::world::{Planes, World, change, mk_beside, mk_meta, mk_project};

/// What the federation must know of our kinds.
const INTERPRETER: &str = include_str!("../../../../deploy/components/federation/interpreter.yaml");
/// Longer than a cell goes on watching a project that waits for nothing.
const FORGOTTEN: Duration = Duration::from_secs(120);

/// What a project should have.
#[derive(Clone, Copy)]
pub struct Tenant {
    /// How many projects have had its name, with itself.
    pub life: usize,
    pub replicas: i32,
}

impl Tenant {
    fn image(self, name: &str) -> String {
        format!("{name}/app:{}", self.life)
    }

    fn workload(self, name: &str, cities: &[&str]) -> Workload {
        let mut workload = mk_workload("web", cities);
        let sandbox = workload.spec.template.spec.runtime.sandbox.as_mut().expect("it runs containers");
        sandbox.containers[0].image = self.image(name);
        workload.spec.placements[0].scale_settings.min_replicas = self.replicas;
        workload
    }
}

/// A platform with everything that runs there, and the projects that should be on it.
pub struct Town {
    pub world: World,
    pub tenants: BTreeMap<String, Tenant>,
    /// The cells' lines to the projects.
    pub lines: Vec<Line>,
    cities: Vec<&'static str>,
}

pub fn tenant(number: usize) -> String {
    format!("{TENANT}{number:04}")
}

impl Town {
    /// Everything runs, and there is no project yet.
    pub async fn new(cities: &[&'static str]) -> Self {
        let mut world = World::new(cities).await;
        let interpreter: ResourceInterpreterCustomization = serde_saphyr::from_str(INTERPRETER).unwrap();
        world.at("hub").create(&interpreter).await.unwrap();
        let (root, hub, clock) = (world.root(), world.at("hub"), world.clock.clone());
        world.start("platform", |engine| {
            let projects = || MiloProjects::new(root.clone());
            locations::declare(engine, clock.clone(), root.clone(), hub.clone(), projects());
            let allowance = Some(quota::Allowance::default());
            quota::declare(engine, clock.clone(), root.clone(), projects(), allowance);
        });
        world.start("management", |engine| {
            polis_management::declare(engine, clock.clone(), MiloProjects::new(root), Ground::Platform, hub);
        });
        let client = |plane: &str| Client::new(world.server.plane_service(plane), "default");
        let mut federation = Federation::builder(client("hub")).clock(move || clock.now());
        for city in cities {
            federation = federation.member(*city, client(city));
        }
        tokio::spawn(federation.build().run(std::future::pending()));
        let mut lines = Vec::new();
        for city in cities {
            lines.push(world.start_cell(city));
            world.start_provider(city);
        }
        let mut town = Self { world, tenants: BTreeMap::new(), lines, cities: cities.to_vec() };
        town.start_projects();
        town
    }

    /// The stand-in that says which projects are ready, which can be stopped by itself.
    pub fn start_projects(&mut self) {
        let (root, clock, planes) =
            (self.world.root(), self.world.clock.clone(), Planes(self.world.server.clone()));
        let beside = mk_beside(&root, &self.world.at("hub"));
        self.world.start("projects", |engine| projects::declare(engine, clock, root, planes, beside));
    }

    /// The plane of a project, on a line of the test's own.
    pub fn plane(&self, name: &str) -> Plane {
        self.world.at(&polis_apiserver::project_plane(name))
    }

    /// Opens projects with a workload in each, all at once.
    pub async fn open(&mut self, names: impl IntoIterator<Item = String>) {
        let names: Vec<String> = names.into_iter().collect();
        self.found(&names).await;
        self.furnish(&names).await;
    }

    /// Makes projects, all at once, and waits until each is ready. There is nothing in them yet.
    pub async fn found(&mut self, names: &[String]) {
        for name in names {
            let life = self.tenants.get(name).map_or(1, |tenant| tenant.life + 1);
            self.tenants.insert(name.clone(), Tenant { life, replicas: 1 });
        }
        let found = async |name: &String| {
            self.world.at("").create(&mk_project(name)).await.unwrap();
            self.world.ready(name).await;
        };
        join_all(names.iter().map(found)).await;
    }

    /// The users of projects make a network and a workload in each, all at once.
    pub async fn furnish(&self, names: &[String]) {
        let furnish = async |name: &String| {
            let plane = self.plane(name);
            let network = Network { metadata: mk_meta(Some("default"), "default"), ..Network::default() };
            plane.create(&network).await.unwrap();
            plane.create(&self.tenants[name].workload(name, &self.cities[..1])).await.unwrap();
        };
        join_all(names.iter().map(furnish)).await;
    }

    /// Tells projects to go, all at once, and waits until they are gone.
    pub async fn close(&self, names: &[String]) {
        let root = self.world.at("");
        join_all(names.iter().map(|name| self.world.delete::<Project>(&root, name))).await;
        join_all(names.iter().map(|name| self.world.loses::<Project>(&root, name))).await;
    }

    /// The project says that it is not ready. The stand-in, where it runs, says soon that it is.
    pub async fn unready(&self, name: &str) {
        let root = self.world.at("");
        loop {
            let project = root.live().get::<Project>(name).await.unwrap().expect("it is there");
            let mut said = project.clone();
            let verdict = Verdict::no(READY, "Maintenance", "for a while");
            let (generation, now) = (project.metadata.generation, Time(self.world.clock.now()));
            conditions::set(&mut said.status.get_or_insert_default().conditions, &verdict, generation, &now);
            match root.update_status(&project, &said).await {
                Err(error) if error.is_conflict() => {}
                done => {
                    done.unwrap();
                    return;
                }
            }
        }
    }

    /// The user of a project wants so many replicas.
    pub async fn scale(&mut self, name: &str, replicas: i32) {
        self.tenants.get_mut(name).expect("it is there").replicas = replicas;
        let set =
            |workload: &mut Workload| workload.spec.placements[0].scale_settings.min_replicas = replicas;
        change::<Workload>(&self.plane(name), ("default", "web"), set).await;
    }

    /// The user of a project deletes the workload and makes it anew at once, or as soon as the old one is gone.
    pub async fn replace(&self, name: &str) {
        let plane = self.plane(name);
        self.world.delete::<Workload>(&plane, ("default", "web")).await;
        self.world.loses::<Workload>(&plane, ("default", "web")).await;
        plane.create(&self.tenants[name].workload(name, &self.cities[..1])).await.unwrap();
    }

    /// Whether a project sees all its instances at work, each its own, with as many claims granted.
    pub async fn is_served(&self, name: &str) -> bool {
        let (plane, tenant) = (self.plane(name), self.tenants[name]);
        let instances = plane.live().list::<Instance>(&Query::all()).await.unwrap();
        let claims = plane.live().list::<ResourceClaim>(&Query::all()).await.unwrap();
        let granted = |claim: &ResourceClaim| {
            claim.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, "Granted"))
        };
        let wanted = usize::try_from(tenant.replicas).unwrap();
        instances.len() == wanted
            && instances.iter().all(|instance| works(instance) && image(instance) == tenant.image(name))
            && claims.len() == wanted
            && claims.iter().all(granted)
    }

    /// Waits until these projects are served.
    pub async fn served(&self, names: impl IntoIterator<Item = &String>) {
        let deadline = Instant::now() + Duration::from_secs(15 * 60);
        let mut waiting: Vec<&String> = names.into_iter().collect();
        loop {
            let served = join_all(waiting.iter().map(|name| self.is_served(name))).await;
            waiting = waiting.into_iter().zip(served).filter(|(_, is)| !is).map(|(name, _)| name).collect();
            if waiting.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "gave up waiting for {waiting:?}");
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// All objects of a kind on hub or cell are of the tenant that their namespace is of, and of nobody who left.
    async fn keeps_apart<K: Object>(&self, plane: &str) -> usize {
        let homes: BTreeMap<String, String> = self.homes(plane).await;
        let all = self.world.at(plane).live().list::<K>(&Query::all()).await.unwrap();
        for object in &all {
            let text = serde_json::to_string(object).unwrap();
            let named = tenants(&text);
            let home = object.meta().namespace.as_deref().unwrap_or_default();
            let whose = homes.get(home).map(String::as_str);
            assert!(
                named.len() < 2 && (whose.is_none() || named.iter().all(|n| Some(*n) == whose)),
                "{text}"
            );
            let living = named.iter().chain(&whose).all(|name| self.tenants.contains_key(*name));
            assert!(living, "left behind on {plane}: {text}");
        }
        all.len()
    }

    /// The project of each namespace of hub or cell.
    async fn homes(&self, plane: &str) -> BTreeMap<String, String> {
        let query = Query::all().labels(labels::UPSTREAM_CLUSTER_NAME);
        let namespaces = self.world.at(plane).live().list::<Namespace>(&query).await.unwrap();
        let home = |namespace: &Namespace| {
            let identity = Identity::of(namespace).expect("its labels are right");
            (owner::name(&namespace.metadata).to_owned(), identity.project)
        };
        namespaces.iter().map(home).collect()
    }

    /// What there is belongs to the projects that there are, each for itself; of others there is nothing.
    pub async fn is_tidy(&self) {
        let planes: BTreeSet<String> = self.world.server.planes().into_iter().collect();
        let of_projects = planes.iter().filter_map(|plane| plane.strip_prefix("project:"));
        assert_eq!(of_projects.collect::<Vec<_>>(), self.tenants.keys().collect::<Vec<_>>());

        let running: usize =
            self.tenants.values().map(|tenant| usize::try_from(tenant.replicas).unwrap()).sum();
        let one_each = self.tenants.len();
        assert_eq!(self.keeps_apart::<WorkloadDeployment>("hub").await, one_each);
        assert_eq!(self.keeps_apart::<PropagationPolicy>("hub").await, one_each);
        assert_eq!(self.keeps_apart::<ResourceBinding>("hub").await, one_each);
        assert_eq!(self.keeps_apart::<Instance>("hub").await, running);
        let works = self.world.at("hub").live().list::<Work>(&Query::all()).await.unwrap();
        let of_deployments = works.iter().filter(|work| {
            let text = serde_json::to_string(&work.spec).unwrap();
            assert!(tenants(&text).len() < 2, "{text}");
            text.contains("WorkloadDeployment")
        });
        assert_eq!(of_deployments.count(), one_each);
        let (mut deployments, mut instances) = (0, 0);
        for city in &self.cities {
            deployments += self.keeps_apart::<WorkloadDeployment>(city).await;
            instances += self.keeps_apart::<Instance>(city).await;
        }
        assert_eq!((deployments, instances), (one_each, running));

        for plane in self.cities.iter().copied().chain(["hub"]) {
            // The last to go, and nobody waits for that.
            let lived_in = async || {
                let homes: BTreeSet<String> = self.homes(plane).await.into_values().collect();
                homes.iter().all(|project| self.tenants.contains_key(project)).then_some(())
            };
            self.world.until(&format!("no home on {plane} of a project that is gone"), lived_in).await;
        }

        for line in self.lines.iter().chain([&self.world.line]) {
            assert_eq!(line.strays(), [""; 0], "nobody is named in the plane of another");
        }
    }

    /// Nothing is watched, waited for or worked on but what is there: engines have the projects that there are, and
    /// cells watch none, since nobody waits for quota. Tells how many tasks there are.
    pub async fn rests(&self) -> usize {
        self.world.quiet(FORGOTTEN).await;
        for process in ["platform", "management"] {
            let handle = self.world.look_into(process);
            assert!(handle.is_ready() && handle.is_idle(), "{process}: {:?}", handle.readiness());
            let sets = handle.readiness().into_iter().filter(|(name, _)| *name == "project");
            for (_, set) in sets {
                assert_eq!((set.engaged, set.failing), (self.tenants.len(), vec![]), "{process}");
            }
        }
        for city in &self.cities {
            let handle = self.world.look_into(&format!("cell-{city}"));
            assert!(handle.is_idle());
            let watched: Vec<_> =
                handle.readiness().into_iter().filter(|(name, _)| *name == "claims").collect();
            assert_eq!(watched.iter().map(|(_, set)| set.engaged).collect::<Vec<_>>(), [0], "{watched:?}");
        }
        tokio::runtime::Handle::current().metrics().num_alive_tasks()
    }

    /// One round of coming and going: in five groups, projects are deleted and made again under their names, say that
    /// they are not ready, are scaled, have their workload replaced, or do nothing.
    pub async fn churn(&mut self, names: &[String], round: usize) {
        let group = |wanted: usize| -> Vec<String> {
            let of = names.iter().enumerate().filter(|(number, _)| (number + round) % 5 == wanted);
            of.map(|(_, name)| name.clone()).collect()
        };
        for name in group(2) {
            self.scale(&name, 3 - self.tenants[&name].replicas).await;
        }
        let (leaving, unready, replaced) = (group(0), group(1), group(3));
        tokio::join!(
            self.close(&leaving),
            join_all(unready.iter().map(|name| self.unready(name))),
            join_all(replaced.iter().map(|name| self.replace(name))),
        );
        self.open(leaving).await;
    }
}

fn works(instance: &Instance) -> bool {
    let status = instance.status.as_ref();
    [READY, QUOTA_GRANTED].iter().all(|kind| status.is_some_and(|s| conditions::is_true(&s.conditions, kind)))
}

fn image(instance: &Instance) -> &str {
    let sandbox = instance.spec.runtime.sandbox.as_ref();
    sandbox.and_then(|sandbox| sandbox.containers.first()).map_or("", |container| container.image.as_str())
}

#[tokio::test(start_paused = true)]
async fn projects_come_and_go_and_nobody_meets_and_nothing_stays() {
    let mut town = Town::new(&["dfw"]).await;
    let names: Vec<String> = (0..10).map(tenant).collect();
    town.open(names.clone()).await;
    town.served(&names).await;
    town.is_tidy().await;
    let tasks = town.rests().await;

    town.churn(&names, 0).await;
    town.served(&names).await;
    town.is_tidy().await;
    assert_eq!(town.rests().await, tasks, "as many projects, as many tasks");

    let (leaving, staying) = names.split_at(8);
    town.close(leaving).await;
    town.tenants.retain(|name, _| staying.contains(name));
    town.is_tidy().await;
    assert!(town.rests().await < tasks);
}

#[tokio::test(start_paused = true)]
async fn a_project_that_is_not_ready_keeps_what_it_has_and_is_caught_up_with_later() {
    let mut town = Town::new(&["dfw"]).await;
    let [away, here] = [tenant(1), tenant(2)];
    town.open([away.clone(), here.clone()]).await;
    town.served([&away, &here]).await;
    town.world.stop("projects").await;
    town.unready(&away).await;
    let management = town.world.look_into("management");
    let engaged =
        || management.readiness().into_iter().find(|(name, _)| *name == "project").unwrap().1.engaged;
    town.world.until("it is let go", async || (engaged() == 1).then_some(())).await;

    town.scale(&away, 2).await;
    town.scale(&here, 2).await;
    town.served([&here]).await;
    town.world.quiet(FORGOTTEN).await;
    assert_eq!(town.world.instances("dfw").await.len(), 3, "nothing new for it, and nothing taken from it");
    let seen: Workload = town.plane(&away).live().get(("default", "web")).await.unwrap().unwrap();
    assert_ne!(seen.status.unwrap().observed_generation, seen.metadata.generation, "nobody looked at it");

    town.start_projects();
    town.served([&away, &here]).await;
    town.is_tidy().await;
}

#[tokio::test(start_paused = true)]
async fn a_project_that_floods_and_one_that_is_silent_slow_nobody() {
    let mut town = Town::new(&["dfw"]).await;
    let [floods, silent, late] = [tenant(1), tenant(2), tenant(3)];
    town.open([floods.clone(), silent.clone()]).await;
    town.served([&floods, &silent]).await;
    for line in town.lines.iter().chain([&town.world.line]) {
        line.silence(&silent, true);
    }
    town.scale(&silent, 2).await;
    let flood = town.plane(&floods);
    for number in 0..50 {
        flood.create(&mk_workload(&format!("junk-{number}"), &["nowhere"])).await.unwrap();
    }
    let edits = tokio::spawn(async move {
        for edit in 0.. {
            let note = |workload: &mut Workload| {
                workload.spec.placements[0].scale_settings.min_replicas = 1 + edit % 2;
            };
            change::<Workload>(&flood, ("default", format!("junk-{}", edit % 50).as_str()), note).await;
            sleep(Duration::from_millis(20)).await;
        }
    });
    let asked = Instant::now();
    town.open([late.clone()]).await;
    town.served([&late]).await;
    assert!(asked.elapsed() < Duration::from_secs(10), "it took {:?}", asked.elapsed());
    edits.abort();

    for line in town.lines.iter().chain([&town.world.line]) {
        line.silence(&silent, false);
    }
    town.served([&silent, &late]).await;
}
