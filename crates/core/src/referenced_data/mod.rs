//! Referenced data: the config maps and secrets that a template refers to, and how they reach a cell.
//!
//! ```text
//!   project: source ──► hub: companion ──federation──► cell: companion ──► runtime
//!            (facts)         (one for each source)          (delivery)
//! ```
//!
//! - [`references`]: the sources that a template refers to;
//! - [`SourceFacts`], [`companion`]: what is known of a source, and its copy on the hub;
//! - [`resolve`]: the companions that a deployment expects, and why it lacks one;
//! - [`delivery`]: whether the cell has them.
//!
//! A companion exists while a deployment of its namespace refers to its source. Its name follows from kind
//! and name of the source, so nothing but the template decides which companions a deployment may read, and
//! all deployments of a namespace share one. Values exist only in sources and companions: facts, annotations,
//! conditions and messages have names, sizes and hashes.

mod companion;
mod delivery;
mod resolution;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use polis_api::compute::{InstanceSpec, SandboxContainer};
use polis_api::k8s_openapi::api::core::v1::KeyToPath;
use polis_api::names;
use serde::Deserialize;

pub use companion::{CompanionAction, DataObject, SourceFacts, hash_of, is_companion, plan_companion};
pub use delivery::{DeliveryState, delivery, deployment_condition, expected, instance_condition};
pub use resolution::{Failure, Resolution, SourceState, resolve};

/// Largest size of a config map or secret that a workload may refer to, in bytes of its keys and values.
pub const OBJECT_LIMIT: usize = 256 << 10;
/// Largest size of all config maps and secrets that a workload refers to.
pub const TOTAL_LIMIT: usize = 1 << 20;

/// The kind of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DataKind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

impl DataKind {
    /// Both kinds.
    pub const ALL: [DataKind; 2] = [DataKind::ConfigMap, DataKind::Secret];

    /// The kind in an API object.
    pub fn as_str(self) -> &'static str {
        match self {
            DataKind::ConfigMap => "ConfigMap",
            DataKind::Secret => "Secret",
        }
    }

    /// The resource of the API.
    pub fn resource(self) -> &'static str {
        match self {
            DataKind::ConfigMap => "configmaps",
            DataKind::Secret => "secrets",
        }
    }

    /// The value of [`index_values`] for the companion of a source.
    pub fn companion_token(self, source: &str) -> String {
        self.token(&names::companion(self.as_str(), source))
    }

    /// The value of [`index_values`] for a companion.
    pub fn token(self, companion: &str) -> String {
        format!("{}/{companion}", self.as_str())
    }
}

impl fmt::Display for DataKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DataKind::ConfigMap => "config map",
            DataKind::Secret => "secret",
        })
    }
}

/// All references of a template to one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Kind of the source.
    pub kind: DataKind,
    /// Name of the source, in the namespace of the workload.
    pub name: String,
    /// Whether instances can start without the source: every field that refers to it is optional.
    pub optional: bool,
    /// Keys that must exist if the source does.
    pub keys: BTreeSet<String>,
    /// The fields that refer to it, relative to the spec of the template.
    pub fields: Vec<String>,
}

impl Reference {
    /// Name of the companion.
    pub fn companion(&self) -> String {
        names::companion(self.kind.as_str(), &self.name)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// The sources that an instance refers to, config maps before secrets, by name. A reference without a name
/// is left out; admission refuses it.
pub fn references(spec: &InstanceSpec) -> Vec<Reference> {
    let mut found = References::default();
    let sandbox = spec.runtime.sandbox.as_ref();
    for (index, container) in sandbox.iter().flat_map(|sandbox| &sandbox.containers).enumerate() {
        of_container(container, &format!("runtime.sandbox.containers[{index}]"), &mut found);
    }
    for (index, secret) in sandbox.iter().flat_map(|sandbox| &sandbox.image_pull_secrets).enumerate() {
        let at = format!("runtime.sandbox.imagePullSecrets[{index}]");
        found.add(DataKind::Secret, Some(&secret.name), None, &[], at);
    }
    for (index, volume) in spec.volumes.iter().enumerate() {
        let at = |field: &str| format!("volumes[{index}].{field}");
        if let Some(map) = &volume.config_map {
            let keys = item_keys(map.items.as_deref());
            found.add(DataKind::ConfigMap, Some(&map.name), map.optional, &keys, at("configMap"));
        }
        if let Some(secret) = &volume.secret {
            let keys = item_keys(secret.items.as_deref());
            let name = secret.secret_name.as_deref();
            found.add(DataKind::Secret, name, secret.optional, &keys, at("secret"));
        }
    }
    found.0.into_values().collect()
}

fn of_container(container: &SandboxContainer, at: &str, found: &mut References) {
    for (index, source) in container.env_from.iter().enumerate() {
        let at = |field: &str| format!("{at}.envFrom[{index}].{field}");
        if let Some(map) = &source.config_map_ref {
            found.add(DataKind::ConfigMap, Some(&map.name), map.optional, &[], at("configMapRef"));
        }
        if let Some(secret) = &source.secret_ref {
            found.add(DataKind::Secret, Some(&secret.name), secret.optional, &[], at("secretRef"));
        }
    }
    for (index, variable) in container.env.iter().enumerate() {
        let Some(source) = &variable.value_from else { continue };
        let at = |field: &str| format!("{at}.env[{index}].valueFrom.{field}");
        if let Some(key) = &source.config_map_key_ref {
            let keys = [key.key.as_str()];
            found.add(DataKind::ConfigMap, Some(&key.name), key.optional, &keys, at("configMapKeyRef"));
        }
        if let Some(key) = &source.secret_key_ref {
            let keys = [key.key.as_str()];
            found.add(DataKind::Secret, Some(&key.name), key.optional, &keys, at("secretKeyRef"));
        }
    }
}

fn item_keys(items: Option<&[KeyToPath]>) -> Vec<&str> {
    items.unwrap_or_default().iter().map(|item| item.key.as_str()).collect()
}

/// References by kind and name.
#[derive(Default)]
struct References(BTreeMap<(DataKind, String), Reference>);

impl References {
    fn add(
        &mut self,
        kind: DataKind,
        name: Option<&str>,
        optional: Option<bool>,
        keys: &[&str],
        field: String,
    ) {
        let Some(name) = name.filter(|name| !name.is_empty()) else { return };
        let new =
            || Reference { kind, name: name.into(), optional: true, keys: BTreeSet::new(), fields: vec![] };
        let reference = self.0.entry((kind, name.to_owned())).or_insert_with(new);
        let optional = optional == Some(true);
        reference.optional &= optional;
        if !optional {
            reference.keys.extend(keys.iter().map(|key| (*key).to_owned()));
        }
        reference.fields.push(field);
    }
}

/// The values of an index of WorkloadDeployments: the tokens `Kind/name` of their companions, and the kinds.
/// The argument is the JSON of a deployment.
pub fn index_values(deployment: &[u8]) -> Vec<String> {
    #[derive(Deserialize)]
    struct Deployment {
        spec: Spec,
    }
    #[derive(Deserialize)]
    struct Spec {
        template: Template,
    }
    #[derive(Deserialize)]
    struct Template {
        spec: InstanceSpec,
    }
    if !mentions_source(deployment) {
        return Vec::new();
    }
    let parsed = serde_json::from_slice::<Deployment>(deployment);
    parsed.map(|deployment| tokens(&deployment.spec.template.spec)).unwrap_or_default()
}

/// The same for the JSON of an Instance.
pub fn index_values_of_instance(instance: &[u8]) -> Vec<String> {
    #[derive(Deserialize)]
    struct Instance {
        spec: InstanceSpec,
    }
    if !mentions_source(instance) {
        return Vec::new();
    }
    let parsed = serde_json::from_slice::<Instance>(instance);
    parsed.map(|instance| tokens(&instance.spec)).unwrap_or_default()
}

/// Whether a text has a part that each field that refers to a source has in its name. Most have none.
fn mentions_source(json: &[u8]) -> bool {
    let mentions = |text: &[u8]| json.windows(text.len()).any(|part| part == text);
    mentions(b"onfigMap") || mentions(b"ecret")
}

fn tokens(spec: &InstanceSpec) -> Vec<String> {
    let mut values = BTreeSet::new();
    for reference in references(spec) {
        values.insert(reference.kind.as_str().to_owned());
        values.insert(reference.kind.companion_token(&reference.name));
    }
    values.into_iter().collect()
}
