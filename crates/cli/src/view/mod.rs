//! What verbs decide and draw: pure functions over objects and a clock handed in.
//!
//! Nothing here asks a server, a terminal or the time, so that every table, tree and diagnosis has a test with the
//! text that a person would read.

pub mod age;
pub mod diagnosis;
pub mod diff;
pub mod draft;
pub mod history;
pub mod lists;
pub mod picture;
pub mod progress;
pub mod reasons;
pub mod state;
pub mod table;
#[cfg(test)]
pub mod testing;
pub mod tree;

/// How well things stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mood {
    /// As wanted.
    Good,
    /// On the way: waiting cures it.
    Moving,
    /// Waiting does not cure it.
    Stuck,
}
