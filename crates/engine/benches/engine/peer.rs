//! The `kube` client process: a Client for each project with the default stack, and a watcher with a
//! reflector for each kind.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use kube_runtime::{WatchStreamExt, reflector, watcher};
use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use polis_api::kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::Address;
use crate::process::{Measurement, config};

#[tokio::main(worker_threads = 2)]
pub(crate) async fn run(arguments: &[String]) {
    let address: Address = serde_json::from_str(&arguments[0]).expect("an address");
    let (projects, quiet): (usize, u64) =
        (arguments[1].parse().expect("projects"), arguments[2].parse().expect("seconds"));
    let synced = Arc::new(AtomicUsize::new(0));
    let measurement = Measurement::begin();
    let mut stores: Vec<Box<dyn Send>> = Vec::new();
    for number in 0..projects {
        let mut config = config(&address);
        let path =
            format!("/apis/resourcemanager.miloapis.com/v1alpha1/projects/project-{number:05}/control-plane");
        config.cluster_url = format!("{}{path}", address.url).parse().expect("a URL");
        let client = Client::try_from(config).expect("a client");
        stores.push(start_reflector::<ConfigMap>(&client, &synced));
        stores.push(start_reflector::<Secret>(&client, &synced));
        stores.push(start_reflector::<ServiceAccount>(&client, &synced));
    }
    while synced.load(Ordering::Relaxed) < projects * crate::WATCHES {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    measurement.report(&address, quiet).await;
    drop(stores);
    std::process::exit(0); // ending thousands of watchers would take long
}

fn start_reflector<K>(client: &Client, synced: &Arc<AtomicUsize>) -> Box<dyn Send>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Default,
{
    let (store, writer) = reflector::store::<K>();
    let stream = reflector(writer, watcher(Api::<K>::all(client.clone()), watcher::Config::default()))
        .default_backoff();
    let synced = synced.clone();
    let reader = store.clone();
    tokio::spawn(async move {
        let mut stream = std::pin::pin!(stream);
        tokio::spawn(async move {
            if reader.wait_until_ready().await.is_ok() {
                synced.fetch_add(1, Ordering::Relaxed);
            }
        });
        while stream.next().await.is_some() {}
    });
    Box::new(store)
}
