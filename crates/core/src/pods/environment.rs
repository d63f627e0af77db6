//! The environment of a container in a Pod: the variables that every container of Polis gets, and its own.
//!
//! A `fieldRef` of an Instance names fields of the Instance. Its metadata is known when the Pod is created
//! and becomes a plain value; its address is that of the Pod. Other fields are refused. Config maps and
//! secrets are those of the cell: the companions of the ones that the Instance names.

use polis_api::compute::{Instance, SandboxContainer};
use polis_api::k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, EnvVarSource, ObjectFieldSelector};
use polis_api::{ObjectExt, labels};

use super::{RefusedField, companion};
use crate::referenced_data::DataKind;
use crate::tenant::Tenant;

/// The path of an Instance's first address.
const ADDRESS: &str = "status.networkInterfaces[0].assignments.networkIP";

/// The variables of a container, and the refused ones.
pub(super) fn environment(
    instance: &Instance,
    container: &SandboxContainer,
    origin: Option<&Tenant>,
    path: &str,
    refused: &mut Vec<RefusedField>,
) -> Vec<EnvVar> {
    let own = |name: &str| container.env.iter().any(|variable| variable.name == name);
    let mut variables: Vec<EnvVar> =
        standard(instance, container, origin).into_iter().filter(|variable| !own(&variable.name)).collect();
    for (place, variable) in container.env.iter().enumerate() {
        let path = format!("{path}.env[{place}].valueFrom");
        match converted(instance, variable) {
            Ok(variable) => variables.push(variable),
            Err(why) => refused.push(RefusedField { path, why }),
        }
    }
    variables
}

/// The variables that every container gets, before its own.
fn standard(instance: &Instance, container: &SandboxContainer, origin: Option<&Tenant>) -> Vec<EnvVar> {
    let mut variables = Vec::new();
    let mut set = |name: &str, value: &str| variables.push(plain(name, value));
    set("POLIS_INSTANCE", instance.name());
    set("POLIS_CONTAINER", &container.name);
    let label = |key| instance.label(key);
    for (name, key) in [("POLIS_CITY", labels::CITY_CODE), ("POLIS_WORKLOAD", labels::WORKLOAD_NAME)] {
        if let Some(value) = label(key) {
            set(name, value);
        }
    }
    if let Some(origin) = origin {
        set("POLIS_PROJECT", &origin.project);
        set("POLIS_NAMESPACE", &origin.namespace);
    }
    for (place, port) in container.ports.iter().enumerate() {
        let number = port.port.to_string();
        if place == 0 {
            set("PORT", &number);
        }
        set(&format!("PORT_{}", port.name.to_uppercase().replace('-', "_")), &number);
    }
    variables.push(pod_address("POLIS_ADDRESS"));
    variables
}

fn converted(instance: &Instance, variable: &EnvVar) -> Result<EnvVar, String> {
    let Some(source) = &variable.value_from else { return Ok(variable.clone()) };
    if let Some(field) = &source.field_ref {
        return match field.field_path.as_str() {
            ADDRESS => Ok(pod_address(&variable.name)),
            path => match metadata_field(instance, path) {
                Some(value) => Ok(plain(&variable.name, &value)),
                None => {
                    Err(format!("field {path} is not known in a Pod; use a field of metadata, or {ADDRESS}"))
                }
            },
        };
    }
    let supported = source.config_map_key_ref.is_some()
        || source.secret_key_ref.is_some()
        || source.resource_field_ref.is_some();
    let mut variable = variable.clone();
    if let Some(source) = &mut variable.value_from {
        if let Some(key) = &mut source.config_map_key_ref {
            key.name = companion(DataKind::ConfigMap, &key.name);
        }
        if let Some(key) = &mut source.secret_key_ref {
            key.name = companion(DataKind::Secret, &key.name);
        }
    }
    match supported {
        true => Ok(variable),
        false => Err("use configMapKeyRef, secretKeyRef, fieldRef or resourceFieldRef".to_owned()),
    }
}

/// The sources of whole environments.
pub(super) fn sources(container: &SandboxContainer) -> Vec<EnvFromSource> {
    let mut sources = container.env_from.clone();
    for source in &mut sources {
        if let Some(map) = &mut source.config_map_ref {
            map.name = companion(DataKind::ConfigMap, &map.name);
        }
        if let Some(secret) = &mut source.secret_ref {
            secret.name = companion(DataKind::Secret, &secret.name);
        }
    }
    sources
}

/// A field of the Instance's metadata. As in Kubernetes, a label or annotation that is not set is empty.
fn metadata_field(instance: &Instance, path: &str) -> Option<String> {
    let meta = &instance.metadata;
    let entry = |prefix: &str, map: Option<&std::collections::BTreeMap<String, String>>| {
        let key = path.strip_prefix(prefix)?.strip_prefix("['")?.strip_suffix("']")?;
        Some(map.and_then(|map| map.get(key)).cloned().unwrap_or_default())
    };
    match path {
        "metadata.name" => meta.name.clone(),
        "metadata.namespace" => meta.namespace.clone(),
        "metadata.uid" => meta.uid.clone(),
        _ => entry("metadata.labels", meta.labels.as_ref())
            .or_else(|| entry("metadata.annotations", meta.annotations.as_ref())),
    }
}

/// A variable with this value. The kubelet expands `$(NAME)`, unless the `$` is doubled.
fn plain(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.replace("$(", "$$(")), ..EnvVar::default() }
}

fn pod_address(name: &str) -> EnvVar {
    let field =
        ObjectFieldSelector { field_path: "status.podIP".to_owned(), ..ObjectFieldSelector::default() };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    EnvVar { name: name.to_owned(), value: None, value_from: Some(source) }
}
