//! Whether the quota of the project suffices for a changed workload, before the change is sent.
//!
//! The check is a service to the user and no guarantee: other workloads may take the quota in the meantime,
//! and the cells claim quota for each instance in any case.

use std::collections::BTreeMap;

use polis_api::compute::{Workload, WorkloadSpec};
use polis_api::quota::{AllowanceBucket, ResourceRegistration};
use polis_core::{deployments, quota};
use serde_json::Value;

use super::lists;

/// The resources of which the change needs more than is left: `needs 4 more instances, and 2 of 10 are left`.
pub fn shortages(
    existing: Option<&Value>,
    wanted: &Value,
    buckets: &[AllowanceBucket],
    registrations: &[ResourceRegistration],
) -> Vec<String> {
    let (before, after) = (existing.map(amounts).unwrap_or_default(), amounts(wanted));
    let lines = lists::quota(buckets, registrations);
    let short = lines.into_iter().filter_map(|line| {
        let needed = |amounts: &BTreeMap<String, i64>| amounts.get(&line.name).copied().unwrap_or(0);
        let more = (needed(&after) - needed(&before)) as f64 / line.factor;
        (more > 0.0 && more > line.left).then(|| {
            let resource = line.name.rsplit('/').next().unwrap_or(&line.name);
            let unit = if line.unit.is_empty() { String::new() } else { format!(" ({})", line.unit) };
            format!("needs {more} more {resource}{unit}, and {} of {} are left", line.left, line.limit)
        })
    });
    short.collect()
}

/// The amounts that all instances of a workload claim, by resource type, in base units.
fn amounts(workload: &Value) -> BTreeMap<String, i64> {
    let Ok(workload) = serde_json::from_value::<Workload>(workload.clone()) else { return BTreeMap::new() };
    let size = quota::instance_size(&workload.spec.template.spec).ok().flatten();
    let instances = instances(&workload.spec);
    quota::requests(size)
        .into_iter()
        .map(|request| (request.resource_type, request.amount.saturating_mul(instances)))
        .collect()
}

fn instances(spec: &WorkloadSpec) -> i64 {
    let per_placement = spec.placements.iter().map(|placement| {
        let cities = i64::try_from(placement.city_codes.len()).unwrap_or(i64::MAX);
        cities.saturating_mul(i64::from(deployments::scale_settings(spec, placement).min_replicas))
    });
    per_placement.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::testing::mk_workload;
    use serde_json::json;

    fn mk_bucket(resource: &str, limit: i64, left: i64) -> AllowanceBucket {
        serde_json::from_value(json!({
            "apiVersion": "quota.miloapis.com/v1alpha1", "kind": "AllowanceBucket", "metadata": {"name": resource},
            "spec": {"consumerRef": {"kind": "Project", "name": "p"}, "resourceType": resource},
            "status": {"limit": limit, "allocated": limit - left, "available": left},
        }))
        .unwrap()
    }

    fn short(before: Option<i32>, after: i32, buckets: &[AllowanceBucket]) -> Vec<String> {
        let mk = |replicas| serde_json::to_value(mk_workload(&["dfw", "ord"], replicas)).unwrap();
        shortages(before.map(mk).as_ref(), &mk(after), buckets, &[])
    }

    #[test]
    fn a_change_that_needs_more_than_is_left_is_short() {
        let instances = mk_bucket("compute.datumapis.com/instances", 10, 2);
        assert_eq!(
            short(None, 2, std::slice::from_ref(&instances)),
            ["needs 4 more instances, and 2 of 10 are left"]
        );
        assert!(short(None, 1, std::slice::from_ref(&instances)).is_empty());
        assert!(short(Some(2), 3, &[instances]).is_empty(), "only the difference counts");
    }

    #[test]
    fn the_size_of_the_instances_counts_too() {
        let vcpus = mk_bucket("compute.datumapis.com/vcpus", 8000, 3000);
        assert_eq!(short(None, 2, &[vcpus]), ["needs 4000 more vcpus, and 3000 of 8000 are left"]);
    }

    #[test]
    fn less_than_before_is_never_short_and_a_resource_without_a_grant_does_not_limit() {
        assert!(short(Some(3), 1, &[mk_bucket("compute.datumapis.com/instances", 1, -5)]).is_empty());
        assert!(short(None, 5, &[]).is_empty());
    }
}
