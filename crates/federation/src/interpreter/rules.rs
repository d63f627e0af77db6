//! The active rule set: the script for each operation and kind, from the ResourceInterpreterCustomizations.

use std::collections::BTreeMap;
use std::sync::Arc;

use polis_api::karmada::{LuaRule, ResourceInterpreterCustomization};

use super::{LuaHost, ScriptError, TypeMeta};

/// An interpreter operation that a script may define.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InterpreterOperation {
    /// `Retain`
    Retain,
    /// `GetReplicas`
    Replicas,
    /// `GetComponents`
    Components,
    /// `ReviseReplica`
    ReviseReplica,
    /// `ReflectStatus`
    ReflectStatus,
    /// `AggregateStatus`
    AggregateStatus,
    /// `InterpretHealth`
    Health,
}

/// Two customizations with a script for the same operation and kind; the first by name has precedence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptConflict {
    /// The customization whose script is ignored.
    pub name: String,
    /// The customization with precedence.
    pub winner: String,
    /// The operation.
    pub operation: InterpreterOperation,
}

/// The scripts for one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KindRules {
    scripts: BTreeMap<InterpreterOperation, (Arc<str>, Arc<str>)>,
    dependencies: Vec<Arc<str>>,
}

/// All customizations, by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleSet {
    kinds: BTreeMap<TypeMeta, KindRules>,
}

impl RuleSet {
    /// Builds the rule set. Conflicts are decided by name, independent of the order of the list.
    /// Customizations that are being deleted are ignored.
    pub fn collect<'a>(
        all: impl IntoIterator<Item = &'a ResourceInterpreterCustomization>,
    ) -> (Self, Vec<ScriptConflict>) {
        let mut sorted: Vec<_> =
            all.into_iter().filter(|one| one.metadata.deletion_timestamp.is_none()).collect();
        sorted.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let (mut rule_set, mut conflicts) = (RuleSet::default(), Vec::new());
        for customization in sorted {
            let name: Arc<str> = customization.metadata.name.as_deref().unwrap_or_default().into();
            let type_meta = &customization.spec.target;
            let type_meta =
                TypeMeta { api_version: type_meta.api_version.clone(), kind: type_meta.kind.clone() };
            let rules = rule_set.kinds.entry(type_meta).or_default();
            for (operation, rule) in operations(customization) {
                let Some(script) = text(rule) else { continue };
                if let Some((winner, _)) = rules.scripts.get(&operation) {
                    conflicts.push(ScriptConflict {
                        name: name.to_string(),
                        winner: winner.to_string(),
                        operation,
                    });
                } else {
                    rules.scripts.insert(operation, (name.clone(), script));
                }
            }
            rules
                .dependencies
                .extend(text(customization.spec.customizations.dependency_interpretation.as_ref()));
        }
        rule_set.kinds.retain(|_, rules| *rules != KindRules::default());
        (rule_set, conflicts)
    }

    /// The script for an operation on a kind.
    pub fn script(&self, type_meta: &TypeMeta, operation: InterpreterOperation) -> Option<&str> {
        self.kinds.get(type_meta)?.scripts.get(&operation).map(|(_, script)| &**script)
    }

    /// All dependency scripts of a kind.
    pub fn dependency_scripts(&self, type_meta: &TypeMeta) -> &[Arc<str>] {
        self.kinds.get(type_meta).map_or(&[], |rules| rules.dependencies.as_slice())
    }

    /// The kinds for which two rule sets differ; their objects must be reconciled when one replaces the
    /// other.
    pub fn differing(&self, other: &RuleSet) -> Vec<TypeMeta> {
        let mut type_metas: Vec<TypeMeta> = self.kinds.keys().chain(other.kinds.keys()).cloned().collect();
        type_metas.sort();
        type_metas.dedup();
        type_metas.retain(|type_meta| self.kinds.get(type_meta) != other.kinds.get(type_meta));
        type_metas
    }
}

/// Checks that every script of a customization compiles; returns the first error with its operation.
pub fn check(
    host: &LuaHost,
    customization: &ResourceInterpreterCustomization,
) -> Result<(), (Option<InterpreterOperation>, ScriptError)> {
    for (operation, rule) in operations(customization) {
        if let Some(script) = text(rule) {
            host.check(&script).map_err(|error| (Some(operation), error))?;
        }
    }
    match text(customization.spec.customizations.dependency_interpretation.as_ref()) {
        Some(script) => host.check(&script).map_err(|error| (None, error)),
        None => Ok(()),
    }
}

fn operations(
    customization: &ResourceInterpreterCustomization,
) -> [(InterpreterOperation, Option<&LuaRule>); 7] {
    let rules = &customization.spec.customizations;
    [
        (InterpreterOperation::Retain, rules.retention.as_ref()),
        (InterpreterOperation::Replicas, rules.replica_resource.as_ref()),
        (InterpreterOperation::Components, rules.component_resource.as_ref()),
        (InterpreterOperation::ReviseReplica, rules.replica_revision.as_ref()),
        (InterpreterOperation::ReflectStatus, rules.status_reflection.as_ref()),
        (InterpreterOperation::AggregateStatus, rules.status_aggregation.as_ref()),
        (InterpreterOperation::Health, rules.health_interpretation.as_ref()),
    ]
}

fn text(rule: Option<&LuaRule>) -> Option<Arc<str>> {
    rule.map(|rule| rule.lua_script.as_str()).filter(|script| !script.trim().is_empty()).map(Arc::from)
}
