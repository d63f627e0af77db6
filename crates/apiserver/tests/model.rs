//! List, watch, resume and compaction against a simple model: whoever resumes anywhere rebuilds the same state, or is
//! told that his revision is gone.

use std::{collections::BTreeMap, sync::Arc};

use futures::FutureExt;
use polis_apiserver::{
    SystemClock,
    store::{
        Change, Collection, Draft, Expect, HistoryLimits, MemoryStore, Next, Range, Store, Watch, Write,
    },
};
use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use serde_json::json;

/// Small, so that compaction happens all the time.
const HISTORY: usize = 6;

#[derive(Clone, Debug)]
enum Step {
    /// Creates or updates an object; a stale expectation must be refused.
    Put {
        name: u8,
        stale: bool,
    },
    Remove {
        name: u8,
    },
    /// Begins to follow, from a list now or from an old revision.
    Follow {
        back: u64,
    },
    /// Reads everything that a follower has not seen yet.
    Drain {
        follower: usize,
    },
    /// Lists as of some revision ago, in pages.
    List {
        back: u64,
        limit: usize,
    },
}

/// What must be: the states after every revision.
#[derive(Clone, Debug, Default)]
struct Model {
    /// Name → revision of its last write, after each revision; index 0 is revision 1.
    states: Vec<BTreeMap<u8, u64>>,
}

impl Model {
    fn now(&self) -> &BTreeMap<u8, u64> {
        self.states.last().expect("revision 1")
    }

    fn revision(&self) -> u64 {
        self.states.len() as u64
    }

    fn at(&self, revision: u64) -> &BTreeMap<u8, u64> {
        &self.states[usize::try_from(revision).expect("small") - 1]
    }
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self { states: vec![BTreeMap::new()] }).boxed()
    }

    fn transitions(_: &Self) -> BoxedStrategy<Step> {
        prop_oneof![
            4 => (0..5u8, prop::bool::weighted(0.1)).prop_map(|(name, stale)| Step::Put { name, stale }),
            2 => (0..5u8).prop_map(|name| Step::Remove { name }),
            2 => (0..12u64).prop_map(|back| Step::Follow { back }),
            3 => (0..4usize).prop_map(|follower| Step::Drain { follower }),
            2 => (0..12u64, 1..4usize).prop_map(|(back, limit)| Step::List { back, limit }),
        ]
        .boxed()
    }

    fn apply(mut state: Self, step: &Step) -> Self {
        let mut next = state.now().clone();
        let revision = state.revision() + 1;
        match step {
            Step::Put { name, stale: false } => drop(next.insert(*name, revision)),
            Step::Remove { name } if next.contains_key(name) => drop(next.remove(name)),
            _ => return state,
        }
        state.states.push(next);
        state
    }
}

/// Somebody who follows, and what he believes.
struct Follower {
    watch: Watch,
    belief: BTreeMap<u8, u64>,
}

struct Tested {
    store: MemoryStore,
    followers: Vec<Follower>,
}

fn collection() -> Collection {
    Collection::new("p", "things")
}

fn name_of(path: &str) -> u8 {
    path.parse().expect("a number")
}

impl Tested {
    fn write(&self, name: u8, expect: Expect, put: bool) -> bool {
        let draft = put.then(|| Draft::encode(&json!({"metadata": {"name": name.to_string()}})));
        self.store
            .commit(Write { collection: collection(), path: name.to_string(), expect, draft })
            .now_or_never()
            .expect("memory answers at once")
            .is_ok()
    }

    fn list(&self, at: u64, limit: usize) -> Option<BTreeMap<u8, u64>> {
        let mut found = BTreeMap::new();
        let mut from = String::new();
        loop {
            let page = self
                .store
                .view()
                .range(&collection(), &Range { from: &from, limit, at: Some(at), ..Range::default() })
                .ok()?;
            found.extend(page.items.iter().map(|(path, stored)| (name_of(path), stored.revision())));
            match page.items.last() {
                Some((last, _)) if page.remaining > 0 => from = format!("{last}\0"),
                _ => return Some(found),
            }
        }
    }

    /// Reads what is new; false when history ran away.
    fn drain(follower: &mut Follower) -> bool {
        while let Some(next) = follower.watch.next().now_or_never() {
            match next {
                Next::Compacted(_) => return false,
                Next::Event(event) => match event.change {
                    Change::Put => drop(follower.belief.insert(name_of(&event.path), event.revision())),
                    Change::Delete => drop(follower.belief.remove(&name_of(&event.path))),
                },
            }
        }
        true
    }
}

impl StateMachineTest for Tested {
    type SystemUnderTest = Self;
    type Reference = Model;

    fn init_test(_: &Model) -> Self {
        let limits = HistoryLimits { count: HISTORY, ..HistoryLimits::default() };
        Self { store: MemoryStore::new(limits, Arc::new(SystemClock)), followers: Vec::new() }
    }

    fn apply(mut state: Self, model: &Model, step: Step) -> Self {
        let before = state.store.view().get(&collection(), "none").is_none();
        assert!(before);
        match step {
            Step::Put { name, stale } => {
                let current = state.store.view().get(&collection(), &name.to_string());
                let expect = match (&current, stale) {
                    (Some(current), false) => Expect::At(current.revision()),
                    (None, false) => Expect::Absent,
                    (Some(_), true) => Expect::Absent,
                    (None, true) => Expect::At(1),
                };
                assert_eq!(state.write(name, expect, true), !stale);
            }
            Step::Remove { name } => {
                if let Some(current) = state.store.view().get(&collection(), &name.to_string()) {
                    assert!(state.write(name, Expect::At(current.revision()), false));
                }
            }
            Step::Follow { back } => {
                let from = model.revision().saturating_sub(back).max(1);
                // Whoever knows a revision knows the state at it.
                match state.store.view().watch(&collection(), from) {
                    Ok(watch) => state.followers.push(Follower { watch, belief: model.at(from).clone() }),
                    Err(gone) => assert!(
                        model.revision() - gone.kept <= HISTORY as u64 && gone.asked < gone.kept,
                        "{gone}"
                    ),
                }
                let excess = state.followers.len().saturating_sub(4);
                state.followers.drain(..excess);
            }
            Step::Drain { follower } => {
                if let Some(one) = state.followers.get_mut(follower) {
                    if Self::drain(one) {
                        assert_eq!(&one.belief, model.now());
                    } else {
                        state.followers.remove(follower);
                    }
                }
            }
            Step::List { back, limit } => {
                let at = model.revision().saturating_sub(back).max(1);
                match state.list(at, limit) {
                    Some(found) => assert_eq!(&found, model.at(at)),
                    None => assert!(
                        back as usize >= HISTORY,
                        "history is kept for {HISTORY} writes, {back} back is within"
                    ),
                }
            }
        }
        state
    }

    fn check_invariants(state: &Self, model: &Model) {
        assert_eq!(state.store.view().revision(), model.revision());
        assert_eq!(state.list(model.revision(), 3).as_ref(), Some(model.now()));
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(128), ..ProptestConfig::default() })]

    #[test]
    fn whoever_resumes_rebuilds_the_same_state_or_is_told_to_list_again(sequential 1..60 => Tested);
}
