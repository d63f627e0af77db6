//! Tests of `polis manager --check-config` as a process: it reports every error in flags, files and planes
//! with what to do, and no error for a valid setup. A start of the manager makes the same checks.

mod socket;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use polis_api::crds;
use polis_api::kube::Client;
use polis_api::kube::api::{DeleteParams, Patch, PatchParams};
use polis_apiserver::{MASTERS, PlaneSpec, Server, kubeconfig};
use polis_testing::{create_untyped, untyped_api};
use polis_tls::{Authority, Certificate};
use serde_json::{Value, json};
use socket::Socket;
use tempfile::TempDir;

const MANAGER: &str = "system:serviceaccount:compute-system:compute-manager";

/// Output and exit code of a check.
struct CheckOutput {
    code: i32,
    text: String,
}

impl CheckOutput {
    #[track_caller]
    fn contains(&self, words: &[&str]) {
        for word in words {
            assert!(self.text.contains(word), "{word:?} is not in\n{}", self.text);
        }
    }
}

/// The directory with the configuration, kubeconfigs and certificates of a manager.
struct ManagerFiles {
    dir: TempDir,
}

impl ManagerFiles {
    /// All files of a management plane. No server listens on the address in the kubeconfigs.
    fn new() -> Self {
        let files = Self { dir: tempfile::tempdir().expect("a temporary directory") };
        let authority = Authority::new().expect("an authority");
        let client = authority.client(MANAGER, &[]).expect("a certificate");
        let config = kubeconfig("https://127.0.0.1:9", "", authority.pem(), &client);
        for name in ["own.kubeconfig", "hub.kubeconfig", "projects.kubeconfig"] {
            files.write(name, &config);
        }
        let pair = authority.server(&["127.0.0.1"]).expect("a certificate");
        files.write("tls.crt", &pair.cert);
        files.write("tls.key", &pair.key);
        files.configure(json!({}));
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("writes the file");
    }

    /// Writes the configuration, with additional fields in `discovery`.
    fn configure(&self, more: Value) {
        let mut discovery = json!({"mode": "milo", "discoveryKubeconfigPath": self.path("projects.kubeconfig"),
            "projectKubeconfigPath": self.path("projects.kubeconfig")});
        let fields = discovery.as_object_mut().expect("an object");
        fields.extend(more.as_object().expect("an object").clone());
        let config = json!({"apiVersion": "apiserver.config.datumapis.com/v1alpha1", "kind": "WorkloadOperator",
            "discovery": discovery, "webhookServer": {"tls": {"certDir": self.dir.path()}}});
        self.write("manager.yaml", &config.to_string());
    }

    async fn check(&self, depth: &str, more: &[&str]) -> CheckOutput {
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
            .expect("polis starts");
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        CheckOutput { code: output.status.code().expect("an exit code"), text }
    }

    /// Starts the manager without `--check-config`. It is killed when the value is dropped.
    fn start(&self) -> RunningManager {
        self.start_with(&[])
    }

    fn start_with(&self, more: &[&str]) -> RunningManager {
        // A separate log for each, because several run at a time.
        let logs = std::fs::read_dir(self.dir.path()).expect("a temporary directory").count();
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
            .expect("polis starts");
        RunningManager { child, log }
    }

    async fn check_files(&self) -> CheckOutput {
        self.check("--check-config", &[]).await
    }
}

/// A running manager and its log file.
struct RunningManager {
    child: tokio::process::Child,
    log: PathBuf,
}

impl RunningManager {
    fn output(&self) -> String {
        std::fs::read_to_string(&self.log).expect("a log")
    }

    /// Waits until its log contains all of these.
    async fn contains(&self, words: &[&str]) {
        for _ in 0..1200 {
            let output = self.output();
            if words.iter().all(|word| output.contains(word)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{words:?} are not all in\n{}", self.output());
    }

    /// Waits until it exits, and asserts that it failed with these messages.
    async fn fails_with(mut self, words: &[&str]) {
        let ended = tokio::time::timeout(Duration::from_secs(120), self.child.wait()).await;
        let status = ended.expect("an exit before the timeout").expect("an exit status");
        let output = self.output();
        assert!(!status.success(), "{output}");
        for word in words {
            assert!(output.contains(word), "{word:?} is not in\n{output}");
        }
    }
}

fn token(expires: i64) -> String {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.sign", part(json!({"alg": "none"})), part(json!({"exp": expires})))
}

fn with_token_file(config: &str, file: &Path) -> String {
    let others = config.lines().filter(|line| !line.trim_start().starts_with("client-"));
    let lines = others.map(|line| match line.trim() {
        "user:" => format!("{line}\n    tokenFile: {}", file.display()),
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn valid_files_pass_and_no_request_is_sent() {
    let output = ManagerFiles::new().check_files().await;
    // No server listens on the address in the kubeconfigs.
    assert_eq!(output.code, 0, "{}", output.text);
    output.contains(&["--federation-kubeconfig", "discovery.projectKubeconfigPath", "webhookServer.tls"]);
    assert!(!output.text.contains("error"), "{}", output.text);
}

#[tokio::test]
async fn every_invalid_file_is_reported_at_once_with_what_to_do() {
    let files = ManagerFiles::new();
    let good = std::fs::read_to_string(files.path("hub.kubeconfig")).expect("it exists");
    files.write("projects.kubeconfig", &good.replace("current-context: polis", ""));
    files.write("old.token", &token(1_700_000_000));
    files.write("hub.kubeconfig", &with_token_file(&good, &files.path("old.token")));
    std::fs::remove_file(files.path("tls.key")).expect("removes the file");
    files.configure(
        json!({"quotaKubeconfigPath": "/nowhere/kubeconfig", "clustername": "dfw", "colour": "red"}),
    );
    let output = files.check_files().await;
    assert_eq!(output.code, 2, "{}", output.text);
    output.contains(&[
        "field discovery.clustername: unknown field\n  → rename it to discovery.clusterName",
        "field discovery.colour",
        "old.token: it expired at 2023-11-14T22:13:20Z",
        "discovery.projectKubeconfigPath",
        "current-context",
        "/nowhere/kubeconfig): No such file",
        "tls.key",
        "csi-webhook-cert",
    ]);
    let (errors, actions) = (output.text.matches("error  ").count(), output.text.matches("  → ").count());
    assert_eq!(errors, actions, "every error has an action\n{}", output.text);
}

#[tokio::test]
async fn only_an_expired_token_is_an_error_and_no_token_is_printed() {
    let files = ManagerFiles::new();
    let good = std::fs::read_to_string(files.path("hub.kubeconfig")).expect("it exists");
    for (expires, code) in [(4_000_000_000, 0), (1_700_000_000, 2)] {
        files.write("token", &token(expires));
        files.write("hub.kubeconfig", &with_token_file(&good, &files.path("token")));
        let output = files.check_files().await;
        assert_eq!(output.code, code, "{}", output.text);
        assert!(!output.text.contains(&token(expires)), "{}", output.text);
    }
    std::fs::remove_file(files.path("token")).expect("removes the file");
    files.check_files().await.contains(&["token file", "deploy/components/hub-access"]);
}

/// An API server with platform, project `shop` and hub, and the roles of `deploy/components` on them.
struct TestPlanes {
    server: Server,
    socket: Socket,
}

const PLANES: [&str; 3] = ["", "project:shop", "hub"];

impl TestPlanes {
    async fn new() -> Self {
        let server = Server::builder().build().await.expect("a server");
        for file in crds::platform().iter().filter(|file| file.crd["spec"]["names"]["plural"] == "projects") {
            server.install_crd_in("", &file.crd).await.expect("installs the CRD");
        }
        for file in crds::of_project() {
            server.install_crd("projects", &file.crd).await.expect("installs the CRD");
        }
        server.create_plane(PlaneSpec::project("shop", "projects")).await.expect("a plane");
        server.create_plane(PlaneSpec::standalone("hub")).await.expect("a plane");
        for file in crds::of_hub() {
            server.install_crd_in("hub", &file.crd).await.expect("installs the CRD");
        }
        let socket = Socket::of(&server).await;
        let planes = Self { server, socket };
        let ready = json!({"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let project = json!({"apiVersion": "resourcemanager.miloapis.com/v1alpha1", "kind": "Project",
            "metadata": {"name": "shop"}, "spec": {}, "status": {"conditions": [ready]}});
        planes.put("", project).await;
        planes
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
                planes.put(plane, object).await;
            }
        }
        planes
    }

    fn client(&self, plane: &str) -> Client {
        assert!(PLANES.contains(&plane));
        Client::new(self.server.plane_service(plane), "default")
    }

    /// Creates an object and its status.
    async fn put(&self, plane: &str, object: Value) {
        create_untyped(&self.client(plane), &object).await;
    }

    fn kubeconfig(&self, prefix: &str, authority: &Authority, groups: &[&str]) -> String {
        let groups = [&["compute.datumapis.com:managers"], groups].concat();
        let client: Certificate = self.socket.authority.client(MANAGER, &groups).expect("a certificate");
        kubeconfig(&self.socket.address, prefix, authority.pem(), &client)
    }

    /// Installs an older CRD of Instances on the hub.
    async fn install_older_crd(&self) {
        let mut older =
            crds::compute().into_iter().find(|file| file.crd["spec"]["names"]["plural"] == "instances");
        let crd = &mut older.as_mut().expect("a kind").crd;
        let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        schema["status"].as_object_mut().expect("a schema").remove("default");
        schema["status"]["properties"].as_object_mut().expect("fields").remove("conditions");
        crd["spec"]["versions"][0]["additionalPrinterColumns"] = json!([]);
        self.server.install_crd_in("hub", crd).await.expect("installs the older CRD");
    }

    /// Deletes the interpreter from the hub.
    async fn delete_interpreter(&self) {
        let interpreter =
            json!({"apiVersion": "config.karmada.io/v1alpha1", "kind": "ResourceInterpreterCustomization"});
        let interpreters = untyped_api(&self.client("hub"), &interpreter);
        interpreters
            .delete("workloaddeployment", &DeleteParams::default())
            .await
            .expect("deletes the interpreter");
    }

    fn mk_files(&self) -> ManagerFiles {
        let files = ManagerFiles::new();
        files.write("own.kubeconfig", &self.kubeconfig("", &self.socket.authority, &[]));
        files.write("projects.kubeconfig", &self.kubeconfig("", &self.socket.authority, &[]));
        files.write("hub.kubeconfig", &self.kubeconfig("/planes/hub", &self.socket.authority, &[]));
        files
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn planes_are_checked_for_permissions_and_interpreter_and_each_error_names_the_manifest() {
    let planes = TestPlanes::new().await;
    let files = planes.mk_files();
    let output = files.check("--check-config=planes", &[]).await;
    assert_eq!(output.code, 0, "{}", output.text);
    output.contains(&[
        "own cluster: responds",
        "hub: responds",
        "platform: 1 projects, 1 of them ready",
        "project shop: responds",
    ]);

    // Without one verb of one role on one plane.
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"});
    let roles = untyped_api(&planes.client("hub"), &role);
    let role_object = roles.get("compute-manager").await.expect("it exists");
    let mut rules = role_object.data["rules"].clone();
    let policies = rules.as_array_mut().expect("rules").iter_mut();
    let policies = policies.filter(|rule| rule["resources"][0] == "propagationpolicies");
    policies.for_each(|rule| rule["verbs"] = json!(["get", "list", "watch", "create", "update"]));
    let patch = Patch::Merge(json!({"rules": rules}));
    roles.patch("compute-manager", &PatchParams::default(), &patch).await.expect("removes the verb");
    let output = files.check("--check-config=planes", &[]).await;
    assert_eq!(output.code, 7, "{}", output.text);
    output.contains(&[
        "hub: the manager may not delete propagationpolicies.policy.karmada.io",
        "deploy/components/rbac/hub/management.yaml grants it",
        "1 error",
    ]);

    // With the permission to read interpreters, the check covers them.
    files.write("hub.kubeconfig", &planes.kubeconfig("/planes/hub", &planes.socket.authority, &[MASTERS]));
    files.check("--check-config=planes", &[]).await.contains(&["hub: interpreter workloaddeployment"]);
    planes.delete_interpreter().await;
    let output = files.check("--check-config=planes", &[]).await;
    assert_eq!(output.code, 7, "{}", output.text);
    output.contains(&["interpreter workloaddeployment is missing", "deploy/components/federation"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tls_error_an_unreachable_plane_a_rejected_token_and_an_old_crd_are_reported() {
    let planes = TestPlanes::new().await;
    let files = planes.mk_files();
    let other_authority = Authority::new().expect("an authority");
    files.write("hub.kubeconfig", &planes.kubeconfig("/planes/hub", &other_authority, &[]));
    let output = files.check("--check-config=planes", &[]).await;
    assert_eq!(output.code, 7, "{}", output.text);
    output.contains(&["hub: TLS handshake with", "certificate-authority-data"]);

    let unreachable = planes
        .kubeconfig("/planes/hub", &planes.socket.authority, &[])
        .replace(&planes.socket.address, "https://127.0.0.1:9");
    files.write("hub.kubeconfig", &unreachable);
    files.check("--check-config=planes", &[]).await.contains(&["hub: failed to connect to 127.0.0.1:9"]);

    let hub = planes.kubeconfig("/planes/hub", &planes.socket.authority, &[]);
    files.write("token", "made-up");
    files.write("hub.kubeconfig", &with_token_file(&hub, &files.path("token")));
    let output = files.check("--check-config=planes", &[]).await;
    output.contains(&["hub: ", "the server does not accept the credentials"]);
    assert!(!output.text.contains("made-up"), "{}", output.text);

    files.write("hub.kubeconfig", &hub);
    planes.install_older_crd().await;
    let output = files.check("--check-config=planes", &[]).await;
    assert_eq!(output.code, 7, "{}", output.text);
    output.contains(&["hub: the CRD of instances.compute.datumapis.com is too old", "status.conditions"]);
}

/// Writes a configuration with a free port for the webhooks, so that several managers can run at a time.
fn use_free_ports(files: &ManagerFiles, more: Value) {
    files.configure(more);
    let text = std::fs::read_to_string(files.path("manager.yaml")).expect("it exists");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    config["webhookServer"]["host"] = json!("127.0.0.1");
    config["webhookServer"]["port"] = json!(0);
    files.write("manager.yaml", &config.to_string());
}

#[tokio::test]
async fn a_start_fails_on_invalid_files_with_the_messages_of_the_check() {
    let files = ManagerFiles::new();
    use_free_ports(&files, json!({"clustername": "dfw"}));
    files
        .start()
        .fails_with(&["field discovery.clustername: unknown field", "→ rename it to discovery.clusterName"])
        .await;

    use_free_ports(&files, json!({"quotaKubeconfigPath": "/nowhere/kubeconfig"}));
    files
        .start()
        .fails_with(&["/nowhere/kubeconfig): No such file", "→ mount the file there", "quota-credentials"])
        .await;

    use_free_ports(&files, json!({}));
    let good = std::fs::read_to_string(files.path("hub.kubeconfig")).expect("it exists");
    files.write("hub.kubeconfig", &good.replace("current-context: polis", ""));
    files.start().fails_with(&["--federation-kubeconfig", "current-context", "→ "]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_logs_errors_of_planes_and_expired_credentials_and_continues() {
    let planes = TestPlanes::new().await;
    let files = planes.mk_files();
    use_free_ports(&files, json!({}));

    // A valid setup.
    let started = files.start();
    started.contains(&["webhooks are served"]).await;

    // An expired token.
    let hub = planes.kubeconfig("/planes/hub", &planes.socket.authority, &[]);
    files.write("token", &token(1_700_000_000));
    files.write("hub.kubeconfig", &with_token_file(&hub, &files.path("token")));
    let expired = files.start();
    expired
        .contains(&[
            "it expired at 2023-11-14T22:13:20Z",
            "the token is no longer renewed",
            "the server does not accept the credentials",
        ])
        .await;
    assert!(!expired.output().contains(&token(1_700_000_000)), "the token is in the log");
    drop(expired);

    // Another certificate authority.
    let other_authority = Authority::new().expect("an authority");
    files.write("hub.kubeconfig", &planes.kubeconfig("/planes/hub", &other_authority, &[]));
    files.start().contains(&["hub: TLS handshake with", "certificate-authority-data"]).await;

    // A missing verb, a missing interpreter and an older CRD at once.
    files.write("hub.kubeconfig", &hub);
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"});
    let roles = untyped_api(&planes.client("hub"), &role);
    let mut rules = roles.get("compute-manager").await.expect("it exists").data["rules"].clone();
    let policies = rules.as_array_mut().expect("rules").iter_mut();
    let policies = policies.filter(|rule| rule["resources"][0] == "propagationpolicies");
    policies.for_each(|rule| rule["verbs"] = json!(["get", "list", "watch", "create", "update"]));
    let patch = Patch::Merge(json!({"rules": rules}));
    roles.patch("compute-manager", &PatchParams::default(), &patch).await.expect("removes the verb");
    planes.delete_interpreter().await;
    planes.install_older_crd().await;
    let lacking = files.start();
    lacking
        .contains(&[
            "hub: the manager may not delete propagationpolicies.policy.karmada.io",
            "deploy/components/rbac/hub/management.yaml grants it",
            "interpreter workloaddeployment is missing",
            "the CRD of instances.compute.datumapis.com is too old",
        ])
        .await;
    // The first manager has run meanwhile without an error.
    assert!(!started.output().contains("the manager may not"), "{}", started.output());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_states_the_effect_of_missing_location_bindings_and_of_missing_quota() {
    let planes = TestPlanes::new().await;
    let files = planes.mk_files();
    // The plane of the hub is used as a cluster with the kinds of compute and without those of the platform.
    files.write("own.kubeconfig", &planes.kubeconfig("/planes/hub", &planes.socket.authority, &[MASTERS]));
    let configure = |discovery: Value| {
        let config = json!({"apiVersion": "apiserver.config.datumapis.com/v1alpha1", "kind": "WorkloadOperator",
            "discovery": discovery});
        files.write("manager.yaml", &config.to_string());
    };
    configure(json!({"mode": "single"}));
    let words = "LocationBindings are not served here: workloads may use every city";
    files.start().contains(&[words]).await;
    configure(json!({"mode": "milo", "discoveryKubeconfigPath": files.path("projects.kubeconfig")}));
    let words = "quota enforcement is disabled: every instance is admitted without a claim";
    files.start_with(&["--enable-cell-controllers"]).contains(&[words]).await;
}

/// Sets `metricsServer.tls` in the configuration.
fn set_metrics_tls(files: &ManagerFiles, tls: Value) {
    let text = std::fs::read_to_string(files.path("manager.yaml")).expect("it exists");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    config["metricsServer"] = json!({"bindAddress": "127.0.0.1:0", "tls": tls});
    files.write("manager.yaml", &config.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_over_tls_need_a_certificate_and_permission_to_create_access_reviews() {
    let planes = TestPlanes::new().await;
    let files = planes.mk_files();
    set_metrics_tls(&files, json!({"certDir": "/nowhere"}));
    let output = files.check_files().await;
    assert_eq!(output.code, 2, "{}", output.text);
    output.contains(&["metricsServer.tls (/nowhere/tls.crt)", "→ mount a certificate there"]);

    set_metrics_tls(&files, json!({"certDir": files.dir.path()}));
    let output = files.check("--check-config=planes", &[]).await;
    assert_eq!(output.code, 7, "{}", output.text);
    output.contains(&[
        "own cluster: the manager may not create subjectaccessreviews.authorization.k8s.io",
        "own cluster: the manager may not create tokenreviews.authentication.k8s.io",
        "deploy/components/secure-metrics/role.yaml grants it",
    ]);
    let role = include_str!("../../../deploy/components/secure-metrics/role.yaml");
    for object in serde_saphyr::from_multiple::<Value>(role).expect("YAML") {
        planes.put("", object).await;
    }
    let output = files.check("--check-config=planes", &[]).await;
    assert_eq!(output.code, 0, "{}", output.text);
    output.contains(&["ok     metricsServer.tls"]);
}
