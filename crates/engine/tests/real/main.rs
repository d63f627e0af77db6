//! The engine against a real kube-apiserver: restarts, forgotten history, broken and slow connections, the stream limit, tokens
//! that are rotated, kinds that appear.

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
    Clock, Election, Engine, Exactly, Fixed, Kind, Plane, PlaneSet, Query, Random, Scope, Tone, Watch,
    Written,
};
use polis_testbed::{Bed, Options};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use proxy::{Mode, Proxy};

const PLANE: &str = "plane";
const SOON: Duration = Duration::from_secs(60);

/// An engine at work, stopped when dropped.
struct Running(CancellationToken, polis_engine::Handle);

impl Running {
    async fn start(engine: Engine) -> Self {
        let (stop, handle) = (CancellationToken::new(), engine.handle());
        tokio::spawn(engine.run(stop.clone().cancelled_owned()));
        eventually("every plane is engaged", || handle.is_ready()).await;
        Self(stop, handle)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(tokio::time::timeout(SOON, waiting).await.is_ok(), "not within {SOON:?}: {what}");
}

async fn shared() -> &'static Bed {
    polis_testbed::suite::bed(Options::single_plane()).await.unwrap()
}

/// The configuration of the bed's administrator, perhaps by way of a proxy.
async fn config(bed: &Bed, proxy: Option<&Proxy>) -> Config {
    let kubeconfig = Kubeconfig::read_from(bed.kubeconfig(PLANE).unwrap()).unwrap();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    if let Some(proxy) = proxy {
        config.cluster_url = proxy.url().parse().unwrap();
    }
    config
}

async fn plane(bed: &Bed) -> Plane {
    Plane::from_kubeconfig(PLANE, &bed.kubeconfig(PLANE).unwrap(), None).await.unwrap()
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

/// Writes a ConfigMap as a user would.
async fn put(plane: &Plane, namespace: &str, name: &str, value: &str) {
    let current = plane.live().get::<ConfigMap>((namespace, name)).await.unwrap();
    plane.create_or_update(current.as_ref(), &mk_map(namespace, name, value)).await.unwrap();
}

async fn remove(plane: &Plane, namespace: &str, name: &str) {
    let current = plane.live().get::<ConfigMap>((namespace, name)).await.unwrap().unwrap();
    assert!(plane.delete(&current, Exactly::Object).await.unwrap());
}

fn describe(maps: &[ConfigMap]) -> Vec<String> {
    let mut lines: Vec<_> = maps
        .iter()
        .map(|map| format!("{:?} {:?} {:?}", map.metadata.name, map.metadata.resource_version, map.data))
        .collect();
    lines.sort();
    lines
}

/// Waits until a cache has exactly what the server has in a namespace.
async fn agreed(watched: &Plane, server: &Plane, namespace: &str) {
    let there = describe(&server.live().list::<ConfigMap>(&Query::within(namespace)).await.unwrap());
    eventually("the cache equals the server", || describe(&watched.list_within(namespace).unwrap()) == there)
        .await;
}

fn watch_maps(plane: Plane, namespace: &'static str) -> (Engine, Plane) {
    let mut engine = Engine::new();
    let watched = engine.plane("plane", plane, [Watch::of::<ConfigMap>().within(namespace)]);
    (engine, watched)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_write_does_what_it_says_and_is_seen() {
    let bed = shared().await;
    let plane = plane(bed).await;
    mk_namespace(&plane, "writes").await;
    let (engine, watched) = watch_maps(plane.clone(), "writes");
    let _running = Running::start(engine).await;
    put(&plane, "writes", "a", "one").await;
    let first = plane.live().get::<ConfigMap>(("writes", "a")).await.unwrap().unwrap();
    assert_eq!(
        plane.create_or_update(Some(&first), &mk_map("writes", "a", "one")).await.unwrap(),
        Written::Unchanged
    );
    put(&plane, "writes", "a", "two").await;
    assert!(plane.update(&first, &mk_map("writes", "a", "stale")).await.unwrap_err().is_conflict());
    assert!(plane.create(&mk_map("writes", "a", "again")).await.unwrap_err().is_already_exists());
    assert!(plane.delete(&first, Exactly::State).await.unwrap_err().is_conflict());

    let current = plane.live().get::<ConfigMap>(("writes", "a")).await.unwrap().unwrap();
    let held = plane.add_finalizer(&current, "example.com/hold").await.unwrap().into_object().unwrap();
    assert!(plane.remove_finalizer(&current, "example.com/other").await.unwrap() == Written::Unchanged);
    assert!(plane.delete(&held, Exactly::Object).await.unwrap());
    let leaving = plane.live().get::<ConfigMap>(("writes", "a")).await.unwrap().unwrap();
    assert!(leaving.metadata.deletion_timestamp.is_some());
    plane.remove_finalizer(&leaving, "example.com/hold").await.unwrap();
    assert!(plane.live().get::<ConfigMap>(("writes", "a")).await.unwrap().is_none());
    // The name is taken again: the old object is not to be found by its UID any more.
    put(&plane, "writes", "a", "namesake").await;
    assert!(plane.delete(&held, Exactly::Object).await.unwrap_err().is_conflict());

    let applied = plane.apply(&mk_map("writes", "b", "applied"), "engine-tests", true).await.unwrap();
    assert_eq!(applied.data.unwrap()["value"], "applied");
    for number in 0..700 {
        plane.create(&mk_map("writes", &format!("m{number}"), "x")).await.unwrap();
    }
    assert_eq!(plane.live().list::<ConfigMap>(&Query::within("writes")).await.unwrap().len(), 702);
    agreed(&watched, &plane, "writes").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_goes_through_its_own_door() {
    let bed = shared().await;
    let plane = plane(bed).await;
    mk_namespace(&plane, "door").await;
    let current = plane.live().get::<Namespace>("door").await.unwrap().unwrap();
    let mut wanted = current.clone();
    let condition = json!({"type": "Odd", "status": "True", "reason": "Test", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    wanted.status.get_or_insert_default().conditions = Some(vec![serde_json::from_value(condition).unwrap()]);
    wanted.metadata.labels.get_or_insert_default().insert("must".into(), "stay out".into());
    let written = plane.update_status(&current, &wanted).await.unwrap().into_object().unwrap();
    assert!(!written.meta().labels.clone().unwrap_or_default().contains_key("must"));
    assert_eq!(written.status.unwrap().conditions.unwrap()[0].type_, "Odd");
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_and_slow_connections_lose_nothing() {
    let bed = shared().await;
    let direct = plane(bed).await;
    mk_namespace(&direct, "lines").await;
    let proxy = Proxy::start(&bed.plane(PLANE).unwrap().server).await;
    let (engine, watched) =
        watch_maps(Plane::from_kube_config("main", &config(bed, Some(&proxy)).await).unwrap(), "lines");
    for name in ["stays", "goes", "changes"] {
        put(&direct, "lines", name, "old").await;
    }
    let _running = Running::start(engine).await;
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
async fn a_restart_that_forgets_history_loses_no_deletion() {
    let bed = Box::pin(Bed::single_plane()).await.unwrap();
    let direct = plane(&bed).await;
    mk_namespace(&direct, "restart").await;
    for name in ["stays", "goes", "changes"] {
        put(&direct, "restart", name, "old").await;
    }
    let proxy = Proxy::start(&bed.plane(PLANE).unwrap().server).await;
    let (engine, watched) =
        watch_maps(Plane::from_kube_config("main", &config(&bed, Some(&proxy)).await).unwrap(), "restart");
    let running = Running::start(engine).await;
    agreed(&watched, &direct, "restart").await;

    // While the engine cannot see: a deletion, a change, and enough noise; then the server forgets all but the present.
    proxy.set(Mode::Closed);
    remove(&direct, "restart", "goes").await;
    put(&direct, "restart", "changes", "new").await;
    let apiserver = bed.plane(PLANE).unwrap().apiserver();
    bed.restart(&apiserver).await.unwrap();
    let direct = plane(&bed).await;
    put(&direct, "restart", "after", "new").await;
    proxy.set(Mode::Open);
    agreed(&watched, &direct, "restart").await;
    let metrics = running.1.metrics();
    assert!(metrics.contains("watch_restarts_total{kind=\"configmaps/v1\",reason=\"expired\"}"), "{metrics}");

    // And a plain restart in the middle of it all.
    bed.kill(&apiserver).unwrap();
    bed.start(&apiserver).await.unwrap();
    let direct = plane(&bed).await;
    remove(&direct, "restart", "stays").await;
    agreed(&watched, &direct, "restart").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_and_sixty_watches_are_live_on_one_server() {
    let bed = shared().await;
    let direct = plane(bed).await;
    mk_namespace(&direct, "many").await;
    let proxy = Proxy::start(&bed.plane(PLANE).unwrap().server).await;
    let root = Plane::from_kube_config("root", &config(bed, Some(&proxy)).await).unwrap();
    let mut engine = Engine::new();
    let planes = (0..120).map(|number| root.under(format!("p{number}"), ""));
    let watches = [
        Watch::of::<ConfigMap>().within("many"),
        Watch::of::<Secret>().within("many"),
        Watch::of::<Namespace>(),
    ];
    let set: PlaneSet = engine.planes("planes", Fixed::new(planes), watches);
    let _running = Running::start(engine).await;
    assert!((5..=8).contains(&proxy.accepted()), "{} connections for 360 watches", proxy.accepted());
    put(&direct, "many", "a", "x").await;
    mk_namespace(&direct, "many-too").await;
    eventually("each of them sees it", || {
        let sees = |plane: &Plane| {
            plane.get::<ConfigMap>(("many", "a")).unwrap().is_some()
                && plane.get::<Namespace>("many-too").unwrap().is_some()
        };
        set.engaged().iter().filter(|plane| sees(plane)).count() == 120
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_rotated_is_read_anew() {
    let bed = shared().await;
    let direct = plane(bed).await;
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
    // A token dies with its service account, even if a namesake follows.
    let rotate = async || {
        let accounts: Api<ServiceAccount> = Api::namespaced(direct.kube_client(), "tokens");
        if let Some(account) = direct.live().get::<ServiceAccount>(("tokens", "robot")).await.unwrap() {
            direct.delete(&account, Exactly::Object).await.unwrap();
        }
        let account: ServiceAccount =
            serde_json::from_value(json!({"metadata": {"namespace": "tokens", "name": "robot"}})).unwrap();
        direct.create(&account).await.unwrap();
        let request = TokenRequest { spec: TokenRequestSpec::default(), ..TokenRequest::default() };
        let token = accounts.create_token_request("robot", &Default::default(), &request).await.unwrap();
        std::fs::write(&file, token.status.unwrap().token).unwrap();
    };
    rotate().await;
    let mut config = config(bed, None).await;
    config.auth_info = Default::default();
    config.auth_info.token_file = Some(file.display().to_string());
    let robot = Plane::from_kube_config("robot", &config).unwrap();
    let (engine, watched) = watch_maps(robot.clone(), "tokens");
    let _running = Running::start(engine).await;
    put(&robot, "tokens", "a", "with the first").await;
    rotate().await;
    // The server remembers a token for about ten seconds; then the old one is refused and the file is read.
    let until = tokio::time::Instant::now() + Duration::from_secs(15);
    while tokio::time::Instant::now() < until {
        put(&robot, "tokens", "a", &format!("{:?}", tokio::time::Instant::now())).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    agreed(&watched, &direct, "tokens").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_is_watched_once_its_definition_is_there() {
    let bed = shared().await;
    let plane = plane(bed).await;
    let kind = Kind {
        group: "engine.test".into(),
        version: "v1".into(),
        plural: "gadgets".into(),
        kind: "Gadget".into(),
        scope: Scope::Cluster,
    };
    let mut engine = Engine::new();
    let watches = [Watch::kind(kind.clone()), Watch::of::<CustomResourceDefinition>()];
    let watched = engine.plane("plane", plane.clone(), watches);
    let _running = Running::start(engine).await;
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
    let mut made = client.request_text(create()).await;
    while made.is_err() && start.elapsed() < SOON {
        tokio::time::sleep(Duration::from_millis(100)).await;
        made = client.request_text(create()).await;
    }
    eventually("the object is seen", || watched.list_values(&kind).unwrap().len() == 1).await;
    let seen = &watched.list_values(&kind).unwrap()[0];
    assert_eq!((&seen["size"], &seen["kind"]), (&json!(3), &json!("Gadget")));
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_and_events_are_accepted() {
    let bed = shared().await;
    let plane = plane(bed).await;
    mk_namespace(&plane, "office").await;
    let stand = |name: &str| {
        let election = Election::new(plane.clone(), "office", "leader", name).lease(Duration::from_secs(6));
        election.stand(Clock::system(), &Random::from_entropy())
    };
    let (first, mut leads) = stand("first");
    let fence = leads.gained().await;
    let (second, mut follows) = stand("second");
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!((leads.fence(), follows.fence()), (Some(fence), None));
    first.resign().await;
    let next = tokio::time::timeout(Duration::from_secs(5), follows.gained()).await.unwrap();
    assert!(next > fence);
    second.resign().await;

    put(&plane, "office", "a", "x").await;
    let about = plane.live().get::<ConfigMap>(("office", "a")).await.unwrap().unwrap();
    let recorder = Engine::new().recorder("tests");
    for _ in 0..3 {
        recorder.record(&plane, &about, Tone::Warning, "Odd", "Look", &"long ".repeat(1000));
    }
    drop(recorder); // the last word is written when the last recorder goes
    let wait = async {
        loop {
            let events = plane.live().list::<Event>(&Query::within("office")).await.unwrap();
            if events.len() == 1 && events[0].series.as_ref().is_some_and(|series| series.count == 3) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.expect("one event with a count of three");
}
