//! The resource interpreter: Lua scripts that define the semantics of custom kinds.
//!
//! A ResourceInterpreterCustomization selects a kind and has Lua scripts for some of eight operations: retain
//! fields of the member's object, get replicas, get components, revise replicas, reflect status, aggregate
//! the status of several members, interpret health, and get dependencies. For a kind without scripts the
//! defaults are Karmada's: retain nothing, no replicas, reflect the whole status, do not write an aggregated
//! status, always healthy.
//!
//! Scripts are not trusted: see [`LuaHost`]. A failing script affects only its own operation.

mod convert;
mod host;
mod library;
mod native;
mod pattern;
mod pods;
mod rules;

use std::sync::Arc;

use serde_json::Value;

pub use host::{LuaHost, ScriptClock, ScriptError, ScriptLimits};
pub use rules::{InterpreterOperation, KindRules, RuleSet, ScriptConflict, check};

use host::ScriptOutput;

/// `apiVersion` and `kind` of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeMeta {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
}

impl TypeMeta {
    /// The type of an object.
    pub fn of(object: &Value) -> Self {
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        TypeMeta { api_version: text("apiVersion"), kind: text("kind") }
    }
}

/// Replicas of an object and the requirements of each.
#[derive(Debug, Clone, PartialEq)]
pub struct Replicas {
    /// Number of replicas.
    pub count: i32,
    /// Requirements of one replica: `nodeClaim` and `resourceRequest`.
    pub requirements: Option<Value>,
}

/// The health of a member's object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Healthy, or a kind without a health script.
    Healthy,
    /// Not healthy.
    Unhealthy,
    /// The health script failed.
    Unknown,
}

impl Health {
    /// The value in the status.
    pub fn as_str(self) -> &'static str {
        match self {
            Health::Healthy => "Healthy",
            Health::Unhealthy => "Unhealthy",
            Health::Unknown => "Unknown",
        }
    }
}

/// Runs interpreter operations for objects of any kind.
///
/// Cheap to clone; [`Interpreter::with_rules`] returns another interpreter that shares the VMs.
#[derive(Clone)]
pub struct Interpreter {
    host: Arc<LuaHost>,
    rules: Arc<RuleSet>,
}

impl Interpreter {
    /// An interpreter without customizations.
    pub fn new(host: Arc<LuaHost>) -> Self {
        Interpreter { host, rules: Arc::new(RuleSet::default()) }
    }

    /// An interpreter with the same VMs and other customizations.
    pub fn with_rules(&self, rules: RuleSet) -> Self {
        Interpreter { host: self.host.clone(), rules: Arc::new(rules) }
    }

    /// The active customizations.
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// The host that runs the scripts.
    pub fn host(&self) -> &LuaHost {
        &self.host
    }

    fn script(&self, object: &Value, operation: InterpreterOperation) -> Option<&str> {
        self.rules.script(&TypeMeta::of(object), operation)
    }

    /// `desired` with the fields that the member retains from `observed`.
    pub fn retain(&self, desired: Value, observed: &Value) -> Result<Value, ScriptError> {
        match self.script(&desired, InterpreterOperation::Retain) {
            Some(script) => self.host.call(script, "Retain", &[&desired, observed], |output| {
                output.table(0, &[&desired, observed])
            }),
            None => Ok(native::retain(desired, observed)),
        }
    }

    /// The replicas of an object; `None` for a kind without replicas.
    pub fn replicas(&self, object: &Value) -> Result<Option<Replicas>, ScriptError> {
        let Some(script) = self.script(object, InterpreterOperation::Replicas) else {
            return Ok(native::replicas(object));
        };
        self.host.call(script, "GetReplicas", &[object], |output| {
            let count = whole_number(output, 0)?;
            let requirements = match output.value(1) {
                mlua::Value::Nil => None,
                _ => Some(output.table(1, &[])?),
            };
            Ok(Some(Replicas { count, requirements }))
        })
    }

    /// The components of an object and their requirements; `None` for a kind without components.
    pub fn components(&self, object: &Value) -> Result<Option<Vec<Value>>, ScriptError> {
        let Some(script) = self.script(object, InterpreterOperation::Components) else { return Ok(None) };
        self.host.call(script, "GetComponents", &[object], |output| match output.value(0) {
            mlua::Value::Nil => Ok(None),
            _ => list(output).map(Some),
        })
    }

    /// The object with this number of replicas.
    pub fn revise_replicas(&self, object: Value, replicas: i32) -> Result<Value, ScriptError> {
        match self.script(&object, InterpreterOperation::ReviseReplica) {
            Some(script) => {
                let count = Value::from(replicas);
                self.host
                    .call(script, "ReviseReplica", &[&object, &count], |output| output.table(0, &[&object]))
            }
            None => Ok(native::revise_replicas(object, replicas)),
        }
    }

    /// The part of the member's status that is reported to the hub; `None` if there is no status.
    pub fn reflect_status(&self, observed: &Value) -> Result<Option<Value>, ScriptError> {
        match self.script(observed, InterpreterOperation::ReflectStatus) {
            Some(script) => self
                .host
                .call(script, "ReflectStatus", &[observed], |output| output.table(0, &[&observed["status"]]))
                .map(Some),
            None => Ok(observed.get("status").filter(|status| !status.is_null()).cloned()),
        }
    }

    /// The aggregated status of the hub object; `None` for a kind without an aggregation.
    ///
    /// `object` is the hub object with its current status; `items` have `clusterName`, `status`, `applied`,
    /// `appliedMessage` and `health`.
    pub fn aggregate_status(&self, object: &Value, items: &[Value]) -> Result<Option<Value>, ScriptError> {
        let Some(script) = self.script(object, InterpreterOperation::AggregateStatus) else {
            return Ok(native::aggregate_status(object, items));
        };
        // The members' statuses have the structure of the result: they decide whether an empty table of the
        // script is a list or an object.
        let shapes: Vec<Value> =
            items.iter().map(|item| serde_json::json!({"status": item["status"]})).collect();
        let references: Vec<&Value> = std::iter::once(object).chain(&shapes).collect();
        let list = Value::Array(items.to_vec());
        let output = self
            .host
            .call(script, "AggregateStatus", &[object, &list], |output| output.table(0, &references))?;
        Ok(output.get("status").cloned())
    }

    /// The health of a member's object, and the error of the script, if any.
    pub fn health(&self, observed: &Value) -> (Health, Option<ScriptError>) {
        let Some(script) = self.script(observed, InterpreterOperation::Health) else {
            return (native::health(observed), None);
        };
        let healthy =
            self.host.call(script, "InterpretHealth", &[observed], |output| match output.value(0) {
                mlua::Value::Boolean(healthy) => Ok(*healthy),
                other => Err(format!("expected a boolean, got {}", other.type_name())),
            });
        match healthy {
            Ok(true) => (Health::Healthy, None),
            Ok(false) => (Health::Unhealthy, None),
            Err(error) => (Health::Unknown, Some(error)),
        }
    }

    /// References to the dependencies of an object, from all customizations of its kind.
    pub fn dependencies(&self, object: &Value) -> Result<Vec<Value>, ScriptError> {
        let scripts = self.rules.dependency_scripts(&TypeMeta::of(object));
        if scripts.is_empty() {
            return Ok(native::dependencies(object));
        }
        let mut all = Vec::new();
        for script in scripts {
            for reference in self.host.call(script, "GetDependencies", &[object], list)? {
                if !all.contains(&reference) {
                    all.push(reference);
                }
            }
        }
        Ok(all)
    }
}

fn list(output: &ScriptOutput<'_>) -> Result<Vec<Value>, String> {
    match output.table(0, &[])? {
        Value::Array(items) => Ok(items),
        Value::Object(fields) if fields.is_empty() => Ok(Vec::new()),
        other => Err(format!("expected a list, got {other}")),
    }
}

fn whole_number(output: &ScriptOutput<'_>, at: usize) -> Result<i32, String> {
    let number = match output.value(at) {
        mlua::Value::Integer(number) => *number as f64,
        mlua::Value::Number(number) => *number,
        other => return Err(format!("expected a number, got {}", other.type_name())),
    };
    if !(f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&number) {
        return Err(format!("{number} is out of range for a number of replicas"));
    }
    Ok(number as i32)
}
