//! The stories of quota once more, with a kube-apiserver as the plane of the project and in real time: claims, grants and
//! buckets are watched, written and deleted there. Hub and cells are embedded in one test, and a Karmada with its members in
//! the other. After each story what is granted is what runs, and no claim is without an instance.

// The world of the other tests has more words than these stories speak.
#[allow(dead_code)]
#[path = "../platform/cells.rs"]
mod cells;
#[allow(dead_code)]
#[path = "../platform/line.rs"]
mod line;
#[allow(dead_code)]
#[path = "../platform/world.rs"]
mod world;

use polis_api::compute::Instance;
use polis_api::crds;
use polis_api::quota::{AllowanceAmount, RESOURCE_INSTANCES, ResourceClaim, ResourceGrant};
use polis_engine::Clock;
use polis_platform::quota::{Allowance, DEFAULT_GRANT, NAMESPACE};
use polis_testbed::plane::LONE;
use polis_testbed::{Bed, Options, manifest};

use line::Line;
use world::{World, change};

const CITIES: &[&str] = &["dfw", "ord"];

/// A platform whose project `acme` is a kube-apiserver and may have so many instances, and two cells.
struct Stage {
    world: World,
    home: String,
    /// The line of the cell in `dfw` to the project.
    line: Line,
}

impl Stage {
    /// The project is this plane of the bed, and so are hub and cells, as far as it has them.
    async fn set(bed: &Bed, project: &str, instances: i64) -> Self {
        let client = bed.client(project).await.expect("a client");
        let kinds: Vec<_> = crds::of_project().into_iter().map(|file| file.crd).collect();
        manifest::apply_crds(&client, project, &kinds).await.expect("our kinds are served");
        let mut world = World::at_time(Clock::system(), CITIES).await;
        for plane in bed.planes().iter().filter(|plane| plane.name != project) {
            world.lead(&plane.name, bed.client(&plane.name).await.expect("a client"));
        }
        world.line.lead("acme", client);
        world.start_but_quota();
        world.start_quota(Some(Allowance { instances, ..Allowance::default() }));
        world.open("acme").await;
        let home = world.home("acme", CITIES).await;
        let line = world.start_cell("dfw");
        world.start_cell("ord");
        for city in CITIES {
            world.start_provider(city);
        }
        Self { world, home, line }
    }

    async fn balances(&self, running: usize) {
        self.world.balances("acme", &self.home, CITIES, running).await;
    }

    async fn says(&self, instance: &str, status: &str, reason: &str) {
        self.world.quota_says("dfw", &self.home, instance, status, reason).await;
    }

    /// The operator changes how many instances the project may have.
    async fn allow(&self, amount: i64) {
        let raise = |grant: &mut ResourceGrant| {
            for allowance in
                grant.spec.allowances.iter_mut().filter(|a| a.resource_type == RESOURCE_INSTANCES)
            {
                allowance.buckets = vec![AllowanceAmount { amount, ..Default::default() }];
            }
        };
        change::<ResourceGrant>(&self.world.project("acme"), (NAMESPACE, DEFAULT_GRANT), raise).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_granted_is_what_runs_on_a_real_plane_too() {
    let bed = polis_testbed::suite::bed(Options::single_plane()).await.expect("a bed");
    stories(Stage::set(bed, LONE, 2).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_granted_is_what_runs_with_a_real_hub_and_real_cells_too() {
    let bed = Bed::up(Options::federation(CITIES.iter().copied())).await.expect("a bed");
    stories(Stage::set(&bed, "project-1", 2).await).await;
}

async fn stories(mut stage: Stage) {
    let home = stage.home.clone();

    // Granted; then denied, and granted as soon as there is more.
    stage.world.deploy("dfw", &home, "web", 2).await;
    stage.balances(2).await;
    stage.world.deploy("dfw", &home, "late", 1).await;
    stage.says("late-0", "False", "QuotaExceeded").await;
    stage.balances(2).await;
    stage.allow(3).await;
    stage.says("late-0", "True", "QuotaAvailable").await;
    stage.balances(3).await;

    // A claim that somebody deletes is made again, and its instance runs on.
    let place = (home.as_str(), "late-0");
    let before: Instance = stage.world.at("dfw").live().get(place).await.unwrap().unwrap();
    stage.world.delete::<ResourceClaim>(&stage.world.project("acme"), ("default", "instance-late-0")).await;
    stage.balances(3).await;
    let after: Instance = stage.world.at("dfw").live().get(place).await.unwrap().unwrap();
    assert_eq!(before.metadata.uid, after.metadata.uid);

    // Two cells race for the last unit, and one has it.
    stage.allow(4).await;
    tokio::join!(
        stage.world.deploy("dfw", &home, "race-dfw", 1),
        stage.world.deploy("ord", &home, "race-ord", 1)
    );
    stage.balances(4).await;
    stage.world.undeploy("dfw", &home, "race-dfw").await;
    stage.world.quota_says("ord", &home, "race-ord-0", "True", "QuotaAvailable").await;
    stage.balances(4).await;

    // A cell that starts anew between claim and grant goes on.
    stage.world.stop("quota").await;
    stage.allow(10).await;
    stage.world.deploy("dfw", &home, "patient", 1).await;
    let claim = stage
        .world
        .has::<ResourceClaim>(&stage.world.project("acme"), ("default", "instance-patient-0"), |_| true)
        .await;
    stage.world.stop("cell-dfw").await;
    stage.world.start_quota(Some(Allowance::default()));
    stage.line = stage.world.start_cell("dfw");
    stage.balances(5).await;
    let kept =
        stage.world.project("acme").live().get::<ResourceClaim>(("default", "instance-patient-0")).await;
    assert_eq!(kept.unwrap().unwrap().metadata.uid, claim.metadata.uid);

    // An instance that goes while it waits leaves nothing to grant.
    stage.world.stop("quota").await;
    stage.world.deploy("dfw", &home, "brief", 1).await;
    let place = ("default", "instance-brief-0");
    stage.world.has::<ResourceClaim>(&stage.world.project("acme"), place, |_| true).await;
    stage.world.undeploy("dfw", &home, "brief").await;
    stage.world.loses::<ResourceClaim>(&stage.world.project("acme"), place).await;
    stage.world.start_quota(Some(Allowance::default()));
    stage.balances(5).await;

    // With the project out of reach what runs goes on, and what is new waits and says why.
    stage.line.cut(true);
    stage.world.scale("dfw", &home, "web", 3).await;
    stage.says("web-2", "False", "QuotaBackendUnavailable").await;
    stage.balances(5).await;
    stage.line.cut(false);
    stage.balances(6).await;
    for name in ["web", "late", "patient"] {
        stage.world.undeploy("dfw", &home, name).await;
    }
    stage.world.undeploy("ord", &home, "race-ord").await;
    stage.balances(0).await;
    assert_eq!(stage.world.claims("acme").await, []);
}
