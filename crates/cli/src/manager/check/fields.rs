//! Unknown fields of the configuration file: all of them, where the decoder stops at the first.

use serde_json::Value;

use crate::manager::config::Config;

/// Every field of the file. A test compares it with the fields of the decoder.
const FIELDS: &[&str] = &[
    "apiVersion",
    "kind",
    "metricsServer.bindAddress",
    "metricsServer.secureServing",
    "metricsServer.tls.secretRef.name",
    "metricsServer.tls.secretRef.namespace",
    "metricsServer.tls.certDir",
    "metricsServer.tls.certName",
    "metricsServer.tls.keyName",
    "webhookServer.host",
    "webhookServer.port",
    "webhookServer.tls.secretRef.name",
    "webhookServer.tls.secretRef.namespace",
    "webhookServer.tls.certDir",
    "webhookServer.tls.certName",
    "webhookServer.tls.keyName",
    "webhookServer.clientCAName",
    "discovery.mode",
    "discovery.internalServiceDiscovery",
    "discovery.discoveryKubeconfigPath",
    "discovery.projectKubeconfigPath",
    "discovery.clusterName",
    "discovery.quotaKubeconfigPath",
    "discovery.quotaResourceRef",
    "runtime",
    "pods.clusterKubeconfigPath",
    "pods.runtimeClassName",
    "pods.nodeSelector",
];

/// The unknown fields with what to do about each, and the configuration without them, if the rest is valid.
pub(super) fn unknown(text: &str) -> (Option<Config>, Vec<(String, String)>) {
    let Ok(mut value) = serde_saphyr::from_str::<Value>(text) else { return (None, Vec::new()) };
    let mut found = Vec::new();
    prune("", &mut value, &mut found);
    (Config::from_value(value).ok(), found)
}

fn prune(path: &str, value: &mut Value, found: &mut Vec<(String, String)>) {
    let Some(object) = value.as_object_mut() else { return };
    let known = children(path);
    object.retain(|name, inner| {
        let field = join(path, name);
        if !known.contains(&name.as_str()) {
            found.push((field, advice(path, name, &known)));
            return false;
        }
        if !children(&field).is_empty() {
            prune(&field, inner, found);
        }
        true
    });
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The names below a path, each once.
fn children(path: &str) -> Vec<&'static str> {
    let below = FIELDS.iter().filter_map(|field| match path {
        "" => Some(*field),
        path => field.strip_prefix(path)?.strip_prefix('.'),
    });
    let mut names: Vec<&str> = below.filter_map(|rest| rest.split('.').next()).collect();
    names.dedup();
    names
}

fn advice(path: &str, name: &str, known: &[&str]) -> String {
    if let Some(meant) = known.iter().find(|known| known.eq_ignore_ascii_case(name)) {
        return format!("rename it to {}", join(path, meant));
    }
    let elsewhere = FIELDS.iter().find(|field| field.rsplit('.').next() == Some(name));
    match elsewhere {
        Some(field) => format!("move it to {field}"),
        None => format!("remove it; the known fields are: {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.datumapis.com/v1alpha1\nkind: WorkloadOperator\n";

    #[test]
    fn every_unknown_field_is_reported_by_its_path_with_what_to_do() {
        let text =
            format!("{HEAD}clusterName: a\ndiscovery:\n  clustername: dfw\n  mode: milo\n  colour: red\n");
        let (config, found) = unknown(&text);
        let found: Vec<(&str, &str)> =
            found.iter().map(|(field, next)| (field.as_str(), next.as_str())).collect();
        assert!(found.contains(&("clusterName", "move it to discovery.clusterName")), "{found:?}");
        assert!(
            found.contains(&("discovery.clustername", "rename it to discovery.clusterName")),
            "{found:?}"
        );
        assert!(found.iter().any(|(field, next)| *field == "discovery.colour" && next.contains("mode")));
        assert_eq!(found.len(), 3);
        assert!(config.is_some(), "the other fields are decoded");
    }

    #[test]
    fn the_list_has_the_fields_of_the_decoder() {
        let mut folders = vec![String::new()];
        let mut seen = Vec::new();
        while let Some(folder) = folders.pop() {
            // The error about an unknown field lists the known ones.
            let mut probe = serde_json::json!({"?": null});
            for part in folder.split('.').rev().filter(|part| !part.is_empty()) {
                probe = serde_json::json!({part: probe});
            }
            let Err(error) = Config::from_value(probe) else { panic!("{folder} takes anything") };
            let error = format!("{error:#}");
            let (_, expected) = error.split_once("expected").unwrap_or_else(|| panic!("{folder}: {error}"));
            for name in expected.split('`').skip(1).step_by(2) {
                let field = join(&folder, name);
                match children(&field).is_empty() {
                    true => seen.push(field),
                    false => folders.push(field),
                }
            }
        }
        let mut known: Vec<String> = FIELDS.iter().map(|field| (*field).to_owned()).collect();
        seen.sort();
        known.sort();
        assert_eq!(seen, known);
    }
}
