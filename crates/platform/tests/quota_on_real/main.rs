//! The quota scenarios with a kube-apiserver as the project plane and in real time. One test has an embedded
//! hub and cells, the other a real Karmada with its members. After each step the grants match the running
//! instances, and every claim has an instance.

// Shared with the other tests, which use more of it.
#[allow(dead_code)]
#[path = "../platform/cells.rs"]
mod cells;
#[allow(dead_code)]
#[path = "../platform/env.rs"]
mod env;

use polis_api::compute::Instance;
use polis_api::crds;
use polis_api::quota::{AllowanceAmount, RESOURCE_INSTANCES, ResourceClaim, ResourceGrant};
use polis_engine::Clock;
use polis_platform::quota::{DEFAULT_GRANT, DefaultAllowance, NAMESPACE};
use polis_testbed::plane::SINGLE_PLANE;
use polis_testbed::{Options, TestCluster, manifest};

use polis_testing::{PlaneExt as _, Proxy, RequestFault};

use env::TestEnv;

const CITIES: &[&str] = &["dfw", "ord"];

/// A platform whose project `acme` is a kube-apiserver, and two cells.
struct Fixture {
    env: TestEnv,
    hub_namespace: String,
    /// The proxy from the cell in `dfw` to the project.
    proxy: Proxy,
}

impl Fixture {
    /// Uses planes of the test cluster as the project and, where it has them, as hub and cells.
    async fn new(cluster: &TestCluster, project: &str, instances: i64) -> Self {
        let client = cluster.client(project).await.expect("a client");
        let kinds: Vec<_> = crds::of_project().into_iter().map(|file| file.crd).collect();
        manifest::apply_crds(&client, project, &kinds).await.expect("the CRDs are served");
        let mut env = TestEnv::with_clock(Clock::system(), CITIES).await;
        for plane in cluster.planes().iter().filter(|plane| plane.name != project) {
            env.proxy.serve_from(&plane.name, cluster.client(&plane.name).await.expect("a client"));
        }
        env.proxy.serve_from("acme", client);
        env.start_without_quota();
        env.start_quota(Some(DefaultAllowance { instances, ..DefaultAllowance::default() }));
        env.open("acme").await;
        let hub_namespace = env.hub_namespace("acme", CITIES).await;
        let proxy = env.start_cell("dfw");
        env.start_cell("ord");
        for city in CITIES {
            env.start_provider(city);
        }
        Self { env, hub_namespace, proxy }
    }

    async fn until_balanced(&self, running: usize) {
        self.env.until_balanced("acme", &self.hub_namespace, CITIES, running).await;
    }

    async fn until_quota(&self, instance: &str, status: &str, reason: &str) {
        self.env.until_quota("dfw", &self.hub_namespace, instance, status, reason).await;
    }

    /// Changes the number of instances in the default grant.
    async fn allow(&self, amount: i64) {
        let raise = |grant: &mut ResourceGrant| {
            for allowance in
                grant.spec.allowances.iter_mut().filter(|a| a.resource_type == RESOURCE_INSTANCES)
            {
                allowance.buckets = vec![AllowanceAmount { amount, ..Default::default() }];
            }
        };
        self.env.project("acme").change::<ResourceGrant>((NAMESPACE, DEFAULT_GRANT), raise).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_match_running_instances_on_a_kube_apiserver() {
    let cluster =
        polis_testbed::suite::shared_cluster(Options::single_plane()).await.expect("a test cluster");
    run_scenarios(Fixture::new(cluster, SINGLE_PLANE, 2).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_match_running_instances_with_karmada_and_its_members() {
    let cluster = TestCluster::up(Options::federation(CITIES.iter().copied())).await.expect("a test cluster");
    run_scenarios(Fixture::new(&cluster, "project-1", 2).await).await;
}

async fn run_scenarios(mut fixture: Fixture) {
    let hub_namespace = fixture.hub_namespace.clone();

    // Granted; then denied, and granted when the quota is raised.
    fixture.env.deploy("dfw", &hub_namespace, "web", 2).await;
    fixture.until_balanced(2).await;
    fixture.env.deploy("dfw", &hub_namespace, "late", 1).await;
    fixture.until_quota("late-0", "False", "QuotaExceeded").await;
    fixture.until_balanced(2).await;
    fixture.allow(3).await;
    fixture.until_quota("late-0", "True", "QuotaAvailable").await;
    fixture.until_balanced(3).await;

    // A deleted claim is created again, and its instance keeps running.
    let name = (hub_namespace.as_str(), "late-0");
    let before: Instance = fixture.env.at("dfw").uncached().get(name).await.unwrap().unwrap();
    fixture.env.project("acme").remove::<ResourceClaim>(("default", "instance-late-0")).await;
    fixture.until_balanced(3).await;
    let after: Instance = fixture.env.at("dfw").uncached().get(name).await.unwrap().unwrap();
    assert_eq!(before.metadata.uid, after.metadata.uid);

    // Two cells race for the last unit, and one gets it.
    fixture.allow(4).await;
    tokio::join!(
        fixture.env.deploy("dfw", &hub_namespace, "race-dfw", 1),
        fixture.env.deploy("ord", &hub_namespace, "race-ord", 1)
    );
    fixture.until_balanced(4).await;
    fixture.env.undeploy("dfw", &hub_namespace, "race-dfw").await;
    fixture.env.until_quota("ord", &hub_namespace, "race-ord-0", "True", "QuotaAvailable").await;
    fixture.until_balanced(4).await;

    // A cell that restarts between claim and grant continues.
    fixture.env.stop("quota").await;
    fixture.allow(10).await;
    fixture.env.deploy("dfw", &hub_namespace, "pending", 1).await;
    let claim = fixture
        .env
        .project("acme")
        .eventually_has::<ResourceClaim>(("default", "instance-pending-0"), |_| true)
        .await;
    fixture.env.stop("cell-dfw").await;
    fixture.env.start_quota(Some(DefaultAllowance::default()));
    fixture.proxy = fixture.env.start_cell("dfw");
    fixture.until_balanced(5).await;
    let claim_after =
        fixture.env.project("acme").uncached().get::<ResourceClaim>(("default", "instance-pending-0")).await;
    assert_eq!(claim_after.unwrap().unwrap().metadata.uid, claim.metadata.uid);

    // A pending instance that is deleted leaves nothing to grant.
    fixture.env.stop("quota").await;
    fixture.env.deploy("dfw", &hub_namespace, "brief", 1).await;
    let name = ("default", "instance-brief-0");
    fixture.env.project("acme").eventually_has::<ResourceClaim>(name, |_| true).await;
    fixture.env.undeploy("dfw", &hub_namespace, "brief").await;
    fixture.env.project("acme").eventually_lacks::<ResourceClaim>(name).await;
    fixture.env.start_quota(Some(DefaultAllowance::default()));
    fixture.until_balanced(5).await;

    // While the project is unreachable, running instances continue and new ones wait with the reason.
    fixture.proxy.requests().inject(RequestFault::Refuse, |_| true);
    fixture.env.scale("dfw", &hub_namespace, "web", 3).await;
    fixture.until_quota("web-2", "False", "QuotaBackendUnavailable").await;
    fixture.until_balanced(5).await;
    fixture.proxy.requests().clear_faults();
    fixture.until_balanced(6).await;
    for name in ["web", "late", "pending"] {
        fixture.env.undeploy("dfw", &hub_namespace, name).await;
    }
    fixture.env.undeploy("ord", &hub_namespace, "race-ord").await;
    fixture.until_balanced(0).await;
    assert_eq!(fixture.env.claims("acme").await, []);
}
