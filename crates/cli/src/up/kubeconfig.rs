//! The kubeconfig that `polis up` writes: one cluster and one context per plane, one user.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use polis_apiserver::Certificate;
use serde_json::{Map, Value, json};

use super::data::write_private;
use super::planes::{HUB, cell_plane};

/// A plane under the name of its context.
pub struct Entry {
    /// The context.
    pub context: String,
    /// Where the plane is, from the root of the server.
    pub path: String,
}

/// The contexts of an installation. The first is the current one.
pub fn entries(projects: &[String], cities: &[String], hub: bool) -> Vec<Entry> {
    let project = |name: &String| Entry {
        context: format!("polis-{name}"),
        path: format!("/apis/resourcemanager.miloapis.com/v1alpha1/projects/{name}/control-plane"),
    };
    let cell = |city: &String| Entry {
        context: format!("polis-{}", cell_plane(city)),
        path: format!("/planes/{}", cell_plane(city)),
    };
    let platform = Entry { context: "polis-platform".to_owned(), path: String::new() };
    let hub = hub.then(|| Entry { context: format!("polis-{HUB}"), path: format!("/planes/{HUB}") });
    projects.iter().map(project).chain(hub).chain(cities.iter().map(cell)).chain([platform]).collect()
}

/// The text of a kubeconfig with these entries.
pub fn render(url: &str, authority: &str, client: &Certificate, entries: &[Entry]) -> String {
    let user = json!({
        "client-certificate-data": STANDARD.encode(&client.cert),
        "client-key-data": STANDARD.encode(&client.key),
    });
    let cluster = |entry: &Entry| {
        json!({"name": entry.context, "cluster": {
            "server": format!("{url}{}", entry.path),
            "certificate-authority-data": STANDARD.encode(authority),
        }})
    };
    let context = |entry: &Entry| json!({"name": entry.context, "context": {"cluster": entry.context, "user": USER, "namespace": "default"}});
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": entries.iter().map(cluster).collect::<Vec<_>>(),
        "users": [{"name": USER, "user": user}],
        "contexts": entries.iter().map(context).collect::<Vec<_>>(),
        "current-context": entries.first().map(|entry| entry.context.as_str()).unwrap_or_default(),
    });
    serde_saphyr::to_string(&config).expect("plain JSON can be written as YAML")
}

const USER: &str = "polis-admin";

/// The user's own kubeconfig.
pub fn own() -> Option<PathBuf> {
    let listed = std::env::var_os("KUBECONFIG")
        .and_then(|paths| std::env::split_paths(&paths).find(|path| !path.as_os_str().is_empty()));
    listed.or_else(|| std::env::home_dir().map(|home| home.join(".kube/config")))
}

/// Puts the entries of one kubeconfig into another file, in place of those of the same name. The rest of the file, its
/// current context included, stays as it is.
pub fn merge(text: &str, into: &Path) -> Result<()> {
    // A file that is kept elsewhere and linked stays so.
    let into = &fs::canonicalize(into).unwrap_or_else(|_| into.to_owned());
    let ours: Value = serde_saphyr::from_str(text)?;
    let standing = match fs::read_to_string(into) {
        Ok(text) => {
            serde_saphyr::from_str(&text).with_context(|| format!("{} is no kubeconfig", into.display()))?
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Value::Object(Map::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", into.display())),
    };
    if let Some(folder) = into.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let merged = serde_saphyr::to_string(&merged(standing, &ours))?;
    write_private(into, &merged).with_context(|| format!("cannot write {}", into.display()))
}

fn merged(standing: Value, ours: &Value) -> Value {
    let mut all = match standing {
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
    fn every_plane_has_a_context_and_the_project_is_the_current_one() {
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
    fn merging_keeps_what_is_not_ours_and_replaces_what_is() {
        let ours: Value = serde_saphyr::from_str(&mk_config()).unwrap();
        let standing = json!({
            "current-context": "work",
            "contexts": [{"name": "work"}, {"name": "polis-default", "context": "old"}],
            "preferences": {"colors": true},
        });
        let merged = merged(standing, &ours);
        assert_eq!(merged["current-context"], "work");
        assert_eq!(merged["preferences"]["colors"], true);
        let contexts = merged["contexts"].as_array().unwrap();
        assert_eq!(contexts.len(), 5);
        assert_eq!(contexts[0]["name"], "work");
        assert!(contexts.iter().all(|context| context["context"] != "old"));
    }
}
