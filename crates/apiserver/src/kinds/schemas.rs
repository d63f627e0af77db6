//! OpenAPI definitions of the built-in kinds.
//!
//! Types and descriptions come from `k8s-openapi`. That crate has no merge strategies of lists and maps; they
//! are in [`MERGING`].

use std::{collections::BTreeMap, sync::OnceLock};

use k8s_openapi::{
    api::{
        admissionregistration::v1 as admission, authentication::v1 as authentication,
        authorization::v1 as authorization, coordination::v1 as coordination, core::v1 as core,
        events::v1 as events, rbac::v1 as rbac,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions,
    apimachinery::pkg::apis::meta::v1 as meta,
};
use schemars::SchemaGenerator;
use serde_json::{Map, Value, json};

/// The merge strategy of a list or map.
enum Merge {
    /// A list that is replaced as a whole.
    Atomic,
    /// A map that is replaced as a whole.
    AtomicMap,
    /// A set of strings.
    Set,
    /// A list of objects with a merge key, also in strategic merge patches.
    Map(&'static str),
    /// A list of objects with a merge key for apply; strategic merge patches replace it.
    MapReplaced(&'static str),
}

const MERGING: &[(&str, &str, Merge)] = &[
    ("io.k8s.api.admissionregistration.v1.MatchResources", "", Merge::AtomicMap),
    ("io.k8s.api.admissionregistration.v1.MatchResources", "excludeResourceRules", Merge::Atomic),
    ("io.k8s.api.admissionregistration.v1.MatchResources", "resourceRules", Merge::Atomic),
    ("io.k8s.api.admissionregistration.v1.MutatingWebhook", "admissionReviewVersions", Merge::Atomic),
    ("io.k8s.api.admissionregistration.v1.MutatingWebhook", "matchConditions", Merge::Map("name")),
    ("io.k8s.api.admissionregistration.v1.MutatingWebhook", "rules", Merge::Atomic),
    ("io.k8s.api.admissionregistration.v1.MutatingWebhookConfiguration", "webhooks", Merge::Map("name")),
    ("io.k8s.api.admissionregistration.v1.NamedRuleWithOperations", "", Merge::AtomicMap),
    ("io.k8s.api.admissionregistration.v1.ParamKind", "", Merge::AtomicMap),
    ("io.k8s.api.admissionregistration.v1.ParamRef", "", Merge::AtomicMap),
    ("io.k8s.api.admissionregistration.v1.RuleWithOperations", "apiGroups", Merge::Atomic),
    ("io.k8s.api.admissionregistration.v1.RuleWithOperations", "apiVersions", Merge::Atomic),
    ("io.k8s.api.admissionregistration.v1.RuleWithOperations", "operations", Merge::Atomic),
    ("io.k8s.api.admissionregistration.v1.RuleWithOperations", "resources", Merge::Atomic),
    ("io.k8s.api.admissionregistration.v1.TypeChecking", "expressionWarnings", Merge::Atomic),
    (
        "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec",
        "validationActions",
        Merge::Set,
    ),
    ("io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicySpec", "auditAnnotations", Merge::Atomic),
    (
        "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicySpec",
        "matchConditions",
        Merge::Map("name"),
    ),
    ("io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicySpec", "validations", Merge::Atomic),
    ("io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicySpec", "variables", Merge::Map("name")),
    (
        "io.k8s.api.admissionregistration.v1.ValidatingAdmissionPolicyStatus",
        "conditions",
        Merge::MapReplaced("type"),
    ),
    ("io.k8s.api.admissionregistration.v1.ValidatingWebhook", "admissionReviewVersions", Merge::Atomic),
    ("io.k8s.api.admissionregistration.v1.ValidatingWebhook", "matchConditions", Merge::Map("name")),
    ("io.k8s.api.admissionregistration.v1.ValidatingWebhook", "rules", Merge::Atomic),
    ("io.k8s.api.admissionregistration.v1.ValidatingWebhookConfiguration", "webhooks", Merge::Map("name")),
    ("io.k8s.api.admissionregistration.v1.Variable", "", Merge::AtomicMap),
    ("io.k8s.api.core.v1.LocalObjectReference", "", Merge::AtomicMap),
    ("io.k8s.api.core.v1.NamespaceSpec", "finalizers", Merge::Atomic),
    ("io.k8s.api.core.v1.NamespaceStatus", "conditions", Merge::Map("type")),
    ("io.k8s.api.core.v1.ObjectReference", "", Merge::AtomicMap),
    ("io.k8s.api.core.v1.ServiceAccount", "imagePullSecrets", Merge::Atomic),
    ("io.k8s.api.core.v1.ServiceAccount", "secrets", Merge::Map("name")),
    ("io.k8s.api.rbac.v1.AggregationRule", "clusterRoleSelectors", Merge::Atomic),
    ("io.k8s.api.rbac.v1.ClusterRole", "rules", Merge::Atomic),
    ("io.k8s.api.rbac.v1.ClusterRoleBinding", "subjects", Merge::Atomic),
    ("io.k8s.api.rbac.v1.Role", "rules", Merge::Atomic),
    ("io.k8s.api.rbac.v1.RoleBinding", "subjects", Merge::Atomic),
    ("io.k8s.api.rbac.v1.RoleRef", "", Merge::AtomicMap),
    ("io.k8s.api.rbac.v1.Subject", "", Merge::AtomicMap),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionNames",
        "categories",
        Merge::Atomic,
    ),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionNames",
        "shortNames",
        Merge::Atomic,
    ),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionSpec",
        "versions",
        Merge::Atomic,
    ),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionStatus",
        "conditions",
        Merge::MapReplaced("type"),
    ),
    (
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionStatus",
        "storedVersions",
        Merge::Atomic,
    ),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector", "", Merge::AtomicMap),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector", "matchExpressions", Merge::Atomic),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "finalizers", Merge::Set),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "managedFields", Merge::Atomic),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "ownerReferences", Merge::Map("uid")),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference", "", Merge::AtomicMap),
];

/// Definitions that accept any JSON. The generated schemas are too narrow.
const OPEN: &[&str] = &[
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1",
    "io.k8s.apimachinery.pkg.runtime.RawExtension",
];

/// Kinds without objects. Their schema is metadata only.
const EMPTY: [&str; 3] = ["Node", "Pod", "Service"];

impl Merge {
    fn extensions(&self) -> Map<String, Value> {
        let extensions = match self {
            Self::Atomic => json!({"x-kubernetes-list-type": "atomic"}),
            Self::AtomicMap => json!({"x-kubernetes-map-type": "atomic"}),
            Self::Set => json!({"x-kubernetes-list-type": "set", "x-kubernetes-patch-strategy": "merge"}),
            Self::Map(key) => {
                json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key], "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": key})
            }
            Self::MapReplaced(key) => {
                json!({"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]})
            }
        };
        match extensions {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }
}

/// All definitions by name, with references of the form `#/components/schemas/<name>`.
pub(crate) fn definitions() -> &'static BTreeMap<String, Value> {
    static DEFINITIONS: OnceLock<BTreeMap<String, Value>> = OnceLock::new();
    DEFINITIONS.get_or_init(|| {
        let mut generator = SchemaGenerator::default();
        macro_rules! include {
            ($($kind:ty),* $(,)?) => { $( let _ = generator.subschema_for::<$kind>(); )* };
        }
        include!(
            core::ConfigMap,
            core::Event,
            core::Namespace,
            core::Secret,
            core::ServiceAccount,
            events::Event,
            coordination::Lease,
            rbac::ClusterRole,
            rbac::ClusterRoleBinding,
            rbac::Role,
            rbac::RoleBinding,
            apiextensions::CustomResourceDefinition,
            admission::MutatingWebhookConfiguration,
            admission::ValidatingWebhookConfiguration,
            admission::ValidatingAdmissionPolicy,
            admission::ValidatingAdmissionPolicyBinding,
            authentication::SelfSubjectReview,
            authentication::TokenRequest,
            authentication::TokenReview,
            authorization::LocalSubjectAccessReview,
            authorization::SelfSubjectAccessReview,
            authorization::SelfSubjectRulesReview,
            authorization::SubjectAccessReview,
            meta::DeleteOptions,
            meta::Status,
            meta::ListMeta,
            meta::ObjectMeta,
        );
        let mut all: BTreeMap<String, Value> = generator.take_definitions(true).into_iter().map(|(name, schema)| (name, to_openapi(schema))).collect();
        for name in OPEN {
            if let Some(schema) = all.get_mut(*name) {
                *schema = json!({"description": schema["description"], "x-kubernetes-preserve-unknown-fields": true});
            }
        }
        for name in EMPTY {
            all.insert(format!("io.k8s.api.core.v1.{name}"), only_metadata(&all, name));
        }
        for (definition, field, merge) in MERGING {
            let Some(schema) = all.get_mut(*definition) else { continue };
            let target = if field.is_empty() { Some(schema) } else { schema.pointer_mut(&format!("/properties/{field}")) };
            if let Some(Value::Object(target)) = target {
                target.extend(merge.extensions());
            }
        }
        all
    })
}

/// A definition with type and metadata only.
fn only_metadata(all: &BTreeMap<String, Value>, kind: &str) -> Value {
    let like = &all["io.k8s.api.core.v1.ServiceAccount"]["properties"];
    let properties: Map<String, Value> = ["apiVersion", "kind", "metadata"]
        .into_iter()
        .map(|field| (field.to_owned(), like[field].clone()))
        .collect();
    let description = format!("{kind}: a plane runs nothing itself, so there is none.");
    json!({"description": description, "type": "object", "properties": properties})
}

/// Converts a generated schema to OpenAPI: references point into `components`.
fn to_openapi(schema: Value) -> Value {
    match schema {
        Value::Object(map) => {
            let reference = map
                .get("$ref")
                .and_then(Value::as_str)
                .map(|target| target.rsplit('/').next().unwrap_or_default().to_owned());
            if let Some(name) = reference {
                let reference = json!({"$ref": format!("#/components/schemas/{name}")});
                return match map.get("description") {
                    Some(description) => json!({"description": description, "allOf": [reference]}),
                    None => reference,
                };
            }
            Value::Object(map.into_iter().map(|(name, value)| (name, to_openapi(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(to_openapi).collect()),
        other => other,
    }
}

/// The published definition of a kind.
pub(crate) fn root_definition(name: &str) -> Value {
    definitions().get(name).cloned().unwrap_or_else(|| json!({"type": "object"}))
}

/// The definition of a kind with all references inlined, as structural schemas require.
pub(crate) fn inlined(name: &str) -> Value {
    let mut schema = inline(&root_definition(name), &mut vec![name.to_owned()]);
    drop_required(&mut schema);
    schema
}

/// Removes `required`: the validation of each built-in kind checks required fields; the schema only checks
/// types.
fn drop_required(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("required").is_some_and(Value::is_array) {
                fields.remove("required");
            }
            // The kinds with base64 fields validate them; they accept the empty string.
            if fields.get("format").is_some_and(|format| format == "byte") {
                fields.remove("format");
            }
            fields.values_mut().for_each(drop_required);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_required),
        _ => {}
    }
}

fn inline(schema: &Value, within: &mut Vec<String>) -> Value {
    match schema {
        Value::Object(map) => {
            let reference = match map.get("allOf").and_then(Value::as_array).map(Vec::as_slice) {
                Some([only]) => only.get("$ref"),
                _ => map.get("$ref"),
            };
            if let Some(name) = reference.and_then(Value::as_str).and_then(|target| target.rsplit('/').next())
            {
                // JSONSchemaProps of CRDs is recursive; CRD validation checks it.
                if within.iter().any(|outer| outer == name) {
                    return json!({"x-kubernetes-preserve-unknown-fields": true});
                }
                within.push(name.to_owned());
                let mut target = inline(&root_definition(name), within);
                within.pop();
                if let Value::Object(target) = &mut target {
                    // Extensions beside the reference (merge strategies) are added to the target.
                    target.extend(
                        map.iter()
                            .filter(|(key, _)| key.starts_with("x-kubernetes-"))
                            .map(|(key, value)| (key.clone(), value.clone())),
                    );
                }
                return target;
            }
            map.iter().map(|(key, value)| (key.clone(), inline(value, within))).collect()
        }
        Value::Array(items) => items.iter().map(|item| inline(item, within)).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_merge_strategy_names_an_existing_field() {
        for (definition, field, _) in MERGING {
            let schema =
                definitions().get(*definition).unwrap_or_else(|| panic!("{definition} is not defined"));
            assert!(
                field.is_empty() || schema.pointer(&format!("/properties/{field}")).is_some(),
                "{definition}.{field}"
            );
        }
    }

    #[test]
    fn an_inlined_definition_has_no_references() {
        let text =
            inlined("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition")
                .to_string();
        assert!(!text.contains("$ref\":\"#"), "{}", &text[..400.min(text.len())]);
        assert!(
            inlined("io.k8s.api.core.v1.Namespace")
                .pointer("/properties/metadata/properties/finalizers/x-kubernetes-list-type")
                .is_some()
        );
    }
}
