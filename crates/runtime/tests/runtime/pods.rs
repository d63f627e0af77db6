//! Instances as Pods, with a fake kubelet: one Pod for each instance, its status, and its end.

use std::time::Duration;

use polis_api::ObjectExt;
use polis_api::compute::Instance;
use polis_api::k8s_openapi::api::core::v1::{Namespace, Pod};
use polis_core::conditions;
use polis_core::pods::PodOptions;
use polis_engine::Plane;
use polis_runtime::{PodRuntimeConfig, declare_pods};
use polis_testing::builders::mk_hub_namespace;
use polis_testing::kubelet::FakeKubelet;
use polis_testing::{Cluster, PlaneExt as _, consistently, eventually};
use serde_json::json;

use crate::test_cell::{NAMESPACE, container, mk_instance, with_gate, with_port};

/// A cell whose instances run as Pods, in itself or in the plane `cluster`.
struct PodCell {
    cluster: Cluster,
    kubelet: FakeKubelet,
    apart: bool,
}

impl PodCell {
    async fn new() -> Self {
        PodCell::with(false).await
    }

    async fn with(apart: bool) -> Self {
        let mut cluster = Cluster::builder().cell("cell").cell("cluster").pods().build().await;
        cluster.plane("cell").create(&mk_hub_namespace(NAMESPACE, "acme", "shop")).await.unwrap();
        let (clock, pods) = (cluster.clock(), cluster.plane(if apart { "cluster" } else { "cell" }));
        let mut kubelet = None;
        cluster.start("kubelet", |engine| kubelet = Some(FakeKubelet::declare(engine, clock, pods)));
        let mut cell = PodCell { cluster, kubelet: kubelet.unwrap(), apart };
        cell.start();
        cell
    }

    fn start(&mut self) {
        let (clock, proxy) = (self.cluster.clock(), self.cluster.proxy.clone());
        let config = PodRuntimeConfig {
            cell: proxy.plane("cell"),
            cluster: self.apart.then(|| proxy.plane("cluster")),
            options: PodOptions::default(),
        };
        self.cluster.start("pods", |engine| declare_pods(engine, clock, config));
    }

    async fn restart(&mut self) {
        self.cluster.stop("pods").await;
        self.start();
    }

    fn plane(&self) -> Plane {
        self.cluster.plane("cell")
    }

    fn pod_plane(&self) -> Plane {
        self.cluster.plane(if self.apart { "cluster" } else { "cell" })
    }

    async fn pod(&self, name: &str) -> Option<Pod> {
        self.pod_plane().read((NAMESPACE, name)).await
    }

    async fn create(&self, instance: &Instance) -> Instance {
        self.plane().create(instance).await.unwrap()
    }

    async fn until_condition(&self, name: &str, kind: &str, status: &str, reason: &str) -> String {
        eventually(&format!("{name}: {kind}={status}/{reason}"), async || {
            let instance = self.plane().read::<Instance>((NAMESPACE, name)).await?;
            let condition = conditions::find(&instance.status.as_ref()?.conditions, kind)?;
            (condition.status == status && condition.reason == reason).then(|| condition.message.clone())
        })
        .await
    }

    async fn until_running(&self, name: &str) -> String {
        self.until_condition(name, "Running", "True", "Running").await
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_runs_as_one_pod_and_shows_its_status() {
    let cell = PodCell::new().await;
    let created = cell.create(&with_port(mk_instance("web-0", "shop:1", &["--fast"]), 8080)).await;
    let message = cell.until_running("web-0").await;
    assert_eq!(message, "running at 10.244.0.7");
    let pod = cell.pod("web-0").await.unwrap();
    assert_eq!(pod.label("compute.datumapis.com/instance-uid"), Some(created.uid()));
    let first = &pod.spec.as_ref().unwrap().containers[0];
    assert_eq!(
        (first.image.as_deref(), first.args.as_deref()),
        (Some("shop:1"), Some(&["--fast".to_owned()][..]))
    );
    let project = first.env.iter().flatten().find(|variable| variable.name == "POLIS_PROJECT");
    assert_eq!(project.and_then(|variable| variable.value.as_deref()), Some("acme"));
    let status = cell.plane().read::<Instance>((NAMESPACE, "web-0")).await.unwrap().status.unwrap();
    let address = status.network_interfaces[0].assignments.as_ref().unwrap().network_ip.as_deref();
    assert_eq!(address, Some("10.244.0.7"));
    assert_eq!(status.controller.unwrap().observed_template_hash, "0123456789");
}

#[tokio::test(start_paused = true)]
async fn an_idle_cell_makes_no_requests_and_a_restarted_controller_adopts_its_pods() {
    let mut cell = PodCell::new().await;
    cell.create(&mk_instance("web-0", "shop:1", &[])).await;
    cell.until_running("web-0").await;
    let before = cell.pod("web-0").await.unwrap();
    cell.restart().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let writes = cell.cluster.proxy.requests().writes().len();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(cell.cluster.proxy.requests().writes().len(), writes);
    assert_eq!(cell.pod("web-0").await.unwrap().metadata.uid, before.metadata.uid);
    assert_eq!(cell.kubelet.starts(), ["web-0"]);
}

#[tokio::test(start_paused = true)]
async fn an_instance_with_a_gate_gets_no_pod() {
    let cell = PodCell::new().await;
    cell.create(&with_gate(mk_instance("web-0", "shop:1", &[]), "Quota")).await;
    consistently("no Pod", Duration::from_secs(30), async || cell.pod("web-0").await.is_none()).await;
    cell.plane()
        .change::<Instance>((NAMESPACE, "web-0"), |instance| {
            instance.spec.controller.as_mut().unwrap().scheduling_gates.clear();
        })
        .await;
    cell.until_running("web-0").await;
}

#[tokio::test(start_paused = true)]
async fn the_reasons_of_a_cluster_become_reasons_of_the_instance() {
    let cell = PodCell::new().await;
    for (name, image, kind, reason, message) in [
        ("a", "broken:1", "Programmed", "ImageUnavailable", "container app: Back-off pulling image"),
        (
            "b",
            "huge:1",
            "Programmed",
            "InsufficientCapacity",
            "0/1 nodes are available: 1 Insufficient memory.",
        ),
        (
            "c",
            "crash:1",
            "Running",
            "InstanceCrashing",
            "container app keeps exiting: restart 4; last exit: exit code 7",
        ),
    ] {
        cell.create(&mk_instance(name, image, &[])).await;
        assert_eq!(cell.until_condition(name, kind, "False", reason).await, message);
    }
}

#[tokio::test(start_paused = true)]
async fn readiness_of_the_pod_is_readiness_of_the_instance() {
    let cell = PodCell::new().await;
    let mut instance = mk_instance("web-0", "shop:1", &[]);
    container(&mut instance).readiness_probe =
        Some(serde_json::from_value(json!({"tcpSocket": {"port": 80}})).unwrap());
    cell.create(&instance).await;
    cell.until_condition("web-0", "ContainersReady", "True", "ContainersReady").await;
    cell.kubelet.set_ready(false).await;
    cell.until_condition("web-0", "ContainersReady", "False", "ContainersNotReady").await;
    cell.until_running("web-0").await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_instance_stays_until_its_pod_has_ended() {
    let cell = PodCell::new().await;
    cell.create(&mk_instance("web-0", "shop:1", &[])).await;
    cell.until_running("web-0").await;
    cell.kubelet.terminate_within(Duration::from_secs(20));
    cell.plane().remove::<Instance>((NAMESPACE, "web-0")).await;
    cell.until_condition("web-0", "Running", "False", "Stopping").await;
    assert!(cell.pod("web-0").await.unwrap().is_deleting());
    cell.plane().eventually_lacks::<Instance>((NAMESPACE, "web-0")).await;
    assert_eq!(cell.pod("web-0").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_suspended_instance_has_no_pod_until_it_is_resumed() {
    let cell = PodCell::new().await;
    cell.create(&mk_instance("web-0", "shop:1", &[])).await;
    cell.until_running("web-0").await;
    let suspend = async |suspended: bool| {
        cell.plane()
            .change_status::<Instance>((NAMESPACE, "web-0"), |instance| {
                instance.status.get_or_insert_default().suspended = Some(suspended);
            })
            .await;
    };
    suspend(true).await;
    cell.until_condition("web-0", "Running", "False", "Suspended").await;
    cell.pod_plane().eventually_lacks::<Pod>((NAMESPACE, "web-0")).await;
    suspend(false).await;
    cell.until_running("web-0").await;
    assert_eq!(cell.kubelet.starts(), ["web-0", "web-0"]);
}

#[tokio::test(start_paused = true)]
async fn an_evicted_pod_is_replaced() {
    let cell = PodCell::new().await;
    cell.create(&mk_instance("web-0", "shop:1", &[])).await;
    cell.until_running("web-0").await;
    let before = cell.pod("web-0").await.unwrap();
    cell.kubelet.evict(NAMESPACE, "web-0").await;
    eventually("another Pod", async || {
        cell.pod("web-0").await.filter(|pod| pod.metadata.uid != before.metadata.uid)
    })
    .await;
    cell.until_running("web-0").await;
    assert_eq!(cell.kubelet.starts(), ["web-0", "web-0"]);
}

#[tokio::test(start_paused = true)]
async fn the_pod_of_a_lost_node_is_replaced_only_when_it_is_gone() {
    let cell = PodCell::new().await;
    cell.create(&mk_instance("web-0", "shop:1", &[])).await;
    cell.until_running("web-0").await;
    cell.kubelet.set_node_lost(true).await;
    // As the taint manager of Kubernetes does after some minutes.
    cell.pod_plane().remove::<Pod>((NAMESPACE, "web-0")).await;
    cell.until_condition("web-0", "Running", "False", "Stopping").await;
    consistently("one Pod", Duration::from_secs(600), async || cell.kubelet.starts().len() == 1).await;
    // The node is back, or an operator has removed it.
    cell.kubelet.set_node_lost(false).await;
    cell.until_running("web-0").await;
    assert_eq!(cell.kubelet.starts(), ["web-0", "web-0"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_another_owner_is_never_changed() {
    let cell = PodCell::new().await;
    let mut foreign = Pod::default();
    foreign.metadata.name = Some("web-0".into());
    foreign.metadata.namespace = Some(NAMESPACE.into());
    let foreign = cell.pod_plane().create(&foreign).await.unwrap();
    cell.create(&mk_instance("web-0", "shop:1", &[])).await;
    let message = cell.until_condition("web-0", "Programmed", "False", "ConfigurationError").await;
    assert!(message.contains("was not created for an Instance"), "{message}");
    cell.plane().remove::<Instance>((NAMESPACE, "web-0")).await;
    cell.plane().eventually_lacks::<Instance>((NAMESPACE, "web-0")).await;
    assert_eq!(cell.pod("web-0").await.unwrap().metadata.uid, foreign.metadata.uid);
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_an_instance_is_deleted() {
    let mut cell = PodCell::new().await;
    cell.create(&mk_instance("web-0", "shop:1", &[])).await;
    cell.until_running("web-0").await;
    cell.cluster.stop("pods").await;
    // A force deletion removes the finalizer.
    cell.plane().remove::<Instance>((NAMESPACE, "web-0")).await;
    cell.plane()
        .change::<Instance>((NAMESPACE, "web-0"), |instance| instance.metadata.finalizers = None)
        .await;
    cell.plane().eventually_lacks::<Instance>((NAMESPACE, "web-0")).await;
    cell.start();
    cell.pod_plane().eventually_lacks::<Pod>((NAMESPACE, "web-0")).await;
}

#[tokio::test(start_paused = true)]
async fn a_field_that_a_pod_cannot_have_is_named_in_the_status() {
    let cell = PodCell::new().await;
    let mut instance = mk_instance("web-0", "shop:1", &[]);
    instance.spec.volumes =
        serde_json::from_value(json!([{"name": "d", "disk": {"template": {"spec": {"type": "x"}}}}]))
            .unwrap();
    cell.create(&instance).await;
    let message = cell.until_condition("web-0", "Programmed", "False", "ConfigurationError").await;
    assert_eq!(
        message,
        "the instance cannot run as a Pod: spec.volumes[0].disk: this cell has no disks; remove the volume"
    );
    assert_eq!(cell.pod("web-0").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_apart_from_the_cell_gets_the_namespace_of_its_tenant() {
    let cell = PodCell::with(true).await;
    cell.create(&mk_instance("web-0", "shop:1", &[])).await;
    cell.until_running("web-0").await;
    assert_eq!(cell.plane().read::<Pod>((NAMESPACE, "web-0")).await, None, "the cell has no Pods");
    let namespace = cell.pod_plane().read::<Namespace>(NAMESPACE).await.unwrap();
    assert_eq!(namespace.label("pod-security.kubernetes.io/enforce"), Some("baseline"));
    assert_eq!(namespace.label("meta.datumapis.com/upstream-namespace"), Some("shop"));
    cell.plane().remove::<Instance>((NAMESPACE, "web-0")).await;
    cell.plane().eventually_lacks::<Instance>((NAMESPACE, "web-0")).await;
    assert_eq!(cell.pod("web-0").await, None);
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_every_write_leaves_one_pod_and_then_none() {
    let mut crash = 0;
    loop {
        let mut cell = PodCell::new().await;
        let log = cell.cluster.proxy.requests().clone();
        let fault = log.crash_after_writes(crash, |_| true);
        cell.create(&mk_instance("web-0", "shop:1", &[])).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        cell.plane().remove::<Instance>((NAMESPACE, "web-0")).await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        let crashed = log.is_triggered(fault);
        log.clear_faults();
        cell.restart().await;
        cell.plane().eventually_lacks::<Instance>((NAMESPACE, "web-0")).await;
        cell.pod_plane().eventually_lacks::<Pod>((NAMESPACE, "web-0")).await;
        assert!(cell.kubelet.starts().len() <= 1, "crash after {crash} writes: {:?}", cell.kubelet.starts());
        if !crashed {
            break;
        }
        crash += 1;
    }
    assert!(crash >= 4, "{crash} writes");
}
