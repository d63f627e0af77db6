//! A cache of compiled schemas, shared by all planes of the process.
//!
//! A process serves the same CRD on many planes: the compute kinds are on the platform, in projects, on the
//! hub and on every cell. A compiled schema is immutable and, with its source, the largest part of a plane's
//! memory. Each distinct schema is compiled once and dropped when the last plane stops serving it.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Weak},
};

use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::versioned_schema::VersionedSchema;

/// Schemas by the SHA-256 digest of their JSON.
type Known = HashMap<[u8; 32], (Weak<Value>, Weak<VersionedSchema>)>;

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// The schema of a version, raw and compiled: those of another plane, if one serves the same.
pub(super) fn compiled(raw: Value) -> (Arc<Value>, Arc<VersionedSchema>) {
    let digest: [u8; 32] = Sha256::digest(raw.to_string()).into();
    if let Some(known) = KNOWN.lock().get(&digest).and_then(alive) {
        return known;
    }
    // Compiled without the lock, because a large schema takes milliseconds. Concurrent callers may both
    // compile it.
    let versioned = Arc::new(VersionedSchema::of_custom(&raw));
    let schema = Arc::new(raw);
    let mut known = KNOWN.lock();
    known.retain(|_, entry| alive(entry).is_some());
    known.insert(digest, (Arc::downgrade(&schema), Arc::downgrade(&versioned)));
    (schema, versioned)
}

fn alive(
    (schema, versioned): &(Weak<Value>, Weak<VersionedSchema>),
) -> Option<(Arc<Value>, Arc<VersionedSchema>)> {
    Some((schema.upgrade()?, versioned.upgrade()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_is_compiled_once_and_dropped_with_its_last_user() {
        let schema = |limit: u64| json!({"type": "object", "properties": {"shared-test": {"type": "integer", "maximum": limit}}});
        let (first, versioned) = compiled(schema(1));
        let (second, again) = compiled(schema(1));
        assert!(Arc::ptr_eq(&first, &second) && Arc::ptr_eq(&versioned, &again));
        let (other, _) = compiled(schema(2));
        assert!(!Arc::ptr_eq(&first, &other));
        let gone = Arc::downgrade(&versioned);
        drop((first, versioned, second, again));
        assert!(gone.upgrade().is_none(), "the cache keeps an unused schema");
    }
}
