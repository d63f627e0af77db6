//! Scripts of requests, by topic. Scripts that share a namespace run in order; the others run concurrently.

mod access;
mod apply;
mod custom;
mod definitions;
mod deletion;
mod formats;
mod invalid;
mod keys;
mod lifecycle;
mod namespaces;
mod patches;
mod reading;
pub mod replays;
mod subjects;

use serde_json::json;

use crate::script::{Script, ScriptStep, post};
use subjects::Subject;

/// Scripts that run in order.
pub type Chain = Vec<Script>;

/// Creates the custom kinds of the other scripts.
pub fn first() -> Chain {
    vec![subjects::definitions()]
}

/// Independent chains, which need only the custom kinds.
pub fn chains() -> Vec<Chain> {
    let mut chains: Vec<Chain> = of_every_kind().into_iter().map(|script| vec![script]).collect();
    chains.extend([
        vec![namespaces::script()],
        vec![keys::script()],
        custom::scripts(),
        apply::scripts(),
        definitions::scripts(),
    ]);
    chains.extend(access::scripts().into_iter().map(|script| vec![script]));
    // Long chains first, so that none runs alone at the end.
    chains
        .sort_by_key(|chain| std::cmp::Reverse(chain.iter().map(|script| script.steps.len()).sum::<usize>()));
    chains
}

/// Scripts that run after all others, on the final state.
pub fn last() -> Chain {
    vec![definitions::discovery()]
}

/// Creates the namespace of a script.
pub fn opening(namespace: &str) -> Vec<ScriptStep> {
    vec![
        post(
            "/api/v1/namespaces",
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        )
        .titled("the namespace"),
    ]
}

/// A script for every topic and every subject.
fn of_every_kind() -> Vec<Script> {
    topics("d").into_iter().map(|(_, script)| script).collect()
}

/// Namespace and script of every topic and every subject. `prefix` begins the names of the namespaces.
fn topics(prefix: &str) -> Vec<(String, Script)> {
    type Steps = fn(&Subject, &str) -> Vec<ScriptStep>;
    let topics: [(&str, Steps); 6] = [
        ("lifecycle", lifecycle::steps),
        ("invalid", invalid::steps),
        ("patches", patches::steps),
        ("reading", reading::steps),
        ("deletion", deletion::steps),
        ("formats", formats::steps),
    ];
    let mut scripts = Vec::new();
    for subject in subjects::subjects() {
        for (topic, steps) in topics {
            let namespace = format!("{prefix}-{}-{topic}", subject.name);
            let mut all = opening(&namespace);
            all.extend(steps(&subject, &namespace));
            for step in &mut all {
                step.body = step.body.replace("$NS", &namespace);
            }
            scripts.push((namespace, Script::new(format!("{}-{topic}", subject.name), all)));
        }
    }
    scripts
}
