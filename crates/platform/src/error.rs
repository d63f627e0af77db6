//! Errors of the local platform controllers.

use polis_engine::Error as EngineError;

/// The error of a [`PlaneProvisioner`](crate::projects::PlaneProvisioner).
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error of one reconcile. The engine requeues the key with back-off.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request to a plane failed.
    // Not transparent: the engine finds its own error among the sources and does not report conflicts.
    #[error("{0}")]
    Plane(#[from] EngineError),
    /// The plane of a project could not be created.
    #[error("failed to create the plane of project {project}: {source}")]
    CreatePlane {
        /// The project.
        project: String,
        /// Why.
        source: BoxError,
    },
    /// The plane of a project could not be emptied and deleted.
    #[error("failed to delete the plane of project {project}: {source}")]
    DeletePlane {
        /// The project.
        project: String,
        /// Why.
        source: BoxError,
    },
    /// The plane of a project was created without its `default` namespace.
    #[error(
        "failed to find namespace default on the new plane of project {project}; the provisioner must create it with the plane"
    )]
    NoDefaultNamespace {
        /// The project.
        project: String,
    },
    /// A hub namespace of a deleted project still contains objects.
    #[error(
        "failed to delete hub namespace {namespace} of the deleted project {project}: it still contains {left} objects"
    )]
    HubNamespaceNotEmpty {
        /// The project.
        project: String,
        /// The hub namespace.
        namespace: String,
        /// The number of WorkloadDeployments and Instances in it.
        left: usize,
    },
}
