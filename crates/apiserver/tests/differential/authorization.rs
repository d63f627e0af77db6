//! Random roles, bindings, users and requests: kube-apiserver, the embedded server and a model give the same
//! decisions.
//!
//! A round writes roles and bindings to the servers and asks them for the decision of each request with a
//! SubjectAccessReview. The number of a round is its seed. The words are few and include those with a special
//! meaning (`*`, empty, a slash), so that rules and requests meet.

use std::time::{Duration, Instant};

use futures::{StreamExt, future::join_all, stream};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

/// Requests of a round.
const REQUESTS: usize = 1000;
/// Requests that are sent at a time.
const AT_ONCE: usize = 32;
/// Time for the authorizer of kube-apiserver to see the objects of a round.
const SEEN_WITHIN: Duration = Duration::from_secs(60);

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

const NAMESPACES: [&str; 3] = ["authz-0", "authz-1", "authz-2"];
const VERBS: [&str; 9] =
    ["get", "list", "watch", "create", "update", "patch", "deletecollection", "*", "GET"];
const GROUPS: [&str; 4] = ["", "apps", "x.example.com", "*"];
const RESOURCES: [&str; 10] =
    ["pods", "secrets", "pods/log", "pods/status", "pods/*", "*/log", "*/status", "*/*", "*", "secrets/log"];
const NAMES: [&str; 4] = ["a", "b", "*", ""];
const URLS: [&str; 10] =
    ["/x", "/x/*", "/x*", "/x/**", "/x/y", "*", "/healthz", "/apis/*", "/openid/v1/jwks", "x"];
const PATHS: [&str; 18] = [
    "/x",
    "/x/",
    "/x/y",
    "/xy",
    "/",
    "",
    "/healthz",
    "/healthz/ping",
    "/livez",
    "/readyz",
    "/version",
    "/version/",
    "/api",
    "/apis/apps",
    "/openapi/v2",
    "/metrics",
    "/openid/v1/jwks",
    "/.well-known/openid-configuration",
];
const USERS: [&str; 7] = [
    "ann",
    "bob",
    "*",
    "system:anonymous",
    "system:serviceaccount:authz-0:bot",
    "system:serviceaccount:authz-1:bot",
    "system:serviceaccount::bot",
];
const USER_GROUPS: [&str; 7] = [
    "dev",
    "ops",
    "*",
    "system:authenticated",
    "system:unauthenticated",
    "system:serviceaccounts",
    "system:serviceaccounts:authz-0",
];

struct Generator(StdRng);

impl Generator {
    fn one_in(&mut self, many: usize) -> bool {
        self.0.random_range(0..many) == 0
    }

    fn pick(&mut self, from: &[&'static str]) -> &'static str {
        from[self.0.random_range(0..from.len())]
    }

    /// One to three of the words.
    fn some(&mut self, from: &[&'static str]) -> Vec<&'static str> {
        (0..self.0.random_range(1..4)).map(|_| self.pick(from)).collect()
    }

    fn rule(&mut self, cluster: bool) -> Value {
        if cluster && self.one_in(4) {
            return json!({"verbs": self.some(&VERBS), "nonResourceURLs": self.some(&URLS)});
        }
        let mut rule = json!({"verbs": self.some(&VERBS), "apiGroups": self.some(&GROUPS), "resources": self.some(&RESOURCES)});
        if self.one_in(3) {
            rule["resourceNames"] = json!(self.some(&NAMES));
        }
        rule
    }

    fn role(&mut self, kind: &str, name: &str) -> Value {
        let cluster = kind == "ClusterRole";
        let rules: Vec<Value> = (0..self.0.random_range(0..4)).map(|_| self.rule(cluster)).collect();
        let mut role = json!({"kind": kind, "metadata": {"name": name, "labels": {"aggregated": "yes"}}, "rules": rules});
        if cluster && self.one_in(4) {
            role["aggregationRule"] =
                json!({"clusterRoleSelectors": [{"matchLabels": {"aggregated": "yes"}}]});
        }
        role
    }

    fn subject(&mut self, cluster: bool) -> Value {
        match self.0.random_range(0..3) {
            0 => json!({"kind": "User", "name": self.pick(&USERS)}),
            1 => json!({"kind": "Group", "name": self.pick(&USER_GROUPS)}),
            _ => {
                let mut subject = json!({"kind": "ServiceAccount", "name": "bot"});
                if cluster || self.one_in(2) {
                    subject["namespace"] = self.pick(&NAMESPACES).into();
                }
                subject
            }
        }
    }

    /// A binding to one of the first roles, or to one that does not exist.
    fn binding(&mut self, kind: &str, name: &str, round: u64) -> Value {
        let cluster = kind == "ClusterRoleBinding";
        let role = if cluster || self.one_in(2) { "ClusterRole" } else { "Role" };
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": format!("r{round}-{}", self.0.random_range(0..ROLES + 1))});
        let subjects: Vec<Value> = (0..self.0.random_range(0..4)).map(|_| self.subject(cluster)).collect();
        json!({"kind": kind, "metadata": {"name": name}, "roleRef": role, "subjects": subjects})
    }

    /// The spec of a SubjectAccessReview.
    fn request(&mut self) -> Value {
        let mut spec = json!({"user": self.pick(&USERS)});
        let mut groups: Vec<&str> = Vec::new();
        if !self.one_in(3) {
            groups = self.some(&USER_GROUPS);
        }
        if self.one_in(100) {
            groups.push("system:masters");
        }
        if !groups.is_empty() {
            spec["groups"] = json!(groups);
            if self.one_in(8) {
                spec["user"] = "".into();
            }
        }
        if self.one_in(4) {
            let verb = self.pick(&["get", "get", "head", "post", "*", ""]);
            spec["nonResourceAttributes"] = json!({"path": self.pick(&PATHS), "verb": verb});
            return spec;
        }
        let resource = self.pick(&[
            "pods",
            "pods",
            "secrets",
            "*",
            "pods/log",
            "selfsubjectaccessreviews",
            "selfsubjectreviews",
            "",
        ]);
        let group = match resource {
            "selfsubjectaccessreviews" => "authorization.k8s.io",
            "selfsubjectreviews" => "authentication.k8s.io",
            _ => self.pick(&GROUPS),
        };
        spec["resourceAttributes"] = json!({
            "verb": self.pick(&["get", "list", "create", "update", "deletecollection", "*", "GET", ""]),
            "group": group,
            "resource": resource,
            "subresource": self.pick(&["", "", "log", "status", "*"]),
            "name": self.pick(&["", "a", "b", "c", "*"]),
            "namespace": self.pick(&["", "authz-0", "authz-0", "authz-1", "authz-2", "missing"]),
        });
        spec
    }
}

/// Roles and bindings of each kind in a round; those in namespaces count once for each.
const ROLES: usize = 5;
const BINDINGS: usize = 6;

/// The objects of a round by the collection that they are written to, and its requests.
fn round(number: u64) -> (Vec<(String, Value)>, Vec<Value>) {
    let mut generator = Generator(StdRng::seed_from_u64(number));
    let mut objects = Vec::new();
    for n in 0..ROLES {
        objects
            .push((format!("{RBAC}/clusterroles"), generator.role("ClusterRole", &format!("r{number}-{n}"))));
        for namespace in NAMESPACES {
            let path = format!("{RBAC}/namespaces/{namespace}/roles");
            objects.push((path, generator.role("Role", &format!("r{number}-{n}"))));
        }
    }
    for n in 0..BINDINGS {
        let name = format!("b{number}-{n}");
        let binding = generator.binding("ClusterRoleBinding", &name, number);
        objects.push((format!("{RBAC}/clusterrolebindings"), binding));
        for namespace in NAMESPACES {
            let path = format!("{RBAC}/namespaces/{namespace}/rolebindings");
            objects.push((path, generator.binding("RoleBinding", &name, number)));
        }
    }
    let requests = (0..REQUESTS).map(|_| generator.request()).collect();
    (objects, requests)
}

/// The last object of each kind. Once they take effect, so do all writes before them, because the authorizer
/// of kube-apiserver watches each kind in order.
fn sentinels(number: u64) -> Vec<(String, Value)> {
    let name = format!("sentinel-{number}");
    let rules = json!([{"verbs": ["sentinel"], "apiGroups": ["sentinel"], "resources": ["sentinel"]}]);
    let subjects = |user: &str| json!([{"kind": "User", "name": format!("{user}-{number}")}]);
    let reference = |kind: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    let first = format!("{RBAC}/namespaces/{}", NAMESPACES[0]);
    let object = |kind: &str| json!({"kind": kind, "metadata": {"name": name}});
    let role = |kind: &str| {
        let mut role = object(kind);
        role["rules"] = rules.clone();
        role
    };
    let binding = |kind: &str, to: &str, user: &str| {
        let mut binding = object(kind);
        binding["roleRef"] = reference(to);
        binding["subjects"] = subjects(user);
        binding
    };
    vec![
        (format!("{RBAC}/clusterroles"), role("ClusterRole")),
        (format!("{first}/roles"), role("Role")),
        (format!("{RBAC}/clusterrolebindings"), binding("ClusterRoleBinding", "ClusterRole", "everywhere")),
        (format!("{first}/rolebindings"), binding("RoleBinding", "Role", "here")),
    ]
}

async fn send(client: &Client, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let request =
        http::Request::builder().method(method).uri(path).header("content-type", "application/json");
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = request.body(Body::from(body.into_bytes())).expect("a request");
    let response = client.send(request).await.expect("a response");
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

/// Creates or deletes objects on servers, which must accept it.
async fn write(clients: &[&Client], method: &str, objects: &[(String, Value)]) {
    let writes = clients.iter().flat_map(|client| objects.iter().map(move |object| (*client, object)));
    let sent = stream::iter(writes).map(|(client, (path, object))| async move {
        let (code, answer) = match object["metadata"]["name"].as_str().filter(|_| method == "DELETE") {
            Some(name) => send(client, method, &format!("{path}/{name}"), &Value::Null).await,
            None => send(client, method, path, object).await,
        };
        assert!((200..300).contains(&code), "{method} {path} {object}: {answer}");
    });
    sent.buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
}

async fn decision(client: &Client, spec: &Value) -> (u16, Value) {
    let review =
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
    let (code, answer) = send(client, "POST", REVIEWS, &review).await;
    (code, answer["status"]["allowed"].clone())
}

async fn until_seen(client: &Client, number: u64) {
    let deadline = Instant::now() + SEEN_WITHIN;
    for user in ["everywhere", "here"] {
        let attributes = json!({"verb": "sentinel", "group": "sentinel", "resource": "sentinel", "namespace": NAMESPACES[0]});
        let spec = json!({"user": format!("{user}-{number}"), "resourceAttributes": attributes});
        while decision(client, &spec).await.1 != true {
            assert!(Instant::now() < deadline, "the authorizer does not see the objects of round {number}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Creates the namespaces of the rounds.
async fn prepare(clients: &[&Client]) {
    let objects: Vec<(String, Value)> = NAMESPACES
        .iter()
        .map(|name| ("/api/v1/namespaces".to_owned(), json!({"metadata": {"name": name}})))
        .collect();
    write(clients, "POST", &objects).await;
}

/// The decisions of rounds.
#[derive(Default)]
struct Decisions {
    total: usize,
    allowed: usize,
    differences: Vec<String>,
}

/// Plays the round with the seed `number`: the decisions of the embedded server are those of the model and,
/// where there is one, of kube-apiserver.
async fn play(number: u64, ours: &Client, theirs: Option<&Client>, decisions: &mut Decisions) {
    let (objects, requests) = round(number);
    let clients: Vec<&Client> = theirs.into_iter().chain([ours]).collect();
    write(&clients, "POST", &objects).await;
    let sentinels = sentinels(number);
    write(&clients, "POST", &sentinels).await;
    for client in &clients {
        until_seen(client, number).await;
    }
    let model = Model::new(&objects);
    let clients = &clients;
    let asked = stream::iter(&requests).map(|spec| async move {
        let answers = join_all(clients.iter().map(|client| decision(client, spec))).await;
        (spec, answers)
    });
    let found: Vec<_> = asked.buffer_unordered(AT_ONCE).collect().await;
    write(clients, "DELETE", &objects).await;
    write(clients, "DELETE", &sentinels).await;
    for (spec, answers) in found {
        let expected = (201, json!(model.allows(spec)));
        decisions.total += 1;
        decisions.allowed += usize::from(expected.1 == true);
        if answers.iter().any(|answer| *answer != expected) {
            decisions.differences.push(format!(
                "round {number}: {spec}\n  model {expected:?}\n  servers, ours last {answers:?}"
            ));
        }
    }
}

/// Plays rounds from the seed `first` on until there are `wanted` decisions, which must not differ.
pub async fn compare(ours: &Client, theirs: Option<&Client>, first: u64, wanted: usize) {
    let clients: Vec<&Client> = theirs.into_iter().chain([ours]).collect();
    prepare(&clients).await;
    let started = Instant::now();
    let mut decisions = Decisions::default();
    for number in (first..).take(wanted.div_ceil(REQUESTS)) {
        play(number, ours, theirs, &mut decisions).await;
    }
    let Decisions { total, allowed, differences } = decisions;
    println!(
        "{total} decisions from seed {first} in {} s, {allowed} of them allow, {} differences",
        started.elapsed().as_secs(),
        differences.len()
    );
    // Otherwise rules and requests do not meet, and the decisions say little.
    assert!(allowed > total / 50 && allowed < total / 2, "{allowed} of {total} requests are allowed");
    let shown = &differences[..differences.len().min(40)];
    assert!(
        differences.is_empty(),
        "{} of {total} decisions differ:\n{}",
        differences.len(),
        shown.join("\n")
    );
}

/// RBAC by its definition: every binding and every rule is compared with the request, without an index.
struct Model(Vec<(String, Value)>);

impl Model {
    fn new(objects: &[(String, Value)]) -> Self {
        Self(default_roles().into_iter().chain(objects.iter().cloned()).collect())
    }

    /// The objects of a plural with their namespaces.
    fn objects(&self, plural: &str) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().filter_map(move |(path, object)| {
            let rest = path.strip_prefix(RBAC)?.strip_suffix(plural)?.strip_suffix('/')?;
            Some((rest.strip_prefix("/namespaces/").unwrap_or_default(), object))
        })
    }

    fn allows(&self, spec: &Value) -> bool {
        if has(&spec["groups"], "system:masters") {
            return true;
        }
        let namespace = text(&spec["resourceAttributes"]["namespace"]);
        let bindings = self.objects("clusterrolebindings").chain(
            self.objects("rolebindings").filter(|(own, _)| !namespace.is_empty() && *own == namespace),
        );
        let rules = bindings
            .filter(|(own, binding)| list(&binding["subjects"]).any(|subject| is_subject(spec, subject, own)))
            .flat_map(|(own, binding)| {
                let (kind, name) = (&binding["roleRef"]["kind"], &binding["roleRef"]["name"]);
                let (plural, own) = if kind == "Role" { ("roles", own) } else { ("clusterroles", "") };
                let role =
                    self.objects(plural).find(|(at, role)| *at == own && role["metadata"]["name"] == *name);
                role.into_iter().flat_map(|(_, role)| list(&role["rules"]))
            });
        let mut rules = rules;
        rules.any(|rule| rule_allows(spec, rule))
    }
}

/// The default roles of Kubernetes for users without rights.
fn default_roles() -> Vec<(String, Value)> {
    let reviews = |group: &str, resources: Value| json!({"verbs": ["create"], "apiGroups": [group], "resources": resources});
    let paths = |urls: Value| json!({"verbs": ["get"], "nonResourceURLs": urls});
    let public = json!(["/healthz", "/livez", "/readyz", "/version", "/version/"]);
    let discovery = json!([
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
        "/healthz",
        "/livez",
        "/openapi",
        "/openapi/*",
        "/readyz",
        "/version",
        "/version/"
    ]);
    let issuer = json!([
        "/.well-known/openid-configuration",
        "/.well-known/openid-configuration/",
        "/openid/v1/jwks",
        "/openid/v1/jwks/"
    ]);
    let own = json!(["selfsubjectaccessreviews", "selfsubjectrulesreviews"]);
    let basic = vec![
        reviews("authorization.k8s.io", own),
        reviews("authentication.k8s.io", json!(["selfsubjectreviews"])),
    ];
    [
        ("system:basic-user", basic, vec!["system:authenticated"]),
        ("system:discovery", vec![paths(discovery)], vec!["system:authenticated"]),
        (
            "system:public-info-viewer",
            vec![paths(public)],
            vec!["system:authenticated", "system:unauthenticated"],
        ),
        ("system:service-account-issuer-discovery", vec![paths(issuer)], vec!["system:serviceaccounts"]),
    ]
    .into_iter()
    .flat_map(|(name, rules, groups)| {
        let subjects: Vec<Value> =
            groups.iter().map(|group| json!({"kind": "Group", "name": group})).collect();
        let binding = json!({"roleRef": {"kind": "ClusterRole", "name": name}, "subjects": subjects});
        [
            (format!("{RBAC}/clusterroles"), json!({"metadata": {"name": name}, "rules": rules})),
            (format!("{RBAC}/clusterrolebindings"), binding),
        ]
    })
    .collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn has(value: &Value, wanted: &str) -> bool {
    list(value).any(|item| item == wanted)
}

fn is_subject(spec: &Value, subject: &Value, namespace: &str) -> bool {
    let name = text(&subject["name"]);
    match text(&subject["kind"]) {
        "User" => spec["user"] == name,
        "Group" => has(&spec["groups"], name),
        _ => {
            let own = text(&subject["namespace"]);
            let namespace = if own.is_empty() { namespace } else { own };
            !namespace.is_empty() && spec["user"] == format!("system:serviceaccount:{namespace}:{name}")
        }
    }
}

fn rule_allows(spec: &Value, rule: &Value) -> bool {
    let any = |field: &str, wanted: &str| has(&rule[field], "*") || has(&rule[field], wanted);
    let path = &spec["nonResourceAttributes"];
    if path.is_object() {
        let wanted = text(&path["path"]);
        let covered = |url: &str| match url.strip_suffix('*') {
            Some(stem) => wanted.starts_with(stem.trim_end_matches('*')),
            None => url == wanted,
        };
        return any("verbs", text(&path["verb"]))
            && list(&rule["nonResourceURLs"]).any(|url| covered(text(url)));
    }
    let attributes = &spec["resourceAttributes"];
    let (resource, sub) = (text(&attributes["resource"]), text(&attributes["subresource"]));
    let resource_matches = if sub.is_empty() {
        any("resources", resource)
    } else {
        any("resources", &format!("{resource}/{sub}")) || has(&rule["resources"], &format!("*/{sub}"))
    };
    let name = text(&attributes["name"]);
    any("verbs", text(&attributes["verb"]))
        && any("apiGroups", text(&attributes["group"]))
        && resource_matches
        && (list(&rule["resourceNames"]).next().is_none() || has(&rule["resourceNames"], name))
}
