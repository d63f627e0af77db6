//! Property test of own writes against a model server: whatever the order of writes, responses, events and
//! lists, the store never shows an older state after a newer one, shows each own write once its response is
//! handled, and ends in the state of the server.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use serde_json::json;

use super::*;

#[derive(Clone, Debug)]
enum Operation {
    /// Another client creates or updates an object.
    Put(u8),
    /// Another client deletes an object.
    Remove(u8),
    /// This process creates or updates an object. The response is handled later.
    Write(u8),
    /// This process deletes an object. The response is handled later.
    Delete(u8),
    /// This process handles one of the responses that it has received.
    HandleResponse(prop::sample::Index),
    /// The watch sends the next event, or the running list the next object.
    Receive,
    /// The watch expires, and a list begins.
    Relist,
    /// The watch sends a bookmark.
    Bookmark,
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let name = 0u8..3;
    let operation = prop_oneof![
        2 => name.clone().prop_map(Operation::Put),
        1 => name.clone().prop_map(Operation::Remove),
        3 => name.clone().prop_map(Operation::Write),
        2 => name.prop_map(Operation::Delete),
        5 => any::<prop::sample::Index>().prop_map(Operation::HandleResponse),
        6 => Just(Operation::Receive),
        1 => Just(Operation::Relist),
        1 => Just(Operation::Bookmark),
    ];
    proptest::collection::vec(operation, 0..80)
}

/// A state of an object on the server: its UID and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    uid: u64,
    version: u64,
}

#[derive(Clone, Copy, Debug)]
enum Response {
    Written(u8, State),
    Deleted(u8, u64),
}

/// A list that was taken at a version and is being received.
#[derive(Debug)]
struct RunningList {
    version: u64,
    rest: VecDeque<(u8, State)>,
    received: BTreeSet<Arc<str>>,
}

#[derive(Default)]
struct World {
    revision: u64,
    objects: BTreeMap<u8, State>,
    /// The events that the watch has not sent: the object, its state, and whether it was deleted.
    events: VecDeque<(u8, State, bool)>,
    list: Option<RunningList>,
    /// The version up to which the watch or a list has sent everything.
    sent: u64,
    responses: Vec<Response>,
    store: Store,
    /// The last shown state of each object.
    shown: BTreeMap<u8, State>,
    /// The UIDs of objects that were shown and then not shown any more.
    gone: BTreeSet<u64>,
}

fn mk_parsed(name: u8, state: State) -> ParsedObject {
    let meta = json!({"name": format!("o{name}"), "uid": format!("u{}", state.uid), "resourceVersion": state.version.to_string()});
    parse_object(json!({"metadata": meta}).to_string().as_bytes()).unwrap()
}

impl World {
    fn cached(&self, name: u8) -> Option<State> {
        let bytes = self.store.get(&format!("/o{name}"))?;
        let number = |field| metadata_field(&bytes, field).trim_start_matches('u').parse().unwrap();
        Some(State { uid: number("uid"), version: number("resourceVersion") })
    }

    fn put(&mut self, name: u8) -> State {
        self.revision += 1;
        let uid = self.objects.get(&name).map_or(self.revision, |state| state.uid);
        let state = State { uid, version: self.revision };
        self.objects.insert(name, state);
        self.events.push_back((name, state, false));
        state
    }

    fn remove(&mut self, name: u8) -> Option<u64> {
        let State { uid, .. } = self.objects.remove(&name)?;
        self.revision += 1;
        self.events.push_back((name, State { uid, version: self.revision }, true));
        Some(uid)
    }

    fn handle(&mut self, response: Response) {
        match response {
            Response::Written(name, state) => {
                self.store.write(&[], &mk_parsed(name, state), Some(true), || None);
                let cached = self.cached(name);
                let shown = self.shown.get(&name).is_some_and(|shown| shown.version >= state.version);
                let is_past = state.version <= self.sent || shown || self.gone.contains(&state.uid);
                assert!(
                    is_past || cached.is_some_and(|cached| cached.version >= state.version),
                    "{name}: wrote {state:?} and read {cached:?}"
                );
            }
            Response::Deleted(name, uid) => {
                self.store.delete(&[], &format!("/o{name}"), &format!("u{uid}"));
                assert!(self.cached(name).is_none_or(|cached| cached.uid != uid), "{name} was deleted");
            }
        }
    }

    fn receive(&mut self) {
        if let Some(list) = &mut self.list {
            match list.rest.pop_front() {
                Some((name, state)) => {
                    let parsed = mk_parsed(name, state);
                    self.store.observe(&[], &parsed);
                    list.received.insert(parsed.id);
                }
                None => {
                    self.store.complete_list(&[], &list.received, &list.version.to_string());
                    self.sent = list.version;
                    self.list = None;
                }
            }
        } else if let Some((name, state, deleted)) = self.events.pop_front() {
            let parsed = mk_parsed(name, state);
            match deleted {
                true => self.store.observe_deletion(&[], &parsed),
                false => self.store.observe(&[], &parsed),
            };
            self.store.set_shown(&parsed.version);
            self.sent = state.version;
        }
    }

    fn relist(&mut self) {
        // Events from before the list are never sent: the watch continues at the version of the list.
        self.events.clear();
        let rest = self.objects.iter().map(|(name, state)| (*name, *state)).collect();
        self.list = Some(RunningList { version: self.revision, rest, received: BTreeSet::new() });
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Put(name) => drop(self.put(name)),
            Operation::Remove(name) => drop(self.remove(name)),
            Operation::Write(name) => {
                let state = self.put(name);
                self.responses.push(Response::Written(name, state));
            }
            Operation::Delete(name) => {
                // A client deletes an object that it has read.
                let cached = self.cached(name).map(|state| state.uid);
                if cached.is_some() && cached == self.objects.get(&name).map(|state| state.uid) {
                    let deleted = self.remove(name).map(|uid| Response::Deleted(name, uid));
                    self.responses.extend(deleted);
                }
            }
            Operation::HandleResponse(index) if !self.responses.is_empty() => {
                let response = self.responses.swap_remove(index.index(self.responses.len()));
                self.handle(response);
            }
            Operation::HandleResponse(_) => {}
            Operation::Receive => self.receive(),
            Operation::Relist => self.relist(),
            Operation::Bookmark if self.events.is_empty() && self.list.is_none() => {
                self.store.set_shown(&self.revision.to_string());
                self.sent = self.revision;
            }
            Operation::Bookmark => {}
        }
    }

    /// Compares what the store shows with what it showed before.
    fn check(&mut self) {
        for name in 0..3 {
            let cached = self.cached(name);
            let before = self.shown.get(&name).copied();
            if let Some(before) = before.filter(|before| cached.is_none_or(|cached| cached.uid != before.uid))
            {
                self.gone.insert(before.uid);
            }
            if let Some(cached) = cached {
                assert!(!self.gone.contains(&cached.uid), "{name}: {cached:?} was deleted and is back");
                assert!(
                    before.is_none_or(|before| before.version <= cached.version),
                    "{name}: {cached:?} after {before:?}"
                );
                self.shown.insert(name, cached);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]
    #[test]
    fn the_store_never_goes_back_and_ends_in_the_state_of_the_server(operations in operations()) {
        let mut world = World { revision: 1, ..World::default() };
        world.relist();
        world.receive(); // the first list, of an empty server
        for operation in operations {
            world.apply(operation);
            world.check();
        }
        for response in std::mem::take(&mut world.responses) {
            world.handle(response);
            world.check();
        }
        while world.list.is_some() || !world.events.is_empty() {
            world.receive();
            world.check();
        }
        let cached: BTreeMap<u8, State> = (0..3).filter_map(|name| Some((name, world.cached(name)?))).collect();
        prop_assert_eq!(cached, world.objects);
        prop_assert!(world.store.own_writes.is_empty(), "{:?}", world.store.own_writes);
    }
}
