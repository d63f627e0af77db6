//! Schema compatibility: this version accepts every object that the last release stored or accepted, and
//! keeps all its fields, so that managers of both versions can work on one plane during an upgrade.
//!
//! `tests/released/` has the schemas of the Polis kinds in the last release, without descriptions. Run
//! `POLIS_WRITE_RELEASED=1 cargo test --test additive` to update them at a release, and only then.

use std::collections::BTreeSet;
use std::path::PathBuf;

use polis_api::crds::{self, CrdFile};
use serde_json::{Value, json};

/// The file with the last released schema of a CRD.
fn released_path(file: &CrdFile) -> PathBuf {
    let plural = file.crd["spec"]["names"]["plural"].as_str().unwrap();
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/released").join(format!("{plural}.json"))
}

/// The part of a CRD that clients rely on.
fn contract(file: &CrdFile) -> Value {
    let versions: Vec<Value> = file.crd["spec"]["versions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|version| {
            let mut schema = version["schema"]["openAPIV3Schema"].clone();
            remove_descriptions(&mut schema);
            json!({"name": version["name"], "served": version["served"], "storage": version["storage"],
                "subresources": version["subresources"], "schema": schema})
        })
        .collect();
    json!({"group": file.crd["spec"]["group"], "names": file.crd["spec"]["names"], "scope": file.crd["spec"]["scope"], "versions": versions})
}

/// Removes the descriptions, but not a field with the name `description`.
fn remove_descriptions(schema: &mut Value) {
    if let Some(object) = schema.as_object_mut() {
        if object.get("description").is_some_and(Value::is_string) {
            object.remove("description");
        }
        for (key, inner) in object.iter_mut() {
            match key.as_str() {
                "properties" => inner.as_object_mut().unwrap().values_mut().for_each(remove_descriptions),
                "items" | "additionalProperties" | "not" => remove_descriptions(inner),
                "allOf" | "anyOf" | "oneOf" => {
                    inner.as_array_mut().unwrap().iter_mut().for_each(remove_descriptions)
                }
                _ => {}
            }
        }
    }
}

/// Adds to `found` the incompatible changes from the old schema to the new one, with the path of the field.
fn incompatibilities(path: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    let mut report = |what: &str| found.push(format!("{path}: {what}"));
    if old["type"] != new["type"] {
        report(&format!("type {} became {}", old["type"], new["type"]));
    }
    let values = |schema: &Value, key: &str| -> BTreeSet<String> {
        schema[key].as_array().into_iter().flatten().map(Value::to_string).collect()
    };
    for name in values(new, "required").difference(&values(old, "required")) {
        // The API server adds the default to objects of older writers.
        if new["properties"][name.trim_matches('"')]["default"].is_null() {
            report(&format!("{name} is required now"));
        }
    }
    if !new["enum"].is_null() {
        for value in values(old, "enum").difference(&values(new, "enum")) {
            report(&format!("value {value} is gone"));
        }
        if old["enum"].is_null() {
            report("only some values are accepted now");
        }
    }
    for (key, narrower) in [
        ("maximum", i64::lt as fn(&i64, &i64) -> bool),
        ("maxLength", i64::lt),
        ("maxItems", i64::lt),
        ("maxProperties", i64::lt),
        ("minimum", i64::gt),
        ("minLength", i64::gt),
        ("minItems", i64::gt),
        ("minProperties", i64::gt),
    ] {
        match (old[key].as_i64(), new[key].as_i64()) {
            (Some(before), Some(now)) if narrower(&now, &before) => report(&format!("{key} is narrower")),
            (None, Some(_)) => report(&format!("{key} is new")),
            _ => {}
        }
    }
    for key in [
        "pattern",
        "format",
        "default",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-map-type",
    ] {
        if old[key] != new[key] && !(key == "default" && old[key].is_null()) {
            report(&format!("{key} {} became {}", old[key], new[key]));
        }
    }
    let rules = |schema: &Value| -> BTreeSet<String> {
        let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
        rules.map(|rule| rule["rule"].to_string()).collect()
    };
    for rule in rules(new).difference(&rules(old)) {
        // Objects of older writers do not have a new field, so a rule that requires it accepts them.
        let field = rule.strip_prefix("\"!has(self.").and_then(|rest| rest.split_once(") ||"));
        if !field.is_some_and(|(field, _)| old["properties"][field].is_null()) {
            report(&format!("rule {rule} is new"));
        }
    }
    for key in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-int-or-string", "nullable"] {
        if old[key] == true && new[key] != true {
            report(&format!("{key} is gone"));
        }
    }
    for (name, before) in old["properties"].as_object().into_iter().flatten() {
        match &new["properties"][name] {
            Value::Null => found.push(format!("{path}.{name}: the field is gone")),
            now => incompatibilities(&format!("{path}.{name}"), before, now, found),
        }
    }
    for below in ["items", "additionalProperties"] {
        if old[below].is_object() {
            incompatibilities(&format!("{path}[]"), &old[below], &new[below], found);
        }
    }
}

#[test]
fn objects_of_the_last_release_are_accepted_and_keep_their_fields() {
    for file in crds::compute() {
        let (path, now) = (released_path(&file), contract(&file));
        if std::env::var_os("POLIS_WRITE_RELEASED").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, serde_json::to_string_pretty(&now).unwrap() + "\n").unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
        let before: Value = serde_json::from_str(&text).unwrap();
        for fixed in ["group", "scope"] {
            assert_eq!(before[fixed], now[fixed]);
        }
        for name in ["plural", "singular", "kind", "listKind"] {
            assert_eq!(before["names"][name], now["names"][name]);
        }
        let mut found = Vec::new();
        for version in before["versions"].as_array().unwrap() {
            let same = now["versions"].as_array().unwrap().iter().find(|new| new["name"] == version["name"]);
            let Some(same) = same.filter(|new| version["served"] != true || new["served"] == true) else {
                found.push(format!("version {} is gone", version["name"]));
                continue;
            };
            for subresource in version["subresources"].as_object().into_iter().flatten() {
                if same["subresources"][subresource.0].is_null() {
                    found.push(format!("subresource {} is gone", subresource.0));
                }
            }
            incompatibilities(
                version["name"].as_str().unwrap(),
                &version["schema"],
                &same["schema"],
                &mut found,
            );
        }
        assert!(found.is_empty(), "{}: {found:#?}", path.display());
    }
}

#[test]
fn incompatible_changes_are_found_and_additions_are_not() {
    let old = json!({"type": "object", "required": ["a"], "properties": {
        "a": {"type": "string", "enum": ["x", "y"], "maxLength": 10},
        "b": {"type": "array", "items": {"type": "object", "properties": {"c": {"type": "integer"}}}}}});
    let found = |change: &dyn Fn(&mut Value)| {
        let mut new = old.clone();
        change(&mut new);
        let mut found = Vec::new();
        incompatibilities("v1", &old, &new, &mut found);
        found
    };
    assert_eq!(found(&|_| {}), Vec::<String>::new());
    let more = found(&|new| {
        new["properties"]["later"] = json!({"type": "string"});
        new["properties"]["filled"] = json!({"type": "string", "default": "x"});
        new["required"] = json!(["a", "filled"]);
        new["properties"]["a"]["enum"] = json!(["x", "y", "z"]);
        new["properties"]["a"]["maxLength"] = json!(20);
        new["x-kubernetes-validations"] = json!([{"rule": "!has(self.later) || self.a != ''"}]);
    });
    assert_eq!(more, Vec::<String>::new());
    let gone = found(&|new| {
        new["properties"]["b"]["items"]["properties"].as_object_mut().unwrap().remove("c");
    });
    assert_eq!(gone, ["v1.b[].c: the field is gone"]);
    for (change, word) in [
        (&(|new: &mut Value| new["required"] = json!(["a", "b"])) as &dyn Fn(&mut Value), "required now"),
        (&|new: &mut Value| new["properties"]["a"]["enum"] = json!(["x"]), "is gone"),
        (&|new: &mut Value| new["properties"]["a"]["maxLength"] = json!(5), "narrower"),
        (&|new: &mut Value| new["properties"]["a"]["pattern"] = json!("^x"), "pattern"),
        (&|new: &mut Value| new["properties"]["b"]["maxItems"] = json!(3), "is new"),
        (&|new: &mut Value| new["properties"]["b"]["type"] = json!("object"), "type"),
        (&|new: &mut Value| new["x-kubernetes-validations"] = json!([{"rule": "self.a != ''"}]), "rule"),
        (
            &|new: &mut Value| {
                new["x-kubernetes-validations"] = json!([{"rule": "!has(self.b) || self.a != ''"}])
            },
            "rule",
        ),
    ] {
        let found = found(change);
        assert!(found.len() == 1 && found[0].contains(word), "{word}: {found:?}");
    }
}
