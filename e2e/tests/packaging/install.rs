//! Runs the commands of `docs/operations/install.md` on three API servers: one with the projects, which is
//! also the cluster of the management plane; the hub, a Karmada; and the cell of Dallas.
//!
//! A shell runs the commands line by line with the kubectl of the test bed. A test cluster has no nodes, so
//! its pods are simulated: the test reads each Deployment from its API server and starts the manager with its
//! files, arguments and environment. `exec` and `port-forward` reach that process.

use std::{collections::BTreeMap, fs, process::Command, sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use polis_api::{crds, kube::Client};
use polis_e2e::{
    fakes,
    planes::ClientIdentity,
    proxy::{ProxyRoute, RequestLog, TlsProxy, project_path},
    recorder::{self, PlaneRecorder},
    rendered::{self, RenderedManifests, as_text, objects, root, text},
};
use polis_testbed::{Options, TestCluster, cell, manifest, pki::MASTERS, plane::HUB};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::{Manager, program};

const NAMESPACE: &str = "compute-system";
const MANAGER: &str = "system:serviceaccount:compute-system:compute-manager";
const PROJECTS: &str = "projects";
const CELL: &str = "dfw";
/// The contexts of the page, and the plane behind each.
const CONTEXTS: [(&str, &str); 4] =
    [("projects", PROJECTS), ("management", PROJECTS), ("hub", HUB), ("dfw", CELL)];
const TIMEOUT: Duration = Duration::from_secs(180);
/// The Secret that pod tokens are bound to.
const BOUND: &str = "bound";

/// CRDs of programs that the test cluster does not run; the manifests of the page contain their objects.
const OTHER_KINDS: [(&str, &str, &str, &str, &str); 5] = [
    (PROJECTS, "quota.miloapis.com/v1alpha1", "GrantCreationPolicy", "grantcreationpolicies", "Cluster"),
    (PROJECTS, "iam.miloapis.com/v1alpha1", "ProtectedResource", "protectedresources", "Cluster"),
    (PROJECTS, "iam.miloapis.com/v1alpha1", "Role", "roles", "Namespaced"),
    ("", "monitoring.coreos.com/v1", "ServiceMonitor", "servicemonitors", "Namespaced"),
    ("", "monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules", "Namespaced"),
];

/// An operator's environment: the repository, kubectl, and credentials.
struct Installation {
    cluster: TestCluster,
    dir: TempDir,
    /// A proxy in place of the platform's endpoint: projects below their paths.
    platform: TlsProxy,
    /// The same with the credential that claims quota.
    quota: TlsProxy,
    pods: BTreeMap<String, Manager>,
}

impl Installation {
    async fn new() -> Installation {
        let mut options = Options::federation(["DFW"]);
        options.projects = vec![PROJECTS.to_owned()];
        options.crds = false;
        let cluster = Box::pin(TestCluster::up(options)).await.expect("a test cluster");
        let hub = cluster.client(HUB).await.expect("a client");
        // The page starts with a member without the city label.
        let no_city = json!({"metadata": {"labels": {"topology.datum.net/city-code": null}}});
        let patch = polis_api::kube::api::Patch::Merge(&no_city);
        cell::clusters(&hub)
            .patch(CELL, &Default::default(), &patch)
            .await
            .expect("a Cluster without a city");

        // What exists before Polis: the platform's CRDs, and the manager's service account on the hub.
        let platform = crds::of_project().into_iter().chain(crds::platform());
        let platform: Vec<Value> =
            platform.filter(|file| file.folder != crds::COMPUTE_FOLDER).map(|f| f.crd).collect();
        let projects = cluster.client(PROJECTS).await.expect("a client");
        manifest::apply_crds(&projects, PROJECTS, &platform).await.expect("the platform's kinds");
        for (plane, version, kind, plural, scope) in OTHER_KINDS {
            let planes = if plane.is_empty() { vec![PROJECTS, CELL] } else { vec![plane] };
            for plane in planes {
                let client = cluster.client(plane).await.expect("a client");
                let kind = crd_without_schema(version, kind, plural, scope);
                manifest::apply_crds(&client, plane, &[kind]).await.expect("a CRD without a schema");
            }
        }
        for object in [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
            json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": "compute-manager", "namespace": NAMESPACE}}),
            // In place of the authentication configuration of the page, which puts tokens of the management
            // plane into the group of managers: here the hub issues them.
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": "tokens-of-the-manager"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "compute-manager"},
                "subjects": [{"kind": "ServiceAccount", "name": "compute-manager", "namespace": NAMESPACE}]}),
        ] {
            manifest::apply(&hub, HUB, &object).await.expect("the manager's service account");
        }
        manifest::apply(
            &projects,
            PROJECTS,
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "milo-system"}}),
        )
        .await
        .expect("the platform's namespace");

        let proxy_as = async |user: &str, groups: &[&str]| {
            let client = cluster.client_for(PROJECTS, user, groups).await.expect("a client");
            let identity = Arc::new(ClientIdentity {
                user: user.to_owned(),
                groups: groups.iter().map(ToString::to_string).collect(),
            });
            let route = |prefix: String, client: &Client| ProxyRoute {
                prefix,
                plane: PROJECTS.into(),
                identity: identity.clone(),
                client: client.clone(),
            };
            let routes = vec![route(project_path("shop"), &client), route(String::new(), &client)];
            TlsProxy::start(routes, Arc::new(RequestLog::default())).await.expect("a proxy")
        };
        let platform = proxy_as(MANAGER, &["compute.datumapis.com:managers"]).await;
        let groups = ["compute.datumapis.com:cells", "compute.datumapis.com:city:DFW"];
        let quota = proxy_as("compute-cell-dfw", &groups).await;
        let installation = Installation {
            cluster,
            dir: tempfile::tempdir().expect("a directory"),
            platform,
            quota,
            pods: BTreeMap::new(),
        };
        installation.create_files();
        installation
    }

    /// Creates the repository copy, kubectl on the path, the four contexts, and the quota credential.
    fn create_files(&self) {
        let dir = self.dir.path();
        for folder in ["deploy", "docs"] {
            let copied = Command::new("cp").arg("-r").arg(root().join(folder)).arg(dir).status();
            assert!(copied.expect("cp runs").success());
        }
        fs::create_dir(dir.join("bin")).expect("a directory");
        let kubectl = rendered::kubectl().get_program().to_owned();
        std::os::unix::fs::symlink(kubectl, dir.join("bin/kubectl")).expect("a link");
        let mut kubeconfig =
            json!({"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [], "contexts": []});
        for (context, plane) in CONTEXTS {
            let (cluster, user) = self.connection(plane, "admin", &[MASTERS]);
            let mut add =
                |list: &str, entry: Value| kubeconfig[list].as_array_mut().expect("a list").push(entry);
            add("clusters", json!({"name": context, "cluster": cluster}));
            add("users", json!({"name": context, "user": user}));
            add("contexts", json!({"name": context, "context": {"cluster": context, "user": context}}));
        }
        fs::write(dir.join("contexts"), kubeconfig.to_string()).expect("a kubeconfig");
        fs::write(dir.join("quota.kubeconfig"), self.quota.kubeconfig()).expect("a kubeconfig");
    }

    /// Cluster and user of a kubeconfig for a user on a plane.
    fn connection(&self, plane: &str, user: &str, groups: &[&str]) -> (Value, Value) {
        let config = self.cluster.kubeconfig_for(plane, user, groups).expect("a kubeconfig");
        let config = objects("kubeconfig", &config).remove(0);
        (config["clusters"][0]["cluster"].clone(), config["users"][0]["user"].clone())
    }

    /// Runs a line of the page.
    async fn run_line(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let context = words.iter().position(|word| *word == "--context").map(|at| words[at + 1].to_owned());
        if line.contains(" exec ") {
            let pod = &self.pods[&context.expect("a context")].pod;
            let arguments = line.split(" -- polis ").nth(1).expect("a command of polis").split(' ');
            let output = Command::new(program())
                .args(arguments)
                .env_clear()
                .envs(pod.environment.iter().map(|(name, value)| (name, value)))
                .output()
                .expect("it runs");
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stdout));
            return;
        }
        if line.contains("port-forward") || line.starts_with("curl") {
            let response = self.pods["management"].http_get("/readyz?verbose").expect("a response");
            assert!(response.starts_with("HTTP/1.1 200"), "{response}");
            return;
        }
        if line.contains("rollout status") {
            self.start_pod(context.as_deref().expect("a context")).await;
        }
        self.shell(line);
        if words[0] == "cp" {
            self.change_values(words[2], words[3]);
        }
    }

    fn shell(&self, line: &str) -> String {
        let dir = self.dir.path();
        let path = format!("{}:{}", dir.join("bin").display(), std::env::var("PATH").unwrap_or_default());
        let output = Command::new("sh")
            .args(["-ec", line])
            .current_dir(dir)
            .env("PATH", path)
            .env("KUBECONFIG", dir.join("contexts"))
            .output()
            .expect("a shell");
        assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// "Change the values, and the path to deploy".
    fn change_values(&self, example: &str, copy: &str) {
        let (hub, cell) = self.connection(
            HUB,
            "compute-cell-dfw",
            &["compute.datumapis.com:cells", "compute.datumapis.com:city:DFW"],
        );
        let folder = self.dir.path().join(copy);
        let change = |file: &str, values: &[(&str, String)]| {
            let path = folder.join(file);
            let mut text = fs::read_to_string(&path).expect("a file of the example");
            for (from, to) in values {
                assert!(text.contains(from), "{example}/{file} has no {from}");
                text = text.replace(from, to);
            }
            fs::write(path, text).expect("a file");
        };
        change("kustomization.yaml", &[("../../../../deploy", "../deploy".to_owned())]);
        let address = if copy == "my-cell" {
            "https://hub.example.com:5443"
        } else {
            "https://karmada-apiserver.karmada-system.svc.cluster.local:5443"
        };
        let authority =
            format!("certificate-authority-data: {}", as_text(&hub["certificate-authority-data"]));
        change(
            "hub.kubeconfig",
            &[
                (address, as_text(&hub["server"]).to_owned()),
                ("certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt", authority),
            ],
        );
        if copy == "my-cell" {
            // "With client certificates the same names go into CN and two O."
            let certificate = format!(
                "client-certificate-data: {}\n      client-key-data: {}",
                as_text(&cell["client-certificate-data"]),
                as_text(&cell["client-key-data"])
            );
            change("hub.kubeconfig", &[("tokenFile: /etc/compute/hub-token/token", certificate)]);
        }
    }

    /// Acts as the node: starts the manager of a plane's Deployment with the objects on that plane, and
    /// updates the Deployment's status.
    async fn start_pod(&mut self, context: &str) {
        let get = |kind: &str| {
            let output =
                self.shell(&format!("kubectl --context {context} -n {NAMESPACE} get {kind} -o json"));
            let list: Value = serde_json::from_str(&output).expect("a list");
            let mut items = list["items"].as_array().cloned().unwrap_or_default();
            items.iter_mut().for_each(|item| item["kind"] = json!(kind));
            items
        };
        let objects_on_plane =
            RenderedManifests([get("Deployment"), get("ConfigMap"), get("Secret")].concat());
        let token = |plane: &str| {
            // A token that is bound to an object becomes invalid with the object.
            self.shell(&format!("kubectl --context {plane} -n {NAMESPACE} create secret generic {BOUND}"));
            let bound = format!("--bound-object-kind=Secret --bound-object-name={BOUND}");
            let create = format!("kubectl --context {plane} -n {NAMESPACE} create token compute-manager");
            self.shell(&format!("{create} {bound}")).trim().to_owned()
        };
        let (hub_token, own) = match context {
            CELL => {
                // A pod connects to its own cluster with its service account token.
                let (cluster, _) = self.connection(CELL, MANAGER, &[]);
                let own = json!({"apiVersion": "v1", "kind": "Config", "current-context": "own",
                    "clusters": [{"name": "own", "cluster": cluster}], "users": [{"name": "own", "user": {"token": token(CELL)}}],
                    "contexts": [{"name": "own", "context": {"cluster": "own", "user": "own"}}]});
                (String::new(), own.to_string())
            }
            _ => (token(HUB), self.platform.kubeconfig()),
        };
        let kubeconfig_of = |name: &str| -> String {
            if name.is_empty() {
                return hub_token.clone();
            }
            if let Some(map) = objects_on_plane.find("ConfigMap", name) {
                return as_text(&map["data"]["kubeconfig"]).to_owned();
            }
            let secret = objects_on_plane.find("Secret", name).unwrap_or_else(|| panic!("no Secret {name}"));
            let data = BASE64_STANDARD.decode(as_text(&secret["data"]["kubeconfig"])).expect("base64");
            String::from_utf8(data).expect("a text")
        };
        let mut manager = Manager::with(&objects_on_plane, &own, &kubeconfig_of);
        manager.start();
        manager.until_leading().await;
        self.pods.insert(context.to_owned(), manager);
        let deployment = objects_on_plane.deployment().expect("a Deployment");
        let replicas = &deployment["spec"]["replicas"];
        let status = json!({"status": {"observedGeneration": deployment["metadata"]["generation"], "replicas": replicas,
            "updatedReplicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
            "conditions": [{"type": "Available", "status": "True"}]}});
        self.shell(&format!(
            "kubectl --context {context} -n {NAMESPACE} patch deployment compute-manager --subresource=status --type=merge -p '{status}'"
        ));
    }
}

impl Installation {
    /// Acts as the kubelet: writes a new hub token to the pod of the management plane, and invalidates the
    /// old one.
    async fn renew_hub_token(&self) {
        let file = self.pods["management"].files.path().join("etc/compute/hub-token/token");
        let old = fs::read_to_string(&file).expect("a token");
        let new = self.shell(&format!("kubectl --context hub -n {NAMESPACE} create token compute-manager"));
        assert_ne!(old.trim(), new.trim());
        fs::write(&file, new.trim()).expect("a token");
        self.shell(&format!("kubectl --context hub -n {NAMESPACE} delete secret {BOUND}"));
        let (hub, _) = self.connection(HUB, "admin", &[MASTERS]);
        let command = format!(
            "kubectl --kubeconfig=/dev/null --server={} --insecure-skip-tls-verify --token={old} get --raw /version 2>&1 || true",
            as_text(&hub["server"])
        );
        // API servers cache authentication for some seconds.
        let invalid = manifest::until(HUB, "the old token to become invalid", TIMEOUT, async || {
            let output = self.shell(&command);
            Ok(output.contains("Unauthorized").then_some(()))
        });
        invalid.await.unwrap_or_else(|err| panic!("{err}"));
    }
}

/// A CRD that accepts any object.
fn crd_without_schema(version: &str, kind: &str, plural: &str, scope: &str) -> Value {
    let (group, version) = version.split_once('/').expect("a group and a version");
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": scope, "names": {"kind": kind, "plural": plural},
            "versions": [{"name": version, "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    })
}

/// The commands of the numbered sections of a page: the lines of their `sh` blocks.
fn commands(page: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for section in
        page.split("\n## ").filter(|section| section.starts_with(|first: char| first.is_ascii_digit()))
    {
        for block in section.split("```sh\n").skip(1) {
            let block = block.split("```").next().unwrap_or_default();
            let commands = block.lines().map(|line| line.split("  #").next().unwrap_or_default().trim());
            lines.extend(
                commands.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned),
            );
        }
    }
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_page_install_management_plane_hub_and_a_cell() {
    let commands = commands(&text("docs/operations/install.md"));
    assert!(commands.len() > 15, "{commands:?}");
    let mut installation = Box::pin(Installation::new()).await;
    for line in &commands {
        installation.run_line(line).await;
    }
    assert_eq!(installation.pods.len(), 2, "management plane and cell run");
    // "Tokens and certificates in separate files are reloaded without a restart"
    installation.renew_hub_token().await;

    // "Then deploy a workload to one city"
    let (cluster, shop) = (&installation.cluster, "shop");
    let client = async |plane: &str| cluster.client(plane).await.expect("a client");
    let recorders = [
        Arc::new(PlaneRecorder::start(PROJECTS, client(PROJECTS).await, recorder::kinds_of_project())),
        Arc::new(PlaneRecorder::start(CELL, client(CELL).await, recorder::kinds_of_cell())),
    ];
    let _fakes = (fakes::start_quota_service(&recorders[0]), fakes::start_provider(&recorders[1]));
    let ready = json!({"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let project = json!({"apiVersion": "resourcemanager.miloapis.com/v1alpha1", "kind": "Project",
        "metadata": {"name": shop}, "spec": {"ownerRef": {"kind": "Organization", "name": "suite"}}});
    manifest::apply(&client(PROJECTS).await, PROJECTS, &project).await.expect("a project");
    installation.shell(&format!(
        "kubectl --context projects patch project {shop} --subresource=status --type=merge -p '{}'",
        json!({"status": {"conditions": [ready]}})
    ));
    let mut web = polis_e2e::builders::deployment("web").to("DFW").0;
    web.metadata.namespace = Some("default".to_owned());
    let mut web = serde_json::to_value(web).expect("JSON");
    web["apiVersion"] = json!("compute.datumapis.com/v1alpha");
    web["kind"] = json!("WorkloadDeployment");
    fs::write(installation.dir.path().join("web.json"), web.to_string()).expect("a manifest");
    installation.shell("kubectl --context projects apply -f web.json");
    let ready = manifest::until(PROJECTS, "a ready instance in the project", TIMEOUT, async || {
        let instances = recorders[0].all("Instance");
        let ready = |object: &Value| {
            let conditions =
                object.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
            conditions
                .into_iter()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        };
        match instances.iter().find(|(key, _)| key.name == "web-0") {
            Some((_, instance)) if ready(instance) => Ok(Some(())),
            Some((_, instance)) => Err(instance["status"].to_string()),
            None => Err("it does not exist".to_owned()),
        }
    });
    if let Err(err) = ready.await {
        let logs: Vec<String> =
            installation.pods.iter().map(|(name, pod)| format!("{name}:\n{}", pod.log_text())).collect();
        panic!("{err}\n{}", logs.join("\n"));
    }
}
