//! What is wrong with a CustomResourceDefinition, in the order in which Kubernetes says it.
//!
//! With one version only, Kubernetes looks at the schema, subresources, columns and selectable fields as if they stood
//! at the top of the spec, where they stood before there were several versions. Complaints name that old place.

use serde_json::Value;

use crate::{
    json,
    schema::{FieldError, Node, definition, field_path, names, node::Kind},
};

const STORAGE: &str = "must have exactly one version marked as storage version";
const APPROVAL: &str = "api-approved.kubernetes.io";
const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
/// Fields that selectors may name, per version.
const SELECTABLE_MAX: usize = 8;

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Complaints about a CRD; `old` is the one it replaces.
pub(in crate::builtins) fn faults(object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let spec = &object["spec"];
    let mut wrong = Vec::new();
    let wanted = format!("{}.{}", text(&spec["names"], "plural"), text(spec, "group"));
    if old.is_none() && json::meta(object, "name") != wanted {
        wrong.push(FieldError::invalid(
            "metadata.name",
            json::meta(object, "name"),
            "must be spec.names.plural+\".\"+spec.group",
        ));
    }
    spec_faults(spec, &mut wrong);
    if let Some(old) = old {
        immutable_faults(spec, old, &mut wrong);
    }
    stored_faults(object, &mut wrong);
    approval_faults(object, old, &mut wrong);
    if spec["preserveUnknownFields"] == true
        && old.is_none_or(|old| old["spec"]["preserveUnknownFields"] != true)
    {
        wrong.push(FieldError::invalid(
            "spec.preserveUnknownFields",
            true,
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        ));
    }
    wrong
}

fn spec_faults(spec: &Value, wrong: &mut Vec<FieldError>) {
    let group = text(spec, "group");
    let group_faults = names::dns_subdomain(group);
    if group.is_empty() {
        wrong.push(FieldError::required("spec.group", ""));
    } else if !group_faults.is_empty() {
        wrong.push(FieldError::invalid("spec.group", group, group_faults.join(",")));
    } else if !group.contains('.') {
        wrong.push(FieldError::invalid("spec.group", group, "should be a domain with at least one dot"));
    }
    let scope = text(spec, "scope");
    match scope {
        "Cluster" | "Namespaced" => {}
        "" => wrong.push(FieldError::required("spec.scope", "")),
        other => wrong.push(FieldError::not_supported("spec.scope", other, ["Cluster", "Namespaced"])),
    }
    let versions = list(spec, "versions");
    for (i, version) in versions.iter().enumerate() {
        if version.pointer("/schema/openAPIV3Schema").is_none() {
            wrong.push(FieldError::required(format!("spec.versions[{i}].schema.openAPIV3Schema"), ""));
        }
    }
    let alone = versions.len() == 1;
    for (i, version) in versions.iter().enumerate() {
        let at = format!("spec.versions[{i}]");
        label_fault(&format!("{at}.name"), text(version, "name"), wrong);
        deprecation_faults(version, &at, wrong);
        if !alone {
            content_faults(version, &at, &format!("{at}.schema"), wrong);
        }
    }
    let repeated = versions
        .iter()
        .enumerate()
        .any(|(i, one)| versions[..i].iter().any(|other| other["name"] == one["name"]));
    if repeated {
        wrong.push(FieldError::invalid(
            "spec.versions",
            spec["versions"].clone(),
            "must contain unique version names",
        ));
    }
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        wrong.push(FieldError::invalid("spec.versions", spec["versions"].clone(), STORAGE));
    }
    if let Some(first) = versions.first() {
        label_fault("spec.version", text(first, "name"), wrong);
    }
    name_faults(&spec["names"], wrong);
    if let [version] = versions {
        content_faults(version, "spec", "spec.validation", wrong);
    }
    match text(&spec["conversion"], "strategy") {
        "None" => {}
        // Known, and not served here: versions differ in name only.
        "Webhook" => wrong.push(FieldError::invalid(
            "spec.conversion.strategy",
            "Webhook",
            "this server converts by name only: use None",
        )),
        other => {
            wrong.push(FieldError::not_supported("spec.conversion.strategy", other, ["None", "Webhook"]))
        }
    }
}

fn label_fault(at: &str, name: &str, wrong: &mut Vec<FieldError>) {
    let faults = names::dns_1035_label(name);
    if !faults.is_empty() {
        wrong.push(FieldError::invalid(at, name, faults.join(",")));
    }
}

fn deprecation_faults(version: &Value, at: &str, wrong: &mut Vec<FieldError>) {
    let Some(warning) = version["deprecationWarning"].as_str() else { return };
    let mut fault = |why: &str| {
        wrong.push(FieldError::invalid(format!("{at}.deprecationWarning"), warning, why.to_owned()))
    };
    if version["deprecated"] != true {
        return fault("can only be set for deprecated versions");
    }
    if warning.len() > 256 {
        fault("must be <= 256 characters long");
    }
    if warning.is_empty() {
        fault("must not be an empty string");
    }
    if let Some((i, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
        fault(&format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {i}"
        ));
    }
}

fn name_faults(given: &Value, wrong: &mut Vec<FieldError>) {
    for field in ["plural", "singular", "kind", "listKind"] {
        if text(given, field).is_empty() {
            wrong.push(FieldError::required(format!("spec.names.{field}"), ""));
        }
    }
    for field in ["plural", "singular", "kind", "listKind"] {
        let name = text(given, field);
        let mixed = matches!(field, "kind" | "listKind");
        let faults = names::dns_1035_label(&if mixed { name.to_lowercase() } else { name.to_owned() });
        if !name.is_empty() && !faults.is_empty() {
            let lead = if mixed { "may have mixed case, but should otherwise match: " } else { "" };
            wrong.push(FieldError::invalid(
                format!("spec.names.{field}"),
                name,
                format!("{lead}{}", faults.join(",")),
            ));
        }
    }
    let list_faults = |field: &str, wrong: &mut Vec<FieldError>| {
        for (i, name) in list(given, field).iter().enumerate() {
            label_fault(&format!("spec.names.{field}[{i}]"), name.as_str().unwrap_or_default(), wrong);
        }
    };
    list_faults("shortNames", wrong);
    if given["kind"] == given["listKind"] && !text(given, "kind").is_empty() {
        wrong.push(FieldError::invalid(
            "spec.names.listKind",
            given["listKind"].clone(),
            "kind and listKind may not be the same",
        ));
    }
    list_faults("categories", wrong);
}

/// Schema, subresources, columns and selectable fields of a version.
fn content_faults(version: &Value, at: &str, schema_at: &str, wrong: &mut Vec<FieldError>) {
    let status = version.pointer("/subresources/status").is_some();
    let mut node = None;
    if let Some(schema) = version.pointer("/schema/openAPIV3Schema") {
        let (parsed, faults) = definition::check(schema, &format!("{schema_at}.openAPIV3Schema"), status);
        wrong.extend(faults);
        node = parsed;
    }
    if let Some(scale) = version.pointer("/subresources/scale") {
        scale_faults(scale, &format!("{at}.subresources.scale"), wrong);
    }
    for (n, column) in list(version, "additionalPrinterColumns").iter().enumerate() {
        column_faults(column, &format!("{at}.additionalPrinterColumns[{n}]"), wrong);
    }
    if let Some(node) = &node {
        selectable_faults(list(version, "selectableFields"), node, &format!("{at}.selectableFields"), wrong);
    }
}

fn scale_faults(scale: &Value, at: &str, wrong: &mut Vec<FieldError>) {
    for (field, roots, words) in [
        ("specReplicasPath", &[".spec."][..], ".spec"),
        ("statusReplicasPath", &[".status."], ".status"),
        ("labelSelectorPath", &[".spec.", ".status."], "either .spec or .status"),
    ] {
        let (path, at) = (text(scale, field), format!("{at}.{field}"));
        if path.is_empty() {
            if field != "labelSelectorPath" {
                wrong.push(FieldError::required(at, ""));
            }
        } else if !path.starts_with('.') {
            wrong.push(FieldError::invalid(at, path, "must be a simple json path starting with ."));
        } else if !roots.iter().any(|root| path.starts_with(root)) {
            wrong.push(FieldError::invalid(at, path, format!("should be a json path under {words}")));
        }
    }
}

fn column_faults(column: &Value, at: &str, wrong: &mut Vec<FieldError>) {
    if text(column, "name").is_empty() {
        wrong.push(FieldError::required(format!("{at}.name"), ""));
    }
    let (kind, format) = (text(column, "type"), text(column, "format"));
    let one_of = |words: &[&str]| format!("must be one of {}", words.join(","));
    if kind.is_empty() {
        wrong.push(FieldError::required(format!("{at}.type"), one_of(&COLUMN_TYPES)));
    } else if !COLUMN_TYPES.contains(&kind) {
        wrong.push(FieldError::invalid(format!("{at}.type"), kind, one_of(&COLUMN_TYPES)));
    }
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
        wrong.push(FieldError::invalid(format!("{at}.format"), format, one_of(&COLUMN_FORMATS)));
    }
    match text(column, "jsonPath") {
        "" => wrong.push(FieldError::required(format!("{at}.JSONPath"), "")),
        path if !path.starts_with('.') => wrong.push(FieldError::invalid(
            format!("{at}.JSONPath"),
            path,
            "must be a simple json path starting with .",
        )),
        _ => {}
    }
}

fn selectable_faults(fields: &[Value], node: &Node, at: &str, wrong: &mut Vec<FieldError>) {
    let mut seen: Vec<String> = Vec::new();
    for (i, field) in fields.iter().enumerate() {
        let (path, here) = (text(field, "jsonPath"), format!("{at}[{i}].jsonPath"));
        if path.is_empty() {
            wrong.push(FieldError::required(here, ""));
            continue;
        }
        let found = match field_path::parse_dotted(path, node) {
            Ok(found) => found,
            Err(why) => {
                wrong.push(FieldError::invalid(here, path, format!("is an invalid path: {why}")));
                continue;
            }
        };
        if found.root == "metadata" {
            wrong.push(FieldError::invalid(here.as_str(), path, "must not point to fields in metadata"));
        }
        if !matches!(found.node.kind, Kind::String | Kind::Boolean | Kind::Integer)
            || found.node.int_or_string
        {
            wrong.push(FieldError::invalid(here.as_str(), path, "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed."));
        }
        if seen.contains(&found.text) {
            wrong.push(FieldError::duplicate(here, path));
        } else {
            seen.push(found.text);
        }
    }
    if seen.len() > SELECTABLE_MAX {
        wrong.push(FieldError::too_many(at, seen.len(), SELECTABLE_MAX as i64));
    }
}

fn immutable_faults(spec: &Value, old: &Value, wrong: &mut Vec<FieldError>) {
    let established = json::condition_is(old, "Established", "True");
    for (pointer, field, always) in [
        ("/scope", "scope", false),
        ("/names/kind", "names.kind", false),
        ("/group", "group", true),
        ("/names/plural", "names.plural", true),
    ] {
        let (now, then) = (spec.pointer(pointer), old["spec"].pointer(pointer));
        if (always || established) && now != then {
            wrong.push(FieldError::invalid(
                format!("spec.{field}"),
                now.cloned().unwrap_or_default(),
                "field is immutable",
            ));
        }
    }
}

/// Every version that objects may still be stored in must be there.
fn stored_faults(object: &Value, wrong: &mut Vec<FieldError>) {
    let (stored, versions) =
        (json::texts(&object["status"]["storedVersions"]), list(&object["spec"], "versions"));
    let at = "status.storedVersions";
    if stored.is_empty() {
        wrong.push(FieldError::invalid(at, Value::Null, "must have at least one stored version"));
        return;
    }
    for version in versions.iter().filter(|version| version["storage"] == true) {
        let name = text(version, "name");
        if !stored.iter().any(|known| known == name) {
            wrong.push(FieldError::invalid(
                at,
                Value::from(stored.clone()),
                format!("must have the storage version {name}"),
            ));
        }
    }
    for (i, name) in stored.iter().enumerate() {
        if !versions.iter().any(|version| text(version, "name") == name) {
            wrong.push(FieldError::invalid(
                format!("{at}[{i}]"),
                name.as_str(),
                format!("missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"),
            ));
        }
    }
}

/// Groups of the Kubernetes community need its approval.
fn approval_faults(object: &Value, old: Option<&Value>, wrong: &mut Vec<FieldError>) {
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
        wrong.push(FieldError::required(at, why));
    } else if !given.starts_with("unapproved") && !given.contains("://") {
        let why = format!(
            "protected groups must have approval annotation \"{APPROVAL}\" with either a URL or a reason starting with \"unapproved\", {SEE}"
        );
        wrong.push(FieldError::invalid(at, given, why));
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

    fn said(crd: &Value, old: Option<&Value>) -> Vec<String> {
        faults(crd, old).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_selectable_field_is_a_plain_value_that_the_schema_has() {
        let with = |path: &str| {
            mk_crd(|crd| crd["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": path}]))
        };
        assert_eq!(said(&with(".spec.size"), None), Vec::<String>::new());
        assert_eq!(
            said(&with(".spec.none"), None),
            [
                "spec.selectableFields[0].jsonPath: Invalid value: \".spec.none\": is an invalid path: does not refer to a valid field"
            ]
        );
        assert!(said(&with(".spec.list"), None)[0].contains("must point to a field of type"));
    }

    #[test]
    fn what_names_the_storage_does_not_change() {
        let old =
            mk_crd(|crd| crd["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]));
        let new = mk_crd(|crd| crd["spec"]["group"] = "other.example.com".into());
        assert_eq!(
            said(&new, Some(&old)),
            ["spec.group: Invalid value: \"other.example.com\": field is immutable"]
        );
        let gone = mk_crd(|crd| crd["spec"]["versions"][0]["name"] = "v2".into());
        assert!(said(&gone, Some(&old)).iter().any(|fault| fault.starts_with("status.storedVersions[0]")));
    }

    #[test]
    fn a_group_of_the_community_needs_its_approval() {
        let with = |approval: Option<&str>| {
            mk_crd(|crd| {
                crd["spec"]["group"] = "x.k8s.io".into();
                crd["metadata"] = json!({"name": "things.x.k8s.io", "annotations": {APPROVAL: approval}});
            })
        };
        assert_eq!(said(&with(None), None).len(), 1);
        assert_eq!(said(&with(Some("maybe")), None).len(), 1);
        assert_eq!(said(&with(Some("unapproved, an experiment")), None), Vec::<String>::new());
        assert_eq!(said(&with(Some("https://github.com/kubernetes/x/pull/1")), None), Vec::<String>::new());
    }
}
