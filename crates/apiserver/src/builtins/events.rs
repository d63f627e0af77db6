//! Validation of Events. `events.k8s.io/v1` has stricter rules than `core/v1`.

use polis_apimachinery::{ValidationError, names, object};
use serde_json::Value;

/// Maximum length of the message (`note`), in bytes.
const NOTE_MAX: usize = 1024;
/// Maximum length of reason, action and reporting instance, in bytes.
const WORD_MAX: usize = 128;

/// Validates an Event. With `events_v1` the object has the field names of `events.k8s.io/v1`.
pub(super) fn validate(object: &Value, old: Option<&Value>, events_v1: bool) -> Vec<ValidationError> {
    let mut event = object.clone();
    if events_v1 {
        crate::events::to_core(&mut event);
    }
    let text = |field: &str| event[field].as_str().unwrap_or_default();
    let mut errors = Vec::new();
    let has_event_time = event["eventTime"].is_string();
    let (namespace, involved_namespace) = (
        object::meta(&event, "namespace"),
        event["involvedObject"]["namespace"].as_str().unwrap_or_default(),
    );
    let mismatched = match (has_event_time, involved_namespace.is_empty()) {
        (false, true) => !matches!(namespace, "" | "default"),
        (false, false) => namespace != involved_namespace,
        (true, true) => !matches!(namespace, "default" | "kube-system"),
        (true, false) => false,
    };
    if mismatched {
        errors.push(ValidationError::invalid(
            "involvedObject.namespace",
            involved_namespace,
            "does not match event.namespace",
        ));
    }
    if has_event_time {
        let controller = if events_v1 { "reportingController" } else { "reportingComponent" };
        let reporter = text("reportingComponent");
        if reporter.is_empty() {
            errors.push(ValidationError::required(controller, ""));
        }
        errors.extend(
            names::label_key(reporter)
                .into_iter()
                .map(|why| ValidationError::invalid(controller, reporter, why)),
        );
        for field in ["reportingInstance", "action", "reason"] {
            if text(field).is_empty() {
                errors.push(ValidationError::required(field, ""));
            }
            too_long(field, text(field), WORD_MAX, &mut errors);
        }
        too_long("message", text("message"), NOTE_MAX, &mut errors);
    }
    if events_v1 && old.is_none() {
        errors.extend(validate_strict(&event));
    }
    errors
}

fn too_long(field: &str, text: &str, max: usize, errors: &mut Vec<ValidationError>) {
    if text.len() > max {
        errors.push(ValidationError::invalid(field, "", format!("can have at most {max} characters")));
    }
}

/// Rules that apply only to new Events of `events.k8s.io/v1`.
fn validate_strict(event: &Value) -> Vec<ValidationError> {
    let mut errors = Vec::new();
    let series = &event["series"];
    if series.is_object() {
        if series["count"].as_i64().unwrap_or_default() < 2 {
            errors.push(ValidationError::invalid("series.count", "", "should be at least 2"));
        }
        if !series["lastObservedTime"].is_string() {
            errors.push(ValidationError::required("series.lastObservedTime", ""));
        }
    }
    if !event["eventTime"].is_string() {
        errors.push(ValidationError::required("eventTime", ""));
    }
    let kind = event["type"].as_str().unwrap_or_default();
    if !matches!(kind, "Normal" | "Warning") {
        errors.push(ValidationError::invalid("type", "", format!("has invalid value: {kind}")));
    }
    let set = |field: &str| match &event[field] {
        Value::Null => false,
        Value::Object(map) => map.values().any(|value| value.as_str().is_some_and(|text| !text.is_empty())),
        Value::Number(number) => number.as_i64() != Some(0),
        _ => true,
    };
    for field in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        if set(field) {
            errors.push(ValidationError::invalid(field, "", "needs to be unset"));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(event: Value, events_v1: bool) -> Vec<String> {
        validate(&event, None, events_v1).into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn an_event_is_in_the_namespace_of_its_object() {
        let event = |namespace: &str, involved_namespace: Value| json!({"metadata": {"namespace": namespace}, "involvedObject": involved_namespace});
        assert!(fields(event("a", json!({"namespace": "a"})), false).is_empty());
        assert!(fields(event("default", json!({})), false).is_empty());
        assert_eq!(fields(event("a", json!({})), false), ["involvedObject.namespace"]);
        assert_eq!(fields(event("a", json!({"namespace": "b"})), false), ["involvedObject.namespace"]);
    }

    #[test]
    fn events_v1_has_stricter_rules() {
        let event = json!({"metadata": {"namespace": "default"}, "reason": "Why", "deprecatedCount": 2});
        assert_eq!(fields(event, true), ["eventTime", "type", "count"]);
        let whole = json!({"metadata": {"namespace": "default"}, "eventTime": "2026-01-01T00:00:00.000001Z", "reportingController": "example.com/c", "reportingInstance": "i", "action": "Do", "reason": "Why", "type": "Normal"});
        assert!(fields(whole, true).is_empty());
    }
}
