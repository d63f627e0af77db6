//! Generates the page `docs/reference/kinds.md` from the template `kinds.md` in this directory and the CRD
//! schemas.
//!
//! Placeholders of the template: `{about KIND}` is the description of a kind, `{columns KIND}` its printer
//! columns, `{fields KIND}` the table of its fields.

use polis_api::crds;
use serde_json::Value;

const TEMPLATE: &str = include_str!("kinds.md");
/// Fields with types of Kubernetes, whose own fields are not listed.
const KUBERNETES_TYPES: [&str; 8] = [
    "conditions",
    "env",
    "configMap",
    "secret",
    "lifecycle",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
];
/// Fields in the spec of an Instance that are not in the template.
const INSTANCE_FIELDS: [&str; 2] = ["controller", "location"];

/// Renders the page.
pub(super) fn page() -> String {
    let mut page = TEMPLATE.to_owned();
    for file in crds::compute() {
        let kind = text(&file.crd["spec"]["names"]["kind"]);
        let version = &file.crd["spec"]["versions"][0];
        let schema = &version["schema"]["openAPIV3Schema"];
        let mut fill = |name: &str, text: String| {
            let placeholder = format!("{{{name}}}");
            assert!(page.contains(&placeholder), "kinds.md has no placeholder {placeholder}");
            page = page.replace(&placeholder, &text);
        };
        fill(&format!("about {kind}"), text(&schema["description"]));
        fill(&format!("columns {kind}"), columns(&version["additionalPrinterColumns"]));
        let (mut rows, mut template) = (Vec::new(), Vec::new());
        let of_instance = kind == "Instance";
        walk(schema, "", &mut |path, field, required| {
            let mut parts = path.split('.');
            let own = match (parts.next(), parts.next().unwrap_or_default()) {
                (Some("apiVersion" | "kind" | "metadata"), _) => return false,
                (Some("spec"), "") if of_instance => return true,
                (Some("spec"), name) if of_instance => INSTANCE_FIELDS.contains(&name),
                _ => true,
            };
            let (into, path) = match own {
                true => (&mut rows, path),
                false => (&mut template, path.trim_start_matches("spec.")),
            };
            let (description, deeper) = description(path, field);
            into.push(format!("| `{path}`{} | {description} |", if required { "*" } else { "" }));
            deeper
        });
        fill(&format!("fields {kind}"), table(&rows));
        if of_instance {
            fill("fields template", table(&template));
        }
    }
    page
}

fn table(rows: &[String]) -> String {
    format!("| field | |\n|---|---|\n{}", rows.join("\n"))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// The description of a field, and whether its own fields are listed too.
fn description(path: &str, field: &Value) -> (String, bool) {
    let mut words = text(&field["description"]);
    if let Some(default) = field["default"].as_str() {
        words += &format!(" Default: `{default}`.");
    }
    let name = path.rsplit('.').next().unwrap_or_default().trim_end_matches("[]");
    match name {
        "template" => words += " See [below](#instance-template).",
        "scaleSettings" if path == "spec.scaleSettings" => words += " As in a [placement](#workload).",
        "conditions" => {}
        name if KUBERNETES_TYPES.contains(&name) => words += " As in Kubernetes.",
        _ => {}
    }
    let elsewhere = name == "template" || path == "spec.scaleSettings";
    (words, !elsewhere && !KUBERNETES_TYPES.contains(&name))
}

/// Visits every field, depth first. The visitor returns whether to visit the fields below.
fn walk(schema: &Value, path: &str, visit: &mut impl FnMut(&str, &Value, bool) -> bool) {
    let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let (mut inner, mut path) =
            (field, format!("{path}{}{name}", if path.is_empty() { "" } else { "." }));
        while inner["type"] == "array" {
            inner = &inner["items"];
            path += "[]";
        }
        if visit(&path, field, required.iter().any(|required| required == name)) {
            walk(inner, &path, visit);
        }
    }
}

fn columns(columns: &Value) -> String {
    let of_priority = |wide: bool| -> Vec<&str> {
        let all = columns.as_array().into_iter().flatten();
        all.filter(|column| (column["priority"].as_i64().unwrap_or(0) > 0) == wide)
            .filter_map(|column| column["name"].as_str())
            .collect()
    };
    let wide = of_priority(true);
    let wide = if wide.is_empty() { String::new() } else { format!("; wide also {}", wide.join(", ")) };
    format!("`kubectl get` shows: {}{wide}.", of_priority(false).join(", "))
}

#[test]
fn every_field_of_the_schemas_is_on_the_page_with_a_description() {
    let page = page();
    for field in [
        "| `spec.placements[]`* |",
        "| `spec.placements[].cityCodes[]`* |",
        "| `status.cell` |",
        "| `spec.controller.schedulingGates[].name`* |",
        "| `runtime.sandbox.containers[].image`* |",
        "| `networkInterfaces[].network.name`* |",
    ] {
        assert!(page.contains(field), "{field}");
    }
    let silent: Vec<&str> = page.lines().filter(|line| line.ends_with("|  |")).collect();
    assert!(silent.is_empty(), "fields without a description: {silent:?}");
    assert!(!page.contains('{'), "a placeholder was not replaced");
}
