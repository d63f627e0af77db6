//! Division of replicas by weight, as in Karmada: Webster's method.
//!
//! Replicas are assigned one by one to the cluster with the greatest weight / (2 × assigned + 1). A tie goes
//! to the cluster with fewer replicas, then by name, in ascending or descending order depending on the UID of
//! the object, so that the odd replicas of many objects do not all go to the first cluster.

use crate::names::fnv1a;

/// A cluster in the division.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share<'a> {
    /// Name of the cluster.
    pub name: &'a str,
    /// Its weight.
    pub weight: i64,
}

/// Divides `replicas` by weight; one entry per share, in the same order. Empty if all weights are zero.
pub fn divide<'a>(replicas: i32, shares: &[Share<'a>], uid: &str) -> Vec<(&'a str, i32)> {
    if shares.iter().map(|share| share.weight.max(0)).sum::<i64>() == 0 {
        return Vec::new();
    }
    let backwards = !uid.is_empty() && fnv1a(uid.as_bytes()) & 1 == 1;
    let mut assigned = vec![0_i32; shares.len()];
    for _ in 0..replicas.max(0) {
        let next = (0..shares.len()).max_by(|a, b| {
            // Compares weight_a / (2 assigned_a + 1) with weight_b / (2 assigned_b + 1), without fractions.
            let quotient = |i: usize, j: usize| {
                i128::from(shares[i].weight) * i128::from(2 * i64::from(assigned[j]) + 1)
            };
            let by_name = shares[*b].name.cmp(shares[*a].name);
            quotient(*a, *b).cmp(&quotient(*b, *a)).then(assigned[*b].cmp(&assigned[*a])).then(if backwards {
                by_name.reverse()
            } else {
                by_name
            })
        });
        if let Some(next) = next {
            assigned[next] += 1;
        }
    }
    shares.iter().map(|share| share.name).zip(assigned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(replicas: i32, weights: &[(&'static str, i64)]) -> Vec<(&'static str, i32)> {
        let shares: Vec<Share<'static>> =
            weights.iter().map(|(name, weight)| Share { name, weight: *weight }).collect();
        divide(replicas, &shares, "")
    }

    #[test]
    fn replicas_follow_the_weights() {
        for (replicas, weights, expected) in [
            (9, &[("a", 1), ("b", 2)][..], &[("a", 3), ("b", 6)][..]),
            (9, &[("a", 1), ("b", 3)], &[("a", 2), ("b", 7)]),
            (3, &[("a", 1), ("b", 1)], &[("a", 2), ("b", 1)]),
            (1, &[("a", 1), ("b", 1), ("c", 1)], &[("a", 1), ("b", 0), ("c", 0)]),
            (0, &[("a", 1)], &[("a", 0)]),
            (5, &[("a", 0)], &[]),
        ] {
            assert_eq!(divided(replicas, weights), expected, "{replicas} by {weights:?}");
        }
    }

    #[test]
    fn the_odd_replica_does_not_always_go_to_the_same_cluster() {
        let shares = [Share { name: "a", weight: 1 }, Share { name: "b", weight: 1 }];
        let odd: std::collections::BTreeSet<_> =
            (0..16).map(|n| divide(1, &shares, &format!("uid-{n}"))).collect();
        assert_eq!(odd.len(), 2);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(256))]
        #[test]
        fn every_replica_is_given_once_and_more_weight_is_never_less(replicas in 0..200_i32, a in 1..50_i64, b in 1..50_i64, c in 1..50_i64, uid in "[a-z]{0,4}") {
            let provided_clients = divide(replicas, &[Share { name: "a", weight: a }, Share { name: "b", weight: b }, Share { name: "c", weight: c }], &uid);
            proptest::prop_assert_eq!(provided_clients.iter().map(|(_, n)| n).sum::<i32>(), replicas);
            if a > b {
                proptest::prop_assert!(provided_clients[0].1 >= provided_clients[1].1);
            }
        }
    }
}
