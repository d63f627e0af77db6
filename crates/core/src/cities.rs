//! The cities that a project may use.
//!
//! A project may use a city if it has a LocationBinding for it; admission and the workload controller both
//! decide here. A binding is skipped if it is being deleted, or if it has an `Available` condition that is
//! not True. A binding without the condition counts: its existence is the permission. City codes are compared
//! verbatim: `DFW` and `dfw` are two cities.
//!
//! On a plane that does not serve the kind, the [`TenancyMode`] decides: a single cluster must work without
//! bindings, so every city is allowed; in a project of Milo no binding means no permission, so no city is
//! allowed.

use std::collections::BTreeSet;

use polis_api::ObjectExt;
use polis_api::conditions::AVAILABLE;
use polis_api::labels::TOPOLOGY_CITY_CODE;
use polis_api::networking::LocationBinding;

use crate::conditions;

/// How project planes are provided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TenancyMode {
    /// One cluster is the only project, and nothing creates LocationBindings for it.
    Single,
    /// Milo provides one plane per project, and LocationBindings state which cities each project may use.
    Milo,
}

/// The cities that a project may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cities {
    /// Every city with a non-empty code.
    Any,
    /// The cities that have a usable binding.
    Bound(BTreeSet<String>),
}

/// A LocationBinding that is skipped, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedBinding {
    /// Name of the binding.
    pub binding: String,
    /// Why it is skipped.
    pub reason: SkipReason,
}

/// The number of skipped bindings that a message names.
const MAX_NAMED: usize = 5;

/// Why a binding is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// Its topology names no city.
    NoCity,
    /// Its `Available` condition is not True.
    NotAvailable,
    /// It is being deleted.
    Deleting,
}

impl std::fmt::Display for SkippedBinding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reason = match self.reason {
            SkipReason::NoCity => "names no city",
            SkipReason::NotAvailable => "is not available",
            SkipReason::Deleting => "is being deleted",
        };
        write!(f, "{} {reason}", self.binding)
    }
}

/// The message about skipped bindings; `None` if there are none.
pub fn skipped_message(skipped: &[SkippedBinding]) -> Option<String> {
    let named: Vec<String> = skipped.iter().take(MAX_NAMED).map(SkippedBinding::to_string).collect();
    let more = match skipped.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!named.is_empty()).then(|| format!("ignored LocationBindings: {}{more}", named.join(", ")))
}

impl Cities {
    /// The cities of a project, and its skipped bindings. `bindings` is `None` if the plane does not serve
    /// the kind.
    pub fn of_project(
        tenancy: TenancyMode,
        bindings: Option<&[LocationBinding]>,
    ) -> (Cities, Vec<SkippedBinding>) {
        match (tenancy, bindings) {
            (TenancyMode::Single, None) => (Cities::Any, Vec::new()),
            (TenancyMode::Milo, None) => Cities::bound(&[]),
            (_, Some(bindings)) => Cities::bound(bindings),
        }
    }

    /// The cities of the usable bindings, and the skipped bindings sorted by name.
    pub fn bound(bindings: &[LocationBinding]) -> (Cities, Vec<SkippedBinding>) {
        let (mut cities, mut skipped) = (BTreeSet::new(), Vec::new());
        for binding in bindings {
            match usable(binding) {
                Ok(city) => _ = cities.insert(city.to_owned()),
                Err(reason) => skipped.push(SkippedBinding { binding: binding.name().to_owned(), reason }),
            }
        }
        skipped.sort_by(|a, b| a.binding.cmp(&b.binding));
        (Cities::Bound(cities), skipped)
    }

    /// Whether the project may use a city.
    pub fn allows(&self, city: &str) -> bool {
        match self {
            Cities::Any => !city.is_empty(),
            Cities::Bound(cities) => cities.contains(city),
        }
    }

    /// The allowed cities as a message, sorted.
    pub fn describe(&self) -> String {
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

/// The city of a binding, or why the binding is skipped.
fn usable(binding: &LocationBinding) -> Result<&str, SkipReason> {
    if binding.is_deleting() {
        return Err(SkipReason::Deleting);
    }
    let available =
        binding.status.as_ref().and_then(|status| conditions::find(&status.conditions, AVAILABLE));
    if available.is_some_and(|condition| condition.status != "True") {
        return Err(SkipReason::NotAvailable);
    }
    match binding.spec.topology.get(TOPOLOGY_CITY_CODE).map(String::as_str) {
        Some(city) if !city.is_empty() => Ok(city),
        _ => Err(SkipReason::NoCity),
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
    fn a_binding_allows_its_city() {
        let (cities, skipped) =
            Cities::bound(&[mk_binding("a", Some("dfw"), None), mk_binding("b", Some("ord"), Some("True"))]);
        assert!(cities.allows("dfw") && cities.allows("ord") && !cities.allows("lhr"));
        assert_eq!(skipped, []);
    }

    #[test]
    fn a_binding_that_is_not_available_is_skipped() {
        for status in ["False", "Unknown"] {
            let (cities, skipped) = Cities::bound(&[mk_binding("a", Some("dfw"), Some(status))]);
            assert!(!cities.allows("dfw"));
            assert_eq!(skipped, [SkippedBinding { binding: "a".into(), reason: SkipReason::NotAvailable }]);
        }
    }

    #[test]
    fn a_binding_without_a_city_is_skipped() {
        let (cities, skipped) =
            Cities::bound(&[mk_binding("b", None, None), mk_binding("a", Some(""), None)]);
        assert!(!cities.allows(""));
        assert_eq!(
            skipped.iter().map(|s| (s.binding.as_str(), s.reason)).collect::<Vec<_>>(),
            [("a", SkipReason::NoCity), ("b", SkipReason::NoCity)]
        );
    }

    #[test]
    fn the_message_names_at_most_five_skipped_bindings_with_their_reasons() {
        let of = |number: usize, reason| SkippedBinding { binding: format!("b-{number}"), reason };
        assert_eq!(skipped_message(&[]), None);
        assert_eq!(
            skipped_message(&[of(1, SkipReason::NotAvailable), of(2, SkipReason::Deleting)]).unwrap(),
            "ignored LocationBindings: b-1 is not available, b-2 is being deleted"
        );
        let many: Vec<_> = (0..100).map(|number| of(number, SkipReason::NoCity)).collect();
        assert!(skipped_message(&many).unwrap().ends_with("b-4 names no city and 95 more"));
    }

    #[test]
    fn a_binding_that_is_being_deleted_is_skipped() {
        let (cities, skipped) = Cities::bound(&[deleting(mk_binding("a", Some("dfw"), None))]);
        assert!(!cities.allows("dfw"));
        assert_eq!(skipped[0].reason, SkipReason::Deleting);
    }

    #[test]
    fn one_usable_binding_of_two_is_enough() {
        let (cities, _) =
            Cities::bound(&[mk_binding("a", Some("dfw"), Some("False")), mk_binding("b", Some("dfw"), None)]);
        assert!(cities.allows("dfw"));
    }

    #[test]
    fn city_codes_are_compared_verbatim() {
        assert!(!mk_cities(&["DFW"]).allows("dfw"));
    }

    #[test]
    fn a_single_cluster_without_the_kind_allows_every_city_but_the_empty_one() {
        let (cities, skipped) = Cities::of_project(TenancyMode::Single, None);
        assert_eq!((&cities, skipped), (&Cities::Any, vec![]));
        assert!(cities.allows("anywhere"));
        assert!(!cities.allows(""));
    }

    #[test]
    fn a_milo_project_without_the_kind_may_use_no_city() {
        assert_eq!(Cities::of_project(TenancyMode::Milo, None), (mk_cities(&[]), vec![]));
    }

    #[test]
    fn where_the_kind_is_served_only_bindings_allow_a_city() {
        for tenancy in [TenancyMode::Single, TenancyMode::Milo] {
            assert_eq!(Cities::of_project(tenancy, Some(&[])).0, mk_cities(&[]), "{tenancy:?}");
            let bindings = [mk_binding("a", Some("dfw"), None), mk_binding("b", None, None)];
            let (cities, skipped) = Cities::of_project(tenancy, Some(&bindings));
            assert_eq!((cities, skipped.len()), (mk_cities(&["dfw"]), 1), "{tenancy:?}");
        }
    }

    #[test]
    fn the_message_lists_the_cities_in_order() {
        assert_eq!(mk_cities(&["ord", "dfw"]).describe(), "cities bound to this project: dfw, ord");
        assert_eq!(mk_cities(&[]).describe(), "no city is bound to this project");
    }
}
