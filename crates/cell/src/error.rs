//! Errors of the cell controllers.

use polis_engine::Error as EngineError;

/// An error of one reconcile. The engine requeues the key with back-off.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request to a plane failed.
    // Not transparent: the engine finds its own error among the sources and does not report conflicts.
    #[error("{0}")]
    Plane(#[from] EngineError),
    /// The configured name of the cell is not a label value.
    #[error(
        "failed to start the cell controllers: cell name {name:?} is not a label value (1 to 63 letters, digits or -_. with a letter or digit at each end); set discovery.clusterName"
    )]
    Name {
        /// The configured name.
        name: String,
    },
    /// The hub rejected a write of a hub copy.
    #[error("failed to write instance {instance} to the hub: {source}")]
    WriteBack {
        /// The instance, by its key.
        instance: String,
        /// The refusal.
        source: EngineError,
    },
    /// The project's plane rejected the deletion of a quota claim.
    #[error("failed to delete the quota claim of instance {instance}: {source}")]
    Claim {
        /// The instance, by its key.
        instance: String,
        /// The refusal.
        source: EngineError,
    },
}

#[cfg(test)]
mod tests {
    use polis_engine::ErrorClass;

    use super::*;

    #[test]
    fn the_class_of_an_engine_error_is_found_through_the_cell_error() {
        let inner = EngineError::NotEngaged { plane: "p".into() };
        let class = inner.class();
        assert_ne!(class, ErrorClass::Other);
        assert_eq!(ErrorClass::of(&Error::from(inner)), class);
    }
}
