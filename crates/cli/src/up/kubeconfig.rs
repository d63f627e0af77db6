//! The kubeconfig that `polis up` writes: one cluster and one context per plane, one user.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polis_tls::Certificate;
use serde_json::{Map, Value, json};

use super::data::write_private;
use super::planes::{HUB, cell_plane};

/// The context of one plane.
pub struct ContextEntry {
    /// Name of the context.
    pub context: String,
    /// Path of the plane on the server.
    pub path: String,
}

/// The contexts of an installation. The first is the current-context.
pub fn entries(projects: &[String], cities: &[String], hub: bool) -> Vec<ContextEntry> {
    let project = |name: &String| ContextEntry {
        context: format!("polis-{name}"),
        path: format!("/apis/resourcemanager.miloapis.com/v1alpha1/projects/{name}/control-plane"),
    };
    let cell = |city: &String| ContextEntry {
        context: format!("polis-{}", cell_plane(city)),
        path: format!("/planes/{}", cell_plane(city)),
    };
    let platform = ContextEntry { context: "polis-platform".to_owned(), path: String::new() };
    let hub = hub.then(|| ContextEntry { context: format!("polis-{HUB}"), path: format!("/planes/{HUB}") });
    projects.iter().map(project).chain(hub).chain(cities.iter().map(cell)).chain([platform]).collect()
}

/// Renders a kubeconfig with these contexts.
pub fn render(url: &str, authority: &str, client: &Certificate, entries: &[ContextEntry]) -> String {
    let user = json!({
        "client-certificate-data": STANDARD.encode(&client.cert),
        "client-key-data": STANDARD.encode(&client.key),
    });
    let cluster = |entry: &ContextEntry| {
        json!({"name": entry.context, "cluster": {
            "server": format!("{url}{}", entry.path),
            "certificate-authority-data": STANDARD.encode(authority),
        }})
    };
    let context = |entry: &ContextEntry| json!({"name": entry.context, "context": {"cluster": entry.context, "user": USER, "namespace": "default"}});
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": entries.iter().map(cluster).collect::<Vec<_>>(),
        "users": [{"name": USER, "user": user}],
        "contexts": entries.iter().map(context).collect::<Vec<_>>(),
        "current-context": entries.first().map(|entry| entry.context.as_str()).unwrap_or_default(),
    });
    serde_saphyr::to_string(&config).expect("JSON serialises to YAML")
}

const USER: &str = "polis-admin";

/// The user's own kubeconfig.
pub fn user_kubeconfig() -> Option<PathBuf> {
    let listed = std::env::var_os("KUBECONFIG")
        .and_then(|paths| std::env::split_paths(&paths).find(|path| !path.as_os_str().is_empty()));
    listed.or_else(|| std::env::home_dir().map(|home| home.join(".kube/config")))
}

/// Merges a kubeconfig into a file: replaces entries with the same name and keeps the rest, including the
/// current-context.
pub fn merge(text: &str, into: &Path) -> Result<()> {
    // Write to the target of a symlink, so that the link is kept.
    let into = &fs::canonicalize(into).unwrap_or_else(|_| into.to_owned());
    let ours: Value = serde_saphyr::from_str(text)?;
    let existing = match fs::read_to_string(into) {
        Ok(text) => serde_saphyr::from_str(&text)
            .with_context(|| format!("{} is not a valid kubeconfig", into.display()))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Value::Object(Map::new()),
        Err(error) => return Err(error).with_context(|| format!("failed to read {}", into.display())),
    };
    if let Some(folder) = into.parent() {
        fs::create_dir_all(folder).with_context(|| format!("failed to create {}", folder.display()))?;
    }
    let merged = serde_saphyr::to_string(&merged(existing, &ours))?;
    write_private(into, &merged).with_context(|| format!("failed to write {}", into.display()))
}

fn merged(existing: Value, ours: &Value) -> Value {
    let mut all = match existing {
        Value::Object(all) => all,
        _ => Map::new(),
    };
    for (key, value) in [("apiVersion", "v1"), ("kind", "Config")] {
        all.entry(key).or_insert_with(|| value.into());
    }
    if all.get("current-context").and_then(Value::as_str).is_none_or(str::is_empty) {
        all.insert("current-context".to_owned(), ours["current-context"].clone());
    }
    for part in ["clusters", "users", "contexts"] {
        let new = ours[part].as_array().cloned().unwrap_or_default();
        let replaced = |old: &Value| new.iter().any(|entry| entry["name"] == old["name"]);
        let kept = all.get(part).and_then(Value::as_array).cloned().unwrap_or_default();
        let kept = kept.into_iter().filter(|old| !replaced(old));
        let whole: Vec<Value> = kept.chain(new.iter().cloned()).collect();
        all.insert(part.to_owned(), whole.into());
    }
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_config() -> String {
        let client = Certificate { cert: "cert".to_owned(), key: "key".to_owned() };
        let entries = entries(&["default".to_owned()], &["dfw".to_owned()], true);
        render("https://127.0.0.1:7443", "ca", &client, &entries)
    }

    #[test]
    fn every_plane_has_a_context_and_the_first_project_is_current() {
        let config: Value = serde_saphyr::from_str(&mk_config()).unwrap();
        let names: Vec<&str> = config["contexts"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|entry| entry["name"].as_str())
            .collect();
        assert_eq!(names, ["polis-default", "polis-hub", "polis-cell-dfw", "polis-platform"]);
        assert_eq!(config["current-context"], "polis-default");
        assert_eq!(config["clusters"][2]["cluster"]["server"], "https://127.0.0.1:7443/planes/cell-dfw");
    }

    #[test]
    fn merging_keeps_other_entries_and_replaces_those_of_polis() {
        let ours: Value = serde_saphyr::from_str(&mk_config()).unwrap();
        let existing = json!({
            "current-context": "work",
            "contexts": [{"name": "work"}, {"name": "polis-default", "context": "old"}],
            "preferences": {"colors": true},
        });
        let merged = merged(existing, &ours);
        assert_eq!(merged["current-context"], "work");
        assert_eq!(merged["preferences"]["colors"], true);
        let contexts = merged["contexts"].as_array().unwrap();
        assert_eq!(contexts.len(), 5);
        assert_eq!(contexts[0]["name"], "work");
        assert!(contexts.iter().all(|context| context["context"] != "old"));
    }
}
