//! `polis manager` with `metricsServer.secureServing`, as a process: metrics over TLS, to those whom the cluster knows and lets,
//! with a certificate that is renewed under it.

mod socket;

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use polis_api::crds;
use polis_api::k8s_openapi::api::authentication::v1::TokenRequest;
use polis_api::k8s_openapi::api::core::v1::ServiceAccount;
use polis_api::kube::api::{Api, ApiResource, DynamicObject, PostParams, TypeMeta};
use polis_api::kube::client::Body;
use polis_api::kube::{Client, Config};
use polis_apiserver::{Authority, MASTERS, PlaneSpec, Server, kubeconfig};
use serde_json::{Value, json};
use socket::Socket;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Child;

const SOON: Duration = Duration::from_secs(60);

/// A cluster with a hub and no project, and a manager beside it.
struct Site {
    server: Server,
    socket: Socket,
    home: TempDir,
    health: u16,
    metrics: u16,
}

impl Site {
    async fn new() -> Self {
        let server = Server::builder().build().await.expect("a server");
        for file in crds::platform().iter().filter(|file| file.crd["spec"]["names"]["plural"] == "projects") {
            server.install_crd_in("", &file.crd).await.expect("a definition");
        }
        server.create_plane(PlaneSpec::own("hub")).await.expect("a plane");
        for file in crds::of_hub() {
            server.install_crd_in("hub", &file.crd).await.expect("a definition");
        }
        let socket = Socket::of(&server).await;
        let home = tempfile::tempdir().expect("a folder");
        let (health, metrics) = (free_port().await, free_port().await);
        let site = Self { server, socket, home, health, metrics };
        let admin = site.socket.authority.client("admin", &[MASTERS]).expect("a certificate");
        for (name, prefix) in [("own", ""), ("hub", "/planes/hub")] {
            let text = kubeconfig(&site.socket.address, prefix, site.socket.authority.pem(), &admin);
            std::fs::write(site.path(name), text).expect("written");
        }
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Puts a certificate of this authority where the manager looks for it.
    fn issue(&self, authority: &Authority) {
        let pair = authority.server(&["127.0.0.1"]).expect("a certificate");
        // The key first: what stands between the two writes is half a renewal, which is not served.
        std::fs::write(self.path("tls.key"), pair.key).expect("written");
        std::fs::write(self.path("tls.crt"), pair.cert).expect("written");
    }

    /// Starts the manager with such a `metricsServer.tls`, and waits until it is ready.
    async fn start(&self, tls: Value) -> Child {
        let config = json!({"apiVersion": "apiserver.config.datumapis.com/v1alpha1", "kind": "WorkloadOperator",
            "discovery": {"mode": "milo"},
            "metricsServer": {"bindAddress": format!("127.0.0.1:{}", self.metrics), "tls": tls}});
        std::fs::write(self.path("manager.yaml"), config.to_string()).expect("written");
        let mut manager = tokio::process::Command::new(env!("CARGO_BIN_EXE_polis"))
            .args(["manager", "--enable-management-controllers", "--server-config"])
            .arg(self.path("manager.yaml"))
            .arg("--federation-kubeconfig")
            .arg(self.path("hub"))
            .args(["--health-probe-bind-address", &format!("127.0.0.1:{}", self.health)])
            .env("KUBECONFIG", self.path("own"))
            .env("TMPDIR", self.home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the manager starts");
        let ready = async {
            while !plain(self.health, "/readyz").await.starts_with("HTTP/1.1 200") {
                let ended = manager.try_wait().expect("a child");
                assert!(ended.is_none(), "the manager ended: {ended:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(SOON, ready).await.expect("the manager gets ready");
        manager
    }

    async fn put(&self, object: Value) {
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        let types: TypeMeta = object.types.clone().expect("a kind");
        let kind = ApiResource::from_gvk(&types.try_into().expect("a kind"));
        let client = Client::new(self.server.plane_service(""), "default");
        let api: Api<DynamicObject> = match object.metadata.namespace.as_deref() {
            Some(namespace) => Api::namespaced_with(client, namespace, &kind),
            None => Api::all_with(client, &kind),
        };
        api.create(&PostParams::default(), &object).await.expect("created");
    }

    /// A token of a service account of this name.
    async fn token(&self, account: &str) -> String {
        self.put(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": "default"}}))
            .await;
        let client = Client::new(self.server.plane_service(""), "default");
        let accounts = Api::<ServiceAccount>::namespaced(client, "default");
        let request: TokenRequest =
            serde_json::from_value(json!({"spec": {"audiences": [], "expirationSeconds": 3600}}))
                .expect("one");
        let issued = accounts.create_token_request(account, &PostParams::default(), &request).await;
        issued.expect("a token").status.expect("a token").token
    }

    /// Scrapes over a new connection. Trusts this authority, or whoever is there.
    async fn scrape(&self, trusts: Option<&Authority>, token: Option<&str>) -> Result<(u16, String), String> {
        let mut config =
            Config::new(format!("https://127.0.0.1:{}", self.metrics).parse().expect("an address"));
        match trusts {
            Some(authority) => {
                let (_, pem) = x509_parser::pem::parse_x509_pem(authority.pem().as_bytes()).expect("PEM");
                config.root_cert = Some(vec![pem.contents]);
            }
            None => config.accept_invalid_certs = true,
        }
        config.default_retry = false;
        let client = Client::try_from(config).expect("a client");
        let mut request = http::Request::get("/metrics");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Body::empty()).expect("a request");
        let response = client.send(request).await.map_err(|error| error.to_string())?;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect_bytes().await.map_err(|error| error.to_string())?;
        Ok((code, String::from_utf8_lossy(&bytes).into_owned()))
    }
}

async fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    listener.local_addr().expect("an address").port()
}

/// What is answered without TLS, head and all; empty if nobody is there.
async fn plain(port: u16, path: &str) -> String {
    let mut answer = Vec::new();
    let Ok(mut socket) = TcpStream::connect(("127.0.0.1", port)).await else { return String::new() };
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    if socket.write_all(request.as_bytes()).await.is_ok() {
        // Half an answer is none.
        let _ = socket.read_to_end(&mut answer).await;
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_over_tls_are_for_those_who_may_see_them_and_their_certificate_is_renewed_under_them() {
    let site = Site::new().await;
    let (old, new) = (Authority::new().expect("an authority"), Authority::new().expect("an authority"));
    site.issue(&old);
    let _manager = site.start(json!({"certDir": site.home.path()})).await;
    let (scraper, other) = (site.token("prometheus").await, site.token("other").await);
    let rbac = "rbac.authorization.k8s.io";
    let role = include_str!("../../../deploy/components/secure-metrics/reader.yaml");
    site.put(serde_saphyr::from_str(role).expect("YAML")).await;
    site.put(json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "compute-metrics-reader"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "prometheus"}]}))
        .await;

    let (code, page) = site.scrape(Some(&old), Some(&scraper)).await.expect("an answer");
    assert_eq!(code, 200, "{page}");
    assert!(page.contains("polis_leader"), "{page}");
    for (token, code, why) in [
        (None, 401, "a bearer token"),
        (Some("a-guess"), 401, "a bearer token"),
        (Some(other.as_str()), 403, "system:serviceaccount:default:other may not get the path /metrics"),
    ] {
        let (refused, said) = site.scrape(Some(&old), token).await.expect("an answer");
        assert_eq!(refused, code, "{said}");
        assert!(said.contains(why) && !said.contains("polis_"), "{said}");
    }
    // Neither beside the door nor by another.
    assert!(!plain(site.metrics, "/metrics").await.contains("polis_leader"));
    let elsewhere = plain(site.health, "/metrics").await;
    assert!(elsewhere.starts_with("HTTP/1.1 404") && elsewhere.contains("over TLS"), "{elsewhere}");

    assert!(site.scrape(Some(&new), Some(&scraper)).await.is_err(), "not yet renewed");
    site.issue(&new);
    let (code, page) = site.scrape(Some(&new), Some(&scraper)).await.expect("the new certificate is served");
    assert_eq!(code, 200, "{page}");
    assert!(site.scrape(Some(&old), Some(&scraper)).await.is_err(), "the old one is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_certificate_the_manager_makes_one_and_still_asks_who_scrapes() {
    let site = Site::new().await;
    let _manager = site.start(json!({})).await;
    let stranger = Authority::new().expect("an authority");
    assert!(site.scrape(Some(&stranger), None).await.is_err(), "nobody can check it");
    let (code, said) = site.scrape(None, None).await.expect("an answer");
    assert_eq!(code, 401, "{said}");
    let token = site.token("prometheus").await;
    let (code, said) = site.scrape(None, Some(&token)).await.expect("an answer");
    assert_eq!(code, 403, "{said}");
}
