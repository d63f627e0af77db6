//! The federation hub: a plane with all components of Karmada.
//!
//! Order   namespaces, Karmada's and the compute CRDs → aggregated API server and webhook → webhook
//!         configurations and interpreter → (cells have the compute CRDs) → controller-manager and scheduler
//!
//! Two steps depend on this order. Without the webhook, bindings have no permanent id: nothing is scheduled,
//! no error is reported, and with running controllers a second binding deletes the Work of the first as an
//! orphan. If the compute CRDs are installed after the controller-manager, the first object waits for the
//! next API discovery, up to 30 s.

use kube::Client;
use serde_json::{Value, json};

use crate::{
    Error, TimingProfile,
    binaries::Binaries,
    manifest::{self, DEFAULT_TIMEOUT},
    pins::{self, Program},
    pki::Pki,
    plane::{HUB, server},
    process::ComponentSpec,
    state_dir::StateDir,
};

/// Name of the component that serves the kind Cluster.
pub const AGGREGATED_APISERVER: &str = "karmada-aggregated-apiserver";
/// Name of Karmada's admission webhook.
pub const WEBHOOK: &str = "karmada-webhook";
/// Name of Karmada's controller manager.
pub const CONTROLLER_MANAGER: &str = "karmada-controller-manager";
/// Name of Karmada's scheduler.
pub const SCHEDULER: &str = "karmada-scheduler";

/// The namespace of Karmada's leases and events.
const SYSTEM: &str = "karmada-system";
/// The namespace of the Secrets with the members' credentials.
pub const CLUSTERS: &str = "karmada-cluster";

/// The ResourceInterpreterCustomization of the compute kinds.
const INTERPRETER: &str = include_str!("../../deploy/components/federation/interpreter.yaml");
/// The ClusterPropagationPolicy that propagates the compute CRDs to the cells in production.
const CRDS_TO_CELLS: &str = include_str!("../../deploy/components/federation/crds-to-cells.yaml");

/// The spec of Karmada's aggregated API server.
pub fn aggregated_apiserver(
    binaries: &Binaries,
    state_dir: &StateDir,
    pki: &Pki,
    etcd: &str,
    port: u16,
) -> ComponentSpec {
    let kubeconfig = state_dir.kubeconfig(HUB).display().to_string();
    let (cert, key) = pki.server();
    let args = vec![
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        format!("--etcd-servers={etcd}"),
        "--etcd-prefix=/planes/hub-clusters".to_owned(),
        format!("--tls-cert-file={}", cert.display()),
        format!("--tls-private-key-file={}", key.display()),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
    ];
    let ready = format!("{}/readyz", server(port));
    spec(binaries, AGGREGATED_APISERVER, pins::KARMADA_AGGREGATED_APISERVER, args, port, ready)
}

/// The spec of Karmada's webhook.
pub fn webhook(binaries: &Binaries, state_dir: &StateDir, pki: &Pki, port: u16) -> ComponentSpec {
    let (cert, _) = pki.server();
    let args = vec![
        format!("--kubeconfig={}", state_dir.kubeconfig(HUB).display()),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--cert-dir={}", cert.parent().expect("a certificate has a parent directory").display()),
        "--metrics-bind-address=0".to_owned(),
        // The health probe address returns 404 for every path; the webhook server's own /readyz works.
        "--health-probe-bind-address=0".to_owned(),
    ];
    let ready = format!("{}/readyz/", server(port));
    spec(binaries, WEBHOOK, pins::KARMADA_WEBHOOK, args, port, ready)
}

/// The spec of Karmada's controller manager.
pub fn controller_manager(
    binaries: &Binaries,
    state_dir: &StateDir,
    timing: TimingProfile,
    port: u16,
) -> ComponentSpec {
    let mut args = common(state_dir, port);
    // Otherwise it watches Nodes and Pods of every cell to schedule by free resources; Polis schedules by
    // city.
    args.push("--enable-cluster-resource-modeling=false".to_owned());
    if timing == TimingProfile::Fast {
        args.extend(
            [
                "--cluster-status-update-frequency=1s",
                "--cluster-failure-threshold=2s",
                "--cluster-success-threshold=2s",
                "--cluster-monitor-period=1s",
                "--rate-limiter-max-delay=3s",
                "--rate-limiter-qps=200",
                "--rate-limiter-bucket-size=400",
                "--kube-api-qps=400",
                "--kube-api-burst=800",
                "--cluster-api-qps=400",
                "--cluster-api-burst=800",
            ]
            .map(str::to_owned),
        );
    }
    let ready = format!("http://127.0.0.1:{port}/healthz");
    spec(binaries, CONTROLLER_MANAGER, pins::KARMADA_CONTROLLER_MANAGER, args, port, ready)
}

/// The spec of Karmada's scheduler.
pub fn scheduler(
    binaries: &Binaries,
    state_dir: &StateDir,
    timing: TimingProfile,
    port: u16,
) -> ComponentSpec {
    let mut args = common(state_dir, port);
    if timing == TimingProfile::Fast {
        args.extend(
            ["--rate-limiter-max-delay=3s", "--kube-api-qps=400", "--kube-api-burst=800"].map(str::to_owned),
        );
    }
    let ready = format!("http://127.0.0.1:{port}/healthz");
    spec(binaries, SCHEDULER, pins::KARMADA_SCHEDULER, args, port, ready)
}

fn common(state_dir: &StateDir, port: u16) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", state_dir.kubeconfig(HUB).display()),
        "--leader-elect=false".to_owned(),
        // By default every Karmada component serves its metrics on :8080.
        "--metrics-bind-address=0".to_owned(),
        format!("--health-probe-bind-address=127.0.0.1:{port}"),
    ]
}

fn spec(
    binaries: &Binaries,
    name: &str,
    program: Program,
    args: Vec<String>,
    port: u16,
    ready: String,
) -> ComponentSpec {
    ComponentSpec { name: name.to_owned(), program: binaries.path(program), args, ports: vec![port], ready }
}

/// Creates the namespaces that Karmada uses.
pub async fn create_namespaces(client: &Client) -> Result<(), Error> {
    for name in [SYSTEM, CLUSTERS] {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        manifest::apply(client, HUB, &namespace).await?;
    }
    Ok(())
}

/// Registers the aggregated API server on this port and waits until the hub serves Clusters.
pub async fn register_clusters(client: &Client, pki: &Pki, port: u16) -> Result<(), Error> {
    for object in cluster_api(&pki.ca_bundle(), port) {
        manifest::apply(client, HUB, &object).await?;
    }
    manifest::until(HUB, "the kind Cluster to be served", DEFAULT_TIMEOUT, async || {
        let request =
            http::Request::get("/apis/cluster.karmada.io/v1alpha1/clusters?limit=1").body(Vec::new());
        let request = request.expect("the path is a valid URI");
        manifest::retryable(client.request_text(request).await).map(|_| Some(()))
    })
    .await
}

/// An APIService and its Service. Endpoints must not hold a loopback address, so the Service is an
/// ExternalName for localhost.
fn cluster_api(ca_bundle: &str, port: u16) -> [Value; 2] {
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": AGGREGATED_APISERVER, "namespace": SYSTEM},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    });
    let api = json!({
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1alpha1.cluster.karmada.io"},
        "spec": {
            "group": "cluster.karmada.io",
            "version": "v1alpha1",
            "groupPriorityMinimum": 2000,
            "versionPriority": 10,
            "caBundle": ca_bundle,
            "service": {"namespace": SYSTEM, "name": AGGREGATED_APISERVER, "port": port},
        },
    });
    [service, api]
}

/// Installs the webhook configurations for Karmada's webhook on this port.
pub async fn register_webhook(
    client: &Client,
    binaries: &Binaries,
    pki: &Pki,
    port: u16,
) -> Result<(), Error> {
    for object in binaries.karmada_webhooks(&format!("127.0.0.1:{port}"), &pki.ca_bundle())? {
        manifest::apply(client, HUB, &object).await?;
    }
    Ok(())
}

/// Installs the interpreter of the compute kinds. Retries while the webhook is not reachable.
pub async fn install_interpreter(client: &Client) -> Result<(), Error> {
    install(client, "interpreter.yaml", INTERPRETER).await
}

/// Installs the policy that propagates the compute CRDs to every cell.
pub async fn install_crds_to_cells(client: &Client) -> Result<(), Error> {
    install(client, "crds-to-cells.yaml", CRDS_TO_CELLS).await
}

async fn install(client: &Client, name: &str, text: &str) -> Result<(), Error> {
    for object in manifest::read(name, text)? {
        manifest::until(HUB, name, DEFAULT_TIMEOUT, async || {
            manifest::retryable(manifest::apply(client, HUB, &object).await).map(Some)
        })
        .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_profile_only_adds_timing_flags() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = StateDir::claim(Some(dir.path())).unwrap();
        let binaries = Binaries::at("/cache".as_ref());
        let fast = controller_manager(&binaries, &state_dir, TimingProfile::Fast, 20_001).args;
        let upstream = controller_manager(&binaries, &state_dir, TimingProfile::Upstream, 20_001).args;
        assert!(fast.starts_with(&upstream));
        assert!(
            upstream.iter().all(|arg| !arg.contains("qps") && !arg.contains("threshold")),
            "{upstream:?}"
        );
    }

    #[test]
    fn karmada_listens_on_no_fixed_port() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = StateDir::claim(Some(dir.path())).unwrap();
        let binaries = Binaries::at("/cache".as_ref());
        for spec in [
            controller_manager(&binaries, &state_dir, TimingProfile::Fast, 20_001),
            scheduler(&binaries, &state_dir, TimingProfile::Fast, 20_001),
        ] {
            assert!(spec.args.contains(&"--metrics-bind-address=0".to_owned()));
            assert!(spec.args.contains(&"--health-probe-bind-address=127.0.0.1:20001".to_owned()));
        }
    }

    #[test]
    fn the_cluster_api_uses_an_external_name_for_localhost() {
        let [service, api] = cluster_api("Q0E=", 20_001);
        assert_eq!(service["spec"]["externalName"], "localhost");
        assert_eq!(api["spec"]["service"]["port"], 20_001);
        assert_eq!(api["spec"]["caBundle"], "Q0E=");
    }

    #[test]
    fn the_deployed_federation_manifests_parse() {
        let interpreter = manifest::read("interpreter.yaml", INTERPRETER).unwrap();
        assert_eq!(interpreter[0]["spec"]["target"]["kind"], "WorkloadDeployment");
        let policy = manifest::read("crds-to-cells.yaml", CRDS_TO_CELLS).unwrap();
        assert_eq!(policy[0]["kind"], "ClusterPropagationPolicy");
    }
}
