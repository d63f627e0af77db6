//! Compiled schemas that planes share.
//!
//! A process serves the same CRD on many planes: the kinds of compute are on the platform, in projects, on the hub and on
//! every cell. A compiled schema never changes, and with its raw text it is the largest part of what a plane costs. So
//! one text is compiled once, and kept for as long as a plane serves it.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Weak},
};

use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::form::Form;

/// By digest of the text: two schemas are the same if their texts are.
type Known = HashMap<[u8; 32], (Weak<Value>, Weak<Form>)>;

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// The schema of a version and its form: those of another plane, if one serves the same.
pub(super) fn compiled(raw: Value) -> (Arc<Value>, Arc<Form>) {
    let digest: [u8; 32] = Sha256::digest(raw.to_string()).into();
    if let Some(known) = KNOWN.lock().get(&digest).and_then(alive) {
        return known;
    }
    // Without the lock: a large schema takes milliseconds. Two who come at once both compile it.
    let form = Arc::new(Form::of_custom(&raw));
    let schema = Arc::new(raw);
    let mut known = KNOWN.lock();
    known.retain(|_, entry| alive(entry).is_some());
    known.insert(digest, (Arc::downgrade(&schema), Arc::downgrade(&form)));
    (schema, form)
}

fn alive((schema, form): &(Weak<Value>, Weak<Form>)) -> Option<(Arc<Value>, Arc<Form>)> {
    Some((schema.upgrade()?, form.upgrade()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_schema_is_compiled_once_for_all_who_serve_it_and_forgotten_with_the_last() {
        let schema = |limit: u64| json!({"type": "object", "properties": {"shared-test": {"type": "integer", "maximum": limit}}});
        let (first, form) = compiled(schema(1));
        let (second, again) = compiled(schema(1));
        assert!(Arc::ptr_eq(&first, &second) && Arc::ptr_eq(&form, &again));
        let (other, _) = compiled(schema(2));
        assert!(!Arc::ptr_eq(&first, &other));
        let gone = Arc::downgrade(&form);
        drop((first, form, second, again));
        assert!(gone.upgrade().is_none(), "nobody serves it any more");
    }
}
