//! Environment variables of a container.
//!
//! A program inherits nothing of the runtime's own environment. It gets `PATH`, `HOME` and `POLIS_*`
//! variables, then the keys of the sources in `envFrom`, then the container's own variables, in order.
//! `$(NAME)` in a value or an argument expands to a variable set earlier, as in Kubernetes; `$$` is a literal
//! dollar sign, and a reference to an unset variable stays unexpanded.

use std::collections::BTreeMap;
use std::fmt;

use polis_api::compute::SandboxContainer;
use polis_api::k8s_openapi::ByteString;
use polis_api::k8s_openapi::api::core::v1::{EnvFromSource, EnvVarSource};
use polis_api::reasons;
use polis_core::quota::InstanceSize;
use serde_json::Value;

use crate::Error;
use crate::provider::{ConfigData, RunRefusal};

/// Variables by name.
pub(crate) type Environment = BTreeMap<String, String>;

/// Inputs of `valueFrom` variables.
pub(crate) struct Sources<'a> {
    /// The instance, as JSON.
    pub(crate) instance: &'a Value,
    /// CPU and memory of the instance, if known.
    pub(crate) sizes: Option<InstanceSize>,
    /// Config maps and secrets of the instance's namespace.
    pub(crate) data: &'a (dyn ConfigData + Sync),
}

/// Why the environment of a container cannot be built.
#[derive(Debug)]
pub(crate) enum EnvironmentError {
    /// The container refers to something that does not exist.
    Refused(RunRefusal),
    /// Reading the cell failed.
    Failed(Error),
}

impl From<Error> for EnvironmentError {
    fn from(error: Error) -> Self {
        EnvironmentError::Failed(error)
    }
}

/// Adds the container's variables to the base environment.
pub(crate) fn environment(
    mut base: Environment,
    container: &SandboxContainer,
    sources: &Sources<'_>,
) -> Result<Environment, EnvironmentError> {
    sources.add_all(container, &mut base)?;
    for variable in &container.env {
        let variable_ref = VariableRef { container: &container.name, variable: &variable.name };
        if variable.name.is_empty() || variable.name.contains(['=', '\0']) {
            return Err(variable_ref.refused("a name that no variable can have; rename it"));
        }
        let value = match (&variable.value, &variable.value_from) {
            (_, None) => Some(expand(variable.value.as_deref().unwrap_or_default(), &base)),
            (None, Some(source)) => sources.value(source, &variable_ref)?,
            (Some(_), Some(_)) => return Err(variable_ref.refused("value and valueFrom at once; keep one")),
        };
        if let Some(value) = value {
            if value.contains('\0') {
                return Err(variable_ref
                    .refused("a value with a NUL byte, which no environment variable can hold; remove it"));
            }
            base.insert(variable.name.clone(), value);
        }
    }
    Ok(base)
}

/// The variable being resolved, for messages.
struct VariableRef<'a> {
    container: &'a str,
    variable: &'a str,
}

impl VariableRef<'_> {
    fn refused(&self, what: impl fmt::Display) -> EnvironmentError {
        let message = format!("variable {} of container {} uses {what}", self.variable, self.container);
        EnvironmentError::Refused(RunRefusal { reason: reasons::CONFIGURATION_ERROR, message })
    }

    /// The result for a missing source: no value if the reference is optional, else a refusal.
    fn missing(
        &self,
        optional: Option<bool>,
        what: impl fmt::Display,
    ) -> Result<Option<String>, EnvironmentError> {
        if optional == Some(true) { Ok(None) } else { Err(self.refused(what)) }
    }
}

impl Sources<'_> {
    /// Adds a variable for each key of the sources of `envFrom`. As in Kubernetes, a key that is no name of a
    /// variable is skipped.
    fn add_all(&self, container: &SandboxContainer, into: &mut Environment) -> Result<(), EnvironmentError> {
        for source in &container.env_from {
            let prefix = source.prefix.as_deref().unwrap_or_default();
            for (key, value) in self.values(source, &container.name)? {
                let name = format!("{prefix}{key}");
                if !name.is_empty() && !name.contains(['=', '\0']) {
                    into.insert(name, value);
                }
            }
        }
        Ok(())
    }

    /// The keys and values of a source of `envFrom`.
    fn values(&self, source: &EnvFromSource, container: &str) -> Result<Environment, EnvironmentError> {
        let refused = |what: String| {
            let message = format!("envFrom of container {container} uses {what}");
            EnvironmentError::Refused(RunRefusal { reason: reasons::CONFIGURATION_ERROR, message })
        };
        let (found, missing) = if let Some(reference) = &source.config_map_ref {
            let found = self.data.config_map(&reference.name)?.map(|map| map.data.unwrap_or_default());
            (found, (reference.optional, format!("config map {}", reference.name)))
        } else if let Some(reference) = &source.secret_ref {
            let mut found = None;
            if let Some(secret) = self.data.secret(&reference.name)? {
                let entries = secret.data.unwrap_or_default().into_iter();
                let text = |(key, value): (String, ByteString)| match String::from_utf8(value.0) {
                    Ok(value) if !value.contains('\0') => Ok((key, value)),
                    _ => Err(refused(format!(
                        "key {key} of secret {}, which is not text; an environment variable can hold only text",
                        reference.name
                    ))),
                };
                found = Some(entries.map(text).collect::<Result<_, _>>()?);
            }
            (found, (reference.optional, format!("secret {}", reference.name)))
        } else {
            return Err(refused("a source that is neither configMapRef nor secretRef".to_owned()));
        };
        match (found, missing) {
            (Some(found), _) => Ok(found),
            (None, (Some(true), _)) => Ok(Environment::new()),
            (None, (_, what)) => Err(refused(format!(
                "{what}, which does not exist in the cell; create it in the workload's namespace"
            ))),
        }
    }

    fn value(
        &self,
        source: &EnvVarSource,
        variable_ref: &VariableRef<'_>,
    ) -> Result<Option<String>, EnvironmentError> {
        if let Some(reference) = &source.config_map_key_ref {
            let (name, key) = (&reference.name, &reference.key);
            let Some(map) = self.data.config_map(name)? else {
                return variable_ref.missing(
                    reference.optional,
                    format!("config map {name}, which does not exist in the cell; create it in the workload's namespace"),
                );
            };
            return match map.data.as_ref().and_then(|data| data.get(key)) {
                Some(value) => Ok(Some(value.clone())),
                None => variable_ref.missing(
                    reference.optional,
                    format!("key {key} of config map {name}, which does not exist; add it"),
                ),
            };
        }
        if let Some(reference) = &source.secret_key_ref {
            let (name, key) = (&reference.name, &reference.key);
            let Some(secret) = self.data.secret(name)? else {
                return variable_ref.missing(
                    reference.optional,
                    format!("secret {name}, which does not exist in the cell; create it in the workload's namespace"),
                );
            };
            return match secret.data.as_ref().and_then(|data| data.get(key)) {
                Some(value) => match std::str::from_utf8(&value.0) {
                    Ok(value) => Ok(Some(value.to_owned())),
                    Err(_) => Err(variable_ref.refused(format!(
                        "key {key} of secret {name}, which is not UTF-8 text; an environment variable can hold only text"
                    ))),
                },
                None => variable_ref.missing(
                    reference.optional,
                    format!("key {key} of secret {name}, which does not exist; add it"),
                ),
            };
        }
        if let Some(reference) = &source.field_ref {
            return match field(self.instance, &reference.field_path) {
                Some(value) => Ok(Some(value)),
                None => Err(variable_ref
                    .refused(format!("field {}, which the instance does not have", reference.field_path))),
            };
        }
        if let Some(reference) = &source.resource_field_ref {
            let divisor = reference.divisor.as_ref().map(|divisor| divisor.0.as_str());
            return match self.sizes.and_then(|sizes| resource(&reference.resource, divisor, sizes)) {
                Some(value) => Ok(Some(value.to_string())),
                None => Err(variable_ref.refused(format!(
                    "resource {}, which this instance does not have; use limits or requests of cpu or memory",
                    reference.resource
                ))),
            };
        }
        Err(variable_ref.refused("a source that this city does not support; use configMapKeyRef, secretKeyRef, fieldRef or resourceFieldRef"))
    }
}

/// The value at a path such as `metadata.labels['app']` or
/// `status.networkInterfaces[0].assignments.networkIP`. An unset label or annotation is the empty string; any
/// other missing or non-scalar value is `None`.
fn field(instance: &Value, path: &str) -> Option<String> {
    let mut value = instance;
    let mut rest = path;
    while !rest.is_empty() {
        let (part, remaining) = next_part(rest)?;
        rest = remaining;
        value = match part {
            Part::Name(name) => value.get(name).unwrap_or(&Value::Null),
            Part::Index(index) => value.get(index)?,
        };
    }
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Null
            if ["metadata.labels['", "metadata.annotations['"].iter().any(|p| path.starts_with(p)) =>
        {
            Some(String::new())
        }
        _ => None,
    }
}

enum Part<'a> {
    Name(&'a str),
    Index(usize),
}

/// Splits a path into its first part and the rest.
fn next_part(path: &str) -> Option<(Part<'_>, &str)> {
    if let Some(quoted) = path.strip_prefix("['") {
        let (name, rest) = quoted.split_once("']")?;
        return Some((Part::Name(name), rest));
    }
    if let Some(number) = path.strip_prefix('[') {
        let (index, rest) = number.split_once(']')?;
        return Some((Part::Index(index.parse().ok()?), rest));
    }
    let path = path.strip_prefix('.').unwrap_or(path);
    let end = path.find(['.', '[']).unwrap_or(path.len());
    (end > 0).then(|| (Part::Name(&path[..end]), &path[end..]))
}

/// A resource in units of the divisor, rounded up.
fn resource(name: &str, divisor: Option<&str>, sizes: InstanceSize) -> Option<u128> {
    let divisor = divisor.filter(|divisor| *divisor != "0").unwrap_or("1");
    // In thousandths, the smallest unit that a divisor can name.
    let amount = match name.split_once('.')? {
        ("limits" | "requests", "cpu") => u128::try_from(sizes.millicores).ok()?,
        ("limits" | "requests", "memory") => u128::try_from(sizes.mebibytes).ok()? * (1000 << 20),
        _ => return None,
    };
    let unit = match divisor {
        "1m" => 1,
        "1" => 1000,
        "1k" => 1000 * 1000,
        "1M" => 1000 * 1_000_000,
        "1G" => 1000 * 1_000_000_000,
        "1Ki" => 1000 << 10,
        "1Mi" => 1000 << 20,
        "1Gi" => 1000 << 30,
        _ => return None,
    };
    Some(amount.div_ceil(unit))
}

/// Expands `$(NAME)` references.
pub(crate) fn expand(text: &str, known: &Environment) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(remaining) = rest.strip_prefix('$') {
            out.push('$');
            rest = remaining;
            continue;
        }
        let named = rest.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        match named.and_then(|(name, remaining)| Some((known.get(name)?, remaining))) {
            Some((value, remaining)) => {
                out.push_str(value);
                rest = remaining;
            }
            None => out.push('$'),
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    use polis_api::k8s_openapi::api::core::v1::{ConfigMap, EnvVar, Secret};
    use serde_json::json;

    struct TestConfig;

    impl ConfigData for TestConfig {
        fn config_map(&self, name: &str) -> Result<Option<ConfigMap>, Error> {
            let data = [("level".to_owned(), "debug".to_owned())];
            Ok((name == "settings").then(|| ConfigMap { data: Some(data.into()), ..ConfigMap::default() }))
        }

        fn secret(&self, name: &str) -> Result<Option<Secret>, Error> {
            let data = [
                ("token".to_owned(), ByteString(b"s3cret".into())),
                ("key".to_owned(), ByteString(vec![0xff])),
            ];
            Ok((name == "vault").then(|| Secret { data: Some(data.into()), ..Secret::default() }))
        }
    }

    fn built(env: Value) -> Result<Environment, String> {
        built_with(json!([]), env)
    }

    fn built_with(env_from: Value, env: Value) -> Result<Environment, String> {
        let instance = json!({
            "metadata": {"name": "web-0", "labels": {"app": "shop"}},
            "spec": {"runtime": {"resources": {"instanceType": "small"}}},
            "status": {"networkInterfaces": [{"assignments": {"networkIP": "127.9.0.1"}}]},
        });
        let env: Vec<EnvVar> = serde_json::from_value(env).unwrap();
        let env_from = serde_json::from_value(env_from).unwrap();
        let container = SandboxContainer { name: "app".into(), env, env_from, ..SandboxContainer::default() };
        let sources = Sources {
            instance: &instance,
            sizes: Some(InstanceSize { millicores: 1500, mebibytes: 2048 }),
            data: &TestConfig,
        };
        let base = [("PORT".to_owned(), "8080".to_owned())].into();
        environment(base, &container, &sources).map_err(|error| match error {
            EnvironmentError::Refused(refusal) => refusal.message,
            EnvironmentError::Failed(error) => panic!("{error}"),
        })
    }

    fn from(source: Value) -> Result<String, String> {
        let mut built = built(json!([{"name": "X", "valueFrom": source}]))?;
        Ok(built.remove("X").unwrap_or_else(|| "(not set)".to_owned()))
    }

    #[test]
    fn values_come_from_every_source() {
        let table = [
            (json!({"configMapKeyRef": {"name": "settings", "key": "level"}}), "debug"),
            (json!({"secretKeyRef": {"name": "vault", "key": "token"}}), "s3cret"),
            (json!({"configMapKeyRef": {"name": "nope", "key": "x", "optional": true}}), "(not set)"),
            (json!({"secretKeyRef": {"name": "vault", "key": "x", "optional": true}}), "(not set)"),
            (json!({"fieldRef": {"fieldPath": "metadata.name"}}), "web-0"),
            (json!({"fieldRef": {"fieldPath": "metadata.labels['app']"}}), "shop"),
            (json!({"fieldRef": {"fieldPath": "metadata.labels['none']"}}), ""),
            (json!({"fieldRef": {"fieldPath": "metadata.annotations['none']"}}), ""),
            (
                json!({"fieldRef": {"fieldPath": "status.networkInterfaces[0].assignments.networkIP"}}),
                "127.9.0.1",
            ),
            (json!({"resourceFieldRef": {"resource": "limits.cpu"}}), "2"),
            (json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}), "1500"),
            (json!({"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}}), "2048"),
        ];
        for (source, value) in table {
            assert_eq!(from(source.clone()).as_deref(), Ok(value), "{source}");
        }
    }

    #[test]
    fn the_keys_of_a_source_become_variables_and_variables_replace_them() {
        let settings = json!({"configMapRef": {"name": "settings"}});
        let prefixed = json!({"prefix": "APP_", "configMapRef": {"name": "settings"}});
        let missing = json!({"secretRef": {"name": "nope", "optional": true}});
        let built = built_with(
            json!([settings, prefixed, missing]),
            json!([{"name": "level", "value": "own"}, {"name": "COPY", "value": "$(APP_level)"}]),
        )
        .unwrap();
        assert_eq!((&*built["level"], &*built["APP_level"], &*built["COPY"]), ("own", "debug", "debug"));
        for (source, named) in [
            (json!({"secretRef": {"name": "nope"}}), "secret nope, which does not exist"),
            (json!({"secretRef": {"name": "vault"}}), "key key of secret vault, which is not text"),
            (json!({}), "neither configMapRef nor secretRef"),
        ] {
            let why = built_with(json!([source]), json!([])).unwrap_err();
            assert!(why.contains(named), "{why}");
        }
    }

    #[test]
    fn a_missing_source_is_named_in_the_message() {
        let table = [
            (json!({"configMapKeyRef": {"name": "nope", "key": "x"}}), "config map nope"),
            (json!({"configMapKeyRef": {"name": "settings", "key": "x"}}), "key x of config map settings"),
            (json!({"secretKeyRef": {"name": "nope", "key": "x"}}), "secret nope"),
            (json!({"secretKeyRef": {"name": "vault", "key": "key"}}), "not UTF-8 text"),
            (json!({"fieldRef": {"fieldPath": "metadata.nope"}}), "field metadata.nope"),
            (json!({"fieldRef": {"fieldPath": "spec.runtime"}}), "field spec.runtime"),
            (json!({"fieldRef": {"fieldPath": "a[b"}}), "field a[b"),
            (json!({"resourceFieldRef": {"resource": "limits.disk"}}), "resource limits.disk"),
            (json!({}), "a source that this city does not support"),
        ];
        for (source, named) in table {
            let why = from(source.clone()).unwrap_err();
            assert!(why.starts_with("variable X of container app uses "), "{why}");
            assert!(why.contains(named), "{source}: {why}");
        }
    }

    #[test]
    fn a_value_may_refer_to_variables_set_earlier() {
        let built = built(json!([
            {"name": "A", "value": "$(PORT)/$(B)"},
            {"name": "B", "value": "$$(PORT) costs $5 and $(A)"},
            {"name": "PORT", "value": "9"},
            {"name": "EMPTY"},
        ]))
        .unwrap();
        assert_eq!(built["A"], "8080/$(B)");
        assert_eq!(built["B"], "$(PORT) costs $5 and 8080/$(B)");
        assert_eq!((built["PORT"].as_str(), built["EMPTY"].as_str()), ("9", ""));
    }

    #[test]
    fn names_and_values_that_exec_cannot_pass_are_refused() {
        for env in [
            json!([{"name": "A=B", "value": "x"}]),
            json!([{"name": "", "value": "x"}]),
            json!([{"name": "A", "value": "x\u{0}y"}]),
            json!([{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
        ] {
            assert!(built(env.clone()).is_err(), "{env}");
        }
    }
}
