//! Which clusters an object goes to.
//!
//! Filters first (on its way out, affinity, taints, the API of the object), then the choice among what is left
//! (spread), then how many replicas each gets. Sticky by construction: a cluster that has the object passes the
//! filters for taints and APIs, because losing sight of an API is no reason to delete, and wins over one that has not.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use polis_api::k8s_openapi::api::core::v1::{Taint, Toleration};
use polis_api::karmada::{Cluster, ClusterAffinity, Placement, SpreadConstraint, TargetCluster};
use serde_json::Value;

use crate::division::{self, Share};
use crate::matching::matches_labels;

/// What placement must know about a cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Who runs it.
    pub provider: Option<String>,
    /// Its region.
    pub region: Option<String>,
    /// Its zones.
    pub zones: Vec<String>,
    /// What keeps objects off it.
    pub taints: Vec<Taint>,
    /// Whether it is leaving.
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

/// What is to be placed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request<'a> {
    /// The kind of the object, as (`apiVersion`, `kind`).
    pub api: (&'a str, &'a str),
    /// UID of the object; breaks ties between clusters of equal weight.
    pub uid: &'a str,
    /// Replicas, where the object has any.
    pub replicas: Option<i32>,
    /// Where it is now.
    pub current: &'a [TargetCluster],
    /// The group of clusters that was chosen before; empty if none was.
    pub affinity: &'a str,
    /// Whether the placement is another than the one that `current` was chosen by.
    pub placement_changed: bool,
}

/// Where it goes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// The clusters, in the order of their names.
    pub clusters: Vec<TargetCluster>,
    /// The group that was chosen, where the placement has groups.
    pub affinity: Option<String>,
}

/// Why it goes nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    /// No cluster passes the filters: the object leaves all.
    #[error("0/{clusters} clusters are available: {}", why.iter().map(|(reason, count)| format!("{count} {reason}")).collect::<Vec<_>>().join(", "))]
    NoneFits {
        /// How many there are.
        clusters: usize,
        /// How many fail for which reason.
        why: BTreeMap<String, usize>,
    },
    /// The wish cannot be met now: the object stays where it is.
    #[error("{0}")]
    Unschedulable(String),
}

impl NoPlace {
    /// The word for it in the condition `Scheduled`.
    pub fn reason(&self) -> &'static str {
        match self {
            NoPlace::NoneFits { .. } => "NoClusterFit",
            NoPlace::Unschedulable(_) => "Unschedulable",
        }
    }
}

/// Decides where an object goes.
pub fn decide<C: Borrow<Candidate>>(
    placement: &Placement,
    request: &Request<'_>,
    clusters: &[C],
) -> Result<Decision, NoPlace> {
    let clusters: Vec<&Candidate> = clusters.iter().map(Borrow::borrow).collect();
    let clusters = clusters.as_slice();
    if let Some(standing) = standing(placement, request, clusters) {
        return Ok(standing);
    }
    if placement.cluster_affinities.is_empty() {
        let affinity = placement.cluster_affinity.clone().unwrap_or_default();
        let clusters = choose(placement, &affinity, request, clusters)?;
        return Ok(Decision { clusters, affinity: None });
    }
    // The group of before goes first, so that an object does not jump back when an earlier group recovers.
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
            Ok(clusters) => return Ok(Decision { clusters, affinity: Some(term.affinity_name.clone()) }),
            Err(failure) => drop(first_failure.get_or_insert(failure)),
        }
    }
    Err(first_failure
        .unwrap_or_else(|| NoPlace::Unschedulable("the placement has no group of clusters".to_owned())))
}

/// Replicas that are shared out stay where they are until the wish changes or a cluster leaves: moving them because a
/// label changed somewhere would restart what runs.
fn standing(placement: &Placement, request: &Request<'_>, clusters: &[&Candidate]) -> Option<Decision> {
    let divided =
        request.replicas.is_some() && scheduling(placement, "replicaSchedulingType") == Some("Divided");
    if !divided || request.placement_changed || request.current.is_empty() {
        return None;
    }
    let total: i32 = request.current.iter().map(|target| target.replicas.unwrap_or(0)).sum();
    let here: BTreeSet<&str> =
        clusters.iter().filter(|cluster| !cluster.deleting).map(|cluster| cluster.name.as_str()).collect();
    let stay = request.current.iter().all(|target| here.contains(target.name.as_str()));
    (request.replicas == Some(total) && stay).then(|| Decision {
        clusters: request.current.to_vec(),
        affinity: Some(request.affinity.to_owned()).filter(|name| !name.is_empty()),
    })
}

fn choose(
    placement: &Placement,
    affinity: &ClusterAffinity,
    request: &Request<'_>,
    clusters: &[&Candidate],
) -> Result<Vec<TargetCluster>, NoPlace> {
    let current: BTreeSet<&str> = request.current.iter().map(|target| target.name.as_str()).collect();
    let has = |cluster: &Candidate| current.contains(cluster.name.as_str());
    let mut why: BTreeMap<String, usize> = BTreeMap::new();
    let mut fitting: Vec<&Candidate> = Vec::new();
    for cluster in clusters {
        match misfit(placement, affinity, request, cluster, has(cluster)) {
            Some(reason) => *why.entry(reason).or_default() += 1,
            None => fitting.push(cluster),
        }
    }
    if fitting.is_empty() {
        return Err(NoPlace::NoneFits { clusters: clusters.len(), why });
    }
    // Where the object already is comes first, then the alphabet.
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
            let seats = division::divide(request.replicas.unwrap_or(0), &shares, request.uid);
            if seats.is_empty() {
                return Err(NoPlace::Unschedulable(
                    "no fitting cluster has a weight in the policy".to_owned(),
                ));
            }
            seats
                .into_iter()
                .filter(|(_, seats)| *seats > 0)
                .map(|(name, seats)| target(name, Some(seats)))
                .collect()
        }
    })
}

/// Why a cluster does not fit; nothing if it does, and less is asked of one that `has` the object.
fn misfit(
    placement: &Placement,
    affinity: &ClusterAffinity,
    request: &Request<'_>,
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
    if let Some(taint) = cluster.taints.iter().find(|taint| repels(taint, &placement.cluster_tolerations)) {
        return Some(format!("cluster(s) had untolerated taint {{{}:{}}}", taint.key, taint.effect));
    }
    let (api_version, kind) = request.api;
    if !cluster.apis.contains(&(api_version.to_owned(), kind.to_owned())) {
        return Some("cluster(s) did not have the API resource".to_owned());
    }
    None
}

/// Whether a cluster matches an affinity: excluded never, else everything that is said must hold.
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
            // A cluster over several zones is in a set only with all of them.
            Some("In") => !has.is_empty() && has.iter().all(|value| wanted.contains(value)),
            Some("NotIn") => !has.iter().any(|value| wanted.contains(value)),
            Some("Exists") => !has.is_empty(),
            Some("DoesNotExist") => has.is_empty(),
            _ => false,
        }
    })
}

fn repels(taint: &Taint, tolerations: &[Toleration]) -> bool {
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

/// Cuts the list down to what the spread allows.
fn spread(constraints: &[SpreadConstraint], fitting: &mut Vec<&Candidate>) -> Result<(), NoPlace> {
    for constraint in constraints {
        match constraint.spread_by_field.as_deref() {
            Some("cluster") => {
                let fewest = usize::try_from(constraint.min_groups.unwrap_or(1)).unwrap_or(0);
                if fitting.len() < fewest {
                    return Err(NoPlace::Unschedulable(format!(
                        "{} clusters fit, at least {fewest} are wanted",
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
                return Err(NoPlace::Unschedulable(format!(
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
    fn of(placement: &'a Placement, replicas: Option<i32>) -> Result<Self, NoPlace> {
        // Without replicas there is nothing to share out, whatever the policy says.
        if replicas.is_none() || scheduling(placement, "replicaSchedulingType") != Some("Divided") {
            return Ok(Strategy::All(replicas));
        }
        let unsupported = |what: &str| {
            NoPlace::Unschedulable(format!(
                "{what} needs the free capacity of members, which the embedded federation does not know; use static weights"
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

/// Static weights; none at all means that all weigh the same.
struct Weights<'a>(Option<&'a [Value]>);

impl Weights<'_> {
    /// The greatest weight that a rule gives to the cluster; none where no rule speaks of it.
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
