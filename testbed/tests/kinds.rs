//! The CRDs on a real kube-apiserver: each is accepted without a warning, kubectl prints and explains the
//! kinds, and the manifests in `manifests/*.yaml` are accepted or rejected as the tables specify.

use std::time::Duration;

use http::{Method, Request};
use kube::{Client, client::Body};
use polis_api::crds;
use polis_testbed::{TestCluster, manifest, plane::SINGLE_PLANE};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

const GROUP: &str = "/apis/compute.datumapis.com/v1alpha";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WITHIN: Duration = Duration::from_secs(30);

/// A separate test cluster: the suite needs a plane without other CRDs.
static CLUSTER: OnceCell<TestCluster> = OnceCell::const_new();

/// The response of the API server.
struct Response {
    accepted: bool,
    body: Value,
    warnings: Vec<String>,
}

impl Response {
    fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }
}

async fn request(client: &Client, method: Method, path: &str, body: Option<&Value>) -> Response {
    let bytes = body.map(|body| serde_json::to_vec(body).expect("JSON")).unwrap_or_default();
    let http_request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(Body::from(bytes))
        .expect("a valid request");
    let response = client.send(http_request).await.expect("the API server responds");
    let warnings = response.headers().get_all("warning").iter();
    let warnings = warnings.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect();
    let accepted = response.status().is_success();
    let bytes = response.into_body().collect_bytes().await.expect("a complete response");
    Response { accepted, body: serde_json::from_slice(&bytes).expect("a response in JSON"), warnings }
}

/// A plane with all CRDs; each was accepted without a warning and is served.
async fn plane() -> (&'static TestCluster, Client) {
    let cluster = CLUSTER
        .get_or_init(async || {
            let cluster = Box::pin(TestCluster::single_plane()).await.expect("a test cluster");
            let client = cluster.client(SINGLE_PLANE).await.expect("a client");
            for file in [crds::compute(), crds::platform(), crds::karmada()].concat() {
                let response = request(&client, Method::POST, CRDS, Some(&file.crd)).await;
                assert!(response.accepted, "{} was rejected: {}", file.path().display(), response.message());
                assert_eq!(response.warnings, [""; 0], "{}", file.path().display());
            }
            let ours: Vec<Value> = crds::compute().into_iter().map(|file| file.crd).collect();
            manifest::apply_crds(&client, SINGLE_PLANE, &ours).await.expect("the compute kinds are served");
            cluster
        })
        .await;
    (cluster, cluster.client(SINGLE_PLANE).await.expect("a client"))
}

async fn namespace(client: &Client, name: &str) {
    let body = json!({"metadata": {"name": name}});
    let response = request(client, Method::POST, "/api/v1/namespaces", Some(&body)).await;
    assert!(response.accepted, "{}", response.message());
}

fn collection(kind: &str, namespace: &str) -> String {
    format!("{GROUP}/namespaces/{namespace}/{}s", kind.to_lowercase())
}

async fn kubectl(cluster: &TestCluster, arguments: &[&str]) -> String {
    let output =
        cluster.kubectl(SINGLE_PLANE).expect("kubectl").args(arguments).output().expect("kubectl runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "kubectl {arguments:?}: {stderr}");
    String::from_utf8(output.stdout).expect("text")
}

// === The table ===

/// The manifests of one kind: a base object, and cases that modify it.
#[derive(Deserialize)]
struct Table {
    base: Value,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    case: String,
    #[serde(default)]
    set: Map<String, Value>,
    #[serde(default)]
    remove: Vec<String>,
    rejected: Option<String>,
    #[serde(default)]
    stored: Map<String, Value>,
}

/// A status that is written to an object of a kind.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StatusCase {
    case: String,
    kind: String,
    status: Value,
    rejected: Option<String>,
}

fn tables() -> Vec<Table> {
    let texts = [
        include_str!("manifests/workload.yaml"),
        include_str!("manifests/workloaddeployment.yaml"),
        include_str!("manifests/instance.yaml"),
    ];
    texts.iter().map(|text| serde_saphyr::from_str(text).expect("a table")).collect()
}

fn base_of(kind: &str) -> Value {
    let table = tables().into_iter().find(|table| table.base["kind"] == kind);
    let mut base = table.expect("a table of the kind").base;
    base["metadata"] = json!({"generateName": "case-"});
    base
}

impl Case {
    fn object(&self, base: &Value) -> Value {
        let mut object = base.clone();
        object["metadata"] = json!({"generateName": "case-"});
        for pointer in &self.remove {
            let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
            let parent =
                object.pointer_mut(parent).and_then(Value::as_object_mut).expect("an object of the base");
            assert!(parent.remove(field).is_some(), "{}: the base has no {pointer}", self.case);
        }
        for (pointer, value) in &self.set {
            put(&mut object, pointer, value);
        }
        object
    }
}

/// Sets the value at a pointer whose parent exists; the index after the end of a list appends.
fn put(object: &mut Value, pointer: &str, value: &Value) {
    let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
    match object.pointer_mut(parent) {
        Some(Value::Object(map)) => drop(map.insert(field.to_owned(), value.clone())),
        Some(Value::Array(items)) => match field.parse::<usize>().expect("an index") {
            index if index == items.len() => items.push(value.clone()),
            index => items[index] = value.clone(),
        },
        _ => panic!("the base has no {parent}"),
    }
}

/// The difference between a response and the expectation of its case, if any.
fn mismatch(case: &str, response: &Response, rejected: Option<&str>) -> Option<String> {
    if !response.warnings.is_empty() {
        return Some(format!("{case}: warned {:?}", response.warnings));
    }
    match rejected {
        None if response.accepted => None,
        None => Some(format!("{case}: was rejected: {}", response.message())),
        Some(_) if response.accepted => Some(format!("{case}: was accepted")),
        Some(field) if !response.message().contains(field) => {
            Some(format!("{case}: the error does not name {field}: {}", response.message()))
        }
        Some(_) => None,
    }
}

// === Scenarios ===

#[tokio::test(flavor = "multi_thread")]
async fn every_crd_is_accepted_without_a_warning_and_is_structural() {
    let (_, client) = plane().await;
    for file in [crds::compute(), crds::platform(), crds::karmada()].concat() {
        let name = file.crd["metadata"]["name"].as_str().expect("a name").to_owned();
        let what = format!("{name} to be established");
        let conditions = manifest::until(SINGLE_PLANE, &what, WITHIN, async || {
            let response = request(&client, Method::GET, &format!("{CRDS}/{name}"), None).await;
            let conditions = response.body["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let established = conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True");
            Ok(established.then_some(conditions))
        });
        let conditions = conditions.await.expect("the CRD is established");
        let bad: Vec<_> = conditions.iter().filter(|c| c["type"] == "NonStructuralSchema").collect();
        assert!(bad.is_empty(), "{name}: {bad:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_prints_the_expected_columns() {
    let (cluster, client) = plane().await;
    namespace(&client, "columns").await;
    let shown = [
        ("Workload", vec![], "NAME AVAILABLE REASON DEPLOYMENTS REPLICAS READY DESIRED UP-TO-DATE AGE"),
        ("WorkloadDeployment", vec![], "NAME AVAILABLE REASON REPLICAS READY DESIRED UP-TO-DATE CITY AGE"),
        (
            "WorkloadDeployment",
            vec!["-owide"],
            "NAME AVAILABLE REASON REPLICAS READY DESIRED UP-TO-DATE CITY AGE LOCATION NAMESPACE LOCATION NAME",
        ),
        ("Instance", vec![], "NAME READY REASON NETWORK IP EXTERNAL IP CITY AGE"),
        ("Instance", vec!["-owide"], "NAME READY REASON NETWORK IP EXTERNAL IP CITY AGE MESSAGE QUOTA"),
    ];
    for (kind, flags, columns) in shown {
        let path = collection(kind, "columns");
        let response = request(&client, Method::POST, &path, Some(&base_of(kind))).await;
        assert!(response.accepted, "{}", response.message());
        let plural = format!("{}s", kind.to_lowercase());
        let arguments = [vec!["get", &plural, "--namespace=columns"], flags].concat();
        let table = kubectl(cluster, &arguments).await;
        let header: Vec<&str> = table.lines().next().expect("a header").split_whitespace().collect();
        assert_eq!(header.join(" "), columns, "kubectl {arguments:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_explains_each_field_of_a_placement() {
    let (cluster, _) = plane().await;
    // The server publishes the schema of a new CRD a moment after it serves the kind.
    manifest::until(SINGLE_PLANE, "the schema to be published", WITHIN, async || {
        let explain = cluster.kubectl(SINGLE_PLANE).expect("kubectl").args(["explain", "workload"]).output();
        Ok(explain.expect("kubectl runs").status.success().then_some(()))
    })
    .await
    .expect("the schema is published");
    let text = kubectl(cluster, &["explain", "workload.spec.placements"]).await;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let workload = &crds::compute()[0].crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let placement = &workload["properties"]["spec"]["properties"]["placements"]["items"]["properties"];
    let fields = placement.as_object().expect("fields");
    assert_eq!(fields.len(), 3);
    for (field, schema) in fields {
        let description = schema["description"].as_str().expect("a description");
        assert!(text.contains(field) && text.contains(description), "{field} is not explained in: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_are_accepted_or_rejected_as_the_tables_specify() {
    let (_, client) = plane().await;
    namespace(&client, "table").await;
    let (mut cases, mut wrong) = (0, Vec::new());
    for table in tables() {
        let path = collection(table.base["kind"].as_str().expect("a kind"), "table");
        for case in &table.cases {
            cases += 1;
            // As kubectl: an unknown field is an error.
            let strict = format!("{path}?fieldValidation=Strict");
            let response = request(&client, Method::POST, &strict, Some(&case.object(&table.base))).await;
            wrong.extend(mismatch(&case.case, &response, case.rejected.as_deref()));
            if response.accepted {
                let name = response.body["metadata"]["name"].as_str().expect("a name");
                let stored = request(&client, Method::GET, &format!("{path}/{name}"), None).await.body;
                for (pointer, value) in &case.stored {
                    if stored.pointer(pointer) != Some(value) {
                        wrong.push(format!(
                            "{}: stored {:?} at {pointer}",
                            case.case,
                            stored.pointer(pointer)
                        ));
                    }
                }
            }
        }
    }
    assert!(cases >= 60, "only {cases} cases");
    assert!(wrong.is_empty(), "{} of {cases} cases:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_is_rejected_without_its_required_counts() {
    let (_, client) = plane().await;
    namespace(&client, "status").await;
    let cases: Vec<StatusCase> =
        serde_saphyr::from_str(include_str!("manifests/status.yaml")).expect("a table");
    let mut wrong = Vec::new();
    for case in &cases {
        let path = collection(&case.kind, "status");
        let mut object = request(&client, Method::POST, &path, Some(&base_of(&case.kind))).await.body;
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        object["status"] = case.status.clone();
        let status = format!("{path}/{name}/status?fieldValidation=Strict");
        let response = request(&client, Method::PUT, &status, Some(&object)).await;
        wrong.extend(mismatch(&case.case, &response, case.rejected.as_deref()));
        if response.accepted && response.body["status"] != case.status {
            wrong.push(format!("{}: was stored as {}", case.case, response.body["status"]));
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_scales_a_workload_or_names_what_to_do_instead() {
    let (cluster, client) = plane().await;
    namespace(&client, "scale-workload").await;
    let path = collection("Workload", "scale-workload");
    let mut workload = base_of("Workload");
    workload["metadata"] = json!({"name": "web"});
    let created = request(&client, Method::POST, &path, Some(&workload)).await;
    assert!(created.accepted, "{}", created.message());
    let scale = async |replicas: &str| {
        kubectl(cluster, &["scale", "workload", "web", "-n", "scale-workload", "--replicas", replicas]).await
    };
    assert!(scale("3").await.contains("workload.compute.datumapis.com/web scaled"));
    let mut stored = request(&client, Method::GET, &format!("{path}/web"), None).await.body;
    assert_eq!(stored["spec"]["replicas"], 3);

    // A change that would have no effect is refused; it is accepted together with the removal.
    stored["spec"]["placements"][0]["scaleSettings"]["minReplicas"] = json!(2);
    let hidden = request(&client, Method::PUT, &format!("{path}/web"), Some(&stored)).await;
    assert!(hidden.message().contains("takes precedence over minReplicas"), "{}", hidden.message());
    stored["spec"].as_object_mut().expect("a spec").remove("replicas");
    let edge = json!({"name": "edge", "cityCodes": ["ORD"], "scaleSettings": {"minReplicas": 5}});
    stored["spec"]["placements"].as_array_mut().expect("placements").push(edge);
    let split = request(&client, Method::PUT, &format!("{path}/web"), Some(&stored)).await;
    assert!(split.accepted, "{}", split.message());

    let patch = request(&client, Method::GET, &format!("{path}/web"), None).await.body;
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 4},
        "metadata": {"name": "web", "namespace": "scale-workload", "resourceVersion": patch["metadata"]["resourceVersion"]}});
    let refused = request(&client, Method::PUT, &format!("{path}/web/scale"), Some(&scale)).await;
    assert!(
        refused.message().contains("use `polis scale NAME N --placement PLACEMENT`"),
        "{}",
        refused.message()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_is_scaled_through_its_scale_subresource() {
    let (_, client) = plane().await;
    namespace(&client, "scale").await;
    let path = collection("WorkloadDeployment", "scale");
    let mut deployment = base_of("WorkloadDeployment");
    deployment["metadata"] = json!({"name": "web"});
    // Without `spec.replicas` the API server returns an error for the scale subresource.
    deployment["spec"]["replicas"] = json!(2);
    let deployment = request(&client, Method::POST, &path, Some(&deployment)).await;
    assert!(deployment.accepted, "{}", deployment.message());

    let mut counted = deployment.body;
    counted["status"] = json!({"replicas": 2, "currentReplicas": 2, "desiredReplicas": 2, "readyReplicas": 1, "selector": "a=b"});
    let counted = request(&client, Method::PUT, &format!("{path}/web/status"), Some(&counted)).await;
    assert!(counted.accepted, "{}", counted.message());

    let mut scale = request(&client, Method::GET, &format!("{path}/web/scale"), None).await.body;
    assert_eq!((&scale["status"]["replicas"], &scale["status"]["selector"]), (&json!(2), &json!("a=b")));
    scale["spec"]["replicas"] = json!(5);
    let scaled = request(&client, Method::PUT, &format!("{path}/web/scale"), Some(&scale)).await;
    assert!(scaled.accepted, "{}", scaled.message());
    let deployment = request(&client, Method::GET, &format!("{path}/web"), None).await.body;
    assert_eq!(deployment["spec"]["replicas"], 5);
}
