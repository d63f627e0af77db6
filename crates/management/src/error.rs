//! Errors of the management controllers.

use polis_core::{hub_copy::CityError, tenant::TenantError};
use polis_engine::Error as EngineError;

/// An error of one reconcile. The engine requeues the key with back-off.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request to a plane failed.
    // Not transparent: the engine finds its own error among the sources and does not report conflicts.
    #[error("{0}")]
    Plane(#[from] EngineError),
    /// The project of a hub namespace cannot be resolved.
    #[error(transparent)]
    Tenant(#[from] TenantError),
    /// The city of a deployment is not a valid label value.
    #[error(transparent)]
    City(#[from] CityError),
    /// The project's namespace is not in the cache: the watch has not delivered it yet, or it is deleted.
    #[error("failed to federate {deployment}: namespace {namespace} of the project is not in the cache yet")]
    NamespaceNotCached {
        /// The deployment, by its key.
        deployment: String,
        /// The namespace.
        namespace: String,
    },
    /// The hub namespace is being deleted. Nothing can be created in it until it is gone, and no event
    /// reports that.
    #[error("failed to federate into namespace {namespace}: it is being deleted on the hub")]
    NamespaceTerminating {
        /// The hub namespace.
        namespace: String,
    },
    /// The deployment that a projection needs as its owner is not in the project yet.
    #[error("failed to project instance {instance}: the project has no deployment {deployment}")]
    OwnerNotFound {
        /// The instance, by its key.
        instance: String,
        /// The deployment that it names.
        deployment: String,
    },
}
