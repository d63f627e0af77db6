//! Instances of a deployment: creation, rollout, scaling and deletion.

use std::time::Duration;

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::{ObjectExt, annotations, finalizers, labels};
use polis_core::metadata;
use polis_engine::Preconditions;
use polis_testing::builders::mk_template;
use polis_testing::{PlaneExt as _, eventually};

use crate::env::{LONG, NAMESPACE, Setup, TestEnv, condition, gates, mk_deployment, names, uids};

#[tokio::test(start_paused = true)]
async fn an_instance_is_created_complete_and_the_reconcile_that_grants_quota_removes_its_gate() {
    let env = TestEnv::running(Setup::default()).await;
    env.deploy(&mk_deployment("web", 1)).await;
    let instance = env.until_condition("web-0", "Ready", "False", "PendingProgramming").await;

    assert_eq!(condition(&instance, "QuotaGranted"), Some(("True", "QuotaDisabled")));
    assert_eq!(gates(&instance), [""; 0]);
    assert_eq!(instance.metadata.finalizers, Some(vec![finalizers::INSTANCE.into()]));
    // One create; then status, gate, and the status of the new generation, with nothing in between.
    let writes = env.cell.log().into_iter().filter(|entry| entry.contains("instances")).collect::<Vec<_>>();
    assert_eq!(
        writes,
        [
            "create instances",
            "update instances/web-0/status",
            "update instances/web-0",
            "update instances/web-0/status"
        ]
    );
    assert!(env.metrics().contains("compute_quota_enforcement_enabled 0"));
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_created_with_the_finalizers_of_the_other_controllers_of_the_cell() {
    let setup = Setup { instance_finalizers: &[finalizers::RUNTIME], ..Setup::default() };
    let env = TestEnv::running(setup).await;
    env.deploy(&mk_deployment("web", 1)).await;
    let instance = env.until_condition("web-0", "Ready", "False", "PendingProgramming").await;
    assert!(instance.has_finalizer(finalizers::INSTANCE) && instance.has_finalizer(finalizers::RUNTIME));
    let writes = env.cell.log().into_iter().filter(|entry| entry.contains("instances")).count();
    assert_eq!(writes, 4, "no further write adds a finalizer");
}

#[tokio::test(start_paused = true)]
async fn the_deployment_reports_its_replicas_and_its_cell() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    env.deploy(&mk_deployment("web", 2)).await;
    env.until_ready(&["web-0", "web-1"]).await;
    let status = eventually("both counted", async || {
        env.deployment("web").await?.status.filter(|status| status.ready_replicas == 2)
    })
    .await;
    assert_eq!((status.replicas, status.desired_replicas, status.current_replicas), (2, 2, 2));
    assert_eq!(status.cell.as_deref(), Some("dfw-1"));
    assert_eq!(status.observed_generation, Some(1));
    assert!(polis_core::conditions::is_true(&status.conditions, "Available"));
}

#[tokio::test(start_paused = true)]
async fn instances_are_created_one_by_one_each_after_the_previous_is_ready() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.deploy(&mk_deployment("web", 3)).await;
    env.until_condition("web-0", "Ready", "False", "PendingProgramming").await;
    env.idle(LONG).await;
    assert_eq!(names(&env.instances().await), ["web-0"]);
    env.provider();
    env.until_ready(&["web-0", "web-1", "web-2"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_created_instance_is_not_created_again_before_the_watch_delivers_it() {
    let mut env = TestEnv::new(Setup::default()).await;
    env.cell.delay_watches("instances", Duration::from_secs(2));
    env.start();
    env.provider();
    env.deploy(&mk_deployment("web", 1)).await;
    eventually("the instance exists", async || env.instance("web-0").await).await;
    // Another change of the deployment, before the watch delivers its instance.
    env.change("web", |deployment| {
        deployment.metadata.annotations = Some(metadata::map([("note", "again")]));
    })
    .await;
    env.until_ready(&["web-0"]).await;
    assert_eq!(env.cell.logged("create instances"), ["create instances"]);
}

#[tokio::test(start_paused = true)]
async fn a_provider_may_set_available_instead_of_running() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider_with_condition("Available");
    env.deploy(&mk_deployment("web", 2)).await;
    env.until_ready(&["web-0", "web-1"]).await;
}

#[tokio::test(start_paused = true)]
async fn scaling_down_deletes_the_highest_ordinal_first_and_one_at_a_time() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    env.deploy(&mk_deployment("web", 3)).await;
    env.until_ready(&["web-0", "web-1", "web-2"]).await;
    env.cell.clear();
    env.change("web", |deployment| deployment.spec.scale_settings.min_replicas = 1).await;
    eventually("one left", async || (names(&env.instances().await) == ["web-0"]).then_some(())).await;
    eventually("one copy left", async || (names(&env.copies().await) == ["web-0"]).then_some(())).await;
    // Each is deleted and loses its finalizers before the next is deleted.
    let of_instances = |entry: &String| {
        entry.contains("instances/") && !entry.contains("status") && !entry.contains("events")
    };
    let log: Vec<_> = env.cell.log().into_iter().filter(of_instances).collect();
    assert_eq!(
        log,
        [
            "delete instances/web-2",
            "update instances/web-2",
            "delete instances/web-1",
            "update instances/web-1"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_new_template_replaces_instances_one_by_one_from_the_highest() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    env.deploy(&mk_deployment("web", 2)).await;
    env.until_ready(&["web-0", "web-1"]).await;
    let before = uids(&env.instances().await);
    env.cell.clear();
    env.change("web", |deployment| deployment.spec.template = mk_template("app:2")).await;
    env.until_rolled_out("web", 2).await;
    let after = uids(&env.instances().await);
    assert!(before.iter().all(|uid| !after.contains(uid)));
    let created_or_deleted = |entry: &String| entry.starts_with("delete") || *entry == "create instances";
    let log: Vec<_> = env.cell.log().into_iter().filter(created_or_deleted).collect();
    assert_eq!(
        log,
        ["delete instances/web-1", "create instances", "delete instances/web-0", "create instances"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_rollout_that_never_becomes_ready_is_replaced_by_the_next_template() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.deploy(&mk_deployment("web", 1)).await;
    env.until_condition("web-0", "Ready", "False", "PendingProgramming").await;
    env.change("web", |deployment| deployment.spec.template = mk_template("app:2")).await;
    env.provider();
    env.until_rolled_out("web", 1).await;
}

#[tokio::test(start_paused = true)]
async fn deleting_a_deployment_deletes_its_instances_and_copies() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    env.deploy(&mk_deployment("web", 2)).await;
    env.until_ready(&["web-0", "web-1"]).await;
    env.undeploy("web").await;
    env.until_empty().await;
    env.idle(LONG).await;
    env.until_empty().await;
}

#[tokio::test(start_paused = true)]
async fn a_recreated_deployment_waits_for_the_instances_of_its_predecessor() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.deploy(&mk_deployment("web", 1)).await;
    env.until_condition("web-0", "Ready", "False", "PendingProgramming").await;
    // The finalizer of a machine that stops slowly.
    env.at_cell()
        .change::<Instance>((NAMESPACE, "web-0"), |instance| {
            metadata::add_finalizer(&mut instance.metadata, "provider.example/machine");
        })
        .await;
    let old = env.instance("web-0").await.unwrap().metadata.uid;
    env.undeploy("web").await;
    eventually("the old instance being deleted", async || {
        env.instance("web-0").await.filter(|i| i.is_deleting())
    })
    .await;
    env.deploy(&mk_deployment("web", 1)).await;
    env.idle(LONG).await;
    assert_eq!(env.instance("web-0").await.unwrap().metadata.uid, old);

    env.at_cell()
        .change::<Instance>((NAMESPACE, "web-0"), |instance| {
            metadata::remove_finalizer(&mut instance.metadata, "provider.example/machine");
        })
        .await;
    env.provider();
    env.until_ready(&["web-0"]).await;
    assert_ne!(env.instance("web-0").await.unwrap().metadata.uid, old);
}

#[tokio::test(start_paused = true)]
async fn a_users_instance_with_a_needed_name_is_reported_and_left_unchanged() {
    let env = TestEnv::running(Setup::default()).await;
    let metadata =
        ObjectMeta { name: Some("web-0".into()), namespace: Some(NAMESPACE.into()), ..ObjectMeta::default() };
    let foreign = Instance { metadata, spec: mk_template("theirs:1").spec, status: None };
    let created = env.at_cell().create(&foreign).await.unwrap();
    env.deploy(&mk_deployment("web", 1)).await;
    eventually("a word about it", async || {
        env.events("web").await.contains(&"InstanceNotOurs".to_owned()).then_some(())
    })
    .await;
    env.idle(LONG).await;
    let existing = env.instance("web-0").await.unwrap();
    assert_eq!((existing.metadata.uid, existing.spec), (created.metadata.uid, created.spec));
    // When it is deleted, the deployment creates its own.
    env.at_cell().delete(&env.instance("web-0").await.unwrap(), Preconditions::Uid).await.unwrap();
    eventually("the instance of the deployment", async || {
        let instance = env.instance("web-0").await?;
        instance.label(labels::WORKLOAD_DEPLOYMENT_NAME).map(|_| ())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn removed_labels_are_restored() {
    let env = TestEnv::running(Setup::default()).await;
    env.deploy(&mk_deployment("web", 1)).await;
    env.until_condition("web-0", "Ready", "False", "PendingProgramming").await;
    env.at_cell().change::<Instance>((NAMESPACE, "web-0"), |instance| instance.metadata.labels = None).await;
    eventually("all labels", async || {
        let labels = env.instance("web-0").await?.metadata.labels?;
        polis_core::instances::LINKING_LABELS.iter().all(|label| labels.contains_key(*label)).then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_deployment_with_the_finalizer_of_another_implementation_is_finalized() {
    let env = TestEnv::running(Setup::default()).await;
    env.deploy(&mk_deployment("web", 2)).await;
    env.until_condition("web-0", "Ready", "False", "PendingProgramming").await;
    env.change("web", |deployment| {
        _ = metadata::add_finalizer(&mut deployment.metadata, finalizers::DEPLOYMENT)
    })
    .await;
    env.undeploy("web").await;
    env.until_empty().await;
    eventually("the deployment deleted", async || env.deployment("web").await.is_none().then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn suspending_and_resuming_a_deployment_reaches_its_instances() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    env.deploy(&mk_deployment("web", 1)).await;
    env.until_ready(&["web-0"]).await;
    let suspended = |value: &'static str| {
        move |deployment: &mut WorkloadDeployment| {
            deployment.metadata.annotations = Some(metadata::map([(annotations::SUSPENDED, value)]));
        }
    };
    env.change("web", suspended("true")).await;
    env.until_condition("web-0", "Ready", "False", "Suspended").await;
    env.change("web", suspended("false")).await;
    env.until_ready(&["web-0"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_cell_makes_no_requests() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    env.deploy(&mk_deployment("web", 3)).await;
    env.until_ready(&["web-0", "web-1", "web-2"]).await;
    env.stop_provider().await;
    env.idle(LONG).await;
    env.cell.clear();
    env.hub.clear();
    env.idle(LONG).await;
    assert_eq!((env.cell.log(), env.hub.log()), (vec![], vec![]));
    // Neither does a new process in an unchanged cell.
    env.stop().await;
    env.start();
    env.idle(LONG).await;
    assert_eq!((env.cell.log(), env.hub.log()), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_withdrawn_deployment_ends_all_instances_at_once_and_reports_when_they_are_gone() {
    let setup = Setup { instance_finalizers: &[finalizers::RUNTIME], ..Setup::default() };
    let mut env = TestEnv::running(setup).await;
    env.provider();
    env.deploy(&mk_deployment("web", 2)).await;
    env.until_ready(&["web-0", "web-1"]).await;

    let mark = metadata::map([(annotations::WITHDRAWN_AT, "2026-01-01T00:00:00Z")]);
    env.change("web", |deployment| {
        metadata::merge_annotations(&mut deployment.metadata, &mark, &[]);
    })
    .await;
    let withdrawn = async |status: &str, reason: &str| {
        eventually(&format!("Withdrawn is {status}"), async || {
            let status_now = env.deployment("web").await?.status?;
            let found = polis_testing::builders::condition(&status_now.conditions, "Withdrawn")?;
            (found == (status, reason)).then_some(status_now.replicas)
        })
        .await
    };
    assert_eq!(withdrawn("False", "InstancesEnding").await, 2);
    let instances = env.instances().await;
    assert!(instances.iter().all(ObjectExt::is_deleting), "both at once");

    // The processes have ended.
    for name in ["web-0", "web-1"] {
        let release = |instance: &mut Instance| {
            metadata::remove_finalizer(&mut instance.metadata, finalizers::RUNTIME);
        };
        env.at_cell().change((NAMESPACE, name), release).await;
    }
    assert_eq!(withdrawn("True", "InstancesEnded").await, 0);
    env.cell.clear();
    env.idle(LONG).await;
    assert_eq!(env.cell.log(), [""; 0], "nothing is created again");

    // A hub that was restored, or a deletion that was taken back: the deployment lives again.
    env.change("web", |deployment| deployment.metadata.annotations = None).await;
    for name in ["web-0", "web-1"] {
        eventually("the instance is back", async || env.at_cell().read::<Instance>((NAMESPACE, name)).await)
            .await;
        let release = |instance: &mut Instance| {
            metadata::remove_finalizer(&mut instance.metadata, finalizers::RUNTIME);
        };
        env.at_cell().change((NAMESPACE, name), release).await;
    }
    let status = env.deployment("web").await.unwrap().status.unwrap();
    assert_eq!(polis_testing::builders::condition(&status.conditions, "Withdrawn"), None);
}

#[tokio::test(start_paused = true)]
async fn an_older_spec_than_the_one_acted_on_changes_no_instance() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    let revise = |deployment: &mut WorkloadDeployment, revision: &str, image: &str| {
        let revision = metadata::map([(annotations::SOURCE_REVISION, revision)]);
        metadata::merge_annotations(&mut deployment.metadata, &revision, &[]);
        deployment.spec.template = mk_template(image);
    };
    let mut deployment = mk_deployment("web", 1);
    revise(&mut deployment, "uid.1", "app:1");
    env.deploy(&deployment).await;
    env.until_ready(&["web-0"]).await;
    env.change("web", |deployment| revise(deployment, "uid.2", "app:2")).await;
    let is_newer = async || {
        let instance = env.instance("web-0").await?;
        (instance.spec.runtime == mk_template("app:2").spec.runtime).then_some(instance)
    };
    eventually("the new template runs", is_newer).await;
    env.until_ready(&["web-0"]).await;
    let before = uids(&env.instances().await);

    // The hub was restored, and shows the first spec and more replicas.
    env.change("web", |deployment| {
        revise(deployment, "uid.1", "app:1");
        deployment.spec.scale_settings.min_replicas = 3;
    })
    .await;
    env.at_cell().eventually_event("web", "SpecOutdated").await;
    env.idle(LONG).await;
    assert_eq!(uids(&env.instances().await), before);

    env.change("web", |deployment| revise(deployment, "uid.3", "app:2")).await;
    env.until_ready(&["web-0", "web-1", "web-2"]).await;
    assert_eq!(uids(&env.instances().await)[0], before[0]);
}

/// Status and reason of a condition of a deployment.
fn rollout(deployment: &WorkloadDeployment, kind: &str) -> Option<(String, String)> {
    let status = deployment.status.as_ref()?;
    let found = polis_core::conditions::find(&status.conditions, kind)?;
    Some((found.status.clone(), found.reason.clone()))
}

async fn until_rollout(env: &TestEnv, kind: &str, status: &str, reason: &str) -> WorkloadDeployment {
    let expected = Some((status.to_owned(), reason.to_owned()));
    eventually(&format!("{kind}={status}/{reason}"), async || {
        env.deployment("web").await.filter(|deployment| rollout(deployment, kind) == expected)
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn a_broken_rollout_is_stalled_at_once_although_an_instance_serves() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    env.deploy(&mk_deployment("web", 2)).await;
    until_rollout(&env, "Ready", "True", "RolloutComplete").await;
    env.change("web", |deployment| deployment.spec.template = mk_template("broken:2")).await;
    let stuck = until_rollout(&env, "Stalled", "True", "ImageUnavailable").await;
    let pair = |status: &str, reason: &str| Some((status.to_owned(), reason.to_owned()));
    assert_eq!(rollout(&stuck, "Available"), pair("True", "StableInstanceFound"));
    assert_eq!(rollout(&stuck, "Progressing"), pair("False", "ImageUnavailable"));
    assert_eq!(rollout(&stuck, "Degraded"), pair("True", "ImageUnavailable"));
    assert_eq!(rollout(&stuck, "Reconciling"), None);

    env.change("web", |deployment| deployment.spec.template = mk_template("app:3")).await;
    let repaired = until_rollout(&env, "Ready", "True", "RolloutComplete").await;
    assert_eq!((rollout(&repaired, "Stalled"), rollout(&repaired, "Reconciling")), (None, None));
    assert_eq!(rollout(&repaired, "Degraded"), pair("False", "AsExpected"));
}

#[tokio::test(start_paused = true)]
async fn a_rollout_without_progress_is_stuck_after_its_deadline_with_one_write() {
    let env = TestEnv::running(Setup::default()).await;
    env.deploy(&mk_deployment("web", 1)).await;
    until_rollout(&env, "Reconciling", "True", "RolloutInProgress").await;
    env.idle(Duration::from_secs(60)).await;
    let before = env.cell.log().len();
    until_rollout(&env, "Stalled", "True", "ProgressDeadlineExceeded").await;
    env.idle(LONG).await;
    let writes = &env.cell.log()[before..];
    assert_eq!(writes, ["update workloaddeployments/web/status"]);
}
