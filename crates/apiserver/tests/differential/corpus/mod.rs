//! Scripts of requests, by topic. Those that share a namespace follow each other; the others run side by side.

mod access;
mod apply;
mod custom;
mod definitions;
mod forms;
mod keys;
mod life;
mod mistakes;
mod namespaces;
mod patches;
mod reading;
mod removal;
mod subjects;

use serde_json::json;

use crate::script::{Script, Step, post};
use subjects::Subject;

/// Scripts that run one after the other.
pub type Chain = Vec<Script>;

/// Makes the custom kinds that the others use.
pub fn first() -> Chain {
    vec![subjects::definitions()]
}

/// What needs only the custom kinds: chains that do not touch each other.
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
    // The long ones first, so that none is left to run alone.
    chains
        .sort_by_key(|chain| std::cmp::Reverse(chain.iter().map(|script| script.steps.len()).sum::<usize>()));
    chains
}

/// What looks at everything the others left behind.
pub fn last() -> Chain {
    vec![definitions::discovery()]
}

/// Makes the namespace of a script and, for custom kinds, waits until they are served.
pub fn opening(namespace: &str) -> Vec<Step> {
    vec![
        post(
            "/api/v1/namespaces",
            &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        )
        .called("the namespace"),
    ]
}

/// Every topic for every subject.
fn of_every_kind() -> Vec<Script> {
    type Steps = fn(&Subject, &str) -> Vec<Step>;
    let topics: [(&str, Steps); 6] = [
        ("life", life::steps),
        ("mistakes", mistakes::steps),
        ("patches", patches::steps),
        ("reading", reading::steps),
        ("removal", removal::steps),
        ("forms", forms::steps),
    ];
    let mut scripts = Vec::new();
    for subject in subjects::subjects() {
        for (topic, steps) in topics {
            let namespace = format!("d-{}-{topic}", subject.name);
            let mut all = opening(&namespace);
            all.extend(steps(&subject, &namespace));
            for step in &mut all {
                step.body = step.body.replace("$NS", &namespace);
            }
            scripts.push(Script::new(format!("{}-{topic}", subject.name), all));
        }
    }
    scripts
}
