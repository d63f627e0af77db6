//! Aggregated status of a binding, from its Works.

use polis_api::conditions::karmada::{APPLIED, FULLY_APPLIED};
use polis_api::karmada::{AggregatedStatusItem, Work};

use crate::conditions::{self, ConditionUpdate};
use crate::names;

/// Number of clusters that a message names; the rest is counted.
const NAMED: usize = 5;

/// One item for each Work that is not being deleted, sorted by cluster name.
pub fn items<'a>(works: impl IntoIterator<Item = &'a Work>) -> Vec<AggregatedStatusItem> {
    let mut items: Vec<AggregatedStatusItem> = works
        .into_iter()
        .filter(|work| work.metadata.deletion_timestamp.is_none())
        .filter_map(item)
        .collect();
    items.sort_by(|a, b| a.cluster_name.cmp(&b.cluster_name));
    items
}

fn item(work: &Work) -> Option<AggregatedStatusItem> {
    let cluster = names::cluster_of_execution_namespace(work.metadata.namespace.as_deref()?)?;
    let status = work.status.clone().unwrap_or_default();
    let applied = status.conditions.iter().find(|condition| condition.type_ == APPLIED);
    let mut item = AggregatedStatusItem {
        cluster_name: cluster.to_owned(),
        health: Some("Unknown".to_owned()),
        ..AggregatedStatusItem::default()
    };
    match applied {
        Some(applied) if applied.status == "True" => {
            item.applied = true;
            if let Some(reported) = status.manifest_statuses.into_iter().next() {
                item.status = reported.status;
                item.health = reported.health.or(item.health);
            }
        }
        Some(applied) => {
            item.applied_message = Some(applied.message.clone()).filter(|message| !message.is_empty())
        }
        None => {}
    }
    Some(item)
}

/// The condition FullyApplied: all scheduled clusters, and no others, have the object.
pub fn fully_applied<'a>(
    clusters: impl IntoIterator<Item = &'a str>,
    items: &[AggregatedStatusItem],
) -> ConditionUpdate {
    let mut wanted: Vec<&str> = clusters.into_iter().collect();
    wanted.sort_unstable();
    wanted.dedup();
    let applied: Vec<&str> =
        items.iter().filter(|item| item.applied).map(|item| item.cluster_name.as_str()).collect();
    if !wanted.is_empty() && wanted == applied && items.len() == applied.len() {
        return ConditionUpdate::new(
            FULLY_APPLIED,
            true,
            "FullyAppliedSuccess",
            "every scheduled cluster has the object",
        );
    }
    let missing: Vec<&str> =
        wanted.iter().filter(|name| applied.binary_search(name).is_err()).copied().collect();
    let message = if wanted.is_empty() {
        "no cluster is scheduled".to_owned()
    } else if missing.is_empty() {
        "a cluster that is no longer scheduled still has the object".to_owned()
    } else {
        let named = missing[..missing.len().min(NAMED)].join(", ");
        let more = missing.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("waiting for {named}{more}; see status.aggregatedStatus")
    };
    ConditionUpdate::new(FULLY_APPLIED, false, "FullyAppliedFailed", message)
}

/// The items as JSON, as input of scripts.
pub fn script_items(items: &[AggregatedStatusItem]) -> Vec<serde_json::Value> {
    items.iter().filter_map(|item| serde_json::to_value(item).ok()).collect()
}

/// Whether the manifest of a Work is applied on its member.
pub fn is_applied(work: &Work) -> bool {
    work.status.as_ref().and_then(|status| conditions::status(&status.conditions, APPLIED)) == Some("True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn mk_work(cluster: &str, applied: Option<(&str, &str)>, status: Option<Value>) -> Work {
        let conditions: Vec<Value> = applied
            .map(|(status, message)| json!({"type": "Applied", "status": status, "reason": "x", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"}))
            .into_iter()
            .collect();
        let reported: Vec<Value> = status
            .map(|status| json!({"identifier": {}, "status": status, "health": "Healthy"}))
            .into_iter()
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "work.karmada.io/v1alpha1", "kind": "Work", "metadata": {"name": "w", "namespace": format!("karmada-es-{cluster}")},
            "spec": {}, "status": {"conditions": conditions, "manifestStatuses": reported},
        }))
        .expect("a work")
    }

    #[test]
    fn items_report_what_each_member_has() {
        let works = [
            mk_work("ord", Some(("False", "no such API")), Some(json!({"old": 1}))),
            mk_work("dfw", Some(("True", "")), Some(json!({"ready": 1}))),
            mk_work("sjc", None, None),
        ];
        let items = items(&works);
        let reported: Vec<_> = items
            .iter()
            .map(|i| (i.cluster_name.as_str(), i.applied, i.applied_message.as_deref(), i.health.as_deref()))
            .collect();
        assert_eq!(
            reported,
            [
                ("dfw", true, None, Some("Healthy")),
                ("ord", false, Some("no such API"), Some("Unknown")),
                ("sjc", false, None, Some("Unknown")),
            ]
        );
        assert_eq!(items[0].status, Some(json!({"ready": 1})));
        assert_eq!(items[1].status, None);
    }

    #[test]
    fn a_terminating_work_is_ignored() {
        let mut work = mk_work("dfw", Some(("True", "")), None);
        work.metadata.deletion_timestamp = Some(
            polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH),
        );
        assert_eq!(items(&[work]), []);
    }

    #[test]
    fn fully_applied_means_all_scheduled_clusters_and_no_other() {
        let dfw = items(&[mk_work("dfw", Some(("True", "")), None)]);
        for (clusters, items, expected) in [
            (vec!["dfw"], &dfw, "True"),
            (vec!["dfw", "ord"], &dfw, "False"),
            (vec![], &dfw, "False"),
            (vec!["ord"], &dfw, "False"),
        ] {
            assert_eq!(fully_applied(clusters.clone(), items).status, expected, "{clusters:?}");
        }
        assert_eq!(fully_applied(["dfw"], &[]).status, "False");
    }

    #[test]
    fn a_few_clusters_are_named_and_more_are_counted() {
        let clusters: Vec<String> = (0..7).map(|n| format!("m{n}")).collect();
        let desired = fully_applied(clusters.iter().map(String::as_str), &[]);
        assert_eq!(desired.message, "waiting for m0, m1, m2, m3, m4 and 2 more; see status.aggregatedStatus");
    }
}
