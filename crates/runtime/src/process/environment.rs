//! The environment of a container.
//!
//! A program starts with nothing of what Polis has around itself. It gets a search path, a home, and words about where it
//! is; then what its container sets, in order. `$(NAME)` in a value or an argument stands for what was set before, as it
//! does in Kubernetes; `$$` is a dollar, and a name that is not set is left as it is written.

use std::collections::BTreeMap;
use std::fmt;

use polis_api::compute::SandboxContainer;
use polis_api::k8s_openapi::api::core::v1::EnvVarSource;
use polis_api::reasons;
use polis_core::quota::Sizes;
use serde_json::Value;

use crate::Error;
use crate::provider::{Data, Refusal};

/// Names and values.
pub(crate) type Environment = BTreeMap<String, String>;

/// What an environment is made from.
pub(crate) struct Sources<'a> {
    /// The instance, as JSON.
    pub(crate) instance: &'a Value,
    /// How large it is.
    pub(crate) sizes: Option<Sizes>,
    /// What lies beside it.
    pub(crate) data: &'a (dyn Data + Sync),
}

/// Why an environment cannot be made.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The container asks for something that is not there.
    Refused(Refusal),
    /// The cell could not be read.
    Failed(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Trouble::Failed(error)
    }
}

/// The environment of a container, on top of what every container gets.
pub(crate) fn environment(
    mut base: Environment,
    container: &SandboxContainer,
    sources: &Sources<'_>,
) -> Result<Environment, Trouble> {
    for variable in &container.env {
        let asks = Asks { container: &container.name, variable: &variable.name };
        if variable.name.is_empty() || variable.name.contains(['=', '\0']) {
            return Err(asks.refused("a name that no variable can have; rename it"));
        }
        let value = match (&variable.value, &variable.value_from) {
            (_, None) => Some(expand(variable.value.as_deref().unwrap_or_default(), &base)),
            (None, Some(source)) => sources.value(source, &asks)?,
            (Some(_), Some(_)) => return Err(asks.refused("value and valueFrom at once; keep one")),
        };
        if let Some(value) = value {
            if value.contains('\0') {
                return Err(asks.refused("a value with a NUL byte in it; no program can be given that"));
            }
            base.insert(variable.name.clone(), value);
        }
    }
    Ok(base)
}

/// Who asks, for messages.
struct Asks<'a> {
    container: &'a str,
    variable: &'a str,
}

impl Asks<'_> {
    fn refused(&self, what: impl fmt::Display) -> Trouble {
        let message = format!("variable {} of container {} asks for {what}", self.variable, self.container);
        Trouble::Refused(Refusal { reason: reasons::CONFIGURATION_ERROR, message })
    }

    /// A thing that is not there: nothing, if the container can do without.
    fn missing(&self, optional: Option<bool>, what: impl fmt::Display) -> Result<Option<String>, Trouble> {
        if optional == Some(true) { Ok(None) } else { Err(self.refused(what)) }
    }
}

impl Sources<'_> {
    fn value(&self, source: &EnvVarSource, asks: &Asks<'_>) -> Result<Option<String>, Trouble> {
        if let Some(wanted) = &source.config_map_key_ref {
            let (name, key) = (&wanted.name, &wanted.key);
            let Some(map) = self.data.config_map(name)? else {
                return asks.missing(
                    wanted.optional,
                    format!("config map {name}, which has not arrived; create it beside the workload"),
                );
            };
            return match map.data.as_ref().and_then(|data| data.get(key)) {
                Some(value) => Ok(Some(value.clone())),
                None => asks.missing(
                    wanted.optional,
                    format!("key {key} of config map {name}, which is not in it; add it"),
                ),
            };
        }
        if let Some(wanted) = &source.secret_key_ref {
            let (name, key) = (&wanted.name, &wanted.key);
            let Some(secret) = self.data.secret(name)? else {
                return asks.missing(
                    wanted.optional,
                    format!("secret {name}, which has not arrived; create it beside the workload"),
                );
            };
            return match secret.data.as_ref().and_then(|data| data.get(key)) {
                Some(value) => match std::str::from_utf8(&value.0) {
                    Ok(value) => Ok(Some(value.to_owned())),
                    Err(_) => Err(asks.refused(format!(
                        "key {key} of secret {name}, which is no text; a variable can hold only text"
                    ))),
                },
                None => asks.missing(
                    wanted.optional,
                    format!("key {key} of secret {name}, which is not in it; add it"),
                ),
            };
        }
        if let Some(wanted) = &source.field_ref {
            return match field(self.instance, &wanted.field_path) {
                Some(value) => Ok(Some(value)),
                None => {
                    Err(asks
                        .refused(format!("field {}, which the instance does not have", wanted.field_path)))
                }
            };
        }
        if let Some(wanted) = &source.resource_field_ref {
            let divisor = wanted.divisor.as_ref().map(|divisor| divisor.0.as_str());
            return match self.sizes.and_then(|sizes| resource(&wanted.resource, divisor, sizes)) {
                Some(value) => Ok(Some(value.to_string())),
                None => Err(asks.refused(format!(
                    "resource {}, which is not known of this instance; there are limits and requests of cpu and memory",
                    wanted.resource
                ))),
            };
        }
        Err(asks.refused("a source that this city does not know; use configMapKeyRef, secretKeyRef, fieldRef or resourceFieldRef"))
    }
}

/// The value at a path such as `metadata.labels['app']` or `status.networkInterfaces[0].assignments.networkIP`. A label
/// or annotation that is not set is empty; anything else that is missing has no value, nor has what is no scalar.
fn field(instance: &Value, path: &str) -> Option<String> {
    let mut value = instance;
    let mut rest = path;
    while !rest.is_empty() {
        let (part, behind) = next_part(rest)?;
        rest = behind;
        value = match part {
            Part::Name(name) => value.get(name).unwrap_or(&Value::Null),
            Part::Place(place) => value.get(place)?,
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
    Place(usize),
}

/// The first part of a path, and what is behind it.
fn next_part(path: &str) -> Option<(Part<'_>, &str)> {
    if let Some(quoted) = path.strip_prefix("['") {
        let (name, rest) = quoted.split_once("']")?;
        return Some((Part::Name(name), rest));
    }
    if let Some(number) = path.strip_prefix('[') {
        let (place, rest) = number.split_once(']')?;
        return Some((Part::Place(place.parse().ok()?), rest));
    }
    let path = path.strip_prefix('.').unwrap_or(path);
    let end = path.find(['.', '[']).unwrap_or(path.len());
    (end > 0).then(|| (Part::Name(&path[..end]), &path[end..]))
}

/// A size in units of a divisor, rounded up.
fn resource(name: &str, divisor: Option<&str>, sizes: Sizes) -> Option<u128> {
    let divisor = divisor.filter(|divisor| *divisor != "0").unwrap_or("1");
    // In thousandths, the smallest unit there is.
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

/// Puts values in the place of `$(NAME)`.
pub(crate) fn expand(text: &str, known: &Environment) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix('$') {
            out.push('$');
            rest = behind;
            continue;
        }
        let named = rest.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        match named.and_then(|(name, behind)| Some((known.get(name)?, behind))) {
            Some((value, behind)) => {
                out.push_str(value);
                rest = behind;
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

    use polis_api::k8s_openapi::ByteString;
    use polis_api::k8s_openapi::api::core::v1::{ConfigMap, EnvVar, Secret};
    use serde_json::json;

    struct Shelf;

    impl Data for Shelf {
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

    fn made(env: Value) -> Result<Environment, String> {
        let instance = json!({
            "metadata": {"name": "web-0", "labels": {"app": "shop"}},
            "spec": {"runtime": {"resources": {"instanceType": "small"}}},
            "status": {"networkInterfaces": [{"assignments": {"networkIP": "127.9.0.1"}}]},
        });
        let env: Vec<EnvVar> = serde_json::from_value(env).unwrap();
        let container = SandboxContainer { name: "app".into(), env, ..SandboxContainer::default() };
        let sources = Sources {
            instance: &instance,
            sizes: Some(Sizes { millicores: 1500, mebibytes: 2048 }),
            data: &Shelf,
        };
        let base = [("PORT".to_owned(), "8080".to_owned())].into();
        environment(base, &container, &sources).map_err(|trouble| match trouble {
            Trouble::Refused(refusal) => refusal.message,
            Trouble::Failed(error) => panic!("{error}"),
        })
    }

    fn from(source: Value) -> Result<String, String> {
        let mut made = made(json!([{"name": "X", "valueFrom": source}]))?;
        Ok(made.remove("X").unwrap_or_else(|| "(not set)".to_owned()))
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
    fn what_is_missing_is_named() {
        let table = [
            (json!({"configMapKeyRef": {"name": "nope", "key": "x"}}), "config map nope"),
            (json!({"configMapKeyRef": {"name": "settings", "key": "x"}}), "key x of config map settings"),
            (json!({"secretKeyRef": {"name": "nope", "key": "x"}}), "secret nope"),
            (json!({"secretKeyRef": {"name": "vault", "key": "key"}}), "no text"),
            (json!({"fieldRef": {"fieldPath": "metadata.nope"}}), "field metadata.nope"),
            (json!({"fieldRef": {"fieldPath": "spec.runtime"}}), "field spec.runtime"),
            (json!({"fieldRef": {"fieldPath": "a[b"}}), "field a[b"),
            (json!({"resourceFieldRef": {"resource": "limits.disk"}}), "resource limits.disk"),
            (json!({}), "a source that this city does not know"),
        ];
        for (source, named) in table {
            let why = from(source.clone()).unwrap_err();
            assert!(why.starts_with("variable X of container app asks for "), "{why}");
            assert!(why.contains(named), "{source}: {why}");
        }
    }

    #[test]
    fn a_value_may_refer_to_what_was_set_before() {
        let made = made(json!([
            {"name": "A", "value": "$(PORT)/$(B)"},
            {"name": "B", "value": "$$(PORT) costs $5 and $(A)"},
            {"name": "PORT", "value": "9"},
            {"name": "EMPTY"},
        ]))
        .unwrap();
        assert_eq!(made["A"], "8080/$(B)");
        assert_eq!(made["B"], "$(PORT) costs $5 and 8080/$(B)");
        assert_eq!((made["PORT"].as_str(), made["EMPTY"].as_str()), ("9", ""));
    }

    #[test]
    fn names_and_values_that_no_program_can_be_given_are_refused() {
        for env in [
            json!([{"name": "A=B", "value": "x"}]),
            json!([{"name": "", "value": "x"}]),
            json!([{"name": "A", "value": "x\u{0}y"}]),
            json!([{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
        ] {
            assert!(made(env.clone()).is_err(), "{env}");
        }
    }
}
