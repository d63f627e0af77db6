//! A pod, played: the files, the arguments and the environment that a rendered Deployment gives to the manager.
//!
//! Read from the Deployment and not retyped. Four things stand in for what a pod has of its own: the address that probes
//! ask, the addresses of the webhooks and of metrics of their own, and the way to its own cluster.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
};

use polis_api::kube::{Client, Config};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::Value;

use crate::rendered::{Rendered, each, word};

/// Where everything that is mounted lies.
const MOUNTS: &str = "/etc/compute/";

/// What the manager of a rendered Deployment is started with.
pub struct Pod {
    /// The arguments of the container.
    pub arguments: Vec<String>,
    /// Its whole environment.
    pub environment: Vec<(String, String)>,
    /// The paths that the kubelet asks.
    pub probes: Vec<String>,
    /// Where it is asked for them.
    pub health: SocketAddr,
    /// Where it serves webhooks, if it does.
    pub webhooks: SocketAddr,
    /// Where it serves metrics over TLS, if it does.
    pub metrics: SocketAddr,
    /// The certificate of the webhooks, if they have one.
    pub certificate: Option<String>,
}

impl Pod {
    /// Lays out the files in a folder. `own` is the kubeconfig of the pod's own cluster; `brings` gives the kubeconfig that
    /// an environment puts into an object of this name, and a projected token for the object that is none.
    pub fn lay(rendered: &Rendered, folder: &Path, own: &str, brings: &dyn Fn(&str) -> String) -> Pod {
        let deployment = rendered.deployment().expect("a Deployment");
        let pod = &deployment["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let inside = format!("{}{MOUNTS}", folder.display());
        let (webhooks, metrics) = (free_address(), free_address());
        let mut certificate = None;

        fs::write(folder.join("own.kubeconfig"), own).expect("a file");
        for mount in each(&container["volumeMounts"]) {
            let path = word(&mount["mountPath"]);
            let place = PathBuf::from(path.replacen(MOUNTS, &inside, 1));
            assert!(place.starts_with(folder), "{path} is not below {MOUNTS}");
            fs::create_dir_all(&place).expect("a folder");
            let volume = each(&pod["volumes"]).find(|volume| volume["name"] == mount["name"]);
            let volume = volume.unwrap_or_else(|| panic!("nothing is mounted at {path}"));
            let put = |name: &str, text: &str| fs::write(place.join(name), text).expect("a file");
            let map = volume["configMap"]["name"].as_str();
            let secret = volume["secret"]["secretName"].as_str();
            match map.filter(|map| !map.contains("-kubeconfig")) {
                Some(map) => {
                    let map = rendered.find("ConfigMap", map).unwrap_or_else(|| panic!("no ConfigMap {map}"));
                    for (name, text) in map["data"].as_object().expect("data") {
                        let listen =
                            format!("webhookServer:\n  host: {}\n  port: {}", webhooks.ip(), webhooks.port());
                        let scraped = format!("bindAddress: {metrics}");
                        let text = word(text).replace(MOUNTS, &inside).replace("webhookServer:", &listen);
                        put(name, &text.replace("bindAddress: \":8443\"", &scraped));
                    }
                }
                None if volume["csi"].is_object() => {
                    let names = vec!["compute-webhook.compute-system.svc".to_owned(), "127.0.0.1".to_owned()];
                    let issued = rcgen::generate_simple_self_signed(names).expect("a certificate");
                    put("tls.crt", &issued.cert.pem());
                    put("tls.key", &issued.signing_key.serialize_pem());
                    certificate = Some(issued.cert.pem());
                }
                None if volume["projected"].is_object() => put("token", &brings("")),
                None => {
                    let name = map.or(secret).unwrap_or_else(|| panic!("the suite plays no {volume}"));
                    put("kubeconfig", &brings(name).replace(MOUNTS, &inside));
                }
            }
        }

        let given = each(&container["env"]).map(|variable| {
            let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                Some("metadata.namespace") => word(&deployment["metadata"]["namespace"]).to_owned(),
                Some(other) => panic!("the suite plays no {other}"),
                None => word(&variable["value"]).replace(MOUNTS, &inside),
            };
            (word(&variable["name"]).to_owned(), value)
        });
        let health = free_address();
        let stand_ins = [
            ("HEALTH_PROBE_BIND_ADDRESS".to_owned(), health.to_string()),
            ("KUBECONFIG".to_owned(), folder.join("own.kubeconfig").display().to_string()),
        ];
        let given: Vec<(String, String)> =
            given.filter(|(name, _)| stand_ins.iter().all(|(other, _)| other != name)).collect();
        let probes = ["livenessProbe", "readinessProbe"].map(|probe: &str| {
            assert_eq!(container[probe]["httpGet"]["port"], Value::from("health"), "{probe}");
            word(&container[probe]["httpGet"]["path"]).to_owned()
        });
        Pod {
            arguments: each(&container["args"]).map(|argument| word(argument).to_owned()).collect(),
            environment: given.into_iter().chain(stand_ins).collect(),
            probes: probes.to_vec(),
            health,
            webhooks,
            metrics,
            certificate,
        }
    }
}

/// A client of the webhooks at an address that trusts this certificate and no other.
pub fn webhook_client(address: SocketAddr, certificate: &str) -> Client {
    let trusted = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate");
    let mut config = Config::new(format!("https://{address}").parse().expect("an address"));
    config.root_cert = Some(vec![trusted.to_vec()]);
    config.default_retry = false;
    Client::try_from(config).expect("a client")
}

/// An address that nobody listens on now. Somebody else may take it before it is used; then the process says so.
pub(crate) fn free_address() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("it has an address")
}
