//! The companions that a deployment expects, and why it lacks one.

use polis_api::annotations::{EXPECTED_REFERENCED_DATA, REFERENCED_DATA_ERROR};
use polis_api::reasons;
use serde::{Deserialize, Serialize};

use super::{OBJECT_LIMIT, Reference, SourceFacts, TOTAL_LIMIT};
use crate::metadata::{self, Map};

/// The state of a source on the project's plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// It exists.
    Found(SourceFacts),
    /// It does not exist.
    Missing,
    /// The management plane may not read it.
    Unauthorized,
    /// An object that is not a companion has the name of its companion.
    NameTaken,
}

/// Why a deployment lacks data. Only a change of a source or of the workload helps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The reason of the condition.
    pub reason: String,
    /// The message of the condition.
    pub message: String,
}

/// What the federator writes on the hub copy of a deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolution {
    /// Whether the template refers to anything.
    pub has_references: bool,
    /// The tokens `Kind/name@hash` of the companions.
    pub expected: Vec<String>,
    /// Why data is missing.
    pub failure: Option<Failure>,
    /// The references whose companions must have the content of their sources.
    pub copied: Vec<usize>,
}

impl Resolution {
    /// The annotations of the hub copy; none if the template refers to nothing.
    pub fn annotations(&self) -> Map {
        if !self.has_references {
            return Map::new();
        }
        let mut map = metadata::map([(EXPECTED_REFERENCED_DATA, json(&self.expected))]);
        if let Some(failure) = &self.failure {
            map.insert(REFERENCED_DATA_ERROR.to_owned(), json(failure));
        }
        map
    }
}

/// Texts alone, so it cannot fail.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Resolves the references of a deployment. `sources` has the state of each source, and the hash of its
/// existing companion.
///
/// A companion whose source is missing or cannot be copied stays as it is: what runs keeps its data. A
/// source that is optional is never missing.
pub fn resolve(references: &[Reference], sources: &[(SourceState, Option<String>)]) -> Resolution {
    let mut failures = Vec::new();
    let mut found = Vec::new();
    for (index, (reference, (state, existing))) in references.iter().zip(sources).enumerate() {
        let facts = match problem(reference, state) {
            Some(failure) => {
                if !reference.optional {
                    failures.push(failure);
                }
                None
            }
            None => match state {
                SourceState::Found(facts) => Some(facts),
                _ => None,
            },
        };
        found.push((index, reference, facts, existing));
    }
    let total: usize = found.iter().filter_map(|(_, _, facts, _)| Some(facts.as_ref()?.size)).sum();
    let mut resolution = Resolution { has_references: !references.is_empty(), ..Resolution::default() };
    for (index, reference, facts, existing) in found {
        let facts = facts.filter(|_| total <= TOTAL_LIMIT);
        if let Some(facts) = facts {
            resolution.copied.push(index);
            failures.extend(missing_keys(reference, facts));
        }
        if let Some(hash) = facts.map(|facts| &facts.hash).or(existing.as_ref()) {
            let token = reference.kind.token(&reference.companion());
            resolution.expected.push(format!("{token}@{hash}"));
        }
    }
    if total > TOTAL_LIMIT {
        failures.push(Failure {
            reason: reasons::SOURCE_TOO_LARGE.to_owned(),
            message: format!(
                "the config maps and secrets of the workload have {total} bytes; all together may have at most {TOTAL_LIMIT}"
            ),
        });
    }
    resolution.expected.sort();
    resolution.failure = first(failures);
    resolution
}

/// Why a source cannot be copied.
fn problem(reference: &Reference, state: &SourceState) -> Option<Failure> {
    let (reason, message) = match state {
        SourceState::Found(facts) if facts.size > OBJECT_LIMIT => (
            reasons::SOURCE_TOO_LARGE,
            format!("{reference} has {} bytes; one may have at most {OBJECT_LIMIT}", facts.size),
        ),
        SourceState::Found(_) => return None,
        SourceState::Missing => (
            reasons::SOURCE_NOT_FOUND,
            format!("{reference} does not exist in the namespace of the workload; create it"),
        ),
        SourceState::Unauthorized => {
            (reasons::SOURCE_UNAUTHORIZED, format!("Polis may not read {reference} in the project"))
        }
        SourceState::NameTaken => (
            reasons::SOURCE_UNAUTHORIZED,
            format!(
                "on the hub, an object that Polis has not made has the name {} of the copy of {reference}",
                reference.companion()
            ),
        ),
    };
    Some(Failure { reason: reason.to_owned(), message })
}

fn missing_keys(reference: &Reference, facts: &SourceFacts) -> Option<Failure> {
    let missing: Vec<&str> = reference.keys.difference(&facts.keys).map(String::as_str).collect();
    (!missing.is_empty()).then(|| Failure {
        reason: reasons::KEY_NOT_FOUND.to_owned(),
        message: format!("{reference} has no key {}; add it", missing.join(", ")),
    })
}

/// One failure of all: the reason of the first, and every message.
fn first(failures: Vec<Failure>) -> Option<Failure> {
    let messages: Vec<&str> = failures.iter().map(|failure| failure.message.as_str()).collect();
    let message = messages.join("; ");
    failures.first().map(|failure| Failure { reason: failure.reason.clone(), message })
}
