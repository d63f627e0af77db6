//! Config maps and secrets of a project reach the instances of its workloads, and nothing else.

use std::time::Duration;

use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use polis_api::kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use polis_api::kube::{Api, Client, ResourceExt as _};
use polis_api::labels;
use polis_testing::consistently;
use serde_json::{Value, json};

use crate::installation::{Installation, eventually, mk_workload};
use crate::{instances, is_ready, wait_until_ready};

const DEFAULT: &str = "polis-default";
const CELLS: [&str; 2] = ["polis-cell-dfw", "polis-cell-ord"];
/// Prints its variables, then waits.
const SCRIPT: &str = r#"echo "password=$PASSWORD user=$DB_user level=$LEVEL extra=$EXTRA."; exec sleep 1000"#;

struct Project<'a> {
    installation: &'a Installation,
    client: Client,
}

impl<'a> Project<'a> {
    async fn of(installation: &'a Installation) -> Self {
        Self { installation, client: installation.client(DEFAULT).await }
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), "default")
    }

    fn workloads(&self) -> Api<Workload> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn set_secret(&self, name: &str, entries: Value) {
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": entries});
        let applied = PatchParams::apply("test").force();
        self.secrets().patch(name, &applied, &Patch::Apply(&secret)).await.expect("the secret");
    }

    async fn set_map(&self, name: &str, entries: Value) {
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": entries});
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "default");
        let applied = PatchParams::apply("test").force();
        maps.patch(name, &applied, &Patch::Apply(&map)).await.expect("the config map");
    }

    async fn create(&self, workload: &Workload) {
        self.workloads().create(&PostParams::default(), workload).await.expect("creates the workload");
    }

    async fn delete(&self, workload: &str) {
        self.workloads().delete(workload, &DeleteParams::default()).await.expect("deletes the workload");
    }

    /// Waits until every instance of a workload is ready and has printed a text.
    async fn until_prints(&self, workload: &str, count: usize, text: &str) {
        eventually(&format!("{workload} prints {text}"), async || {
            let mut all = instances(self.installation).await;
            all.retain(|instance| {
                instance.labels().get(labels::WORKLOAD_NAME).is_some_and(|it| it == workload)
            });
            if all.len() != count || !all.iter().all(is_ready) {
                return None;
            }
            for instance in &all {
                let log = self.installation.log_of(DEFAULT, "default", &instance.name_any()).await;
                if !log.contains(text) {
                    return None;
                }
            }
            Some(())
        })
        .await;
    }

    /// Waits until the workload and an instance of it report this reason, and returns the message.
    async fn until_reason(&self, workload: &str, reason: &str) -> String {
        eventually(&format!("{workload}: {reason}"), async || {
            let all = instances(self.installation).await;
            let held = all.iter().find(|it| condition(&json!(it), "Ready").0 == reason)?;
            let workload = self.workloads().get(workload).await.ok()?;
            let (reported, message) = condition(&json!(workload), "ReferencedDataReady");
            (reported == reason && condition(&json!(held), "ReferencedDataReady").0 == reason)
                .then_some(message)
        })
        .await
    }
}

/// Reason and message of a condition.
fn condition(object: &Value, kind: &str) -> (String, String) {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|it| it["type"] == kind).unwrap_or_default();
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("message"))
}

/// A workload that prints its variables.
fn mk_user(name: &str, cities: &[&str], env: Value, env_from: Value) -> Workload {
    let mut workload = mk_workload(name, cities, 1);
    let sandbox = workload.spec.template.spec.runtime.sandbox.as_mut().expect("a sandbox");
    sandbox.containers[0] = serde_json::from_value(json!({
        "name": "app", "image": "process:sh", "args": ["-c", SCRIPT], "env": env, "envFrom": env_from,
    }))
    .expect("a container");
    workload
}

fn password(optional: bool) -> Value {
    let key = json!({"name": "db", "key": "password", "optional": optional});
    json!([{"name": "PASSWORD", "valueFrom": {"secretKeyRef": key}}])
}

/// Kind and name of every copy on a plane, and of every object of the federation that has one.
async fn copies(installation: &Installation, context: &str) -> Vec<String> {
    let client = installation.client(context).await;
    let marked = ListParams::default().labels(labels::REFERENCED_DATA);
    let mut found = Vec::new();
    let maps = Api::<ConfigMap>::all(client.clone()).list(&marked).await.expect("config maps");
    found.extend(maps.items.iter().map(|it| format!("ConfigMap/{}", it.name_any())));
    let secrets = Api::<Secret>::all(client).list(&marked).await.expect("secrets");
    found.extend(secrets.items.iter().map(|it| format!("Secret/{}", it.name_any())));
    found
}

async fn until_no_copies(installation: &Installation) {
    for context in ["polis-hub", CELLS[0], CELLS[1]] {
        eventually(&format!("{context} has no copy"), async || {
            copies(installation, context).await.is_empty().then_some(())
        })
        .await;
    }
    let hub = installation.client("polis-hub").await;
    for path in ["apis/work.karmada.io/v1alpha2/resourcebindings", "apis/work.karmada.io/v1alpha1/works"] {
        eventually(&format!("no {path} of a copy"), async || {
            let request = http::Request::get(format!("/{path}")).body(Vec::new()).expect("a request");
            let list = hub.request_text(request).await.ok()?;
            (!list.contains("data-db") && !list.contains("data-settings")).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workloads_in_two_cities_share_a_secret_until_the_last_is_gone() {
    let args = ["--ephemeral", "--cities", "dfw,ord", "--allow-host-processes"];
    let installation = Installation::start(&args).await;
    let project = Project::of(&installation).await;
    project.set_secret("db", json!({"password": "first-planted", "user": "ann"})).await;
    project.set_map("settings", json!({"LEVEL": "debug"})).await;
    let all = json!([{"prefix": "DB_", "secretRef": {"name": "db"}}, {"configMapRef": {"name": "settings"}}]);
    project.create(&mk_user("web", &["dfw", "ord"], password(false), all)).await;
    project.until_prints("web", 2, "password=first-planted user=ann level=debug").await;
    let prefixed = json!([{"prefix": "DB_", "secretRef": {"name": "db"}}]);
    project.create(&mk_user("api", &["ord"], json!([]), prefixed)).await;
    project.until_prints("api", 1, "password= user=ann").await;
    assert_eq!(copies(&installation, "polis-hub").await.len(), 2, "one companion for both workloads");

    // Newer data is there for the next start, and replaces nothing by itself.
    let before = instances(&installation).await;
    project.set_secret("db", json!({"password": "second-planted", "user": "bob"})).await;
    let uids = |all: &[Instance]| all.iter().map(|it| it.metadata.uid.clone()).collect::<Vec<_>>();
    consistently("nothing restarts", Duration::from_secs(2), async || {
        uids(&instances(&installation).await) == uids(&before)
    })
    .await;
    let restarted = installation.verb("restart web").output().await.expect("polis runs");
    assert!(restarted.status.success(), "{}", String::from_utf8_lossy(&restarted.stderr));
    project.until_prints("web", 2, "password=second-planted user=bob").await;

    // No value outside of sources, copies, and what carries them.
    for context in [DEFAULT, "polis-hub", CELLS[0], CELLS[1]] {
        let client = installation.client(context).await;
        let deployments = Api::<WorkloadDeployment>::all(client.clone()).list(&Default::default()).await;
        let instances = Api::<Instance>::all(client.clone()).list(&Default::default()).await;
        let request =
            http::Request::get("/apis/events.k8s.io/v1/events").body(Vec::new()).expect("a request");
        let events = client.request_text(request).await.expect("events");
        let all = json!([deployments.expect("deployments").items, instances.expect("instances").items]);
        assert!(!format!("{all}{events}").contains("planted"), "{context}");
    }

    project.delete("web").await;
    wait_until_ready(&installation, 1).await;
    eventually("dfw has no copy", async || copies(&installation, CELLS[0]).await.is_empty().then_some(()))
        .await;
    eventually("ord has the secret that api needs, and nothing else", async || {
        (copies(&installation, CELLS[1]).await.len() == 1).then_some(())
    })
    .await;
    project.delete("api").await;
    until_no_copies(&installation).await;
    assert!(project.secrets().get("db").await.is_ok(), "the source stays");
    installation.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_waits_for_a_missing_source_and_for_a_missing_key() {
    let args = ["--ephemeral", "--cities", "dfw,ord", "--allow-host-processes"];
    let installation = Installation::start(&args).await;
    let project = Project::of(&installation).await;
    // Nothing waits for an optional source.
    let extra = json!({"configMapKeyRef": {"name": "settings", "key": "extra", "optional": true}});
    let optional = json!([{"name": "EXTRA", "valueFrom": extra}]);
    project.create(&mk_user("free", &["dfw"], optional, json!([]))).await;
    project.until_prints("free", 1, "extra=.").await;
    project.delete("free").await;
    until_no_copies(&installation).await;

    project.create(&mk_user("web", &["dfw"], password(false), json!([]))).await;
    let message = project.until_reason("web", "SourceNotFound").await;
    assert!(message.contains("secret db does not exist"), "{message}");
    let verb = async |words: &str| {
        let done = installation.verb(words).output().await.expect("polis runs");
        let shown = [done.stdout, done.stderr].concat();
        let shown = String::from_utf8(shown).expect("text");
        assert!(done.status.success() && !shown.contains("planted"), "{words}: {shown}");
        shown
    };
    assert!(verb("secrets set db user=planted-name").await.contains("secret db: set user"));
    let message = project.until_reason("web", "KeyNotFound").await;
    assert!(message.contains("secret db has no key password"), "{message}");
    let shown = verb("secrets set db password=planted").await;
    assert!(shown.contains("`polis restart web`"), "{shown}");
    assert!(verb("secrets list").await.contains("password, user"));
    project.until_prints("web", 1, "password=planted").await;
    consistently("the other city gets nothing", Duration::from_secs(1), async || {
        copies(&installation, CELLS[1]).await.is_empty()
    })
    .await;

    // Source first, then the workload: what runs keeps running, and nothing is left.
    project.secrets().delete("db", &DeleteParams::default()).await.expect("deletes the secret");
    eventually("the workload reports the lost source", async || {
        let workload = project.workloads().get("web").await.ok()?;
        (condition(&json!(workload), "ReferencedDataReady").0 == "SourceNotFound").then_some(())
    })
    .await;
    wait_until_ready(&installation, 1).await;
    project.delete("web").await;
    until_no_copies(&installation).await;
    installation.stop().await;
}
