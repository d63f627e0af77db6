//! The customizations in force: which script answers which question about which kind.

use std::collections::BTreeMap;
use std::sync::Arc;

use polis_api::karmada::{LuaRule, ResourceInterpreterCustomization};

use super::{Host, ScriptError, Target};

/// A question that a script may answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Question {
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

/// Two customizations that answer the same question about the same kind; the first by name is heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clash {
    /// The customization that is not heard.
    pub name: String,
    /// The one that is.
    pub heard: String,
    /// What both answer.
    pub question: Question,
}

/// The scripts for one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    answers: BTreeMap<Question, (Arc<str>, Arc<str>)>,
    dependencies: Vec<Arc<str>>,
}

/// All customizations, by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    kinds: BTreeMap<Target, Rules>,
}

impl Table {
    /// Collects customizations. The order of the list does not matter: names decide clashes.
    /// One that is being deleted is not heard.
    pub fn collect<'a>(
        all: impl IntoIterator<Item = &'a ResourceInterpreterCustomization>,
    ) -> (Self, Vec<Clash>) {
        let mut sorted: Vec<_> =
            all.into_iter().filter(|one| one.metadata.deletion_timestamp.is_none()).collect();
        sorted.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        let (mut table, mut clashes) = (Table::default(), Vec::new());
        for customization in sorted {
            let name: Arc<str> = customization.metadata.name.as_deref().unwrap_or_default().into();
            let target = &customization.spec.target;
            let target = Target { api_version: target.api_version.clone(), kind: target.kind.clone() };
            let rules = table.kinds.entry(target).or_default();
            for (question, rule) in questions(customization) {
                let Some(script) = text(rule) else { continue };
                if let Some((heard, _)) = rules.answers.get(&question) {
                    clashes.push(Clash { name: name.to_string(), heard: heard.to_string(), question });
                } else {
                    rules.answers.insert(question, (name.clone(), script));
                }
            }
            rules
                .dependencies
                .extend(text(customization.spec.customizations.dependency_interpretation.as_ref()));
        }
        table.kinds.retain(|_, rules| *rules != Rules::default());
        (table, clashes)
    }

    /// The script that answers a question about a kind.
    pub fn script(&self, target: &Target, question: Question) -> Option<&str> {
        self.kinds.get(target)?.answers.get(&question).map(|(_, script)| &**script)
    }

    /// All scripts that tell what objects of a kind depend on.
    pub fn dependency_scripts(&self, target: &Target) -> &[Arc<str>] {
        self.kinds.get(target).map_or(&[], |rules| rules.dependencies.as_slice())
    }

    /// The kinds for which the two tables differ: what must be looked at again when one replaces the other.
    pub fn differing(&self, other: &Table) -> Vec<Target> {
        let mut targets: Vec<Target> = self.kinds.keys().chain(other.kinds.keys()).cloned().collect();
        targets.sort();
        targets.dedup();
        targets.retain(|target| self.kinds.get(target) != other.kinds.get(target));
        targets
    }
}

/// Checks that every script of a customization compiles; the first that does not is named with its rule.
pub fn check(
    host: &Host,
    customization: &ResourceInterpreterCustomization,
) -> Result<(), (Option<Question>, ScriptError)> {
    for (question, rule) in questions(customization) {
        if let Some(script) = text(rule) {
            host.check(&script).map_err(|error| (Some(question), error))?;
        }
    }
    match text(customization.spec.customizations.dependency_interpretation.as_ref()) {
        Some(script) => host.check(&script).map_err(|error| (None, error)),
        None => Ok(()),
    }
}

fn questions(customization: &ResourceInterpreterCustomization) -> [(Question, Option<&LuaRule>); 7] {
    let rules = &customization.spec.customizations;
    [
        (Question::Retain, rules.retention.as_ref()),
        (Question::Replicas, rules.replica_resource.as_ref()),
        (Question::Components, rules.component_resource.as_ref()),
        (Question::ReviseReplica, rules.replica_revision.as_ref()),
        (Question::ReflectStatus, rules.status_reflection.as_ref()),
        (Question::AggregateStatus, rules.status_aggregation.as_ref()),
        (Question::Health, rules.health_interpretation.as_ref()),
    ]
}

fn text(rule: Option<&LuaRule>) -> Option<Arc<str>> {
    rule.map(|rule| rule.lua_script.as_str()).filter(|script| !script.trim().is_empty()).map(Arc::from)
}
