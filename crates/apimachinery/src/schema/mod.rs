//! Structural schemas of custom resources: pruning, defaulting and validation.
//!
//! A [`Schema`] is parsed once per CRD version and shared by every plane that serves the kind. It is plain
//! data: no lock, no clock, no I/O. A write runs the same steps in the same order as kube-apiserver:
//!
//! 1. [`decode::json`](crate::decode::json) decodes the body and records duplicate keys;
//! 2. [`Schema::prune_and_default`] coerces metadata, prunes unknown fields and nulls, applies defaults;
//! 3. [`Schema::validate_create`] or [`Schema::validate_update`] validates the result.
//!
//! [`definition::check`] validates the schema of a CRD when the CRD is written.

use serde_json::Value;

pub mod definition;
pub(crate) mod field_path;
mod lists;
pub(crate) mod node;
pub(crate) mod pattern;
pub mod prune_and_default;
pub(crate) mod ratchet;
mod structural;
mod validate;
mod value_path;

pub use node::{AdditionalProperties, Checks, Extras, JsonType, ListType, Node, Pattern, Rule};
pub use value_path::ValuePath;

use crate::error::{ValidationError, ValidationErrorKind};
use crate::{cel, meta};

/// Which part of an update is validated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValidationScope {
    /// The main endpoint: the whole object.
    Whole,
    /// The status subresource: only `status`.
    Status,
}

/// The schema of one version of a custom resource.
#[derive(Debug)]
pub struct Schema {
    root: Node,
}

impl Schema {
    /// Parses `openAPIV3Schema`. It should have passed [`definition::check`].
    pub fn parse(raw: &Value) -> Result<Self, ValidationError> {
        Ok(Self { root: Node::parse(raw)? })
    }

    /// The root node, for callers that walk the schema themselves: apply, selectable fields, OpenAPI.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// Turns the object of a request into the object to store: coerces metadata to `ObjectMeta`, prunes
    /// unknown fields and disallowed nulls, applies defaults. Returns the paths of unknown fields, for
    /// `fieldValidation`. The caller answers an error with 400.
    pub fn prune_and_default(&self, object: &mut Value) -> Result<Vec<String>, ValidationError> {
        self.normalize(object, true)
    }

    /// Like [`Schema::prune_and_default`], for the result of an apply. A list or map that the apply emptied
    /// is null and stays null, so validation rejects it where the schema is not nullable.
    pub fn prune_and_default_applied(&self, object: &mut Value) -> Result<Vec<String>, ValidationError> {
        self.normalize(object, false)
    }

    fn normalize(&self, object: &mut Value, drop_nulls: bool) -> Result<Vec<String>, ValidationError> {
        let mut unknown = Vec::new();
        for key in ["apiVersion", "kind"] {
            if let Some(value) = object.get(key).filter(|v| !v.is_string()) {
                return Err(ValidationError::invalid(key, value.clone(), "must be a string"));
            }
        }
        if let Some(metadata) = object.get_mut("metadata") {
            let before = metadata.clone();
            meta::coerce(metadata, "metadata", Some(&mut unknown))
                .map_err(|why| ValidationError::invalid("metadata", before, why))?;
        }
        let mut pruned = Vec::new();
        prune_and_default::prune(&self.root, object, true, Some(&mut pruned));
        pruned.sort();
        unknown.append(&mut pruned);
        if drop_nulls {
            prune_and_default::drop_nulls(&self.root, object);
        }
        let mut embedded = Vec::new();
        meta::coerce_embedded(&self.root, object, &mut Some(&mut embedded))?;
        embedded.sort();
        unknown.append(&mut embedded);
        prune_and_default::default(&self.root, object);
        Ok(unknown)
    }

    /// Prunes and defaults an object read from the store: the current schema may be newer than the one it was
    /// written with.
    pub fn prune_and_default_stored(&self, object: &mut Value) {
        prune_and_default::prune(&self.root, object, true, None);
        prune_and_default::drop_nulls(&self.root, object);
        prune_and_default::default(&self.root, object);
    }

    /// Validates a new object. [`meta::check_create`] validates its metadata.
    pub fn validate_create(&self, object: &Value) -> Vec<ValidationError> {
        let mut errors = validate::create(&self.root, object, "");
        meta::check_embedded(&self.root, object, &ValuePath::Root, &mut errors);
        errors.extend(lists::check(&self.root, object));
        self.check_rules(object, None, &mut errors);
        errors
    }

    /// Validates an update. Errors in unchanged fields are ignored (ratcheting).
    pub fn validate_update(&self, new: &Value, old: &Value, scope: ValidationScope) -> Vec<ValidationError> {
        let mut errors = match scope {
            ValidationScope::Whole => validate::update(&self.root, new, old, ""),
            ValidationScope::Status => match (self.root.property("status"), new.get("status")) {
                (Some(node), Some(status)) => {
                    validate::update(node, status, old.get("status").unwrap_or(&Value::Null), "status")
                }
                _ => Vec::new(),
            },
        };
        meta::check_embedded(&self.root, new, &ValuePath::Root, &mut errors);
        if self.root.has_lists && lists::check(&self.root, old).is_empty() {
            errors.extend(lists::check(&self.root, new));
        }
        self.check_rules(new, Some(old), &mut errors);
        errors
    }

    /// Runs the CEL rules, unless a value has the wrong type or size: the cost estimate of the rules relies
    /// on both.
    fn check_rules(&self, new: &Value, old: Option<&Value>, errors: &mut Vec<ValidationError>) {
        use ValidationErrorKind::{NotSupported, Required, TooLong, TooMany, TypeInvalid};
        if !self.root.has_rules {
            return;
        }
        if errors.iter().any(|w| matches!(w.kind, NotSupported | Required | TooLong | TooMany | TypeInvalid))
        {
            let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
            errors.push(ValidationError::invalid("<nil>", Value::Null, detail));
        } else {
            errors.extend(cel::validate(&self.root, new, old));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Schema {
        Schema::parse(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"size": {"type": "integer", "default": 1, "maximum": 5}}},
            "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
        }}))
        .unwrap()
    }

    #[test]
    fn a_request_is_pruned_defaulted_and_validated() {
        let mut object = json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "x", "odd": 1}, "spec": {"foo": 1}, "bar": null});
        let unknown = schema().prune_and_default(&mut object).unwrap();
        assert_eq!(unknown, ["metadata.odd", "bar", "spec.foo"]);
        assert_eq!(
            object,
            json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "x"}, "spec": {"size": 1}})
        );
        assert!(schema().validate_create(&object).is_empty());
    }

    #[test]
    fn rules_run_only_on_values_of_the_right_type() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {"n": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 1"}]}}})).unwrap();
        let messages = |object: Value| -> Vec<String> {
            schema.validate_create(&object).iter().map(ToString::to_string).collect()
        };
        assert_eq!(messages(json!({"n": 1})), ["n: Invalid value: 1: failed rule: self > 1"]);
        let both = messages(json!({"n": "x"}));
        assert_eq!(
            both[1],
            "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"
        );
    }

    #[test]
    fn the_status_endpoint_validates_only_the_status() {
        let old = json!({"spec": {"size": 9}, "status": {}});
        let new = json!({"spec": {"size": 9}, "status": {"phase": 1}});
        let messages: Vec<String> = schema()
            .validate_update(&new, &old, ValidationScope::Status)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            messages,
            ["status.phase: Invalid value: \"integer\": phase in body must be of type string: \"integer\""]
        );
        assert_eq!(schema().validate_update(&new, &old, ValidationScope::Whole).len(), 1);
    }
}
