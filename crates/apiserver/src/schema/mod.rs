//! Structural schemas: what a custom resource may look like, and what is made of it before it is stored.
//!
//! A [`Schema`] is parsed once per CRD version and shared by every plane that serves the kind. It is plain data: no
//! lock, no clock, no I/O. The order of a write is that of kube-apiserver:
//!
//! 1. [`decode::decode`] the body, noticing repeated keys;
//! 2. [`Schema::shape`]: metadata into its type, unknown fields and nulls out, defaults in;
//! 3. [`Schema::validate_create`] or [`Schema::validate_update`].
//!
//! A CRD itself is judged by [`definition::check`] when it is written.

use serde_json::Value;

pub mod cel;
pub mod decode;
pub mod definition;
pub mod error;
pub mod field_path;
pub mod format;
pub mod lists;
pub mod meta;
pub mod names;
pub mod node;
pub mod path;
pub mod pattern;
mod ratchet;
pub mod shape;
pub mod structural;
pub mod validate;

pub use error::{FieldError, FieldErrorKind, aggregate};
pub use node::Node;

use path::Path;

/// A change of the whole object, or of its status alone through the subresource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The main endpoint.
    Whole,
    /// The status subresource: only `status` is judged.
    Status,
}

/// The schema of one version of a custom resource.
#[derive(Debug)]
pub struct Schema {
    root: Node,
}

impl Schema {
    /// Parses `openAPIV3Schema`. It should have passed [`definition::check`].
    pub fn parse(raw: &Value) -> Result<Self, FieldError> {
        Ok(Self { root: Node::parse(raw)? })
    }

    /// The tree, for those who follow it themselves: apply, selectable fields, OpenAPI.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// Makes of a request what is stored: metadata into the shape of its type, unknown fields and disallowed nulls out,
    /// defaults in. Returns the places of unknown fields, for `fieldValidation`. An error is a 400.
    pub fn shape(&self, object: &mut Value) -> Result<Vec<String>, FieldError> {
        self.bring_into_shape(object, true)
    }

    /// As [`Schema::shape`], for the result of an apply: a list or map that it emptied is null there, and stays so, to
    /// be refused where the schema allows none.
    pub fn shape_applied(&self, object: &mut Value) -> Result<Vec<String>, FieldError> {
        self.bring_into_shape(object, false)
    }

    fn bring_into_shape(&self, object: &mut Value, drop_nulls: bool) -> Result<Vec<String>, FieldError> {
        let mut unknown = Vec::new();
        for key in ["apiVersion", "kind"] {
            if let Some(value) = object.get(key).filter(|v| !v.is_string()) {
                return Err(FieldError::invalid(key, value.clone(), "must be a string"));
            }
        }
        if let Some(metadata) = object.get_mut("metadata") {
            let before = metadata.clone();
            meta::coerce(metadata, "metadata", Some(&mut unknown))
                .map_err(|why| FieldError::invalid("metadata", before, why))?;
        }
        let mut pruned = Vec::new();
        shape::prune(&self.root, object, true, Some(&mut pruned));
        pruned.sort();
        unknown.append(&mut pruned);
        if drop_nulls {
            shape::drop_nulls(&self.root, object);
        }
        let mut embedded = Vec::new();
        meta::coerce_embedded(&self.root, object, &mut Some(&mut embedded))?;
        embedded.sort();
        unknown.append(&mut embedded);
        shape::default(&self.root, object);
        Ok(unknown)
    }

    /// Makes of a stored object what is read: pruned and defaulted by the schema of today, which may not be the one it
    /// was written under.
    pub fn shape_stored(&self, object: &mut Value) {
        shape::prune(&self.root, object, true, None);
        shape::drop_nulls(&self.root, object);
        shape::default(&self.root, object);
    }

    /// Complaints about a new object. Its metadata is judged by [`meta::check_create`].
    pub fn validate_create(&self, object: &Value) -> Vec<FieldError> {
        let mut wrong = validate::create(&self.root, object, "");
        meta::check_embedded(&self.root, object, &Path::Root, &mut wrong);
        wrong.extend(lists::check(&self.root, object));
        self.check_rules(object, None, &mut wrong);
        wrong
    }

    /// Complaints about a changed object: what was wrong before and stayed is not held against it.
    pub fn validate_update(&self, new: &Value, old: &Value, scope: Scope) -> Vec<FieldError> {
        let mut wrong = match scope {
            Scope::Whole => validate::update(&self.root, new, old, ""),
            Scope::Status => match (self.root.property("status"), new.get("status")) {
                (Some(node), Some(status)) => {
                    validate::update(node, status, old.get("status").unwrap_or(&Value::Null), "status")
                }
                _ => Vec::new(),
            },
        };
        meta::check_embedded(&self.root, new, &Path::Root, &mut wrong);
        if self.root.has_lists && lists::check(&self.root, old).is_empty() {
            wrong.extend(lists::check(&self.root, new));
        }
        self.check_rules(new, Some(old), &mut wrong);
        wrong
    }

    /// Rules are only run on values of the right types and sizes: they were judged by those.
    fn check_rules(&self, new: &Value, old: Option<&Value>, wrong: &mut Vec<FieldError>) {
        use FieldErrorKind::{NotSupported, Required, TooLong, TooMany, TypeInvalid};
        if !self.root.has_rules {
            return;
        }
        if wrong.iter().any(|w| matches!(w.kind, NotSupported | Required | TooLong | TooMany | TypeInvalid)) {
            let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
            wrong.push(FieldError::invalid("<nil>", Value::Null, detail));
        } else {
            wrong.extend(cel::validate(&self.root, new, old));
        }
    }
}

/// The sentence that `fieldValidation=Strict` answers with, and the warnings of `Warn`: duplicates first, then unknown
/// fields, each as kube-apiserver words it.
pub fn strict_complaints(duplicates: &[String], unknown: &[String]) -> Vec<String> {
    duplicates
        .iter()
        .cloned()
        .chain(unknown.iter().map(|field| format!("unknown field \"{field}\"")))
        .collect()
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
    fn a_request_is_pruned_defaulted_and_judged() {
        let mut object = json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "x", "odd": 1}, "spec": {"foo": 1}, "bar": null});
        let unknown = schema().shape(&mut object).unwrap();
        assert_eq!(unknown, ["metadata.odd", "bar", "spec.foo"]);
        assert_eq!(
            object,
            json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "x"}, "spec": {"size": 1}})
        );
        assert!(schema().validate_create(&object).is_empty());
        assert_eq!(
            strict_complaints(&["duplicate field \"a\"".to_owned()], &unknown)[1],
            "unknown field \"metadata.odd\""
        );
    }

    #[test]
    fn rules_wait_for_values_of_the_right_type() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {"n": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 1"}]}}})).unwrap();
        let said = |object: Value| -> Vec<String> {
            schema.validate_create(&object).iter().map(ToString::to_string).collect()
        };
        assert_eq!(said(json!({"n": 1})), ["n: Invalid value: 1: failed rule: self > 1"]);
        let both = said(json!({"n": "x"}));
        assert_eq!(
            both[1],
            "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"
        );
    }

    #[test]
    fn through_the_status_endpoint_only_the_status_is_judged() {
        let old = json!({"spec": {"size": 9}, "status": {}});
        let new = json!({"spec": {"size": 9}, "status": {"phase": 1}});
        let said: Vec<String> =
            schema().validate_update(&new, &old, Scope::Status).iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            ["status.phase: Invalid value: \"integer\": phase in body must be of type string: \"integer\""]
        );
        assert_eq!(schema().validate_update(&new, &old, Scope::Whole).len(), 1);
    }
}
