//! Preparation and validation of Leases.

use polis_apimachinery::ValidationError;
use serde_json::Value;

/// Drops the fields of coordinated leader election, a feature that Kubernetes disables by default.
pub(super) fn prepare(object: &mut Value) {
    if let Some(Value::Object(spec)) = object.get_mut("spec") {
        spec.remove("strategy");
        spec.remove("preferredHolder");
    }
}

pub(super) fn validate(object: &Value) -> Vec<ValidationError> {
    let spec = &object["spec"];
    let mut errors = Vec::new();
    if let Some(seconds) = spec["leaseDurationSeconds"].as_i64().filter(|seconds| *seconds <= 0) {
        errors.push(ValidationError::invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0"));
    }
    if let Some(transitions) = spec["leaseTransitions"].as_i64().filter(|transitions| *transitions < 0) {
        errors.push(ValidationError::invalid(
            "spec.leaseTransitions",
            transitions,
            "must be greater than or equal to 0",
        ));
    }
    errors
}
