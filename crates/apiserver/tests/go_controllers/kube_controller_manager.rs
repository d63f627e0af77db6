//! kube-controller-manager's garbage collector and namespace controller, in place of the built-in ones.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use polis_apiserver::EnabledControllers;
use polis_testbed::{
    ProgressFn, binaries::Binaries, guard::Guard, manifest, pki::Pki, plane, port::Ports, process::Processes,
    state_dir::StateDir,
};
use serde_json::json;

use crate::{
    common::{mk_client, mk_widget, widgets},
    test_server::{PLANE, TestServer},
};

/// Timeout of each expectation, long enough for a loaded machine. The garbage collector runs discovery every
/// 30 s.
const WITHIN: Duration = Duration::from_secs(120);

/// A kube-controller-manager with two controllers. The guard kills it when this process ends for any reason.
struct Manager {
    state_dir: StateDir,
    processes: Processes,
    _guard: Guard,
}

impl Manager {
    fn start(server: &TestServer) -> Self {
        let binaries =
            Binaries::ensure(&(Arc::new(|_: &str| {}) as ProgressFn)).expect("the programs of the test bed");
        let folder = tempfile::tempdir().expect("a folder").keep();
        let state_dir = StateDir::claim(Some(&folder)).expect("a state directory");
        let guard = Guard::start().expect("a guard");
        let processes = Processes::new(&state_dir, guard.group());
        let pki = Pki::create(&state_dir.pki()).expect("certificates");
        std::fs::write(state_dir.kubeconfig(PLANE), server.kubeconfig()).expect("a kubeconfig");
        let port = Ports::default().choose().expect("a port");
        let mut spec = plane::controller_manager(&binaries, &state_dir, &pki, PLANE, port);
        for argument in spec.args.iter_mut().filter(|argument| argument.starts_with("--controllers=")) {
            *argument = "--controllers=namespace-controller,garbage-collector-controller".to_owned();
        }
        // Skips the lookup of the ConfigMap extension-apiserver-authentication, which the embedded server
        // does not have.
        spec.args.push("--authentication-skip-lookup=true".to_owned());
        processes.start(&spec).expect("a controller manager");
        Self { state_dir, processes, _guard: guard }
    }

    /// The error lines of its log.
    fn errors(&self) -> Vec<String> {
        let record = self.processes.records().expect("records").remove(0);
        let log = std::fs::read_to_string(self.processes.log(&record)).expect("a log");
        log.lines().filter(|line| line.starts_with('E')).map(str::to_owned).collect()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // Failures are ignored: the guard kills the remaining processes.
        let _ = self.processes.kill_all();
        self.processes.reap();
        let _ = self.state_dir.clear();
    }
}

async fn gone<K>(api: &Api<K>, name: &str)
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let what = format!("{name} to be gone");
    let absent = async || Ok(manifest::retryable(api.get_opt(name).await)?.is_none().then_some(()));
    manifest::until(PLANE, &what, WITHIN, absent).await.unwrap_or_else(|error| panic!("{error}"));
}

/// A widget `name` and a map of the same name that it owns.
async fn mk_family(client: &Client, name: &str) {
    let owner =
        widgets(client).create(&PostParams::default(), &mk_widget(name, json!({}))).await.expect("a widget");
    let owner = owner.metadata.uid.expect("a uid");
    maps(client, "default").create(&PostParams::default(), &mk_child(name, &owner)).await.expect("a map");
}

/// A map with the name of its owner.
fn mk_child(name: &str, owner: &str) -> ConfigMap {
    let reference = json!({"apiVersion": "example.com/v1", "kind": "Widget", "name": name, "uid": owner, "blockOwnerDeletion": true});
    serde_json::from_value(json!({"metadata": {"name": name, "ownerReferences": [reference]}}))
        .expect("a map")
}

/// Waits until the garbage collector knows all maps: it handles them in the order of their creation, and
/// deletes this one, whose owner does not exist. It orphans only the children that it knows when their owner
/// is deleted, and deletes the others later.
async fn all_maps_are_known(client: &Client) {
    let last = mk_child("last", "00000000-0000-0000-0000-000000000000");
    maps(client, "default").create(&PostParams::default(), &last).await.expect("a map");
    gone(&maps(client, "default"), "last").await;
}

fn maps(client: &Client, namespace: &str) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), namespace)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kube_controller_manager_replaces_the_built_in_controllers() {
    let enabled =
        EnabledControllers { garbage_collector: false, namespaces: false, ..EnabledControllers::default() };
    let server = TestServer::new(enabled).await;
    let client = mk_client(&server.server, PLANE);
    let manager = Manager::start(&server);

    let namespaces: Api<Namespace> = Api::all(client.clone());
    let shop = serde_json::from_value(json!({"metadata": {"name": "shop"}})).expect("a namespace");
    namespaces.create(&PostParams::default(), &shop).await.expect("a namespace");
    let map = serde_json::from_value(json!({"metadata": {"name": "a"}})).expect("a map");
    maps(&client, "shop").create(&PostParams::default(), &map).await.expect("a map");
    namespaces.delete("shop", &DeleteParams::default()).await.expect("a delete");
    gone(&namespaces, "shop").await;
    gone(&maps(&client, "shop"), "a").await;

    for (name, how) in [("behind", DeleteParams::background()), ("before", DeleteParams::foreground())] {
        mk_family(&client, name).await;
        widgets(&client).delete(name, &how).await.expect("a delete");
        gone(&widgets(&client), name).await;
        gone(&maps(&client, "default"), name).await;
    }
    mk_family(&client, "alone").await;
    all_maps_are_known(&client).await;
    widgets(&client).delete("alone", &DeleteParams::orphan()).await.expect("a delete");
    gone(&widgets(&client), "alone").await;
    let orphan = maps(&client, "default").get("alone").await.expect("the child stays");
    assert_eq!(orphan.metadata.owner_references.unwrap_or_default(), []);

    assert_eq!(manager.errors(), Vec::<String>::new());
}
