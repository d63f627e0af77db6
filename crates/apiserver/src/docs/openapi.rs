//! Builds OpenAPI v3 documents, one per group version, and the v2 document from them.
//!
//! kubectl uses the schemas (`kubectl explain`) and checks whether PATCH has a `fieldValidation` parameter.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use serde_json::{Map, Value, json};

use super::Document;
use crate::kinds::{Kind, Kinds, Version, builtins, definitions, root_definition};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";

/// All documents by path. All catalogues share the documents of built-in groups.
pub(super) fn documents(kinds: &Kinds) -> BTreeMap<String, Arc<Document>> {
    static BUILT_IN: OnceLock<BTreeMap<String, Arc<Document>>> = OnceLock::new();
    let shared = BUILT_IN.get_or_init(|| {
        grouped(builtins()).into_iter().map(|(path, members)| build(path, &members)).collect()
    });
    let shared_or_built = |(path, members): (String, Vec<(&Kind, &Version)>)| match shared.get(&path) {
        Some(document) if !members.iter().any(|(kind, _)| kind.is_custom()) => (path, document.clone()),
        _ => build(path, &members),
    };
    grouped(kinds.iter()).into_iter().map(shared_or_built).collect()
}

fn build(path: String, members: &[(&Kind, &Version)]) -> (String, Arc<Document>) {
    let document = Document::new(&document(&path, members));
    (path, Arc::new(document))
}

/// Every served version of every kind, by the path of its document.
fn grouped<'a>(
    kinds: impl IntoIterator<Item = &'a Arc<Kind>>,
) -> BTreeMap<String, Vec<(&'a Kind, &'a Version)>> {
    let mut grouped: BTreeMap<String, Vec<(&Kind, &Version)>> = BTreeMap::new();
    for kind in kinds {
        for version in kind.versions.iter().filter(|version| version.served) {
            let path = if kind.group.is_empty() {
                format!("api/{}", version.name)
            } else {
                format!("apis/{}", version.api_version)
            };
            grouped.entry(path).or_default().push((kind, version));
        }
    }
    grouped
}

/// The name of a kind's definition: the group's labels reversed, then version and kind.
fn definition_name(kind: &Kind, version: &Version) -> String {
    match kind.rules() {
        Some(rules) => rules.definition.to_owned(),
        None => {
            let mut labels: Vec<&str> = kind.group.split('.').collect();
            labels.reverse();
            format!("{}.{}.{}", labels.join("."), version.name, kind.kind)
        }
    }
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn document(path: &str, members: &[(&Kind, &Version)]) -> Value {
    let mut schemas: BTreeMap<String, Value> = BTreeMap::new();
    let mut paths = Map::new();
    for (kind, version) in members {
        let name = definition_name(kind, version);
        let marks = json!([{"group": kind.group, "kind": kind.kind, "version": version.name}]);
        let mut schema = match kind.rules() {
            Some(rules) => root_definition(rules.definition),
            None => custom_schema(&version.openapi),
        };
        schema["x-kubernetes-group-version-kind"] = marks;
        schemas.insert(name.clone(), schema);
        if kind.rules().is_none_or(|rules| !rules.ephemeral) {
            let list = json!({
                "description": format!("{} is a list of {}", kind.list_kind, kind.kind),
                "type": "object",
                "required": ["items"],
                "properties": {
                    "apiVersion": {"description": "Version of this representation of an object.", "type": "string"},
                    "kind": {"description": "Kind of this object.", "type": "string"},
                    "items": {"description": format!("List of {}.", kind.plural), "type": "array", "items": reference(&name)},
                    "metadata": {"description": "Standard list metadata.", "allOf": [reference(LIST_META)]},
                },
                "x-kubernetes-group-version-kind": [{"group": kind.group, "kind": kind.list_kind, "version": version.name}],
            });
            schemas.insert(format!("{name}List"), list);
        }
        Operations { kind, version, definition: &name }.add_paths(&format!("/{path}"), &mut paths);
    }
    for name in [DELETE_OPTIONS, STATUS, LIST_META, META] {
        schemas.entry(name.to_owned()).or_insert_with(|| root_definition(name));
    }
    include_referenced(&mut schemas);
    json!({"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.35.4"}, "paths": paths, "components": {"schemas": schemas}})
}

/// The schema of a CRD, with `apiVersion`, `kind` and `metadata` added.
fn custom_schema(raw: &Value) -> Value {
    let mut schema = raw.clone();
    if !schema["properties"].is_object() {
        schema["properties"] = json!({});
    }
    let meta = root_definition("io.k8s.api.core.v1.ConfigMap");
    for field in ["apiVersion", "kind"] {
        schema["properties"][field] = meta["properties"][field].clone();
    }
    schema["properties"]["metadata"] =
        json!({"description": "Standard object's metadata.", "allOf": [reference(META)]});
    schema
}

fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(name) = fields
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|target| target.strip_prefix("#/components/schemas/"))
            {
                found.push(name.to_owned());
            }
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

/// Adds every definition that a definition in the set refers to, transitively.
fn include_referenced(schemas: &mut BTreeMap<String, Value>) {
    let mut seen: BTreeSet<String> = schemas.keys().cloned().collect();
    let mut open: Vec<String> = Vec::new();
    schemas.values().for_each(|schema| references(schema, &mut open));
    while let Some(name) = open.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        if let Some(schema) = definitions().get(&name) {
            references(schema, &mut open);
            schemas.insert(name, schema.clone());
        }
    }
}

fn parameter(name: &str, kind: &str, description: &str) -> Value {
    json!({"name": name, "in": "query", "description": description, "schema": {"type": kind, "uniqueItems": true}})
}

fn path_parameter(name: &str, description: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "description": description, "schema": {"type": "string", "uniqueItems": true}})
}

fn content(schema: &Value) -> Value {
    json!({"application/json": {"schema": schema}, "application/yaml": {"schema": schema}})
}

fn with(mut operation: Value, parameters: Vec<Value>, body: Option<Value>) -> Value {
    operation["parameters"] = Value::Array(parameters);
    if let Some(body) = body {
        operation["requestBody"] = json!({"content": body, "required": true});
    }
    operation
}

/// The parameters of a write.
fn write_parameters() -> Vec<Value> {
    vec![
        parameter("dryRun", "string", "When present, indicates that modifications should not be persisted."),
        parameter("fieldManager", "string", "The name of the actor that makes the change."),
        parameter(
            "fieldValidation",
            "string",
            "What to do with unknown or duplicate fields: Ignore, Warn or Strict.",
        ),
    ]
}

/// The operations of a kind, with what clients look for: action, kind and parameters of writes.
struct Operations<'a> {
    kind: &'a Kind,
    version: &'a Version,
    /// The name of the kind's definition.
    definition: &'a str,
}

impl Operations<'_> {
    /// Adds the paths of the collection, of one object and of its status.
    fn add_paths(&self, base: &str, paths: &mut Map<String, Value>) {
        let kind = self.kind;
        let mut parameters = Vec::new();
        let path = if kind.namespaced {
            let description = "object name and auth scope, such as for teams and projects";
            parameters.push(path_parameter("namespace", description));
            format!("{base}/namespaces/{{namespace}}/{}", kind.plural)
        } else {
            format!("{base}/{}", kind.plural)
        };
        paths.insert(path.clone(), self.collection(&parameters));
        if !kind.verbs().contains(&"get") {
            return;
        }
        parameters.push(path_parameter("name", &format!("name of the {}", kind.kind)));
        let mut single = self.single(&parameters, "");
        let body = content(&reference(DELETE_OPTIONS));
        let delete = self.operation("delete", "delete", "", &reference(STATUS));
        single["delete"] = with(delete, Vec::new(), Some(body));
        paths.insert(format!("{path}/{{name}}"), single);
        if self.version.status {
            paths.insert(format!("{path}/{{name}}/status"), self.single(&parameters, "Status"));
        }
    }

    fn object(&self) -> Value {
        reference(self.definition)
    }

    fn operation(&self, action: &str, verb: &str, suffix: &str, schema: &Value) -> Value {
        let Kind { group, kind, namespaced, .. } = self.kind;
        let version = &self.version.name;
        let tag = group.split('.').next().filter(|word| !word.is_empty()).unwrap_or("core");
        let scope = if *namespaced { "Namespaced" } else { "" };
        let id = format!("{verb}{}{}{scope}{kind}{suffix}", capital(tag), capital(version));
        json!({
            "tags": [format!("{tag}_{version}")],
            "operationId": id,
            "responses": {
                "200": {"description": "OK", "content": content(schema)},
                "401": {"description": "Unauthorized"},
            },
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": {"group": group, "kind": kind, "version": version},
        })
    }

    fn collection(&self, parameters: &[Value]) -> Value {
        let verbs = self.kind.verbs();
        let mut collection = json!({"parameters": parameters});
        if verbs.contains(&"create") {
            let create = self.operation("post", "create", "", &self.object());
            collection["post"] = with(create, write_parameters(), Some(content(&self.object())));
        }
        if verbs.contains(&"list") {
            let list = reference(&format!("{}List", self.definition));
            collection["get"] = self.operation("list", "list", "", &list);
        }
        if verbs.contains(&"deletecollection") {
            collection["delete"] =
                self.operation("deletecollection", "deleteCollection", "", &reference(STATUS));
        }
        collection
    }

    /// Reads, replaces and patches one object or its status.
    fn single(&self, parameters: &[Value], suffix: &str) -> Value {
        let object = self.object();
        let put = self.operation("put", "replace", suffix, &object);
        let patch = self.operation("patch", "patch", suffix, &object);
        let mut patch_parameters = write_parameters();
        patch_parameters.push(parameter("force", "boolean", "Apply over conflicts with other managers."));
        json!({
            "parameters": parameters,
            "get": self.operation("get", "read", suffix, &object),
            "put": with(put, write_parameters(), Some(content(&object))),
            "patch": with(patch, patch_parameters, Some(self.patch_body())),
        })
    }

    fn patch_body(&self) -> Value {
        let body = json!({"schema": {"type": "object"}});
        let mut types = json!({
            "application/apply-patch+yaml": body,
            "application/json-patch+json": body,
            "application/merge-patch+json": body,
        });
        if !self.kind.is_custom() {
            types["application/strategic-merge-patch+json"] = body;
        }
        types
    }
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Converts all v3 documents to one OpenAPI v2 document.
pub(super) fn to_v2(documents: impl Iterator<Item = Value>) -> Value {
    let mut schemas = Map::new();
    let mut paths = Map::new();
    for mut document in documents {
        if let Some(Value::Object(found)) = document.pointer_mut("/components/schemas").map(Value::take) {
            schemas.extend(found.into_iter().map(|(name, schema)| (name, downgrade(schema))));
        }
        if let Some(Value::Object(found)) = document.get_mut("paths").map(Value::take) {
            paths.extend(found.into_iter().map(|(path, item)| (path, path_v2(item))));
        }
    }
    json!({"swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1.35.4"}, "paths": paths, "definitions": schemas})
}

/// Converts a v3 schema to v2: drops unsupported keywords and rewrites references.
fn downgrade(schema: Value) -> Value {
    match schema {
        Value::Object(mut fields) => {
            if let Some(only) = fields
                .get("allOf")
                .and_then(Value::as_array)
                .filter(|list| list.len() == 1)
                .and_then(|list| list[0].get("$ref"))
                .cloned()
            {
                fields.remove("allOf");
                fields.insert("$ref".into(), only);
            }
            for gone in ["anyOf", "oneOf", "not", "nullable"] {
                fields.remove(gone);
            }
            Value::Object(
                fields
                    .into_iter()
                    .map(|(name, value)| match (name.as_str(), value) {
                        ("$ref", Value::String(target)) => {
                            (name, Value::String(target.replace("#/components/schemas/", "#/definitions/")))
                        }
                        (_, value) => (name, downgrade(value)),
                    })
                    .collect(),
            )
        }
        Value::Array(items) => Value::Array(items.into_iter().map(downgrade).collect()),
        other => other,
    }
}

fn parameters_v2(parameters: &Value) -> Vec<Value> {
    parameters
        .as_array()
        .into_iter()
        .flatten()
        .map(|parameter| {
            let mut parameter = parameter.clone();
            parameter["type"] = parameter["schema"]["type"].clone();
            if let Some(fields) = parameter.as_object_mut() {
                fields.remove("schema");
            }
            parameter
        })
        .collect()
}

fn path_v2(item: Value) -> Value {
    let Value::Object(fields) = item else { return item };
    let converted = fields.into_iter().map(|(name, mut operation)| {
        if name == "parameters" {
            return (name, parameters_v2(&operation).into());
        }
        let mut parameters = parameters_v2(&operation["parameters"]);
        if let Some(body) = operation.as_object_mut().and_then(|fields| fields.remove("requestBody")) {
            let content = body["content"].as_object();
            let schema = content
                .and_then(|types| types.values().next())
                .map_or(json!({}), |media| downgrade(media["schema"].clone()));
            operation["consumes"] =
                content.into_iter().flatten().map(|(media, _)| Value::from(media.as_str())).collect();
            parameters.push(json!({"name": "body", "in": "body", "required": true, "schema": schema}));
        }
        operation["parameters"] = parameters.into();
        operation["produces"] = json!(["application/json", "application/yaml"]);
        for response in
            operation["responses"].as_object_mut().into_iter().flat_map(|responses| responses.values_mut())
        {
            if let Some(content) = response.as_object_mut().and_then(|fields| fields.remove("content")) {
                response["schema"] = content
                    .as_object()
                    .and_then(|types| types.values().next())
                    .map_or(json!({}), |media| downgrade(media["schema"].clone()));
            }
        }
        (name, operation)
    });
    Value::Object(converted.collect())
}
