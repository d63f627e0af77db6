//! Tests of `polis federation` as a process: its hub is set by a kubeconfig, and its member joins as in
//! Karmada.

mod socket;

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polis_api::kube::Client;
use polis_api::kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use polis_api::{crds, labels};
use polis_apiserver::{Access, MASTERS, PlaneSpec, Server, UserInfo, kubeconfig};
use polis_testing::{create_untyped, eventually, free_address, http_get, untyped_api};
use polis_tls::Authority;
use serde_json::{Value, json};
use socket::Socket;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

const TIMEOUT: Duration = Duration::from_secs(60);
const TOKEN: &str = "of-the-hub";

/// An API server with a hub and a plane that can join it as member `dfw`.
struct Fixture {
    server: Server,
    socket: Socket,
    dir: TempDir,
}

impl Fixture {
    /// `karmada_kinds`: whether the hub serves Karmada's kinds.
    async fn new(karmada_kinds: bool) -> Self {
        let access = Access::default().token(TOKEN, UserInfo::new("hub", [MASTERS]));
        let server = Server::builder().access(access).build().await.expect("a server");
        for plane in ["hub", "dfw"] {
            server.create_plane(PlaneSpec::standalone(plane)).await.expect("a plane");
        }
        if karmada_kinds {
            for file in crds::karmada() {
                server.install_crd_in("hub", &file.crd).await.expect("installs the CRD");
            }
        }
        let socket = Socket::of(&server).await;
        let dir = tempfile::tempdir().expect("a temporary directory");
        let fixture = Self { server, socket, dir };
        fixture.write_kubeconfig("admin", &[MASTERS]);
        fixture
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_polis"));
        command
            .args(["federation", "--kubeconfig", "hub.kubeconfig", "--probe-every", "1s"])
            .env("HEALTH_PROBE_BIND_ADDRESS", "127.0.0.1:0")
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Starts the federation with its probes at this address.
    fn start_at(&self, probes: SocketAddr, more: &[&str]) -> Child {
        let mut command = self.command();
        command.args(more).env("HEALTH_PROBE_BIND_ADDRESS", probes.to_string());
        command.spawn().expect("polis starts")
    }

    /// Writes the kubeconfig of the hub with a client certificate of this user.
    fn write_kubeconfig(&self, user: &str, groups: &[&str]) {
        let certificate = self.socket.authority.client(user, groups).expect("a certificate");
        let access =
            kubeconfig(&self.socket.address, "/planes/hub", self.socket.authority.pem(), &certificate);
        std::fs::write(self.dir.path().join("hub.kubeconfig"), access).expect("writes the file");
    }

    /// Grants the user `federation` all verbs for these resources on the hub.
    async fn grant(&self, role: &str, rules: Value) {
        const RBAC: &str = "rbac.authorization.k8s.io";
        let api_version = format!("{RBAC}/v1");
        let metadata = json!({"name": role});
        self.put(
            "hub",
            json!({"apiVersion": api_version, "kind": "ClusterRole", "metadata": metadata, "rules": rules}),
        )
        .await;
        let binding = json!({"apiVersion": api_version, "kind": "ClusterRoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "federation"}]});
        self.put("hub", binding).await;
    }

    fn start(&self, more: &[&str]) -> Child {
        self.command().args(more).spawn().expect("polis starts")
    }

    fn api(&self, plane: &str, object: &Value) -> Api<DynamicObject> {
        untyped_api(&Client::new(self.server.plane_service(plane), "default"), object)
    }

    async fn put(&self, plane: &str, object: Value) {
        create_untyped(&Client::new(self.server.plane_service(plane), "default"), &object).await;
    }

    /// Waits until `matches` accepts the object; it gets `None` if the object does not exist.
    async fn until(&self, plane: &str, object: &Value, matches: impl Fn(Option<&Value>) -> bool) {
        let api = self.api(plane, object);
        let name = object["metadata"]["name"].as_str().expect("a name");
        eventually(&format!("{name} on {plane} matches"), async || {
            let found = api.get_opt(name).await.expect("a response");
            let found = found.map(|object| serde_json::to_value(object).expect("JSON"));
            matches(found.as_ref()).then_some(())
        })
        .await;
    }

    async fn join(&self) {
        self.join_trusting(self.socket.authority.pem()).await;
    }

    async fn join_trusting(&self, authority: &str) {
        for namespace in ["karmada-cluster", "karmada-system", "shop"] {
            self.put("hub", mk_namespace(namespace)).await;
        }
        self.put(
            "hub",
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "karmada-cluster", "name": "dfw"},
                "data": {"token": STANDARD.encode(TOKEN), "caBundle": STANDARD.encode(authority)}}),
        )
        .await;
        let endpoint = format!("{}/planes/dfw", self.socket.address);
        self.put(
            "hub",
            json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "dfw"},
                "spec": {"syncMode": "Push", "apiEndpoint": endpoint, "secretRef": {"namespace": "karmada-cluster", "name": "dfw"}}}),
        )
        .await;
        self.put(
            "hub",
            json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy", "metadata": {"namespace": "shop", "name": "p"},
                "spec": {"resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap"}], "placement": {"clusterAffinity": {"clusterNames": ["dfw"]}}}}),
        )
        .await;
    }
}

fn mk_namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

fn mk_config(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "shop", "name": name}, "data": {"k": "v"}})
}

/// Whether the copy of a ConfigMap has the data of [`mk_config`].
fn is_copy(found: Option<&Value>) -> bool {
    found.is_some_and(|copy| copy["data"]["k"] == "v")
}

/// Sends SIGTERM and waits for a clean exit.
async fn stop(mut child: Child) {
    let id = child.id().expect("a running process").to_string();
    assert!(Command::new("kill").arg(id).status().await.expect("kill runs").success());
    let ended = tokio::time::timeout(TIMEOUT, child.wait())
        .await
        .expect("an exit before the timeout")
        .expect("an exit status");
    assert!(ended.success(), "{ended}");
}

/// Waits until the response to a GET of the probes matches, and returns it.
async fn probe(address: SocketAddr, path: &str, matches: impl Fn(&str) -> bool) -> String {
    let what = format!("{path} of {address} matches");
    eventually(&what, async || http_get(address, path).await.filter(|response| matches(response))).await
}

/// Waits until `/readyz` is 200.
async fn ready(address: SocketAddr) {
    probe(address, "/readyz", |response| response.starts_with("HTTP/1.1 200")).await;
}

/// Whether the replica with its probes at this address leads.
async fn leads(address: SocketAddr) -> bool {
    http_get(address, "/metrics").await.is_some_and(|metrics| metrics.contains("\npolis_leader 1\n"))
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_propagated_from_the_hub_to_a_joined_member() {
    let fixture = Fixture::new(true).await;
    let first = fixture.start(&[]);
    fixture.join().await;
    fixture.put("hub", mk_config("a")).await;
    fixture.until("dfw", &mk_config("a"), is_copy).await;
    // The next process propagates the changes that were made while none ran.
    stop(first).await;
    fixture.put("hub", mk_config("b")).await;
    let gone = DeleteParams::default();
    fixture.api("hub", &mk_config("a")).delete("a", &gone).await.expect("deletes the object");
    let second = fixture.start(&["--leader-elect"]);
    fixture.until("dfw", &mk_config("b"), is_copy).await;
    fixture.until("dfw", &mk_config("a"), |found| found.is_none()).await;
    // The leader releases its Lease, so that the next one does not wait until it expires.
    stop(second).await;
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"namespace": "karmada-system", "name": "polis-federation"}});
    let free = |found: Option<&Value>| found.is_some_and(|lease| lease["spec"]["holderIdentity"] == "");
    fixture.until("hub", &lease, free).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_names_what_is_missing_until_the_members_are_known() {
    let fixture = Fixture::new(true).await;
    fixture.join().await;
    // A credential that may not read the Secret of the member.
    fixture.write_kubeconfig("federation", &[]);
    let groups = [
        "apiextensions.k8s.io",
        "cluster.karmada.io",
        "config.karmada.io",
        "events.k8s.io",
        "policy.karmada.io",
        "work.karmada.io",
    ];
    let all = |groups: &[&str], resources: &[&str]| json!({"apiGroups": groups, "resources": resources, "verbs": ["*"]});
    fixture
        .grant("federation", json!([all(&groups, &["*"]), all(&[""], &["namespaces", "configmaps"])]))
        .await;
    let probes = free_address();
    let running = fixture.start_at(probes, &[]);
    let waits = |report: &str| report.contains("failed to list the planes");
    let report = probe(probes, "/readyz?verbose", waits).await;
    assert!(report.starts_with("HTTP/1.1 503"), "{report}");
    assert!(report.contains("[+] hub: 1 engaged") && report.contains("[-] member: 0 engaged"), "{report}");
    assert!(report.contains("Secret karmada-cluster/dfw"), "{report}");
    let short = http_get(probes, "/readyz").await.expect("a response");
    assert!(short.starts_with("HTTP/1.1 503") && short.contains("/readyz?verbose"), "{short}");

    fixture.grant("federation-secrets", json!([all(&[""], &["secrets"])])).await;
    ready(probes).await;
    let report = http_get(probes, "/readyz?verbose").await.expect("a response");
    assert!(report.contains("[+] member: 1 engaged"), "{report}");
    fixture.put("hub", mk_config("a")).await;
    fixture.until("dfw", &mk_config("a"), is_copy).await;
    let metrics = http_get(probes, "/metrics").await.expect("a response");
    for series in [
        "polis_planes{set=\"hub\",state=\"engaged\"} 1",
        "polis_planes{set=\"member\",state=\"engaged\"} 1",
        "polis_watch_lag_seconds_count{kind=\"works.work.karmada.io/v1alpha1\"}",
        "polis_watch_restarts_total{kind=\"configmaps/v1\"",
        "polis_queue_depth",
    ] {
        assert!(metrics.contains(series), "no {series} in {metrics}");
    }
    for controller in
        ["cluster", "kind", "policy", "namespace", "template", "binding", "placement", "status", "work"]
    {
        assert!(
            metrics.contains(&format!("polis_reconciles_total{{controller=\"{controller}\"}}")),
            "{metrics}"
        );
    }
    assert!(!metrics.contains("polis_reconciles_total{controller=\"work\"} 0"), "{metrics}");
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_replicas_one_reconciles_and_the_other_takes_over() {
    let fixture = Fixture::new(true).await;
    fixture.join().await;
    let mut replicas = Vec::new();
    for _ in 0..2 {
        let probes = free_address();
        replicas.push((probes, fixture.start_at(probes, &["--leader-elect"])));
    }
    for (probes, _) in &replicas {
        ready(*probes).await; // also the replica that does not lead
    }
    let leaders = async |replicas: &[(SocketAddr, Child)]| {
        let mut leaders = Vec::new();
        for (at, (probes, _)) in replicas.iter().enumerate() {
            leaders.extend(leads(*probes).await.then_some(at));
        }
        leaders
    };
    let leader = eventually("a replica leads", async || {
        let leaders = leaders(&replicas).await;
        assert!(leaders.len() < 2, "{leaders:?}");
        leaders.first().copied()
    })
    .await;
    fixture.put("hub", mk_config("a")).await;
    fixture.until("dfw", &mk_config("a"), is_copy).await;
    let idle = http_get(replicas[1 - leader].0, "/metrics").await.expect("a response");
    assert!(idle.contains("polis_reconciles_total{controller=\"work\"} 0"), "the other is idle: {idle}");

    let (_, stopped) = replicas.remove(leader);
    stop(stopped).await;
    fixture.put("hub", mk_config("b")).await;
    fixture.until("dfw", &mk_config("b"), is_copy).await;
    assert_eq!(leaders(&replicas).await, [0]);
    let (_, second) = replicas.remove(0);
    stop(second).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_with_an_invalid_certificate_or_token_is_not_ready_until_its_secret_is_corrected() {
    let fixture = Fixture::new(true).await;
    let running = fixture.start(&[]);
    let other = Authority::new().expect("an authority");
    fixture.join_trusting(other.pem()).await;
    let cluster =
        json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "dfw"}});
    let condition_has = |status: &'static str, word: &'static str| {
        move |found: Option<&Value>| {
            let conditions = found.and_then(|cluster| cluster["status"]["conditions"].as_array());
            conditions.into_iter().flatten().any(|condition| {
                let message = condition["message"].as_str().unwrap_or_default();
                condition["type"] == "Ready" && condition["status"] == status && message.contains(word)
            })
        }
    };
    fixture.until("hub", &cluster, condition_has("False", "certificate")).await;
    let secrets = fixture.api(
        "hub",
        &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "karmada-cluster", "name": "dfw"}}),
    );
    let put = async |token: &str| {
        let data = json!({"token": STANDARD.encode(token), "caBundle": STANDARD.encode(fixture.socket.authority.pem())});
        let patch = Patch::Merge(json!({"data": data}));
        secrets.patch("dfw", &PatchParams::default(), &patch).await.expect("changes the Secret");
    };
    put("expired").await;
    fixture.until("hub", &cluster, condition_has("False", "Unauthorized")).await;
    put(TOKEN).await;
    fixture.until("hub", &cluster, condition_has("True", "")).await;
    stop(running).await;
}

/// Runs `polis` with a line of arguments in the directory of the fixture; returns its output.
async fn polis(fixture: &Fixture, line: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_polis"));
    command
        .args(line.split_whitespace())
        .current_dir(fixture.dir.path())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let ended = tokio::time::timeout(4 * TIMEOUT, command.output())
        .await
        .expect("an exit before the timeout")
        .expect("polis starts");
    let output =
        [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(ended.status.success(), "polis {line}: {output}");
    output
}

#[tokio::test(flavor = "multi_thread")]
async fn polis_up_works_with_an_external_hub_and_an_external_cell() {
    let fixture = Fixture::new(true).await;
    for (plane, kinds) in [("hub", crds::compute()), ("dfw", crds::of_cell())] {
        for file in kinds {
            fixture.server.install_crd_in(plane, &file.crd).await.expect("installs the CRD");
        }
    }
    let interpreter = include_str!("../../../deploy/components/federation/interpreter.yaml");
    for object in serde_saphyr::from_multiple::<Value>(interpreter).expect("YAML") {
        fixture.put("hub", object).await;
    }
    let federation = fixture.start(&[]);
    fixture.join().await;
    let cluster =
        json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "dfw"}});
    let city = Patch::Merge(json!({"metadata": {"labels": {labels::TOPOLOGY_CITY_CODE: "dfw"}}}));
    fixture
        .api("hub", &cluster)
        .patch("dfw", &PatchParams::default(), &city)
        .await
        .expect("labels the Cluster");
    let admin = fixture.socket.authority.client("admin", &[MASTERS]).expect("a certificate");
    let cell = kubeconfig(&fixture.socket.address, "/planes/dfw", fixture.socket.authority.pem(), &admin);
    std::fs::write(fixture.dir.path().join("dfw.kubeconfig"), cell).expect("writes the file");

    let mut up = Command::new(env!("CARGO_BIN_EXE_polis"))
        .args(["up", "--data-dir", "data", "--listen", "127.0.0.1:0"])
        .args(["--federation-kubeconfig", "hub.kubeconfig", "--cell", "dfw=dfw.kubeconfig"])
        .current_dir(fixture.dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("polis starts");
    let mut lines = BufReader::new(up.stdout.take().expect("piped")).lines();
    let summary = async {
        while let Some(line) = lines.next_line().await.expect("a summary") {
            if line.starts_with("Ctrl-C") {
                return;
            }
        }
        panic!("polis up exited");
    };
    tokio::time::timeout(3 * TIMEOUT, summary).await.expect("polis up is ready before the timeout");

    let flags = "--kubeconfig data/kubeconfig --timeout 3m";
    let output =
        polis(&fixture, &format!("deploy web --image polis.local/hello --city dfw --port http=8080 {flags}"))
            .await;
    assert!(output.contains("web is ready: 1 instance in 1 city"), "{output}");
    let instances =
        json!({"apiVersion": "compute.datumapis.com/v1alpha", "kind": "Instance", "metadata": {}});
    for plane in ["hub", "dfw"] {
        let found =
            fixture.api(plane, &instances).list(&Default::default()).await.expect("lists the objects").items;
        assert_eq!(found.len(), 1, "on {plane}");
    }
    polis(&fixture, &format!("destroy web --yes {flags}")).await;
    let in_cell = fixture.api("dfw", &instances);
    eventually("no Instance is left in the cell", async || {
        let left = in_cell.list(&Default::default()).await.expect("lists the objects").items;
        left.is_empty().then_some(())
    })
    .await;
    stop(up).await;
    stop(federation).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_the_hub_does_not_serve_is_an_error_at_the_start() {
    let fixture = Fixture::new(false).await;
    let ended = tokio::time::timeout(TIMEOUT, fixture.command().output())
        .await
        .expect("an exit before the timeout")
        .expect("polis starts");
    let output = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success());
    assert!(output.contains("the hub does not serve cluster.karmada.io/v1alpha1 Cluster"), "{output}");
}

#[tokio::test]
async fn the_help_has_an_example() {
    let help = Command::new(env!("CARGO_BIN_EXE_polis"))
        .args(["federation", "--help"])
        .output()
        .await
        .expect("polis starts");
    let output = String::from_utf8_lossy(&help.stdout);
    assert!(output.contains("polis federation --kubeconfig hub.kubeconfig"), "{output}");
}
