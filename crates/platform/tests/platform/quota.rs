//! Quota end to end: cells claim, the stand-in decides, and after every story what is granted is what runs.

use std::time::Duration;

use polis_api::compute::Instance;
use polis_api::quota::{
    Allowance as GrantedAllowance, AllowanceAmount, AllowanceBucket, ConsumerReference, RESOURCE_INSTANCES,
    RESOURCE_VCPUS, ResourceClaim, ResourceGrant,
};
use polis_core::{conditions, owner};
use polis_engine::Query;
use polis_platform::quota::{Allowance, DEFAULT_GRANT, NAMESPACE};
use tokio::time::Instant;

use crate::world::{LONG, World, change, mk_meta};

const DFW: &[&str] = &["dfw"];
/// Shorter than the shortest pause after a denial: what happens within was seen, not tried.
const SEEN: Duration = Duration::from_secs(45);

fn mk_allowance(instances: i64) -> Option<Allowance> {
    Some(Allowance { instances, ..Allowance::default() })
}

/// A platform with one project, `acme`, that may have so many instances, and a cell that runs.
async fn mk_world(cities: &[&str], allowance: Option<Allowance>) -> (World, String) {
    let mut world = World::new(cities).await;
    world.start_but_quota();
    world.start_quota(allowance);
    world.open("acme").await;
    let home = world.home("acme", cities).await;
    for city in cities {
        world.start_cell(city);
        world.start_provider(city);
    }
    (world, home)
}

/// The operator changes what project `acme` may have.
async fn allow(world: &World, resource: &str, amount: i64) {
    let raise = |grant: &mut ResourceGrant| {
        for allowance in grant.spec.allowances.iter_mut().filter(|a| a.resource_type == resource) {
            allowance.buckets = vec![AllowanceAmount { amount, ..Default::default() }];
        }
    };
    change::<ResourceGrant>(&world.project("acme"), (NAMESPACE, DEFAULT_GRANT), raise).await;
}

fn mk_grant(name: &str, consumer: &str, amount: i64) -> ResourceGrant {
    let mut grant = ResourceGrant { metadata: mk_meta(Some("default"), name), ..ResourceGrant::default() };
    grant.spec.consumer_ref = ConsumerReference {
        api_group: Some("resourcemanager.miloapis.com".into()),
        kind: "Project".into(),
        name: consumer.into(),
        ..Default::default()
    };
    grant.spec.allowances = vec![GrantedAllowance {
        resource_type: RESOURCE_INSTANCES.into(),
        buckets: vec![AllowanceAmount { amount, ..Default::default() }],
        ..Default::default()
    }];
    grant
}

#[tokio::test(start_paused = true)]
async fn an_instance_within_the_default_grant_runs_and_its_claim_goes_with_it() {
    let (world, home) = mk_world(DFW, Some(Allowance::default())).await;
    world.deploy("dfw", &home, "web", 3).await;
    world.balances("acme", &home, DFW, 3).await;
    world.scale("dfw", &home, "web", 1).await;
    world.balances("acme", &home, DFW, 1).await;
    world.undeploy("dfw", &home, "web").await;
    world.balances("acme", &home, DFW, 0).await;
    assert_eq!(world.claims("acme").await, []);
    let free =
        |bucket: &AllowanceBucket| bucket.status.as_ref().is_some_and(|s| s.allocated == 0 && s.limit > 0);
    world
        .until("everything is free again", async || {
            let buckets = world.project("acme").live().list::<AllowanceBucket>(&Query::all()).await.unwrap();
            (buckets.len() == 3 && buckets.iter().all(free)).then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn what_is_more_than_allowed_waits_and_runs_as_soon_as_the_quota_is_raised() {
    let (world, home) = mk_world(DFW, mk_allowance(1)).await;
    world.deploy("dfw", &home, "web", 1).await;
    world.balances("acme", &home, DFW, 1).await;
    for late in ["b", "c"] {
        world.deploy("dfw", &home, late, 1).await;
        world.quota_says("dfw", &home, &format!("{late}-0"), "False", "QuotaExceeded").await;
    }
    world.quiet(LONG).await;
    world.balances("acme", &home, DFW, 1).await;

    let raised = Instant::now();
    allow(&world, RESOURCE_INSTANCES, 2).await;
    world.quota_says("dfw", &home, "b-0", "True", "QuotaAvailable").await;
    world.balances("acme", &home, DFW, 2).await;
    assert!(raised.elapsed() < SEEN, "{:?}", raised.elapsed());
    world.quiet(LONG).await;
    world.balances("acme", &home, DFW, 2).await;

    let raised = Instant::now();
    allow(&world, RESOURCE_INSTANCES, 10).await;
    world.balances("acme", &home, DFW, 3).await;
    assert!(raised.elapsed() < SEEN, "{:?}", raised.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_project_without_any_grant_is_denied_until_it_gets_one() {
    let (world, home) = mk_world(DFW, None).await;
    world.deploy("dfw", &home, "web", 1).await;
    world.quota_says("dfw", &home, "web-0", "False", "QuotaExceeded").await;
    world.balances("acme", &home, DFW, 0).await;
    let mut grant = mk_grant("first", "acme", 5);
    for (resource, amount) in [(RESOURCE_VCPUS, 5000), ("compute.datumapis.com/memory", 10240)] {
        let mut more = grant.spec.allowances[0].clone();
        more.resource_type = resource.into();
        more.buckets[0].amount = amount;
        grant.spec.allowances.push(more);
    }
    world.project("acme").create(&grant).await.unwrap();
    let granted = Instant::now();
    world.balances("acme", &home, DFW, 1).await;
    assert!(granted.elapsed() < SEEN, "{:?}", granted.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_goes_makes_room_for_the_oldest_that_waits() {
    let (world, home) = mk_world(DFW, mk_allowance(1)).await;
    world.deploy("dfw", &home, "first", 1).await;
    world.balances("acme", &home, DFW, 1).await;
    for late in ["z-second", "a-third"] {
        world.deploy("dfw", &home, late, 1).await;
        world.quota_says("dfw", &home, &format!("{late}-0"), "False", "QuotaExceeded").await;
        world.quiet(Duration::from_secs(5)).await;
    }
    world.undeploy("dfw", &home, "first").await;
    world.quota_says("dfw", &home, "z-second-0", "True", "QuotaAvailable").await;
    world.balances("acme", &home, DFW, 1).await;
    world.undeploy("dfw", &home, "z-second").await;
    world.quota_says("dfw", &home, "a-third-0", "True", "QuotaAvailable").await;
    world.balances("acme", &home, DFW, 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_gets_only_a_part_gives_it_back_to_those_who_can_use_it() {
    let (world, home) = mk_world(DFW, Some(Allowance { millicores: 1000, ..Allowance::default() })).await;
    world.deploy("dfw", &home, "web", 2).await;
    world.balances("acme", &home, DFW, 1).await;
    world
        .until("the part is given back", async || {
            let bucket = world.project("acme").live().list::<AllowanceBucket>(&Query::all()).await.unwrap();
            let instances = bucket.into_iter().find(|b| b.spec.resource_type == RESOURCE_INSTANCES)?;
            (instances.status?.allocated == 1).then_some(())
        })
        .await;
    allow(&world, RESOURCE_VCPUS, 2000).await;
    world.balances("acme", &home, DFW, 2).await;
}

#[tokio::test(start_paused = true)]
async fn two_cells_that_race_for_the_last_unit_get_it_once() {
    let cities = &["dfw", "ord"];
    let (world, home) = mk_world(cities, mk_allowance(1)).await;
    tokio::join!(world.deploy("dfw", &home, "web-dfw", 1), world.deploy("ord", &home, "web-ord", 1));
    world.balances("acme", &home, cities, 1).await;
    world.quiet(LONG).await;
    world.balances("acme", &home, cities, 1).await;
    let runs = async |city| {
        let instances = world.instances(city).await;
        instances.iter().any(|instance| polis_core::gates::of(instance).is_empty())
    };
    let (winner, loser) = if runs("dfw").await { ("dfw", "ord") } else { ("ord", "dfw") };
    world.undeploy(winner, &home, &format!("web-{winner}")).await;
    world.quota_says(loser, &home, &format!("web-{loser}-0"), "True", "QuotaAvailable").await;
    world.balances("acme", &home, cities, 1).await;
}

#[tokio::test(start_paused = true)]
async fn with_the_project_unreachable_what_runs_goes_on_and_new_ones_wait() {
    let mut world = World::new(DFW).await;
    world.start_but_quota();
    world.start_quota(Some(Allowance::default()));
    world.open("acme").await;
    let home = world.home("acme", DFW).await;
    let line = world.start_cell("dfw");
    world.start_provider("dfw");
    world.deploy("dfw", &home, "web", 1).await;
    world.balances("acme", &home, DFW, 1).await;
    line.cut(true);
    world.scale("dfw", &home, "web", 2).await;
    world.quota_says("dfw", &home, "web-1", "False", "QuotaBackendUnavailable").await;
    world.balances("acme", &home, DFW, 1).await;
    world.scale("dfw", &home, "web", 0).await;
    world
        .has::<Instance>(&world.at("dfw"), (&home, &"web-1".to_owned()), |instance| {
            owner::is_deleting(&instance.metadata)
        })
        .await;
    line.cut(false);
    world.until("both are gone", async || world.instances("dfw").await.is_empty().then_some(())).await;
    world.balances("acme", &home, DFW, 0).await;
    assert_eq!(world.claims("acme").await, []);
}

#[tokio::test(start_paused = true)]
async fn a_claim_deleted_by_hand_is_made_again_and_the_instance_runs_on() {
    let (world, home) = mk_world(DFW, mk_allowance(2)).await;
    world.deploy("dfw", &home, "web", 1).await;
    world.balances("acme", &home, DFW, 1).await;
    let place = ("default", "instance-web-0");
    let before: Instance = world.at("dfw").live().get((home.as_str(), "web-0")).await.unwrap().unwrap();
    world.delete::<ResourceClaim>(&world.project("acme"), place).await;
    world.balances("acme", &home, DFW, 1).await;
    let after: Instance = world.at("dfw").live().get((home.as_str(), "web-0")).await.unwrap().unwrap();
    assert_eq!(before.metadata.uid, after.metadata.uid);
}

#[tokio::test(start_paused = true)]
async fn a_cell_that_starts_anew_between_claim_and_grant_goes_on() {
    let mut world = World::new(DFW).await;
    world.start_but_quota();
    world.open("acme").await;
    let home = world.home("acme", DFW).await;
    world.start_cell("dfw");
    world.start_provider("dfw");
    world.deploy("dfw", &home, "web", 1).await;
    let claim = world
        .has::<ResourceClaim>(&world.project("acme"), ("default", "instance-web-0"), |claim| {
            claim.status.is_none()
        })
        .await;
    world.stop("cell-dfw").await;
    world.start_quota(Some(Allowance::default()));
    world
        .has::<ResourceClaim>(&world.project("acme"), ("default", "instance-web-0"), |claim| {
            claim.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, "Granted"))
        })
        .await;
    world.start_cell("dfw");
    world.balances("acme", &home, DFW, 1).await;
    assert_eq!(world.claims("acme").await[0].metadata.uid, claim.metadata.uid);
}

#[tokio::test(start_paused = true)]
async fn an_instance_deleted_while_it_waits_leaves_nothing_to_grant() {
    let mut world = World::new(DFW).await;
    world.start_but_quota();
    world.open("acme").await;
    let home = world.home("acme", DFW).await;
    world.start_cell("dfw");
    for name in ["web", "api"] {
        world.deploy("dfw", &home, name, 1).await;
    }
    world.until("two claims", async || (world.claims("acme").await.len() == 2).then_some(())).await;
    for name in ["web", "api"] {
        world.undeploy("dfw", &home, name).await;
    }
    world.until("no claims", async || world.claims("acme").await.is_empty().then_some(())).await;
    world.start_quota(Some(Allowance::default()));
    world.quiet(LONG).await;
    world.balances("acme", &home, DFW, 0).await;
}

#[tokio::test(start_paused = true)]
async fn projects_are_counted_each_for_itself() {
    let (world, home) = mk_world(DFW, mk_allowance(1)).await;
    world.open("shop").await;
    let other = world.home("shop", DFW).await;
    world.deploy("dfw", &home, "web", 2).await;
    world.deploy("dfw", &other, "web", 1).await;
    world.balances("acme", &home, DFW, 1).await;
    world.balances("shop", &other, DFW, 1).await;
    // Neither a grant for the other nor one that lies about its consumer helps anybody.
    world.project("shop").create(&mk_grant("for-acme", "acme", 100)).await.unwrap();
    let refused = world
        .has::<ResourceGrant>(&world.project("shop"), ("default", "for-acme"), |grant| grant.status.is_some())
        .await;
    assert!(conditions::is_false(&refused.status.unwrap().conditions, "Active"));
    world.quiet(LONG).await;
    world.balances("acme", &home, DFW, 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_project_that_does_not_answer_keeps_nobody_else_waiting() {
    let mut world = World::new(DFW).await;
    world.start_but_quota();
    world.start_quota(Some(Allowance::default()));
    for project in ["acme", "mute"] {
        world.open(project).await;
    }
    let (home, mute) = (world.home("acme", DFW).await, world.home("mute", DFW).await);
    let line = world.start_cell("dfw");
    world.start_provider("dfw");
    line.silence("mute", true);
    world.deploy("dfw", &mute, "web", 3).await;
    world.quota_says("dfw", &mute, "web-0", "False", "QuotaBackendUnavailable").await;
    for number in 1..=10 {
        let asked = Instant::now();
        world.deploy("dfw", &home, &format!("w{number}"), 1).await;
        world.balances("acme", &home, DFW, number).await;
        assert!(asked.elapsed() < Duration::from_secs(2), "number {number} took {:?}", asked.elapsed());
        world.quiet(Duration::from_secs(7)).await;
    }
    line.silence("mute", false);
    world.balances("mute", &mute, DFW, 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_platform_at_rest_writes_nothing() {
    let (world, home) = mk_world(DFW, mk_allowance(1)).await;
    world.deploy("dfw", &home, "web", 1).await;
    world.balances("acme", &home, DFW, 1).await;
    world.quiet(LONG).await;
    let versions = async || {
        let acme = world.project("acme");
        let buckets = acme.live().list::<AllowanceBucket>(&Query::all()).await.unwrap();
        let grants = acme.live().list::<ResourceGrant>(&Query::all()).await.unwrap();
        let claims = world.claims("acme").await;
        let versions = buckets.iter().map(|b| &b.metadata).chain(grants.iter().map(|g| &g.metadata));
        versions
            .chain(claims.iter().map(|c| &c.metadata))
            .map(|m| m.resource_version.clone())
            .collect::<Vec<_>>()
    };
    let before = versions().await;
    world.quiet(LONG).await;
    assert_eq!(before, versions().await);
}
