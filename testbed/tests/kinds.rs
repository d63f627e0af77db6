//! Our kinds on a real API server: every CRD is taken without a warning, kubectl shows and explains the kinds, and
//! a table of manifests is taken or refused as it says (`manifests/*.yaml`).

use std::time::Duration;

use http::{Method, Request};
use kube::{Client, client::Body};
use polis_api::crds;
use polis_testbed::{Bed, manifest, plane::LONE};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

const GROUP: &str = "/apis/compute.datumapis.com/v1alpha";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WITHIN: Duration = Duration::from_secs(30);

/// A bed of its own: the suite needs a plane that nobody else has put CRDs on.
static BED: OnceCell<Bed> = OnceCell::const_new();

/// What an API server answered.
struct Answer {
    taken: bool,
    body: Value,
    warnings: Vec<String>,
}

impl Answer {
    fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }
}

async fn ask(client: &Client, method: Method, path: &str, body: Option<&Value>) -> Answer {
    let bytes = body.map(|body| serde_json::to_vec(body).expect("JSON")).unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(Body::from(bytes))
        .expect("a request of plain words");
    let response = client.send(request).await.expect("the API server answers");
    let warnings = response.headers().get_all("warning").iter();
    let warnings = warnings.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect();
    let taken = response.status().is_success();
    let bytes = response.into_body().collect_bytes().await.expect("a whole answer");
    Answer { taken, body: serde_json::from_slice(&bytes).expect("an answer in JSON"), warnings }
}

/// A plane on which all our CRDs were put, each without a warning, and are served.
async fn plane() -> (&'static Bed, Client) {
    let bed = BED
        .get_or_init(async || {
            let bed = Box::pin(Bed::single_plane()).await.expect("a plane stands");
            let client = bed.client(LONE).await.expect("a client");
            for file in [crds::compute(), crds::platform(), crds::karmada()].concat() {
                let answer = ask(&client, Method::POST, CRDS, Some(&file.crd)).await;
                assert!(answer.taken, "{} was refused: {}", file.path().display(), answer.message());
                assert_eq!(answer.warnings, [""; 0], "{}", file.path().display());
            }
            let ours: Vec<Value> = crds::compute().into_iter().map(|file| file.crd).collect();
            manifest::apply_crds(&client, LONE, &ours).await.expect("our kinds are served");
            bed
        })
        .await;
    (bed, bed.client(LONE).await.expect("a client"))
}

async fn namespace(client: &Client, name: &str) {
    let body = json!({"metadata": {"name": name}});
    let answer = ask(client, Method::POST, "/api/v1/namespaces", Some(&body)).await;
    assert!(answer.taken, "{}", answer.message());
}

fn collection(kind: &str, namespace: &str) -> String {
    format!("{GROUP}/namespaces/{namespace}/{}s", kind.to_lowercase())
}

async fn kubectl(bed: &Bed, arguments: &[&str]) -> String {
    let output = bed.kubectl(LONE).expect("kubectl").args(arguments).output().expect("kubectl runs");
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaints.is_empty(), "kubectl {arguments:?}: {complaints}");
    String::from_utf8(output.stdout).expect("text")
}

// === The table ===

/// The manifests of one kind: a base, and cases that change it.
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
    refused: Option<String>,
    #[serde(default)]
    shows: Map<String, Value>,
}

/// A status that is put, whole, on an object of a kind.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StatusCase {
    case: String,
    kind: String,
    status: Value,
    refused: Option<String>,
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

/// Puts a value at a pointer whose parent is there; one past the end of a list adds to it.
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

/// What is wrong with an answer, or nothing.
fn verdict(case: &str, answer: &Answer, refused: Option<&str>) -> Option<String> {
    if !answer.warnings.is_empty() {
        return Some(format!("{case}: warned {:?}", answer.warnings));
    }
    match refused {
        None if answer.taken => None,
        None => Some(format!("{case}: was refused: {}", answer.message())),
        Some(_) if answer.taken => Some(format!("{case}: was taken")),
        Some(field) if !answer.message().contains(field) => {
            Some(format!("{case}: the answer does not name {field}: {}", answer.message()))
        }
        Some(_) => None,
    }
}

// === Scenarios ===

#[tokio::test(flavor = "multi_thread")]
async fn every_crd_is_taken_without_a_warning_and_is_structural() {
    let (_, client) = plane().await;
    for file in [crds::compute(), crds::platform(), crds::karmada()].concat() {
        let name = file.crd["metadata"]["name"].as_str().expect("a name").to_owned();
        let what = format!("{name} to be established");
        let conditions = manifest::until(LONE, &what, WITHIN, async || {
            let answer = ask(&client, Method::GET, &format!("{CRDS}/{name}"), None).await;
            let conditions = answer.body["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let established = conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True");
            Ok(established.then_some(conditions))
        });
        let conditions = conditions.await.expect("the CRD is established");
        let bad: Vec<_> = conditions.iter().filter(|c| c["type"] == "NonStructuralSchema").collect();
        assert!(bad.is_empty(), "{name}: {bad:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_our_kinds_in_the_columns_that_people_know() {
    let (bed, client) = plane().await;
    namespace(&client, "columns").await;
    let shown = [
        ("Workload", vec![], "NAME AGE AVAILABLE REASON DEPLOYMENTS REPLICAS READY DESIRED UP-TO-DATE"),
        ("WorkloadDeployment", vec![], "NAME AGE AVAILABLE REASON REPLICAS READY DESIRED UP-TO-DATE"),
        (
            "WorkloadDeployment",
            vec!["-owide"],
            "NAME AGE AVAILABLE REASON REPLICAS READY DESIRED UP-TO-DATE LOCATION NAMESPACE LOCATION NAME",
        ),
        ("Instance", vec![], "NAME AGE READY REASON NETWORK IP EXTERNAL IP"),
        ("Instance", vec!["-owide"], "NAME AGE READY REASON NETWORK IP EXTERNAL IP MESSAGE QUOTA"),
    ];
    for (kind, flags, columns) in shown {
        let path = collection(kind, "columns");
        let answer = ask(&client, Method::POST, &path, Some(&base_of(kind))).await;
        assert!(answer.taken, "{}", answer.message());
        let plural = format!("{}s", kind.to_lowercase());
        let arguments = [vec!["get", &plural, "--namespace=columns"], flags].concat();
        let table = kubectl(bed, &arguments).await;
        let header: Vec<&str> = table.lines().next().expect("a header").split_whitespace().collect();
        assert_eq!(header.join(" "), columns, "kubectl {arguments:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_explains_each_field_of_a_placement() {
    let (bed, _) = plane().await;
    // The server publishes the schema of a new CRD a moment after it serves the kind.
    manifest::until(LONE, "the schema to be published", WITHIN, async || {
        let explain = bed.kubectl(LONE).expect("kubectl").args(["explain", "workload"]).output();
        Ok(explain.expect("kubectl runs").status.success().then_some(()))
    })
    .await
    .expect("it is published");
    let said = kubectl(bed, &["explain", "workload.spec.placements"]).await;
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let workload = &crds::compute()[0].crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let placement = &workload["properties"]["spec"]["properties"]["placements"]["items"]["properties"];
    let fields = placement.as_object().expect("fields");
    assert_eq!(fields.len(), 3);
    for (field, schema) in fields {
        let description = schema["description"].as_str().expect("a description");
        assert!(said.contains(field) && said.contains(description), "{field} is not explained in: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_are_taken_or_refused_as_the_table_says() {
    let (_, client) = plane().await;
    namespace(&client, "table").await;
    let (mut cases, mut wrong) = (0, Vec::new());
    for table in tables() {
        let path = collection(table.base["kind"].as_str().expect("a kind"), "table");
        for case in &table.cases {
            cases += 1;
            // As kubectl does: a field that nobody knows is an error.
            let strict = format!("{path}?fieldValidation=Strict");
            let answer = ask(&client, Method::POST, &strict, Some(&case.object(&table.base))).await;
            wrong.extend(verdict(&case.case, &answer, case.refused.as_deref()));
            if answer.taken {
                let name = answer.body["metadata"]["name"].as_str().expect("a name");
                let stored = ask(&client, Method::GET, &format!("{path}/{name}"), None).await.body;
                for (pointer, value) in &case.shows {
                    if stored.pointer(pointer) != Some(value) {
                        wrong.push(format!(
                            "{}: shows {:?} at {pointer}",
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
async fn a_status_is_taken_whole_and_refused_without_its_zeros() {
    let (_, client) = plane().await;
    namespace(&client, "status").await;
    let cases: Vec<StatusCase> =
        serde_saphyr::from_str(include_str!("manifests/status.yaml")).expect("a table");
    let mut wrong = Vec::new();
    for case in &cases {
        let path = collection(&case.kind, "status");
        let mut object = ask(&client, Method::POST, &path, Some(&base_of(&case.kind))).await.body;
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        object["status"] = case.status.clone();
        let status = format!("{path}/{name}/status?fieldValidation=Strict");
        let answer = ask(&client, Method::PUT, &status, Some(&object)).await;
        wrong.extend(verdict(&case.case, &answer, case.refused.as_deref()));
        if answer.taken && answer.body["status"] != case.status {
            wrong.push(format!("{}: became {}", case.case, answer.body["status"]));
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_is_scaled_through_its_scale() {
    let (_, client) = plane().await;
    namespace(&client, "scale").await;
    let path = collection("WorkloadDeployment", "scale");
    let mut deployment = base_of("WorkloadDeployment");
    deployment["metadata"] = json!({"name": "web"});
    // Until `spec.replicas` is set the API server has no scale to show: it answers with an error.
    deployment["spec"]["replicas"] = json!(2);
    let deployment = ask(&client, Method::POST, &path, Some(&deployment)).await;
    assert!(deployment.taken, "{}", deployment.message());

    let mut counted = deployment.body;
    counted["status"] = json!({"replicas": 2, "currentReplicas": 2, "desiredReplicas": 2, "readyReplicas": 1, "selector": "a=b"});
    let counted = ask(&client, Method::PUT, &format!("{path}/web/status"), Some(&counted)).await;
    assert!(counted.taken, "{}", counted.message());

    let mut scale = ask(&client, Method::GET, &format!("{path}/web/scale"), None).await.body;
    assert_eq!((&scale["status"]["replicas"], &scale["status"]["selector"]), (&json!(2), &json!("a=b")));
    scale["spec"]["replicas"] = json!(5);
    let scaled = ask(&client, Method::PUT, &format!("{path}/web/scale"), Some(&scale)).await;
    assert!(scaled.taken, "{}", scaled.message());
    let deployment = ask(&client, Method::GET, &format!("{path}/web"), None).await.body;
    assert_eq!(deployment["spec"]["replicas"], 5);
}
