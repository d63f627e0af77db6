//! OpenAPI definitions of the built-in kinds.
//!
//! Types and descriptions come from `k8s-openapi`; what that crate leaves out (how lists merge) is in [`MERGING`].

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

/// How lists and maps merge: definition, field (empty for the definition itself), then the merge.
enum Merge {
    /// A list replaced as one.
    Atomic,
    /// A map replaced as one.
    AtomicMap,
    /// A set of strings.
    Set,
    /// A list of objects known by a key; strategic patches merge it too.
    Map(&'static str),
    /// The same, but strategic patches replace it.
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

/// Definitions that hold any JSON, whatever the generated schema says.
const OPEN: &[&str] = &[
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1",
    "io.k8s.apimachinery.pkg.runtime.RawExtension",
];

/// Kinds that are listed and never there; nothing is said about them but that they have metadata.
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
        let mut all: BTreeMap<String, Value> = generator.take_definitions(true).into_iter().map(|(name, schema)| (name, tidy(schema))).collect();
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
            let place = if field.is_empty() { Some(schema) } else { schema.pointer_mut(&format!("/properties/{field}")) };
            if let Some(Value::Object(place)) = place {
                place.extend(merge.extensions());
            }
        }
        all
    })
}

/// The definition of a kind of which only type and metadata are known.
fn only_metadata(all: &BTreeMap<String, Value>, kind: &str) -> Value {
    let like = &all["io.k8s.api.core.v1.ServiceAccount"]["properties"];
    let properties: Map<String, Value> = ["apiVersion", "kind", "metadata"]
        .into_iter()
        .map(|field| (field.to_owned(), like[field].clone()))
        .collect();
    let description = format!("{kind}: a plane runs nothing itself, so there is none.");
    json!({"description": description, "type": "object", "properties": properties})
}

/// Brings a generated schema into OpenAPI's words: references into `components`, no `null` in types.
fn tidy(schema: Value) -> Value {
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
            Value::Object(map.into_iter().map(|(name, value)| (name, tidy(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(tidy).collect()),
        other => other,
    }
}

/// The definition of a kind, as published.
pub(crate) fn root_definition(name: &str) -> Value {
    definitions().get(name).cloned().unwrap_or_else(|| json!({"type": "object"}))
}

/// The definition of a kind with every reference replaced by what it refers to: the form schemas are checked in.
pub(crate) fn inlined(name: &str) -> Value {
    let mut schema = inline(&root_definition(name), &mut vec![name.to_owned()]);
    drop_required(&mut schema);
    schema
}

/// What a built-in kind requires is checked with the kind; its schema says only of which type everything is.
fn drop_required(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("required").is_some_and(Value::is_array) {
                fields.remove("required");
            }
            // Base64 is checked with the kinds that hold it, where the empty text is fine.
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
                // JSON schemas within CRDs contain themselves; they have their own check.
                if within.iter().any(|outer| outer == name) {
                    return json!({"x-kubernetes-preserve-unknown-fields": true});
                }
                within.push(name.to_owned());
                let mut target = inline(&root_definition(name), within);
                within.pop();
                if let Value::Object(target) = &mut target {
                    // What stands beside the reference (how a list merges) adds to what it refers to.
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
    fn every_merge_rule_names_a_place_that_exists() {
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
    fn an_inlined_definition_refers_to_nothing() {
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
