//! A simulated pod: files, arguments and environment of the manager, as in a rendered Deployment.
//!
//! Everything is read from the Deployment, except for four values that a real pod gets from its node: the
//! addresses of health probes, webhooks and secure metrics, and the kubeconfig of its own cluster.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use polis_api::kube::{Client, Config};
use polis_testing::free_address;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::Value;

use crate::rendered::{RenderedManifests, as_text, items};

/// Parent directory of all volume mounts.
const MOUNTS: &str = "/etc/compute/";

/// What the manager of a rendered Deployment runs with.
pub struct SimulatedPod {
    /// The arguments of the container.
    pub arguments: Vec<String>,
    /// Its complete environment.
    pub environment: Vec<(String, String)>,
    /// Paths of the probes.
    pub probes: Vec<String>,
    /// Address of the probes.
    pub health: SocketAddr,
    /// Address of the webhooks.
    pub webhooks: SocketAddr,
    /// Address of the secure metrics.
    pub metrics: SocketAddr,
    /// The certificate of the webhooks, if a volume provides one.
    pub certificate: Option<String>,
}

impl SimulatedPod {
    /// Writes the files to a directory. `own` is the kubeconfig of the pod's own cluster; `kubeconfig_of`
    /// returns the kubeconfig in the ConfigMap or Secret of this name, and the projected token for the empty
    /// name.
    pub fn create(
        rendered: &RenderedManifests,
        dir: &Path,
        own: &str,
        kubeconfig_of: &dyn Fn(&str) -> String,
    ) -> SimulatedPod {
        let deployment = rendered.deployment().expect("a Deployment");
        let pod = &deployment["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let mounts_dir = format!("{}{MOUNTS}", dir.display());
        let (webhooks, metrics) = (free_address(), free_address());
        let mut certificate = None;

        fs::write(dir.join("own.kubeconfig"), own).expect("a file");
        for mount in items(&container["volumeMounts"]) {
            let path = as_text(&mount["mountPath"]);
            let mount_dir = PathBuf::from(path.replacen(MOUNTS, &mounts_dir, 1));
            assert!(mount_dir.starts_with(dir), "{path} is not below {MOUNTS}");
            fs::create_dir_all(&mount_dir).expect("a directory");
            let volume = items(&pod["volumes"]).find(|volume| volume["name"] == mount["name"]);
            let volume = volume.unwrap_or_else(|| panic!("no volume for the mount {path}"));
            let write = |name: &str, text: &str| fs::write(mount_dir.join(name), text).expect("a file");
            let map = volume["configMap"]["name"].as_str();
            let secret = volume["secret"]["secretName"].as_str();
            match map.filter(|map| !map.contains("-kubeconfig")) {
                Some(map) => {
                    let map = rendered.find("ConfigMap", map).unwrap_or_else(|| panic!("no ConfigMap {map}"));
                    for (name, text) in map["data"].as_object().expect("data") {
                        let listen =
                            format!("webhookServer:\n  host: {}\n  port: {}", webhooks.ip(), webhooks.port());
                        let scraped = format!("bindAddress: {metrics}");
                        let text =
                            as_text(text).replace(MOUNTS, &mounts_dir).replace("webhookServer:", &listen);
                        write(name, &text.replace("bindAddress: \":8443\"", &scraped));
                    }
                }
                None if volume["csi"].is_object() => {
                    let names = vec!["compute-webhook.compute-system.svc".to_owned(), "127.0.0.1".to_owned()];
                    let issued = rcgen::generate_simple_self_signed(names).expect("a certificate");
                    write("tls.crt", &issued.cert.pem());
                    write("tls.key", &issued.signing_key.serialize_pem());
                    certificate = Some(issued.cert.pem());
                }
                None if volume["projected"].is_object() => write("token", &kubeconfig_of("")),
                None => {
                    let name = map.or(secret).unwrap_or_else(|| panic!("unsupported volume {volume}"));
                    write("kubeconfig", &kubeconfig_of(name).replace(MOUNTS, &mounts_dir));
                }
            }
        }

        let environment = items(&container["env"]).map(|variable| {
            let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                Some("metadata.namespace") => as_text(&deployment["metadata"]["namespace"]).to_owned(),
                Some(other) => panic!("unsupported field {other}"),
                None => as_text(&variable["value"]).replace(MOUNTS, &mounts_dir),
            };
            (as_text(&variable["name"]).to_owned(), value)
        });
        let health = free_address();
        let overrides = [
            ("HEALTH_PROBE_BIND_ADDRESS".to_owned(), health.to_string()),
            ("KUBECONFIG".to_owned(), dir.join("own.kubeconfig").display().to_string()),
        ];
        let environment: Vec<(String, String)> =
            environment.filter(|(name, _)| overrides.iter().all(|(other, _)| other != name)).collect();
        let probes = ["livenessProbe", "readinessProbe"].map(|probe: &str| {
            assert_eq!(container[probe]["httpGet"]["port"], Value::from("health"), "{probe}");
            as_text(&container[probe]["httpGet"]["path"]).to_owned()
        });
        SimulatedPod {
            arguments: items(&container["args"]).map(|argument| as_text(argument).to_owned()).collect(),
            environment: environment.into_iter().chain(overrides).collect(),
            probes: probes.to_vec(),
            health,
            webhooks,
            metrics,
            certificate,
        }
    }
}

/// A client for webhooks that trusts only this certificate.
pub fn webhook_client(address: SocketAddr, certificate: &str) -> Client {
    let trusted = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate");
    let mut config = Config::new(format!("https://{address}").parse().expect("an address"));
    config.root_cert = Some(vec![trusted.to_vec()]);
    config.default_retry = false;
    Client::try_from(config).expect("a client")
}
