//! `polis federation` as a process: over a hub that is given by its kubeconfig, with a member that is joined as Karmada
//! joins one.

use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polis_api::crds;
use polis_api::kube::Client;
use polis_api::kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, TypeMeta,
};
use polis_apiserver::{Access, Authority, Identity, MASTERS, PlaneSpec, Server, Tls, kubeconfig};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::task::AbortHandle;

const SOON: Duration = Duration::from_secs(60);
const TOKEN: &str = "of-the-hub";

/// A hub and a plane that may join it, on a socket.
struct Site {
    server: Server,
    authority: Authority,
    address: String,
    serving: AbortHandle,
    home: TempDir,
}

impl Site {
    /// With Karmada's kinds on the hub, or without.
    async fn new(federated: bool) -> Self {
        let authority = Authority::new().expect("an authority");
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
        let pair = authority.server(&["127.0.0.1"]).expect("a certificate");
        let tls = Tls::new(&pair, Some(authority.pem())).expect("usable");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("https://{}", listener.local_addr().expect("an address"));
        let serving = tokio::spawn({
            let server = server.clone();
            async move { server.serve(listener, tls).await }
        });
        let home = tempfile::tempdir().expect("a folder");
        let admin = authority.client("admin", &[MASTERS]).expect("a certificate");
        let access = kubeconfig(&address, "/planes/hub", authority.pem(), &admin);
        std::fs::write(home.path().join("hub.kubeconfig"), access).expect("written");
        Self { server, authority, address, serving: serving.abort_handle(), home }
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
        self.join_trusting(self.authority.pem()).await;
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
        let endpoint = format!("{}/planes/dfw", self.address);
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

impl Drop for Site {
    fn drop(&mut self) {
        self.serving.abort();
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
        let data =
            json!({"token": STANDARD.encode(token), "caBundle": STANDARD.encode(site.authority.pem())});
        let patch = Patch::Merge(json!({"data": data}));
        secrets.patch("dfw", &PatchParams::default(), &patch).await.expect("changed");
    };
    put("expired").await;
    site.until("hub", &cluster, says("False", "Unauthorized")).await;
    put(TOKEN).await;
    site.until("hub", &cluster, says("True", "")).await;
    stop(running).await;
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
