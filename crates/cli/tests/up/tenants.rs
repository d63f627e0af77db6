//! Two tenants on one `polis up`, each administrator of its project. One tries to reach the other.
//!
//! The list is that of `docs/operations/security.md`, "What tenants try".

use std::fs;

use http_body_util::BodyExt as _;
use polis_api::compute::Workload;
use polis_api::kube::api::DynamicObject;
use polis_api::kube::client::Body;
use polis_api::kube::config::{KubeConfigOptions, Kubeconfig};
use polis_api::kube::core::{ApiResource, GroupVersionKind};
use polis_api::kube::{Api, Client, Config, ResourceExt as _};
use polis_apiserver::kubeconfig;
use polis_runtime::Isolation;
use polis_tls::Authority;
use serde_json::{Value, json};

use crate::installation::{Installation, eventually, mk_workload};

/// In objects of bob: no answer to ann may contain it.
const PLANTED: &str = "planted-in-beta";
const COMPUTE: &str = "/apis/compute.datumapis.com/v1alpha/namespaces/default";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

fn control_plane(project: &str) -> String {
    format!("/projects/{project}/control-plane")
}

/// A user of the API server. Its requests name the whole path, planes included.
struct User {
    name: &'static str,
    client: Client,
}

/// A response: its code and its text.
struct TextResponse {
    code: u16,
    text: String,
}

impl User {
    async fn of(name: &'static str, groups: &[&str], data: &std::path::Path, url: &str) -> User {
        let read = |file: &str| fs::read_to_string(data.join(file)).expect("a file of the authority");
        let authority = Authority::load(&read("ca.crt"), &read("ca.key")).expect("the authority");
        let certificate = authority.client(name, groups).expect("a certificate");
        let text = kubeconfig(url, "", authority.pem(), &certificate);
        let parsed = Kubeconfig::from_yaml(&text).expect("a kubeconfig");
        let config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await;
        User { name, client: Client::try_from(config.expect("a configuration")).expect("a client") }
    }

    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> TextResponse {
        let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let mut request = http::Request::builder().method(method).uri(path).header("content-type", media);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = request.body(Body::from(body)).expect("a request");
        let answer = self.client.send(request).await.expect("an answer");
        let code = answer.status().as_u16();
        let collected =
            tokio::time::timeout(std::time::Duration::from_secs(30), answer.into_body().collect());
        let bytes = collected.await.unwrap_or_else(|_| panic!("{method} {path} goes on")).expect("a body");
        TextResponse { code, text: String::from_utf8_lossy(&bytes.to_bytes()).into_owned() }
    }

    /// Sends a request that must not succeed.
    async fn is_refused(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) {
        let answer = self.send(method, path, headers, body).await;
        let what = format!("{} {method} {path} {headers:?}", self.name);
        assert!([400, 401, 403, 404, 405].contains(&answer.code), "{what}: {} {}", answer.code, answer.text);
        assert!(!answer.text.contains(PLANTED), "{what} shows an object of beta: {}", answer.text);
    }

    async fn succeeds(&self, method: &str, path: &str, body: &Value) -> String {
        let answer = self.send(method, path, &[], body).await;
        assert!(answer.code < 300, "{} {method} {path}: {} {}", self.name, answer.code, answer.text);
        answer.text
    }
}

/// Makes a user administrator of a project, with every right on its plane.
async fn make_administrator(admin: &User, project: &str, user: &str) {
    let plane = control_plane(project);
    let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}, {"nonResourceURLs": ["*"], "verbs": ["*"]}]);
    let role = json!({"metadata": {"name": "tenant"}, "rules": rules});
    let binding = json!({"metadata": {"name": "tenant"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tenant"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]});
    admin.succeeds("POST", &format!("{plane}{RBAC}/clusterroles"), &role).await;
    admin.succeeds("POST", &format!("{plane}{RBAC}/clusterrolebindings"), &binding).await;
}

/// A workload with this value in its environment.
fn mk_marked_workload(name: &str, value: &str) -> Workload {
    let mut workload = mk_workload(name, &["dfw"], 1);
    let sandbox = workload.spec.template.spec.runtime.sandbox.as_mut().expect("a sandbox");
    sandbox.containers[0].env =
        serde_json::from_value(json!([{"name": "MARK", "value": value}])).expect("env");
    workload
}

/// Every object of bob that an attack could change, with its revision.
async fn state(admin: &User, project: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for path in [
        "/api/v1/namespaces".to_owned(),
        "/api/v1/namespaces/default/secrets".to_owned(),
        "/api/v1/namespaces/default/configmaps".to_owned(),
        format!("{COMPUTE}/workloads"),
        format!("{COMPUTE}/workloaddeployments"),
        format!("{COMPUTE}/instances"),
        format!("{RBAC}/clusterroles"),
        format!("{RBAC}/clusterrolebindings"),
        format!("{ADMISSION}/validatingadmissionpolicies"),
        format!("{ADMISSION}/validatingwebhookconfigurations"),
    ] {
        let text = admin.succeeds("GET", &format!("{}{path}", control_plane(project)), &Value::Null).await;
        let list: Value = serde_json::from_str(&text).expect("a list");
        for item in list["items"].as_array().expect("items") {
            let uid = item["metadata"]["uid"].as_str().expect("a UID").to_owned();
            let generation = item["metadata"]["generation"].to_string();
            found.push((format!("{path}/{}", item["metadata"]["name"]), format!("{uid} {generation}")));
        }
    }
    found
}

/// Requests of ann to everything that is not hers.
async fn tries_the_api(ann: &User) {
    let (alpha, beta) = (control_plane("alpha"), control_plane("beta"));
    let milo = "/apis/resourcemanager.miloapis.com/v1alpha1/projects";
    let map = json!({"metadata": {"name": "x"}, "data": {"a": "b"}});
    // Every plane but her own, by every verb.
    for plane in [&beta, &format!("{milo}/beta/control-plane"), "", "/planes/hub", "/planes/cell-dfw"] {
        for kind in ["secrets", "configmaps"] {
            let path = format!("{plane}/api/v1/namespaces/default/{kind}");
            for (method, path, body) in [
                ("GET", path.clone(), &Value::Null),
                ("GET", format!("{path}?watch=true"), &Value::Null),
                ("GET", format!("{path}/db"), &Value::Null),
                ("HEAD", format!("{path}/db"), &Value::Null),
                ("POST", path.clone(), &map),
                ("PUT", format!("{path}/db"), &map),
                ("PATCH", format!("{path}/db"), &map),
                ("DELETE", format!("{path}/db"), &Value::Null),
                ("DELETE", path.clone(), &Value::Null),
            ] {
                ann.is_refused(method, &path, &[], body).await;
            }
        }
        for path in [
            "/api/v1/namespaces",
            "/api/v1/secrets",
            &format!("{COMPUTE}/workloads"),
            &format!("{COMPUTE}/instances"),
            &format!("{RBAC}/clusterrolebindings"),
            "/metrics",
        ] {
            ann.is_refused("GET", &format!("{plane}{path}"), &[], &Value::Null).await;
        }
        for resource in ["selfsubjectrulesreviews", "subjectaccessreviews"] {
            let path = format!("{plane}/apis/authorization.k8s.io/v1/{resource}");
            let review = json!({"spec": {"namespace": "default", "user": "bob", "resourceAttributes": {"verb": "get"}}});
            let answer = ann.send("POST", &path, &[], &review).await;
            assert!(
                !answer.text.contains(PLANTED) && !answer.text.contains("\"allowed\":true"),
                "{}",
                answer.text
            );
        }
    }
    ann.is_refused("GET", milo, &[], &Value::Null).await;
    ann.is_refused("DELETE", &format!("{milo}/beta"), &[], &Value::Null).await;
    for method in ["GET", "POST"] {
        ann.is_refused(method, "/polis/credentials", &[], &json!({"subject": "bob"})).await;
    }
    // Other spellings of a path, from her own plane into that of bob.
    for path in [
        format!("{alpha}/../../beta/control-plane/api/v1/namespaces/default/secrets/db"),
        format!("{alpha}/%2e%2e/%2e%2e/beta/control-plane/api/v1/namespaces/default/secrets/db"),
        "/projects/alpha%2f..%2fbeta/control-plane/api/v1/namespaces/default/secrets/db".to_owned(),
        format!("/projects/alpha/control-plane{beta}/api/v1/namespaces/default/secrets/db"),
        format!("{alpha}/{beta}/api/v1/namespaces/default/secrets/db"),
        "//projects/beta/control-plane/api/v1/namespaces/default/secrets/db".to_owned(),
        format!("{alpha}/api/v1/namespaces/default/secrets/..%2f..%2f..%2fbeta%2fdb"),
        format!("{alpha}/api/v1/namespaces/default/secrets/project:beta"),
        "/planes/project:beta/api/v1/namespaces/default/secrets/db".to_owned(),
        "/planes/project%3Abeta/api/v1/namespaces/default/secrets/db".to_owned(),
        "/projects/BETA/control-plane/api/v1/namespaces/default/secrets/db".to_owned(),
        "/projects/beta%00/control-plane/api/v1/namespaces/default/secrets/db".to_owned(),
        format!("{alpha}/api/v1/namespaces/default/secrets/db"),
        format!("{alpha}{COMPUTE}/instances/shop-dfw-0/log"),
    ] {
        ann.is_refused("GET", &path, &[], &Value::Null).await;
    }
    // As another user. On her own plane she may: it changes nothing on that of bob.
    let secret = format!("{beta}/api/v1/namespaces/default/secrets/db");
    let own = format!("{alpha}/api/v1/namespaces/default/configmaps");
    for (name, value) in [
        ("impersonate-group", "system:masters"),
        ("impersonate-group", "compute.datumapis.com:managers"),
        ("impersonate-group", "compute.datumapis.com:administrators"),
        ("impersonate-group", "polis:controllers"),
    ] {
        ann.is_refused("GET", &secret, &[("impersonate-user", "bob"), (name, value)], &Value::Null).await;
        ann.is_refused("GET", &own, &[("impersonate-user", "bob"), (name, value)], &Value::Null).await;
    }
    ann.is_refused("GET", &secret, &[("impersonate-user", "bob")], &Value::Null).await;
    for (name, value) in [
        ("x-remote-user", "bob"),
        ("x-remote-group", "system:masters"),
        ("x-forwarded-user", "bob"),
        ("x-forwarded-client-cert", "Subject=\"CN=bob\""),
        ("authorization", "Basic Ym9iOmJvYg=="),
    ] {
        ann.is_refused("GET", &secret, &[(name, value)], &Value::Null).await;
    }
    let extra = ("impersonate-extra-iam.miloapis.com%2fparent-name", "beta");
    ann.is_refused("GET", &secret, &[("impersonate-user", "ann"), extra], &Value::Null).await;
    // A token of a service account of her own plane.
    let accounts = format!("{alpha}/api/v1/namespaces/default/serviceaccounts");
    ann.succeeds("POST", &accounts, &json!({"metadata": {"name": "bot"}})).await;
    let request =
        json!({"spec": {"audiences": [format!("https://kubernetes.default.svc.cluster.local{beta}")]}});
    for request in [json!({"spec": {}}), request] {
        let issued = ann.succeeds("POST", &format!("{accounts}/bot/token"), &request).await;
        let issued: Value = serde_json::from_str(&issued).expect("a TokenRequest");
        let bearer = format!("Bearer {}", issued["status"]["token"].as_str().expect("a token"));
        for path in [&secret, "/api/v1/namespaces", "/planes/hub/api/v1/namespaces"] {
            ann.is_refused("GET", path, &[("authorization", &bearer)], &Value::Null).await;
        }
    }
    let request = json!({"spec": {}});
    ann.is_refused(
        "POST",
        &format!("{beta}/api/v1/namespaces/default/serviceaccounts/default/token"),
        &[],
        &request,
    )
    .await;
}

/// Objects that ann may write on her own plane, and that must have no effect elsewhere.
async fn plants_objects(ann: &User, hub_namespace: &str) {
    let alpha = control_plane("alpha");
    let everything = json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"], "scope": "*"}]);
    // Deployments and instances by hand, with the labels of bob's project.
    let labels = json!({"meta.datumapis.com/upstream-cluster-name": "cluster-beta", "meta.datumapis.com/upstream-namespace": "default"});
    let template = serde_json::to_value(mk_workload("forged", &["dfw"], 1).spec.template).expect("JSON");
    let deployment = json!({"workloadRef": {"name": "shop", "uid": "1"}, "placementName": "main", "cityCode": "dfw",
        "template": template, "scaleSettings": {"minReplicas": 1}});
    for (plural, kind, spec) in [
        ("workloaddeployments", "WorkloadDeployment", &deployment),
        ("instances", "Instance", &template["spec"]),
    ] {
        let object = json!({"apiVersion": "compute.datumapis.com/v1alpha", "kind": kind,
            "metadata": {"name": "forged", "labels": labels}, "spec": spec});
        let answer = ann.send("POST", &format!("{alpha}{COMPUTE}/{plural}"), &[], &object).await;
        assert_eq!(answer.code, 403, "{plural}: {}", answer.text);
    }
    // A namespace with the name and the labels of a hub namespace.
    let namespace = json!({"metadata": {"name": hub_namespace, "labels": labels}});
    ann.succeeds("POST", &format!("{alpha}/api/v1/namespaces"), &namespace).await;
    // Roles for bob's name, and for all users.
    let binding = json!({"metadata": {"name": "all"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tenant"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}]});
    ann.succeeds("POST", &format!("{alpha}{RBAC}/clusterrolebindings"), &binding).await;
    // A policy that refuses everything, and a webhook without a server: last, because they bind her, too.
    let policy = json!({"metadata": {"name": "deny"}, "spec": {"failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": everything}, "validations": [{"expression": "false"}]}});
    let bound =
        json!({"metadata": {"name": "deny"}, "spec": {"policyName": "deny", "validationActions": ["Deny"]}});
    let webhook = json!({"metadata": {"name": "dead"}, "webhooks": [{"name": "dead.example.com", "rules": everything,
        "clientConfig": {"url": "https://127.0.0.1:1/"}, "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 1}]});
    ann.succeeds("POST", &format!("{alpha}{ADMISSION}/validatingadmissionpolicies"), &policy).await;
    ann.succeeds("POST", &format!("{alpha}{ADMISSION}/validatingwebhookconfigurations"), &webhook).await;
    ann.succeeds("POST", &format!("{alpha}{ADMISSION}/validatingadmissionpolicybindings"), &bound).await;
}

/// The output of a program of ann that looks for everything outside of its instance.
async fn searches_from_an_instance(ann: &User, data: &std::path::Path, port: u16, neighbour: &str) -> String {
    let data = data.display();
    let script = format!(
        r#"for f in {data}/kubeconfig {data}/ca.key {data}/tokens.key {data}/secrets.key {data}/store.redb {data}/audit.log; do
            cat $f && echo "READ $f"; done
        find / \( -path /proc -o -path /sys \) -prune -o \( -name tokens.key -o -name secrets.key -o -name store.redb \) -print | sed 's/^/READ /'
        # The pattern does not match itself in the command line of this program.
        for p in /proc/[0-9]*; do tr '\0' '\n' < $p/environ; tr '\0' ' ' < $p/cmdline; echo; done | grep -a planted-in-b[e]ta
        for a in 127.0.0.1 127.200.0.1 169.254.169.254; do
            (exec 3<>/dev/tcp/$a/{port} && printf 'GET /healthz HTTP/1.0\r\n\r\n' >&3 && timeout 2 head -c 1 <&3 | grep -q . ) && echo "READ $a"; done
        kill -0 {neighbour} && echo "READ process"
        ls {data}/cells && echo "READ cells"
        echo search ended; sleep 1000"#
    );
    let mut workload = mk_workload("search", &["dfw"], 1);
    let sandbox = workload.spec.template.spec.runtime.sandbox.as_mut().expect("a sandbox");
    let container = &mut sandbox.containers[0];
    (container.image, container.ports) = ("process:bash".into(), Default::default());
    container.args = vec!["-c".into(), script];
    let plane = control_plane("alpha");
    let workload = serde_json::to_value(&workload).expect("JSON");
    ann.succeeds("POST", &format!("{plane}{COMPUTE}/workloads"), &workload).await;
    eventually("the search has ended", async || {
        let text = ann.succeeds("GET", &format!("{plane}{COMPUTE}/instances"), &Value::Null).await;
        let list: Value = serde_json::from_str(&text).ok()?;
        let name = list["items"][0]["metadata"]["name"].as_str()?.to_owned();
        let log = ann.send("GET", &format!("{plane}{COMPUTE}/instances/{name}/log"), &[], &Value::Null).await;
        (log.code == 200 && log.text.contains("search ended")).then_some(log.text)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_with_every_right_on_its_plane_reaches_nothing_of_another_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().display().to_string();
    let installation = Installation::start(&[
        "--data-dir",
        &data,
        "--cities",
        "dfw",
        "--projects",
        "alpha,beta",
        "--allow-host-processes",
    ])
    .await;
    let url = installation.url("polis-platform").await;
    let admin = User::of("root", &["system:masters"], folder.path(), &url).await;
    let (ann, bob) =
        (User::of("ann", &[], folder.path(), &url).await, User::of("bob", &[], folder.path(), &url).await);
    make_administrator(&admin, "alpha", "ann").await;
    make_administrator(&admin, "beta", "bob").await;

    let beta = control_plane("beta");
    let secret = json!({"metadata": {"name": "db"}, "stringData": {"password": PLANTED}});
    bob.succeeds("POST", &format!("{beta}/api/v1/namespaces/default/secrets"), &secret).await;
    let map = json!({"metadata": {"name": "db"}, "data": {"text": PLANTED}});
    bob.succeeds("POST", &format!("{beta}/api/v1/namespaces/default/configmaps"), &map).await;
    let shop = serde_json::to_value(mk_marked_workload("shop", PLANTED)).expect("JSON");
    bob.succeeds("POST", &format!("{beta}{COMPUTE}/workloads"), &shop).await;
    eventually("the instance of bob is ready", async || {
        let text = bob.succeeds("GET", &format!("{beta}{COMPUTE}/instances"), &Value::Null).await;
        is_ready(&text).then_some(())
    })
    .await;
    let before = state(&admin, "beta").await;
    let processes = installation.shims();

    tries_the_api(&ann).await;
    let port = url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    match Isolation::of_host(env!("CARGO_BIN_EXE_polis").as_ref()).namespaces {
        Ok(_) => {
            let neighbour = processes[0].to_string();
            let found = searches_from_an_instance(&ann, folder.path(), port, &neighbour).await;
            assert!(!found.contains("READ ") && !found.contains(PLANTED), "{found}");
        }
        Err(why) => eprintln!("skipped: no namespaces: {why}"),
    }
    let hub_namespace = hub_namespace(&installation).await;
    plants_objects(&ann, &hub_namespace).await;

    // Nothing of bob has changed, bob goes on, and sees nothing of ann.
    assert_eq!(state(&admin, "beta").await, before);
    let more = json!({"metadata": {"name": "more"}, "data": {"a": "b"}});
    bob.succeeds("POST", &format!("{beta}/api/v1/namespaces/default/configmaps"), &more).await;
    for path in [format!("{COMPUTE}/workloads"), format!("{COMPUTE}/instances"), "/api/v1/namespaces".into()]
    {
        let text = bob.succeeds("GET", &format!("{beta}{path}"), &Value::Null).await;
        assert!(!text.contains("search") && !text.contains(&hub_namespace), "{path}: {text}");
    }
    bob.is_refused("GET", &format!("{}{COMPUTE}/workloads", control_plane("gamma")), &[], &Value::Null).await;
    assert!(processes.iter().all(|shim| installation.shims().contains(shim)), "bob's instance runs on");
    // The administrator of the platform still has a way in to the plane that refuses everything.
    let alpha = control_plane("alpha");
    admin
        .succeeds(
            "DELETE",
            &format!("{alpha}{ADMISSION}/validatingadmissionpolicybindings/deny"),
            &Value::Null,
        )
        .await;
    admin
        .succeeds("DELETE", &format!("{alpha}{ADMISSION}/validatingwebhookconfigurations/dead"), &Value::Null)
        .await;
    installation.stop().await;
}

fn is_ready(list: &str) -> bool {
    let list: Value = serde_json::from_str(list).unwrap_or_default();
    let conditions = list["items"][0]["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// The hub namespace of project beta.
async fn hub_namespace(installation: &Installation) -> String {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Namespace"));
    let namespaces: Api<DynamicObject> = Api::all_with(installation.client("polis-hub").await, &kind);
    let all = namespaces.list(&Default::default()).await.expect("the namespaces of the hub");
    let of_beta = |namespace: &&DynamicObject| {
        namespace
            .labels()
            .get("meta.datumapis.com/upstream-cluster-name")
            .is_some_and(|name| name == "cluster-beta")
    };
    all.items.iter().find(of_beta).expect("the hub namespace of beta").name_any()
}
