//! The controllers of the management plane.
//!
//! Next to the project planes: [`WorkloadController`] makes deployments, [`Federator`] carries them to the hub and their
//! status back, [`Projector`] shows their instances, [`CityGuard`] watches over the cities of the hub's members,
//! [`OpenCities`] tells of planes that cannot bind any. They meet only in the objects of projects and hub. [`declare`] puts them all on an engine.

mod city_guard;
mod error;
mod federator;
mod open_cities;
mod projector;
mod workload;

pub use city_guard::CityGuard;
pub use error::Error;
pub use federator::Federator;
pub use open_cities::OpenCities;
pub use projector::Projector;
pub use workload::WorkloadController;

use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::karmada::{Cluster, PropagationPolicy};
use polis_api::labels;
use polis_api::networking::{LocationBinding, Network};
use polis_core::cities::Ground;
use polis_core::identity::Identity;
use polis_core::owner;
use polis_engine::{Clock, Engine, Key, Object, Plane, PlaneSet, Provider, Unresolved, Watch};

/// Declares the planes and controllers of the management role on an engine, and hands back the planes of the projects,
/// which stand on `ground`.
pub fn declare(
    engine: &mut Engine,
    clock: Clock,
    projects: impl Provider,
    ground: Ground,
    hub: Plane,
) -> PlaneSet {
    let projects = engine.planes(
        "project",
        projects,
        [
            Watch::of::<Workload>().index(workload::by_network()),
            Watch::of::<WorkloadDeployment>().index(workload::by_workload()),
            Watch::of::<Instance>(),
            Watch::of::<Namespace>(),
            Watch::of::<Network>(),
            Watch::of::<LocationBinding>(),
        ],
    );
    let hub = engine.plane(
        "hub",
        hub,
        [
            Watch::of::<Namespace>().labels(labels::UPSTREAM_CLUSTER_NAME),
            Watch::of::<WorkloadDeployment>(),
            Watch::of::<PropagationPolicy>(),
            Watch::of::<Instance>(),
            Watch::of::<Cluster>(),
        ],
    );

    let recorder = engine.recorder("workload");
    let workload = WorkloadController { projects: projects.clone(), ground, recorder, clock: clock.clone() };
    engine
        .controller("workload", &projects, workload)
        .on::<Workload>()
        .maps::<WorkloadDeployment>(&projects, workload::key_of_deployment)
        .maps::<Network>(&projects, workload::keys_of_network)
        .maps::<LocationBinding>(&projects, workload::keys_of_binding);

    engine.controller("open-cities", &projects, OpenCities::new(projects.clone(), ground)).maps::<Namespace>(
        &projects,
        |project, namespace| {
            let first = owner::name(&namespace.metadata) == "default";
            Ok(first.then(|| Key::cluster(project.name().clone(), "default")).into_iter().collect())
        },
    );

    let recorder = engine.recorder("federator");
    let known = projects.clone();
    let federator = Federator { projects: projects.clone(), hub: hub.clone(), recorder, clock };
    engine
        .controller("federator", &projects, federator)
        .on::<WorkloadDeployment>()
        .maps::<WorkloadDeployment>(&hub, keys_of_copy)
        .maps::<PropagationPolicy>(&hub, move |hub, policy| federator::keys_of_policy(&known, hub, policy))
        .maps::<Cluster>(&hub, federator::keys_of_cluster);

    let guard = CityGuard::new(hub.clone(), engine.recorder("city-guard"), &engine.handle().registry());
    engine.controller("city-guard", &hub, guard).on::<Cluster>();

    let recorder = engine.recorder("projector");
    let projector = Projector { projects: projects.clone(), hub: hub.clone(), recorder };
    let look = hub.clone();
    engine
        .controller("projector", &projects, projector)
        .on::<Instance>()
        .maps::<Instance>(&hub, keys_of_copy)
        .maps::<WorkloadDeployment>(&projects, move |project, deployment| {
            projector::keys_of_deployment(&look, project, deployment)
        });
    projects
}

/// The object in its project that a copy on the hub stands for: the same name, in the namespace that it came from.
fn keys_of_copy<K: Object>(hub: &Plane, copy: &K) -> Result<Vec<Key>, Unresolved> {
    let identity = origin(hub, copy.meta())?;
    Ok(vec![Key::new(&identity.project, &identity.namespace, owner::name(copy.meta()))])
}

/// Where an object of the hub comes from, by the labels of its namespace.
fn origin(hub: &Plane, meta: &ObjectMeta) -> Result<Identity, Unresolved> {
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let home = hub.get::<Namespace>(namespace)?.ok_or_else(|| {
        Unresolved(format!(
            "namespace {namespace} is not seen on the hub, or carries no {}",
            labels::UPSTREAM_CLUSTER_NAME
        ))
    })?;
    Identity::of(&home).map_err(|error| Unresolved(error.to_string()))
}
