//! The page `docs/reference/kinds.md`: words of ours around what the schemas say of each kind and field.
//!
//! The words are in `kinds.md` beside this file. `{about KIND}` stands for the sentence of a kind, `{columns KIND}` for
//! what `kubectl get` shows of it, `{fields KIND}` for the table of its fields.

use polis_api::crds;
use serde_json::Value;

const WORDS: &str = include_str!("kinds.md");
/// Fields of Kubernetes' own types, which Kubernetes describes.
const AS_KUBERNETES_HAS_IT: [&str; 4] = ["conditions", "env", "configMap", "secret"];
/// What an Instance has in its spec beside the template.
const NOTES: [&str; 2] = ["controller", "location"];

/// The page.
pub(super) fn page() -> String {
    let mut page = WORDS.to_owned();
    for file in crds::compute() {
        let kind = text(&file.crd["spec"]["names"]["kind"]);
        let version = &file.crd["spec"]["versions"][0];
        let schema = &version["schema"]["openAPIV3Schema"];
        let mut told = |what: &str, words: String| {
            let place = format!("{{{what}}}");
            assert!(page.contains(&place), "kinds.md has no place for {place}");
            page = page.replace(&place, &words);
        };
        told(&format!("about {kind}"), text(&schema["description"]));
        told(&format!("columns {kind}"), columns(&version["additionalPrinterColumns"]));
        let (mut rows, mut template) = (Vec::new(), Vec::new());
        let of_instance = kind == "Instance";
        walk(schema, "", &mut |path, field, required| {
            let mut steps = path.split('.');
            let own = match (steps.next(), steps.next().unwrap_or_default()) {
                (Some("apiVersion" | "kind" | "metadata"), _) => return false,
                (Some("spec"), "") if of_instance => return true,
                (Some("spec"), note) if of_instance => NOTES.contains(&note),
                _ => true,
            };
            let (into, path) = match own {
                true => (&mut rows, path),
                false => (&mut template, path.trim_start_matches("spec.")),
            };
            let (words, deeper) = words(path, field);
            into.push(format!("| `{path}`{} | {words} |", if required { "*" } else { "" }));
            deeper
        });
        told(&format!("fields {kind}"), table(&rows));
        if of_instance {
            told("fields template", table(&template));
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

/// What is said of a field, and whether more is to be said of what is in it.
fn words(path: &str, field: &Value) -> (String, bool) {
    let mut words = text(&field["description"]);
    if let Some(default) = field["default"].as_str() {
        words += &format!(" Default: `{default}`.");
    }
    let name = path.rsplit('.').next().unwrap_or_default().trim_end_matches("[]");
    match name {
        "template" => words += " See [below](#instance-template).",
        "scaleSettings" if path == "spec.scaleSettings" => words += " As in a [placement](#workload).",
        "env" | "configMap" | "secret" => words += " As Kubernetes has it.",
        _ => {}
    }
    let elsewhere = name == "template" || path == "spec.scaleSettings";
    (words, !elsewhere && !AS_KUBERNETES_HAS_IT.contains(&name))
}

/// Every field, those of an object right after it, as long as the visitor wants to go deeper.
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
fn every_field_of_the_schemas_is_on_the_page_and_says_something() {
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
    assert!(silent.is_empty(), "fields without a word: {silent:?}");
    assert!(!page.contains('{'), "a place that nothing was put into");
}
