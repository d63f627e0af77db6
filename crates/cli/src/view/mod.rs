//! Diagnosis and rendering of the user's commands: pure functions of objects and a given time.
//!
//! This module does not access a server, a terminal or the clock, so that every table, tree and diagnosis is
//! tested with the text that a user reads.

pub mod age;
pub mod credentials;
pub mod data;
pub mod diagnosis;
pub mod diff;
pub mod escape;
pub mod headroom;
pub mod history;
pub mod lists;
pub mod manifest;
pub mod nearest;
pub mod progress;
pub mod reasons;
pub mod snapshot;
pub mod state;
pub mod table;
#[cfg(test)]
pub mod testing;
pub mod tree;
pub mod unknown_fields;

/// Severity of a state. The serialised names are part of the `-o json` output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The desired state.
    #[default]
    Ok,
    /// Not the desired state yet; it is expected to change without action.
    Progressing,
    /// It does not change without action.
    Blocked,
}
