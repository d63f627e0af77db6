//! [`Dependents`]: which bindings depend on an object, as their last reconciles found.
//!
//! An event of an object queues the bindings that depend on it and no others: in a namespace with many
//! deployments nearly all of them depend on something else, or on nothing. After a start the first reconcile
//! of each binding records its dependencies.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;

use crate::interpreter::TypeMeta;
use crate::object::ObjectKey;

/// A reference to objects: one by its name, or those of a namespace that labels select.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Dependency {
    pub(crate) type_meta: TypeMeta,
    pub(crate) namespace: String,
    /// None for a selection by labels.
    pub(crate) name: Option<String>,
}

/// Namespace and name of a binding.
type BindingName = (String, String);

/// The bindings that depend on objects.
#[derive(Default)]
pub(crate) struct Dependents(Mutex<State>);

#[derive(Default)]
struct State {
    dependencies: BTreeMap<BindingName, BTreeSet<Dependency>>,
    dependents: BTreeMap<Dependency, BTreeSet<BindingName>>,
}

impl Dependents {
    /// Replaces the dependencies of a binding.
    pub(crate) fn set(&self, binding: BindingName, dependencies: BTreeSet<Dependency>) {
        let mut state = self.0.lock();
        let State { dependencies: known, dependents } = &mut *state;
        if dependencies.is_empty() && !known.contains_key(&binding) {
            return;
        }
        let before = known.remove(&binding).unwrap_or_default();
        for lost in before.difference(&dependencies) {
            if let Some(users) = dependents.get_mut(lost) {
                users.remove(&binding);
                if users.is_empty() {
                    dependents.remove(lost);
                }
            }
        }
        for new in dependencies.difference(&before) {
            dependents.entry(new.clone()).or_default().insert(binding.clone());
        }
        if !dependencies.is_empty() {
            known.insert(binding, dependencies);
        }
    }

    /// The bindings that may depend on an object.
    pub(crate) fn of(&self, object: &ObjectKey) -> BTreeSet<BindingName> {
        let state = self.0.lock();
        let found = [Some(object.name.clone()), None].map(|name| Dependency {
            type_meta: TypeMeta { api_version: object.api_version.clone(), kind: object.kind.clone() },
            namespace: object.namespace.clone(),
            name,
        });
        found.iter().filter_map(|dependency| state.dependents.get(dependency)).flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_dependency(name: Option<&str>) -> Dependency {
        let type_meta = TypeMeta { api_version: "v1".into(), kind: "ConfigMap".into() };
        Dependency { type_meta, namespace: "shop".into(), name: name.map(str::to_owned) }
    }

    fn users(dependents: &Dependents, kind: &str, name: &str) -> Vec<String> {
        let object = ObjectKey {
            api_version: "v1".into(),
            kind: kind.into(),
            namespace: "shop".into(),
            name: name.into(),
        };
        dependents.of(&object).into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn an_object_has_the_dependents_that_name_it_or_select_its_kind() {
        let dependents = Dependents::default();
        let set = |binding: &str, names: &[Option<&str>]| {
            let names = names.iter().map(|name| mk_dependency(*name)).collect();
            dependents.set(("shop".into(), binding.into()), names);
        };
        set("a", &[Some("x"), Some("y")]);
        set("b", &[Some("x")]);
        set("c", &[None]);
        set("d", &[]);
        assert_eq!(users(&dependents, "ConfigMap", "x"), ["a", "b", "c"]);
        assert_eq!(users(&dependents, "ConfigMap", "z"), ["c"]);
        assert_eq!(users(&dependents, "Secret", "x"), [""; 0]);
        set("a", &[Some("y")]);
        set("c", &[]);
        assert_eq!(users(&dependents, "ConfigMap", "x"), ["b"]);
        assert_eq!(users(&dependents, "ConfigMap", "y"), ["a"]);
        set("a", &[]);
        set("b", &[]);
        assert!(dependents.0.lock().dependents.is_empty() && dependents.0.lock().dependencies.is_empty());
    }
}
