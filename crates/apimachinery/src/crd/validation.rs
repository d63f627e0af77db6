//! Validation of CustomResourceDefinitions. The errors have the order of Kubernetes.
//!
//! For a CRD with a single version, Kubernetes reports errors of the schema, subresources, columns and
//! selectable fields under the v1beta1 path at the top of the spec (e.g. `spec.validation`). So does this
//! module.

use serde_json::Value;

use crate::error::ValidationError;
use crate::schema::{JsonType, Node, definition, field_path};
use crate::{names, object};

const STORAGE: &str = "must have exactly one version marked as storage version";
const APPROVAL: &str = "api-approved.kubernetes.io";
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
/// Maximum number of selectable fields per version.
const SELECTABLE_MAX: usize = 8;

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Validates a CRD; `old` is the CRD before an update.
pub fn validate(object: &Value, old: Option<&Value>) -> Vec<ValidationError> {
    let spec = &object["spec"];
    let mut errors = Vec::new();
    let wanted = format!("{}.{}", text(&spec["names"], "plural"), text(spec, "group"));
    if old.is_none() && object::meta(object, "name") != wanted {
        errors.push(ValidationError::invalid(
            "metadata.name",
            object::meta(object, "name"),
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
    validate_spec(spec, &mut errors);
    if let Some(old) = old {
        validate_immutable(spec, old, &mut errors);
    }
    validate_stored(object, &mut errors);
    validate_approval(object, old, &mut errors);
    if spec["preserveUnknownFields"] == true
        && old.is_none_or(|old| old["spec"]["preserveUnknownFields"] != true)
    {
        errors.push(ValidationError::invalid(
            "spec.preserveUnknownFields",
            true,
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        ));
    }
    errors
}

fn validate_spec(spec: &Value, errors: &mut Vec<ValidationError>) {
    let group = text(spec, "group");
    let group_errors = names::dns_subdomain(group);
    if group.is_empty() {
        errors.push(ValidationError::required("spec.group", ""));
    } else if !group_errors.is_empty() {
        errors.push(ValidationError::invalid("spec.group", group, group_errors.join(",")));
    } else if !group.contains('.') {
        errors.push(ValidationError::invalid(
            "spec.group",
            group,
            "should be a domain with at least one dot",
        ));
    }
    let scope = text(spec, "scope");
    match scope {
        "Cluster" | "Namespaced" => {}
        "" => errors.push(ValidationError::required("spec.scope", "")),
        other => errors.push(ValidationError::not_supported("spec.scope", other, ["Cluster", "Namespaced"])),
    }
    let versions = list(spec, "versions");
    for (i, version) in versions.iter().enumerate() {
        if version.pointer("/schema/openAPIV3Schema").is_none() {
            errors.push(ValidationError::required(format!("spec.versions[{i}].schema.openAPIV3Schema"), ""));
        }
    }
    let alone = versions.len() == 1;
    for (i, version) in versions.iter().enumerate() {
        let at = format!("spec.versions[{i}]");
        validate_label(&format!("{at}.name"), text(version, "name"), errors);
        validate_deprecation(version, &at, errors);
        if !alone {
            validate_content(version, &at, &format!("{at}.schema"), errors);
        }
    }
    let repeated = versions
        .iter()
        .enumerate()
        .any(|(i, one)| versions[..i].iter().any(|other| other["name"] == one["name"]));
    if repeated {
        errors.push(ValidationError::invalid(
            "spec.versions",
            spec["versions"].clone(),
            "must contain unique version names",
        ));
    }
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        errors.push(ValidationError::invalid("spec.versions", spec["versions"].clone(), STORAGE));
    }
    if let Some(first) = versions.first() {
        validate_label("spec.version", text(first, "name"), errors);
    }
    validate_name(&spec["names"], errors);
    if let [version] = versions {
        validate_content(version, "spec", "spec.validation", errors);
    }
    match text(&spec["conversion"], "strategy") {
        "None" => {}
        // Conversion webhooks are not supported: versions differ in name only.
        "Webhook" => errors.push(ValidationError::invalid(
            "spec.conversion.strategy",
            "Webhook",
            "this server converts by name only: use None",
        )),
        other => errors.push(ValidationError::not_supported(
            "spec.conversion.strategy",
            other,
            ["None", "Webhook"],
        )),
    }
}

fn validate_label(at: &str, name: &str, errors: &mut Vec<ValidationError>) {
    let messages = names::dns_1035_label(name);
    if !messages.is_empty() {
        errors.push(ValidationError::invalid(at, name, messages.join(",")));
    }
}

fn validate_deprecation(version: &Value, at: &str, errors: &mut Vec<ValidationError>) {
    let Some(warning) = version["deprecationWarning"].as_str() else { return };
    let mut push_error = |why: &str| {
        errors.push(ValidationError::invalid(format!("{at}.deprecationWarning"), warning, why.to_owned()))
    };
    if version["deprecated"] != true {
        return push_error("can only be set for deprecated versions");
    }
    if warning.len() > 256 {
        push_error("must be <= 256 characters long");
    }
    if warning.is_empty() {
        push_error("must not be an empty string");
    }
    if let Some((i, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
        push_error(&format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {i}"
        ));
    }
}

fn validate_name(given: &Value, errors: &mut Vec<ValidationError>) {
    for field in ["plural", "singular", "kind", "listKind"] {
        if text(given, field).is_empty() {
            errors.push(ValidationError::required(format!("spec.names.{field}"), ""));
        }
    }
    for field in ["plural", "singular", "kind", "listKind"] {
        let name = text(given, field);
        let mixed = matches!(field, "kind" | "listKind");
        let messages = names::dns_1035_label(&if mixed { name.to_lowercase() } else { name.to_owned() });
        if !name.is_empty() && !messages.is_empty() {
            let lead = if mixed { "may have mixed case, but should otherwise match: " } else { "" };
            errors.push(ValidationError::invalid(
                format!("spec.names.{field}"),
                name,
                format!("{lead}{}", messages.join(",")),
            ));
        }
    }
    let validate_list = |field: &str, errors: &mut Vec<ValidationError>| {
        for (i, name) in list(given, field).iter().enumerate() {
            validate_label(&format!("spec.names.{field}[{i}]"), name.as_str().unwrap_or_default(), errors);
        }
    };
    validate_list("shortNames", errors);
    if given["kind"] == given["listKind"] && !text(given, "kind").is_empty() {
        errors.push(ValidationError::invalid(
            "spec.names.listKind",
            given["listKind"].clone(),
            "kind and listKind may not be the same",
        ));
    }
    validate_list("categories", errors);
}

/// Validates schema, subresources, columns and selectable fields of a version.
fn validate_content(version: &Value, at: &str, schema_at: &str, errors: &mut Vec<ValidationError>) {
    let status = version.pointer("/subresources/status").is_some();
    let mut node = None;
    if let Some(schema) = version.pointer("/schema/openAPIV3Schema") {
        let (parsed, messages) = definition::check(schema, &format!("{schema_at}.openAPIV3Schema"), status);
        errors.extend(messages);
        node = parsed;
    }
    if let Some(scale) = version.pointer("/subresources/scale") {
        validate_scale(scale, &format!("{at}.subresources.scale"), errors);
    }
    for (n, column) in list(version, "additionalPrinterColumns").iter().enumerate() {
        validate_column(column, &format!("{at}.additionalPrinterColumns[{n}]"), errors);
    }
    if let Some(node) = &node {
        validate_selectable(
            list(version, "selectableFields"),
            node,
            &format!("{at}.selectableFields"),
            errors,
        );
    }
}

fn validate_scale(scale: &Value, at: &str, errors: &mut Vec<ValidationError>) {
    for (field, roots, words) in [
        ("specReplicasPath", &[".spec."][..], ".spec"),
        ("statusReplicasPath", &[".status."], ".status"),
        ("labelSelectorPath", &[".spec.", ".status."], "either .spec or .status"),
    ] {
        let (path, at) = (text(scale, field), format!("{at}.{field}"));
        if path.is_empty() {
            if field != "labelSelectorPath" {
                errors.push(ValidationError::required(at, ""));
            }
        } else if !path.starts_with('.') {
            errors.push(ValidationError::invalid(at, path, "must be a simple json path starting with ."));
        } else if !roots.iter().any(|root| path.starts_with(root)) {
            errors.push(ValidationError::invalid(at, path, format!("should be a json path under {words}")));
        }
    }
}

fn validate_column(column: &Value, at: &str, errors: &mut Vec<ValidationError>) {
    if text(column, "name").is_empty() {
        errors.push(ValidationError::required(format!("{at}.name"), ""));
    }
    let (kind, format) = (text(column, "type"), text(column, "format"));
    let one_of = |words: &[&str]| format!("must be one of {}", words.join(","));
    if kind.is_empty() {
        errors.push(ValidationError::required(format!("{at}.type"), one_of(&COLUMN_TYPES)));
    } else if !COLUMN_TYPES.contains(&kind) {
        errors.push(ValidationError::invalid(format!("{at}.type"), kind, one_of(&COLUMN_TYPES)));
    }
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
        errors.push(ValidationError::invalid(format!("{at}.format"), format, one_of(&COLUMN_FORMATS)));
    }
    match text(column, "jsonPath") {
        "" => errors.push(ValidationError::required(format!("{at}.JSONPath"), "")),
        path if !path.starts_with('.') => errors.push(ValidationError::invalid(
            format!("{at}.JSONPath"),
            path,
            "must be a simple json path starting with .",
        )),
        _ => {}
    }
}

fn validate_selectable(fields: &[Value], node: &Node, at: &str, errors: &mut Vec<ValidationError>) {
    let mut seen: Vec<String> = Vec::new();
    for (i, field) in fields.iter().enumerate() {
        let (path, here) = (text(field, "jsonPath"), format!("{at}[{i}].jsonPath"));
        if path.is_empty() {
            errors.push(ValidationError::required(here, ""));
            continue;
        }
        let found = match field_path::parse_dotted(path, node) {
            Ok(found) => found,
            Err(why) => {
                errors.push(ValidationError::invalid(here, path, format!("is an invalid path: {why}")));
                continue;
            }
        };
        if found.root == "metadata" {
            errors.push(ValidationError::invalid(
                here.as_str(),
                path,
                "must not point to fields in metadata",
            ));
        }
        if !matches!(found.node.json_type, JsonType::String | JsonType::Boolean | JsonType::Integer)
            || found.node.int_or_string
        {
            errors.push(ValidationError::invalid(here.as_str(), path, "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed."));
        }
        if seen.contains(&found.text) {
            errors.push(ValidationError::duplicate(here, path));
        } else {
            seen.push(found.text);
        }
    }
    if seen.len() > SELECTABLE_MAX {
        errors.push(ValidationError::too_many(at, seen.len(), SELECTABLE_MAX as i64));
    }
}

fn validate_immutable(spec: &Value, old: &Value, errors: &mut Vec<ValidationError>) {
    let established = object::condition_is(old, "Established", "True");
    for (pointer, field, always) in [
        ("/scope", "scope", false),
        ("/names/kind", "names.kind", false),
        ("/group", "group", true),
        ("/names/plural", "names.plural", true),
    ] {
        let (now, then) = (spec.pointer(pointer), old["spec"].pointer(pointer));
        if (always || established) && now != then {
            errors.push(ValidationError::invalid(
                format!("spec.{field}"),
                now.cloned().unwrap_or_default(),
                "field is immutable",
            ));
        }
    }
}

/// Every version in `status.storedVersions` must be in `spec.versions`.
fn validate_stored(object: &Value, errors: &mut Vec<ValidationError>) {
    let (stored, versions) =
        (object::strings(&object["status"]["storedVersions"]), list(&object["spec"], "versions"));
    let at = "status.storedVersions";
    if stored.is_empty() {
        errors.push(ValidationError::invalid(at, Value::Null, "must have at least one stored version"));
        return;
    }
    for version in versions.iter().filter(|version| version["storage"] == true) {
        let name = text(version, "name");
        if !stored.iter().any(|known| known == name) {
            errors.push(ValidationError::invalid(
                at,
                Value::from(stored.clone()),
                format!("must have the storage version {name}"),
            ));
        }
    }
    for (i, name) in stored.iter().enumerate() {
        if !versions.iter().any(|version| text(version, "name") == name) {
            errors.push(ValidationError::invalid(
                format!("{at}[{i}]"),
                name.as_str(),
                format!("missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"),
            ));
        }
    }
}

/// Groups under `k8s.io` and `kubernetes.io` require an approval annotation.
fn validate_approval(object: &Value, old: Option<&Value>, errors: &mut Vec<ValidationError>) {
    const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
    let group = text(&object["spec"], "group");
    let protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')));
    let approval =
        |object: &Value| object["metadata"]["annotations"][APPROVAL].as_str().unwrap_or_default().to_owned();
    let given = approval(object);
    if !protected || old.is_some_and(|old| approval(old) == given) {
        return;
    }
    let at = format!("metadata.annotations[{APPROVAL}]");
    if given.is_empty() {
        let why = format!("protected groups must have approval annotation \"{APPROVAL}\", {SEE}");
        errors.push(ValidationError::required(at, why));
    } else if !given.starts_with("unapproved") && !given.contains("://") {
        let why = format!(
            "protected groups must have approval annotation \"{APPROVAL}\" with either a URL or a reason starting with \"unapproved\", {SEE}"
        );
        errors.push(ValidationError::invalid(at, given, why));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk_crd(edit: impl FnOnce(&mut Value)) -> Value {
        let mut crd = json!({
            "metadata": {"name": "things.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "conversion": {"strategy": "None"},
                "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "properties": {"spec": {"type": "object", "properties": {
                        "size": {"type": "integer"}, "list": {"type": "array", "items": {"type": "string"}}}}}}}}]
            },
            "status": {"storedVersions": ["v1"]}
        });
        edit(&mut crd);
        crd
    }

    fn messages(crd: &Value, old: Option<&Value>) -> Vec<String> {
        validate(crd, old).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_selectable_field_is_a_scalar_in_the_schema() {
        let with = |path: &str| {
            mk_crd(|crd| crd["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": path}]))
        };
        assert_eq!(messages(&with(".spec.size"), None), Vec::<String>::new());
        assert_eq!(
            messages(&with(".spec.none"), None),
            [
                "spec.selectableFields[0].jsonPath: Invalid value: \".spec.none\": is an invalid path: does not refer to a valid field"
            ]
        );
        assert!(messages(&with(".spec.list"), None)[0].contains("must point to a field of type"));
    }

    #[test]
    fn group_and_stored_versions_are_immutable() {
        let old =
            mk_crd(|crd| crd["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]));
        let new = mk_crd(|crd| crd["spec"]["group"] = "other.example.com".into());
        assert_eq!(
            messages(&new, Some(&old)),
            ["spec.group: Invalid value: \"other.example.com\": field is immutable"]
        );
        let gone = mk_crd(|crd| crd["spec"]["versions"][0]["name"] = "v2".into());
        assert!(
            messages(&gone, Some(&old))
                .iter()
                .any(|push_error| push_error.starts_with("status.storedVersions[0]"))
        );
    }

    #[test]
    fn a_protected_group_requires_approval() {
        let with = |approval: Option<&str>| {
            mk_crd(|crd| {
                crd["spec"]["group"] = "x.k8s.io".into();
                crd["metadata"] = json!({"name": "things.x.k8s.io", "annotations": {APPROVAL: approval}});
            })
        };
        assert_eq!(messages(&with(None), None).len(), 1);
        assert_eq!(messages(&with(Some("maybe")), None).len(), 1);
        assert_eq!(messages(&with(Some("unapproved, an experiment")), None), Vec::<String>::new());
        assert_eq!(
            messages(&with(Some("https://github.com/kubernetes/x/pull/1")), None),
            Vec::<String>::new()
        );
    }
}
