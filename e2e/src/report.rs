//! Report: what was seen on every plane when a scenario failed.

use std::fmt::Write as _;

use serde_json::Value;

use crate::{eye::Note, world::World};

/// Lines of journal per plane that a report shows.
const NOTES: usize = 40;

/// Everything that the eyes know about the namespaces of a scenario, and what the processes said about them.
pub fn of(world: &World) -> String {
    let mut text = String::from("\n======== what was seen on every plane\n");
    let namespaces: Vec<String> = world.projects().iter().flat_map(|project| project.namespaces()).collect();
    for eye in world.eyes() {
        let mut part = String::new();
        for namespace in &namespaces {
            for (key, object) in eye.within(namespace) {
                let _ = writeln!(part, "  {key}  {}", brief(&object));
            }
        }
        let about = |note: &Note| namespaces.contains(&note.key.namespace) && note.key.kind != "Event";
        let notes: Vec<Note> = eye.journal(world.began()).into_iter().filter(about).collect();
        for note in &notes[notes.len().saturating_sub(NOTES)..] {
            let after = note.at.duration_since(world.began()).as_secs_f64();
            let _ =
                writeln!(part, "    {after:>7.2} s  {:?} {}  {}", note.change, note.key, brief(&note.object));
        }
        if !part.is_empty() {
            let _ = write!(text, "-------- {}\n{part}", eye.plane);
        }
    }
    for member in world.staff() {
        let lines = member.said_about(&namespaces);
        let _ = writeln!(
            text,
            "-------- {} ({})",
            member.role,
            if member.is_alive() { "alive" } else { "not alive" }
        );
        for line in lines {
            let _ = writeln!(text, "  {line}");
        }
        if !member.is_alive() {
            let _ = writeln!(text, "{}", member.tail());
        }
    }
    text
}

/// One line on an object: whether it is leaving, what holds and owns it, and its conditions and counts.
fn brief(object: &Value) -> String {
    let mut words = Vec::new();
    let meta = &object["metadata"];
    if let Some(version) = meta["resourceVersion"].as_str() {
        words.push(format!("@{version}"));
    }
    if !meta["deletionTimestamp"].is_null() {
        words.push("leaving".to_owned());
    }
    if let Some(held) = meta["finalizers"].as_array() {
        let names: Vec<&str> =
            held.iter().filter_map(Value::as_str).map(|f| f.rsplit('/').next().unwrap_or(f)).collect();
        words.push(format!("held by {}", names.join("+")));
    }
    if let Some(owners) = meta["ownerReferences"].as_array() {
        let names: Vec<&str> = owners.iter().filter_map(|owner| owner["name"].as_str()).collect();
        words.push(format!("of {}", names.join("+")));
    }
    for condition in object.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten() {
        let part = |key: &str| condition[key].as_str().unwrap_or("?").to_owned();
        words.push(format!("{}={}/{}", part("type"), part("status"), part("reason")));
    }
    for count in ["replicas", "readyReplicas", "desiredReplicas", "currentReplicas"] {
        if let Some(number) = object["status"][count].as_i64() {
            words.push(format!("{count}:{number}"));
        }
    }
    if let Some(gates) = object.pointer("/spec/controller/schedulingGates").and_then(Value::as_array) {
        let names: Vec<&str> = gates.iter().filter_map(|gate| gate["name"].as_str()).collect();
        words.push(format!("gated by {}", names.join("+")));
    }
    if let (Some(reason), Some(message)) = (object["reason"].as_str(), object["message"].as_str()) {
        words.push(format!("{reason}: {message}"));
    }
    words.join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_one_looks_for_first() {
        let instance = serde_json::json!({
            "metadata": {"resourceVersion": "7", "deletionTimestamp": "x", "finalizers": ["a/b"]},
            "spec": {"controller": {"schedulingGates": [{"name": "Quota"}]}},
            "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "PendingQuota"}]},
        });
        assert_eq!(brief(&instance), "@7  leaving  held by b  Ready=False/PendingQuota  gated by Quota");
    }
}
