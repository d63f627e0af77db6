//! Property test of the store against a model: a map of JSON objects.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

#[derive(Clone, Debug)]
enum Operation {
    Put { name: u8, label: u8, owners: Vec<u8> },
    Remove(u8),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let put = (0u8..6, 0u8..3, proptest::collection::vec(0u8..3, 0..3))
        .prop_map(|(name, label, owners)| Operation::Put { name, label, owners });
    proptest::collection::vec(prop_oneof![3 => put, 1 => (0u8..6).prop_map(Operation::Remove)], 0..60)
}

fn mk_object(name: u8, label: u8, owners: &[u8]) -> Value {
    let owners: Vec<Value> = owners.iter().map(|owner| json!({"uid": format!("u{owner}")})).collect();
    // Names and namespaces share prefixes on purpose.
    let meta = json!({"name": format!("o{name}"), "namespace": if name.is_multiple_of(2) { "a" } else { "a-b" },
        "labels": {"l": format!("v{label}")}, "ownerReferences": owners});
    json!({"metadata": meta})
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn the_store_and_its_indexes_agree_with_a_map(operations in operations()) {
        let indexes = [Index::Owner, Index::label("l")];
        let mut store = Store::default();
        let mut model: BTreeMap<String, Value> = BTreeMap::new();
        for operation in operations {
            match operation {
                Operation::Put { name, label, owners } => {
                    let object = mk_object(name, label, &owners);
                    let parsed = parse_object(object.to_string().as_bytes()).unwrap();
                    let before = model.insert(parsed.id.to_string(), object.clone());
                    let change = store.apply(&indexes, &parsed.id, &parsed.bytes);
                    prop_assert_eq!(change.is_none(), before.as_ref() == Some(&object));
                    prop_assert_eq!(change.map(|change| change.before.is_some()).unwrap_or(true), before.is_some());
                }
                Operation::Remove(name) => {
                    let id = id_of((if name.is_multiple_of(2) { "a" } else { "a-b" }, format!("o{name}").as_str()).into());
                    prop_assert_eq!(store.remove(&indexes, &id).is_some(), model.remove(&id).is_some());
                }
            }
            let ids = |found: Vec<StoredObject>| found.into_iter().map(|(id, _)| id.to_string()).collect::<Vec<_>>();
            prop_assert_eq!(ids(store.all()), model.keys().cloned().collect::<Vec<_>>());
            for namespace in ["a", "a-b", "b"] {
                let expected: Vec<_> = model.iter().filter(|(_, o)| o["metadata"]["namespace"] == namespace).map(|(id, _)| id.clone()).collect();
                prop_assert_eq!(ids(store.within(namespace).collect()), expected);
            }
            for value in 0..3 {
                let (uid, label) = (format!("u{value}"), format!("v{value}"));
                let owned: Vec<_> = model.iter()
                    .filter(|(_, o)| o["metadata"]["ownerReferences"].as_array().unwrap().iter().any(|owner| owner["uid"] == uid.as_str()))
                    .map(|(id, _)| id.clone()).collect();
                prop_assert_eq!(ids(store.by_index(0, &uid)), owned);
                let labelled: Vec<_> = model.iter().filter(|(_, o)| o["metadata"]["labels"]["l"] == label.as_str()).map(|(id, _)| id.clone()).collect();
                prop_assert_eq!(ids(store.by_index(1, &label)), labelled);
            }
        }
        // The indexes are empty once every object is removed.
        for id in model.keys() {
            store.remove(&indexes, id);
        }
        prop_assert!(store.entries().is_empty());
    }
}
