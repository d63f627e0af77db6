//! The federation hub: a plane with all of Karmada on it.
//!
//! Order: namespaces, Karmada's CRDs and ours → the server of Clusters and the webhook → webhook configurations
//! and the interpreter → (cells have our CRDs) → controller-manager and scheduler. Two steps are easy to get
//! wrong. Without the webhook bindings have no identity: nothing is scheduled, no error is shown, and with the
//! controllers running a second binding deletes the work of the first as an orphan. And with our CRDs there only
//! after the controller-manager, the first object waits for its next look at the APIs, up to 30 s.

use kube::Client;
use serde_json::{Value, json};

use crate::{
    Error, Tempo,
    binaries::Binaries,
    home::Home,
    manifest::{self, WITHIN},
    pins::{self, Program},
    pki::Pki,
    plane::{HUB, server},
    process::Spec,
};

/// Serves the kind Cluster.
pub const AGGREGATED_APISERVER: &str = "karmada-aggregated-apiserver";
/// Karmada's admission.
pub const WEBHOOK: &str = "karmada-webhook";
/// Karmada's controllers.
pub const CONTROLLER_MANAGER: &str = "karmada-controller-manager";
/// Karmada's scheduler.
pub const SCHEDULER: &str = "karmada-scheduler";

/// Where Karmada keeps leases and events.
const SYSTEM: &str = "karmada-system";
/// Where the credentials of members are.
pub const CLUSTERS: &str = "karmada-cluster";

/// What the federation must know of our kinds.
const INTERPRETER: &str = include_str!("../../deploy/components/federation/interpreter.yaml");
/// What takes our CRDs to the cells in production.
const CRDS_TO_CELLS: &str = include_str!("../../deploy/components/federation/crds-to-cells.yaml");

/// How the server of Clusters is started.
pub fn aggregated_apiserver(binaries: &Binaries, home: &Home, pki: &Pki, etcd: &str, port: u16) -> Spec {
    let kubeconfig = home.kubeconfig(HUB).display().to_string();
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

/// How Karmada's webhook is started.
pub fn webhook(binaries: &Binaries, home: &Home, pki: &Pki, port: u16) -> Spec {
    let (cert, _) = pki.server();
    let args = vec![
        format!("--kubeconfig={}", home.kubeconfig(HUB).display()),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--cert-dir={}", cert.parent().expect("a certificate is in a folder").display()),
        "--metrics-bind-address=0".to_owned(),
        // Its own health address answers 404 to everything; the one of the webhook server works.
        "--health-probe-bind-address=0".to_owned(),
    ];
    let ready = format!("{}/readyz/", server(port));
    spec(binaries, WEBHOOK, pins::KARMADA_WEBHOOK, args, port, ready)
}

/// How Karmada's controllers are started.
pub fn controller_manager(binaries: &Binaries, home: &Home, tempo: Tempo, port: u16) -> Spec {
    let mut args = common(home, port);
    // Otherwise it watches Nodes and Pods of every cell, to schedule by free resources. We schedule by city.
    args.push("--enable-cluster-resource-modeling=false".to_owned());
    if tempo == Tempo::Brisk {
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

/// How Karmada's scheduler is started.
pub fn scheduler(binaries: &Binaries, home: &Home, tempo: Tempo, port: u16) -> Spec {
    let mut args = common(home, port);
    if tempo == Tempo::Brisk {
        args.extend(
            ["--rate-limiter-max-delay=3s", "--kube-api-qps=400", "--kube-api-burst=800"].map(str::to_owned),
        );
    }
    let ready = format!("http://127.0.0.1:{port}/healthz");
    spec(binaries, SCHEDULER, pins::KARMADA_SCHEDULER, args, port, ready)
}

fn common(home: &Home, port: u16) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", home.kubeconfig(HUB).display()),
        "--leader-elect=false".to_owned(),
        // Every component of Karmada would serve its metrics on :8080.
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
) -> Spec {
    Spec { name: name.to_owned(), program: binaries.path(program), args, ports: vec![port], ready }
}

/// Makes the namespaces that Karmada works in.
pub async fn make_namespaces(client: &Client) -> Result<(), Error> {
    for name in [SYSTEM, CLUSTERS] {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        manifest::apply(client, HUB, &namespace).await?;
    }
    Ok(())
}

/// Lets the hub serve Clusters through their server on the port, and waits until it does.
pub async fn register_clusters(client: &Client, pki: &Pki, port: u16) -> Result<(), Error> {
    for object in cluster_api(&pki.ca_bundle(), port) {
        manifest::apply(client, HUB, &object).await?;
    }
    manifest::until(HUB, "the kind Cluster to be served", WITHIN, async || {
        let request =
            http::Request::get("/apis/cluster.karmada.io/v1alpha1/clusters?limit=1").body(Vec::new());
        let request = request.expect("a path of plain words");
        manifest::seen(client.request_text(request).await).map(|_| Some(()))
    })
    .await
}

/// An APIService and the Service that it goes to. Endpoints may not hold a loopback address; a Service that is
/// another name for localhost may.
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

/// Sends the hub's admission to the webhook on the port.
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

/// Tells the federation what it must know of our kinds. Asked again while the webhook is not reached yet.
pub async fn install_interpreter(client: &Client) -> Result<(), Error> {
    install(client, "interpreter.yaml", INTERPRETER).await
}

/// Has the federation take our CRDs to every cell.
pub async fn install_crds_to_cells(client: &Client) -> Result<(), Error> {
    install(client, "crds-to-cells.yaml", CRDS_TO_CELLS).await
}

async fn install(client: &Client, name: &str, text: &str) -> Result<(), Error> {
    for object in manifest::read(name, text)? {
        manifest::until(HUB, name, WITHIN, async || {
            manifest::seen(manifest::apply(client, HUB, &object).await).map(Some)
        })
        .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brisk_and_as_shipped_differ_only_in_pace() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::claim(Some(dir.path())).unwrap();
        let binaries = Binaries::at("/cache".as_ref());
        let brisk = controller_manager(&binaries, &home, Tempo::Brisk, 20_001).args;
        let shipped = controller_manager(&binaries, &home, Tempo::AsShipped, 20_001).args;
        assert!(brisk.starts_with(&shipped));
        assert!(shipped.iter().all(|arg| !arg.contains("qps") && !arg.contains("threshold")), "{shipped:?}");
    }

    #[test]
    fn nothing_of_karmada_listens_where_another_bed_might() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::claim(Some(dir.path())).unwrap();
        let binaries = Binaries::at("/cache".as_ref());
        for spec in [
            controller_manager(&binaries, &home, Tempo::Brisk, 20_001),
            scheduler(&binaries, &home, Tempo::Brisk, 20_001),
        ] {
            assert!(spec.args.contains(&"--metrics-bind-address=0".to_owned()));
            assert!(spec.args.contains(&"--health-probe-bind-address=127.0.0.1:20001".to_owned()));
        }
    }

    #[test]
    fn the_clusters_are_served_through_another_name_for_this_machine() {
        let [service, api] = cluster_api("Q0E=", 20_001);
        assert_eq!(service["spec"]["externalName"], "localhost");
        assert_eq!(api["spec"]["service"]["port"], 20_001);
        assert_eq!(api["spec"]["caBundle"], "Q0E=");
    }

    #[test]
    fn what_is_shipped_for_the_federation_can_be_read() {
        let interpreter = manifest::read("interpreter.yaml", INTERPRETER).unwrap();
        assert_eq!(interpreter[0]["spec"]["target"]["kind"], "WorkloadDeployment");
        let policy = manifest::read("crds-to-cells.yaml", CRDS_TO_CELLS).unwrap();
        assert_eq!(policy[0]["kind"], "ClusterPropagationPolicy");
    }
}
