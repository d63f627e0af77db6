//! The machinery of the Kubernetes API as pure functions over JSON values.
//!
//! What kube-apiserver computes between the request and the store: decoding, schemas, CEL, server-side apply,
//! patches, selectors and tables. Results and error messages are those of Kubernetes 1.35, because clients
//! compare both. There is no I/O, no async runtime and no HTTP: a function gets values and returns values or
//! errors, and the caller chooses the status code. Input is untrusted: nesting, cost and memory are bounded.
//!
//! ```text
//!   bytes ─► decode, protobuf ─► object ─► patch, apply ─► schema ─► object to store
//!                                            │    ▲           │ prune, default, validate: cel, format, meta
//!                                            │    └── Types ◄─┘
//!                                            └─► admission_policy: cel
//!
//!   CustomResourceDefinition ─► crd ─► schema, table
//!   stored objects ─► selector ─► table: jsonpath ─► list or watch
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`decode`], [`protobuf`] | strict decoders of JSON, YAML and Kubernetes' protobuf |
//! | [`object`], [`meta`] | accessors of API objects; coercion and validation of `metadata` |
//! | [`schema`] | structural schemas: pruning, defaulting, validation, ratcheting, CEL rules |
//! | [`crd`] | defaulting and validation of CustomResourceDefinitions |
//! | [`admission_policy`] | ValidatingAdmissionPolicy and match conditions, in CEL |
//! | [`apply`] | server-side apply and `managedFields` |
//! | [`audit`] | audit policies: at which level a request is recorded |
//! | [`patch`] | JSON patch, merge patch, strategic merge patch |
//! | [`selector`] | label and field selectors |
//! | [`jsonpath`], [`table`] | printer columns and the tables of `kubectl get` |
//! | [`names`], [`mod@format`], [`quantity`], [`time`] | rules of names and strings; quantities; times and ages |
//! | [`go_format`] | values as Go prints them |
//! | [`fair_queue`] | priority and fairness: whose request computes next |
//! | [`storage_quota`] | limits of the objects and bytes of a plane |
//! | [`RequestVerb`] | the verbs of requests |
//! | [`clock`], [`random`] | wall-clock time and randomness, which tests replace |
//!
//! Any crate may depend on this one; it depends on no other crate of the workspace.
//!
//! # Schemas
//!
//! ```
//! use polis_apimachinery::schema::Schema;
//! use serde_json::json;
//!
//! let schema = Schema::parse(&json!({"type": "object", "properties": {"spec": {
//!     "type": "object",
//!     "properties": {"min": {"type": "integer", "default": 1}, "max": {"type": "integer", "maximum": 9}},
//!     "x-kubernetes-validations": [{"rule": "self.min <= self.max"}],
//! }}}))?;
//! let mut object = json!({"spec": {"max": 0, "typo": true}});
//! assert_eq!(schema.prune_and_default(&mut object)?, ["spec.typo"]);
//! assert_eq!(object, json!({"spec": {"min": 1, "max": 0}}));
//! let errors = schema.validate_create(&object);
//! assert!(errors[0].to_string().ends_with("failed rule: self.min <= self.max"));
//! # Ok::<(), polis_apimachinery::ValidationError>(())
//! ```
//!
//! # Server-side apply
//!
//! ```
//! use polis_apimachinery::apply::{self, ApplyError, FieldSet, Types, WriteContext};
//! use polis_apimachinery::schema::Schema;
//! use serde_json::json;
//!
//! let schema = Schema::parse(&json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}))?;
//! let types = Types::from_schema(schema.root());
//! let context = WriteContext {
//!     versions: &[("example.com/v1", &types)],
//!     api_version: "example.com/v1",
//!     kind: "Widget",
//!     subresource: "",
//!     reset: &FieldSet::EMPTY,
//!     now: "2026-01-01T00:00:00Z",
//! };
//! let mk_config = |size| {
//!     json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {}, "spec": {"size": size}})
//! };
//! let live = apply::apply(&context, None, &mk_config(1), "first", false).unwrap();
//! let second = apply::apply(&context, Some(&live), &mk_config(2), "second", false);
//! let Err(ApplyError::Conflicts(conflicts)) = second else { panic!("`first` owns the field") };
//! assert_eq!(conflicts[0].field, ".spec.size");
//! # Ok::<(), polis_apimachinery::ValidationError>(())
//! ```
//!
//! # Patches
//!
//! ```
//! use polis_apimachinery::patch;
//! use serde_json::json;
//!
//! let object = json!({"spec": {"a": 1, "b": 2}});
//! let merged = patch::merge::patch(&object, &json!({"spec": {"b": null}}))?;
//! let operations = json!([{"op": "add", "path": "/spec/c", "value": 3}]);
//! assert_eq!(patch::json::patch(&merged, &operations)?, json!({"spec": {"a": 1, "c": 3}}));
//! # Ok::<(), polis_apimachinery::patch::PatchError>(())
//! ```
//!
//! # Selectors
//!
//! ```
//! use polis_apimachinery::selector::{FieldSelector, LabelSelector, field_text};
//! use serde_json::json;
//!
//! let object = json!({"metadata": {"name": "a", "labels": {"city": "dfw"}}});
//! assert!(LabelSelector::parse("city in (dfw, ord), !drained")?.matches_object(&object));
//! let fields = FieldSelector::parse("metadata.name!=b")?;
//! assert!(fields.matches(|path| field_text(&object, path)));
//! # Ok::<(), polis_apimachinery::selector::SelectorError>(())
//! ```
//!
//! # Tables and JSONPath
//!
//! ```
//! use polis_apimachinery::jsonpath::JsonPath;
//! use polis_apimachinery::table::{Columns, IncludeObject};
//! use serde_json::json;
//!
//! let conditions = json!([{"type": "Ready", "status": "True"}]);
//! let object = json!({"metadata": {"name": "a"}, "status": {"conditions": conditions}});
//! let path = ".status.conditions[?(@.type==\"Ready\")].status";
//! assert_eq!(JsonPath::parse(path)?.first(&object), Some(&json!("True")));
//!
//! let columns = Columns::custom(&[json!({"name": "Ready", "type": "string", "jsonPath": path})]);
//! let table = columns.table(&object, IncludeObject::None, true, "2026-01-01T00:00:00Z".parse().unwrap());
//! assert_eq!(table["rows"][0]["cells"], json!(["a", "True"]));
//! # Ok::<(), polis_apimachinery::jsonpath::PathError>(())
//! ```
//!
//! # Admission policies
//!
//! ```
//! use polis_apimachinery::admission_policy::{CompiledPolicy, PolicyInputs};
//! use serde_json::{Value, json};
//!
//! let policy = CompiledPolicy::compile(&json!({"spec": {"validations": [
//!     {"expression": "object.spec.replicas <= 5", "message": "at most 5 replicas"},
//! ]}}))
//! .unwrap();
//! let decision = policy.evaluate(&PolicyInputs {
//!     object: &json!({"spec": {"replicas": 9}}),
//!     old_object: &Value::Null,
//!     request: &json!({"operation": "CREATE"}),
//!     params: &Value::Null,
//!     namespace_object: &Value::Null,
//! });
//! assert_eq!(decision.denials[0].message, "at most 5 replicas");
//! ```

// `pub` in this crate means public.
#![warn(unreachable_pub)]

pub mod admission_policy;
pub mod apply;
pub mod audit;
mod cel;
pub mod clock;
pub mod crd;
pub mod decode;
mod error;
pub mod fair_queue;
pub mod format;
pub mod go_format;
pub mod jsonpath;
pub mod meta;
pub mod names;
pub mod object;
pub mod patch;
pub mod protobuf;
pub mod quantity;
pub mod random;
pub mod schema;
pub mod selector;
pub mod storage_quota;
pub mod table;
pub mod time;
mod verb;

pub use error::{ValidationError, ValidationErrorKind, aggregate};
pub use verb::RequestVerb;
