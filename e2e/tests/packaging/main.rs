//! Packaging: every kustomization renders; a real API server accepts the result with strict field validation;
//! the manager runs with exactly the arguments, environment, files and permissions of a rendered Deployment;
//! and every alert has a runbook.

mod install;
mod optional;
mod process;
mod secrets;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use polis_api::crds;
use polis_core::heartbeat;
use polis_e2e::pod::webhook_client;
use polis_e2e::rendered::{self, RenderedManifests, as_text, items, kustomizations, list, root, text};
use polis_testbed::{TestCluster, manifest, plane::SINGLE_PLANE};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use process::Manager;

const NAMESPACE: &str = "compute-system";

/// An overlay and what it enables.
struct OverlayFeatures {
    folder: &'static str,
    management: bool,
    cell: bool,
    webhooks: bool,
}

const OVERLAYS: &[OverlayFeatures] = &[
    OverlayFeatures {
        folder: "deploy/overlays/management-plane",
        management: true,
        cell: false,
        webhooks: true,
    },
    OverlayFeatures { folder: "deploy/overlays/cell", management: false, cell: true, webhooks: false },
    OverlayFeatures { folder: "deploy/overlays/cell-pods", management: false, cell: true, webhooks: false },
    OverlayFeatures {
        folder: "deploy/overlays/single-cluster",
        management: true,
        cell: true,
        webhooks: true,
    },
    OverlayFeatures { folder: "deploy/overlays/dev", management: false, cell: false, webhooks: true },
    OverlayFeatures {
        folder: "docs/operations/examples/management-plane",
        management: true,
        cell: false,
        webhooks: true,
    },
    OverlayFeatures {
        folder: "docs/operations/examples/cell-dfw",
        management: false,
        cell: true,
        webhooks: false,
    },
];

/// A test cluster with one plane that serves every kind. The plane is the manager's own cluster, its hub and
/// its platform.
static CLUSTER: OnceCell<TestCluster> = OnceCell::const_new();

async fn cluster() -> &'static TestCluster {
    CLUSTER
        .get_or_init(async || {
            let cluster = Box::pin(TestCluster::single_plane()).await.expect("a test cluster");
            let client = cluster.client(SINGLE_PLANE).await.expect("a client");
            let kinds = [crds::compute(), crds::platform(), crds::karmada()].concat();
            let kinds: Vec<Value> = kinds.into_iter().map(|file| file.crd).collect();
            manifest::apply_crds(&client, SINGLE_PLANE, &kinds).await.expect("all CRDs");
            apply(&cluster, &RenderedManifests::of("deploy/base/manager"));
            // A dry run does not create the namespace of the objects after it.
            let heartbeats =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": heartbeat::NAMESPACE}});
            manifest::apply(&client, SINGLE_PLANE, &heartbeats).await.expect("a namespace");
            cluster
        })
        .await
}

/// The managers of this suite share one Lease, so only one test at a time runs them.
static MANAGER_LOCK: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Runs kubectl on the plane of the suite.
fn kubectl(cluster: &TestCluster, arguments: &[&str], input: &str) -> Result<String, String> {
    rendered::run(cluster.kubectl(SINGLE_PLANE).expect("kubectl"), arguments, input)
}

fn apply(cluster: &TestCluster, rendered: &RenderedManifests) {
    let arguments = ["apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", "-"];
    kubectl(cluster, &arguments, &list(&rendered.served())).unwrap_or_else(|err| panic!("{err}"));
}

fn check(cluster: &TestCluster, objects: &[&Value]) -> Result<String, String> {
    let arguments =
        ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"];
    kubectl(cluster, &arguments, &list(objects))
}

// === Rendering ===

#[tokio::test]
async fn every_kustomization_renders_and_passes_strict_validation() {
    let cluster = cluster().await;
    let folders = [kustomizations("deploy"), kustomizations("docs/operations/examples")].concat();
    assert!(folders.len() > 25, "{folders:?}");
    for folder in folders {
        let rendered = RenderedManifests::of(&folder);
        let served = rendered.served();
        for object in &rendered.0 {
            let (kind, name) = (as_text(&object["kind"]), as_text(&object["metadata"]["name"]));
            assert!(!kind.is_empty() && !name.is_empty(), "{folder}: {object}");
        }
        if !served.is_empty() {
            check(cluster, &served).unwrap_or_else(|err| panic!("{folder}: {err}"));
        }
    }
}

#[tokio::test]
async fn an_unknown_field_is_rejected() {
    let cluster = cluster().await;
    let rendered = RenderedManifests::of("deploy/overlays/cell");
    let mut deployment = rendered.deployment().expect("a Deployment").clone();
    deployment["spec"]["template"]["spec"]["containers"][0]["enviroment"] = json!([]);
    let refusal = check(cluster, &[&deployment]).expect_err("the field is misspelt");
    assert!(refusal.contains("enviroment"), "{refusal}");
}

#[test]
fn an_overlay_enables_exactly_its_features() {
    for overlay in OVERLAYS {
        let rendered = RenderedManifests::of(overlay.folder);
        let switch = |name| rendered.variable(name) == "true";
        let folder = overlay.folder;
        assert_eq!(switch("ENABLE_MANAGEMENT_CONTROLLERS"), overlay.management, "{folder}");
        assert_eq!(switch("ENABLE_CELL_CONTROLLERS"), overlay.cell, "{folder}");
        assert_eq!(rendered.deployment().is_some(), overlay.management || overlay.cell, "{folder}");
        let webhooks = rendered.find("ValidatingWebhookConfiguration", "compute-validating").is_some();
        assert_eq!(webhooks, overlay.webhooks, "{folder}");
        if let Some(manager) = rendered.deployment() {
            assert_eq!(rendered.variable("LEADER_ELECT"), "true", "{folder}");
            assert_eq!(manager["spec"]["replicas"], 2, "{folder}");
            let pod = &manager["spec"]["template"];
            let budget = rendered.find("PodDisruptionBudget", "compute-manager").expect("a budget");
            assert_eq!(budget["spec"]["minAvailable"], 1, "{folder}");
            assert_eq!(budget["spec"]["selector"]["matchLabels"], pod["metadata"]["labels"], "{folder}");
            let spread = &pod["spec"]["topologySpreadConstraints"][0];
            assert_eq!(spread["topologyKey"], "kubernetes.io/hostname", "{folder}");
            assert_eq!(spread["labelSelector"]["matchLabels"], pod["metadata"]["labels"], "{folder}");
            assert_eq!(open_ports(&rendered), container_ports(manager), "{folder}");
        }
    }
    let overlays: Vec<String> = kustomizations("deploy/overlays");
    let known: BTreeSet<&str> = OVERLAYS.iter().map(|overlay| overlay.folder).collect();
    assert!(overlays.iter().all(|overlay| known.contains(overlay.as_str())), "{overlays:?}");
}

/// The manager's ports that its network policies open.
fn open_ports(rendered: &RenderedManifests) -> BTreeSet<u64> {
    let policies = rendered.0.iter().filter(|object| object["kind"] == "NetworkPolicy");
    let rules = policies.flat_map(|policy| items(&policy["spec"]["ingress"]));
    rules.flat_map(|rule| items(&rule["ports"])).filter_map(|port| port["port"].as_u64()).collect()
}

/// The manager's container ports.
fn container_ports(manager: &Value) -> BTreeSet<u64> {
    let container = &manager["spec"]["template"]["spec"]["containers"][0];
    items(&container["ports"]).filter_map(|port| port["containerPort"].as_u64()).collect()
}

#[test]
fn users_may_read_all_kinds_and_write_only_workloads() {
    let rendered = RenderedManifests::of("deploy/components/iam");
    let mut known = BTreeSet::new();
    for kind in rendered.0.iter().filter(|object| object["kind"] == "ProtectedResource") {
        let spec = &kind["spec"];
        assert_eq!(spec["parentResources"][0]["kind"], "Project", "{spec}");
        let (service, plural) = (as_text(&spec["serviceRef"]["name"]), as_text(&spec["plural"]));
        known.extend(items(&spec["permissions"]).map(|verb| format!("{service}/{plural}.{}", as_text(verb))));
    }
    let permissions = |role: &str| -> BTreeSet<String> {
        let role = rendered.find("Role", &format!("compute.datumapis.com-{role}")).expect("a role");
        items(&role["spec"]["includedPermissions"]).map(|it| as_text(it).to_owned()).collect()
    };
    let (viewer, admin) = (permissions("viewer"), permissions("admin"));
    assert!(viewer.is_subset(&known) && admin.is_subset(&known), "not all are in {known:?}");
    let verb = |permission: &String| permission.rsplit('.').next().unwrap_or_default().to_owned();
    assert_eq!(
        viewer.iter().map(verb).collect::<BTreeSet<_>>(),
        ["get", "list", "watch"].map(str::to_owned).into()
    );
    assert_eq!(viewer.len(), 9, "every kind: {viewer:?}");
    for permission in &admin {
        assert!(permission.starts_with("compute.datumapis.com/workloads."), "{permission}");
    }
}

#[test]
fn every_metric_of_the_service_configuration_is_declared() {
    let rendered = RenderedManifests::of("deploy/components/service");
    let spec = &rendered.find("ServiceConfiguration", "compute").expect("a configuration")["spec"];
    let declared: BTreeSet<&str> = items(&spec["metrics"]).map(|metric| as_text(&metric["name"])).collect();
    let limits = items(&spec["quota"]["limits"]).map(|limit| as_text(&limit["metric"]));
    let rules = items(&spec["quota"]["metricRules"]);
    let costs = rules.flat_map(|rule| rule["metricCosts"].as_object().into_iter().flatten());
    let metric_names: BTreeSet<&str> = limits.chain(costs.map(|(metric, _)| metric.as_str())).collect();
    assert_eq!(metric_names, declared, "every declared metric is used");
    assert_eq!(metric_names.len(), 4, "{metric_names:?}");
    assert!(spec["metricRules"].is_null(), "metric rules belong to quota");

    // The default grant of a project covers every registered resource type.
    let quota = RenderedManifests::of("deploy/components/quota");
    let registered: BTreeSet<&str> = quota
        .0
        .iter()
        .filter(|object| object["kind"] == "ResourceRegistration")
        .map(|object| as_text(&object["spec"]["resourceType"]))
        .collect();
    let policy = quota.find("GrantCreationPolicy", "compute-default").expect("a grant");
    let granted = &policy["spec"]["target"]["resourceGrantTemplate"]["spec"]["allowances"];
    let granted: BTreeSet<&str> = items(granted).map(|one| as_text(&one["resourceType"])).collect();
    assert_eq!(granted, registered);
    assert!(registered.is_subset(&declared), "{registered:?}");
}

#[test]
fn the_install_page_has_the_memory_request_and_limit() {
    let rendered = RenderedManifests::of("deploy/base/manager");
    let manager = rendered.deployment().expect("a Deployment");
    let resources = &manager["spec"]["template"]["spec"]["containers"][0]["resources"];
    let mebibytes = |value: &Value| as_text(value).trim_end_matches("Mi").to_owned();
    let sentence = format!(
        "The base requests {} MiB and has a limit of {} MiB",
        mebibytes(&resources["requests"]["memory"]),
        mebibytes(&resources["limits"]["memory"])
    );
    let page = text("docs/operations/install.md").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains(&sentence), "install.md lacks: {sentence}");
}

#[tokio::test]
async fn every_pod_conforms_to_the_restricted_standard_of_its_namespace() {
    let cluster = cluster().await;
    let pod = |spec: &Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "check", "namespace": NAMESPACE}, "spec": spec});
    let arguments = ["create", "--dry-run=server", "-f", "-"];
    for overlay in OVERLAYS {
        let rendered = RenderedManifests::of(overlay.folder);
        let Some(manager) = rendered.deployment() else { continue };
        let spec = &manager["spec"]["template"]["spec"];
        let created = kubectl(cluster, &arguments, &pod(spec).to_string());
        created.unwrap_or_else(|err| panic!("{}: {err}", overlay.folder));
        let container = &spec["containers"][0];
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true, "{}", overlay.folder);
        assert!(container["resources"]["limits"]["memory"].is_string(), "{}", overlay.folder);

        let mut privileged = spec.clone();
        privileged["containers"][0]["securityContext"]["capabilities"] = json!({"add": ["SYS_ADMIN"]});
        let refusal = kubectl(cluster, &arguments, &pod(&privileged).to_string())
            .expect_err("the standard is enforced");
        assert!(refusal.contains("restricted"), "{refusal}");
    }
}

#[test]
fn the_webhook_certificate_volume_lacks_only_the_issuer() {
    let attributes = |folder| {
        let rendered = RenderedManifests::of(folder);
        let pod = &rendered.deployment().expect("a Deployment")["spec"]["template"]["spec"];
        let volume = items(&pod["volumes"]).find(|volume| volume["name"] == "webhook-tls").expect("a volume");
        let attributes = volume["csi"]["volumeAttributes"].as_object().expect("attributes").clone();
        attributes.into_iter().collect::<BTreeMap<String, Value>>()
    };
    let base = attributes("deploy/overlays/management-plane");
    let names = as_text(&base["csi.cert-manager.io/dns-names"]);
    assert!(names.split(',').any(|name| name == "compute-webhook.compute-system.svc"), "{names}");
    assert!(!base.contains_key("csi.cert-manager.io/issuer-name"), "{base:?}");

    let complete = attributes("docs/operations/examples/management-plane");
    let added: Vec<&str> =
        complete.keys().filter(|key| !base.contains_key(*key)).map(String::as_str).collect();
    assert_eq!(added, ["csi.cert-manager.io/issuer-kind", "csi.cert-manager.io/issuer-name"]);
}

#[tokio::test]
async fn a_missing_webhook_certificate_is_reported_with_the_missing_issuer() {
    let cluster = cluster().await;
    let manager = Manager::of(cluster, &RenderedManifests::of("deploy/overlays/management-plane"));
    let check_output = || {
        let output = std::process::Command::new(process::program())
            .args(["manager", "--check-config"])
            .env_clear()
            .envs(manager.pod.environment.iter().map(|(name, value)| (name, value)))
            .output()
            .expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, output) = check_output();
    assert_eq!(code, Some(0), "{output}");
    fs::remove_dir_all(manager.files.path().join("etc/compute/webhook-tls")).expect("no volume");
    let (code, output) = check_output();
    assert_eq!(code, Some(2), "{output}");
    for text in ["webhookServer.tls", "deploy/components/csi-webhook-cert", "set the issuer with a patch"] {
        assert!(output.contains(text), "{text} is not in {output}");
    }
}

// === Running ===

/// Applies what a plane needs as hub and platform.
fn bootstrap(cluster: &TestCluster) {
    for folder in [
        "deploy/components/federation",
        "deploy/components/rbac/project",
        "deploy/components/rbac/management",
    ] {
        apply(cluster, &RenderedManifests::of(folder));
    }
}

#[tokio::test]
async fn the_manager_runs_as_in_a_rendered_deployment() {
    let (cluster, _lock) = (cluster().await, MANAGER_LOCK.lock().await);
    bootstrap(cluster);
    let runs: [(&str, &[&str]); 3] = [
        ("docs/operations/examples/management-plane", &["hub", "project"]),
        ("docs/operations/examples/cell-dfw", &["cell", "hub"]),
        ("deploy/overlays/single-cluster", &["cell", "hub", "project"]),
    ];
    let mut pages = String::new();
    for (folder, sets) in runs {
        let rendered = RenderedManifests::of(folder);
        apply(cluster, &rendered);
        let mut pod = Manager::of(cluster, &rendered);
        pod.start();
        let page = pod.until_leading().await;
        for set in ["cell", "hub", "project"] {
            let line = format!("polis_planes{{set=\"{set}\",state=\"engaged\"}}");
            assert_eq!(page.contains(&line), sets.contains(&set), "{folder}: {set}\n{page}");
        }
        pages += &page;
        pod.stop();
    }
    let exported: BTreeSet<&str> = pages.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
    let metric_names = metric_names();
    assert!(metric_names.len() > 20, "{metric_names:?}");
    let missing: Vec<&String> =
        metric_names.iter().filter(|metric| !exported.contains(metric.as_str())).collect();
    assert!(missing.is_empty(), "alerts or dashboards name {missing:?}, which no manager exports\n{pages}");
}

#[tokio::test]
async fn the_webhooks_read_their_certificate_from_a_secret_with_the_shipped_permissions() {
    let (cluster, _lock) = (cluster().await, MANAGER_LOCK.lock().await);
    bootstrap(cluster);
    let rendered = RenderedManifests::of("docs/operations/examples/webhook-secret");
    apply(cluster, &rendered);
    let mut pod = Manager::of(cluster, &rendered);
    // The Secret does not exist.
    let delete = ["delete", "secret", "-n", NAMESPACE, "compute-webhook-tls", "--ignore-not-found"];
    kubectl(cluster, &delete, "").unwrap_or_else(|err| panic!("{err}"));
    pod.start();
    let output = pod.until_failed().await;
    assert!(output.contains("Secret compute-system/compute-webhook-tls"), "{output}");

    let first = write_webhook_secret(cluster);
    pod.start();
    pod.until_leading().await;
    until_serving(&pod, &first).await;
    let page = manifest::until(
        "pod",
        "the expiry of the certificate in the metrics",
        process::TIMEOUT,
        async || {
            let page = pod.http_get("/metrics").unwrap_or_default();
            Ok(page
                .contains("polis_certificate_expiry_timestamp_seconds{certificate=\"webhooks\"}")
                .then_some(page))
        },
    );
    let page = page.await.unwrap_or_else(|err| panic!("{err}"));
    let line = format!(
        "polis_certificate_expiry_timestamp_seconds{{certificate=\"webhooks\"}} {END_OF_CERTIFICATE}"
    );
    assert!(page.lines().any(|it| it == line), "{line} is not in\n{page}");
    assert!(check_output(&pod).contains("may read Secret compute-system/compute-webhook-tls"));
    // The certificate is renewed.
    let second = write_webhook_secret(cluster);
    until_serving(&pod, &second).await;
    pod.stop();

    let binding = ["delete", "rolebinding", "-n", NAMESPACE, "compute-webhook-secret"];
    kubectl(cluster, &binding, "").unwrap_or_else(|err| panic!("{err}"));
    // The group of the manager may read the Secrets of hub and projects: here the same API server.
    let own = cluster.kubeconfig_for(SINGLE_PLANE, &rendered.user(), &[]).expect("a kubeconfig");
    let mut pod = Manager::with(&rendered, &own, &|_| own.clone());
    pod.start();
    let output = pod.until_failed().await;
    assert!(output.contains("deploy/components/secret-webhook-cert grants it"), "{output}");
    let output = check_output(&pod);
    for text in [
        "the manager may not get, list, watch secrets",
        "deploy/components/secret-webhook-cert/role.yaml grants it",
    ] {
        assert!(output.contains(text), "{text} is not in {output}");
    }
}

/// 2099-01-01, in seconds since 1970.
const END_OF_CERTIFICATE: u64 = 4_070_908_800;

/// Writes a new webhook certificate to its Secret.
fn write_webhook_secret(cluster: &TestCluster) -> String {
    let names = vec!["compute-webhook.compute-system.svc".to_owned(), "127.0.0.1".to_owned()];
    let mut params = rcgen::CertificateParams::new(names).expect("names");
    params.not_after = rcgen::date_time_ymd(2099, 1, 1);
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": "compute-webhook-tls", "namespace": NAMESPACE},
        "stringData": {"tls.crt": certificate, "tls.key": key.serialize_pem()}});
    kubectl(cluster, &["apply", "-f", "-"], &secret.to_string()).expect("a Secret");
    certificate
}

/// Waits until the webhooks are served with this certificate.
async fn until_serving(pod: &Manager, certificate: &str) {
    let served = manifest::until("pod", "the webhooks with this certificate", process::TIMEOUT, async || {
        let client = webhook_client(pod.pod.webhooks, certificate);
        let request = http::Request::get("/").body(Vec::new().into()).expect("a request");
        client.send(request).await.map(|_| Some(())).map_err(|err| err.to_string())
    });
    served.await.unwrap_or_else(|err| panic!("{err}\n{}", pod.log_text()));
}

/// The output of `--check-config=planes` in the environment of a pod.
fn check_output(pod: &Manager) -> String {
    let output = std::process::Command::new(process::program())
        .args(["manager", "--check-config=planes"])
        .env_clear()
        .envs(pod.pod.environment.iter().map(|(name, value)| (name, value)))
        .output()
        .expect("it runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn a_missing_value_of_the_environment_is_reported() {
    let cluster = cluster().await;
    for (folder, missing) in
        [("deploy/base/manager", "no role is enabled"), ("deploy/overlays/cell", "discovery.clusterName")]
    {
        let mut pod = Manager::of(cluster, &RenderedManifests::of(folder));
        pod.start();
        let output = pod.until_failed().await;
        assert!(output.contains(missing), "{folder}: {output}");
    }
}

// === Alerts ===

/// The metrics in alerts and dashboards, with their suffixes.
fn metric_names() -> BTreeSet<String> {
    let rules = RenderedManifests::of("deploy/components/alerts");
    let dashboards = RenderedManifests::of("deploy/components/dashboards");
    let texts = [
        &rules.find("PrometheusRule", "compute-manager").expect("rules")["spec"],
        &dashboards.find("ConfigMap", "compute-dashboards").expect("dashboards")["data"],
    ];
    // The texts contain JSON, in which a line end is the two characters \n.
    let text: String = texts.iter().map(|text| text.to_string().replace("\\n", " ")).collect();
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    words.filter(|text| text.starts_with("polis_")).map(str::to_owned).collect()
}

#[test]
fn every_alert_has_a_runbook_and_every_runbook_an_alert() {
    let rules = RenderedManifests::of("deploy/components/alerts");
    let rules = rules.find("PrometheusRule", "compute-manager").expect("rules");
    let mut pages = BTreeSet::new();
    for rule in items(&rules["spec"]["groups"]).flat_map(|group| items(&group["rules"])) {
        let (alert, page) = (as_text(&rule["alert"]), as_text(&rule["annotations"]["runbook"]));
        let content = text(page);
        for heading in [format!("# {alert}\n"), "## Confirm\n".to_owned(), "## Fix\n".to_owned()] {
            assert!(content.contains(&heading), "{page} lacks {heading}");
        }
        assert!(text("docs/operations/install.md").contains(alert), "install.md does not list {alert}");
        pages.insert(page.to_owned());
    }
    let folder = "docs/operations/runbooks";
    let existing = fs::read_dir(root().join(folder)).expect("the runbooks").filter_map(Result::ok);
    let existing: BTreeSet<String> =
        existing.map(|page| format!("{folder}/{}", page.file_name().to_string_lossy())).collect();
    assert_eq!(existing, pages);
}
