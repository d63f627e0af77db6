//! The controllers of the management plane.
//!
//! [`WorkloadController`] creates the WorkloadDeployments of each Workload. [`Federator`] copies them to the
//! hub and their status back. [`Projector`] copies the Instances from the hub into their projects.
//! [`CityGuard`] reports hub members that lose their city label. [`LocationBindingDiagnostics`] reports
//! project planes that do not serve LocationBinding, and [`UnknownProjectDiagnostics`] reports hub namespaces
//! of unknown projects. The controllers communicate only through objects of the projects and the hub.
//! [`declare`] registers them with an engine.
//!
//! ```text
//!   Workload ─► WorkloadController ─► WorkloadDeployment ─► Federator ─► hub: WorkloadDeployment, policy
//!      ▲ status                              ▲ status ──────────┘
//!   project: Instance (projection) ◄──────────────────────── Projector ◄─ hub: Instance (copy)
//! ```

mod city_guard;
mod diagnostics;
mod error;
mod federator;
mod projector;
mod propagation_latency;
mod unresolved_objects;
mod workload;

pub use city_guard::CityGuard;
pub use diagnostics::{LocationBindingDiagnostics, UnknownProjectDiagnostics};
pub use error::Error;
pub use federator::Federator;
pub use projector::Projector;
pub use propagation_latency::PropagationLatency;
pub use workload::WorkloadController;

use polis_api::ObjectExt;
use polis_api::compute::{Instance, Workload, WorkloadDeployment};
use polis_api::k8s_openapi::api::core::v1::Namespace;
use polis_api::karmada::{Cluster, PropagationPolicy};
use polis_api::labels;
use polis_api::networking::{LocationBinding, Network};
use polis_core::cities::TenancyMode;
use polis_engine::{Clock, Engine, Key, Plane, PlaneProvider, PlaneSet, Watch};

use unresolved_objects::UnresolvedObjects;

/// Registers the planes and controllers of the management role with an engine. Returns the planes of the
/// projects.
pub fn declare(
    engine: &mut Engine,
    clock: Clock,
    projects: impl PlaneProvider,
    tenancy: TenancyMode,
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
                .index(diagnostics::unknown_projects::by_project()),
            Watch::of::<WorkloadDeployment>().index(federator::by_city()),
            Watch::of::<PropagationPolicy>(),
            Watch::of::<Instance>().index(projector::by_deployment()),
            Watch::of::<Cluster>().index(city_guard::by_city()),
        ],
    );

    let metrics = engine.handle().registry();
    let latency = PropagationLatency::new(clock.clone(), &metrics);
    let unresolved = UnresolvedObjects::new(engine.recorder("unresolved-objects"), &metrics);

    let workload = WorkloadController {
        projects: projects.clone(),
        tenancy,
        recorder: engine.recorder("workload"),
        clock: clock.clone(),
        coalescer: metrics.status_coalescer("workload"),
        latency: latency.clone(),
    };
    engine
        .controller("workload", &projects, workload)
        .for_kind::<Workload>()
        .watches::<WorkloadDeployment>(&projects, workload::key_of_deployment)
        .watches::<Network>(&projects, workload::keys_of_network)
        .watches::<LocationBinding>(&projects, workload::keys_of_binding);

    engine
        .controller("open-cities", &projects, LocationBindingDiagnostics::new(projects.clone(), tenancy))
        .watches::<Namespace>(&projects, |project, namespace| {
        let is_default = namespace.name() == "default";
        Ok(is_default.then(|| Key::cluster(project.name().clone(), "default")).into_iter().collect())
    });

    let federator = Federator {
        projects: projects.clone(),
        hub: hub.clone(),
        recorder: engine.recorder("federator"),
        clock,
        coalescer: metrics.status_coalescer("federator"),
        latency: latency.clone(),
    };
    let project_planes = projects.clone();
    let [of_copies, of_namespaces, of_policies, of_clusters] = [(); 4].map(|()| unresolved.clone());
    engine
        .controller("federator", &projects, federator)
        .for_kind::<WorkloadDeployment>()
        .watches::<WorkloadDeployment>(&hub, move |hub, copy| of_copies.keys_of_copy(hub, copy))
        .watches::<Namespace>(&hub, move |hub, namespace| {
            of_namespaces.keys_of_namespace::<WorkloadDeployment>(hub, namespace)
        })
        .watches::<PropagationPolicy>(&hub, move |hub, policy| {
            federator::keys_of_policy(&project_planes, &of_policies, hub, policy)
        })
        .watches::<Cluster>(&hub, move |hub, cluster| federator::keys_of_cluster(&of_clusters, hub, cluster));

    let guard = CityGuard::new(hub.clone(), engine.recorder("city-guard"), &metrics);
    engine.controller("city-guard", &hub, guard).for_kind::<Cluster>();

    let hub_plane = hub.clone();
    let diagnostics = UnknownProjectDiagnostics {
        projects: projects.clone(),
        hub: hub.clone(),
        unresolved: unresolved.clone(),
    };
    engine
        .controller("unknown-projects", &hub, diagnostics)
        .for_kind::<Namespace>()
        .watches::<WorkloadDeployment>(&hub, |hub, copy| {
            Ok(diagnostics::unknown_projects::key_of_copy(hub, copy))
        })
        // Every project has namespaces, so their events also show that a project becomes known.
        .watches::<Namespace>(&projects, move |project, _| {
            diagnostics::unknown_projects::keys_of_project(&hub_plane, project)
        });

    let projector = Projector {
        projects: projects.clone(),
        hub: hub.clone(),
        recorder: engine.recorder("projector"),
        coalescer: metrics.status_coalescer("projector"),
        latency,
    };
    let hub_plane = hub.clone();
    let of_namespaces = unresolved.clone();
    engine
        .controller("projector", &projects, projector)
        .for_kind::<Instance>()
        .watches::<Instance>(&hub, move |hub, copy| unresolved.keys_of_copy(hub, copy))
        .watches::<Namespace>(&hub, move |hub, namespace| {
            of_namespaces.keys_of_namespace::<Instance>(hub, namespace)
        })
        .watches::<WorkloadDeployment>(&projects, move |project, deployment| {
            projector::keys_of_deployment(&hub_plane, project, deployment)
        });
    projects
}
