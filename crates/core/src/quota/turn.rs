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
    fn place(&self) -> Place {
        Place { born: self.born.clone(), name: self.name.clone() }
    }
}

/// A place in the line: the oldest first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    born: Option<Time>,
    name: String,
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

    /// Whether so much is left of everything that is needed, besides what others take. Of what has no bucket nothing is
    /// left.
    fn holds(&self, needs: &[ResourceRequest], others: &Sums) -> bool {
        needs.iter().all(|need| {
            let own = needs.iter().filter(|own| own.resource_type == need.resource_type);
            let sum = own.fold(others.of(&need.resource_type), |sum, own| sum.saturating_add(own.amount));
            self.0.get(&need.resource_type).is_some_and(|left| sum <= left.available)
        })
    }

    /// Whether it could ever be held.
    fn allows(&self, needs: &[ResourceRequest]) -> bool {
        let fits = |need: &ResourceRequest| {
            self.0.get(&need.resource_type).is_some_and(|left| need.amount <= left.limit)
        };
        needs.iter().all(fits)
    }
}

/// What some need together, by resource, cut off at what a bucket can say.
#[derive(Default)]
struct Sums<'a>(BTreeMap<&'a str, i64>);

impl<'a> Sums<'a> {
    fn add(&mut self, needs: &'a [ResourceRequest]) {
        for need in needs {
            let sum = self.0.entry(&need.resource_type).or_default();
            *sum = sum.saturating_add(need.amount);
        }
    }

    fn of(&self, resource: &str) -> i64 {
        self.0.get(resource).copied().unwrap_or_default()
    }
}

/// All that wait for one project. `K` is what the caller knows them by.
///
/// What they need together is kept, so that nobody is looked at while there is room for all; otherwise whoever is ahead is
/// looked at once.
#[derive(Clone, Debug)]
pub struct Line<K> {
    waiters: BTreeMap<Place, (Waiter, K)>,
    /// What everybody needs. Wide enough for any number of the largest amounts, so that it can be taken back exactly.
    all: BTreeMap<String, i128>,
}

impl<K> Default for Line<K> {
    fn default() -> Self {
        Self { waiters: BTreeMap::new(), all: BTreeMap::new() }
    }
}

impl<K: Clone> Line<K> {
    /// An instance waits, or waits with other needs.
    pub fn join(&mut self, waiter: Waiter, known_by: K) -> Place {
        let place = waiter.place();
        self.leave(&place);
        for need in &waiter.needs {
            *self.all.entry(need.resource_type.clone()).or_default() += i128::from(need.amount);
        }
        self.waiters.insert(place.clone(), (waiter, known_by));
        place
    }

    /// An instance waits no more.
    pub fn leave(&mut self, place: &Place) {
        let Some((waiter, _)) = self.waiters.remove(place) else { return };
        for need in &waiter.needs {
            if let Some(sum) = self.all.get_mut(&need.resource_type) {
                *sum -= i128::from(need.amount);
            }
        }
        if self.waiters.is_empty() {
            self.all.clear();
        }
    }

    /// Whether an instance was denied, or held back behind one that was.
    pub fn note(&mut self, place: &Place, denied: bool) {
        if let Some((waiter, _)) = self.waiters.get_mut(place) {
            waiter.denied = denied;
        }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Whether it is the turn of whoever stands there.
    pub fn turn(&self, place: &Place, room: &Room) -> Turn {
        let Some((me, _)) = self.waiters.get(place).filter(|_| !room.0.is_empty()) else {
            return Turn::Unknown;
        };
        if self.has_room_for_all(me, room) {
            return Turn::Open;
        }
        let (mut ahead, mut denied) = (Sums::default(), false);
        for (other, _) in self.waiters.range(..place).map(|(_, other)| other) {
            if room.allows(&other.needs) {
                ahead.add(&other.needs);
                denied |= other.denied;
            }
        }
        if room.holds(&me.needs, &ahead) {
            Turn::Open
        } else if denied {
            Turn::Behind
        } else {
            Turn::Full
        }
    }

    /// Those who were denied and whose turn it is, found in one go through the line.
    pub fn called(&self, room: &Room) -> Vec<K> {
        let (mut ahead, mut called) = (Sums::default(), Vec::new());
        if room.0.is_empty() {
            return called;
        }
        for (waiter, known_by) in self.waiters.values() {
            if waiter.denied && room.holds(&waiter.needs, &ahead) {
                called.push(known_by.clone());
            }
            if room.allows(&waiter.needs) {
                ahead.add(&waiter.needs);
            }
        }
        called
    }

    /// Whether there is enough for everybody, of all that one of them needs.
    fn has_room_for_all(&self, me: &Waiter, room: &Room) -> bool {
        me.needs.iter().all(|need| {
            let all = self.all.get(&need.resource_type).copied().unwrap_or_default();
            room.0.get(&need.resource_type).is_some_and(|left| all <= i128::from(left.available))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::at;

    /// The rule itself, by looking at everybody.
    fn by_the_book(me: &Waiter, line: &[Waiter], room: &Room) -> Turn {
        if room.0.is_empty() {
            return Turn::Unknown;
        }
        let counts = |other: &&Waiter| other.place() < me.place() && room.allows(&other.needs);
        let ahead: Vec<&Waiter> = line.iter().filter(counts).collect();
        let mut sums = Sums::default();
        ahead.iter().for_each(|other| sums.add(&other.needs));
        match room.holds(&me.needs, &sums) {
            true => Turn::Open,
            false if ahead.iter().any(|other| other.denied) => Turn::Behind,
            false => Turn::Full,
        }
    }

    fn mk_line(waiters: &[Waiter]) -> Line<String> {
        let mut line = Line::default();
        for waiter in waiters {
            line.join(waiter.clone(), waiter.name.clone());
        }
        line
    }

    /// Whose turn it is, if the one who asks stands in the line as well.
    fn turn(me: &Waiter, others: &[Waiter], room: &Room) -> Turn {
        let mut line = mk_line(others);
        let place = line.join(me.clone(), me.name.clone());
        line.turn(&place, room)
    }

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
        assert_eq!(turn(&me, &[], &Room::default()), Turn::Unknown);
        let foreign = [mk_bucket("shop", "instances", 5, 5), mk_bucket("shop", "vcpus", 5, 5)];
        assert_eq!(turn(&me, &[], &Room::of("acme", &foreign)), Turn::Unknown);
        let half = Room::of("acme", &[mk_bucket("acme", "instances", 5, 5)]);
        assert_eq!(turn(&me, &[], &half), Turn::Full);
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

    /// What happens in a line: somebody comes or comes again (place, needs, whether denied), or goes.
    #[derive(Clone, Debug)]
    enum Step {
        Come(i64, i64, i64, bool),
        Go(i64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let needs = prop_oneof![4 => 0i64..6, 1 => Just(i64::MAX)];
        let come = (0i64..12, needs.clone(), needs, any::<bool>());
        let step = prop_oneof![
            3 => come.prop_map(|(who, instances, vcpus, denied)| Step::Come(who, instances, vcpus, denied)),
            1 => (0i64..12).prop_map(Step::Go),
        ];
        proptest::collection::vec(step, 1..40)
    }

    proptest! {
        #[test]
        fn a_line_that_is_kept_says_what_looking_at_everybody_would(
            steps in steps(),
            instances in 0i64..30,
            vcpus in 0i64..30,
        ) {
            let (mut line, mut model, room) = (Line::default(), BTreeMap::new(), mk_room(instances, vcpus));
            for step in steps {
                match step {
                    Step::Come(who, instances, vcpus, denied) => {
                        let mut waiter = mk_waiter(&who.to_string(), who / 3, instances, vcpus);
                        waiter.denied = denied;
                        line.join(waiter.clone(), who);
                        model.insert(waiter.place(), (waiter, who));
                    }
                    Step::Go(who) => {
                        let place = mk_waiter(&who.to_string(), who / 3, 0, 0).place();
                        line.leave(&place);
                        model.remove(&place);
                    }
                }
                let all: Vec<Waiter> = model.values().map(|(waiter, _)| waiter.clone()).collect();
                let mut called = Vec::new();
                for (place, (waiter, who)) in &model {
                    let turn = by_the_book(waiter, &all, &room);
                    prop_assert_eq!(line.turn(place, &room), turn);
                    if waiter.denied && turn == Turn::Open {
                        called.push(*who);
                    }
                }
                prop_assert_eq!(line.called(&room), called);
            }
        }
    }
}
