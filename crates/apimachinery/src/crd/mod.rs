//! CustomResourceDefinitions: defaulting and validation, with the errors of Kubernetes.
//!
//! ```
//! use polis_apimachinery::crd;
//! use serde_json::json;
//!
//! let mut definition = json!({"metadata": {"name": "widgets.example.com"}, "spec": {
//!     "group": "example.com", "scope": "Namespaced",
//!     "names": {"plural": "widgets", "kind": "Widget"},
//!     "versions": [{"name": "v1", "served": true, "storage": true,
//!                   "schema": {"openAPIV3Schema": {"type": "object"}}}],
//! }});
//! crd::apply_defaults(&mut definition);
//! assert_eq!(definition["spec"]["names"]["listKind"], "WidgetList");
//! definition["metadata"]["name"] = json!("gadgets");
//! assert_eq!(crd::validate(&definition, None)[0].field, "metadata.name");
//! ```

mod omit_empty;
mod validation;

pub use omit_empty::unknown_formats;
pub use validation::validate;

use serde_json::{Value, json};

/// Applies the defaults of names and conversion, and normalizes the schemas.
pub fn apply_defaults(object: &mut Value) {
    let kind = object["spec"]["names"]["kind"].as_str().unwrap_or_default().to_owned();
    let spec = &mut object["spec"];
    if !spec.is_object() {
        return;
    }
    for (field, value) in [("singular", kind.to_lowercase()), ("listKind", format!("{kind}List"))] {
        if spec["names"][field].as_str().unwrap_or_default().is_empty() && !kind.is_empty() {
            spec["names"][field] = value.into();
        }
    }
    for version in spec["versions"].as_array_mut().into_iter().flatten() {
        version.pointer_mut("/schema/openAPIV3Schema").into_iter().for_each(omit_empty::omit_empty);
    }
    if spec["conversion"].is_null() {
        spec["conversion"] = json!({"strategy": "None"});
    }
}
