//! One paragraph per cause: equal findings about several instances or cities are merged, and a cause takes
//! the place of what follows from it.

use polis_api::reasons::{PENDING_EVALUATION, PROVISIONING_NETWORK, SCHEDULING_GATES_PRESENT};

use super::Finding;
use crate::view::Severity;

/// Merges equal findings about instances of a city.
pub fn of_instances(findings: Vec<Finding>, about: &str) -> Vec<Finding> {
    let mut groups: Vec<(Finding, usize)> = Vec::new();
    for finding in findings {
        let alike = |group: &&mut (Finding, usize)| {
            (&group.0.reason, &group.0.message, &group.0.meaning)
                == (&finding.reason, &finding.message, &finding.meaning)
        };
        match groups.iter_mut().find(alike) {
            Some((first, count)) => {
                *count += 1;
                first.since = first.since.min(finding.since);
            }
            None => groups.push((finding, 1)),
        }
    }
    let named = |(mut finding, count): (Finding, usize)| {
        finding.about = match count {
            1 => format!("{about}, {}", finding.about),
            _ => format!("{about}, {count} instances"),
        };
        finding.instances = count;
        finding
    };
    groups.into_iter().map(named).collect()
}

/// Merges the findings of several cities that have one cause: they are equal but for the name of the city.
pub fn of_cities(findings: Vec<Finding>) -> Vec<Finding> {
    let mut merged: Vec<Vec<Finding>> = Vec::new();
    for finding in findings {
        let alike = |group: &&mut Vec<Finding>| !finding.city.is_empty() && same_cause(&group[0], &finding);
        match merged.iter_mut().find(alike) {
            Some(group) => group.push(finding),
            None => merged.push(vec![finding]),
        }
    }
    merged.into_iter().map(joined).collect()
}

fn same_cause(one: &Finding, other: &Finding) -> bool {
    let general = |finding: &Finding, text: &str| match finding.city.as_str() {
        "" => text.to_owned(),
        city => text.replace(city, "CITY"),
    };
    let key = |finding: &Finding| {
        (finding.reason.clone(), general(finding, &finding.message), general(finding, &finding.meaning))
    };
    one.severity == other.severity && one.actor == other.actor && key(one) == key(other)
}

fn joined(group: Vec<Finding>) -> Finding {
    let cities: Vec<&str> = group.iter().map(|finding| finding.city.as_str()).collect();
    let mut planes: Vec<&str> = group.iter().map(|finding| finding.plane.as_str()).collect();
    planes.dedup();
    let instances: usize = group.iter().map(|finding| finding.instances).sum();
    let counted = if instances > 1 { format!(", {instances} instances") } else { String::new() };
    let about = format!("{}{counted}", cities.join(", "));
    let since = group.iter().filter_map(|finding| finding.since).min();
    let plane = planes.join(", ");
    match <[Finding; 1]>::try_from(group) {
        Ok([finding]) => finding,
        Err(group) => {
            let first = group.into_iter().next().unwrap_or_default();
            Finding { about, plane, since, instances, ..first }
        }
    }
}

/// Adds the findings of related objects. They take the place of the waits that they explain.
pub fn explain(findings: &mut Vec<Finding>, explained: Vec<Finding>) {
    const WAITS: [&str; 3] = [SCHEDULING_GATES_PRESENT, PENDING_EVALUATION, PROVISIONING_NETWORK];
    if !explained.is_empty() {
        findings.retain(|finding| !WAITS.contains(&finding.reason.as_str()));
        findings.extend(explained);
    }
}

/// Keeps only what is blocked if something is: the rest waits for it.
pub fn causes_only(mut findings: Vec<Finding>) -> Vec<Finding> {
    if findings.iter().any(|finding| finding.severity == Severity::Blocked) {
        findings.retain(|finding| finding.severity == Severity::Blocked);
    }
    findings
}
