//! Cities that a project may use.
//!
//! A LocationBinding in the project is the one answer to "may this project use this city": admission and the workload
//! controller both ask here. A binding whose `Available` condition is there and not True does not count, nor does one
//! that is on its way out; one without the condition counts, since its existence is the permission. City codes are
//! taken verbatim: `DFW` and `dfw` are two cities.
//!
//! A plane that does not serve the kind has no bindings either way. What that means depends on the [`Ground`]: a bare
//! cluster must work, so every city is open; on a platform the lack of bindings is no permission, so none is.

use std::collections::BTreeSet;

use polis_api::conditions::AVAILABLE;
use polis_api::labels::TOPOLOGY_CITY_CODE;
use polis_api::networking::LocationBinding;

use crate::{conditions, owner};

/// What the projects stand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// One cluster, with nobody around it who would bind cities.
    Bare,
    /// A platform, which says for each project what it may use.
    Platform,
}

/// The cities that a project may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cities {
    /// Every city.
    Any,
    /// These cities.
    Bound(BTreeSet<String>),
}

/// A binding that offers no city, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Name of the binding.
    pub binding: String,
    /// Why it does not count.
    pub why: Unusable,
}

/// The most bindings that a person is told of at once.
const TOLD: usize = 5;

/// Why a binding does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// Its topology names no city.
    NoCity,
    /// It says itself that it is not available.
    NotAvailable,
    /// It is on its way out.
    Leaving,
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let why = match self.why {
            Unusable::NoCity => "names no city",
            Unusable::NotAvailable => "says that it is not available",
            Unusable::Leaving => "is being deleted",
        };
        write!(f, "{} {why}", self.binding)
    }
}

/// What a person is told about bindings that do not count; nothing if all do.
pub fn skipped_in_words(skipped: &[Skipped]) -> Option<String> {
    let told: Vec<String> = skipped.iter().take(TOLD).map(Skipped::to_string).collect();
    let more = match skipped.len().saturating_sub(TOLD) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!told.is_empty()).then(|| format!("bindings that do not count: {}{more}", told.join(", ")))
}

impl Cities {
    /// The cities of a project, and its bindings that do not count. `bindings` is none where its plane does not serve
    /// the kind.
    pub fn of_project(ground: Ground, bindings: Option<&[LocationBinding]>) -> (Cities, Vec<Skipped>) {
        match (ground, bindings) {
            (Ground::Bare, None) => (Cities::Any, Vec::new()),
            (Ground::Platform, None) => Cities::bound(&[]),
            (_, Some(bindings)) => Cities::bound(bindings),
        }
    }

    /// The cities of some bindings, and the bindings that do not count, sorted by name.
    pub fn bound(bindings: &[LocationBinding]) -> (Cities, Vec<Skipped>) {
        let (mut cities, mut skipped) = (BTreeSet::new(), Vec::new());
        for binding in bindings {
            match usable(binding) {
                Ok(city) => _ = cities.insert(city.to_owned()),
                Err(why) => skipped.push(Skipped { binding: owner::name(&binding.metadata).to_owned(), why }),
            }
        }
        skipped.sort_by(|a, b| a.binding.cmp(&b.binding));
        (Cities::Bound(cities), skipped)
    }

    /// Whether the project may use a city.
    pub fn allow(&self, city: &str) -> bool {
        match self {
            Cities::Any => !city.is_empty(),
            Cities::Bound(cities) => cities.contains(city),
        }
    }

    /// What a person is told about the choice: the cities in order, or that there is none.
    pub fn in_words(&self) -> String {
        match self {
            Cities::Any => "any city may be used".into(),
            Cities::Bound(cities) if cities.is_empty() => "no city is bound to this project".into(),
            Cities::Bound(cities) => {
                let cities: Vec<&str> = cities.iter().map(String::as_str).collect();
                format!("cities bound to this project: {}", cities.join(", "))
            }
        }
    }
}

/// The city that a binding offers.
fn usable(binding: &LocationBinding) -> Result<&str, Unusable> {
    if owner::is_deleting(&binding.metadata) {
        return Err(Unusable::Leaving);
    }
    let available =
        binding.status.as_ref().and_then(|status| conditions::find(&status.conditions, AVAILABLE));
    if available.is_some_and(|condition| condition.status != "True") {
        return Err(Unusable::NotAvailable);
    }
    match binding.spec.topology.get(TOPOLOGY_CITY_CODE).map(String::as_str) {
        Some(city) if !city.is_empty() => Ok(city),
        _ => Err(Unusable::NoCity),
    }
}

#[cfg(test)]
pub(crate) fn mk_cities(cities: &[&str]) -> Cities {
    Cities::Bound(cities.iter().map(|city| city.to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{deleting, mk_condition, mk_meta};

    fn mk_binding(name: &str, city: Option<&str>, available: Option<&str>) -> LocationBinding {
        let mut binding = LocationBinding { metadata: mk_meta("", name), ..Default::default() };
        binding.spec.topology.extend(city.map(|city| (TOPOLOGY_CITY_CODE.to_owned(), city.to_owned())));
        if let Some(status) = available {
            binding.status.get_or_insert_default().conditions = vec![mk_condition(AVAILABLE, status, "Why")];
        }
        binding
    }

    #[test]
    fn a_binding_is_the_permission() {
        let (cities, skipped) =
            Cities::bound(&[mk_binding("a", Some("dfw"), None), mk_binding("b", Some("ord"), Some("True"))]);
        assert!(cities.allow("dfw") && cities.allow("ord") && !cities.allow("lhr"));
        assert_eq!(skipped, []);
    }

    #[test]
    fn a_binding_that_says_it_is_not_available_does_not_count() {
        for status in ["False", "Unknown"] {
            let (cities, skipped) = Cities::bound(&[mk_binding("a", Some("dfw"), Some(status))]);
            assert!(!cities.allow("dfw"));
            assert_eq!(skipped, [Skipped { binding: "a".into(), why: Unusable::NotAvailable }]);
        }
    }

    #[test]
    fn a_binding_without_a_city_is_named_and_skipped() {
        let (cities, skipped) =
            Cities::bound(&[mk_binding("b", None, None), mk_binding("a", Some(""), None)]);
        assert!(!cities.allow(""));
        assert_eq!(
            skipped.iter().map(|s| (s.binding.as_str(), s.why)).collect::<Vec<_>>(),
            [("a", Unusable::NoCity), ("b", Unusable::NoCity)]
        );
    }

    #[test]
    fn bindings_that_do_not_count_are_told_with_their_reasons_and_not_all_of_many() {
        let of = |number: usize, why| Skipped { binding: format!("b-{number}"), why };
        assert_eq!(skipped_in_words(&[]), None);
        assert_eq!(
            skipped_in_words(&[of(1, Unusable::NotAvailable), of(2, Unusable::Leaving)]).unwrap(),
            "bindings that do not count: b-1 says that it is not available, b-2 is being deleted"
        );
        let many: Vec<_> = (0..100).map(|number| of(number, Unusable::NoCity)).collect();
        assert!(skipped_in_words(&many).unwrap().ends_with("b-4 names no city and 95 more"));
    }

    #[test]
    fn a_binding_on_its_way_out_does_not_count() {
        let (cities, skipped) = Cities::bound(&[deleting(mk_binding("a", Some("dfw"), None))]);
        assert!(!cities.allow("dfw"));
        assert_eq!(skipped[0].why, Unusable::Leaving);
    }

    #[test]
    fn one_usable_binding_of_two_is_enough() {
        let (cities, _) =
            Cities::bound(&[mk_binding("a", Some("dfw"), Some("False")), mk_binding("b", Some("dfw"), None)]);
        assert!(cities.allow("dfw"));
    }

    #[test]
    fn city_codes_are_verbatim() {
        assert!(!mk_cities(&["DFW"]).allow("dfw"));
    }

    #[test]
    fn a_bare_cluster_without_the_kind_allows_every_city_but_the_empty_one() {
        let (cities, skipped) = Cities::of_project(Ground::Bare, None);
        assert_eq!((&cities, skipped), (&Cities::Any, vec![]));
        assert!(cities.allow("anywhere"));
        assert!(!cities.allow(""));
    }

    #[test]
    fn a_project_of_a_platform_without_the_kind_may_use_no_city() {
        assert_eq!(Cities::of_project(Ground::Platform, None), (mk_cities(&[]), vec![]));
    }

    #[test]
    fn where_the_kind_is_served_its_bindings_are_the_only_word() {
        for ground in [Ground::Bare, Ground::Platform] {
            assert_eq!(Cities::of_project(ground, Some(&[])).0, mk_cities(&[]), "{ground:?}");
            let bindings = [mk_binding("a", Some("dfw"), None), mk_binding("b", None, None)];
            let (cities, skipped) = Cities::of_project(ground, Some(&bindings));
            assert_eq!((cities, skipped.len()), (mk_cities(&["dfw"]), 1), "{ground:?}");
        }
    }

    #[test]
    fn the_choice_is_told_in_order() {
        assert_eq!(mk_cities(&["ord", "dfw"]).in_words(), "cities bound to this project: dfw, ord");
        assert_eq!(mk_cities(&[]).in_words(), "no city is bound to this project");
    }
}
