//! The report of a failed scenario: objects and changes on every plane, and log lines of the processes.

use std::fmt::Write as _;

use serde_json::Value;

use crate::{recorder::RecordedChange, world::World};

/// Number of changes per plane in a report.
const MAX_ENTRIES: usize = 40;

/// Objects and changes in the namespaces of a scenario, and log lines that name them.
pub fn render(world: &World) -> String {
    let mut text = String::from("\n======== state of every plane\n");
    let namespaces: Vec<String> = world.projects().iter().flat_map(|project| project.namespaces()).collect();
    for recorder in world.recorders() {
        let mut part = String::new();
        for namespace in &namespaces {
            for (key, object) in recorder.in_namespace(namespace) {
                _ = writeln!(part, "  {key}  {}", brief(&object));
            }
        }
        let about =
            |entry: &RecordedChange| namespaces.contains(&entry.key.namespace) && entry.key.kind != "Event";
        let entries: Vec<RecordedChange> =
            recorder.journal(world.started_at()).into_iter().filter(about).collect();
        for entry in &entries[entries.len().saturating_sub(MAX_ENTRIES)..] {
            let after = entry.at.duration_since(world.started_at()).as_secs_f64();
            _ = writeln!(
                part,
                "    {after:>7.2} s  {:?} {}  {}",
                entry.change,
                entry.key,
                brief(&entry.object)
            );
        }
        if !part.is_empty() {
            _ = write!(text, "-------- {}\n{part}", recorder.plane);
        }
    }
    for process in world.processes() {
        let lines = process.log_lines_about(&namespaces);
        _ = writeln!(
            text,
            "-------- {} ({})",
            process.role,
            if process.is_alive() { "running" } else { "not running" }
        );
        for line in lines {
            _ = writeln!(text, "  {line}");
        }
        if !process.is_alive() {
            _ = writeln!(text, "{}", process.tail());
        }
    }
    text
}

/// One line about an object: deletion, finalizers, owners, conditions and counts.
fn brief(object: &Value) -> String {
    let mut parts = Vec::new();
    let meta = &object["metadata"];
    if let Some(version) = meta["resourceVersion"].as_str() {
        parts.push(format!("@{version}"));
    }
    if !meta["deletionTimestamp"].is_null() {
        parts.push("deleting".to_owned());
    }
    if let Some(finalizers) = meta["finalizers"].as_array() {
        let names: Vec<&str> =
            finalizers.iter().filter_map(Value::as_str).map(|f| f.rsplit('/').next().unwrap_or(f)).collect();
        parts.push(format!("finalizers {}", names.join("+")));
    }
    if let Some(owners) = meta["ownerReferences"].as_array() {
        let names: Vec<&str> = owners.iter().filter_map(|owner| owner["name"].as_str()).collect();
        parts.push(format!("of {}", names.join("+")));
    }
    for condition in object.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten() {
        let part = |key: &str| condition[key].as_str().unwrap_or("?").to_owned();
        parts.push(format!("{}={}/{}", part("type"), part("status"), part("reason")));
    }
    for count in ["replicas", "readyReplicas", "desiredReplicas", "currentReplicas"] {
        if let Some(number) = object["status"][count].as_i64() {
            parts.push(format!("{count}:{number}"));
        }
    }
    if let Some(gates) = object.pointer("/spec/controller/schedulingGates").and_then(Value::as_array) {
        let names: Vec<&str> = gates.iter().filter_map(|gate| gate["name"].as_str()).collect();
        parts.push(format!("gates {}", names.join("+")));
    }
    if let (Some(reason), Some(message)) = (object["reason"].as_str(), object["message"].as_str()) {
        parts.push(format!("{reason}: {message}"));
    }
    parts.join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_summarises_an_object() {
        let instance = serde_json::json!({
            "metadata": {"resourceVersion": "7", "deletionTimestamp": "x", "finalizers": ["a/b"]},
            "spec": {"controller": {"schedulingGates": [{"name": "Quota"}]}},
            "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "PendingQuota"}]},
        });
        assert_eq!(brief(&instance), "@7  deleting  finalizers b  Ready=False/PendingQuota  gates Quota");
    }
}
