//! `polis manager --check-config`, as a process: each thing that can be wrong with flags, files and planes is named with what
//! to do about it, and nothing is said where nothing is wrong.

mod socket;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use polis_api::crds;
use polis_api::kube::Client;
use polis_api::kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, TypeMeta,
};
use polis_apiserver::{Authority, Certificate, MASTERS, PlaneSpec, Server, kubeconfig};
use serde_json::{Value, json};
use socket::Socket;
use tempfile::TempDir;

const MANAGER: &str = "system:serviceaccount:compute-system:compute-manager";

/// What a check said, and how it ended.
struct Said {
    code: i32,
    text: String,
}

impl Said {
    #[track_caller]
    fn names(&self, words: &[&str]) {
        for word in words {
            assert!(self.text.contains(word), "{word:?} is not in\n{}", self.text);
        }
    }
}

/// The files of a manager.
struct Desk {
    home: TempDir,
}

impl Desk {
    /// With everything that a management plane needs, and planes that nobody has to ask.
    fn new() -> Self {
        let desk = Self { home: tempfile::tempdir().expect("a folder") };
        let authority = Authority::new().expect("an authority");
        let client = authority.client(MANAGER, &[]).expect("a certificate");
        let config = kubeconfig("https://127.0.0.1:9", "", authority.pem(), &client);
        for name in ["own.kubeconfig", "hub.kubeconfig", "projects.kubeconfig"] {
            desk.write(name, &config);
        }
        let pair = authority.server(&["127.0.0.1"]).expect("a certificate");
        desk.write("tls.crt", &pair.cert);
        desk.write("tls.key", &pair.key);
        desk.configure(json!({}));
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("written");
    }

    /// Writes the configuration, with more than the usual in `discovery`.
    fn configure(&self, more: Value) {
        let mut discovery = json!({"mode": "milo", "discoveryKubeconfigPath": self.path("projects.kubeconfig"),
            "projectKubeconfigPath": self.path("projects.kubeconfig")});
        let fields = discovery.as_object_mut().expect("an object");
        fields.extend(more.as_object().expect("an object").clone());
        let config = json!({"apiVersion": "apiserver.config.datumapis.com/v1alpha1", "kind": "WorkloadOperator",
            "discovery": discovery, "webhookServer": {"tls": {"certDir": self.home.path()}}});
        self.write("manager.yaml", &config.to_string());
    }

    async fn check(&self, depth: &str, more: &[&str]) -> Said {
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_polis"))
            .args(["manager", depth, "--enable-management-controllers", "--leader-elect", "--server-config"])
            .arg(self.path("manager.yaml"))
            .arg("--federation-kubeconfig")
            .arg(self.path("hub.kubeconfig"))
            .args(more)
            .env_clear()
            .env("KUBECONFIG", self.path("own.kubeconfig"))
            .output()
            .await
            .expect("it runs");
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        Said { code: output.status.code().expect("it ends by itself"), text }
    }

    /// Starts the manager as it would run; it ends when this is dropped.
    fn start(&self) -> Started {
        self.start_with(&[])
    }

    fn start_with(&self, more: &[&str]) -> Started {
        // Each has a log of its own: several run at a time.
        let logs = std::fs::read_dir(self.home.path()).expect("a folder").count();
        let log = self.path(&format!("log-{logs}"));
        let file = std::fs::File::create(&log).expect("a log");
        let child = tokio::process::Command::new(env!("CARGO_BIN_EXE_polis"))
            .args(["manager", "--enable-management-controllers", "--health-probe-bind-address=127.0.0.1:0"])
            .arg("--server-config")
            .arg(self.path("manager.yaml"))
            .arg("--federation-kubeconfig")
            .arg(self.path("hub.kubeconfig"))
            .args(more)
            .env_clear()
            .env("KUBECONFIG", self.path("own.kubeconfig"))
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a log"))
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .expect("it starts");
        Started { child, log }
    }

    async fn check_files(&self) -> Said {
        self.check("--check-config", &[]).await
    }
}

/// A manager that was started.
struct Started {
    child: tokio::process::Child,
    log: PathBuf,
}

impl Started {
    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).expect("a log")
    }

    /// Waits until its log holds all of these.
    async fn names(&self, words: &[&str]) {
        for _ in 0..1200 {
            let said = self.said();
            if words.iter().all(|word| said.contains(word)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{words:?} are not all in\n{}", self.said());
    }

    /// Waits until it has ended, and gives what it said.
    async fn refuses(mut self, words: &[&str]) {
        let ended = tokio::time::timeout(Duration::from_secs(120), self.child.wait()).await;
        let status = ended.expect("it ends by itself").expect("it was started");
        let said = self.said();
        assert!(!status.success(), "{said}");
        for word in words {
            assert!(said.contains(word), "{word:?} is not in\n{said}");
        }
    }
}

fn token(ends: i64) -> String {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.sign", part(json!({"alg": "none"})), part(json!({"exp": ends})))
}

fn with_token_file(config: &str, file: &Path) -> String {
    let kept = config.lines().filter(|line| !line.trim_start().starts_with("client-"));
    let lines = kept.map(|line| match line.trim() {
        "user:" => format!("{line}\n    tokenFile: {}", file.display()),
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn files_that_are_in_order_pass_and_no_plane_is_asked() {
    let said = Desk::new().check_files().await;
    // Nobody listens at the address in the kubeconfigs.
    assert_eq!(said.code, 0, "{}", said.text);
    said.names(&["--federation-kubeconfig", "discovery.projectKubeconfigPath", "webhookServer.tls"]);
    assert!(!said.text.contains("wrong"), "{}", said.text);
}

#[tokio::test]
async fn every_wrong_file_is_named_at_once_with_what_to_do() {
    let desk = Desk::new();
    let good = std::fs::read_to_string(desk.path("hub.kubeconfig")).expect("there");
    desk.write("projects.kubeconfig", &good.replace("current-context: polis", ""));
    desk.write("old.token", &token(1_700_000_000));
    desk.write("hub.kubeconfig", &with_token_file(&good, &desk.path("old.token")));
    std::fs::remove_file(desk.path("tls.key")).expect("removed");
    desk.configure(
        json!({"quotaKubeconfigPath": "/nowhere/kubeconfig", "clustername": "dfw", "colour": "red"}),
    );
    let said = desk.check_files().await;
    assert_eq!(said.code, 2, "{}", said.text);
    said.names(&[
        "field discovery.clustername: there is no such field\n  → write discovery.clusterName",
        "field discovery.colour",
        "old.token: it ended at 2023-11-14T22:13:20Z",
        "discovery.projectKubeconfigPath",
        "current-context",
        "/nowhere/kubeconfig): No such file",
        "tls.key",
        "csi-webhook-cert",
    ]);
    let (faults, ways) = (said.text.matches("wrong ").count(), said.text.matches("  → ").count());
    assert_eq!(faults, ways, "each fault has its way out\n{}", said.text);
}

#[tokio::test]
async fn a_token_that_is_good_for_longer_is_no_fault_and_its_text_is_never_shown() {
    let desk = Desk::new();
    let good = std::fs::read_to_string(desk.path("hub.kubeconfig")).expect("there");
    for (ends, code) in [(4_000_000_000, 0), (1_700_000_000, 2)] {
        desk.write("token", &token(ends));
        desk.write("hub.kubeconfig", &with_token_file(&good, &desk.path("token")));
        let said = desk.check_files().await;
        assert_eq!(said.code, code, "{}", said.text);
        assert!(!said.text.contains(&token(ends)), "{}", said.text);
    }
    std::fs::remove_file(desk.path("token")).expect("removed");
    desk.check_files().await.names(&["token file", "deploy/components/hub-access"]);
}

/// Planes with rights: platform, project `shop`, hub.
struct World {
    server: Server,
    socket: Socket,
}

const PLANES: [&str; 3] = ["", "project:shop", "hub"];

impl World {
    async fn new() -> Self {
        let server = Server::builder().build().await.expect("a server");
        for file in crds::platform().iter().filter(|file| file.crd["spec"]["names"]["plural"] == "projects") {
            server.install_crd_in("", &file.crd).await.expect("a definition");
        }
        for file in crds::of_project() {
            server.install_crd("projects", &file.crd).await.expect("a definition");
        }
        server.create_plane(PlaneSpec::project("shop", "projects")).await.expect("a plane");
        server.create_plane(PlaneSpec::own("hub")).await.expect("a plane");
        for file in crds::of_hub() {
            server.install_crd_in("hub", &file.crd).await.expect("a definition");
        }
        let socket = Socket::of(&server).await;
        let world = Self { server, socket };
        let ready = json!({"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let project = json!({"apiVersion": "resourcemanager.miloapis.com/v1alpha1", "kind": "Project",
            "metadata": {"name": "shop"}, "spec": {}, "status": {"conditions": [ready]}});
        world.put("", project).await;
        world
            .put("", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "compute-system"}}))
            .await;
        for (plane, file) in [
            ("", "leader-election/role.yaml"),
            ("", "rbac/management/projects.yaml"),
            ("project:shop", "rbac/project/management.yaml"),
            ("hub", "rbac/hub/management.yaml"),
            ("hub", "federation/interpreter.yaml"),
        ] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/components").join(file);
            let text = std::fs::read_to_string(path).expect("a manifest");
            for object in serde_saphyr::from_multiple::<Value>(&text).expect("YAML") {
                world.put(plane, object).await;
            }
        }
        world
    }

    fn objects(&self, plane: &str, object: &DynamicObject) -> Api<DynamicObject> {
        assert!(PLANES.contains(&plane));
        let types: TypeMeta = object.types.clone().expect("a kind");
        let kind = ApiResource::from_gvk(&types.try_into().expect("a kind"));
        let client = Client::new(self.server.plane_service(plane), "default");
        match object.metadata.namespace.as_deref() {
            Some(namespace) => Api::namespaced_with(client, namespace, &kind),
            None => Api::all_with(client, &kind),
        }
    }

    /// Writes an object, and its status.
    async fn put(&self, plane: &str, object: Value) {
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        let api = self.objects(plane, &object);
        let made = api.create(&PostParams::default(), &object).await.expect("created");
        if let Some(status) = object.data.get("status") {
            let (name, patch) =
                (made.metadata.name.expect("a name"), Patch::Merge(json!({"status": status})));
            api.patch_status(&name, &PatchParams::default(), &patch).await.expect("a status");
        }
    }

    fn kubeconfig(&self, prefix: &str, authority: &Authority, groups: &[&str]) -> String {
        let client: Certificate = self.socket.authority.client(MANAGER, groups).expect("a certificate");
        kubeconfig(&self.socket.address, prefix, authority.pem(), &client)
    }

    /// Puts an older definition of instances on the hub.
    async fn age_instances(&self) {
        let mut older =
            crds::compute().into_iter().find(|file| file.crd["spec"]["names"]["plural"] == "instances");
        let crd = &mut older.as_mut().expect("a kind").crd;
        let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        schema["status"].as_object_mut().expect("a schema").remove("default");
        schema["status"]["properties"].as_object_mut().expect("fields").remove("conditions");
        crd["spec"]["versions"][0]["additionalPrinterColumns"] = json!([]);
        self.server.install_crd_in("hub", crd).await.expect("an older definition");
    }

    /// Takes the interpreter from the hub.
    async fn lose_interpreter(&self) {
        let interpreter: DynamicObject =
            serde_json::from_value(json!({"apiVersion": "config.karmada.io/v1alpha1",
            "kind": "ResourceInterpreterCustomization", "metadata": {"name": "workloaddeployment"}}))
            .expect("an interpreter");
        let interpreters = self.objects("hub", &interpreter);
        interpreters.delete("workloaddeployment", &DeleteParams::default()).await.expect("gone");
    }

    fn mk_desk(&self) -> Desk {
        let desk = Desk::new();
        desk.write("own.kubeconfig", &self.kubeconfig("", &self.socket.authority, &[]));
        desk.write("projects.kubeconfig", &self.kubeconfig("", &self.socket.authority, &[]));
        desk.write("hub.kubeconfig", &self.kubeconfig("/planes/hub", &self.socket.authority, &[]));
        desk
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn planes_are_asked_for_rights_kinds_and_interpreter_and_what_is_missing_is_named_with_its_file() {
    let world = World::new().await;
    let desk = world.mk_desk();
    let said = desk.check("--check-config=planes", &[]).await;
    assert_eq!(said.code, 0, "{}", said.text);
    said.names(&[
        "own cluster: answers",
        "hub: answers",
        "platform: 1 projects, 1 of them ready",
        "project shop: answers",
    ]);

    // One verb of one role on one plane.
    let role: DynamicObject = serde_json::from_value(json!({"apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole", "metadata": {"name": "compute-manager"}}))
    .expect("a role");
    let roles = world.objects("hub", &role);
    let whole = roles.get("compute-manager").await.expect("there");
    let mut rules = whole.data["rules"].clone();
    let policies = rules.as_array_mut().expect("rules").iter_mut();
    let policies = policies.filter(|rule| rule["resources"][0] == "propagationpolicies");
    policies.for_each(|rule| rule["verbs"] = json!(["get", "list", "watch", "create", "update"]));
    let patch = Patch::Merge(json!({"rules": rules}));
    roles.patch("compute-manager", &PatchParams::default(), &patch).await.expect("less");
    let said = desk.check("--check-config=planes", &[]).await;
    assert_eq!(said.code, 7, "{}", said.text);
    said.names(&[
        "hub: we may not delete propagationpolicies.policy.karmada.io",
        "deploy/components/rbac/hub/management.yaml grants it",
        "1 fault",
    ]);

    // Somebody who may look sees whether the interpreter is there.
    desk.write("hub.kubeconfig", &world.kubeconfig("/planes/hub", &world.socket.authority, &[MASTERS]));
    desk.check("--check-config=planes", &[]).await.names(&["hub: interpreter workloaddeployment"]);
    world.lose_interpreter().await;
    let said = desk.check("--check-config=planes", &[]).await;
    assert_eq!(said.code, 7, "{}", said.text);
    said.names(&["interpreter workloaddeployment is missing", "deploy/components/federation"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plane_that_cannot_be_trusted_or_reached_and_kinds_of_an_older_version_are_named() {
    let world = World::new().await;
    let desk = world.mk_desk();
    let stranger = Authority::new().expect("an authority");
    desk.write("hub.kubeconfig", &world.kubeconfig("/planes/hub", &stranger, &[]));
    let said = desk.check("--check-config=planes", &[]).await;
    assert_eq!(said.code, 7, "{}", said.text);
    said.names(&["hub: no trusted connection", "certificate-authority-data"]);

    let nobody = world
        .kubeconfig("/planes/hub", &world.socket.authority, &[])
        .replace(&world.socket.address, "https://127.0.0.1:9");
    desk.write("hub.kubeconfig", &nobody);
    desk.check("--check-config=planes", &[]).await.names(&["hub: no connection to 127.0.0.1:9"]);

    let hub = world.kubeconfig("/planes/hub", &world.socket.authority, &[]);
    desk.write("token", "made-up");
    desk.write("hub.kubeconfig", &with_token_file(&hub, &desk.path("token")));
    let said = desk.check("--check-config=planes", &[]).await;
    said.names(&["hub: ", "the server does not know us"]);
    assert!(!said.text.contains("made-up"), "{}", said.text);

    desk.write("hub.kubeconfig", &hub);
    world.age_instances().await;
    let said = desk.check("--check-config=planes", &[]).await;
    assert_eq!(said.code, 7, "{}", said.text);
    said.names(&["hub: its instances.compute.datumapis.com are of an older version", "status.conditions"]);
}

/// A configuration whose webhooks take any free port, so that managers can start beside each other.
fn on_free_ports(desk: &Desk, more: Value) {
    desk.configure(more);
    let text = std::fs::read_to_string(desk.path("manager.yaml")).expect("there");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    config["webhookServer"]["host"] = json!("127.0.0.1");
    config["webhookServer"]["port"] = json!(0);
    desk.write("manager.yaml", &config.to_string());
}

#[tokio::test]
async fn a_start_refuses_what_is_wrong_with_files_by_the_same_words() {
    let desk = Desk::new();
    on_free_ports(&desk, json!({"clustername": "dfw"}));
    desk.start()
        .refuses(&["field discovery.clustername: there is no such field", "→ write discovery.clusterName"])
        .await;

    on_free_ports(&desk, json!({"quotaKubeconfigPath": "/nowhere/kubeconfig"}));
    desk.start()
        .refuses(&["/nowhere/kubeconfig): No such file", "→ mount the file there", "quota-credentials"])
        .await;

    on_free_ports(&desk, json!({}));
    let good = std::fs::read_to_string(desk.path("hub.kubeconfig")).expect("there");
    desk.write("hub.kubeconfig", &good.replace("current-context: polis", ""));
    desk.start().refuses(&["--federation-kubeconfig", "current-context", "→ "]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_says_in_its_log_what_planes_lack_and_what_has_ended_and_goes_on() {
    let world = World::new().await;
    let desk = world.mk_desk();
    on_free_ports(&desk, json!({}));

    // Nothing is wrong, and nothing is said.
    let started = desk.start();
    started.names(&["webhooks are served"]).await;

    // A token that has ended.
    let hub = world.kubeconfig("/planes/hub", &world.socket.authority, &[]);
    desk.write("token", &token(1_700_000_000));
    desk.write("hub.kubeconfig", &with_token_file(&hub, &desk.path("token")));
    let ended = desk.start();
    ended
        .names(&[
            "it ended at 2023-11-14T22:13:20Z",
            "whoever renews it has stopped",
            "the server does not know us",
        ])
        .await;
    assert!(!ended.said().contains(&token(1_700_000_000)), "the token is in the log");
    drop(ended);

    // An authority that did not sign.
    let stranger = Authority::new().expect("an authority");
    desk.write("hub.kubeconfig", &world.kubeconfig("/planes/hub", &stranger, &[]));
    desk.start().names(&["hub: no trusted connection", "certificate-authority-data"]).await;

    // A verb, the interpreter, and a kind of an older version, all at once.
    desk.write("hub.kubeconfig", &hub);
    let role: DynamicObject = serde_json::from_value(json!({"apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole", "metadata": {"name": "compute-manager"}}))
    .expect("a role");
    let roles = world.objects("hub", &role);
    let mut rules = roles.get("compute-manager").await.expect("there").data["rules"].clone();
    let policies = rules.as_array_mut().expect("rules").iter_mut();
    let policies = policies.filter(|rule| rule["resources"][0] == "propagationpolicies");
    policies.for_each(|rule| rule["verbs"] = json!(["get", "list", "watch", "create", "update"]));
    let patch = Patch::Merge(json!({"rules": rules}));
    roles.patch("compute-manager", &PatchParams::default(), &patch).await.expect("less");
    world.lose_interpreter().await;
    world.age_instances().await;
    let lacking = desk.start();
    lacking
        .names(&[
            "hub: we may not delete propagationpolicies.policy.karmada.io",
            "deploy/components/rbac/hub/management.yaml grants it",
            "interpreter workloaddeployment is missing",
            "its instances.compute.datumapis.com are of an older version",
        ])
        .await;
    // The first one has gone on all the while, without a fault.
    assert!(!started.said().contains("we may not"), "{}", started.said());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bare_cluster_that_binds_no_cities_and_keeps_no_quota_is_told_what_that_means() {
    let world = World::new().await;
    let desk = world.mk_desk();
    // The hub's plane stands for a cluster that has the kinds of compute and none of the platform.
    desk.write("own.kubeconfig", &world.kubeconfig("/planes/hub", &world.socket.authority, &[MASTERS]));
    let configure = |discovery: Value| {
        let config = json!({"apiVersion": "apiserver.config.datumapis.com/v1alpha1", "kind": "WorkloadOperator",
            "discovery": discovery});
        desk.write("manager.yaml", &config.to_string());
    };
    configure(json!({"mode": "single"}));
    let words = "LocationBindings are not served here: workloads may use every city";
    desk.start().names(&[words]).await;
    configure(json!({"mode": "milo", "discoveryKubeconfigPath": desk.path("projects.kubeconfig")}));
    let words = "no quota is configured: every instance is let in without a claim";
    desk.start_with(&["--enable-cell-controllers"]).names(&[words]).await;
}

/// Serves the metrics over TLS, as this says.
fn guard_metrics(desk: &Desk, tls: Value) {
    let text = std::fs::read_to_string(desk.path("manager.yaml")).expect("there");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    config["metricsServer"] = json!({"bindAddress": "127.0.0.1:0", "tls": tls});
    desk.write("manager.yaml", &config.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_over_tls_need_their_certificate_and_the_right_to_ask_who_scrapes() {
    let world = World::new().await;
    let desk = world.mk_desk();
    guard_metrics(&desk, json!({"certDir": "/nowhere"}));
    let said = desk.check_files().await;
    assert_eq!(said.code, 2, "{}", said.text);
    said.names(&["metricsServer.tls (/nowhere/tls.crt)", "→ mount a certificate there"]);

    guard_metrics(&desk, json!({"certDir": desk.home.path()}));
    let said = desk.check("--check-config=planes", &[]).await;
    assert_eq!(said.code, 7, "{}", said.text);
    said.names(&[
        "own cluster: we may not create subjectaccessreviews.authorization.k8s.io",
        "own cluster: we may not create tokenreviews.authentication.k8s.io",
        "deploy/components/secure-metrics/role.yaml grants it",
    ]);
    let role = include_str!("../../../deploy/components/secure-metrics/role.yaml");
    for object in serde_saphyr::from_multiple::<Value>(role).expect("YAML") {
        world.put("", object).await;
    }
    let said = desk.check("--check-config=planes", &[]).await;
    assert_eq!(said.code, 0, "{}", said.text);
    said.names(&["ok     metricsServer.tls"]);
}
