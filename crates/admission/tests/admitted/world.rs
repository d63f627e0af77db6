//! The world of these tests: a kube-apiserver that is project `shop`, a stand-in for the plane of project `vault`, and
//! the webhooks on a socket.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polis_admission::{Projects, Webhook, serve};
use polis_api::compute::Workload;
use polis_api::crds;
use polis_api::kube::api::ListParams;
use polis_api::kube::{Api, Client};
use polis_api::networking::LocationBinding;
use polis_apiserver::{Authority, PlaneSpec, Server};
use polis_engine::{Engine, Fixed, Plane, Watch};
use polis_testbed::plane::LONE;
use polis_testbed::{Bed, Options, manifest};
use polis_tls::CertificateFiles;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use tokio::task::AbortHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::line::{Authoriser, Line};
use crate::manifests::mk_sandbox;

const SOON: Duration = Duration::from_secs(60);

/// Who makes a request, and in which project.
pub struct User {
    pub name: &'static str,
    pub groups: &'static [&'static str],
    /// Empty for none.
    pub project: &'static str,
}

/// Webhooks at work for one namespace.
pub struct World {
    bed: &'static Bed,
    client: Client,
    namespace: &'static str,
    home: TempDir,
    /// The line to the plane of `vault`, whose authoriser goes by the extras.
    pub vault: Line,
    pub plane_of_vault: Plane,
    serving: AbortHandle,
    _server: Server,
    _running: DropGuard,
}

fn mk_binding(city: &str) -> Value {
    json!({"apiVersion": "networking.datumapis.com/v1alpha", "kind": "LocationBinding", "metadata": {"name": city},
        "spec": {"locationRef": {"name": city}, "topology": {"topology.datum.net/city-code": city}}})
}

/// A kube-apiserver with our kinds and the cities `dfw` and `ord`.
async fn shared() -> &'static Bed {
    static READY: OnceCell<()> = OnceCell::const_new();
    let bed = polis_testbed::suite::bed(Options::single_plane()).await.expect("a bed");
    READY
        .get_or_init(async || {
            let client = bed.client(LONE).await.expect("a client");
            let kinds: Vec<Value> =
                crds::compute().into_iter().chain(crds::platform()).map(|file| file.crd).collect();
            manifest::apply_crds(&client, LONE, &kinds).await.expect("our kinds are served");
            for city in ["dfw", "ord"] {
                manifest::apply(&client, LONE, &mk_binding(city)).await.expect("a binding");
            }
        })
        .await;
    bed
}

impl World {
    pub async fn new(namespace: &'static str) -> Self {
        let bed = shared().await;
        let client = bed.client(LONE).await.expect("a client");
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        manifest::apply(&client, LONE, &object).await.expect("a namespace");
        let (server, vault) = mk_vault().await;
        let plane_of_vault = Plane::in_process("vault", vault.clone());
        let shop = Plane::from_kubeconfig("shop", &bed.kubeconfig(LONE).expect("a kubeconfig"), None)
            .await
            .expect("the plane of shop");

        let mut engine = Engine::new();
        let fixed = Fixed::new([shop, plane_of_vault.clone()]);
        let planes = engine.planes("project", fixed, [Watch::of::<LocationBinding>()]);
        let handle = engine.handle();
        let webhook = Webhook::new(Projects::by_parent(planes), &handle.registry());
        let stop = CancellationToken::new();
        tokio::spawn(engine.run(stop.clone().cancelled_owned()));
        let engaged = async {
            while !handle.is_ready() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(SOON, engaged).await.expect("every project is engaged");

        let home = tempfile::tempdir().expect("a folder");
        let authority = Authority::new().expect("an authority");
        let pair = authority.server(&["127.0.0.1"]).expect("a certificate");
        fs::write(home.path().join("tls.crt"), pair.cert).expect("a certificate");
        fs::write(home.path().join("tls.key"), pair.key).expect("a key");
        let certificates = CertificateFiles::within(home.path()).open().expect("usable");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("https://{}", listener.local_addr().expect("an address"));
        let serving = tokio::spawn(serve(listener, certificates, webhook)).abort_handle();

        let world = Self {
            bed,
            client,
            namespace,
            home,
            vault,
            plane_of_vault,
            serving,
            _server: server,
            _running: stop.drop_guard(),
        };
        world.register(&address, authority.pem()).await;
        world
    }

    /// Registers the webhooks as they are deployed, but for this namespace alone and under this address.
    async fn register(&self, address: &str, authority: &str) {
        for (file, name) in [("mutating.yaml", "mutating"), ("validating.yaml", "validating")] {
            let path: PathBuf =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/base/webhook").join(file);
            let text = fs::read_to_string(path).expect("a file");
            let mut object: Value = serde_saphyr::from_str(&text).expect("YAML");
            object["metadata"]["name"] = format!("{name}-{}", self.namespace).into();
            let hook = &mut object["webhooks"][0];
            let path = hook["clientConfig"]["service"]["path"].as_str().expect("a path").to_owned();
            hook["clientConfig"] =
                json!({"url": format!("{address}{path}"), "caBundle": STANDARD.encode(authority)});
            hook["namespaceSelector"] =
                json!({"matchLabels": {"kubernetes.io/metadata.name": self.namespace}});
            manifest::apply(&self.client, LONE, &object).await.expect("a configuration");
        }
        // The API server follows its own configuration with a delay.
        let ada = User { name: "ada", groups: &["system:masters"], project: "shop" };
        let mut probe = mk_sandbox("probe", &["nowhere"]);
        probe["spec"]["template"]["spec"]["runtime"]["resources"] = json!({});
        let deadline = tokio::time::Instant::now() + SOON;
        loop {
            let (_, said) = self.apply_with(&ada, &probe, &["--dry-run=server"]).await;
            if said.contains("cityCodes[0]") {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "the webhooks are not asked: {said}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Nobody listens any more, and nobody who was connected is answered.
    pub fn stop_serving(&mut self) {
        self.serving.abort();
    }

    /// Lets a group write workloads, and nothing else.
    pub async fn let_write_workloads(&self, group: &str) {
        for object in [
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "write-workloads"},
                "rules": [{"apiGroups": ["compute.datumapis.com"], "resources": ["workloads"], "verbs": ["*"]}]}),
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "write-workloads"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "write-workloads"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}]}),
        ] {
            manifest::apply(&self.client, LONE, &object).await.expect("a role");
        }
    }

    /// The workloads that are stored.
    pub async fn workloads(&self) -> BTreeSet<String> {
        let api = Api::<Workload>::namespaced(self.client.clone(), self.namespace);
        let list = api.list(&ListParams::default()).await.expect("a list");
        list.items.into_iter().filter_map(|workload| workload.metadata.name).collect()
    }

    /// `kubectl apply`: whether everything was taken, and what was said.
    pub async fn apply(&self, user: &User, object: &Value) -> (bool, String) {
        self.apply_with(user, object, &[]).await
    }

    /// The same for many objects, by name, in one go: kubectl goes on after a refusal.
    pub async fn apply_all(&self, user: &User, objects: &[(String, Value)]) -> (bool, String) {
        let documents: Vec<String> = objects.iter().map(|(_, object)| object.to_string()).collect();
        self.run(user, &["apply", "-f", "-"], &documents.join("\n---\n")).await
    }

    async fn apply_with(&self, user: &User, object: &Value, more: &[&str]) -> (bool, String) {
        self.run(user, &[&["apply", "-f", "-"], more].concat(), &object.to_string()).await
    }

    /// kubectl in the namespace: whether it went well, and what was said.
    pub async fn kubectl(&self, user: &User, arguments: &[&str]) -> (bool, String) {
        self.run(user, arguments, "").await
    }

    async fn run(&self, user: &User, arguments: &[&str], input: &str) -> (bool, String) {
        let mut command = tokio::process::Command::from(self.bed.kubectl(LONE).expect("kubectl"));
        let file = self.kubeconfig(user);
        command.env("KUBECONFIG", file).args(["-n", self.namespace]).args(arguments).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kubectl starts");
        let mut stdin = child.stdin.take().expect("piped");
        let input = input.to_owned();
        // kubectl may end before it has read everything.
        let feeding = tokio::spawn(async move { _ = stdin.write_all(input.as_bytes()).await });
        let output = tokio::time::timeout(SOON, child.wait_with_output())
            .await
            .expect("kubectl ends")
            .expect("output");
        feeding.await.expect("fed");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    /// A kubeconfig with which the administrator stands in for a user, who comes through a project.
    fn kubeconfig(&self, user: &User) -> PathBuf {
        let file = self.home.path().join(format!("{}-{}.kubeconfig", user.name, user.project));
        if file.exists() {
            return file;
        }
        let text = self.bed.kubeconfig_for(LONE, "admin", &["system:masters"]).expect("a kubeconfig");
        let mut config: Value = serde_saphyr::from_str(&text).expect("YAML");
        let taken = &mut config["users"][0]["user"];
        taken["as"] = user.name.into();
        taken["as-uid"] = format!("u-{}", user.name).into();
        taken["as-groups"] = json!(user.groups);
        let mut extra = json!({"example.com/team": ["one", "two"]});
        if !user.project.is_empty() {
            extra["iam.miloapis.com/parent-api-group"] = json!(["resourcemanager.miloapis.com"]);
            extra["iam.miloapis.com/parent-type"] = json!(["Project"]);
            extra["iam.miloapis.com/parent-name"] = json!([user.project]);
        }
        taken["as-user-extra"] = extra;
        fs::write(&file, config.to_string()).expect("a kubeconfig");
        file
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A plane with the two cities, behind an authoriser that goes by the extras.
async fn mk_vault() -> (Server, Line) {
    let server = Server::builder().build().await.expect("a server");
    server.create_plane(PlaneSpec::own("vault")).await.expect("a plane");
    let bindings =
        crds::platform().into_iter().find(|file| file.crd["spec"]["names"]["plural"] == "locationbindings");
    server.install_crd_in("vault", &bindings.expect("a kind").crd).await.expect("a definition");
    let client = Client::new(server.plane_service("vault"), "default");
    for city in ["dfw", "ord"] {
        manifest::apply(&client, "vault", &mk_binding(city)).await.expect("a binding");
    }
    let line = Line::new(server.plane_service("vault"), Authoriser::ByExtras);
    (server, line)
}
