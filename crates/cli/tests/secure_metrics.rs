//! Tests of `polis manager` with `metricsServer.secureServing` as a process: it serves metrics over TLS to
//! authenticated and authorised clients, and reloads a renewed certificate without a restart.

mod socket;

use std::path::PathBuf;
use std::process::Stdio;

use polis_api::crds;
use polis_api::k8s_openapi::api::authentication::v1::TokenRequest;
use polis_api::k8s_openapi::api::core::v1::ServiceAccount;
use polis_api::kube::api::{Api, PostParams};
use polis_api::kube::client::Body;
use polis_api::kube::{Client, Config};
use polis_apiserver::{MASTERS, PlaneSpec, Server, kubeconfig};
use polis_testing::{create_untyped, eventually, free_address, http_get};
use polis_tls::Authority;
use serde_json::{Value, json};
use socket::Socket;
use tempfile::TempDir;
use tokio::process::Child;

/// A cluster with a hub and without projects, and the files and ports of a manager.
struct Fixture {
    server: Server,
    socket: Socket,
    dir: TempDir,
    health: u16,
    metrics: u16,
}

impl Fixture {
    async fn new() -> Self {
        let server = Server::builder().build().await.expect("a server");
        for file in crds::platform().iter().filter(|file| file.crd["spec"]["names"]["plural"] == "projects") {
            server.install_crd_in("", &file.crd).await.expect("installs the CRD");
        }
        server.create_plane(PlaneSpec::standalone("hub")).await.expect("a plane");
        for file in crds::of_hub() {
            server.install_crd_in("hub", &file.crd).await.expect("installs the CRD");
        }
        let socket = Socket::of(&server).await;
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (health, metrics) = (free_address().port(), free_address().port());
        let fixture = Self { server, socket, dir, health, metrics };
        let admin = fixture.socket.authority.client("admin", &[MASTERS]).expect("a certificate");
        for (name, prefix) in [("own", ""), ("hub", "/planes/hub")] {
            let text = kubeconfig(&fixture.socket.address, prefix, fixture.socket.authority.pem(), &admin);
            std::fs::write(fixture.path(name), text).expect("writes the file");
        }
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a certificate of this authority to `certDir` of the manager.
    fn issue(&self, authority: &Authority) {
        let pair = authority.server(&["127.0.0.1"]).expect("a certificate");
        // Between the two writes certificate and key do not match, and the manager serves the old pair.
        std::fs::write(self.path("tls.key"), pair.key).expect("writes the file");
        std::fs::write(self.path("tls.crt"), pair.cert).expect("writes the file");
    }

    /// Starts the manager with this `metricsServer.tls` and waits until it is ready.
    async fn start(&self, tls: Value) -> Child {
        let config = json!({"apiVersion": "apiserver.config.datumapis.com/v1alpha1", "kind": "WorkloadOperator",
            "discovery": {"mode": "milo"},
            "metricsServer": {"bindAddress": format!("127.0.0.1:{}", self.metrics), "tls": tls}});
        std::fs::write(self.path("manager.yaml"), config.to_string()).expect("writes the file");
        let mut manager = tokio::process::Command::new(env!("CARGO_BIN_EXE_polis"))
            .args(["manager", "--enable-management-controllers", "--server-config"])
            .arg(self.path("manager.yaml"))
            .arg("--federation-kubeconfig")
            .arg(self.path("hub"))
            .args(["--health-probe-bind-address", &format!("127.0.0.1:{}", self.health)])
            .env("KUBECONFIG", self.path("own"))
            .env("TMPDIR", self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the manager starts");
        eventually("the manager is ready", async || {
            let ended = manager.try_wait().expect("a child process");
            assert!(ended.is_none(), "the manager exited: {ended:?}");
            plain(self.health, "/readyz").await.starts_with("HTTP/1.1 200").then_some(())
        })
        .await;
        manager
    }

    async fn put(&self, object: Value) {
        create_untyped(&Client::new(self.server.plane_service(""), "default"), &object).await;
    }

    /// Creates a service account and returns a token of it.
    async fn token(&self, account: &str) -> String {
        self.put(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": "default"}}))
            .await;
        let client = Client::new(self.server.plane_service(""), "default");
        let accounts = Api::<ServiceAccount>::namespaced(client, "default");
        let request: TokenRequest =
            serde_json::from_value(json!({"spec": {"audiences": [], "expirationSeconds": 3600}}))
                .expect("a TokenRequest");
        let issued = accounts.create_token_request(account, &PostParams::default(), &request).await;
        issued.expect("a token").status.expect("a token").token
    }

    /// Scrapes over a new connection. Trusts this authority, or any certificate with `None`.
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

/// The response without TLS, with its headers; empty if the connection fails.
async fn plain(port: u16, path: &str) -> String {
    http_get(("127.0.0.1", port), path).await.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_over_tls_need_authorisation_and_a_renewed_certificate_is_served_without_a_restart() {
    let fixture = Fixture::new().await;
    let (old, new) = (Authority::new().expect("an authority"), Authority::new().expect("an authority"));
    fixture.issue(&old);
    let _manager = fixture.start(json!({"certDir": fixture.dir.path()})).await;
    let (scraper, other) = (fixture.token("prometheus").await, fixture.token("other").await);
    let rbac = "rbac.authorization.k8s.io";
    let role = include_str!("../../../deploy/components/secure-metrics/reader.yaml");
    fixture.put(serde_saphyr::from_str(role).expect("YAML")).await;
    fixture.put(json!({"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "compute-metrics-reader"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "prometheus"}]}))
        .await;

    let (code, page) = fixture.scrape(Some(&old), Some(&scraper)).await.expect("a response");
    assert_eq!(code, 200, "{page}");
    assert!(page.contains("polis_leader"), "{page}");
    for (token, code, why) in [
        (None, 401, "a bearer token"),
        (Some("a-guess"), 401, "a bearer token"),
        (Some(other.as_str()), 403, "system:serviceaccount:default:other may not get the path /metrics"),
    ] {
        let (refused, output) = fixture.scrape(Some(&old), token).await.expect("a response");
        assert_eq!(refused, code, "{output}");
        assert!(output.contains(why) && !output.contains("polis_"), "{output}");
    }
    // Neither without TLS nor on the health address.
    assert!(!plain(fixture.metrics, "/metrics").await.contains("polis_leader"));
    let elsewhere = plain(fixture.health, "/metrics").await;
    assert!(elsewhere.starts_with("HTTP/1.1 404") && elsewhere.contains("over TLS"), "{elsewhere}");

    assert!(fixture.scrape(Some(&new), Some(&scraper)).await.is_err(), "the certificate is not renewed yet");
    fixture.issue(&new);
    let (code, page) =
        fixture.scrape(Some(&new), Some(&scraper)).await.expect("the new certificate is served");
    assert_eq!(code, 200, "{page}");
    assert!(
        fixture.scrape(Some(&old), Some(&scraper)).await.is_err(),
        "the old certificate is not served any more"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_certificate_the_manager_creates_one_and_still_requires_authorisation() {
    let fixture = Fixture::new().await;
    let _manager = fixture.start(json!({})).await;
    let other_authority = Authority::new().expect("an authority");
    assert!(
        fixture.scrape(Some(&other_authority), None).await.is_err(),
        "a self-signed certificate cannot be verified"
    );
    let (code, output) = fixture.scrape(None, None).await.expect("a response");
    assert_eq!(code, 401, "{output}");
    let token = fixture.token("prometheus").await;
    let (code, output) = fixture.scrape(None, Some(&token)).await.expect("a response");
    assert_eq!(code, 403, "{output}");
}
