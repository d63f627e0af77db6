//! Events: what an event must say. Those of `events.k8s.io` are held to more than the old ones of core.

use serde_json::Value;

use crate::{
    json,
    schema::{FieldError, names},
};

/// Longest note.
const NOTE_MAX: usize = 1024;
/// Longest reason, action and reporting instance.
const WORD_MAX: usize = 128;

/// Complaints about an event; `new_face` is one of `events.k8s.io`, in its own field names.
pub(super) fn faults(object: &Value, old: Option<&Value>, new_face: bool) -> Vec<FieldError> {
    let mut event = object.clone();
    if new_face {
        crate::events::to_core(&mut event);
    }
    let text = |field: &str| event[field].as_str().unwrap_or_default();
    let mut wrong = Vec::new();
    let dated = event["eventTime"].is_string();
    let (namespace, about) =
        (json::meta(&event, "namespace"), event["involvedObject"]["namespace"].as_str().unwrap_or_default());
    let astray = match (dated, about.is_empty()) {
        (false, true) => !matches!(namespace, "" | "default"),
        (false, false) => namespace != about,
        (true, true) => !matches!(namespace, "default" | "kube-system"),
        (true, false) => false,
    };
    if astray {
        wrong.push(FieldError::invalid("involvedObject.namespace", about, "does not match event.namespace"));
    }
    if dated {
        let controller = if new_face { "reportingController" } else { "reportingComponent" };
        let reporter = text("reportingComponent");
        if reporter.is_empty() {
            wrong.push(FieldError::required(controller, ""));
        }
        wrong.extend(
            names::label_key(reporter).into_iter().map(|why| FieldError::invalid(controller, reporter, why)),
        );
        for field in ["reportingInstance", "action", "reason"] {
            if text(field).is_empty() {
                wrong.push(FieldError::required(field, ""));
            }
            too_long(field, text(field), WORD_MAX, &mut wrong);
        }
        too_long("message", text("message"), NOTE_MAX, &mut wrong);
    }
    if new_face && old.is_none() {
        wrong.extend(strict_faults(&event));
    }
    wrong
}

fn too_long(field: &str, text: &str, max: usize, wrong: &mut Vec<FieldError>) {
    if text.len() > max {
        wrong.push(FieldError::invalid(field, "", format!("can have at most {max} characters")));
    }
}

/// What only `events.k8s.io` asks of a new event.
fn strict_faults(event: &Value) -> Vec<FieldError> {
    let mut wrong = Vec::new();
    let series = &event["series"];
    if series.is_object() {
        if series["count"].as_i64().unwrap_or_default() < 2 {
            wrong.push(FieldError::invalid("series.count", "", "should be at least 2"));
        }
        if !series["lastObservedTime"].is_string() {
            wrong.push(FieldError::required("series.lastObservedTime", ""));
        }
    }
    if !event["eventTime"].is_string() {
        wrong.push(FieldError::required("eventTime", ""));
    }
    let kind = event["type"].as_str().unwrap_or_default();
    if !matches!(kind, "Normal" | "Warning") {
        wrong.push(FieldError::invalid("type", "", format!("has invalid value: {kind}")));
    }
    let set = |field: &str| match &event[field] {
        Value::Null => false,
        Value::Object(map) => map.values().any(|value| value.as_str().is_some_and(|text| !text.is_empty())),
        Value::Number(number) => number.as_i64() != Some(0),
        _ => true,
    };
    for field in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        if set(field) {
            wrong.push(FieldError::invalid(field, "", "needs to be unset"));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(event: Value, new_face: bool) -> Vec<String> {
        faults(&event, None, new_face).into_iter().map(|fault| fault.field).collect()
    }

    #[test]
    fn an_event_stands_in_the_namespace_of_what_it_is_about() {
        let event = |namespace: &str, about: Value| json!({"metadata": {"namespace": namespace}, "involvedObject": about});
        assert!(fields(event("a", json!({"namespace": "a"})), false).is_empty());
        assert!(fields(event("default", json!({})), false).is_empty());
        assert_eq!(fields(event("a", json!({})), false), ["involvedObject.namespace"]);
        assert_eq!(fields(event("a", json!({"namespace": "b"})), false), ["involvedObject.namespace"]);
    }

    #[test]
    fn the_new_face_is_held_to_more() {
        let event = json!({"metadata": {"namespace": "default"}, "reason": "Why", "deprecatedCount": 2});
        assert_eq!(fields(event, true), ["eventTime", "type", "count"]);
        let whole = json!({"metadata": {"namespace": "default"}, "eventTime": "2026-01-01T00:00:00.000001Z", "reportingController": "example.com/c", "reportingInstance": "i", "action": "Do", "reason": "Why", "type": "Normal"});
        assert!(fields(whole, true).is_empty());
    }
}
