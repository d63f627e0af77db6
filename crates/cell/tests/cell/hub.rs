//! Write-back: the hub has a copy of every instance, and the cell works without the hub.

use std::time::Duration;

use polis_api::compute::{Instance, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::{ObjectExt, finalizers, labels};
use polis_core::{metadata, owner};
use polis_engine::Preconditions;
use polis_testing::builders::mk_template;
use polis_testing::{HUB, PlaneExt as _, RequestFault, RequestVerb, eventually};

use crate::env::{CELL, LONG, NAMESPACE, Setup, TestEnv, mk_deployment, mk_namespace_labelled, names, uids};

#[tokio::test(start_paused = true)]
async fn a_copy_is_owned_by_the_hubs_deployment_and_labelled_with_its_origin() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    env.deploy(&mk_deployment("web", 1)).await;
    env.until_ready(&["web-0"]).await;
    let (copy, instance) = (env.copy("web-0").await.unwrap(), env.instance("web-0").await.unwrap());
    let hub_owner: WorkloadDeployment =
        env.at_hub().uncached().get((NAMESPACE, "web")).await.unwrap().unwrap();
    assert!(owner::is_controlled_by(&copy.metadata, hub_owner.uid()));
    let label = |key| copy.label(key);
    assert_eq!(label(labels::UPSTREAM_CLUSTER_NAME), Some("cluster-acme"));
    assert_eq!(label(labels::UPSTREAM_NAMESPACE), Some("shop"));
    assert_eq!(label(labels::SOURCE_CLUSTER), Some(CELL));
    assert_eq!(copy.spec, instance.spec);
    assert_eq!(copy.metadata.finalizers, None);
}

#[tokio::test(start_paused = true)]
async fn a_gated_instance_is_copied() {
    let env = TestEnv::running(Setup { networks: true, ..Setup::default() }).await;
    env.deploy(&mk_deployment("web", 1)).await;
    let copy = eventually("the copy of a gated instance", async || {
        env.copy("web-0").await.filter(|copy| copy.status.is_some())
    })
    .await;
    assert!(polis_core::gates::has(&copy, "Network"));
}

#[tokio::test(start_paused = true)]
async fn one_instance_needs_few_requests_to_the_hub() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    env.deploy(&mk_deployment("web", 1)).await;
    env.until_ready(&["web-0"]).await;
    let log = env.hub.log();
    assert_eq!(
        log[..4],
        [
            "get workloaddeployments/web",
            "get namespaces/ns-1",
            "create instances",
            "update instances/web-0/status"
        ]
    );
    assert!(log.len() <= 9, "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn a_created_copy_is_not_read_before_the_watch_delivers_it() {
    let mut env = TestEnv::new(Setup::default()).await;
    env.hub.delay_watches("instances", Duration::from_secs(2));
    env.start();
    env.deploy(&mk_deployment("web", 1)).await;
    eventually("the copy exists", async || env.copy("web-0").await).await;
    // The instance becomes ready before the watch delivers its copy.
    env.provider();
    env.until_ready(&["web-0"]).await;
    eventually("the copy is ready", async || env.copy("web-0").await.filter(polis_core::instances::is_ready))
        .await;
    assert_eq!(env.hub.logged("create instances"), ["create instances"]);
    assert_eq!(env.hub.logged("get workloaddeployments").len(), 1, "{:?}", env.hub.log());
    assert_eq!(env.hub.logged("get instances").len(), 0, "{:?}", env.hub.log());
}

#[tokio::test(start_paused = true)]
async fn a_cell_works_while_the_hub_is_unreachable_and_updates_it_afterwards() {
    for outage in [RequestFault::Refuse, RequestFault::Hang] {
        let mut env = TestEnv::running(Setup::default()).await;
        env.provider();
        env.deploy(&mk_deployment("web", 1)).await;
        env.until_ready(&["web-0"]).await;
        let first = uids(&env.instances().await);

        env.hub.fail(outage);
        env.deploy(&mk_deployment("api", 2)).await;
        for name in ["api-0", "api-1"] {
            env.until_condition(name, "Ready", "True", "Running").await;
        }
        env.idle(LONG).await;
        assert_eq!(names(&env.copies().await), ["web-0"], "{outage:?}");

        env.hub.restore();
        env.until_ready(&["web-0", "api-0", "api-1"]).await;
        assert_eq!(uids(&[env.instance("web-0").await.unwrap()]), first);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cell_starts_while_the_hub_is_unreachable() {
    let mut env = TestEnv::new(Setup::default()).await;
    env.hub.fail(RequestFault::Refuse);
    env.start();
    env.provider();
    env.deploy(&mk_deployment("web", 1)).await;
    env.until_condition("web-0", "Ready", "True", "Running").await;
    env.hub.restore();
    env.until_ready(&["web-0"]).await;
}

#[tokio::test(start_paused = true)]
async fn losing_and_regaining_the_hub_changes_nothing_in_the_cell() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    env.deploy(&mk_deployment("web", 3)).await;
    env.until_ready(&["web-0", "web-1", "web-2"]).await;
    env.idle(LONG).await;
    let before = env.instances().await;
    env.cell.clear();
    env.hub.clear();
    env.hub.fail(RequestFault::Refuse);
    env.idle(LONG).await;
    env.hub.restore();
    env.idle(LONG).await;
    assert_eq!(env.instances().await, before);
    // Each attempt to watch again first asks whether the server was restored from a backup.
    let hub: Vec<_> = env.hub.log().into_iter().filter(|request| request != "list instances").collect();
    assert_eq!((env.cell.log(), hub), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_instance_waits_until_its_hub_copy_is_deleted() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    env.deploy(&mk_deployment("web", 2)).await;
    env.until_ready(&["web-0", "web-1"]).await;
    env.hub.fail(RequestFault::Refuse);
    env.change("web", |deployment| deployment.spec.scale_settings.min_replicas = 1).await;
    eventually("an event", async || {
        env.events("web-1").await.contains(&"HubUnreachable".to_owned()).then_some(())
    })
    .await;
    env.idle(LONG).await;
    let held = env.instance("web-1").await.unwrap();
    assert!(held.has_finalizer(finalizers::INSTANCE));
    env.hub.restore();
    eventually("instance and copy deleted", async || {
        (env.instance("web-1").await.is_none() && env.copy("web-1").await.is_none()).then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_the_hub_does_not_know_is_reported_after_a_minute_and_keeps_running() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    env.at_cell().create(&mk_deployment("web", 1)).await.unwrap();
    eventually("the instance is ready in the cell", async || {
        env.instance("web-0").await.filter(polis_core::instances::is_ready)
    })
    .await;
    let reported =
        |env: &TestEnv| env.metrics().contains("compute_instances_unresolved{what=\"deployment\"} 1");
    env.idle(Duration::from_secs(50)).await;
    assert!(!reported(&env), "the deployment may just be on its way");
    eventually("it is reported", async || reported(&env).then_some(())).await;
    env.at_cell().eventually_event("web-0", "UnknownOnHub").await;
    assert!(env.instance("web-0").await.is_some());
    env.at_hub().create(&mk_deployment("web", 1)).await.unwrap();
    eventually("it is known again", async || (!reported(&env)).then_some(())).await;
    assert!(env.copy("web-0").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn instances_of_a_deployment_deleted_on_the_hub_are_not_copied_again() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    env.deploy(&mk_deployment("web", 2)).await;
    env.until_ready(&["web-0", "web-1"]).await;
    let hub_owner: WorkloadDeployment =
        env.at_hub().uncached().get((NAMESPACE, "web")).await.unwrap().unwrap();
    env.at_hub().delete(&hub_owner, Preconditions::Uid).await.unwrap();
    eventually("copies deleted by the garbage collector", async || {
        env.copies().await.is_empty().then_some(())
    })
    .await;
    env.hub.clear();
    // A change of an instance makes the controller read the hub, and it finds nothing to write.
    env.at_cell()
        .change::<Instance>((NAMESPACE, "web-0"), |instance| {
            instance.metadata.annotations = Some(metadata::map([("touched", "yes")]));
        })
        .await;
    eventually("a read of the hub", async || (!env.hub.logged("get").is_empty()).then_some(())).await;
    env.idle(LONG).await;
    assert!(env.copies().await.is_empty());
    assert!(env.hub.log().iter().all(|entry| entry.starts_with("get")), "{:?}", env.hub.log());
    // When the hub has the deployment again, its instances are copied again.
    env.at_hub().create(&mk_deployment("web", 2)).await.unwrap();
    env.until_ready(&["web-0", "web-1"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_copy_is_created_again() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    env.deploy(&mk_deployment("web", 1)).await;
    env.until_ready(&["web-0"]).await;
    let copy = env.copy("web-0").await.unwrap();
    env.at_hub().delete(&copy, Preconditions::Uid).await.unwrap();
    eventually("another copy", async || {
        env.copy("web-0").await.filter(|recreated| recreated.metadata.uid != copy.metadata.uid)
    })
    .await;
    env.until_ready(&["web-0"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_changed_copy_is_corrected_and_foreign_labels_stay() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    env.deploy(&mk_deployment("web", 1)).await;
    env.until_ready(&["web-0"]).await;
    env.at_hub()
        .change::<Instance>((NAMESPACE, "web-0"), |copy| {
            let labels = copy.metadata.labels.get_or_insert_default();
            labels.insert(labels::CITY_CODE.into(), "ord".into());
            labels.insert("karmada.io/theirs".into(), "1".into());
        })
        .await;
    let copy = eventually("the corrected city label", async || {
        let copy = env.copy("web-0").await?;
        (copy.label(labels::CITY_CODE) == Some("dfw")).then_some(copy)
    })
    .await;
    assert_eq!(copy.label("karmada.io/theirs"), Some("1"));
}

async fn relabel_hub(env: &TestEnv, pairs: &[(&str, &str)]) {
    let hub = env.at_hub();
    let current: Namespace = hub.uncached().get(NAMESPACE).await.unwrap().unwrap();
    let mut desired = current.clone();
    desired.metadata.labels = mk_namespace_labelled(pairs).metadata.labels;
    hub.update(&current, &desired).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_instance_of_unknown_origin_is_not_copied_and_reported_once() {
    let mut env = TestEnv::running(Setup::default()).await;
    relabel_hub(&env, &[(labels::UPSTREAM_NAMESPACE, "shop")]).await;
    env.provider();
    env.deploy(&mk_deployment("web", 1)).await;
    env.until_condition("web-0", "Ready", "True", "Running").await;
    eventually("an event", async || {
        env.events("web-0").await.contains(&"NotShownOnHub".to_owned()).then_some(())
    })
    .await;
    env.idle(LONG).await;
    assert!(env.copies().await.is_empty());
    assert!(env.metrics().contains("compute_instances_unresolved{what=\"origin\"} 1"));
    assert_eq!(env.events("web-0").await.iter().filter(|reason| *reason == "NotShownOnHub").count(), 1);
    assert!(env.hub.log().iter().all(|entry| entry.starts_with("get")), "{:?}", env.hub.log());
    // With the right labels it is copied, and the gauge is zero again.
    relabel_hub(
        &env,
        &[(labels::UPSTREAM_CLUSTER_NAME, "cluster-acme"), (labels::UPSTREAM_NAMESPACE, "shop")],
    )
    .await;
    env.until_ready(&["web-0"]).await;
    assert!(env.metrics().contains("compute_instances_unresolved{what=\"origin\"} 0"));
}

#[tokio::test(start_paused = true)]
async fn an_instance_without_labels_is_reported_and_can_be_deleted() {
    let env = TestEnv::running(Setup::default()).await;
    let metadata =
        ObjectMeta { name: Some("lone".into()), namespace: Some(NAMESPACE.into()), ..ObjectMeta::default() };
    let lone = Instance { metadata, spec: mk_template("app:1").spec, status: None };
    env.at_cell().create(&lone).await.unwrap();
    eventually("an event", async || {
        env.events("lone").await.contains(&"NotShownOnHub".to_owned()).then_some(())
    })
    .await;
    assert!(env.copies().await.is_empty());
    let lone = env.instance("lone").await.unwrap();
    env.at_cell().delete(&lone, Preconditions::Uid).await.unwrap();
    eventually("the instance is deleted", async || env.instance("lone").await.is_none().then_some(())).await;
    assert!(env.metrics().contains("compute_instances_unresolved{what=\"origin\"} 0"));
}

fn mk_copy(hub_owner: &WorkloadDeployment, cell: Option<&str>) -> Instance {
    let metadata = ObjectMeta {
        name: Some("web-0".into()),
        namespace: Some(NAMESPACE.into()),
        labels: cell.map(|cell| metadata::map([(labels::SOURCE_CLUSTER, cell)])),
        owner_references: Some(vec![owner::controller_reference(hub_owner)]),
        ..ObjectMeta::default()
    };
    Instance { metadata, spec: mk_template("theirs:1").spec, status: None }
}

#[tokio::test(start_paused = true)]
async fn an_instance_of_another_owner_on_the_hub_is_left_unchanged() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    let other = env.at_hub().create(&mk_deployment("other", 1)).await.unwrap();
    let theirs = env.at_hub().create(&mk_copy(&other, None)).await.unwrap();
    env.deploy(&mk_deployment("web", 1)).await;
    eventually("an event", async || {
        env.events("web-0").await.contains(&"NotShownOnHub".to_owned()).then_some(())
    })
    .await;
    env.idle(LONG).await;
    assert_eq!(env.copy("web-0").await.unwrap(), theirs);
    // Also when the cell's own instance is deleted.
    env.undeploy("web").await;
    eventually("own instance deleted", async || env.instances().await.is_empty().then_some(())).await;
    assert_eq!(env.copy("web-0").await.unwrap(), theirs);
}

#[tokio::test(start_paused = true)]
async fn an_instance_without_an_owner_on_the_hub_is_left_unchanged_for_any_cell_label() {
    for cell in [None, Some(CELL)] {
        let mut env = TestEnv::running(Setup::default()).await;
        env.provider();
        let mut ownerless = mk_copy(&mk_deployment("web", 1), cell);
        ownerless.metadata.owner_references = None;
        let ownerless = env.at_hub().create(&ownerless).await.unwrap();
        env.deploy(&mk_deployment("web", 1)).await;
        eventually("an event", async || {
            env.events("web-0").await.contains(&"NotShownOnHub".to_owned()).then_some(())
        })
        .await;
        env.until_condition("web-0", "Ready", "True", "Running").await;
        env.idle(LONG).await;
        assert_eq!(env.copy("web-0").await.unwrap(), ownerless, "{cell:?}");
        assert!(env.metrics().contains("compute_instances_unresolved{what=\"copy\"} 1"));
        // When it is deleted, the cell's own instance is copied.
        env.at_hub().delete(&ownerless, Preconditions::Uid).await.unwrap();
        env.until_ready(&["web-0"]).await;
        assert!(env.metrics().contains("compute_instances_unresolved{what=\"copy\"} 0"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_moves_between_cells_takes_over_its_copies_when_the_hub_names_the_new_cell() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    let hub_owner = env.at_hub().create(&mk_deployment("web", 1)).await.unwrap();
    env.at_hub().create(&mk_copy(&hub_owner, Some("dfw-2"))).await.unwrap();
    env.at_cell().create(&mk_deployment("web", 1)).await.unwrap();
    env.until_condition("web-0", "Ready", "True", "Running").await;
    env.idle(LONG).await;
    let source = async || env.copy("web-0").await?.label(labels::SOURCE_CLUSTER).map(str::to_owned);
    assert_eq!(source().await.as_deref(), Some("dfw-2"));

    env.at_hub()
        .change_status::<WorkloadDeployment>((NAMESPACE, "web"), |deployment| {
            deployment.status.get_or_insert_default().cell = Some(CELL.into());
        })
        .await;
    env.until_ready(&["web-0"]).await;
    assert_eq!(source().await.as_deref(), Some(CELL));
}

#[tokio::test(start_paused = true)]
async fn a_cell_reads_only_the_hub_namespaces_of_its_instances() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    env.idle(LONG).await;
    assert_eq!(env.hub.log(), [""; 0], "without an instance the cell reads nothing");
    env.deploy(&mk_deployment("web", 2)).await;
    env.until_ready(&["web-0", "web-1"]).await;
    let requests = env.cluster.proxy.requests().all();
    let of_hub: Vec<_> = requests.iter().filter(|request| request.plane == HUB).collect();
    let watches = of_hub.iter().filter(|request| request.verb == RequestVerb::Watch).count();
    assert_eq!(watches, 1, "{of_hub:?}");
    let elsewhere: Vec<_> = of_hub
        .iter()
        .filter(|request| {
            !request.resource.starts_with('/')
                && request.namespace.as_deref() != Some(NAMESPACE)
                && !request.is_heartbeat()
        })
        .collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_instance_waits_for_its_forbidden_copy_until_the_hub_has_withdrawn_the_rights() {
    let mut env = TestEnv::running(Setup::default()).await;
    env.provider();
    let presence = labels::city_presence("dfw");
    let tenant = [(labels::UPSTREAM_CLUSTER_NAME, "cluster-acme"), (labels::UPSTREAM_NAMESPACE, "shop")];
    relabel_hub(&env, &[tenant[0], tenant[1], (&presence, "true")]).await;
    env.deploy(&mk_deployment("web", 2)).await;
    env.until_ready(&["web-0", "web-1"]).await;
    env.hub.inject(RequestFault::Status(http::StatusCode::FORBIDDEN), |request| {
        request.resource.starts_with("instances")
    });
    env.change("web", |deployment| deployment.spec.scale_settings.min_replicas = 1).await;
    eventually("an event", async || {
        env.events("web-1").await.contains(&"HubRefused".to_owned()).then_some(())
    })
    .await;
    env.idle(LONG).await;
    assert!(env.instance("web-1").await.unwrap().has_finalizer(finalizers::INSTANCE));
    // The presence label goes when the hub has no copy of the city left.
    relabel_hub(&env, &tenant).await;
    eventually("the instance is gone", async || env.instance("web-1").await.is_none().then_some(())).await;
}
