//! Quota: a claim per instance in its project, and what comes of the answer.

use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::api::events::v1::Event;
use polis_api::quota::{RequestAllocation, ResourceClaim};
use polis_api::{finalizers, labels};
use polis_core::metadata;
use polis_engine::{Exactly, Query};

use crate::line::State;
use crate::world::{
    CELL, HOME, LONG, Setup, World, change_status, gates, mk_condition, mk_deployment, mk_home, says,
};

const WITH_QUOTA: Setup = Setup { quota: true, networks: false, networks_off: false };
const CLAIM: (&str, &str) = ("shop", "instance-web-0");

async fn claim(world: &World) -> ResourceClaim {
    world
        .until("the claim", async || world.at_project().live().get::<ResourceClaim>(CLAIM).await.unwrap())
        .await
}

async fn claims(world: &World) -> Vec<ResourceClaim> {
    world.at_project().live().list(&Query::all()).await.unwrap()
}

/// Plays the decision of the project's quota.
async fn decide(world: &World, status: &'static str, reason: &'static str, allocations: &[&str]) {
    let now = world.now();
    change_status::<ResourceClaim>(&world.at_project(), CLAIM, |claim| {
        let state = claim.status.get_or_insert_default();
        state.conditions = vec![mk_condition("Granted", status, reason, &now)];
        state.allocations = claim
            .spec
            .requests
            .iter()
            .zip(allocations)
            .map(|(request, decision)| RequestAllocation {
                resource_type: request.resource_type.clone(),
                status: decision.to_string(),
                ..RequestAllocation::default()
            })
            .collect();
    })
    .await;
}

async fn relabel_cell(world: &World, pairs: &[(&str, &str)]) {
    let cell = world.at_cell();
    let current: Namespace = cell.live().get(HOME).await.unwrap().unwrap();
    let mut wanted = current.clone();
    wanted.metadata.labels = mk_home(pairs).metadata.labels;
    cell.update(&current, &wanted).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_instance_starts_once_its_claim_is_granted() {
    let mut world = World::running(WITH_QUOTA).await;
    world.provider();
    world.deploy(&mk_deployment("web", 1)).await;
    let claim = claim(&world).await;
    let amounts: Vec<_> = claim.spec.requests.iter().map(|r| (r.resource_type.as_str(), r.amount)).collect();
    assert_eq!(
        amounts,
        [
            ("compute.datumapis.com/instances", 1),
            ("compute.datumapis.com/vcpus", 1000),
            ("compute.datumapis.com/memory", 2048)
        ]
    );
    assert_eq!(claim.spec.consumer_ref.name, "acme");
    assert_eq!(metadata::label(&claim.metadata, labels::SOURCE_CLUSTER), Some(CELL));
    let waiting = world
        .until("waiting for quota", async || {
            world
                .instance("web-0")
                .await
                .filter(|i| says(i, "QuotaGranted").is_some_and(|(status, _)| status == "Unknown"))
        })
        .await;
    assert_eq!(gates(&waiting), ["Quota"]);
    assert!(metadata::has_finalizer(&waiting.metadata, finalizers::QUOTA_CLAIM));

    decide(&world, "True", "QuotaAvailable", &["Granted", "Granted", "Granted"]).await;
    world.until_ready(&["web-0"]).await;
    let running = world.instance("web-0").await.unwrap();
    assert_eq!(says(&running, "QuotaGranted"), Some(("True".into(), "QuotaAvailable".into())));
    assert!(world.metrics().contains("compute_quota_enforcement_enabled 1"));
}

#[tokio::test(start_paused = true)]
async fn a_grant_is_seen_by_a_watch_and_a_settled_project_is_not_watched() {
    let world = World::running(WITH_QUOTA).await;
    world.deploy(&mk_deployment("web", 1)).await;
    claim(&world).await;
    world.quiet(LONG).await;
    world.projects.clear();
    world.quiet(LONG).await;
    assert_eq!(world.projects.log(), [""; 0]); // pending, and nobody polls
    decide(&world, "True", "QuotaAvailable", &["Granted"; 3]).await;
    world.until_says("web-0", "Ready", "False", "PendingProgramming").await;
    world.quiet(LONG).await;
    assert_eq!(world.projects.log(), [""; 0]);
    let engaged = "polis_planes{set=\"claims\",state=\"engaged\"} 0";
    assert!(world.metrics().contains(engaged), "{}", world.metrics());
}

#[tokio::test(start_paused = true)]
async fn where_claims_cannot_be_watched_a_grant_is_found_by_looking() {
    let world = World::running(WITH_QUOTA).await;
    world.projects.blind_for("resourceclaims");
    world.deploy(&mk_deployment("web", 1)).await;
    claim(&world).await;
    world.quiet(LONG).await;
    decide(&world, "True", "QuotaAvailable", &["Granted"; 3]).await;
    world.until_says("web-0", "Ready", "False", "PendingProgramming").await;
    let looks = world.projects.logged("GET resourceclaims/instance-web-0").len();
    // Every second for a minute, then ever less often; and once more where it is about to be made.
    assert!((2..200).contains(&looks), "{looks} looks");
    world.quiet(LONG).await;
    world.projects.clear();
    world.quiet(LONG).await;
    assert_eq!(world.projects.logged("GET resourceclaims/"), [""; 0], "nobody looks once it is granted");
}

#[tokio::test(start_paused = true)]
async fn the_claim_goes_with_its_instance() {
    let world = World::running(WITH_QUOTA).await;
    world.deploy(&mk_deployment("web", 1)).await;
    claim(&world).await;
    decide(&world, "True", "QuotaAvailable", &["Granted"; 3]).await;
    world.until_says("web-0", "Ready", "False", "PendingProgramming").await;
    world.undeploy("web").await;
    world.until_empty().await;
    assert_eq!(claims(&world).await, []);
}

#[tokio::test(start_paused = true)]
async fn an_instance_deleted_while_it_waits_leaves_no_claim() {
    let world = World::running(WITH_QUOTA).await;
    world.deploy(&mk_deployment("web", 1)).await;
    claim(&world).await;
    world.undeploy("web").await;
    world.until_empty().await;
    assert_eq!(claims(&world).await, []);
    world.quiet(LONG).await;
    assert_eq!(claims(&world).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_denied_instance_says_so_and_gets_its_chance_again() {
    let mut world = World::running(WITH_QUOTA).await;
    world.provider();
    world.deploy(&mk_deployment("web", 1)).await;
    let first = claim(&world).await;
    decide(&world, "False", "QuotaExceeded", &["Denied"; 3]).await;
    let denied = world.until_says("web-0", "QuotaGranted", "False", "QuotaExceeded").await;
    for kind in ["Ready", "Programmed", "Running"] {
        assert_eq!(says(&denied, kind), Some(("False".into(), "PendingQuota".into())), "{kind}");
    }
    assert_eq!(gates(&denied), ["Quota"]);
    world
        .until("the deployment says so", async || {
            let status = world.deployment("web").await?.status?;
            polis_core::conditions::is_false(&status.conditions, "ReplicasReady").then_some(())
        })
        .await;
    // A denied claim is final, so it is given back and made anew after a pause.
    world
        .until("another claim", async || {
            let claim = world.at_project().live().get::<ResourceClaim>(CLAIM).await.unwrap()?;
            (claim.metadata.uid != first.metadata.uid).then_some(())
        })
        .await;
    decide(&world, "True", "QuotaAvailable", &["Granted"; 3]).await;
    world.until_ready(&["web-0"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_denied_claim_that_holds_a_part_gives_it_back_at_once_and_then_waits() {
    let world = World::running(WITH_QUOTA).await;
    world.deploy(&mk_deployment("web", 1)).await;
    claim(&world).await;
    let born = tokio::time::Instant::now();
    decide(&world, "False", "QuotaExceeded", &["Granted", "Denied", "Granted"]).await;
    world.until("it is given back", async || claims(&world).await.is_empty().then_some(())).await;
    assert!(born.elapsed().as_secs() < 10);
    world.until_says("web-0", "QuotaGranted", "False", "QuotaExceeded").await;
    claim(&world).await;
    assert!(born.elapsed().as_secs() >= 50, "{:?}", born.elapsed());
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_nothing_new_starts_and_what_runs_goes_on() {
    let mut world = World::running(WITH_QUOTA).await;
    world.provider();
    world.deploy(&mk_deployment("web", 1)).await;
    claim(&world).await;
    decide(&world, "True", "QuotaAvailable", &["Granted"; 3]).await;
    world.until_ready(&["web-0"]).await;
    for outage in [State::Cut, State::Silent] {
        world.projects.set(outage);
        world.change("web", |deployment| deployment.spec.scale_settings.min_replicas = 2).await;
        let waiting = world.until_says("web-1", "QuotaGranted", "False", "QuotaBackendUnavailable").await;
        assert_eq!(gates(&waiting), ["Quota"]);
        world.until_ready(&["web-0"]).await;
        world.projects.set(State::Up);
        world
            .until("the claim of web-1", async || {
                world.at_project().live().get::<ResourceClaim>(("shop", "instance-web-1")).await.unwrap()
            })
            .await;
        world
            .until("no refusal any more", async || {
                world
                    .instance("web-1")
                    .await
                    .filter(|i| says(i, "QuotaGranted").is_some_and(|(status, _)| status == "Unknown"))
            })
            .await;
        world.change("web", |deployment| deployment.spec.scale_settings.min_replicas = 1).await;
        world.until("web-1 gone", async || world.instance("web-1").await.is_none().then_some(())).await;
    }
    assert!(world.metrics().contains("compute_quota_eval_failures_total{reason=\"backend_unavailable\"}"));
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_goes_while_the_project_is_away_waits_to_give_back_its_claim() {
    let world = World::running(WITH_QUOTA).await;
    world.deploy(&mk_deployment("web", 1)).await;
    claim(&world).await;
    world.projects.set(State::Cut);
    world.undeploy("web").await;
    world
        .until("the hub copy goes all the same", async || world.copies().await.is_empty().then_some(()))
        .await;
    world.quiet(LONG).await;
    assert!(world.instance("web-0").await.is_some());
    world.projects.set(State::Up);
    world.until_empty().await;
    assert_eq!(claims(&world).await, []);
}

#[tokio::test(start_paused = true)]
async fn an_instance_of_no_known_project_says_so_claims_nothing_and_can_go() {
    let world = World::running(WITH_QUOTA).await;
    relabel_cell(&world, &[]).await;
    world.deploy(&mk_deployment("web", 1)).await;
    world.until_says("web-0", "QuotaGranted", "False", "QuotaProjectIDUnresolvable").await;
    assert!(world.metrics().contains("compute_instances_unresolved{what=\"project\"} 1"));
    assert_eq!(world.projects.log(), [""; 0]);
    world.undeploy("web").await;
    world.until_empty().await;
    world
        .until("people are told", async || {
            let events = world.at_cell().live().list::<Event>(&Query::all()).await.unwrap();
            events.iter().any(|event| event.reason.as_deref() == Some("QuotaClaimOrphaned")).then_some(())
        })
        .await;
    assert!(world.metrics().contains("compute_quota_claim_orphaned_total 1"));
    assert!(world.metrics().contains("compute_instances_unresolved{what=\"project\"} 0"));
}

#[tokio::test(start_paused = true)]
async fn labels_that_come_later_let_the_instance_claim() {
    let world = World::running(WITH_QUOTA).await;
    relabel_cell(&world, &[]).await;
    world.deploy(&mk_deployment("web", 1)).await;
    world.until_says("web-0", "QuotaGranted", "False", "QuotaProjectIDUnresolvable").await;
    relabel_cell(
        &world,
        &[(labels::UPSTREAM_CLUSTER_NAME, "cluster-acme"), (labels::UPSTREAM_NAMESPACE, "shop")],
    )
    .await;
    claim(&world).await;
}

#[tokio::test(start_paused = true)]
async fn a_project_or_namespace_that_is_not_there_is_named_as_the_reason() {
    let world = World::running(WITH_QUOTA).await;
    relabel_cell(
        &world,
        &[(labels::UPSTREAM_CLUSTER_NAME, "cluster-nobody"), (labels::UPSTREAM_NAMESPACE, "shop")],
    )
    .await;
    world.deploy(&mk_deployment("web", 1)).await;
    world.until_says("web-0", "QuotaGranted", "False", "QuotaProjectNotFound").await;
    relabel_cell(
        &world,
        &[(labels::UPSTREAM_CLUSTER_NAME, "cluster-acme"), (labels::UPSTREAM_NAMESPACE, "nowhere")],
    )
    .await;
    world.until_says("web-0", "QuotaGranted", "False", "QuotaNamespaceNotFound").await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_somebody_deletes_while_it_is_waited_for_is_made_again() {
    let world = World::running(WITH_QUOTA).await;
    world.deploy(&mk_deployment("web", 1)).await;
    let first = claim(&world).await;
    world.quiet(LONG).await;
    world.at_project().delete(&first, Exactly::Object).await.unwrap();
    world
        .until("another claim", async || {
            let claim = world.at_project().live().get::<ResourceClaim>(CLAIM).await.unwrap()?;
            (claim.metadata.uid != first.metadata.uid).then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_another_cell_is_left_alone() {
    let world = World::running(WITH_QUOTA).await;
    let mut theirs = ResourceClaim::default();
    theirs.metadata.name = Some(CLAIM.1.into());
    theirs.metadata.namespace = Some(CLAIM.0.into());
    theirs.metadata.labels =
        Some(metadata::map([(labels::SOURCE_CLUSTER, "dfw-2"), (labels::INSTANCE_NAMESPACE, HOME)]));
    theirs.spec.consumer_ref.kind = "Project".into();
    theirs.spec.consumer_ref.name = "acme".into();
    let theirs = world.at_project().create(&theirs).await.unwrap();
    world.deploy(&mk_deployment("web", 1)).await;
    let waiting = world
        .until("a look at it", async || {
            let instance = world.instance("web-0").await?;
            says(&instance, "QuotaGranted")
                .is_some_and(|(_, reason)| reason == "PendingEvaluation")
                .then_some(instance)
        })
        .await;
    assert_eq!(gates(&waiting), ["Quota"]);
    world.undeploy("web").await;
    world.until_empty().await;
    assert_eq!(claims(&world).await, [theirs]);
}

#[tokio::test(start_paused = true)]
async fn a_cell_that_starts_anew_between_claim_and_grant_goes_on() {
    let mut world = World::running(WITH_QUOTA).await;
    world.deploy(&mk_deployment("web", 1)).await;
    let first = claim(&world).await;
    world.stop().await;
    decide(&world, "True", "QuotaAvailable", &["Granted"; 3]).await;
    world.start();
    world.until_says("web-0", "Ready", "False", "PendingProgramming").await;
    assert_eq!(claim(&world).await.metadata.uid, first.metadata.uid);
}
