//! The page `docs/operations/install.md`, as somebody would follow it who has three API servers: one with the projects, which
//! is also the cluster of the management plane; the hub, a Karmada; and the cell of Dallas.
//!
//! The commands are those of the page, line by line, run by a shell with the kubectl of the test bed. A bed has no nodes, so
//! its pods are played: what a Deployment names is read from the API server that it was applied to, and the manager is
//! started with it. What `exec` and `port-forward` would reach is that process.

use std::{collections::BTreeMap, fs, process::Command, sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use polis_api::{crds, kube::Client};
use polis_e2e::{
    eye::{self, Eye},
    grants::QuotaService,
    planes::Identity,
    provider::Provider,
    rendered::{self, Rendered, objects, root, text, word},
    wire::{Route, Tap, Wire, project_path},
};
use polis_testbed::{Bed, Options, cell, manifest, pki::MASTERS, plane::HUB};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::{Manager, program};

const NAMESPACE: &str = "compute-system";
const MANAGER: &str = "system:serviceaccount:compute-system:compute-manager";
const PROJECTS: &str = "projects";
const CELL: &str = "dfw";
/// The contexts of the page, and the plane of the bed behind each.
const CONTEXTS: [(&str, &str); 4] =
    [("projects", PROJECTS), ("management", PROJECTS), ("hub", HUB), ("dfw", CELL)];
const WITHIN: Duration = Duration::from_secs(180);
/// What the tokens of pods are bound to.
const BOUND: &str = "bound";

/// Kinds of programs that the bed has not got, and that what the page applies speaks of: they are only to be taken.
const OPEN_KINDS: [(&str, &str, &str, &str, &str); 5] = [
    (PROJECTS, "quota.miloapis.com/v1alpha1", "GrantCreationPolicy", "grantcreationpolicies", "Cluster"),
    (PROJECTS, "iam.miloapis.com/v1alpha1", "ProtectedResource", "protectedresources", "Cluster"),
    (PROJECTS, "iam.miloapis.com/v1alpha1", "Role", "roles", "Namespaced"),
    ("", "monitoring.coreos.com/v1", "ServiceMonitor", "servicemonitors", "Namespaced"),
    ("", "monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules", "Namespaced"),
];

/// Somebody at a desk with the repository, kubectl, and what their environment brings.
struct Engineer {
    bed: Bed,
    desk: TempDir,
    /// What stands for the front of the platform: projects below their paths.
    platform: Wire,
    /// The same, for the credential that claims quota.
    quota: Wire,
    pods: BTreeMap<String, Manager>,
}

impl Engineer {
    async fn new() -> Engineer {
        let mut options = Options::federation(["DFW"]);
        options.projects = vec![PROJECTS.to_owned()];
        options.crds = false;
        let bed = Box::pin(Bed::up(options)).await.expect("a bed stands");
        let hub = bed.client(HUB).await.expect("a client");
        // The page wants a member without the label of its city.
        let no_city = json!({"metadata": {"labels": {"topology.datum.net/city-code": null}}});
        let patch = polis_api::kube::api::Patch::Merge(&no_city);
        cell::clusters(&hub).patch(CELL, &Default::default(), &patch).await.expect("no city");

        // What there is before Polis comes: the platform's kinds, and who the hub knows.
        let platform = crds::of_project().into_iter().chain(crds::platform());
        let platform: Vec<Value> =
            platform.filter(|file| file.folder != crds::COMPUTE_FOLDER).map(|f| f.crd).collect();
        let projects = bed.client(PROJECTS).await.expect("a client");
        manifest::apply_crds(&projects, PROJECTS, &platform).await.expect("the platform's kinds");
        for (plane, version, kind, plural, scope) in OPEN_KINDS {
            let planes = if plane.is_empty() { vec![PROJECTS, CELL] } else { vec![plane] };
            for plane in planes {
                let client = bed.client(plane).await.expect("a client");
                let kind = open_kind(version, kind, plural, scope);
                manifest::apply_crds(&client, plane, &[kind]).await.expect("an open kind");
            }
        }
        for object in [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}),
            json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": "compute-manager", "namespace": NAMESPACE}}),
        ] {
            manifest::apply(&hub, HUB, &object).await.expect("the hub knows the manager");
        }
        manifest::apply(
            &projects,
            PROJECTS,
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "milo-system"}}),
        )
        .await
        .expect("the namespace of the platform");

        let front = async |user: &str, groups: &[&str]| {
            let client = bed.client_for(PROJECTS, user, groups).await.expect("a client");
            let who = Arc::new(Identity {
                user: user.to_owned(),
                groups: groups.iter().map(ToString::to_string).collect(),
            });
            let way = |prefix: String, client: &Client| Route {
                prefix,
                plane: PROJECTS.into(),
                who: who.clone(),
                client: client.clone(),
            };
            let routes = vec![way(project_path("shop"), &client), way(String::new(), &client)];
            Wire::lay(routes, Arc::new(Tap::default())).await.expect("a wire")
        };
        let platform = front(MANAGER, &[]).await;
        let quota = front("compute-cell-dfw", &["compute.datumapis.com:cells"]).await;
        let engineer = Engineer {
            bed,
            desk: tempfile::tempdir().expect("a desk"),
            platform,
            quota,
            pods: BTreeMap::new(),
        };
        engineer.sit_down();
        engineer
    }

    /// The repository, kubectl on the path, the four contexts, and the credential for quota.
    fn sit_down(&self) {
        let desk = self.desk.path();
        for folder in ["deploy", "docs"] {
            let copied = Command::new("cp").arg("-r").arg(root().join(folder)).arg(desk).status();
            assert!(copied.expect("cp runs").success());
        }
        fs::create_dir(desk.join("bin")).expect("a folder");
        let kubectl = rendered::kubectl().get_program().to_owned();
        std::os::unix::fs::symlink(kubectl, desk.join("bin/kubectl")).expect("a link");
        let mut merged =
            json!({"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [], "contexts": []});
        for (context, plane) in CONTEXTS {
            let (cluster, user) = self.way(plane, "admin", &[MASTERS]);
            let mut add = |list: &str, entry: Value| merged[list].as_array_mut().expect("a list").push(entry);
            add("clusters", json!({"name": context, "cluster": cluster}));
            add("users", json!({"name": context, "user": user}));
            add("contexts", json!({"name": context, "context": {"cluster": context, "user": context}}));
        }
        fs::write(desk.join("contexts"), merged.to_string()).expect("a kubeconfig");
        fs::write(desk.join("quota.kubeconfig"), self.quota.kubeconfig()).expect("a kubeconfig");
    }

    /// Cluster and user of a kubeconfig with which to be somebody on a plane.
    fn way(&self, plane: &str, user: &str, groups: &[&str]) -> (Value, Value) {
        let config = self.bed.kubeconfig_for(plane, user, groups).expect("a kubeconfig");
        let config = objects("kubeconfig", &config).remove(0);
        (config["clusters"][0]["cluster"].clone(), config["users"][0]["user"].clone())
    }

    /// Does what a line of the page says.
    async fn follow(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let context = words.iter().position(|word| *word == "--context").map(|at| words[at + 1].to_owned());
        if line.contains(" exec ") {
            let pod = &self.pods[&context.expect("a context")].pod;
            let asked = line.split(" -- polis ").nth(1).expect("a command of polis").split(' ');
            let said = Command::new(program())
                .args(asked)
                .env_clear()
                .envs(pod.environment.iter().map(|(name, value)| (name, value)))
                .output()
                .expect("it runs");
            assert!(said.status.success(), "{line}: {}", String::from_utf8_lossy(&said.stdout));
            return;
        }
        if line.contains("port-forward") || line.starts_with("curl") {
            let answer = self.pods["management"].ask("/readyz?verbose").expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            return;
        }
        if line.contains("rollout status") {
            self.play(context.as_deref().expect("a context")).await;
        }
        self.shell(line);
        if words[0] == "cp" {
            self.change_values(words[2], words[3]);
        }
    }

    fn shell(&self, line: &str) -> String {
        let desk = self.desk.path();
        let path = format!("{}:{}", desk.join("bin").display(), std::env::var("PATH").unwrap_or_default());
        let output = Command::new("sh")
            .args(["-ec", line])
            .current_dir(desk)
            .env("PATH", path)
            .env("KUBECONFIG", desk.join("contexts"))
            .output()
            .expect("a shell");
        assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// "Change the values, and the path to deploy".
    fn change_values(&self, example: &str, copy: &str) {
        let (hub, cell) = self.way(
            HUB,
            "compute-cell-dfw",
            &["compute.datumapis.com:cells", "compute.datumapis.com:city:DFW"],
        );
        let folder = self.desk.path().join(copy);
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
        let authority = format!("certificate-authority-data: {}", word(&hub["certificate-authority-data"]));
        change(
            "hub.kubeconfig",
            &[
                (address, word(&hub["server"]).to_owned()),
                ("certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt", authority),
            ],
        );
        if copy == "my-cell" {
            // "With client certificates the same names go into CN and two O."
            let certificate = format!(
                "client-certificate-data: {}\n      client-key-data: {}",
                word(&cell["client-certificate-data"]),
                word(&cell["client-key-data"])
            );
            change("hub.kubeconfig", &[("tokenFile: /etc/compute/hub-token/token", certificate)]);
        }
    }

    /// Plays the node: starts the manager of the Deployment that is on a plane, with what is on that plane, and says so in
    /// the Deployment's status.
    async fn play(&mut self, context: &str) {
        let get = |kind: &str| {
            let said = self.shell(&format!("kubectl --context {context} -n {NAMESPACE} get {kind} -o json"));
            let list: Value = serde_json::from_str(&said).expect("a list");
            let mut items = list["items"].as_array().cloned().unwrap_or_default();
            items.iter_mut().for_each(|item| item["kind"] = json!(kind));
            items
        };
        let there = Rendered([get("Deployment"), get("ConfigMap"), get("Secret")].concat());
        let token = |plane: &str| {
            // Bound to an object, it ends with that object.
            self.shell(&format!("kubectl --context {plane} -n {NAMESPACE} create secret generic {BOUND}"));
            let bound = format!("--bound-object-kind=Secret --bound-object-name={BOUND}");
            let create = format!("kubectl --context {plane} -n {NAMESPACE} create token compute-manager");
            self.shell(&format!("{create} {bound}")).trim().to_owned()
        };
        let (hub_token, own) = match context {
            CELL => {
                // A pod's own cluster is known to it by its service account.
                let (cluster, _) = self.way(CELL, MANAGER, &[]);
                let own = json!({"apiVersion": "v1", "kind": "Config", "current-context": "own",
                    "clusters": [{"name": "own", "cluster": cluster}], "users": [{"name": "own", "user": {"token": token(CELL)}}],
                    "contexts": [{"name": "own", "context": {"cluster": "own", "user": "own"}}]});
                (String::new(), own.to_string())
            }
            _ => (token(HUB), self.platform.kubeconfig()),
        };
        let brings = |name: &str| -> String {
            if name.is_empty() {
                return hub_token.clone();
            }
            if let Some(map) = there.find("ConfigMap", name) {
                return word(&map["data"]["kubeconfig"]).to_owned();
            }
            let secret = there.find("Secret", name).unwrap_or_else(|| panic!("nobody made {name}"));
            let data = BASE64_STANDARD.decode(word(&secret["data"]["kubeconfig"])).expect("base64");
            String::from_utf8(data).expect("a text")
        };
        let mut manager = Manager::with(&there, &own, &brings);
        manager.start();
        manager.leads().await;
        self.pods.insert(context.to_owned(), manager);
        let deployment = there.deployment().expect("a Deployment");
        let replicas = &deployment["spec"]["replicas"];
        let status = json!({"status": {"observedGeneration": deployment["metadata"]["generation"], "replicas": replicas,
            "updatedReplicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
            "conditions": [{"type": "Available", "status": "True"}]}});
        self.shell(&format!(
            "kubectl --context {context} -n {NAMESPACE} patch deployment compute-manager --subresource=status --type=merge -p '{status}'"
        ));
    }
}

impl Engineer {
    /// Plays the kubelet: puts a new token for the hub into the pod of the management plane, and has the old one end.
    async fn renew_hub_token(&self) {
        let file = self.pods["management"].files.path().join("etc/compute/hub-token/token");
        let old = fs::read_to_string(&file).expect("a token");
        let new = self.shell(&format!("kubectl --context hub -n {NAMESPACE} create token compute-manager"));
        assert_ne!(old.trim(), new.trim());
        fs::write(&file, new.trim()).expect("a token");
        self.shell(&format!("kubectl --context hub -n {NAMESPACE} delete secret {BOUND}"));
        let (hub, _) = self.way(HUB, "admin", &[MASTERS]);
        let ask = format!(
            "kubectl --kubeconfig=/dev/null --server={} --insecure-skip-tls-verify --token={old} get --raw /version 2>&1 || true",
            word(&hub["server"])
        );
        // API servers remember for some seconds whom they knew.
        let ended = manifest::until(HUB, "the old token to end", WITHIN, async || {
            let said = self.shell(&ask);
            Ok(said.contains("Unauthorized").then_some(()))
        });
        ended.await.unwrap_or_else(|err| panic!("{err}"));
    }
}

/// A kind that takes anything.
fn open_kind(version: &str, kind: &str, plural: &str, scope: &str) -> Value {
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
            let said = block.lines().map(|line| line.split("  #").next().unwrap_or_default().trim());
            lines.extend(said.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned));
        }
    }
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_page_install_management_plane_hub_and_a_cell() {
    let commands = commands(&text("docs/operations/install.md"));
    assert!(commands.len() > 15, "{commands:?}");
    let mut engineer = Box::pin(Engineer::new()).await;
    for line in &commands {
        engineer.follow(line).await;
    }
    assert_eq!(engineer.pods.len(), 2, "management plane and cell run");
    // "Tokens, and certificates in files of their own, are renewed without a restart."
    engineer.renew_hub_token().await;

    // "Then deploy something to one city."
    let (bed, shop) = (&engineer.bed, "shop");
    let client = async |plane: &str| bed.client(plane).await.expect("a client");
    let eyes = [
        Arc::new(Eye::open(PROJECTS, client(PROJECTS).await, eye::kinds_of_project())),
        Arc::new(Eye::open(CELL, client(CELL).await, eye::kinds_of_cell())),
    ];
    let _played = (QuotaService::at_work(eyes[0].clone()), Provider::at_work(eyes[1].clone()));
    let ready = json!({"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let project = json!({"apiVersion": "resourcemanager.miloapis.com/v1alpha1", "kind": "Project",
        "metadata": {"name": shop}, "spec": {"ownerRef": {"kind": "Organization", "name": "suite"}}});
    manifest::apply(&client(PROJECTS).await, PROJECTS, &project).await.expect("a project");
    engineer.shell(&format!(
        "kubectl --context projects patch project {shop} --subresource=status --type=merge -p '{}'",
        json!({"status": {"conditions": [ready]}})
    ));
    let mut web = polis_e2e::draft::deployment("web").to("DFW").0;
    web.metadata.namespace = Some("default".to_owned());
    let mut web = serde_json::to_value(web).expect("JSON");
    web["apiVersion"] = json!("compute.datumapis.com/v1alpha");
    web["kind"] = json!("WorkloadDeployment");
    fs::write(engineer.desk.path().join("web.json"), web.to_string()).expect("a manifest");
    engineer.shell("kubectl --context projects apply -f web.json");
    let shown = manifest::until(
        PROJECTS,
        "an instance that runs in the cell to show in the project",
        WITHIN,
        async || {
            let there = eyes[0].all("Instance");
            let ready = |object: &Value| {
                let conditions =
                    object.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
                conditions.into_iter().any(|said| said["type"] == "Ready" && said["status"] == "True")
            };
            match there.iter().find(|(key, _)| key.name == "web-0") {
                Some((_, instance)) if ready(instance) => Ok(Some(())),
                Some((_, instance)) => Err(instance["status"].to_string()),
                None => Err("there is none".to_owned()),
            }
        },
    );
    if let Err(err) = shown.await {
        let said: Vec<String> =
            engineer.pods.iter().map(|(name, pod)| format!("{name}:\n{}", pod.said())).collect();
        panic!("{err}\n{}", said.join("\n"));
    }
}
