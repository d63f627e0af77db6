//! Many projects that are created and deleted concurrently: tenants stay isolated, deleted projects leave
//! nothing behind, and a bad project does not slow the others.
//!
//! Every project has a workload of the same name. Its image contains the name and the incarnation of the
//! project, so every object shows its owner. Workloads take the whole path: project, hub, federation, cell,
//! and back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use polis_api::ObjectExt;
use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::conditions::{QUOTA_GRANTED, READY};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::karmada::{PropagationPolicy, ResourceBinding, ResourceInterpreterCustomization, Work};
use polis_api::labels;
use polis_api::milo::Project;
use polis_api::quota::ResourceClaim;
use polis_core::cities::TenancyMode;
use polis_core::conditions::{self, DesiredCondition};
use polis_core::tenant::Tenant;
use polis_engine::{ListOptions, MiloProjects, Object, Plane};
use polis_federation::FederationConfig;
use polis_platform::{locations, projects, quota};
use tokio::time::{Instant, sleep};

use polis_testing::builders::{NETWORK, mk_network, mk_project, mk_workload};
use polis_testing::{PlaneExt as _, Proxy, eventually};

use crate::env::{Planes, TENANT, TestEnv, mk_options, tenants};

/// The resource interpreter of the compute kinds.
const INTERPRETER: &str = include_str!("../../../../deploy/components/federation/interpreter.yaml");
/// Longer than a cell keeps watching a project without pending instances.
const WATCH_LINGER: Duration = Duration::from_secs(120);

/// The expected state of a project.
#[derive(Clone, Copy)]
pub struct ProjectState {
    /// How many projects have had this name, including the current one.
    pub incarnation: usize,
    pub replicas: i32,
}

impl ProjectState {
    fn image(self, name: &str) -> String {
        format!("{name}/app:{}", self.incarnation)
    }

    fn workload(self, name: &str, cities: &[&str]) -> Workload {
        let mut workload = mk_workload("default", "web", cities);
        let sandbox = workload.spec.template.spec.runtime.sandbox.as_mut().expect("a sandbox runtime");
        sandbox.containers[0].image = self.image(name);
        workload.spec.placements[0].scale_settings.min_replicas = self.replicas;
        workload
    }
}

/// A platform with all controllers, and the projects that should exist on it.
pub struct TestPlatform {
    pub env: TestEnv,
    pub tenants: BTreeMap<String, ProjectState>,
    /// The proxies from the cells to the projects.
    pub proxies: Vec<Proxy>,
    cities: Vec<&'static str>,
}

pub fn tenant(number: usize) -> String {
    format!("{TENANT}{number:04}")
}

impl TestPlatform {
    /// Starts all controllers, without projects.
    pub async fn new(cities: &[&'static str]) -> Self {
        let mut env = TestEnv::new(cities).await;
        let interpreter: ResourceInterpreterCustomization = serde_saphyr::from_str(INTERPRETER).unwrap();
        env.at("hub").create(&interpreter).await.unwrap();
        let (root, hub, clock) = (env.root(), env.at("hub"), env.cluster.clock());
        env.start("platform", |engine| {
            let projects = || MiloProjects::new(root.clone());
            locations::declare(engine, clock.clone(), root.clone(), hub.clone(), projects());
            let allowance = Some(quota::DefaultAllowance::default());
            quota::declare(engine, clock.clone(), root.clone(), projects(), allowance);
        });
        env.start("management", |engine| {
            polis_management::declare(engine, clock.clone(), MiloProjects::new(root), TenancyMode::Milo, hub);
        });
        let mut config = FederationConfig::new(env.at("hub"));
        for city in cities {
            config = config.member(*city, env.at(city));
        }
        env.start("federation", |engine| polis_federation::declare(engine, clock, config));
        let mut proxies = Vec::new();
        for city in cities {
            proxies.push(env.start_cell(city));
            env.start_provider(city);
        }
        let mut platform = Self { env, tenants: BTreeMap::new(), proxies, cities: cities.to_vec() };
        platform.start_projects();
        platform
    }

    /// Starts the project controller, which can be stopped on its own.
    pub fn start_projects(&mut self) {
        let (root, clock, planes) =
            (self.env.root(), self.env.cluster.clock(), Planes(self.env.cluster.server().clone()));
        let options = mk_options(&root, &self.env.at("hub"));
        self.env.start("projects", |engine| projects::declare(engine, clock, root, planes, options));
    }

    /// The plane of a project without the proxy.
    pub fn plane(&self, name: &str) -> Plane {
        self.env.at(&polis_apiserver::project_plane(name))
    }

    /// Creates projects with a workload in each, concurrently.
    pub async fn open(&mut self, names: impl IntoIterator<Item = String>) {
        let names: Vec<String> = names.into_iter().collect();
        self.create_projects(&names).await;
        self.create_workloads(&names).await;
    }

    /// Creates projects concurrently and waits until each is ready.
    pub async fn create_projects(&mut self, names: &[String]) {
        for name in names {
            let incarnation = self.tenants.get(name).map_or(1, |tenant| tenant.incarnation + 1);
            self.tenants.insert(name.clone(), ProjectState { incarnation, replicas: 1 });
        }
        let create = async |name: &String| {
            self.env.at("").create(&mk_project(name)).await.unwrap();
            self.env.ready(name).await;
        };
        join_all(names.iter().map(create)).await;
    }

    /// Creates a network and a workload in each project, concurrently.
    pub async fn create_workloads(&self, names: &[String]) {
        let create_workloads = async |name: &String| {
            let plane = self.plane(name);
            plane.create(&mk_network("default", NETWORK)).await.unwrap();
            plane.create(&self.tenants[name].workload(name, &self.cities[..1])).await.unwrap();
        };
        join_all(names.iter().map(create_workloads)).await;
    }

    /// Deletes projects concurrently and waits until they are gone.
    pub async fn close(&self, names: &[String]) {
        let root = self.env.at("");
        join_all(names.iter().map(|name| root.remove::<Project>(name))).await;
        join_all(names.iter().map(|name| root.eventually_lacks::<Project>(name))).await;
    }

    /// Sets a project not Ready. The project controller, if it runs, soon sets it Ready again.
    pub async fn set_unready(&self, name: &str) {
        let (condition, now) =
            (DesiredCondition::new_false(READY, "Maintenance", "for a while"), self.env.cluster.now());
        let set = |project: &mut Project| {
            let conditions = &mut project.status.get_or_insert_default().conditions;
            conditions::set(conditions, &condition, project.metadata.generation, &now);
        };
        self.env.at("").change_status::<Project>(name, set).await;
    }

    /// Scales the workload of a project.
    pub async fn scale(&mut self, name: &str, replicas: i32) {
        self.tenants.get_mut(name).expect("the object exists").replicas = replicas;
        let set =
            |workload: &mut Workload| workload.spec.placements[0].scale_settings.min_replicas = replicas;
        self.plane(name).change::<Workload>(("default", "web"), set).await;
    }

    /// Deletes the workload of a project and creates it again.
    pub async fn replace(&self, name: &str) {
        let plane = self.plane(name);
        plane.remove::<Workload>(("default", "web")).await;
        plane.eventually_lacks::<Workload>(("default", "web")).await;
        plane.create(&self.tenants[name].workload(name, &self.cities[..1])).await.unwrap();
    }

    /// Whether all instances of a project are projected and ready, and all its claims are granted.
    pub async fn is_served(&self, name: &str) -> bool {
        let (plane, tenant) = (self.plane(name), self.tenants[name]);
        let instances = plane.uncached().list::<Instance>(&ListOptions::all()).await.unwrap();
        let claims = plane.uncached().list::<ResourceClaim>(&ListOptions::all()).await.unwrap();
        let granted = |claim: &ResourceClaim| {
            claim.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, "Granted"))
        };
        let desired = usize::try_from(tenant.replicas).unwrap();
        instances.len() == desired
            && instances.iter().all(|instance| is_ready(instance) && image(instance) == tenant.image(name))
            && claims.len() == desired
            && claims.iter().all(granted)
    }

    /// Waits until these projects are served.
    pub async fn served(&self, names: impl IntoIterator<Item = &String>) {
        let deadline = Instant::now() + Duration::from_secs(15 * 60);
        let mut pending: Vec<&String> = names.into_iter().collect();
        loop {
            let served = join_all(pending.iter().map(|name| self.is_served(name))).await;
            pending = pending.into_iter().zip(served).filter(|(_, is)| !is).map(|(name, _)| name).collect();
            if pending.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "timed out waiting for {pending:?}");
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// Asserts that every object of a kind on hub or cell belongs to the tenant of its namespace, and to an
    /// existing project. Returns the number of objects.
    async fn check_isolation<K: Object>(&self, plane: &str) -> usize {
        let hub_namespaces: BTreeMap<String, String> = self.hub_namespaces(plane).await;
        let all = self.env.at(plane).uncached().list::<K>(&ListOptions::all()).await.unwrap();
        for object in &all {
            let text = serde_json::to_string(object).unwrap();
            let named = tenants(&text);
            let hub_namespace = object.namespace();
            let owner_project = hub_namespaces.get(hub_namespace).map(String::as_str);
            assert!(
                named.len() < 2
                    && (owner_project.is_none() || named.iter().all(|n| Some(*n) == owner_project)),
                "{text}"
            );
            let exists = named.iter().chain(&owner_project).all(|name| self.tenants.contains_key(*name));
            assert!(exists, "leaked on {plane}: {text}");
        }
        all.len()
    }

    /// The project of each tenant namespace on hub or cell.
    async fn hub_namespaces(&self, plane: &str) -> BTreeMap<String, String> {
        let options = ListOptions::all().labels(labels::UPSTREAM_CLUSTER_NAME);
        let namespaces = self.env.at(plane).uncached().list::<Namespace>(&options).await.unwrap();
        let hub_namespace = |namespace: &Namespace| {
            let tenant = Tenant::of(namespace).expect("valid tenant labels");
            (namespace.name().to_owned(), tenant.project)
        };
        namespaces.iter().map(hub_namespace).collect()
    }

    /// Asserts that all objects belong to existing projects and that tenants are isolated.
    pub async fn check_no_leaks(&self) {
        let planes: BTreeSet<String> = self.env.cluster.server().planes().into_iter().collect();
        let of_projects = planes.iter().filter_map(|plane| plane.strip_prefix("project:"));
        assert_eq!(of_projects.collect::<Vec<_>>(), self.tenants.keys().collect::<Vec<_>>());

        let running: usize =
            self.tenants.values().map(|tenant| usize::try_from(tenant.replicas).unwrap()).sum();
        let one_each = self.tenants.len();
        assert_eq!(self.check_isolation::<WorkloadDeployment>("hub").await, one_each);
        assert_eq!(self.check_isolation::<PropagationPolicy>("hub").await, one_each);
        assert_eq!(self.check_isolation::<ResourceBinding>("hub").await, one_each);
        assert_eq!(self.check_isolation::<Instance>("hub").await, running);
        let works = self.env.at("hub").uncached().list::<Work>(&ListOptions::all()).await.unwrap();
        let of_deployments = works.iter().filter(|work| {
            let text = serde_json::to_string(&work.spec).unwrap();
            assert!(tenants(&text).len() < 2, "{text}");
            text.contains("WorkloadDeployment")
        });
        assert_eq!(of_deployments.count(), one_each);
        let (mut deployments, mut instances) = (0, 0);
        for city in &self.cities {
            deployments += self.check_isolation::<WorkloadDeployment>(city).await;
            instances += self.check_isolation::<Instance>(city).await;
        }
        assert_eq!((deployments, instances), (one_each, running));

        for plane in self.cities.iter().copied().chain(["hub"]) {
            // Namespaces are deleted last, and no other step waits for them.
            let only_existing = async || {
                let hub_namespaces: BTreeSet<String> =
                    self.hub_namespaces(plane).await.into_values().collect();
                hub_namespaces.iter().all(|project| self.tenants.contains_key(project)).then_some(())
            };
            eventually(&format!("no namespace of a deleted project on {plane}"), only_existing).await;
        }

        let leaks = self.env.leaks.lock();
        assert_eq!(*leaks, [""; 0], "no request names a tenant on the plane of another");
    }

    /// Asserts that all engines are idle, that they have engaged exactly the existing projects, and that
    /// cells watch no claims. Returns the number of tasks.
    pub async fn check_quiescence(&self) -> usize {
        self.env.idle(WATCH_LINGER).await;
        for process in ["platform", "management"] {
            let handle = self.env.handle(process);
            assert!(handle.is_ready() && handle.is_idle(), "{process}: {:?}", handle.readiness());
            let sets = handle.readiness().into_iter().filter(|(name, _)| *name == "project");
            for (_, set) in sets {
                assert_eq!((set.engaged, set.failing), (self.tenants.len(), vec![]), "{process}");
            }
        }
        for city in &self.cities {
            let handle = self.env.handle(&format!("cell-{city}"));
            assert!(handle.is_idle());
            let watched: Vec<_> =
                handle.readiness().into_iter().filter(|(name, _)| *name == "claims").collect();
            assert_eq!(watched.iter().map(|(_, set)| set.engaged).collect::<Vec<_>>(), [0], "{watched:?}");
        }
        tokio::runtime::Handle::current().metrics().num_alive_tasks()
    }

    /// One round of churn: in five groups, projects are deleted and created again, set not Ready, scaled,
    /// have their workload replaced, or do nothing.
    pub async fn churn(&mut self, names: &[String], round: usize) {
        let group = |desired: usize| -> Vec<String> {
            let of = names.iter().enumerate().filter(|(number, _)| (number + round) % 5 == desired);
            of.map(|(_, name)| name.clone()).collect()
        };
        for name in group(2) {
            self.scale(&name, 3 - self.tenants[&name].replicas).await;
        }
        let (deleted, unready, replaced) = (group(0), group(1), group(3));
        tokio::join!(
            self.close(&deleted),
            join_all(unready.iter().map(|name| self.set_unready(name))),
            join_all(replaced.iter().map(|name| self.replace(name))),
        );
        self.open(deleted).await;
    }
}

fn is_ready(instance: &Instance) -> bool {
    let status = instance.status.as_ref();
    [READY, QUOTA_GRANTED].iter().all(|kind| status.is_some_and(|s| conditions::is_true(&s.conditions, kind)))
}

fn image(instance: &Instance) -> &str {
    let sandbox = instance.spec.runtime.sandbox.as_ref();
    sandbox.and_then(|sandbox| sandbox.containers.first()).map_or("", |container| container.image.as_str())
}

#[tokio::test(start_paused = true)]
async fn churning_projects_stay_isolated_and_leave_nothing_behind() {
    let mut platform = TestPlatform::new(&["dfw"]).await;
    let names: Vec<String> = (0..10).map(tenant).collect();
    platform.open(names.clone()).await;
    platform.served(&names).await;
    platform.check_no_leaks().await;
    let tasks = platform.check_quiescence().await;

    platform.churn(&names, 0).await;
    platform.served(&names).await;
    platform.check_no_leaks().await;
    assert_eq!(
        platform.check_quiescence().await,
        tasks,
        "the same number of projects needs the same number of tasks"
    );

    let (deleted, remaining) = names.split_at(8);
    platform.close(deleted).await;
    platform.tenants.retain(|name, _| remaining.contains(name));
    platform.check_no_leaks().await;
    assert!(platform.check_quiescence().await < tasks);
}

#[tokio::test(start_paused = true)]
async fn a_project_that_is_not_ready_keeps_its_instances_and_is_reconciled_later() {
    let mut platform = TestPlatform::new(&["dfw"]).await;
    let [unready, ready] = [tenant(1), tenant(2)];
    platform.open([unready.clone(), ready.clone()]).await;
    platform.served([&unready, &ready]).await;
    platform.env.stop("projects").await;
    platform.set_unready(&unready).await;
    let management = platform.env.handle("management");
    let engaged =
        || management.readiness().into_iter().find(|(name, _)| *name == "project").unwrap().1.engaged;
    eventually("the project is disengaged", async || (engaged() == 1).then_some(())).await;

    platform.scale(&unready, 2).await;
    platform.scale(&ready, 2).await;
    platform.served([&ready]).await;
    platform.env.idle(WATCH_LINGER).await;
    assert_eq!(platform.env.instances("dfw").await.len(), 3, "no instance is created or deleted for it");
    let workload: Workload =
        platform.plane(&unready).uncached().get(("default", "web")).await.unwrap().unwrap();
    assert_ne!(
        workload.status.unwrap().observed_generation,
        workload.metadata.generation,
        "it is not reconciled"
    );

    platform.start_projects();
    platform.served([&unready, &ready]).await;
    platform.check_no_leaks().await;
}

#[tokio::test(start_paused = true)]
async fn a_flooding_project_and_a_hanging_one_do_not_delay_others() {
    let mut platform = TestPlatform::new(&["dfw"]).await;
    let [flooding, hanging, late] = [tenant(1), tenant(2), tenant(3)];
    platform.open([flooding.clone(), hanging.clone()]).await;
    platform.served([&flooding, &hanging]).await;
    let proxies = platform.proxies.iter().chain([&platform.env.proxy]);
    let outages: Vec<_> = proxies.map(|proxy| proxy.requests_to(&hanging)).collect();
    // Open watches go on: an in-process stream that is silent for ever has no keep-alive that ends it.
    let unary = |request: &polis_testing::RecordedRequest| request.verb != polis_testing::RequestVerb::Watch;
    outages.iter().for_each(|outage| outage.inject(polis_testing::RequestFault::Hang, unary));
    platform.scale(&hanging, 2).await;
    let flood = platform.plane(&flooding);
    for number in 0..50 {
        flood.create(&mk_workload("default", &format!("junk-{number}"), &["nowhere"])).await.unwrap();
    }
    let edits = tokio::spawn(async move {
        for edit in 0.. {
            let change_replicas = |workload: &mut Workload| {
                workload.spec.placements[0].scale_settings.min_replicas = 1 + edit % 2;
            };
            flood
                .change::<Workload>(("default", format!("junk-{}", edit % 50).as_str()), change_replicas)
                .await;
            sleep(Duration::from_millis(20)).await;
        }
    });
    let started = Instant::now();
    platform.open([late.clone()]).await;
    platform.served([&late]).await;
    assert!(started.elapsed() < Duration::from_secs(10), "it took {:?}", started.elapsed());
    edits.abort();

    outages.iter().for_each(|outage| outage.restore());
    platform.served([&hanging, &late]).await;
}
