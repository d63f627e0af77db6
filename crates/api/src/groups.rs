//! Groups of the platform's identities, by which admission policies and role bindings know them.
//!
//! Client certificates and token issuers of the platform give them out. No API server puts a service account
//! into them, so no tenant can create an identity that is in one.

/// Prefix of all of them.
pub const PREFIX: &str = "compute.datumapis.com:";
/// The managers, on the project planes and on the hub.
pub const MANAGERS: &str = "compute.datumapis.com:managers";
/// The cells of all cities, on the hub and on the project planes.
pub const CELLS: &str = "compute.datumapis.com:cells";
/// People who write WorkloadDeployments and Instances of a project by hand.
pub const ADMINISTRATORS: &str = "compute.datumapis.com:administrators";
/// Prefix of the group of a city's cells; see [`cells_of`].
const CITY: &str = "compute.datumapis.com:city:";

/// The group of the cells of a city, which is spelt as in the workloads.
pub fn cells_of(city: &str) -> String {
    format!("{CITY}{city}")
}

/// The city of a group that [`cells_of`] named.
pub fn city_of(group: &str) -> Option<&str> {
    group.strip_prefix(CITY).filter(|city| !city.is_empty())
}
