//! What can go wrong in the management plane.

use polis_core::{hub_copy::CityError, identity::IdentityError};
use polis_engine::Error as EngineError;

/// A failure of one reconcile. The key comes back, with growing pauses.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A plane could not be read or written.
    // Not transparent: the engine looks for its own error among the causes, and a conflict is no news to it.
    #[error("{0}")]
    Plane(#[from] EngineError),
    /// The project of a hub namespace is not known.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The city of a deployment cannot be used.
    #[error(transparent)]
    City(#[from] CityError),
    /// The project's namespace is not in the cache: it is on its way in, or already gone.
    #[error("failed to federate {deployment}: namespace {namespace} of the project is not seen yet")]
    NamespaceUnseen {
        /// The deployment, by its key.
        deployment: String,
        /// The namespace.
        namespace: String,
    },
    /// Somebody deletes the hub namespace. Nothing can be made in it until it is gone, and nothing else tells when.
    #[error("failed to federate into namespace {namespace}: it is being deleted on the hub")]
    NamespaceTerminating {
        /// The hub namespace.
        namespace: String,
    },
    /// A projection has no deployment in the project to belong to yet.
    #[error("failed to project instance {instance}: the project has no deployment {deployment}")]
    OwnerUnseen {
        /// The instance, by its key.
        instance: String,
        /// The deployment that it names.
        deployment: String,
    },
}
