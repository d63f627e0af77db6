//! Events have two faces, core and events.k8s.io, over one stored form: the core one.

use serde_json::{Map, Value};

/// Field of core/v1 and its name in events.k8s.io/v1.
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

fn rename(object: &mut Value, version: &str, name: impl Fn(&str) -> Option<&'static str>) {
    if let Value::Object(fields) = object {
        let renamed: Map<String, Value> = std::mem::take(fields)
            .into_iter()
            .map(|(field, value)| (name(&field).map_or(field, str::to_owned), value))
            .collect();
        *fields = renamed;
        fields.insert("apiVersion".into(), version.into());
    }
}

/// A core event as events.k8s.io shows it.
pub(crate) fn to_new(object: &mut Value) {
    rename(object, "events.k8s.io/v1", |field| {
        NAMES.iter().find(|(core, _)| *core == field).map(|(_, new)| *new)
    });
}

/// An event of events.k8s.io as it is stored.
pub(crate) fn to_core(object: &mut Value) {
    rename(object, "v1", |field| NAMES.iter().find(|(_, new)| *new == field).map(|(core, _)| *core));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_faces_are_one_event() {
        let core = json!({"apiVersion": "v1", "kind": "Event", "involvedObject": {"name": "a"}, "message": "m", "reportingComponent": "c", "type": "Normal"});
        let mut event = core.clone();
        to_new(&mut event);
        assert_eq!(
            event,
            json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "regarding": {"name": "a"}, "note": "m", "reportingController": "c", "type": "Normal"})
        );
        to_core(&mut event);
        assert_eq!(event, core);
    }
}
