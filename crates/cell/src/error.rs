//! What can go wrong in a cell.

use polis_engine::Error as EngineError;

/// A failure of one reconcile. The key comes back, with growing pauses.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A plane could not be read or written.
    // Not transparent: the engine looks for its own error among the causes, and a conflict is no news to it.
    #[error("{0}")]
    Plane(#[from] EngineError),
    /// The cell has no usable name. A mistake in the set-up.
    #[error(
        "failed to name the cell {name:?}: its name is a label value, of 1 to 63 letters, digits or -_. with a letter or digit at each end; set discovery.clusterName"
    )]
    Name {
        /// The name that was given.
        name: String,
    },
    /// The hub refused a copy.
    #[error("failed to show instance {instance} on the hub: {source}")]
    WriteBack {
        /// The instance, by its key.
        instance: String,
        /// The refusal.
        source: EngineError,
    },
    /// The project's plane refused to give up a claim.
    #[error("failed to give back the quota claim of instance {instance}: {source}")]
    Claim {
        /// The instance, by its key.
        instance: String,
        /// The refusal.
        source: EngineError,
    },
}

#[cfg(test)]
mod tests {
    use polis_engine::Class;

    use super::*;

    #[test]
    fn the_class_of_a_failure_is_seen_through_the_error_of_this_room() {
        let inner = EngineError::NotEngaged { plane: "p".into() };
        let class = inner.class();
        assert_ne!(class, Class::Other);
        assert_eq!(Class::of(&Error::from(inner)), class);
    }
}
