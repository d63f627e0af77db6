//! Model test of list, watch, resume and compaction: a watch resumed at any revision rebuilds the state of
//! the model, or gets `Compacted`.

use std::collections::BTreeMap;

use futures::FutureExt;
use polis_apimachinery::clock::Clock;
use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use serde_json::json;

use super::{
    ChangeType, Collection, EncodedObject, HistoryLimits, MemoryStore, Precondition, RangeOptions, Store,
    StoreWatch, WatchItem, Write,
};

/// Small, so that compaction happens often.
const HISTORY: usize = 6;

#[derive(Clone, Debug)]
enum Operation {
    /// Creates or updates an object; a stale precondition must be refused.
    Put {
        name: u8,
        stale: bool,
    },
    Delete {
        name: u8,
    },
    /// Starts a watch at the current or an earlier revision.
    Watch {
        back: u64,
    },
    /// Reads all pending events of a watcher.
    Drain {
        watcher: usize,
    },
    /// Lists at an earlier revision, in pages.
    List {
        back: u64,
        limit: usize,
    },
}

/// The expected states after every revision.
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
    type Transition = Operation;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self { states: vec![BTreeMap::new()] }).boxed()
    }

    fn transitions(_: &Self) -> BoxedStrategy<Operation> {
        prop_oneof![
            4 => (0..5u8, prop::bool::weighted(0.1)).prop_map(|(name, stale)| Operation::Put { name, stale }),
            2 => (0..5u8).prop_map(|name| Operation::Delete { name }),
            2 => (0..12u64).prop_map(|back| Operation::Watch { back }),
            3 => (0..4usize).prop_map(|watcher| Operation::Drain { watcher }),
            2 => (0..12u64, 1..4usize).prop_map(|(back, limit)| Operation::List { back, limit }),
        ]
        .boxed()
    }

    fn apply(mut state: Self, operation: &Operation) -> Self {
        let mut next = state.now().clone();
        let revision = state.revision() + 1;
        match operation {
            Operation::Put { name, stale: false } => drop(next.insert(*name, revision)),
            Operation::Delete { name } if next.contains_key(name) => drop(next.remove(name)),
            _ => return state,
        }
        state.states.push(next);
        state
    }
}

/// A watch, and the state rebuilt from its events.
struct Watcher {
    watch: StoreWatch,
    state: BTreeMap<u8, u64>,
}

struct SystemUnderTest {
    store: MemoryStore,
    watchers: Vec<Watcher>,
}

fn collection() -> Collection {
    Collection::new("p", "things")
}

fn name_of(path: &str) -> u8 {
    path.parse().expect("a number")
}

impl SystemUnderTest {
    fn write(&self, name: u8, precondition: Precondition, put: bool) -> bool {
        let object = put.then(|| EncodedObject::encode(&json!({"metadata": {"name": name.to_string()}})));
        self.store
            .commit(Write { collection: collection(), path: name.to_string(), precondition, object })
            .now_or_never()
            .expect("a synchronous commit")
            .is_ok()
    }

    fn list(&self, at: u64, limit: usize) -> Option<BTreeMap<u8, u64>> {
        let mut found = BTreeMap::new();
        let mut from = String::new();
        loop {
            let page = self
                .store
                .view()
                .range(
                    &collection(),
                    &RangeOptions { from: &from, limit, at: Some(at), ..RangeOptions::default() },
                )
                .ok()?;
            found.extend(page.items.iter().map(|(path, stored)| (name_of(path), stored.revision())));
            match page.items.last() {
                Some((last, _)) if page.remaining > 0 => from = format!("{last}\0"),
                _ => return Some(found),
            }
        }
    }

    /// Reads the pending events; false if the history was compacted.
    fn drain(watcher: &mut Watcher) -> bool {
        while let Some(next) = watcher.watch.next().now_or_never() {
            match next {
                WatchItem::Compacted(_) => return false,
                WatchItem::Event(event) => match event.change {
                    ChangeType::Put => drop(watcher.state.insert(name_of(&event.path), event.revision())),
                    ChangeType::Delete => drop(watcher.state.remove(&name_of(&event.path))),
                },
            }
        }
        true
    }
}

impl StateMachineTest for SystemUnderTest {
    type SystemUnderTest = Self;
    type Reference = Model;

    fn init_test(_: &Model) -> Self {
        let limits = HistoryLimits { count: HISTORY, ..HistoryLimits::default() };
        Self { store: MemoryStore::new(limits, Clock::system()), watchers: Vec::new() }
    }

    fn apply(mut state: Self, model: &Model, operation: Operation) -> Self {
        let before = state.store.view().get(&collection(), "none").is_none();
        assert!(before);
        match operation {
            Operation::Put { name, stale } => {
                let current = state.store.view().get(&collection(), &name.to_string());
                let precondition = match (&current, stale) {
                    (Some(current), false) => Precondition::AtRevision(current.revision()),
                    (None, false) => Precondition::Absent,
                    (Some(_), true) => Precondition::Absent,
                    (None, true) => Precondition::AtRevision(1),
                };
                assert_eq!(state.write(name, precondition, true), !stale);
            }
            Operation::Delete { name } => {
                if let Some(current) = state.store.view().get(&collection(), &name.to_string()) {
                    assert!(state.write(name, Precondition::AtRevision(current.revision()), false));
                }
            }
            Operation::Watch { back } => {
                let from = model.revision().saturating_sub(back).max(1);
                // The watcher starts with the state at its revision.
                match state.store.view().watch(&collection(), from) {
                    Ok(watch) => state.watchers.push(Watcher { watch, state: model.at(from).clone() }),
                    Err(compacted) => assert!(
                        model.revision() - compacted.oldest <= HISTORY as u64
                            && compacted.requested < compacted.oldest,
                        "{compacted}"
                    ),
                }
                let excess = state.watchers.len().saturating_sub(4);
                state.watchers.drain(..excess);
            }
            Operation::Drain { watcher } => {
                if let Some(one) = state.watchers.get_mut(watcher) {
                    if Self::drain(one) {
                        assert_eq!(&one.state, model.now());
                    } else {
                        state.watchers.remove(watcher);
                    }
                }
            }
            Operation::List { back, limit } => {
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
    fn a_resumed_watch_rebuilds_the_same_state_or_gets_compacted(sequential 1..60 => SystemUnderTest);
}
