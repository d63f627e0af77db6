//! The schema of one version of a kind: pruning, defaulting and validation of objects, and their merge types.

use polis_apimachinery::{
    ValidationError, ValidationErrorKind,
    apply::Types,
    meta,
    schema::{JsonType, Node, Schema, ValidationScope, prune_and_default},
};
use serde_json::{Value, json};

use crate::{kinds::definitions, status::StatusError};

/// The compiled schema of one version of a built-in or custom kind.
pub(crate) struct VersionedSchema {
    schema: Schema,
    /// The merge types for server-side apply and strategic merge patch.
    types: Types,
    custom: bool,
    /// Why the schema does not parse. Then existing objects stay readable and no write is valid.
    parse_error: Option<ValidationError>,
}

/// Parses a schema. It is built in or was validated with its CRD. One that does not parse nevertheless
/// (stored by an older, less strict version) is replaced by the open schema, for reads, and the error is
/// returned.
fn parse(raw: &Value) -> (Schema, Option<ValidationError>) {
    let open = || Schema::parse(&json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}));
    match Schema::parse(raw) {
        Ok(schema) => (schema, None),
        Err(error) => {
            tracing::error!(%error, "failed to parse the schema of a CRD; writes of its objects are refused; correct the schema");
            let schema = open().unwrap_or_else(|error| unreachable!("the open schema parses: {error}"));
            let why = format!(
                "the schema of the CustomResourceDefinition is invalid and must be corrected: {error}"
            );
            (schema, Some(ValidationError::internal("", why)))
        }
    }
}

impl VersionedSchema {
    /// The schema of a built-in kind.
    pub(crate) fn of_builtin(raw: &Value, definition: &str) -> Self {
        let (schema, parse_error) = parse(raw);
        Self { schema, types: Types::from_openapi(definitions(), definition), custom: false, parse_error }
    }

    /// The schema of a CRD version.
    pub(crate) fn of_custom(raw: &Value) -> Self {
        let (schema, parse_error) = parse(raw);
        let types = Types::from_schema(schema.root());
        Self { schema, types, custom: true, parse_error }
    }

    pub(crate) fn types(&self) -> &Types {
        &self.types
    }

    pub(crate) fn node(&self) -> &Node {
        self.schema.root()
    }

    /// Drops nulls and unknown fields and applies defaults. Returns the paths of unknown fields. The result
    /// of an apply (`applied`) keeps the nulls that the apply created.
    pub(crate) fn prune_and_default(
        &self,
        object: &mut Value,
        applied: bool,
    ) -> Result<Vec<String>, StatusError> {
        if self.custom {
            let unknown = if applied {
                self.schema.prune_and_default_applied(object)
            } else {
                self.schema.prune_and_default(object)
            };
            return unknown.map_err(|error| StatusError::bad_request(error.to_string()));
        }
        let mut unknown = Vec::new();
        if let Some(metadata) = object.get_mut("metadata") {
            meta::coerce(metadata, "metadata", Some(&mut unknown)).map_err(StatusError::bad_request)?;
        }
        drop_nulls(self.node(), object);
        if let Some(error) = self
            .schema
            .validate_create(object)
            .into_iter()
            .find(|error| error.kind == ValidationErrorKind::TypeInvalid)
        {
            let json_type = error
                .value
                .as_ref()
                .and_then(Value::as_str)
                .unwrap_or("value")
                .replace("integer", "number")
                .replace("boolean", "bool");
            return Err(StatusError::bad_request(format!(
                "json: cannot unmarshal {json_type} into Go struct field {} of type another",
                error.field
            )));
        }
        prune_and_default::prune(self.node(), object, true, Some(&mut unknown));
        Ok(unknown)
    }

    /// Validates an object: types and bounds, list keys, embedded resources.
    pub(crate) fn validate(
        &self,
        object: &Value,
        old: Option<&Value>,
        scope: ValidationScope,
    ) -> Vec<ValidationError> {
        if let Some(error) = &self.parse_error {
            return vec![error.clone()];
        }
        match old {
            Some(old) if self.custom => self.schema.validate_update(object, old, scope),
            // The types were checked when the object was decoded; fields added by the server have the right
            // types.
            _ if !self.custom => self
                .schema
                .validate_create(object)
                .into_iter()
                .filter(|error| error.kind != ValidationErrorKind::TypeInvalid)
                .collect(),
            _ => self.schema.validate_create(object),
        }
    }

    /// Applies the defaults of a custom kind and changes nothing else.
    pub(crate) fn apply_defaults(&self, object: &mut Value) {
        prune_and_default::default(self.node(), object);
    }

    /// Prunes and defaults an object read from the store, which may have been written with an older schema.
    pub(crate) fn prune_and_default_stored(&self, object: &mut Value) {
        self.schema.prune_and_default_stored(object);
    }
}

/// Drops nulls as Go's decoder does: a null field is absent, a null in a `map[string]string` is the empty
/// string.
fn drop_nulls(node: &Node, object: &mut Value) {
    if let Value::Object(fields) = object {
        fields.retain(|_, value| !value.is_null());
        for (name, value) in fields.iter_mut() {
            let texts = node
                .property(name)
                .and_then(Node::additional_schema)
                .is_some_and(|entry| entry.json_type == JsonType::String);
            if let Value::Object(map) = value
                && texts
            {
                map.values_mut().filter(|value| value.is_null()).for_each(|value| *value = "".into());
            }
        }
    }
    prune_and_default::drop_nulls(node, object);
}
