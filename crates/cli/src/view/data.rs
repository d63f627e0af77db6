//! Config maps and secrets as `polis config` and `polis secrets` show and change them. No function returns a
//! value.

use polis_api::ObjectExt as _;
use polis_api::compute::Workload;
use polis_core::referenced_data::{self, DataKind, DataObject};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::table::Table;

/// A config map or secret in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DataLine {
    /// Its name.
    pub name: String,
    /// Its keys.
    pub keys: Vec<String>,
    /// Bytes of keys and values.
    pub bytes: usize,
    /// The workloads that refer to it.
    pub used_by: Vec<String>,
}

/// The lines of a list.
pub fn lines<K: DataObject>(objects: &[K], workloads: &[Workload]) -> Vec<DataLine> {
    let line = |object: &K| {
        let facts = referenced_data::SourceFacts::of(object);
        DataLine {
            name: object.name().to_owned(),
            keys: facts.keys.into_iter().collect(),
            bytes: facts.size,
            used_by: users(K::KIND, object.name(), workloads),
        }
    };
    objects.iter().map(line).collect()
}

/// The workloads that refer to an object.
pub fn users(kind: DataKind, name: &str, workloads: &[Workload]) -> Vec<String> {
    let refers = |workload: &&Workload| {
        let references = referenced_data::references(&workload.spec.template.spec);
        references.iter().any(|reference| reference.kind == kind && reference.name == name)
    };
    workloads.iter().filter(refers).map(|workload| workload.name().to_owned()).collect()
}

/// The table of a list.
pub fn table(lines: &[DataLine], kind: DataKind) -> Table {
    let empty = format!("No {kind} exists.");
    let mut table = Table::new(&["NAME", "KEYS", "BYTES", "USED BY"], empty);
    for line in lines {
        table.row([line.name.clone(), line.keys.join(", "), line.bytes.to_string(), line.used_by.join(", ")]);
    }
    table
}

/// A key and its value, from `KEY=VALUE`.
pub fn pair(text: &str) -> Result<(String, Vec<u8>), String> {
    // The text may be a secret without a key: it is not repeated.
    let (key, value) = text.split_once('=').ok_or("an argument has not the form KEY=VALUE")?;
    check_key(key)?;
    Ok((key.to_owned(), value.as_bytes().to_vec()))
}

/// Checks that a key is one that Kubernetes accepts.
pub fn check_key(key: &str) -> Result<(), String> {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if key.is_empty() || key.len() > 253 || !key.bytes().all(valid) || key == "." || key == ".." {
        return Err(format!("{key:?} is not a key; use letters, digits, '-', '_' and '.'"));
    }
    Ok(())
}

/// Key and path of `KEY=PATH` or `PATH`, whose key is the name of the file.
pub fn file(text: &str) -> Result<(String, &str), String> {
    let (key, path) = match text.split_once('=') {
        Some((key, path)) => (key, path),
        None => (text.rsplit('/').next().unwrap_or_default(), text),
    };
    check_key(key)?;
    Ok((key.to_owned(), path))
}

/// A merge patch that sets keys, or removes those without a value.
pub fn patch(kind: DataKind, entries: &[(String, Option<Vec<u8>>)]) -> Value {
    let (mut data, mut binary) = (Map::new(), Map::new());
    for (key, value) in entries {
        let encoded = |value: &[u8]| json!(polis_api::k8s_openapi::ByteString(value.to_vec()));
        match (kind, value) {
            (_, None) => {
                data.insert(key.clone(), Value::Null);
                binary.insert(key.clone(), Value::Null);
            }
            (DataKind::Secret, Some(value)) => _ = data.insert(key.clone(), encoded(value)),
            (DataKind::ConfigMap, Some(value)) => match std::str::from_utf8(value) {
                Ok(text) => {
                    data.insert(key.clone(), json!(text));
                    binary.insert(key.clone(), Value::Null);
                }
                Err(_) => {
                    data.insert(key.clone(), Value::Null);
                    binary.insert(key.clone(), encoded(value));
                }
            },
        }
    }
    match kind {
        DataKind::Secret => json!({"data": data}),
        DataKind::ConfigMap => json!({"data": data, "binaryData": binary}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_keys_and_values_or_keys_and_files() {
        assert_eq!(pair("a=b=c"), Ok(("a".into(), b"b=c".to_vec())));
        assert_eq!(pair("a="), Ok(("a".into(), vec![])));
        assert!(!pair("pa55word").unwrap_err().contains("pa55word"), "it may be a value");
        assert!(pair("a b=c").is_err() && pair("=c").is_err());
        assert_eq!(file("tls.key=./key.pem"), Ok(("tls.key".into(), "./key.pem")));
        assert_eq!(file("/etc/app.conf"), Ok(("app.conf".into(), "/etc/app.conf")));
        assert!(file("/etc/").is_err());
    }

    #[test]
    fn a_patch_changes_the_named_keys_only() {
        let entries = [("a".to_owned(), Some(b"b".to_vec())), ("gone".to_owned(), None)];
        assert_eq!(
            patch(DataKind::ConfigMap, &entries),
            json!({"data": {"a": "b", "gone": null}, "binaryData": {"a": null, "gone": null}})
        );
        let entries = [("a".to_owned(), Some(vec![0xff]))];
        assert_eq!(
            patch(DataKind::ConfigMap, &entries),
            json!({"data": {"a": null}, "binaryData": {"a": "/w=="}})
        );
        assert_eq!(patch(DataKind::Secret, &entries), json!({"data": {"a": "/w=="}}));
    }

    #[test]
    fn a_list_shows_names_keys_and_users_and_no_values() {
        let secret = polis_api::k8s_openapi::api::core::v1::Secret {
            metadata: polis_api::kube::api::ObjectMeta { name: Some("db".into()), ..Default::default() },
            data: Some(
                [("password".to_owned(), polis_api::k8s_openapi::ByteString(b"planted".to_vec()))].into(),
            ),
            ..Default::default()
        };
        let workload: Workload = serde_json::from_value(json!({
            "apiVersion": "compute.datumapis.com/v1alpha", "kind": "Workload", "metadata": {"name": "web"},
            "spec": {"placements": [], "template": {"spec": {
                "networkInterfaces": [],
                "runtime": {"resources": {"instanceType": "x"}, "sandbox": {"containers": [
                    {"name": "a", "image": "a", "envFrom": [{"secretRef": {"name": "db"}}]},
                ]}},
            }}},
        }))
        .unwrap();
        let lines = lines(&[secret], &[workload]);
        assert_eq!(
            (lines[0].bytes, &*lines[0].keys, &*lines[0].used_by),
            (15, &["password".to_owned()][..], &["web".to_owned()][..])
        );
        let shown = format!("{}{lines:?}", table(&lines, DataKind::Secret).draw(Some(80)));
        assert!(shown.contains("password") && !shown.contains("planted"), "{shown}");
    }
}
