//! Quota end to end: cells claim, the quota controller decides, and after each scenario the grants match the
//! running instances.

use std::time::Duration;

use polis_api::ObjectExt;
use polis_api::compute::Instance;
use polis_api::quota::{
    Allowance as GrantedAllowance, AllowanceAmount, AllowanceBucket, ConsumerReference, RESOURCE_INSTANCES,
    RESOURCE_VCPUS, ResourceClaim, ResourceGrant,
};
use polis_core::conditions;
use polis_engine::ListOptions;
use polis_platform::quota::{DEFAULT_GRANT, DefaultAllowance, NAMESPACE};
use polis_testing::builders::mk_meta;
use polis_testing::{PlaneExt as _, RequestFault, eventually};
use tokio::time::Instant;

use crate::env::{LONG, TestEnv};

const DFW: &[&str] = &["dfw"];
/// Shorter than the shortest back-off after a denial: a change within this time was caused by an event.
const EVENT_TIME: Duration = Duration::from_secs(45);

fn mk_allowance(instances: i64) -> Option<DefaultAllowance> {
    Some(DefaultAllowance { instances, ..DefaultAllowance::default() })
}

/// A platform with project `acme`, a default allowance, and running cells.
async fn mk_env(cities: &[&str], allowance: Option<DefaultAllowance>) -> (TestEnv, String) {
    let mut env = TestEnv::new(cities).await;
    env.start_without_quota();
    env.start_quota(allowance);
    env.open("acme").await;
    let hub_namespace = env.hub_namespace("acme", cities).await;
    for city in cities {
        env.start_cell(city);
        env.start_provider(city);
    }
    (env, hub_namespace)
}

/// Changes the default grant of project `acme`.
async fn allow(env: &TestEnv, resource: &str, amount: i64) {
    let raise = |grant: &mut ResourceGrant| {
        for allowance in grant.spec.allowances.iter_mut().filter(|a| a.resource_type == resource) {
            allowance.buckets = vec![AllowanceAmount { amount, ..Default::default() }];
        }
    };
    env.project("acme").change::<ResourceGrant>((NAMESPACE, DEFAULT_GRANT), raise).await;
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
async fn an_instance_within_the_default_grant_runs_and_its_claim_is_deleted_with_it() {
    let (env, hub_namespace) = mk_env(DFW, Some(DefaultAllowance::default())).await;
    env.deploy("dfw", &hub_namespace, "web", 3).await;
    env.until_balanced("acme", &hub_namespace, DFW, 3).await;
    env.scale("dfw", &hub_namespace, "web", 1).await;
    env.until_balanced("acme", &hub_namespace, DFW, 1).await;
    env.undeploy("dfw", &hub_namespace, "web").await;
    env.until_balanced("acme", &hub_namespace, DFW, 0).await;
    assert_eq!(env.claims("acme").await, []);
    let free =
        |bucket: &AllowanceBucket| bucket.status.as_ref().is_some_and(|s| s.allocated == 0 && s.limit > 0);
    eventually("nothing is allocated", async || {
        let buckets =
            env.project("acme").uncached().list::<AllowanceBucket>(&ListOptions::all()).await.unwrap();
        (buckets.len() == 3 && buckets.iter().all(free)).then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_above_the_quota_waits_and_runs_when_the_quota_is_raised() {
    let (env, hub_namespace) = mk_env(DFW, mk_allowance(1)).await;
    env.deploy("dfw", &hub_namespace, "web", 1).await;
    env.until_balanced("acme", &hub_namespace, DFW, 1).await;
    for late in ["b", "c"] {
        env.deploy("dfw", &hub_namespace, late, 1).await;
        env.until_quota("dfw", &hub_namespace, &format!("{late}-0"), "False", "QuotaExceeded").await;
    }
    env.idle(LONG).await;
    env.until_balanced("acme", &hub_namespace, DFW, 1).await;

    let raised = Instant::now();
    allow(&env, RESOURCE_INSTANCES, 2).await;
    env.until_quota("dfw", &hub_namespace, "b-0", "True", "QuotaAvailable").await;
    env.until_balanced("acme", &hub_namespace, DFW, 2).await;
    assert!(raised.elapsed() < EVENT_TIME, "{:?}", raised.elapsed());
    env.idle(LONG).await;
    env.until_balanced("acme", &hub_namespace, DFW, 2).await;

    let raised = Instant::now();
    allow(&env, RESOURCE_INSTANCES, 10).await;
    env.until_balanced("acme", &hub_namespace, DFW, 3).await;
    assert!(raised.elapsed() < EVENT_TIME, "{:?}", raised.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_project_without_any_grant_is_denied_until_it_gets_one() {
    let (env, hub_namespace) = mk_env(DFW, None).await;
    env.deploy("dfw", &hub_namespace, "web", 1).await;
    env.until_quota("dfw", &hub_namespace, "web-0", "False", "QuotaExceeded").await;
    env.until_balanced("acme", &hub_namespace, DFW, 0).await;
    let mut grant = mk_grant("first", "acme", 5);
    for (resource, amount) in [(RESOURCE_VCPUS, 5000), ("compute.datumapis.com/memory", 10240)] {
        let mut more = grant.spec.allowances[0].clone();
        more.resource_type = resource.into();
        more.buckets[0].amount = amount;
        grant.spec.allowances.push(more);
    }
    env.project("acme").create(&grant).await.unwrap();
    let granted = Instant::now();
    env.until_balanced("acme", &hub_namespace, DFW, 1).await;
    assert!(granted.elapsed() < EVENT_TIME, "{:?}", granted.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_instance_frees_quota_for_the_oldest_pending_one() {
    let (env, hub_namespace) = mk_env(DFW, mk_allowance(1)).await;
    env.deploy("dfw", &hub_namespace, "first", 1).await;
    env.until_balanced("acme", &hub_namespace, DFW, 1).await;
    for late in ["z-second", "a-third"] {
        env.deploy("dfw", &hub_namespace, late, 1).await;
        env.until_quota("dfw", &hub_namespace, &format!("{late}-0"), "False", "QuotaExceeded").await;
        env.idle(Duration::from_secs(5)).await;
    }
    env.undeploy("dfw", &hub_namespace, "first").await;
    env.until_quota("dfw", &hub_namespace, "z-second-0", "True", "QuotaAvailable").await;
    env.until_balanced("acme", &hub_namespace, DFW, 1).await;
    env.undeploy("dfw", &hub_namespace, "z-second").await;
    env.until_quota("dfw", &hub_namespace, "a-third-0", "True", "QuotaAvailable").await;
    env.until_balanced("acme", &hub_namespace, DFW, 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_partly_granted_claim_is_deleted_so_that_others_can_use_its_part() {
    let (env, hub_namespace) =
        mk_env(DFW, Some(DefaultAllowance { millicores: 1000, ..DefaultAllowance::default() })).await;
    env.deploy("dfw", &hub_namespace, "web", 2).await;
    env.until_balanced("acme", &hub_namespace, DFW, 1).await;
    eventually("the part is free again", async || {
        let bucket =
            env.project("acme").uncached().list::<AllowanceBucket>(&ListOptions::all()).await.unwrap();
        let instances = bucket.into_iter().find(|b| b.spec.resource_type == RESOURCE_INSTANCES)?;
        (instances.status?.allocated == 1).then_some(())
    })
    .await;
    allow(&env, RESOURCE_VCPUS, 2000).await;
    env.until_balanced("acme", &hub_namespace, DFW, 2).await;
}

#[tokio::test(start_paused = true)]
async fn two_cells_that_race_for_the_last_unit_get_it_once() {
    let cities = &["dfw", "ord"];
    let (env, hub_namespace) = mk_env(cities, mk_allowance(1)).await;
    tokio::join!(
        env.deploy("dfw", &hub_namespace, "web-dfw", 1),
        env.deploy("ord", &hub_namespace, "web-ord", 1)
    );
    env.until_balanced("acme", &hub_namespace, cities, 1).await;
    env.idle(LONG).await;
    env.until_balanced("acme", &hub_namespace, cities, 1).await;
    let runs = async |city| {
        let instances = env.instances(city).await;
        instances.iter().any(|instance| polis_core::gates::of(instance).is_empty())
    };
    let (winner, loser) = if runs("dfw").await { ("dfw", "ord") } else { ("ord", "dfw") };
    env.undeploy(winner, &hub_namespace, &format!("web-{winner}")).await;
    env.until_quota(loser, &hub_namespace, &format!("web-{loser}-0"), "True", "QuotaAvailable").await;
    env.until_balanced("acme", &hub_namespace, cities, 1).await;
}

#[tokio::test(start_paused = true)]
async fn while_the_project_is_unreachable_running_instances_continue_and_new_ones_wait() {
    let mut env = TestEnv::new(DFW).await;
    env.start_without_quota();
    env.start_quota(Some(DefaultAllowance::default()));
    env.open("acme").await;
    let hub_namespace = env.hub_namespace("acme", DFW).await;
    let proxy = env.start_cell("dfw");
    env.start_provider("dfw");
    env.deploy("dfw", &hub_namespace, "web", 1).await;
    env.until_balanced("acme", &hub_namespace, DFW, 1).await;
    proxy.requests().inject(RequestFault::Refuse, |_| true);
    env.scale("dfw", &hub_namespace, "web", 2).await;
    env.until_quota("dfw", &hub_namespace, "web-1", "False", "QuotaBackendUnavailable").await;
    env.until_balanced("acme", &hub_namespace, DFW, 1).await;
    env.scale("dfw", &hub_namespace, "web", 0).await;
    env.at("dfw")
        .eventually_has::<Instance>((&hub_namespace, &"web-1".to_owned()), |instance| instance.is_deleting())
        .await;
    proxy.requests().clear_faults();
    eventually("both are deleted", async || env.instances("dfw").await.is_empty().then_some(())).await;
    env.until_balanced("acme", &hub_namespace, DFW, 0).await;
    assert_eq!(env.claims("acme").await, []);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_claim_is_created_again_and_the_instance_keeps_running() {
    let (env, hub_namespace) = mk_env(DFW, mk_allowance(2)).await;
    env.deploy("dfw", &hub_namespace, "web", 1).await;
    env.until_balanced("acme", &hub_namespace, DFW, 1).await;
    let name = ("default", "instance-web-0");
    let before: Instance =
        env.at("dfw").uncached().get((hub_namespace.as_str(), "web-0")).await.unwrap().unwrap();
    env.project("acme").remove::<ResourceClaim>(name).await;
    env.until_balanced("acme", &hub_namespace, DFW, 1).await;
    let after: Instance =
        env.at("dfw").uncached().get((hub_namespace.as_str(), "web-0")).await.unwrap().unwrap();
    assert_eq!(before.metadata.uid, after.metadata.uid);
}

#[tokio::test(start_paused = true)]
async fn a_cell_that_restarts_between_claim_and_grant_continues() {
    let mut env = TestEnv::new(DFW).await;
    env.start_without_quota();
    env.open("acme").await;
    let hub_namespace = env.hub_namespace("acme", DFW).await;
    env.start_cell("dfw");
    env.start_provider("dfw");
    env.deploy("dfw", &hub_namespace, "web", 1).await;
    let claim = env
        .project("acme")
        .eventually_has::<ResourceClaim>(("default", "instance-web-0"), |claim| claim.status.is_none())
        .await;
    env.stop("cell-dfw").await;
    env.start_quota(Some(DefaultAllowance::default()));
    env.project("acme")
        .eventually_has::<ResourceClaim>(("default", "instance-web-0"), |claim| {
            claim.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, "Granted"))
        })
        .await;
    env.start_cell("dfw");
    env.until_balanced("acme", &hub_namespace, DFW, 1).await;
    assert_eq!(env.claims("acme").await[0].metadata.uid, claim.metadata.uid);
}

#[tokio::test(start_paused = true)]
async fn a_pending_instance_that_is_deleted_leaves_nothing_to_grant() {
    let mut env = TestEnv::new(DFW).await;
    env.start_without_quota();
    env.open("acme").await;
    let hub_namespace = env.hub_namespace("acme", DFW).await;
    env.start_cell("dfw");
    for name in ["web", "api"] {
        env.deploy("dfw", &hub_namespace, name, 1).await;
    }
    eventually("two claims", async || (env.claims("acme").await.len() == 2).then_some(())).await;
    for name in ["web", "api"] {
        env.undeploy("dfw", &hub_namespace, name).await;
    }
    eventually("no claims", async || env.claims("acme").await.is_empty().then_some(())).await;
    env.start_quota(Some(DefaultAllowance::default()));
    env.idle(LONG).await;
    env.until_balanced("acme", &hub_namespace, DFW, 0).await;
}

#[tokio::test(start_paused = true)]
async fn each_project_has_its_own_quota() {
    let (env, hub_namespace) = mk_env(DFW, mk_allowance(1)).await;
    env.open("shop").await;
    let other = env.hub_namespace("shop", DFW).await;
    env.deploy("dfw", &hub_namespace, "web", 2).await;
    env.deploy("dfw", &other, "web", 1).await;
    env.until_balanced("acme", &hub_namespace, DFW, 1).await;
    env.until_balanced("shop", &other, DFW, 1).await;
    // A grant for another consumer is not active.
    env.project("shop").create(&mk_grant("for-acme", "acme", 100)).await.unwrap();
    let inactive = env
        .project("shop")
        .eventually_has::<ResourceGrant>(("default", "for-acme"), |grant| grant.status.is_some())
        .await;
    assert!(conditions::is_false(&inactive.status.unwrap().conditions, "Active"));
    env.idle(LONG).await;
    env.until_balanced("acme", &hub_namespace, DFW, 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_project_that_does_not_respond_delays_no_other_project() {
    let mut env = TestEnv::new(DFW).await;
    env.start_without_quota();
    env.start_quota(Some(DefaultAllowance::default()));
    for project in ["acme", "hanging"] {
        env.open(project).await;
    }
    let (hub_namespace, hanging) =
        (env.hub_namespace("acme", DFW).await, env.hub_namespace("hanging", DFW).await);
    let proxy = env.start_cell("dfw");
    env.start_provider("dfw");
    let outage = proxy.requests_to("hanging");
    outage.fail(RequestFault::Hang);
    env.deploy("dfw", &hanging, "web", 3).await;
    env.until_quota("dfw", &hanging, "web-0", "False", "QuotaBackendUnavailable").await;
    for number in 1..=10 {
        let started = Instant::now();
        env.deploy("dfw", &hub_namespace, &format!("w{number}"), 1).await;
        env.until_balanced("acme", &hub_namespace, DFW, number).await;
        assert!(started.elapsed() < Duration::from_secs(2), "number {number} took {:?}", started.elapsed());
        env.idle(Duration::from_secs(7)).await;
    }
    outage.restore();
    env.until_balanced("hanging", &hanging, DFW, 3).await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_platform_writes_nothing() {
    let (env, hub_namespace) = mk_env(DFW, mk_allowance(1)).await;
    env.deploy("dfw", &hub_namespace, "web", 1).await;
    env.until_balanced("acme", &hub_namespace, DFW, 1).await;
    env.idle(LONG).await;
    let versions = async || {
        let acme = env.project("acme");
        let buckets = acme.uncached().list::<AllowanceBucket>(&ListOptions::all()).await.unwrap();
        let grants = acme.uncached().list::<ResourceGrant>(&ListOptions::all()).await.unwrap();
        let claims = env.claims("acme").await;
        let versions = buckets.iter().map(|b| &b.metadata).chain(grants.iter().map(|g| &g.metadata));
        versions
            .chain(claims.iter().map(|c| &c.metadata))
            .map(|m| m.resource_version.clone())
            .collect::<Vec<_>>()
    };
    let before = versions().await;
    env.idle(LONG).await;
    assert_eq!(before, versions().await);
}
