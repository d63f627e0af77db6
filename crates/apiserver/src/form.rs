//! The form of an object in one version: what is pruned, filled in and checked when it is written.

use serde_json::{Value, json};

use crate::{
    apply::Types,
    kinds::definitions,
    schema::{FieldError, FieldErrorKind, Node, Schema, Scope, meta, node::Kind, shape},
    status::Failure,
};

/// A compiled schema.
pub(crate) struct Form {
    schema: Schema,
    /// How lists and maps merge.
    types: Types,
    custom: bool,
}

/// Schemas that come here were checked when their CRD was written, or are our own; one that does not parse (an old
/// store under a stricter program) accepts everything rather than nothing.
fn parse(raw: &Value) -> Schema {
    let open = || Schema::parse(&json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
    Schema::parse(raw)
        .or_else(|_| open())
        .unwrap_or_else(|error| unreachable!("the open schema parses: {error}"))
}

impl Form {
    /// The form of a built-in kind.
    pub(crate) fn of_builtin(raw: &Value, definition: &str) -> Self {
        Self { schema: parse(raw), types: Types::from_openapi(definitions(), definition), custom: false }
    }

    /// The form that a CRD version defines.
    pub(crate) fn of_custom(raw: &Value) -> Self {
        let schema = parse(raw);
        let types = Types::from_schema(schema.root());
        Self { schema, types, custom: true }
    }

    pub(crate) fn types(&self) -> &Types {
        &self.types
    }

    pub(crate) fn node(&self) -> &Node {
        self.schema.root()
    }

    /// Brings an object into form: nulls and unknown fields out, defaults in. Answers where unknown fields stood.
    /// The result of an apply keeps the nulls that it made.
    pub(crate) fn shape(&self, object: &mut Value, applied: bool) -> Result<Vec<String>, Failure> {
        if self.custom {
            let shaped = if applied { self.schema.shape_applied(object) } else { self.schema.shape(object) };
            return shaped.map_err(|error| Failure::bad_request(error.to_string()));
        }
        let mut unknown = Vec::new();
        if let Some(metadata) = object.get_mut("metadata") {
            meta::coerce(metadata, "metadata", Some(&mut unknown)).map_err(Failure::bad_request)?;
        }
        drop_nulls(self.node(), object);
        if let Some(fault) = self
            .schema
            .validate_create(object)
            .into_iter()
            .find(|fault| fault.kind == FieldErrorKind::TypeInvalid)
        {
            let found = fault
                .value
                .as_ref()
                .and_then(Value::as_str)
                .unwrap_or("value")
                .replace("integer", "number")
                .replace("boolean", "bool");
            return Err(Failure::bad_request(format!(
                "json: cannot unmarshal {found} into Go struct field {} of type another",
                fault.field
            )));
        }
        shape::prune(self.node(), object, true, Some(&mut unknown));
        Ok(unknown)
    }

    /// Whether values fit: types and bounds, list keys, embedded resources.
    pub(crate) fn faults(&self, object: &Value, old: Option<&Value>, scope: Scope) -> Vec<FieldError> {
        match old {
            Some(old) if self.custom => self.schema.validate_update(object, old, scope),
            // Types were checked when the object was read; what the server added since is right.
            _ if !self.custom => self
                .schema
                .validate_create(object)
                .into_iter()
                .filter(|fault| fault.kind != FieldErrorKind::TypeInvalid)
                .collect(),
            _ => self.schema.validate_create(object),
        }
    }

    /// Fills in the defaults of a custom kind and touches nothing else.
    pub(crate) fn fill_in(&self, object: &mut Value) {
        shape::default(self.node(), object);
    }

    /// Reading an object that was written under another schema: as [`Form::shape`], with nobody to tell.
    pub(crate) fn reshape(&self, object: &mut Value) {
        self.schema.shape_stored(object);
    }
}

/// A null is nothing given, as in Go; in a map of texts it is the empty text.
fn drop_nulls(node: &Node, object: &mut Value) {
    if let Value::Object(fields) = object {
        fields.retain(|_, value| !value.is_null());
        for (name, value) in fields.iter_mut() {
            let texts = node
                .property(name)
                .and_then(Node::additional_schema)
                .is_some_and(|entry| entry.kind == Kind::String);
            if let Value::Object(map) = value
                && texts
            {
                map.values_mut().filter(|value| value.is_null()).for_each(|value| *value = "".into());
            }
        }
    }
    shape::drop_nulls(node, object);
}
