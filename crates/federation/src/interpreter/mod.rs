//! What the federation cannot know about a kind, told by scripts.
//!
//! A ResourceInterpreterCustomization names a kind and gives Lua for some of eight questions: what of the member's
//! object is kept, how many replicas there are, how to change them, what status to carry back, how to add up the
//! statuses of several members, whether an object is well, and what it depends on. For a kind that nobody has
//! described the answers are Karmada's: keep nothing, no replicas, carry the whole status back, do not write it on
//! the hub object, everything is healthy.
//!
//! Scripts are not trusted: see [`Host`]. A script that fails stops only the question that it was asked.

mod convert;
mod host;
mod library;
mod native;
mod pattern;
mod pods;
mod quantity;
mod rules;

use std::sync::Arc;

use serde_json::Value;

pub use host::{Clock, Host, Limits, ScriptError};
pub use rules::{Clash, Question, Rules, Table, check};

use host::Answer;

/// A kind, as objects name it: `apiVersion` and `kind`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
}

impl Target {
    /// The kind of an object.
    pub fn of(object: &Value) -> Self {
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        Target { api_version: text("apiVersion"), kind: text("kind") }
    }
}

/// What a replica count is about: how many there are, and what each needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Replicas {
    /// How many.
    pub count: i32,
    /// What each needs: `nodeClaim` and `resourceRequest`.
    pub requirements: Option<Value>,
}

/// Whether a member's object is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It is, or nobody said how to tell.
    Healthy,
    /// It is not.
    Unhealthy,
    /// The script that should tell failed.
    Unknown,
}

impl Health {
    /// The word that Karmada writes.
    pub fn as_str(self) -> &'static str {
        match self {
            Health::Healthy => "Healthy",
            Health::Unhealthy => "Unhealthy",
            Health::Unknown => "Unknown",
        }
    }
}

/// Answers the questions of the federation about objects of any kind.
///
/// Cheap to clone; [`Interpreter::with_rules`] makes another that shares the VMs.
#[derive(Clone)]
pub struct Interpreter {
    host: Arc<Host>,
    rules: Arc<Table>,
}

impl Interpreter {
    /// An interpreter that knows no customization yet.
    pub fn new(host: Arc<Host>) -> Self {
        Interpreter { host, rules: Arc::new(Table::default()) }
    }

    /// The same VMs with other customizations.
    pub fn with_rules(&self, rules: Table) -> Self {
        Interpreter { host: self.host.clone(), rules: Arc::new(rules) }
    }

    /// The customizations in force.
    pub fn rules(&self) -> &Table {
        &self.rules
    }

    /// The host of the scripts.
    pub fn host(&self) -> &Host {
        &self.host
    }

    fn script(&self, object: &Value, question: Question) -> Option<&str> {
        self.rules.script(&Target::of(object), question)
    }

    /// `desired` with what the member may keep of `observed`.
    pub fn retain(&self, desired: Value, observed: &Value) -> Result<Value, ScriptError> {
        match self.script(&desired, Question::Retain) {
            Some(script) => self.host.call(script, "Retain", &[&desired, observed], |answer| {
                answer.table(0, &[&desired, observed])
            }),
            None => Ok(native::retain(desired, observed)),
        }
    }

    /// How many replicas an object has; nothing for a kind without replicas.
    pub fn replicas(&self, object: &Value) -> Result<Option<Replicas>, ScriptError> {
        let Some(script) = self.script(object, Question::Replicas) else {
            return Ok(native::replicas(object));
        };
        self.host.call(script, "GetReplicas", &[object], |answer| {
            let count = whole_number(answer, 0)?;
            let requirements = match answer.value(1) {
                mlua::Value::Nil => None,
                _ => Some(answer.table(1, &[])?),
            };
            Ok(Some(Replicas { count, requirements }))
        })
    }

    /// The parts of an object and what each needs; nothing for a kind without parts.
    pub fn components(&self, object: &Value) -> Result<Option<Vec<Value>>, ScriptError> {
        let Some(script) = self.script(object, Question::Components) else { return Ok(None) };
        self.host.call(script, "GetComponents", &[object], |answer| match answer.value(0) {
            mlua::Value::Nil => Ok(None),
            _ => list(answer).map(Some),
        })
    }

    /// The object with another number of replicas.
    pub fn revise_replicas(&self, object: Value, replicas: i32) -> Result<Value, ScriptError> {
        match self.script(&object, Question::ReviseReplica) {
            Some(script) => {
                let count = Value::from(replicas);
                self.host
                    .call(script, "ReviseReplica", &[&object, &count], |answer| answer.table(0, &[&object]))
            }
            None => Ok(native::revise_replicas(object, replicas)),
        }
    }

    /// What of the member's status is carried back; nothing when there is none.
    pub fn reflect_status(&self, observed: &Value) -> Result<Option<Value>, ScriptError> {
        match self.script(observed, Question::ReflectStatus) {
            Some(script) => self
                .host
                .call(script, "ReflectStatus", &[observed], |answer| answer.table(0, &[&observed["status"]]))
                .map(Some),
            None => Ok(observed.get("status").filter(|status| !status.is_null()).cloned()),
        }
    }

    /// The status that the hub object should have, from what the members say; nothing when nobody said how.
    ///
    /// `object` is the hub object with its status of now; `items` have `clusterName`, `status`, `applied`,
    /// `appliedMessage` and `health`.
    pub fn aggregate_status(&self, object: &Value, items: &[Value]) -> Result<Option<Value>, ScriptError> {
        let Some(script) = self.script(object, Question::AggregateStatus) else {
            return Ok(native::aggregate_status(object, items));
        };
        // The members' statuses have the shape of the answer: they decide about empty lists that the script makes.
        let shapes: Vec<Value> =
            items.iter().map(|item| serde_json::json!({"status": item["status"]})).collect();
        let references: Vec<&Value> = std::iter::once(object).chain(&shapes).collect();
        let list = Value::Array(items.to_vec());
        let answer = self
            .host
            .call(script, "AggregateStatus", &[object, &list], |answer| answer.table(0, &references))?;
        Ok(answer.get("status").cloned())
    }

    /// Whether a member's object is well, and what went wrong in telling.
    pub fn health(&self, observed: &Value) -> (Health, Option<ScriptError>) {
        let Some(script) = self.script(observed, Question::Health) else {
            return (native::health(observed), None);
        };
        let told = self.host.call(script, "InterpretHealth", &[observed], |answer| match answer.value(0) {
            mlua::Value::Boolean(well) => Ok(*well),
            other => Err(format!("true or false is wanted, {} was given", other.type_name())),
        });
        match told {
            Ok(true) => (Health::Healthy, None),
            Ok(false) => (Health::Unhealthy, None),
            Err(error) => (Health::Unknown, Some(error)),
        }
    }

    /// References to the objects that must go along; every customization of the kind is asked.
    pub fn dependencies(&self, object: &Value) -> Result<Vec<Value>, ScriptError> {
        let scripts = self.rules.dependency_scripts(&Target::of(object));
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

fn list(answer: &Answer<'_>) -> Result<Vec<Value>, String> {
    match answer.table(0, &[])? {
        Value::Array(items) => Ok(items),
        Value::Object(fields) if fields.is_empty() => Ok(Vec::new()),
        other => Err(format!("a list is wanted, {other} was given")),
    }
}

fn whole_number(answer: &Answer<'_>, at: usize) -> Result<i32, String> {
    let number = match answer.value(at) {
        mlua::Value::Integer(number) => *number as f64,
        mlua::Value::Number(number) => *number,
        other => return Err(format!("a number is wanted, {} was given", other.type_name())),
    };
    if !(f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&number) {
        return Err(format!("{number} is no number of replicas"));
    }
    Ok(number as i32)
}
