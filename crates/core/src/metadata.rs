//! Labels, annotations and finalizers of objects with several writers.
//!
//! Karmada, users and other controllers set keys of their own on the same objects. A writer that replaced the
//! whole map would conflict with them forever, so each writer owns named keys only: it sets the desired ones,
//! removes owned keys that are no longer desired, and keeps every other key.

use std::collections::BTreeMap;

use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use polis_api::names;

/// Labels or annotations.
pub type Map = BTreeMap<String, String>;

/// A map of labels or annotations from pairs.
pub fn map<K: Into<String>, V: Into<String>>(pairs: impl IntoIterator<Item = (K, V)>) -> Map {
    pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
}

/// The map with the changes of one writer, or `None` when nothing changes.
///
/// Sets the `desired` keys, removes keys in `owned` that are not desired, and keeps every other key.
pub fn merged(current: Option<&Map>, desired: &Map, owned: &[&str]) -> Option<Map> {
    let before = current.cloned().unwrap_or_default();
    let mut after = before.clone();
    after.retain(|key, _| desired.contains_key(key) || !owned.contains(&key.as_str()));
    after.extend(desired.clone());
    (after != before).then_some(after)
}

/// Merges into the labels of an object; returns whether anything changed.
pub fn merge_labels(meta: &mut ObjectMeta, desired: &Map, owned: &[&str]) -> bool {
    merge_into(&mut meta.labels, desired, owned)
}

/// Merges into the annotations of an object; returns whether anything changed.
pub fn merge_annotations(meta: &mut ObjectMeta, desired: &Map, owned: &[&str]) -> bool {
    merge_into(&mut meta.annotations, desired, owned)
}

fn merge_into(slot: &mut Option<Map>, desired: &Map, owned: &[&str]) -> bool {
    let Some(after) = merged(slot.as_ref(), desired, owned) else { return false };
    *slot = Some(after).filter(|map| !map.is_empty());
    true
}

/// Adds a finalizer; returns whether it was missing.
pub fn add_finalizer(meta: &mut ObjectMeta, finalizer: &str) -> bool {
    if has_finalizer(meta, finalizer) {
        return false;
    }
    meta.finalizers.get_or_insert_default().push(finalizer.to_owned());
    true
}

/// Removes a finalizer; returns whether it was present. Its cleanup must be complete.
pub fn remove_finalizer(meta: &mut ObjectMeta, finalizer: &str) -> bool {
    if !has_finalizer(meta, finalizer) {
        return false;
    }
    let rest: Vec<_> = meta.finalizers.take().into_iter().flatten().filter(|f| f != finalizer).collect();
    meta.finalizers = Some(rest).filter(|rest| !rest.is_empty());
    true
}

fn has_finalizer(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|f| f == finalizer)
}

/// Whether a text is a valid, non-empty label value.
pub fn is_label_value(text: &str) -> bool {
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    text.len() <= names::MAX_LABEL
        && ends(text.bytes().next())
        && ends(text.bytes().next_back())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// Whether a text is a valid label or annotation key: a name like a label value, optionally after a domain
/// and `/`.
pub fn is_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((domain, name)) => {
            domain.len() <= 253 && domain.split('.').all(names::is_dns_label) && is_label_value(name)
        }
        None => is_label_value(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_foreign_key_is_kept() {
        let current = map([("karmada.io/managed", "true")]);
        assert_eq!(
            merged(Some(&current), &map([("ours", "1")]), &["ours"]),
            Some(map([("karmada.io/managed", "true"), ("ours", "1")]))
        );
    }

    #[test]
    fn an_owned_key_that_is_no_longer_desired_is_removed() {
        assert_eq!(merged(Some(&map([("ours", "1")])), &Map::new(), &["ours"]), Some(Map::new()));
    }

    #[test]
    fn a_desired_key_is_corrected() {
        assert_eq!(
            merged(Some(&map([("ours", "2")])), &map([("ours", "1")]), &[]),
            Some(map([("ours", "1")]))
        );
    }

    #[test]
    fn an_unchanged_map_is_not_written() {
        assert_eq!(merged(None, &Map::new(), &["ours"]), None);
        assert_eq!(merged(Some(&map([("ours", "1")])), &map([("ours", "1")]), &["ours"]), None);
    }

    #[test]
    fn finalizers_are_added_and_removed_once_and_others_are_kept() {
        let mut meta = ObjectMeta { finalizers: Some(vec!["theirs".into()]), ..Default::default() };
        assert!(add_finalizer(&mut meta, "ours"));
        assert!(!add_finalizer(&mut meta, "ours"));
        assert!(remove_finalizer(&mut meta, "ours"));
        assert!(!remove_finalizer(&mut meta, "ours"));
        assert_eq!(meta.finalizers, Some(vec!["theirs".to_owned()]));
    }

    fn any_map() -> impl Strategy<Value = Map> {
        prop::collection::btree_map("[a-f]", "[0-2]", 0..6)
    }

    proptest! {
        #[test]
        fn foreign_keys_are_kept_and_desired_keys_are_set(
            current in any_map(), desired in any_map(), owned in prop::collection::vec("[a-f]", 0..4)
        ) {
            let owned: Vec<&str> = owned.iter().map(String::as_str).collect();
            let after = merged(Some(&current), &desired, &owned).unwrap_or_else(|| current.clone());
            for (key, value) in &current {
                if !desired.contains_key(key) && !owned.contains(&key.as_str()) {
                    prop_assert_eq!(after.get(key), Some(value));
                }
            }
            for (key, value) in &desired {
                prop_assert_eq!(after.get(key), Some(value));
            }
            for key in owned {
                prop_assert!(desired.contains_key(key) || !after.contains_key(key));
            }
            prop_assert_eq!(after.keys().filter(|k| !current.contains_key(*k) && !desired.contains_key(*k)).count(), 0);
        }

        #[test]
        fn merging_the_result_again_changes_nothing(current in any_map(), desired in any_map()) {
            let owned = ["a", "b"];
            let after = merged(Some(&current), &desired, &owned).unwrap_or(current);
            prop_assert_eq!(merged(Some(&after), &desired, &owned), None);
        }
    }
}
