//! Runs a script against both servers, and reads the list of intended differences.

use std::fmt;

use kube::Client;
use regex::Regex;
use serde::Deserialize;

use crate::{
    normalize,
    script::{Script, ScriptResponse},
};

/// Two different responses to one request.
pub struct Difference {
    /// `script/step`.
    pub place: String,
    theirs: ScriptResponse,
    ours: ScriptResponse,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (theirs, ours) = (self.theirs.show(&self.ours), self.ours.show(&self.theirs));
        write!(f, "{}\n  theirs {theirs}\n  ours   {ours}", self.place)
    }
}

/// Runs a script against both servers and returns the differences.
pub async fn both(script: &Script, theirs: &Client, ours: &Client) -> Vec<Difference> {
    let (left, right) = tokio::join!(script.play(theirs), script.play(ours));
    let mut found = Vec::new();
    for (step, (a, b)) in script.steps.iter().zip(left.iter().zip(&right)) {
        let (theirs, ours) = (normalize::normalize(a), normalize::normalize(b));
        if theirs != ours {
            found.push(Difference { place: format!("{}/{}", script.name, step.title()), theirs, ours });
        }
    }
    found
}

/// An intended difference.
#[derive(Deserialize)]
pub struct Deviation {
    /// A regular expression that matches `script/step`.
    pub at: String,
    reason: String,
}

impl Deviation {
    /// The checked-in list.
    pub fn all() -> Vec<Self> {
        let all: Vec<Self> = serde_json::from_str(include_str!("deviations.json")).expect("deviations");
        assert!(all.iter().all(|one| one.reason.len() > 10), "every deviation has a reason");
        all
    }

    pub fn covers(&self, difference: &Difference) -> bool {
        Regex::new(&self.at).expect("a pattern").is_match(&difference.place)
    }
}
