//! `polis federation` as a process: over a hub that is given by its kubeconfig, with a member that is joined as Karmada
//! joins one.

mod socket;

use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polis_api::kube::Client;
use polis_api::kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, TypeMeta,
};
use polis_api::{crds, labels};
use polis_apiserver::{Access, Authority, Identity, MASTERS, PlaneSpec, Server, kubeconfig};
use serde_json::{Value, json};
use socket::Socket;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

const SOON: Duration = Duration::from_secs(60);
const TOKEN: &str = "of-the-hub";

/// A hub and a plane that may join it, on a socket.
struct Site {
    server: Server,
    socket: Socket,
    home: TempDir,
}

impl Site {
    /// With Karmada's kinds on the hub, or without.
    async fn new(federated: bool) -> Self {
        let access = Access::default().token(TOKEN, Identity::new("hub", [MASTERS]));
        let server = Server::builder().access(access).build().await.expect("a server");
        for plane in ["hub", "dfw"] {
            server.create_plane(PlaneSpec::own(plane)).await.expect("a plane");
        }
        if federated {
            for file in crds::karmada() {
                server.install_crd_in("hub", &file.crd).await.expect("a definition");
            }
        }
        let socket = Socket::of(&server).await;
        let home = tempfile::tempdir().expect("a folder");
        let admin = socket.authority.client("admin", &[MASTERS]).expect("a certificate");
        let access = kubeconfig(&socket.address, "/planes/hub", socket.authority.pem(), &admin);
        std::fs::write(home.path().join("hub.kubeconfig"), access).expect("written");
        Self { server, socket, home }
    }

    fn mk_command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_polis"));
        command
            .args(["federation", "--kubeconfig", "hub.kubeconfig", "--probe-every", "1s"])
            .args(["--health-probe-bind-address", "127.0.0.1:0"])
            .current_dir(self.home.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    fn start(&self, more: &[&str]) -> Child {
        self.mk_command().args(more).spawn().expect("the federation starts")
    }

    fn api(&self, plane: &str, object: &Value) -> Api<DynamicObject> {
        let types = TypeMeta {
            api_version: object["apiVersion"].as_str().expect("a version").to_owned(),
            kind: object["kind"].as_str().expect("a kind").to_owned(),
        };
        let kind = ApiResource::from_gvk(&types.try_into().expect("a kind"));
        let client = Client::new(self.server.plane_service(plane), "default");
        match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(client, namespace, &kind),
            None => Api::all_with(client, &kind),
        }
    }

    async fn put(&self, plane: &str, object: Value) {
        let typed: DynamicObject = serde_json::from_value(object.clone()).expect("an object");
        self.api(plane, &object).create(&PostParams::default(), &typed).await.expect("created");
    }

    /// Waits until an object is as it should be, or is gone where `fits` takes nothing.
    async fn until(&self, plane: &str, object: &Value, fits: impl Fn(Option<&Value>) -> bool) {
        let api = self.api(plane, object);
        let name = object["metadata"]["name"].as_str().expect("a name");
        let arrived = async {
            loop {
                let found = api.get_opt(name).await.expect("an answer");
                let found = found.map(|object| serde_json::to_value(object).expect("JSON"));
                if fits(found.as_ref()) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(SOON, arrived)
            .await
            .unwrap_or_else(|_| panic!("{name} on {plane} is not as it should be"));
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

/// Asks a process to end, and waits until it has ended well.
async fn stop(mut child: Child) {
    let id = child.id().expect("it runs").to_string();
    assert!(Command::new("kill").arg(id).status().await.expect("kill runs").success());
    let ended = tokio::time::timeout(SOON, child.wait()).await.expect("it ends").expect("a status");
    assert!(ended.success(), "{ended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_federation_of_its_own_brings_objects_from_a_hub_to_a_joined_member() {
    let site = Site::new(true).await;
    let first = site.start(&[]);
    site.join().await;
    site.put("hub", mk_config("a")).await;
    let has = |found: Option<&Value>| found.is_some_and(|copy| copy["data"]["k"] == "v");
    site.until("dfw", &mk_config("a"), has).await;
    // What happens while no federation runs is done by the next one.
    stop(first).await;
    site.put("hub", mk_config("b")).await;
    let gone = DeleteParams::default();
    site.api("hub", &mk_config("a")).delete("a", &gone).await.expect("deleted");
    let second = site.start(&["--leader-elect"]);
    site.until("dfw", &mk_config("b"), has).await;
    site.until("dfw", &mk_config("a"), |found| found.is_none()).await;
    // The leader gives its lease back: the next one need not wait for it to run out.
    stop(second).await;
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"namespace": "karmada-system", "name": "polis-federation"}});
    let free = |found: Option<&Value>| found.is_some_and(|lease| lease["spec"]["holderIdentity"] == "");
    site.until("hub", &lease, free).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_cannot_be_trusted_or_does_not_trust_us_says_so_and_heals() {
    let site = Site::new(true).await;
    let running = site.start(&[]);
    let other = Authority::new().expect("an authority");
    site.join_trusting(other.pem()).await;
    let cluster =
        json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "dfw"}});
    let says = |status: &'static str, word: &'static str| {
        move |found: Option<&Value>| {
            let conditions = found.and_then(|cluster| cluster["status"]["conditions"].as_array());
            conditions.into_iter().flatten().any(|condition| {
                let message = condition["message"].as_str().unwrap_or_default();
                condition["type"] == "Ready" && condition["status"] == status && message.contains(word)
            })
        }
    };
    site.until("hub", &cluster, says("False", "certificate")).await;
    let secrets = site.api(
        "hub",
        &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "karmada-cluster", "name": "dfw"}}),
    );
    let put = async |token: &str| {
        let data = json!({"token": STANDARD.encode(token), "caBundle": STANDARD.encode(site.socket.authority.pem())});
        let patch = Patch::Merge(json!({"data": data}));
        secrets.patch("dfw", &PatchParams::default(), &patch).await.expect("changed");
    };
    put("expired").await;
    site.until("hub", &cluster, says("False", "Unauthorized")).await;
    put(TOKEN).await;
    site.until("hub", &cluster, says("True", "")).await;
    stop(running).await;
}

/// `polis` with a line of arguments, in the folder of a site; gives what it said.
async fn polis(site: &Site, line: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_polis"));
    command
        .args(line.split_whitespace())
        .current_dir(site.home.path())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let ended = tokio::time::timeout(4 * SOON, command.output()).await.expect("it ends").expect("it ran");
    let said =
        [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(ended.status.success(), "polis {line}: {said}");
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn polis_up_works_on_a_hub_and_in_a_cell_of_somebody_else() {
    let site = Site::new(true).await;
    for (plane, kinds) in [("hub", crds::compute()), ("dfw", crds::of_cell())] {
        for file in kinds {
            site.server.install_crd_in(plane, &file.crd).await.expect("a definition");
        }
    }
    let interpreter = include_str!("../../../deploy/components/federation/interpreter.yaml");
    for object in serde_saphyr::from_multiple::<Value>(interpreter).expect("YAML") {
        site.put("hub", object).await;
    }
    let federation = site.start(&[]);
    site.join().await;
    let cluster =
        json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "dfw"}});
    let city = Patch::Merge(json!({"metadata": {"labels": {labels::TOPOLOGY_CITY_CODE: "dfw"}}}));
    site.api("hub", &cluster).patch("dfw", &PatchParams::default(), &city).await.expect("a city");
    let admin = site.socket.authority.client("admin", &[MASTERS]).expect("a certificate");
    let cell = kubeconfig(&site.socket.address, "/planes/dfw", site.socket.authority.pem(), &admin);
    std::fs::write(site.home.path().join("dfw.kubeconfig"), cell).expect("written");

    let mut up = Command::new(env!("CARGO_BIN_EXE_polis"))
        .args(["up", "--data-dir", "data", "--listen", "127.0.0.1:0"])
        .args(["--federation-kubeconfig", "hub.kubeconfig", "--cell", "dfw=dfw.kubeconfig"])
        .current_dir(site.home.path())
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
        panic!("polis up ended");
    };
    tokio::time::timeout(3 * SOON, summary).await.expect("it is up in time");

    let place = "--kubeconfig data/kubeconfig --timeout 3m";
    let said =
        polis(&site, &format!("deploy web --image polis.local/hello --city dfw --port http=8080 {place}"))
            .await;
    assert!(said.contains("web is ready: 1 instance in 1 city"), "{said}");
    let instances =
        json!({"apiVersion": "compute.datumapis.com/v1alpha", "kind": "Instance", "metadata": {}});
    for plane in ["hub", "dfw"] {
        let found = site.api(plane, &instances).list(&Default::default()).await.expect("a list").items;
        assert_eq!(found.len(), 1, "on {plane}");
    }
    polis(&site, &format!("destroy web --yes {place}")).await;
    let clean = async {
        let left =
            async || site.api("dfw", &instances).list(&Default::default()).await.expect("a list").items;
        while !left().await.is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SOON, clean).await.expect("nothing is left in the cell");
    stop(up).await;
    stop(federation).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_without_the_kinds_is_named_before_anything_runs() {
    let site = Site::new(false).await;
    let ended =
        tokio::time::timeout(SOON, site.mk_command().output()).await.expect("it ends").expect("it ran");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success());
    assert!(said.contains("the hub does not serve cluster.karmada.io/v1alpha1 Cluster"), "{said}");
}

#[tokio::test]
async fn the_help_shows_how_to_start_a_federation() {
    let help = Command::new(env!("CARGO_BIN_EXE_polis"))
        .args(["federation", "--help"])
        .output()
        .await
        .expect("it ran");
    let said = String::from_utf8_lossy(&help.stdout);
    assert!(said.contains("polis federation --kubeconfig hub.kubeconfig"), "{said}");
}
