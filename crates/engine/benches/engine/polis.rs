//! The engine's client process: N projects on one host, three watches each.

use std::time::Duration;

use polis_api::k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use polis_engine::{Engine, FixedPlanes, Plane, Watch};

use crate::Address;
use crate::process::{Measurement, config};

#[tokio::main(worker_threads = 2)]
pub(crate) async fn run(arguments: &[String]) {
    let address: Address = serde_json::from_str(&arguments[0]).expect("an address");
    let (projects, quiet): (usize, u64) =
        (arguments[1].parse().expect("projects"), arguments[2].parse().expect("seconds"));
    let root = Plane::from_kube_config("root", &config(&address)).expect("an address");
    let measurement = Measurement::begin();
    let mut engine = Engine::new();
    let planes = (0..projects).map(|number| {
        let name = format!("project-{number:05}");
        root.with_path_prefix(
            name.as_str(),
            &format!("/apis/resourcemanager.miloapis.com/v1alpha1/projects/{name}/control-plane"),
        )
    });
    let watches = [Watch::of::<ConfigMap>(), Watch::of::<Secret>(), Watch::of::<ServiceAccount>()];
    engine.planes("projects", FixedPlanes::new(planes.collect::<Vec<_>>()), watches);
    let handle = engine.handle();
    let engine = tokio::spawn(engine.run(std::future::pending()));
    while !handle.is_ready() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    measurement.report(&address, quiet).await;
    engine.abort();
}
