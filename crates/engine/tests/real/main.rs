//! Tests of the engine against a real kube-apiserver: restarts, expired resource versions, broken and slow
//! connections, the stream limit, rotated tokens, new kinds.

mod proxy;

use std::collections::BTreeMap;
use std::time::Duration;

use polis_api::k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, ServiceAccount};
use polis_api::k8s_openapi::api::events::v1::Event;
use polis_api::k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleRef, Subject};
use polis_api::k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use polis_api::kube::{Api, Config, Resource, config::KubeConfigOptions, config::Kubeconfig};
use polis_engine::{
    Clock, Engine, FixedPlanes, Kind, LeaderElection, ListOptions, OperationResult, Plane, PlaneSet,
    Preconditions, Random, ResourceScope, Watch,
};
use polis_testbed::{Options, TestCluster};
use polis_testing::RunningEngine;
use serde_json::json;

use proxy::{Mode, Proxy};

const PLANE: &str = "plane";
const TIMEOUT: Duration = Duration::from_secs(60);

async fn start(engine: Engine) -> RunningEngine {
    let running = RunningEngine::spawn(engine);
    running.ready().await;
    running
}

async fn eventually(expected: &str, condition: impl Fn() -> bool) {
    polis_testing::eventually(expected, async || condition().then_some(())).await;
}

async fn shared() -> &'static TestCluster {
    polis_testbed::suite::shared_cluster(Options::single_plane()).await.unwrap()
}

/// The administrator's configuration of the test cluster, through the proxy if one is given.
async fn config(cluster: &TestCluster, proxy: Option<&Proxy>) -> Config {
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig(PLANE).unwrap()).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    if let Some(proxy) = proxy {
        config.cluster_url = proxy.url().parse().unwrap();
    }
    config
}

async fn plane(cluster: &TestCluster) -> Plane {
    Plane::from_kubeconfig(PLANE, &cluster.kubeconfig(PLANE).unwrap(), None).await.unwrap()
}

async fn mk_namespace(plane: &Plane, name: &str) {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.to_owned());
    plane.create(&namespace).await.unwrap();
}

fn mk_map(namespace: &str, name: &str, value: &str) -> ConfigMap {
    let mut map =
        ConfigMap { data: Some(BTreeMap::from([("value".into(), value.into())])), ..ConfigMap::default() };
    map.metadata.namespace = Some(namespace.to_owned());
    map.metadata.name = Some(name.to_owned());
    map
}

/// Creates or updates a ConfigMap.
async fn put(plane: &Plane, namespace: &str, name: &str, value: &str) {
    let current = plane.uncached().get::<ConfigMap>((namespace, name)).await.unwrap();
    plane.create_or_update(current.as_ref(), &mk_map(namespace, name, value)).await.unwrap();
}

async fn remove(plane: &Plane, namespace: &str, name: &str) {
    let current = plane.uncached().get::<ConfigMap>((namespace, name)).await.unwrap().unwrap();
    assert!(plane.delete(&current, Preconditions::Uid).await.unwrap());
}

fn describe(maps: &[ConfigMap]) -> Vec<String> {
    let mut lines: Vec<_> = maps
        .iter()
        .map(|map| format!("{:?} {:?} {:?}", map.metadata.name, map.metadata.resource_version, map.data))
        .collect();
    lines.sort();
    lines
}

/// Waits until the cache of a namespace equals the server.
async fn agreed(watched: &Plane, server: &Plane, namespace: &str) {
    let expected =
        describe(&server.uncached().list::<ConfigMap>(&ListOptions::within(namespace)).await.unwrap());
    eventually("the cache equals the server", || {
        describe(&watched.list_within(namespace).unwrap()) == expected
    })
    .await;
}

fn watch_maps(plane: Plane, namespace: &'static str) -> (Engine, Plane) {
    let mut engine = Engine::new();
    let watched = engine.plane("plane", plane, [Watch::of::<ConfigMap>().within(namespace)]);
    (engine, watched)
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_succeed_and_appear_in_the_cache() {
    let cluster = shared().await;
    let plane = plane(cluster).await;
    mk_namespace(&plane, "writes").await;
    let (engine, watched) = watch_maps(plane.clone(), "writes");
    let _running = start(engine).await;
    put(&plane, "writes", "a", "one").await;
    let first = plane.uncached().get::<ConfigMap>(("writes", "a")).await.unwrap().unwrap();
    assert_eq!(
        plane.create_or_update(Some(&first), &mk_map("writes", "a", "one")).await.unwrap(),
        OperationResult::Unchanged
    );
    put(&plane, "writes", "a", "two").await;
    assert!(plane.update(&first, &mk_map("writes", "a", "stale")).await.unwrap_err().is_conflict());
    assert!(plane.create(&mk_map("writes", "a", "again")).await.unwrap_err().is_already_exists());
    assert!(plane.delete(&first, Preconditions::UidAndResourceVersion).await.unwrap_err().is_conflict());

    let current = plane.uncached().get::<ConfigMap>(("writes", "a")).await.unwrap().unwrap();
    let with_finalizer =
        plane.add_finalizer(&current, "example.com/hold").await.unwrap().into_object().unwrap();
    assert!(
        plane.remove_finalizer(&current, "example.com/other").await.unwrap() == OperationResult::Unchanged
    );
    assert!(plane.delete(&with_finalizer, Preconditions::Uid).await.unwrap());
    let deleting = plane.uncached().get::<ConfigMap>(("writes", "a")).await.unwrap().unwrap();
    assert!(deleting.metadata.deletion_timestamp.is_some());
    plane.remove_finalizer(&deleting, "example.com/hold").await.unwrap();
    assert!(plane.uncached().get::<ConfigMap>(("writes", "a")).await.unwrap().is_none());
    // A new object has the name: a delete with the old UID fails.
    put(&plane, "writes", "a", "second").await;
    assert!(plane.delete(&with_finalizer, Preconditions::Uid).await.unwrap_err().is_conflict());

    let applied = plane.apply(&mk_map("writes", "b", "applied"), "engine-tests", true).await.unwrap();
    assert_eq!(applied.data.unwrap()["value"], "applied");
    for number in 0..700 {
        plane.create(&mk_map("writes", &format!("m{number}"), "x")).await.unwrap();
    }
    assert_eq!(plane.uncached().list::<ConfigMap>(&ListOptions::within("writes")).await.unwrap().len(), 702);
    agreed(&watched, &plane, "writes").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_update_changes_only_the_status() {
    let cluster = shared().await;
    let plane = plane(cluster).await;
    mk_namespace(&plane, "status").await;
    let current = plane.uncached().get::<Namespace>("status").await.unwrap().unwrap();
    let mut desired = current.clone();
    let condition = json!({"type": "Odd", "status": "True", "reason": "Test", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    desired.status.get_or_insert_default().conditions =
        Some(vec![serde_json::from_value(condition).unwrap()]);
    desired.metadata.labels.get_or_insert_default().insert("must".into(), "stay out".into());
    let written = plane.update_status(&current, &desired).await.unwrap().into_object().unwrap();
    assert!(!written.meta().labels.clone().unwrap_or_default().contains_key("must"));
    assert_eq!(written.status.unwrap().conditions.unwrap()[0].type_, "Odd");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_change_is_lost_on_broken_and_slow_connections() {
    let cluster = shared().await;
    let direct = plane(cluster).await;
    mk_namespace(&direct, "lines").await;
    let proxy = Proxy::start(&cluster.plane(PLANE).unwrap().server).await;
    let (engine, watched) =
        watch_maps(Plane::from_kube_config("main", &config(cluster, Some(&proxy)).await).unwrap(), "lines");
    for name in ["stays", "goes", "changes"] {
        put(&direct, "lines", name, "old").await;
    }
    let _running = start(engine).await;
    agreed(&watched, &direct, "lines").await;
    for round in 0..3 {
        proxy.set(Mode::Closed);
        put(&direct, "lines", "changes", &format!("round {round}")).await;
        put(&direct, "lines", &format!("new{round}"), "x").await;
        if round == 1 {
            remove(&direct, "lines", "goes").await;
        }
        proxy.set(Mode::Open);
        agreed(&watched, &direct, "lines").await;
    }
    proxy.set(Mode::Slow);
    for number in 0..50 {
        put(&direct, "lines", &format!("slow{number}"), &"x".repeat(2000)).await;
    }
    agreed(&watched, &direct, "lines").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_deletion_is_lost_when_the_resource_version_expires_in_a_restart() {
    let cluster = Box::pin(TestCluster::single_plane()).await.unwrap();
    let direct = plane(&cluster).await;
    mk_namespace(&direct, "restart").await;
    for name in ["stays", "goes", "changes"] {
        put(&direct, "restart", name, "old").await;
    }
    let proxy = Proxy::start(&cluster.plane(PLANE).unwrap().server).await;
    let (engine, watched) = watch_maps(
        Plane::from_kube_config("main", &config(&cluster, Some(&proxy)).await).unwrap(),
        "restart",
    );
    let running = start(engine).await;
    agreed(&watched, &direct, "restart").await;

    // While the engine is disconnected: a deletion, a change, and a restart that empties the server's watch
    // cache.
    proxy.set(Mode::Closed);
    remove(&direct, "restart", "goes").await;
    put(&direct, "restart", "changes", "new").await;
    let apiserver = cluster.plane(PLANE).unwrap().apiserver();
    cluster.restart(&apiserver).await.unwrap();
    let direct = plane(&cluster).await;
    put(&direct, "restart", "after", "new").await;
    proxy.set(Mode::Open);
    agreed(&watched, &direct, "restart").await;
    let metrics = running.handle.metrics();
    assert!(metrics.contains("watch_restarts_total{kind=\"configmaps/v1\",reason=\"expired\"}"), "{metrics}");

    // A restart while the engine is connected.
    cluster.kill(&apiserver).unwrap();
    cluster.start(&apiserver).await.unwrap();
    let direct = plane(&cluster).await;
    remove(&direct, "restart", "stays").await;
    agreed(&watched, &direct, "restart").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_and_sixty_watches_work_on_one_server() {
    let cluster = shared().await;
    let direct = plane(cluster).await;
    mk_namespace(&direct, "many").await;
    let proxy = Proxy::start(&cluster.plane(PLANE).unwrap().server).await;
    let root = Plane::from_kube_config("root", &config(cluster, Some(&proxy)).await).unwrap();
    let mut engine = Engine::new();
    let planes = (0..120).map(|number| root.with_path_prefix(format!("p{number}"), ""));
    let watches = [
        Watch::of::<ConfigMap>().within("many"),
        Watch::of::<Secret>().within("many"),
        Watch::of::<Namespace>(),
    ];
    let set: PlaneSet = engine.planes("planes", FixedPlanes::new(planes), watches);
    let _running = start(engine).await;
    assert!((5..=8).contains(&proxy.accepted()), "{} connections for 360 watches", proxy.accepted());
    put(&direct, "many", "a", "x").await;
    mk_namespace(&direct, "many-too").await;
    eventually("every plane has cached both objects", || {
        let has_both = |plane: &Plane| {
            plane.get::<ConfigMap>(("many", "a")).unwrap().is_some()
                && plane.get::<Namespace>("many-too").unwrap().is_some()
        };
        set.engaged().iter().filter(|plane| has_both(plane)).count() == 120
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_token_is_reloaded() {
    let cluster = shared().await;
    let direct = plane(cluster).await;
    mk_namespace(&direct, "tokens").await;
    let binding = ClusterRoleBinding {
        metadata: serde_json::from_value(json!({"name": "engine-tests"})).unwrap(),
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".into(),
            kind: "ClusterRole".into(),
            name: "cluster-admin".into(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".into(),
            name: "robot".into(),
            namespace: Some("tokens".into()),
            ..Subject::default()
        }]),
    };
    direct.create(&binding).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    // A token is invalid after its service account is deleted, even if a new one has the same name.
    let rotate = async || {
        let accounts: Api<ServiceAccount> = Api::namespaced(direct.kube_client(), "tokens");
        if let Some(account) = direct.uncached().get::<ServiceAccount>(("tokens", "robot")).await.unwrap() {
            direct.delete(&account, Preconditions::Uid).await.unwrap();
        }
        let account: ServiceAccount =
            serde_json::from_value(json!({"metadata": {"namespace": "tokens", "name": "robot"}})).unwrap();
        direct.create(&account).await.unwrap();
        let request = TokenRequest { spec: TokenRequestSpec::default(), ..TokenRequest::default() };
        let token = accounts.create_token_request("robot", &Default::default(), &request).await.unwrap();
        std::fs::write(&file, token.status.unwrap().token).unwrap();
    };
    rotate().await;
    let mut config = config(cluster, None).await;
    config.auth_info = Default::default();
    config.auth_info.token_file = Some(file.display().to_string());
    let robot = Plane::from_kube_config("robot", &config).unwrap();
    let (engine, watched) = watch_maps(robot.clone(), "tokens");
    let _running = start(engine).await;
    put(&robot, "tokens", "a", "with the first").await;
    rotate().await;
    // The server caches a valid token for about ten seconds. Then it rejects the old one, and the engine
    // reads the file.
    let until = tokio::time::Instant::now() + Duration::from_secs(15);
    while tokio::time::Instant::now() < until {
        put(&robot, "tokens", "a", &format!("{:?}", tokio::time::Instant::now())).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    agreed(&watched, &direct, "tokens").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_is_watched_when_its_definition_exists() {
    let cluster = shared().await;
    let plane = plane(cluster).await;
    let kind = Kind {
        group: "engine.test".into(),
        version: "v1".into(),
        plural: "gadgets".into(),
        kind: "Gadget".into(),
        scope: ResourceScope::Cluster,
    };
    let mut engine = Engine::new();
    let watches = [Watch::kind(kind.clone()), Watch::of::<CustomResourceDefinition>()];
    let watched = engine.plane("plane", plane.clone(), watches);
    let _running = start(engine).await;
    assert_eq!(watched.list_values(&kind).unwrap(), [json!(null); 0]);
    let definition: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {"name": "gadgets.engine.test"},
        "spec": {"group": "engine.test", "scope": "Cluster", "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    }))
    .unwrap();
    let start = std::time::Instant::now();
    plane.create(&definition).await.unwrap();
    let client = plane.kube_client();
    let gadget = serde_json::to_vec(
        &json!({"apiVersion": "engine.test/v1", "kind": "Gadget", "metadata": {"name": "g"}, "size": 3}),
    )
    .unwrap();
    let create = || {
        http::Request::post("/apis/engine.test/v1/gadgets")
            .header("content-type", "application/json")
            .body(gadget.clone())
            .unwrap()
    };
    let mut created = client.request_text(create()).await;
    while created.is_err() && start.elapsed() < TIMEOUT {
        tokio::time::sleep(Duration::from_millis(100)).await;
        created = client.request_text(create()).await;
    }
    eventually("the object is cached", || watched.list_values(&kind).unwrap().len() == 1).await;
    let cached = &watched.list_values(&kind).unwrap()[0];
    assert_eq!((&cached["size"], &cached["kind"]), (&json!(3), &json!("Gadget")));
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_and_events_are_accepted() {
    let cluster = shared().await;
    let plane = plane(cluster).await;
    mk_namespace(&plane, "election").await;
    let campaign = |name: &str| {
        let election =
            LeaderElection::new(plane.clone(), "election", "leader", name).lease(Duration::from_secs(6));
        election.campaign(Clock::system(), &Random::from_entropy())
    };
    let (first, mut leads) = campaign("first");
    let token = leads.acquired().await;
    let (second, mut follows) = campaign("second");
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!((leads.fencing_token(), follows.fencing_token()), (Some(token), None));
    first.resign().await;
    let next = tokio::time::timeout(Duration::from_secs(5), follows.acquired()).await.unwrap();
    assert!(next > token);
    second.resign().await;

    put(&plane, "election", "a", "x").await;
    let about = plane.uncached().get::<ConfigMap>(("election", "a")).await.unwrap().unwrap();
    let recorder = Engine::new().recorder("tests");
    for _ in 0..3 {
        recorder.warn(&plane, &about, "Odd", "Look", &"long ".repeat(1000));
    }
    drop(recorder); // dropping the last recorder writes the open series
    let wait = async {
        loop {
            let events = plane.uncached().list::<Event>(&ListOptions::within("election")).await.unwrap();
            if events.len() == 1 && events[0].series.as_ref().is_some_and(|series| series.count == 3) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, wait).await.expect("one event with a count of three");
}
