//! The controllers of the management plane.
//!
//! Next to the project planes: [`WorkloadController`] makes deployments, [`Federator`] carries them to the hub and their
//! status back, [`Projector`] shows their instances, [`CityGuard`] watches over the cities of the hub's members,
//! [`OpenCities`] tells of planes that cannot bind any, [`UnknownProjects`] of copies on the hub that no project has asked
//! for. They meet only in the objects of projects and hub. [`declare`] puts them all on an engine.

mod city_guard;
mod error;
mod federator;
mod journeys;
mod open_cities;
mod projector;
mod strangers;
mod unknown_projects;
mod workload;

pub use city_guard::CityGuard;
pub use error::Error;
pub use federator::Federator;
pub use journeys::Journeys;
pub use open_cities::OpenCities;
pub use projector::Projector;
pub use unknown_projects::UnknownProjects;
pub use workload::WorkloadController;

use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::karmada::{Cluster, PropagationPolicy};
use polis_api::labels;
use polis_api::networking::{LocationBinding, Network};
use polis_core::cities::Ground;
use polis_core::owner;
use polis_engine::{Clock, Engine, Key, Plane, PlaneSet, Provider, Watch};

use strangers::Strangers;

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
            Watch::of::<WorkloadDeployment>().index(workload::by_workload()).index(federator::by_city()),
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
            Watch::of::<Namespace>()
                .labels(labels::UPSTREAM_CLUSTER_NAME)
                .index(unknown_projects::by_project()),
            Watch::of::<WorkloadDeployment>().index(federator::by_city()),
            Watch::of::<PropagationPolicy>(),
            Watch::of::<Instance>().index(projector::by_deployment()),
            Watch::of::<Cluster>().index(city_guard::by_city()),
        ],
    );

    let metrics = engine.handle().registry();
    let journeys = Journeys::new(clock.clone(), &metrics);
    let strangers = Strangers::new(engine.recorder("strangers"), &metrics);

    let workload = WorkloadController {
        projects: projects.clone(),
        ground,
        recorder: engine.recorder("workload"),
        clock: clock.clone(),
        lag: metrics.lag("workload"),
        journeys: journeys.clone(),
    };
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

    let federator = Federator {
        projects: projects.clone(),
        hub: hub.clone(),
        recorder: engine.recorder("federator"),
        clock,
        lag: metrics.lag("federator"),
        journeys: journeys.clone(),
    };
    let known = projects.clone();
    let [of_copies, of_homes, of_policies, of_clusters] = [(); 4].map(|()| strangers.clone());
    engine
        .controller("federator", &projects, federator)
        .on::<WorkloadDeployment>()
        .maps::<WorkloadDeployment>(&hub, move |hub, copy| of_copies.keys_of_copy(hub, copy))
        .maps::<Namespace>(&hub, move |hub, home| of_homes.keys_of_home::<WorkloadDeployment>(hub, home))
        .maps::<PropagationPolicy>(&hub, move |hub, policy| {
            federator::keys_of_policy(&known, &of_policies, hub, policy)
        })
        .maps::<Cluster>(&hub, move |hub, cluster| federator::keys_of_cluster(&of_clusters, hub, cluster));

    let guard = CityGuard::new(hub.clone(), engine.recorder("city-guard"), &metrics);
    engine.controller("city-guard", &hub, guard).on::<Cluster>();

    let homes = hub.clone();
    let unknown =
        UnknownProjects { projects: projects.clone(), hub: hub.clone(), strangers: strangers.clone() };
    engine
        .controller("unknown-projects", &hub, unknown)
        .on::<Namespace>()
        .maps::<WorkloadDeployment>(&hub, |hub, copy| Ok(unknown_projects::key_of_copy(hub, copy)))
        // Every project has one, so this tells of a project that becomes known.
        .maps::<Namespace>(&projects, move |project, _| unknown_projects::keys_of_project(&homes, project));

    let projector = Projector {
        projects: projects.clone(),
        hub: hub.clone(),
        recorder: engine.recorder("projector"),
        lag: metrics.lag("projector"),
        journeys,
    };
    let look = hub.clone();
    let of_homes = strangers.clone();
    engine
        .controller("projector", &projects, projector)
        .on::<Instance>()
        .maps::<Instance>(&hub, move |hub, copy| strangers.keys_of_copy(hub, copy))
        .maps::<Namespace>(&hub, move |hub, home| of_homes.keys_of_home::<Instance>(hub, home))
        .maps::<WorkloadDeployment>(&projects, move |project, deployment| {
            projector::keys_of_deployment(&look, project, deployment)
        });
    projects
}
