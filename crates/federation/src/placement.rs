//! Placement: selects the clusters of an object.
//!
//! Order: filters (deletion, affinity, taints, the API of the object), spread constraints, then division of
//! replicas. Placement is sticky: a cluster that has the object passes the filters for taints and APIs,
//! because a failed discovery must not delete objects, and it has precedence over a cluster that does not
//! have the object.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use polis_api::k8s_openapi::api::core::v1::{Taint, Toleration};
use polis_api::karmada::{Cluster, ClusterAffinity, Placement, SpreadConstraint, TargetCluster};
use serde_json::Value;

use crate::division::{self, Share};
use crate::matching::matches_labels;

/// A Cluster, as input of placement.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its provider.
    pub provider: Option<String>,
    /// Its region.
    pub region: Option<String>,
    /// Its zones.
    pub zones: Vec<String>,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// The kinds that it serves, as (`apiVersion`, `kind`).
    pub apis: BTreeSet<(String, String)>,
}

impl From<&Cluster> for Candidate {
    fn from(cluster: &Cluster) -> Self {
        let status = cluster.status.clone().unwrap_or_default();
        Candidate {
            name: cluster.metadata.name.clone().unwrap_or_default(),
            labels: cluster.metadata.labels.clone().unwrap_or_default(),
            provider: cluster.spec.provider.clone(),
            region: cluster.spec.region.clone(),
            zones: cluster.spec.zones.clone(),
            taints: cluster.spec.taints.clone(),
            deleting: cluster.metadata.deletion_timestamp.is_some(),
            apis: status
                .api_enablements
                .into_iter()
                .flat_map(|group| {
                    let version = group.group_version;
                    group.resources.into_iter().map(move |resource| (version.clone(), resource.kind))
                })
                .collect(),
        }
    }
}

/// The object to place.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlacementRequest<'a> {
    /// The kind of the object, as (`apiVersion`, `kind`).
    pub api: (&'a str, &'a str),
    /// UID of the object; breaks ties between clusters of equal weight.
    pub uid: &'a str,
    /// Replicas; `None` for a kind without replicas.
    pub replicas: Option<i32>,
    /// Its current clusters.
    pub current: &'a [TargetCluster],
    /// The affinity group that was selected before; empty if none was.
    pub affinity: &'a str,
    /// Whether the placement has changed since `current` was selected.
    pub placement_changed: bool,
}

/// The selected clusters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlacementDecision {
    /// The clusters, sorted by name.
    pub clusters: Vec<TargetCluster>,
    /// The selected affinity group, if the placement has groups.
    pub affinity: Option<String>,
}

/// Why no clusters were selected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// No cluster passes the filters: the object is removed from all clusters.
    #[error("0/{clusters} clusters are available: {}", why.iter().map(|(reason, count)| format!("{count} {reason}")).collect::<Vec<_>>().join(", "))]
    NoClusterFits {
        /// Number of clusters.
        clusters: usize,
        /// Number of clusters by reason.
        why: BTreeMap<String, usize>,
    },
    /// The constraints cannot be met: the object stays on its current clusters.
    #[error("{0}")]
    Unschedulable(String),
}

impl PlacementError {
    /// The reason for the condition `Scheduled`.
    pub fn reason(&self) -> &'static str {
        match self {
            PlacementError::NoClusterFits { .. } => "NoClusterFit",
            PlacementError::Unschedulable(_) => "Unschedulable",
        }
    }
}

/// Selects the clusters of an object.
pub fn decide<C: Borrow<Candidate>>(
    placement: &Placement,
    request: &PlacementRequest<'_>,
    clusters: &[C],
) -> Result<PlacementDecision, PlacementError> {
    let clusters: Vec<&Candidate> = clusters.iter().map(Borrow::borrow).collect();
    let clusters = clusters.as_slice();
    if let Some(existing) = existing(placement, request, clusters) {
        return Ok(existing);
    }
    if placement.cluster_affinities.is_empty() {
        let affinity = placement.cluster_affinity.clone().unwrap_or_default();
        let clusters = choose(placement, &affinity, request, clusters)?;
        return Ok(PlacementDecision { clusters, affinity: None });
    }
    // Starts with the previous group, so that an object does not move back when an earlier group recovers.
    let before = placement.cluster_affinities.iter().position(|term| term.affinity_name == request.affinity);
    let start = if request.placement_changed { 0 } else { before.unwrap_or(0) };
    let mut first_failure = None;
    for term in &placement.cluster_affinities[start..] {
        let affinity = ClusterAffinity {
            label_selector: term.label_selector.clone(),
            field_selector: term.field_selector.clone(),
            cluster_names: term.cluster_names.clone(),
            exclude: term.exclude.clone(),
            ..ClusterAffinity::default()
        };
        match choose(placement, &affinity, request, clusters) {
            Ok(clusters) => {
                return Ok(PlacementDecision { clusters, affinity: Some(term.affinity_name.clone()) });
            }
            Err(failure) => drop(first_failure.get_or_insert(failure)),
        }
    }
    Err(first_failure.unwrap_or_else(|| {
        PlacementError::Unschedulable("the placement has no cluster affinity group".to_owned())
    }))
}

/// Divided replicas stay on their clusters until their number or the placement changes, or a cluster is
/// deleted: moving them after a change of labels would restart running replicas.
fn existing(
    placement: &Placement,
    request: &PlacementRequest<'_>,
    clusters: &[&Candidate],
) -> Option<PlacementDecision> {
    let divided =
        request.replicas.is_some() && scheduling(placement, "replicaSchedulingType") == Some("Divided");
    if !divided || request.placement_changed || request.current.is_empty() {
        return None;
    }
    let total: i32 = request.current.iter().map(|target| target.replicas.unwrap_or(0)).sum();
    let available: BTreeSet<&str> =
        clusters.iter().filter(|cluster| !cluster.deleting).map(|cluster| cluster.name.as_str()).collect();
    let stay = request.current.iter().all(|target| available.contains(target.name.as_str()));
    (request.replicas == Some(total) && stay).then(|| PlacementDecision {
        clusters: request.current.to_vec(),
        affinity: Some(request.affinity.to_owned()).filter(|name| !name.is_empty()),
    })
}

fn choose(
    placement: &Placement,
    affinity: &ClusterAffinity,
    request: &PlacementRequest<'_>,
    clusters: &[&Candidate],
) -> Result<Vec<TargetCluster>, PlacementError> {
    let current: BTreeSet<&str> = request.current.iter().map(|target| target.name.as_str()).collect();
    let has = |cluster: &Candidate| current.contains(cluster.name.as_str());
    let mut why: BTreeMap<String, usize> = BTreeMap::new();
    let mut fitting: Vec<&Candidate> = Vec::new();
    for cluster in clusters {
        match filter_reason(placement, affinity, request, cluster, has(cluster)) {
            Some(reason) => *why.entry(reason).or_default() += 1,
            None => fitting.push(cluster),
        }
    }
    if fitting.is_empty() {
        return Err(PlacementError::NoClusterFits { clusters: clusters.len(), why });
    }
    // Clusters that have the object first, then by name.
    fitting.sort_by_cached_key(|cluster| (!has(cluster), cluster.name.clone()));
    let strategy = Strategy::of(placement, request.replicas)?;
    if !matches!(strategy, Strategy::Weighted(_)) {
        spread(&placement.spread_constraints, &mut fitting)?;
    }
    fitting.sort_by(|a, b| a.name.cmp(&b.name));
    let target =
        |name: &str, replicas| TargetCluster { name: name.to_owned(), replicas, ..TargetCluster::default() };
    Ok(match strategy {
        Strategy::All(replicas) => fitting.iter().map(|cluster| target(&cluster.name, replicas)).collect(),
        Strategy::Weighted(weights) => {
            let shares: Vec<Share<'_>> = fitting
                .iter()
                .filter_map(|cluster| Some(Share { name: &cluster.name, weight: weights.of(cluster)? }))
                .collect();
            let assigned = division::divide(request.replicas.unwrap_or(0), &shares, request.uid);
            if assigned.is_empty() {
                return Err(PlacementError::Unschedulable(
                    "no matching cluster has a weight in the policy".to_owned(),
                ));
            }
            assigned
                .into_iter()
                .filter(|(_, assigned)| *assigned > 0)
                .map(|(name, assigned)| target(name, Some(assigned)))
                .collect()
        }
    })
}

/// Why a cluster does not pass the filters; `None` if it does. A cluster that `has` the object skips some
/// filters.
fn filter_reason(
    placement: &Placement,
    affinity: &ClusterAffinity,
    request: &PlacementRequest<'_>,
    cluster: &Candidate,
    has: bool,
) -> Option<String> {
    if cluster.deleting {
        return Some("cluster(s) are leaving".to_owned());
    }
    if !fits(affinity, cluster) {
        return Some("cluster(s) did not match the placement cluster affinity constraint".to_owned());
    }
    if has {
        return None;
    }
    if let Some(taint) = cluster.taints.iter().find(|taint| blocks(taint, &placement.cluster_tolerations)) {
        return Some(format!("cluster(s) had untolerated taint {{{}:{}}}", taint.key, taint.effect));
    }
    let (api_version, kind) = request.api;
    if !cluster.apis.contains(&(api_version.to_owned(), kind.to_owned())) {
        return Some("cluster(s) did not have the API resource".to_owned());
    }
    None
}

/// Whether a cluster matches an affinity: it is not excluded, and all given selectors match.
pub fn fits(affinity: &ClusterAffinity, cluster: &Candidate) -> bool {
    !affinity.exclude.contains(&cluster.name)
        && affinity.label_selector.as_ref().is_none_or(|selector| matches_labels(selector, &cluster.labels))
        && affinity.field_selector.as_ref().is_none_or(|selector| fits_fields(selector, cluster))
        && (affinity.cluster_names.is_empty() || affinity.cluster_names.contains(&cluster.name))
}

fn fits_fields(selector: &Value, cluster: &Candidate) -> bool {
    let expressions = selector["matchExpressions"].as_array().map_or(&[][..], Vec::as_slice);
    expressions.iter().all(|expression| {
        let has: Vec<&str> = match expression["key"].as_str() {
            Some("provider") => cluster.provider.iter().map(String::as_str).collect(),
            Some("region") => cluster.region.iter().map(String::as_str).collect(),
            Some("zone") => cluster.zones.iter().map(String::as_str).collect(),
            _ => return false,
        };
        let wanted: Vec<&str> =
            expression["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        match expression["operator"].as_str() {
            // All zones of a cluster must be in the set.
            Some("In") => !has.is_empty() && has.iter().all(|value| wanted.contains(value)),
            Some("NotIn") => !has.iter().any(|value| wanted.contains(value)),
            Some("Exists") => !has.is_empty(),
            Some("DoesNotExist") => has.is_empty(),
            _ => false,
        }
    })
}

fn blocks(taint: &Taint, tolerations: &[Toleration]) -> bool {
    matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
        && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    if !(effect.is_empty() || effect == taint.effect) || !(key.is_empty() || key == taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or("Equal") {
        "Exists" => true,
        "" | "Equal" => {
            !key.is_empty()
                && toleration.value.as_deref().unwrap_or_default()
                    == taint.value.as_deref().unwrap_or_default()
        }
        _ => false,
    }
}

/// Applies the spread constraints to the list.
fn spread(constraints: &[SpreadConstraint], fitting: &mut Vec<&Candidate>) -> Result<(), PlacementError> {
    for constraint in constraints {
        match constraint.spread_by_field.as_deref() {
            Some("cluster") => {
                let fewest = usize::try_from(constraint.min_groups.unwrap_or(1)).unwrap_or(0);
                if fitting.len() < fewest {
                    return Err(PlacementError::Unschedulable(format!(
                        "{} clusters fit, at least {fewest} are required",
                        fitting.len()
                    )));
                }
                let most = constraint
                    .max_groups
                    .filter(|most| *most > 0)
                    .and_then(|most| usize::try_from(most).ok());
                fitting.truncate(most.unwrap_or(fitting.len()));
            }
            other => {
                let what = other.or(constraint.spread_by_label.as_deref()).unwrap_or("nothing");
                return Err(PlacementError::Unschedulable(format!(
                    "spreading by {what} is not supported; spread by cluster"
                )));
            }
        }
    }
    Ok(())
}

enum Strategy<'a> {
    All(Option<i32>),
    Weighted(Weights<'a>),
}

impl<'a> Strategy<'a> {
    fn of(placement: &'a Placement, replicas: Option<i32>) -> Result<Self, PlacementError> {
        // Without replicas there is nothing to divide.
        if replicas.is_none() || scheduling(placement, "replicaSchedulingType") != Some("Divided") {
            return Ok(Strategy::All(replicas));
        }
        let unsupported = |what: &str| {
            PlacementError::Unschedulable(format!(
                "{what} needs the free capacity of members, which the embedded federation does not collect; use static weights"
            ))
        };
        if scheduling(placement, "replicaDivisionPreference") == Some("Aggregated") {
            return Err(unsupported("replicaDivisionPreference Aggregated"));
        }
        let preference = placement
            .replica_scheduling
            .as_ref()
            .map_or(&Value::Null, |scheduling| &scheduling["weightPreference"]);
        if preference["dynamicWeight"].as_str().is_some_and(|dynamic| !dynamic.is_empty()) {
            return Err(unsupported("dynamicWeight"));
        }
        Ok(Strategy::Weighted(Weights(preference["staticWeightList"].as_array().map(Vec::as_slice))))
    }
}

/// Static weights; without a list all clusters have the same weight.
struct Weights<'a>(Option<&'a [Value]>);

impl Weights<'_> {
    /// The greatest weight of the matching rules; `None` if no rule matches.
    fn of(&self, cluster: &Candidate) -> Option<i64> {
        let Some(rules) = self.0 else { return Some(1) };
        rules
            .iter()
            .filter(|rule| {
                serde_json::from_value::<ClusterAffinity>(rule["targetCluster"].clone())
                    .is_ok_and(|affinity| fits(&affinity, cluster))
            })
            .filter_map(|rule| rule["weight"].as_i64())
            .max()
            .filter(|weight| *weight > 0)
    }
}

fn scheduling<'a>(placement: &'a Placement, field: &str) -> Option<&'a str> {
    placement.replica_scheduling.as_ref()?[field].as_str()
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
