//! The queue of a project's instances that wait for quota.
//!
//! The queue is ordered by age. An instance is admitted if the headroom covers its requests and those of all
//! older ones, so that a large instance does not starve behind small ones. An instance that requests more
//! than the project's limit is ignored for the others: waiting does not help it, and it would block every
//! younger one.
//!
//! The headroom is read from the project's AllowanceBuckets. If they cannot be read, the decision is unknown
//! and every instance tries.

use std::collections::BTreeMap;

use polis_api::milo;
use polis_api::quota::{AllowanceBucket, ResourceRequest};

use crate::Time;

/// An instance that waits for quota.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingClaim {
    /// Creation time of the instance.
    pub created: Option<Time>,
    /// Namespace and name; orders instances of the same age.
    pub name: String,
    /// The requests of its claim.
    pub requests: Vec<ResourceRequest>,
    /// Whether its claim was denied, or delayed behind one that was.
    pub denied: bool,
}

impl PendingClaim {
    fn position(&self) -> QueuePosition {
        QueuePosition { created: self.created.clone(), name: self.name.clone() }
    }
}

/// A position in the queue, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueuePosition {
    created: Option<Time>,
    name: String,
}

/// Whether an instance may create its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueDecision {
    /// The headroom is not known.
    Unknown,
    /// The headroom covers the instance and all older ones.
    Admit,
    /// The headroom does not cover the instance, and no older one was denied.
    NoHeadroom,
    /// An older instance was denied, and the headroom does not cover both.
    Wait,
}

/// The unallocated quota of a project, by resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headroom(BTreeMap<String, Allowance>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Allowance {
    available: i64,
    limit: i64,
}

impl Headroom {
    /// Reads the headroom from the buckets of a project. Buckets of other projects or without status are
    /// ignored.
    pub fn of(project: &str, buckets: &[AllowanceBucket]) -> Self {
        let counted = buckets.iter().filter_map(|bucket| {
            let consumer = &bucket.spec.consumer_ref;
            let ours = consumer.kind == milo::PROJECT_KIND && consumer.name == project;
            let status = bucket.status.as_ref().filter(|_| ours)?;
            let allowance = Allowance { available: status.available, limit: status.limit };
            Some((bucket.spec.resource_type.clone(), allowance))
        });
        Headroom(counted.collect())
    }

    /// Whether the headroom covers the requests in addition to those of others. A resource without a bucket
    /// has no headroom.
    fn covers(&self, requests: &[ResourceRequest], others: &Sums) -> bool {
        requests.iter().all(|request| {
            let own = requests.iter().filter(|own| own.resource_type == request.resource_type);
            let sum = own.fold(others.of(&request.resource_type), |sum, own| sum.saturating_add(own.amount));
            self.0.get(&request.resource_type).is_some_and(|allowance| sum <= allowance.available)
        })
    }

    /// Whether the requests fit into the limits of the project.
    fn within_limits(&self, requests: &[ResourceRequest]) -> bool {
        let fits = |request: &ResourceRequest| {
            self.0.get(&request.resource_type).is_some_and(|allowance| request.amount <= allowance.limit)
        };
        requests.iter().all(fits)
    }
}

/// Sums of requests by resource, saturating at the largest amount that a bucket can have.
#[derive(Default)]
struct Sums<'a>(BTreeMap<&'a str, i64>);

impl<'a> Sums<'a> {
    fn add(&mut self, requests: &'a [ResourceRequest]) {
        for request in requests {
            let sum = self.0.entry(&request.resource_type).or_default();
            *sum = sum.saturating_add(request.amount);
        }
    }

    fn of(&self, resource: &str) -> i64 {
        self.0.get(resource).copied().unwrap_or_default()
    }
}

/// The waiting instances of one project. `K` is the caller's key of an instance.
///
/// The queue maintains the sum of all requests: while the headroom covers it, a decision visits no other
/// instance. Otherwise a decision visits every older instance once.
#[derive(Clone, Debug)]
pub struct QuotaQueue<K> {
    pending: BTreeMap<QueuePosition, (PendingClaim, K)>,
    /// The sum of all requests. `i128` never overflows, so that a removal subtracts exactly what was added.
    total: BTreeMap<String, i128>,
}

impl<K> Default for QuotaQueue<K> {
    fn default() -> Self {
        Self { pending: BTreeMap::new(), total: BTreeMap::new() }
    }
}

impl<K: Clone> QuotaQueue<K> {
    /// Adds an instance, or replaces its requests.
    pub fn insert(&mut self, claim: PendingClaim, key: K) -> QueuePosition {
        let position = claim.position();
        self.remove(&position);
        for request in &claim.requests {
            *self.total.entry(request.resource_type.clone()).or_default() += i128::from(request.amount);
        }
        self.pending.insert(position.clone(), (claim, key));
        position
    }

    /// Removes an instance.
    pub fn remove(&mut self, position: &QueuePosition) {
        let Some((claim, _)) = self.pending.remove(position) else { return };
        for request in &claim.requests {
            if let Some(sum) = self.total.get_mut(&request.resource_type) {
                *sum -= i128::from(request.amount);
            }
        }
        if self.pending.is_empty() {
            self.total.clear();
        }
    }

    /// Records whether an instance was denied, or delayed behind one that was.
    pub fn set_denied(&mut self, position: &QueuePosition, denied: bool) {
        if let Some((claim, _)) = self.pending.get_mut(position) {
            claim.denied = denied;
        }
    }

    /// Whether no instance waits.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Decides whether the instance at a position may create its claim.
    pub fn decide(&self, position: &QueuePosition, headroom: &Headroom) -> QueueDecision {
        let Some((own, _)) = self.pending.get(position).filter(|_| !headroom.0.is_empty()) else {
            return QueueDecision::Unknown;
        };
        if self.covers_all(own, headroom) {
            return QueueDecision::Admit;
        }
        let (mut ahead, mut denied) = (Sums::default(), false);
        for (other, _) in self.pending.range(..position).map(|(_, other)| other) {
            if headroom.within_limits(&other.requests) {
                ahead.add(&other.requests);
                denied |= other.denied;
            }
        }
        if headroom.covers(&own.requests, &ahead) {
            QueueDecision::Admit
        } else if denied {
            QueueDecision::Wait
        } else {
            QueueDecision::NoHeadroom
        }
    }

    /// The denied instances that may create their claims now, found in one pass over the queue.
    pub fn admissible(&self, headroom: &Headroom) -> Vec<K> {
        let (mut ahead, mut admissible) = (Sums::default(), Vec::new());
        if headroom.0.is_empty() {
            return admissible;
        }
        for (claim, key) in self.pending.values() {
            if claim.denied && headroom.covers(&claim.requests, &ahead) {
                admissible.push(key.clone());
            }
            if headroom.within_limits(&claim.requests) {
                ahead.add(&claim.requests);
            }
        }
        admissible
    }

    /// Whether the headroom covers the sum of all requests, for the resources that one instance requests.
    fn covers_all(&self, own: &PendingClaim, headroom: &Headroom) -> bool {
        own.requests.iter().all(|request| {
            let total = self.total.get(&request.resource_type).copied().unwrap_or_default();
            headroom
                .0
                .get(&request.resource_type)
                .is_some_and(|allowance| total <= i128::from(allowance.available))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::at;

    /// The specification: decides by visiting every instance.
    fn specification(own: &PendingClaim, queue: &[PendingClaim], headroom: &Headroom) -> QueueDecision {
        if headroom.0.is_empty() {
            return QueueDecision::Unknown;
        }
        let counts = |other: &&PendingClaim| {
            other.position() < own.position() && headroom.within_limits(&other.requests)
        };
        let ahead: Vec<&PendingClaim> = queue.iter().filter(counts).collect();
        let mut sums = Sums::default();
        ahead.iter().for_each(|other| sums.add(&other.requests));
        match headroom.covers(&own.requests, &sums) {
            true => QueueDecision::Admit,
            false if ahead.iter().any(|other| other.denied) => QueueDecision::Wait,
            false => QueueDecision::NoHeadroom,
        }
    }

    fn mk_queue(pending: &[PendingClaim]) -> QuotaQueue<String> {
        let mut queue = QuotaQueue::default();
        for claim in pending {
            queue.insert(claim.clone(), claim.name.clone());
        }
        queue
    }

    /// The decision for an instance that waits together with others.
    fn decide(own: &PendingClaim, others: &[PendingClaim], headroom: &Headroom) -> QueueDecision {
        let mut queue = mk_queue(others);
        let position = queue.insert(own.clone(), own.name.clone());
        queue.decide(&position, headroom)
    }

    fn mk_claim(name: &str, created: i64, instances: i64, vcpus: i64) -> PendingClaim {
        let request = |resource_type: &str, amount| ResourceRequest {
            resource_type: resource_type.into(),
            amount,
            ..Default::default()
        };
        let requests = vec![request("instances", instances), request("vcpus", vcpus)];
        PendingClaim { created: Some(at(created)), name: name.into(), requests, denied: true }
    }

    fn mk_bucket(project: &str, resource: &str, available: i64, limit: i64) -> AllowanceBucket {
        let mut bucket = AllowanceBucket::default();
        bucket.spec.consumer_ref.kind = "Project".into();
        bucket.spec.consumer_ref.name = project.into();
        bucket.spec.resource_type = resource.into();
        let status = bucket.status.get_or_insert_default();
        (status.available, status.limit) = (available, limit);
        bucket
    }

    fn mk_headroom(instances: i64, vcpus: i64) -> Headroom {
        Headroom::of(
            "acme",
            &[mk_bucket("acme", "instances", instances, 10), mk_bucket("acme", "vcpus", vcpus, 8)],
        )
    }

    #[test]
    fn the_oldest_is_admitted_first_and_the_name_orders_instances_of_one_age() {
        let queue = [mk_claim("b", 9, 1, 1), mk_claim("c", 5, 1, 1), mk_claim("a", 9, 1, 1)];
        let decisions =
            |instances| queue.each_ref().map(|own| decide(own, &queue, &mk_headroom(instances, 8)));
        assert_eq!(decisions(0), [QueueDecision::Wait, QueueDecision::NoHeadroom, QueueDecision::Wait]);
        assert_eq!(decisions(1), [QueueDecision::Wait, QueueDecision::Admit, QueueDecision::Wait]);
        assert_eq!(decisions(2), [QueueDecision::Wait, QueueDecision::Admit, QueueDecision::Admit]);
        assert_eq!(decisions(3), [QueueDecision::Admit; 3]);
    }

    #[test]
    fn a_small_instance_does_not_take_the_headroom_of_an_older_large_one() {
        let queue = [mk_claim("large", 1, 1, 8), mk_claim("small", 2, 1, 1)];
        assert_eq!(decide(&queue[1], &queue, &mk_headroom(10, 7)), QueueDecision::Wait);
    }

    #[test]
    fn an_instance_beyond_the_limit_blocks_no_other() {
        let queue = [mk_claim("huge", 1, 1, 9), mk_claim("small", 2, 1, 1)];
        assert_eq!(decide(&queue[0], &queue, &mk_headroom(10, 8)), QueueDecision::NoHeadroom);
        assert_eq!(decide(&queue[1], &queue, &mk_headroom(10, 8)), QueueDecision::Admit);
    }

    #[test]
    fn an_instance_that_was_not_denied_keeps_its_headroom_and_makes_no_other_wait() {
        let mut queue = [mk_claim("first", 1, 1, 1), mk_claim("second", 2, 1, 1)];
        queue[0].denied = false;
        assert_eq!(decide(&queue[1], &queue, &mk_headroom(1, 8)), QueueDecision::NoHeadroom);
    }

    #[test]
    fn without_buckets_the_decision_is_unknown_and_buckets_of_other_projects_are_ignored() {
        let own = mk_claim("a", 1, 1, 1);
        assert_eq!(decide(&own, &[], &Headroom::default()), QueueDecision::Unknown);
        let foreign = [mk_bucket("shop", "instances", 5, 5), mk_bucket("shop", "vcpus", 5, 5)];
        assert_eq!(decide(&own, &[], &Headroom::of("acme", &foreign)), QueueDecision::Unknown);
        let half = Headroom::of("acme", &[mk_bucket("acme", "instances", 5, 5)]);
        assert_eq!(decide(&own, &[], &half), QueueDecision::NoHeadroom);
    }

    #[test]
    fn huge_amounts_do_not_overflow() {
        let queue = [mk_claim("a", 1, i64::MAX, 1), mk_claim("b", 2, i64::MAX, 1)];
        let headroom = Headroom::of(
            "acme",
            &[mk_bucket("acme", "instances", i64::MAX, i64::MAX), mk_bucket("acme", "vcpus", 9, 9)],
        );
        assert_eq!(decide(&queue[1], &queue, &headroom), QueueDecision::Admit, "the sum saturates");
    }

    /// An operation on the queue: insert or replace an instance (id, two requests, denied), or remove it.
    #[derive(Clone, Debug)]
    enum Operation {
        Insert(i64, i64, i64, bool),
        Remove(i64),
    }

    fn operations() -> impl Strategy<Value = Vec<Operation>> {
        let requests = prop_oneof![4 => 0i64..6, 1 => Just(i64::MAX)];
        let insert = (0i64..12, requests.clone(), requests, any::<bool>());
        let operation = prop_oneof![
            3 => insert.prop_map(|(id, instances, vcpus, denied)| Operation::Insert(id, instances, vcpus, denied)),
            1 => (0i64..12).prop_map(Operation::Remove),
        ];
        proptest::collection::vec(operation, 1..40)
    }

    proptest! {
        #[test]
        fn the_queue_decides_as_the_specification(
            operations in operations(),
            instances in 0i64..30,
            vcpus in 0i64..30,
        ) {
            let (mut queue, mut model, headroom) = (QuotaQueue::default(), BTreeMap::new(), mk_headroom(instances, vcpus));
            for operation in operations {
                match operation {
                    Operation::Insert(id, instances, vcpus, denied) => {
                        let mut claim = mk_claim(&id.to_string(), id / 3, instances, vcpus);
                        claim.denied = denied;
                        queue.insert(claim.clone(), id);
                        model.insert(claim.position(), (claim, id));
                    }
                    Operation::Remove(id) => {
                        let position = mk_claim(&id.to_string(), id / 3, 0, 0).position();
                        queue.remove(&position);
                        model.remove(&position);
                    }
                }
                let all: Vec<PendingClaim> = model.values().map(|(claim, _)| claim.clone()).collect();
                let mut admissible = Vec::new();
                for (position, (claim, id)) in &model {
                    let decision = specification(claim, &all, &headroom);
                    prop_assert_eq!(queue.decide(position, &headroom), decision);
                    if claim.denied && decision == QueueDecision::Admit {
                        admissible.push(*id);
                    }
                }
                prop_assert_eq!(queue.admissible(&headroom), admissible);
            }
        }
    }
}
