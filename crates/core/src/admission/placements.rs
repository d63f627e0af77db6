//! Validation of placements: cities, replicas and metrics.

use std::collections::BTreeSet;

use polis_api::compute::{MetricTarget, ORDERED_READY, PARALLEL, ScaleSettings, Workload, WorkloadPlacement};
use polis_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use polis_api::names;

use super::{FieldError, Path, check_label};
use crate::cities::Cities;
use crate::metadata::is_label_value;
use crate::quantity::{Unit, in_units};

/// The maximum number of replicas in one city: the number of ordinals that fit into instance names.
const REPLICAS_MAX: i32 = names::MAX_ORDINAL as i32 + 1;
/// The only supported metric.
const METRIC: &str = "cpu";

pub(super) fn check(
    workload: &Workload,
    before: Option<&Workload>,
    cities: &Cities,
    at: &Path,
    errors: &mut Vec<FieldError>,
) {
    if workload.spec.placements.is_empty() {
        errors.push(at.required("a workload needs at least one placement"));
    }
    check_replicas(workload, errors);
    let known = before.map(placement_cities).unwrap_or_default();
    let mut names = BTreeSet::new();
    for (index, placement) in workload.spec.placements.iter().enumerate() {
        let at = at.index(index);
        check_label(&placement.name, &at.at("name"), errors);
        if !placement.name.is_empty() && !names.insert(placement.name.as_str()) {
            errors.push(at.at("name").duplicate(placement.name.as_str()));
        }
        check_cities(placement, &known, cities, &at.at("cityCodes"), errors);
        check_scale(&placement.scale_settings, &at.at("scaleSettings"), errors);
    }
}

/// All (placement, city) pairs of a workload.
pub(super) fn placement_cities(workload: &Workload) -> BTreeSet<(&str, &str)> {
    let placements = workload.spec.placements.iter();
    placements
        .flat_map(|placement| {
            placement.city_codes.iter().map(|city| (placement.name.as_str(), city.as_str()))
        })
        .collect()
}

fn check_cities(
    placement: &WorkloadPlacement,
    known: &BTreeSet<(&str, &str)>,
    cities: &Cities,
    at: &Path,
    errors: &mut Vec<FieldError>,
) {
    if placement.city_codes.is_empty() {
        errors.push(at.required("a placement names at least one city"));
    }
    for (index, city) in placement.city_codes.iter().enumerate() {
        let at = at.index(index);
        if known.contains(&(placement.name.as_str(), city.as_str())) {
            continue; // only new cities are checked
        }
        match cities {
            Cities::Bound(bound) if !bound.contains(city) => {
                let mut error = at.not_supported(city.as_str(), bound.iter().map(String::as_str));
                if bound.is_empty() {
                    error = at.invalid(city.as_str(), cities.describe());
                }
                errors.push(error);
            }
            _ if !is_label_value(city) => {
                let detail = "must be at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit";
                errors.push(at.invalid(city.as_str(), detail));
            }
            _ => {}
        }
    }
}

/// Checks the number of instances in each city that takes precedence over that of every placement.
fn check_replicas(workload: &Workload, errors: &mut Vec<FieldError>) {
    let Some(replicas) = workload.spec.replicas else { return };
    let at = Path::new("spec").at("replicas");
    if !(1..=REPLICAS_MAX).contains(&replicas) {
        errors.push(at.invalid(replicas, format!("must be between 1 and {REPLICAS_MAX}")));
    }
    let least = |placement: &WorkloadPlacement| placement.scale_settings.min_replicas;
    if workload.spec.placements.windows(2).any(|pair| least(&pair[0]) != least(&pair[1])) {
        errors.push(at.forbidden("the placements have different minReplicas; set that of each placement"));
    }
}

fn check_scale(scale: &ScaleSettings, at: &Path, errors: &mut Vec<FieldError>) {
    if !(1..=REPLICAS_MAX).contains(&scale.min_replicas) {
        let detail = format!("must be between 1 and {REPLICAS_MAX}");
        errors.push(at.at("minReplicas").invalid(scale.min_replicas, detail));
    }
    let policy = scale.instance_management_policy.as_str();
    if ![ORDERED_READY, PARALLEL].contains(&policy) {
        errors.push(at.at("instanceManagementPolicy").not_supported(policy, [ORDERED_READY, PARALLEL]));
    }
    let Some(max) = scale.max_replicas else { return };
    if max < scale.min_replicas {
        errors.push(at.at("maxReplicas").invalid(max, "must not be less than minReplicas"));
    }
    if max > REPLICAS_MAX {
        errors.push(at.at("maxReplicas").invalid(max, format!("must be at most {REPLICAS_MAX}")));
    }
    if scale.metrics.is_empty() {
        errors.push(at.at("metrics").required("maxReplicas needs a metric to scale by"));
    }
    for (index, metric) in scale.metrics.iter().enumerate() {
        let at = at.at("metrics").index(index).at("resource");
        let Some(resource) = &metric.resource else {
            errors.push(at.required(""));
            continue;
        };
        if resource.name != METRIC {
            errors.push(at.at("name").not_supported(resource.name.as_str(), [METRIC]));
        }
        check_target(&resource.target, &at.at("target"), errors);
    }
}

/// Checks that exactly one target is set; of several, only the value of the first is checked.
fn check_target(target: &MetricTarget, at: &Path, errors: &mut Vec<FieldError>) {
    let positive =
        |quantity: &Quantity| in_units(&quantity.0, Unit::Thousandth).is_some_and(|amount| amount > 0);
    let invalid_quantity = |field: &str, quantity: &Option<Quantity>| {
        let invalid = quantity.as_ref().filter(|quantity| !positive(quantity))?;
        Some(at.at(field).invalid(invalid.0.as_str(), "must be greater than zero"))
    };
    let utilization = target.average_utilization;
    let given = [
        ("value", target.value.is_some(), invalid_quantity("value", &target.value)),
        (
            "averageValue",
            target.average_value.is_some(),
            invalid_quantity("averageValue", &target.average_value),
        ),
        (
            "averageUtilization",
            utilization.is_some(),
            utilization
                .filter(|percent| *percent < 1)
                .map(|percent| at.at("averageUtilization").invalid(percent, "must be at least 1")),
        ),
    ];
    let mut given = given.into_iter().filter(|(_, given, _)| *given);
    match given.next() {
        None => errors.push(at.required("one of value, averageValue and averageUtilization must be set")),
        Some((_, _, invalid)) => errors.extend(invalid),
    }
    errors.extend(given.map(|(field, ..)| at.at(field).forbidden("a metric has one target")));
}
