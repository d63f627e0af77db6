//! What can go wrong in a stand-in.

use polis_engine::Error as EngineError;

/// Whatever the program that has the planes says went wrong.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A failure of one reconcile. The key comes back, with growing pauses.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A plane could not be read or written.
    // Not transparent: the engine looks for its own error among the causes, and a conflict is no news to it.
    #[error("{0}")]
    Plane(#[from] EngineError),
    /// The plane of a project could not be made.
    #[error("failed to make the plane of project {project}: {source}")]
    Make {
        /// The project.
        project: String,
        /// Why.
        source: BoxError,
    },
    /// The plane of a project could not be emptied and ended.
    #[error("failed to end the plane of project {project}: {source}")]
    End {
        /// The project.
        project: String,
        /// Why.
        source: BoxError,
    },
    /// The plane of a project was made and does not serve as it should.
    #[error(
        "failed to find namespace default on the new plane of project {project}; it should be made with the plane"
    )]
    Bare {
        /// The project.
        project: String,
    },
    /// Something of a project that is gone is still on the hub.
    #[error(
        "failed to take away hub namespace {namespace} of project {project}, which is gone: {left} objects are left in it"
    )]
    LivedIn {
        /// The project.
        project: String,
        /// The namespace of the hub.
        namespace: String,
        /// How many deployments and instances.
        left: usize,
    },
}
