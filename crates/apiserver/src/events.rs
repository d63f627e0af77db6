//! Conversion of Events between core/v1, the stored version, and events.k8s.io/v1.

use serde_json::{Map, Value};

/// Fields of core/v1 and their names in events.k8s.io/v1.
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

/// Converts a core/v1 Event to events.k8s.io/v1.
pub(crate) fn to_events_v1(object: &mut Value) {
    rename(object, "events.k8s.io/v1", |field| {
        NAMES.iter().find(|(core, _)| *core == field).map(|(_, new)| *new)
    });
}

/// Converts an events.k8s.io/v1 Event to core/v1.
pub(crate) fn to_core(object: &mut Value) {
    rename(object, "v1", |field| NAMES.iter().find(|(_, new)| *new == field).map(|(core, _)| *core));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conversion_round_trips() {
        let core = json!({"apiVersion": "v1", "kind": "Event", "involvedObject": {"name": "a"}, "message": "m", "reportingComponent": "c", "type": "Normal"});
        let mut event = core.clone();
        to_events_v1(&mut event);
        assert_eq!(
            event,
            json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "regarding": {"name": "a"}, "note": "m", "reportingController": "c", "type": "Normal"})
        );
        to_core(&mut event);
        assert_eq!(event, core);
    }
}
