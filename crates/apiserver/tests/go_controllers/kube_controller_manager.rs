//! The garbage collector and the namespace controller of Kubernetes, in the place of ours.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use polis_apiserver::Switches;
use polis_testbed::{
    Say, binaries::Binaries, guard::Guard, home::Home, manifest, pki::Pki, plane, port::Ports,
    process::Processes,
};
use serde_json::json;

use crate::{
    common::{mk_client, mk_widget, widgets},
    mounted::{Mounted, PLANE},
};

/// Enough for a loaded machine; the collector looks for new kinds every 30 s and at everything else at once.
const WITHIN: Duration = Duration::from_secs(120);

/// A kube-controller-manager with two controllers. The guard ends it when this process ends, however that happens.
struct Manager {
    home: Home,
    processes: Processes,
    _guard: Guard,
}

impl Manager {
    fn start(server: &Mounted) -> Self {
        let binaries = Binaries::ensure(&(Arc::new(|_: &str| {}) as Say)).expect("the programs of the bed");
        let folder = tempfile::tempdir().expect("a folder").keep();
        let home = Home::claim(Some(&folder)).expect("a home");
        let guard = Guard::start().expect("a guard");
        let processes = Processes::new(&home, guard.group());
        let pki = Pki::create(&home.pki()).expect("certificates");
        std::fs::write(home.kubeconfig(PLANE), server.kubeconfig()).expect("a kubeconfig");
        let port = Ports::default().choose().expect("a port");
        let mut spec = plane::controller_manager(&binaries, &home, &pki, PLANE, port);
        for argument in spec.args.iter_mut().filter(|argument| argument.starts_with("--controllers=")) {
            *argument = "--controllers=namespace-controller,garbage-collector-controller".to_owned();
        }
        // For its own door it would look up whom kube-apiserver trusts, which only an aggregating server writes down.
        spec.args.push("--authentication-skip-lookup=true".to_owned());
        processes.start(&spec).expect("a controller manager");
        Self { home, processes, _guard: guard }
    }

    /// The complaints in its log.
    fn errors(&self) -> Vec<String> {
        let record = self.processes.records().expect("records").remove(0);
        let log = std::fs::read_to_string(self.processes.log(&record)).expect("a log");
        log.lines().filter(|line| line.starts_with('E')).map(str::to_owned).collect()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        // Nothing to be done about a failure here; the guard kills what is left.
        let _ = self.processes.kill_all();
        self.processes.reap();
        let _ = self.home.clear();
    }
}

async fn gone<K>(api: &Api<K>, name: &str)
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let what = format!("{name} to be gone");
    let absent = async || Ok(manifest::seen(api.get_opt(name).await)?.is_none().then_some(()));
    manifest::until(PLANE, &what, WITHIN, absent).await.unwrap_or_else(|error| panic!("{error}"));
}

/// A widget `name` and a map of the same name that it owns.
async fn mk_family(client: &Client, name: &str) {
    let owner =
        widgets(client).create(&PostParams::default(), &mk_widget(name, json!({}))).await.expect("a widget");
    let reference = json!({"apiVersion": "example.com/v1", "kind": "Widget", "name": name, "uid": owner.metadata.uid, "blockOwnerDeletion": true});
    let child = json!({"metadata": {"name": name, "ownerReferences": [reference]}});
    maps(client, "default")
        .create(&PostParams::default(), &serde_json::from_value(child).expect("a map"))
        .await
        .expect("a map");
}

fn maps(client: &Client, namespace: &str) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), namespace)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_controllers_of_kubernetes_take_the_place_of_ours() {
    let switches = Switches { garbage_collector: false, namespaces: false, ..Switches::default() };
    let server = Mounted::new(switches).await;
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
    widgets(&client).delete("alone", &DeleteParams::orphan()).await.expect("a delete");
    gone(&widgets(&client), "alone").await;
    let orphan = maps(&client, "default").get("alone").await.expect("the child stays");
    assert_eq!(orphan.metadata.owner_references.unwrap_or_default(), []);

    assert_eq!(manager.errors(), Vec::<String>::new());
}
