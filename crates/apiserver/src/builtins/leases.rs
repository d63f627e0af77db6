//! Leases.

use serde_json::Value;

use crate::schema::FieldError;

/// Drops what belongs to coordinated leader election, which is off by default in Kubernetes too.
pub(super) fn prepare(object: &mut Value) {
    if let Some(Value::Object(spec)) = object.get_mut("spec") {
        spec.remove("strategy");
        spec.remove("preferredHolder");
    }
}

pub(super) fn faults(object: &Value) -> Vec<FieldError> {
    let spec = &object["spec"];
    let mut wrong = Vec::new();
    if let Some(seconds) = spec["leaseDurationSeconds"].as_i64().filter(|seconds| *seconds <= 0) {
        wrong.push(FieldError::invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0"));
    }
    if let Some(transitions) = spec["leaseTransitions"].as_i64().filter(|transitions| *transitions < 0) {
        wrong.push(FieldError::invalid(
            "spec.leaseTransitions",
            transitions,
            "must be greater than or equal to 0",
        ));
    }
    wrong
}
