//! Test environment: a kube-apiserver as project `shop`, an embedded plane as project `vault`, and the
//! webhooks on a socket.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polis_admission::{ProjectResolver, Webhook, serve};
use polis_api::compute::Workload;
use polis_api::crds;
use polis_api::kube::api::ListParams;
use polis_api::kube::{Api, Client};
use polis_api::networking::LocationBinding;
use polis_engine::{Engine, FixedPlanes, Plane, Watch};
use polis_testbed::plane::SINGLE_PLANE;
use polis_testbed::{Options, TestCluster, manifest};
use polis_testing::builders::mk_location_binding;
use polis_testing::{Cluster, eventually};
use polis_tls::Authority;
use polis_tls::CertificateFiles;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use tokio::task::AbortHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::manifests::mk_sandbox;
use crate::proxy::{Authorizer, ReviewProxy};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The user and the project of a request.
pub struct User {
    pub name: &'static str,
    pub groups: &'static [&'static str],
    /// Empty for none.
    pub project: &'static str,
}

/// Running webhooks for one namespace.
pub struct TestEnv {
    cluster: &'static TestCluster,
    client: Client,
    namespace: &'static str,
    dir: TempDir,
    /// The proxy to the plane of `vault`, whose authorizer decides by the extras.
    pub vault: ReviewProxy,
    pub plane_of_vault: Plane,
    serving: AbortHandle,
    _running: DropGuard,
}

/// A kube-apiserver with the CRDs and the cities `dfw` and `ord`.
async fn shared_cluster() -> &'static TestCluster {
    static READY: OnceCell<()> = OnceCell::const_new();
    let cluster =
        polis_testbed::suite::shared_cluster(Options::single_plane()).await.expect("a test cluster");
    READY
        .get_or_init(async || {
            let client = cluster.client(SINGLE_PLANE).await.expect("a client");
            let kinds: Vec<Value> =
                crds::compute().into_iter().chain(crds::platform()).map(|file| file.crd).collect();
            manifest::apply_crds(&client, SINGLE_PLANE, &kinds).await.expect("the CRDs are served");
            for city in ["dfw", "ord"] {
                let binding = serde_json::to_value(mk_location_binding(city)).expect("plain data");
                manifest::apply(&client, SINGLE_PLANE, &binding).await.expect("a binding");
            }
        })
        .await;
    cluster
}

impl TestEnv {
    pub async fn new(namespace: &'static str) -> Self {
        let cluster = shared_cluster().await;
        let client = cluster.client(SINGLE_PLANE).await.expect("a client");
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        manifest::apply(&client, SINGLE_PLANE, &object).await.expect("a namespace");
        let vault = mk_vault().await;
        let plane_of_vault = vault.plane("vault");
        let shop =
            Plane::from_kubeconfig("shop", &cluster.kubeconfig(SINGLE_PLANE).expect("a kubeconfig"), None)
                .await
                .expect("the plane of shop");

        let mut engine = Engine::new();
        let fixed = FixedPlanes::new([shop, plane_of_vault.clone()]);
        let planes = engine.planes("project", fixed, [Watch::of::<LocationBinding>()]);
        let handle = engine.handle();
        let webhook = Webhook::new(ProjectResolver::by_parent(planes), &handle.registry());
        let stop = CancellationToken::new();
        tokio::spawn(engine.run(stop.clone().cancelled_owned()));
        eventually("every project is engaged", async || handle.is_ready().then_some(())).await;

        let dir = tempfile::tempdir().expect("a folder");
        let authority = Authority::new().expect("an authority");
        let pair = authority.server(&["127.0.0.1"]).expect("a certificate");
        fs::write(dir.path().join("tls.crt"), pair.cert).expect("a certificate");
        fs::write(dir.path().join("tls.key"), pair.key).expect("a key");
        let certificates = CertificateFiles::in_dir(dir.path()).open().expect("usable");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = format!("https://{}", listener.local_addr().expect("an address"));
        let serving = tokio::spawn(serve(listener, certificates, webhook)).abort_handle();

        let env = Self {
            cluster,
            client,
            namespace,
            dir,
            vault,
            plane_of_vault,
            serving,
            _running: stop.drop_guard(),
        };
        env.register(&address, authority.pem()).await;
        env
    }

    /// Registers the webhooks of `deploy/`, restricted to this namespace and with this address.
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
            manifest::apply(&self.client, SINGLE_PLANE, &object).await.expect("a configuration");
        }
        // The API server applies webhook configurations with a delay.
        let ada = User { name: "ada", groups: &["system:masters"], project: "shop" };
        let mut probe = mk_sandbox("probe", &["nowhere"]);
        probe["spec"]["template"]["spec"]["runtime"]["resources"] = json!({});
        eventually("the webhooks are called", async || {
            let (_, output) = self.apply_with(&ada, &probe, &["--dry-run=server"]).await;
            output.contains("cityCodes[0]").then_some(())
        })
        .await;
    }

    /// Stops the webhook server and closes its connections.
    pub fn stop_serving(&mut self) {
        self.serving.abort();
    }

    /// Grants a group write access to Workloads only.
    pub async fn grant_workload_access(&self, group: &str) {
        for object in [
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "write-workloads"},
                "rules": [{"apiGroups": ["compute.datumapis.com"], "resources": ["workloads"], "verbs": ["*"]}]}),
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "write-workloads"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "write-workloads"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}]}),
        ] {
            manifest::apply(&self.client, SINGLE_PLANE, &object).await.expect("a role");
        }
    }

    /// The names of the stored Workloads.
    pub async fn workloads(&self) -> BTreeSet<String> {
        let api = Api::<Workload>::namespaced(self.client.clone(), self.namespace);
        let list = api.list(&ListParams::default()).await.expect("a list");
        list.items.into_iter().filter_map(|workload| workload.metadata.name).collect()
    }

    /// Runs `kubectl apply`. Returns whether it succeeded, and its output.
    pub async fn apply(&self, user: &User, object: &Value) -> (bool, String) {
        self.apply_with(user, object, &[]).await
    }

    /// Like [`TestEnv::apply`] for many objects; kubectl continues after an error.
    pub async fn apply_all(&self, user: &User, objects: &[(String, Value)]) -> (bool, String) {
        let documents: Vec<String> = objects.iter().map(|(_, object)| object.to_string()).collect();
        self.run(user, &["apply", "-f", "-"], &documents.join("\n---\n")).await
    }

    async fn apply_with(&self, user: &User, object: &Value, arguments: &[&str]) -> (bool, String) {
        self.run(user, &[&["apply", "-f", "-"], arguments].concat(), &object.to_string()).await
    }

    /// Runs kubectl in the namespace. Returns whether it succeeded, and its output.
    pub async fn kubectl(&self, user: &User, arguments: &[&str]) -> (bool, String) {
        self.run(user, arguments, "").await
    }

    async fn run(&self, user: &User, arguments: &[&str], input: &str) -> (bool, String) {
        let mut command = tokio::process::Command::from(self.cluster.kubectl(SINGLE_PLANE).expect("kubectl"));
        let file = self.kubeconfig(user);
        command.env("KUBECONFIG", file).args(["-n", self.namespace]).args(arguments).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kubectl starts");
        let mut stdin = child.stdin.take().expect("piped");
        let input = input.to_owned();
        // kubectl may exit before it has read all input.
        let writing = tokio::spawn(async move { _ = stdin.write_all(input.as_bytes()).await });
        let output = tokio::time::timeout(TIMEOUT, child.wait_with_output())
            .await
            .expect("kubectl exits in time")
            .expect("output");
        writing.await.expect("no panic");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    /// A kubeconfig with which the administrator impersonates a user of a project.
    fn kubeconfig(&self, user: &User) -> PathBuf {
        let file = self.dir.path().join(format!("{}-{}.kubeconfig", user.name, user.project));
        if file.exists() {
            return file;
        }
        let text =
            self.cluster.kubeconfig_for(SINGLE_PLANE, "admin", &["system:masters"]).expect("a kubeconfig");
        let mut config: Value = serde_saphyr::from_str(&text).expect("YAML");
        let impersonation = &mut config["users"][0]["user"];
        impersonation["as"] = user.name.into();
        impersonation["as-uid"] = format!("u-{}", user.name).into();
        impersonation["as-groups"] = json!(user.groups);
        let mut extra = json!({"example.com/team": ["one", "two"]});
        if !user.project.is_empty() {
            extra["iam.miloapis.com/parent-api-group"] = json!(["resourcemanager.miloapis.com"]);
            extra["iam.miloapis.com/parent-type"] = json!(["Project"]);
            extra["iam.miloapis.com/parent-name"] = json!([user.project]);
        }
        impersonation["as-user-extra"] = extra;
        fs::write(&file, config.to_string()).expect("a kubeconfig");
        file
    }
}

impl Drop for TestEnv {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// An embedded plane with two cities, behind an authorizer that decides by the extras.
async fn mk_vault() -> ReviewProxy {
    let cluster = Cluster::builder().project("vault").build().await;
    for city in ["dfw", "ord"] {
        cluster.plane("vault").create(&mk_location_binding(city)).await.expect("a binding");
    }
    ReviewProxy::new(cluster.server(), Authorizer::ByExtras)
}
