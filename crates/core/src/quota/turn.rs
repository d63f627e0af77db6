//! Whose turn it is: instances of one project that wait for quota, in line.
//!
//! The oldest comes first, and what it needs is kept for it: whoever is younger may only have what is left when everybody
//! ahead is served, so that nobody starves, however large. An instance that needs more than the project is allowed at all
//! does not stand in the line: waiting would not help it, and it would hold up everybody behind.
//!
//! What is left is what the project's AllowanceBuckets say. Where they cannot be seen, nobody knows, and everybody tries.

use std::collections::BTreeMap;

use polis_api::milo;
use polis_api::quota::{AllowanceBucket, ResourceRequest};

use crate::Time;

/// An instance that waits.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiter {
    /// Since when there is such an instance.
    pub born: Option<Time>,
    /// Namespace and name; decides among those of one age.
    pub name: String,
    /// What it needs.
    pub needs: Vec<ResourceRequest>,
    /// Whether it was denied, or held back behind one that was.
    pub denied: bool,
}

impl Waiter {
    fn key(&self) -> (Option<&Time>, &str) {
        (self.born.as_ref(), &self.name)
    }

    /// Whether it stands before another.
    fn is_ahead_of(&self, other: &Waiter) -> bool {
        self.key() < other.key()
    }
}

/// Whether an instance may claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nobody knows what is left.
    Unknown,
    /// There is room for it and for everybody ahead of it.
    Open,
    /// There is no room for it, and nobody ahead of it was denied.
    Full,
    /// Somebody ahead of it was denied, and there is no room for all.
    Behind,
}

/// What a project has left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room(BTreeMap<String, Left>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    available: i64,
    limit: i64,
}

impl Room {
    /// What the buckets of a project say. Buckets of others, and those that nobody has counted yet, say nothing.
    pub fn of(project: &str, buckets: &[AllowanceBucket]) -> Self {
        let counted = buckets.iter().filter_map(|bucket| {
            let consumer = &bucket.spec.consumer_ref;
            let ours = consumer.kind == milo::PROJECT_KIND && consumer.name == project;
            let status = bucket.status.as_ref().filter(|_| ours)?;
            let left = Left { available: status.available, limit: status.limit };
            Some((bucket.spec.resource_type.clone(), left))
        });
        Room(counted.collect())
    }

    /// Whether so much is left of everything that is needed. Of what has no bucket nothing is left.
    fn holds<'a>(&self, needs: impl IntoIterator<Item = &'a ResourceRequest>) -> bool {
        let mut sums: BTreeMap<&str, i64> = BTreeMap::new();
        for need in needs {
            let sum = sums.entry(&need.resource_type).or_default();
            *sum = sum.saturating_add(need.amount);
        }
        sums.iter().all(|(resource, sum)| self.0.get(*resource).is_some_and(|left| *sum <= left.available))
    }

    /// Whether it could ever be held.
    fn allows(&self, needs: &[ResourceRequest]) -> bool {
        let fits = |need: &ResourceRequest| {
            self.0.get(&need.resource_type).is_some_and(|left| need.amount <= left.limit)
        };
        needs.iter().all(fits)
    }
}

/// Whether it is the turn of an instance, given all that wait for the same project. It may be among them or not.
pub fn turn<'a>(me: &Waiter, line: impl IntoIterator<Item = &'a Waiter>, room: &Room) -> Turn {
    if room.0.is_empty() {
        return Turn::Unknown;
    }
    let ahead: Vec<&Waiter> =
        line.into_iter().filter(|other| other.is_ahead_of(me) && room.allows(&other.needs)).collect();
    // Only what I need counts: what those ahead need besides is none of my business.
    let mine = |need: &&ResourceRequest| me.needs.iter().any(|own| own.resource_type == need.resource_type);
    let theirs = ahead.iter().flat_map(|other| &other.needs).filter(mine);
    if room.holds(theirs.chain(&me.needs)) {
        Turn::Open
    } else if ahead.iter().any(|other| other.denied) {
        Turn::Behind
    } else {
        Turn::Full
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    fn mk_waiter(name: &str, born: i64, instances: i64, vcpus: i64) -> Waiter {
        let need = |resource_type: &str, amount| ResourceRequest {
            resource_type: resource_type.into(),
            amount,
            ..Default::default()
        };
        let needs = vec![need("instances", instances), need("vcpus", vcpus)];
        Waiter { born: Some(at(born)), name: name.into(), needs, denied: true }
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

    fn mk_room(instances: i64, vcpus: i64) -> Room {
        Room::of(
            "acme",
            &[mk_bucket("acme", "instances", instances, 10), mk_bucket("acme", "vcpus", vcpus, 8)],
        )
    }

    #[test]
    fn the_oldest_comes_first_and_the_name_decides_among_equals() {
        let line = [mk_waiter("b", 9, 1, 1), mk_waiter("c", 5, 1, 1), mk_waiter("a", 9, 1, 1)];
        let turns = |instances| line.each_ref().map(|me| turn(me, &line, &mk_room(instances, 8)));
        assert_eq!(turns(0), [Turn::Behind, Turn::Full, Turn::Behind]);
        assert_eq!(turns(1), [Turn::Behind, Turn::Open, Turn::Behind]);
        assert_eq!(turns(2), [Turn::Behind, Turn::Open, Turn::Open]);
        assert_eq!(turns(3), [Turn::Open; 3]);
    }

    #[test]
    fn a_small_one_does_not_take_what_a_large_one_ahead_waits_for() {
        let line = [mk_waiter("large", 1, 1, 8), mk_waiter("small", 2, 1, 1)];
        assert_eq!(turn(&line[1], &line, &mk_room(10, 7)), Turn::Behind);
    }

    #[test]
    fn one_that_can_never_be_served_holds_up_nobody() {
        let line = [mk_waiter("absurd", 1, 1, 9), mk_waiter("small", 2, 1, 1)];
        assert_eq!(turn(&line[0], &line, &mk_room(10, 8)), Turn::Full);
        assert_eq!(turn(&line[1], &line, &mk_room(10, 8)), Turn::Open);
    }

    #[test]
    fn who_was_not_denied_yet_holds_its_place_and_nobody_back() {
        let mut line = [mk_waiter("first", 1, 1, 1), mk_waiter("second", 2, 1, 1)];
        line[0].denied = false;
        assert_eq!(turn(&line[1], &line, &mk_room(1, 8)), Turn::Full);
    }

    #[test]
    fn without_buckets_nobody_knows_and_buckets_of_others_say_nothing() {
        let me = mk_waiter("a", 1, 1, 1);
        assert_eq!(turn(&me, [], &Room::default()), Turn::Unknown);
        let foreign = [mk_bucket("shop", "instances", 5, 5), mk_bucket("shop", "vcpus", 5, 5)];
        assert_eq!(turn(&me, [], &Room::of("acme", &foreign)), Turn::Unknown);
        let half = Room::of("acme", &[mk_bucket("acme", "instances", 5, 5)]);
        assert_eq!(turn(&me, [], &half), Turn::Full);
    }

    #[test]
    fn absurd_amounts_do_not_overflow() {
        let line = [mk_waiter("a", 1, i64::MAX, 1), mk_waiter("b", 2, i64::MAX, 1)];
        let room = Room::of(
            "acme",
            &[mk_bucket("acme", "instances", i64::MAX, i64::MAX), mk_bucket("acme", "vcpus", 9, 9)],
        );
        assert_eq!(turn(&line[1], &line, &room), Turn::Open, "the sum is cut off at what a bucket can say");
    }
}
