//! What operators apply: every kustomization renders; a real API server takes what it renders, with strict fields; the
//! manager runs with exactly the arguments, environment, files and rights of a rendered Deployment, read from it and not
//! retyped; and every alert says what to do.

mod install;
mod optional;
mod process;
mod secrets;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use polis_api::crds;
use polis_e2e::pod::webhook_client;
use polis_e2e::rendered::{self, Rendered, each, kustomizations, list, root, text, word};
use polis_testbed::{Bed, manifest, plane::LONE};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use process::Manager;

const NAMESPACE: &str = "compute-system";

/// An overlay, and what runs once it is applied.
struct Promise {
    folder: &'static str,
    management: bool,
    cell: bool,
    webhooks: bool,
}

const PROMISES: &[Promise] = &[
    Promise { folder: "deploy/overlays/management-plane", management: true, cell: false, webhooks: true },
    Promise { folder: "deploy/overlays/cell", management: false, cell: true, webhooks: false },
    Promise { folder: "deploy/overlays/single-cluster", management: true, cell: true, webhooks: true },
    Promise { folder: "deploy/overlays/dev", management: false, cell: false, webhooks: true },
    Promise {
        folder: "docs/operations/examples/management-plane",
        management: true,
        cell: false,
        webhooks: true,
    },
    Promise { folder: "docs/operations/examples/cell-dfw", management: false, cell: true, webhooks: false },
];

/// A bed of its own: one plane that serves every kind, and is cluster, hub and platform to the manager.
static BED: OnceCell<Bed> = OnceCell::const_new();

async fn bed() -> &'static Bed {
    BED.get_or_init(async || {
        let bed = Box::pin(Bed::single_plane()).await.expect("a plane stands");
        let client = bed.client(LONE).await.expect("a client");
        let kinds = [crds::compute(), crds::platform(), crds::karmada()].concat();
        let kinds: Vec<Value> = kinds.into_iter().map(|file| file.crd).collect();
        manifest::apply_crds(&client, LONE, &kinds).await.expect("all kinds are served");
        apply(&bed, &Rendered::of("deploy/base/manager"));
        bed
    })
    .await
}

/// Managers of this suite stand for election by one Lease: one test at a time runs them.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Runs kubectl on the plane of the suite.
fn kubectl(bed: &Bed, arguments: &[&str], input: &str) -> Result<String, String> {
    rendered::run(bed.kubectl(LONE).expect("kubectl"), arguments, input)
}

fn apply(bed: &Bed, rendered: &Rendered) {
    let arguments = ["apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", "-"];
    kubectl(bed, &arguments, &list(&rendered.known())).unwrap_or_else(|err| panic!("{err}"));
}

fn check(bed: &Bed, objects: &[&Value]) -> Result<String, String> {
    let arguments =
        ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"];
    kubectl(bed, &arguments, &list(objects))
}

// === What is rendered ===

#[tokio::test]
async fn every_kustomization_renders_and_a_real_api_server_takes_it_with_strict_fields() {
    let bed = bed().await;
    let folders = [kustomizations("deploy"), kustomizations("docs/operations/examples")].concat();
    assert!(folders.len() > 25, "{folders:?}");
    for folder in folders {
        let rendered = Rendered::of(&folder);
        let known = rendered.known();
        for object in &rendered.0 {
            let (kind, name) = (word(&object["kind"]), word(&object["metadata"]["name"]));
            assert!(!kind.is_empty() && !name.is_empty(), "{folder}: {object}");
        }
        if !known.is_empty() {
            check(bed, &known).unwrap_or_else(|err| panic!("{folder}: {err}"));
        }
    }
}

#[tokio::test]
async fn a_field_that_nobody_knows_would_be_refused() {
    let bed = bed().await;
    let rendered = Rendered::of("deploy/overlays/cell");
    let mut deployment = rendered.deployment().expect("a Deployment").clone();
    deployment["spec"]["template"]["spec"]["containers"][0]["enviroment"] = json!([]);
    let refusal = check(bed, &[&deployment]).expect_err("the field is misspelt");
    assert!(refusal.contains("enviroment"), "{refusal}");
}

#[test]
fn an_overlay_switches_on_what_it_promises_and_nothing_else() {
    for promise in PROMISES {
        let rendered = Rendered::of(promise.folder);
        let switch = |name| rendered.variable(name) == "true";
        let folder = promise.folder;
        assert_eq!(switch("ENABLE_MANAGEMENT_CONTROLLERS"), promise.management, "{folder}");
        assert_eq!(switch("ENABLE_CELL_CONTROLLERS"), promise.cell, "{folder}");
        assert_eq!(rendered.deployment().is_some(), promise.management || promise.cell, "{folder}");
        let hooks = rendered.find("ValidatingWebhookConfiguration", "compute-validating").is_some();
        assert_eq!(hooks, promise.webhooks, "{folder}");
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
            assert_eq!(ports_let_in(&rendered), ports_in_use(manager), "{folder}");
        }
    }
    let overlays: Vec<String> = kustomizations("deploy/overlays");
    let promised: BTreeSet<&str> = PROMISES.iter().map(|promise| promise.folder).collect();
    assert!(overlays.iter().all(|overlay| promised.contains(overlay.as_str())), "{overlays:?}");
}

/// The ports of the manager that its network policies let somebody in to.
fn ports_let_in(rendered: &Rendered) -> BTreeSet<u64> {
    let policies = rendered.0.iter().filter(|object| object["kind"] == "NetworkPolicy");
    let rules = policies.flat_map(|policy| each(&policy["spec"]["ingress"]));
    rules.flat_map(|rule| each(&rule["ports"])).filter_map(|port| port["port"].as_u64()).collect()
}

/// The ports that the manager listens on.
fn ports_in_use(manager: &Value) -> BTreeSet<u64> {
    let container = &manager["spec"]["template"]["spec"]["containers"][0];
    each(&container["ports"]).filter_map(|port| port["containerPort"].as_u64()).collect()
}

#[test]
fn users_see_everything_and_write_workloads_alone() {
    let rendered = Rendered::of("deploy/components/iam");
    let mut known = BTreeSet::new();
    for kind in rendered.0.iter().filter(|object| object["kind"] == "ProtectedResource") {
        let spec = &kind["spec"];
        assert_eq!(spec["parentResources"][0]["kind"], "Project", "{spec}");
        let (service, plural) = (word(&spec["serviceRef"]["name"]), word(&spec["plural"]));
        known.extend(each(&spec["permissions"]).map(|verb| format!("{service}/{plural}.{}", word(verb))));
    }
    let may = |role: &str| -> BTreeSet<String> {
        let role = rendered.find("Role", &format!("compute.datumapis.com-{role}")).expect("a role");
        each(&role["spec"]["includedPermissions"]).map(|it| word(it).to_owned()).collect()
    };
    let (viewer, admin) = (may("viewer"), may("admin"));
    assert!(viewer.is_subset(&known) && admin.is_subset(&known), "of {known:?}");
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
fn every_metric_that_a_limit_or_a_rule_of_the_service_names_is_declared() {
    let rendered = Rendered::of("deploy/components/service");
    let spec = &rendered.find("ServiceConfiguration", "compute").expect("a configuration")["spec"];
    let declared: BTreeSet<&str> = each(&spec["metrics"]).map(|metric| word(&metric["name"])).collect();
    let limits = each(&spec["quota"]["limits"]).map(|limit| word(&limit["metric"]));
    let rules = each(&spec["quota"]["metricRules"]);
    let costs = rules.flat_map(|rule| rule["metricCosts"].as_object().into_iter().flatten());
    let named: BTreeSet<&str> = limits.chain(costs.map(|(metric, _)| metric.as_str())).collect();
    assert_eq!(named, declared, "and nothing is declared for nothing");
    assert_eq!(named.len(), 4, "{named:?}");
    assert!(spec["metricRules"].is_null(), "rules are a matter of quota");

    // What a new project is given, it is given of everything that quota is kept of.
    let quota = Rendered::of("deploy/components/quota");
    let kept: BTreeSet<&str> = quota
        .0
        .iter()
        .filter(|object| object["kind"] == "ResourceRegistration")
        .map(|object| word(&object["spec"]["resourceType"]))
        .collect();
    let policy = quota.find("GrantCreationPolicy", "compute-default").expect("a grant");
    let given = &policy["spec"]["target"]["resourceGrantTemplate"]["spec"]["allowances"];
    let given: BTreeSet<&str> = each(given).map(|one| word(&one["resourceType"])).collect();
    assert_eq!(given, kept);
    assert!(kept.is_subset(&declared), "{kept:?}");
}

#[test]
fn the_page_says_what_memory_is_asked_for_and_where_it_ends() {
    let rendered = Rendered::of("deploy/base/manager");
    let manager = rendered.deployment().expect("a Deployment");
    let resources = &manager["spec"]["template"]["spec"]["containers"][0]["resources"];
    let mebibytes = |value: &Value| word(value).trim_end_matches("Mi").to_owned();
    let said = format!(
        "The base asks for {} MiB and stops at {} MiB",
        mebibytes(&resources["requests"]["memory"]),
        mebibytes(&resources["limits"]["memory"])
    );
    assert!(text("docs/operations/install.md").contains(&said), "install.md does not say: {said}");
}

#[tokio::test]
async fn every_pod_keeps_the_restricted_standard_of_its_namespace() {
    let bed = bed().await;
    let pod = |spec: &Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "check", "namespace": NAMESPACE}, "spec": spec});
    let arguments = ["create", "--dry-run=server", "-f", "-"];
    for promise in PROMISES {
        let rendered = Rendered::of(promise.folder);
        let Some(manager) = rendered.deployment() else { continue };
        let spec = &manager["spec"]["template"]["spec"];
        let taken = kubectl(bed, &arguments, &pod(spec).to_string());
        taken.unwrap_or_else(|err| panic!("{}: {err}", promise.folder));
        let container = &spec["containers"][0];
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true, "{}", promise.folder);
        assert!(container["resources"]["limits"]["memory"].is_string(), "{}", promise.folder);

        let mut loose = spec.clone();
        loose["containers"][0]["securityContext"]["capabilities"] = json!({"add": ["SYS_ADMIN"]});
        let refusal =
            kubectl(bed, &arguments, &pod(&loose).to_string()).expect_err("the standard is enforced");
        assert!(refusal.contains("restricted"), "{refusal}");
    }
}

#[test]
fn the_issuer_of_the_webhook_certificate_is_the_one_thing_that_its_volume_lacks() {
    let attributes = |folder| {
        let rendered = Rendered::of(folder);
        let pod = &rendered.deployment().expect("a Deployment")["spec"]["template"]["spec"];
        let volume = each(&pod["volumes"]).find(|volume| volume["name"] == "webhook-tls").expect("a volume");
        let attributes = volume["csi"]["volumeAttributes"].as_object().expect("attributes").clone();
        attributes.into_iter().collect::<BTreeMap<String, Value>>()
    };
    let bare = attributes("deploy/overlays/management-plane");
    let names = word(&bare["csi.cert-manager.io/dns-names"]);
    assert!(names.split(',').any(|name| name == "compute-webhook.compute-system.svc"), "{names}");
    assert!(!bare.contains_key("csi.cert-manager.io/issuer-name"), "{bare:?}");

    let whole = attributes("docs/operations/examples/management-plane");
    let added: Vec<&str> = whole.keys().filter(|key| !bare.contains_key(*key)).map(String::as_str).collect();
    assert_eq!(added, ["csi.cert-manager.io/issuer-kind", "csi.cert-manager.io/issuer-name"]);
}

#[tokio::test]
async fn a_webhook_certificate_that_nobody_issues_is_said_with_who_has_to_name_the_issuer() {
    let bed = bed().await;
    let manager = Manager::of(bed, &Rendered::of("deploy/overlays/management-plane"));
    let checked = || {
        let output = std::process::Command::new(process::program())
            .args(["manager", "--check-config"])
            .env_clear()
            .envs(manager.pod.environment.iter().map(|(name, value)| (name, value)))
            .output()
            .expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, said) = checked();
    assert_eq!(code, Some(0), "{said}");
    fs::remove_dir_all(manager.files.path().join("etc/compute/webhook-tls")).expect("no volume");
    let (code, said) = checked();
    assert_eq!(code, Some(2), "{said}");
    for word in
        ["webhookServer.tls", "deploy/components/csi-webhook-cert", "the issuer is the environment's to name"]
    {
        assert!(said.contains(word), "{word} is not in {said}");
    }
}

// === What runs ===

/// The one plane is also hub and platform, and needs what those need.
fn furnish(bed: &Bed) {
    for folder in [
        "deploy/components/federation",
        "deploy/components/rbac/project",
        "deploy/components/rbac/management",
    ] {
        apply(bed, &Rendered::of(folder));
    }
}

#[tokio::test]
async fn the_manager_runs_with_what_a_rendered_deployment_gives_it() {
    let (bed, _turn) = (bed().await, TURN.lock().await);
    furnish(bed);
    let runs: [(&str, &[&str]); 3] = [
        ("docs/operations/examples/management-plane", &["hub", "project"]),
        ("docs/operations/examples/cell-dfw", &["cell", "hub"]),
        ("deploy/overlays/single-cluster", &["cell", "hub", "project"]),
    ];
    let mut pages = String::new();
    for (folder, sets) in runs {
        let rendered = Rendered::of(folder);
        apply(bed, &rendered);
        let mut pod = Manager::of(bed, &rendered);
        pod.start();
        let page = pod.leads().await;
        for set in ["cell", "hub", "project"] {
            let line = format!("polis_planes{{set=\"{set}\",state=\"engaged\"}}");
            assert_eq!(page.contains(&line), sets.contains(&set), "{folder}: {set}\n{page}");
        }
        pages += &page;
        pod.stop();
    }
    let exported: BTreeSet<&str> = pages.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
    let named = named();
    assert!(named.len() > 20, "{named:?}");
    let missing: Vec<&String> = named.iter().filter(|metric| !exported.contains(metric.as_str())).collect();
    assert!(missing.is_empty(), "alerts or dashboards name {missing:?}, which no manager exports\n{pages}");
}

#[tokio::test]
async fn the_webhooks_take_their_certificate_from_a_secret_with_the_rights_that_are_shipped_for_it() {
    let (bed, _turn) = (bed().await, TURN.lock().await);
    furnish(bed);
    let rendered = Rendered::of("docs/operations/examples/webhook-secret");
    apply(bed, &rendered);
    let mut pod = Manager::of(bed, &rendered);
    // Nobody has brought the Secret.
    pod.start();
    let said = pod.gives_up().await;
    assert!(said.contains("Secret compute-system/compute-webhook-tls"), "{said}");

    let first = bring_secret(bed);
    pod.start();
    pod.leads().await;
    serves(&pod, &first).await;
    let page =
        manifest::until("pod", "the end of the certificate in the metrics", process::WITHIN, async || {
            let page = pod.ask("/metrics").unwrap_or_default();
            Ok(page
                .contains("polis_certificate_expiry_timestamp_seconds{certificate=\"webhooks\"}")
                .then_some(page))
        });
    let page = page.await.unwrap_or_else(|err| panic!("{err}"));
    let line = format!(
        "polis_certificate_expiry_timestamp_seconds{{certificate=\"webhooks\"}} {END_OF_CERTIFICATE}"
    );
    assert!(page.lines().any(|it| it == line), "{line} is not on\n{page}");
    assert!(checked(&pod).contains("Secret compute-system/compute-webhook-tls can be read"));
    // Renewed under it.
    let second = bring_secret(bed);
    serves(&pod, &second).await;
    pod.stop();

    let binding = ["delete", "rolebinding", "-n", NAMESPACE, "compute-webhook-secret"];
    kubectl(bed, &binding, "").unwrap_or_else(|err| panic!("{err}"));
    pod.start();
    let said = pod.gives_up().await;
    assert!(said.contains("deploy/components/secret-webhook-cert grants it"), "{said}");
    let said = checked(&pod);
    for words in
        ["we may not get, list, watch secrets", "deploy/components/secret-webhook-cert/role.yaml grants it"]
    {
        assert!(said.contains(words), "{words} is not in {said}");
    }
}

/// 2099-01-01, in seconds since 1970.
const END_OF_CERTIFICATE: u64 = 4_070_908_800;

/// Puts a new certificate for the webhooks into their Secret.
fn bring_secret(bed: &Bed) -> String {
    let names = vec!["compute-webhook.compute-system.svc".to_owned(), "127.0.0.1".to_owned()];
    let mut params = rcgen::CertificateParams::new(names).expect("names");
    params.not_after = rcgen::date_time_ymd(2099, 1, 1);
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": "compute-webhook-tls", "namespace": NAMESPACE},
        "stringData": {"tls.crt": certificate, "tls.key": key.serialize_pem()}});
    kubectl(bed, &["apply", "-f", "-"], &secret.to_string()).expect("a Secret");
    certificate
}

/// Waits until the webhooks are served with this certificate.
async fn serves(pod: &Manager, certificate: &str) {
    let served = manifest::until("pod", "the webhooks to be served with it", process::WITHIN, async || {
        let client = webhook_client(pod.pod.webhooks, certificate);
        let request = http::Request::get("/").body(Vec::new().into()).expect("a request");
        client.send(request).await.map(|_| Some(())).map_err(|err| err.to_string())
    });
    served.await.unwrap_or_else(|err| panic!("{err}\n{}", pod.said()));
}

/// What a check of the planes says, in the environment of a pod.
fn checked(pod: &Manager) -> String {
    let output = std::process::Command::new(process::program())
        .args(["manager", "--check-config=planes"])
        .env_clear()
        .envs(pod.pod.environment.iter().map(|(name, value)| (name, value)))
        .output()
        .expect("it runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn what_the_environment_has_to_bring_is_missed_aloud() {
    let bed = bed().await;
    for (folder, missed) in
        [("deploy/base/manager", "no role is switched on"), ("deploy/overlays/cell", "discovery.clusterName")]
    {
        let mut pod = Manager::of(bed, &Rendered::of(folder));
        pod.start();
        let said = pod.gives_up().await;
        assert!(said.contains(missed), "{folder}: {said}");
    }
}

// === What wakes people ===

/// The metrics that alerts and dashboards name, as they are scraped.
fn named() -> BTreeSet<String> {
    let rules = Rendered::of("deploy/components/alerts");
    let boards = Rendered::of("deploy/components/dashboards");
    let texts = [
        &rules.find("PrometheusRule", "compute-manager").expect("rules")["spec"],
        &boards.find("ConfigMap", "compute-dashboards").expect("dashboards")["data"],
    ];
    // Texts within texts: the ends of their lines are letters here.
    let text: String = texts.iter().map(|text| text.to_string().replace("\\n", " ")).collect();
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    words.filter(|word| word.starts_with("polis_")).map(str::to_owned).collect()
}

#[test]
fn every_alert_has_its_page_and_every_page_its_alert() {
    let rules = Rendered::of("deploy/components/alerts");
    let rules = rules.find("PrometheusRule", "compute-manager").expect("rules");
    let mut pages = BTreeSet::new();
    for rule in each(&rules["spec"]["groups"]).flat_map(|group| each(&group["rules"])) {
        let (alert, page) = (word(&rule["alert"]), word(&rule["annotations"]["runbook"]));
        let content = text(page);
        for heading in [format!("# {alert}\n"), "## Confirm\n".to_owned(), "## Do\n".to_owned()] {
            assert!(content.contains(&heading), "{page} lacks {heading}");
        }
        assert!(text("docs/operations/install.md").contains(alert), "install.md does not list {alert}");
        pages.insert(page.to_owned());
    }
    let folder = "docs/operations/runbooks";
    let there = fs::read_dir(root().join(folder)).expect("the runbooks").filter_map(Result::ok);
    let there: BTreeSet<String> =
        there.map(|page| format!("{folder}/{}", page.file_name().to_string_lossy())).collect();
    assert_eq!(there, pages);
}
