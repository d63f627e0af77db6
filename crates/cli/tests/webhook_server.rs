//! Tests of `polis manager` with `webhookServer` as a process: it discovers the projects, becomes ready when
//! they are synced, reviews Workloads over TLS, and its controllers reconcile the admitted ones.

mod socket;

use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polis_api::compute::Workload;
use polis_api::kube::api::{Api, PostParams};
use polis_api::kube::{self, Client};
use polis_api::{ObjectExt as _, crds, finalizers};
use polis_apiserver::{MASTERS, PlaneSpec, Server, kubeconfig, project_plane};
use polis_testing::{create_untyped, eventually, free_address, http_get};
use serde_json::{Value, json};
use socket::Socket;
use tempfile::TempDir;
use tokio::process::Child;

/// An API server with the platform, project `shop` with the city `dfw`, and a hub.
struct Platform {
    server: Server,
    socket: Socket,
}

impl Platform {
    async fn new() -> Self {
        let server = Server::builder().build().await.expect("a server");
        for file in crds::compute().into_iter().chain(crds::platform()) {
            if file.crd["spec"]["names"]["plural"] == "projects" {
                server.install_crd_in("", &file.crd).await.expect("installs the CRD");
            } else {
                server.install_crd("projects", &file.crd).await.expect("installs the CRD");
            }
        }
        server.create_plane(PlaneSpec::project("shop", "projects")).await.expect("a plane");
        server.create_plane(PlaneSpec::standalone("hub")).await.expect("a plane");
        let socket = Socket::of(&server).await;
        let platform = Self { server, socket };
        let ready = json!({"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let project = json!({"apiVersion": "resourcemanager.miloapis.com/v1alpha1", "kind": "Project",
            "metadata": {"name": "shop"}, "spec": {}, "status": {"conditions": [ready]}});
        platform.put("", project).await;
        let binding = json!({"apiVersion": "networking.datumapis.com/v1alpha", "kind": "LocationBinding", "metadata": {"name": "dfw"},
            "spec": {"locationRef": {"name": "dfw"}, "topology": {"topology.datum.net/city-code": "dfw"}}});
        platform.put("project:shop", binding).await;
        platform
    }

    /// Creates an object and its status.
    async fn put(&self, plane: &str, object: Value) {
        create_untyped(&Client::new(self.server.plane_service(plane), "default"), &object).await;
    }

    /// Starts a manager of this platform with these ports for webhooks, health probes and metrics.
    fn mk_manager(&self, dir: &TempDir, webhooks: u16, health: u16, metrics: u16) -> Child {
        let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
        let write = |name: &str, text: &str| std::fs::write(path(name), text).expect("writes the file");
        let admin = self.socket.authority.client("admin", &[MASTERS]).expect("a certificate");
        write("root.kubeconfig", &kubeconfig(&self.socket.address, "", self.socket.authority.pem(), &admin));
        write(
            "hub.kubeconfig",
            &kubeconfig(&self.socket.address, "/planes/hub", self.socket.authority.pem(), &admin),
        );
        let pair = self.socket.authority.server(&["127.0.0.1"]).expect("a certificate");
        write("tls.crt", &pair.cert);
        write("tls.key", &pair.key);
        let config = json!({"apiVersion": "apiserver.config.datumapis.com/v1alpha1", "kind": "WorkloadOperator",
            "discovery": {"mode": "milo", "discoveryKubeconfigPath": path("root.kubeconfig"), "projectKubeconfigPath": path("root.kubeconfig")},
            "metricsServer": {"bindAddress": format!("127.0.0.1:{metrics}"), "secureServing": false},
            "webhookServer": {"host": "127.0.0.1", "port": webhooks, "tls": {"certDir": dir.path()}}});
        write("manager.yaml", &config.to_string());
        tokio::process::Command::new(env!("CARGO_BIN_EXE_polis"))
            .args(["manager", "--enable-management-controllers", "--server-config", &path("manager.yaml")])
            .args(["--federation-kubeconfig", &path("hub.kubeconfig")])
            .args(["--health-probe-bind-address", &format!("127.0.0.1:{health}")])
            .env("KUBECONFIG", path("root.kubeconfig"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the manager starts")
    }

    /// Registers the webhooks of a manager for all projects.
    async fn register(&self, port: u16) {
        for (kind, verb) in [("Mutating", "mutate"), ("Validating", "validate")] {
            let url = format!("https://127.0.0.1:{port}/{verb}-compute-datumapis-com-v1alpha-workload");
            let hook = json!({"name": format!("{verb}.example.com"), "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": {"url": url, "caBundle": STANDARD.encode(self.socket.authority.pem())},
                "rules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": ["compute.datumapis.com"], "apiVersions": ["v1alpha"], "resources": ["workloads"]}]});
            let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}WebhookConfiguration"),
                "metadata": {"name": verb}, "webhooks": [hook]});
            self.put("@projects", configuration).await;
        }
    }
}

fn free_port() -> u16 {
    free_address().port()
}

/// Waits until `/readyz` of the manager responds with 200.
async fn until_ready(port: u16, manager: &mut Child) {
    eventually("the manager is ready", async || {
        let ended = manager.try_wait().expect("a child process");
        assert!(ended.is_none(), "the manager exited: {ended:?}");
        is_ready(port).await.then_some(())
    })
    .await;
}

async fn is_ready(port: u16) -> bool {
    get(port, "/readyz").await.starts_with("HTTP/1.1 200")
}

/// The response with its headers; empty if the connection fails.
async fn get(port: u16, path: &str) -> String {
    http_get(("127.0.0.1", port), path).await.unwrap_or_default()
}

fn mk_workload(city: &str) -> Workload {
    let workload = json!({"apiVersion": "compute.datumapis.com/v1alpha", "kind": "Workload", "metadata": {"name": "web"}, "spec": {
        "template": {"spec": {
            "runtime": {"resources": {"instanceType": ""}, "sandbox": {"containers": [{"name": "app", "image": "app:1"}]}},
            "networkInterfaces": [{"network": {"name": "blue"}}]}},
        "placements": [{"name": "default", "cityCodes": [city], "scaleSettings": {"minReplicas": 1}}]}});
    serde_json::from_value(workload).expect("a workload")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_reviews_the_workloads_of_its_projects_and_reconciles_the_admitted_ones() {
    let platform = Platform::new().await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (webhooks, health, metrics) = (free_port(), free_port(), free_port());
    let mut manager = platform.mk_manager(&dir, webhooks, health, metrics);
    until_ready(health, &mut manager).await;
    let page = get(metrics, "/metrics").await;
    assert!(page.contains("polis_planes{set=\"project\",state=\"engaged\"} 1"), "{page}");
    assert!(
        get(metrics, "/readyz").await.starts_with("HTTP/1.1 404"),
        "the metrics server serves only /metrics"
    );
    platform.register(webhooks).await;

    let client = Client::new(platform.server.plane_service(&project_plane("shop")), "default");
    let workloads = Api::<Workload>::namespaced(client, "default");
    let refused = workloads
        .create(&PostParams::default(), &mk_workload("lhr"))
        .await
        .expect_err("a city that is not bound");
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert_eq!(status.code, 422, "{status:?}");
    assert!(status.message.contains("spec.placements[0].cityCodes[0]"), "{}", status.message);

    let created =
        workloads.create(&PostParams::default(), &mk_workload("dfw")).await.expect("a city that is bound");
    assert_eq!(created.spec.template.spec.runtime.resources.instance_type, "datumcloud/d1-standard-2");
    eventually("the workload controller sets its finalizer", async || {
        let workload = workloads.get("web").await.expect("the workload");
        workload.has_finalizer(finalizers::WORKLOAD).then_some(())
    })
    .await;
    manager.kill().await.expect("kills the manager");
}
