//! Admission of Workloads: validation and defaults.
//!
//! The same rules apply when a workload is created and when its spec changes. All errors are returned at
//! once, each with the path of the field in the user's object. An update that does not change the spec, and
//! any update of a workload that is being deleted, is admitted without validation: finalizers and labels must
//! stay writable when the rules change.
//!
//! Three rules depend on other objects. They check only what an update adds, so that a lost permission never
//! blocks the removal of a city or a workload:
//!
//! - a city must be bound to the project when a placement first names it. If its binding is deleted later,
//!   the city may still be scaled, changed and removed;
//! - the user must have access to a network when the update attaches something new to it: by a new template,
//!   or in a city that is new in the workload. Scaling, and removing a city, attach nothing;
//! - the user must have the right to read a config map or secret when the update first refers to it.
//!
//! The schema of the kind contains many of these rules too. They are repeated here because a plane may have
//! another version of the schema, and because every later decision relies on the validity of an admitted
//! workload.

mod access;
mod defaults;
mod field;
mod metadata;
mod placements;
mod probes;
mod referenced_data;
mod runtime;
mod ssh;
#[cfg(test)]
mod tests;
mod volumes;

use polis_api::ObjectExt;
use polis_api::compute::Workload;

use crate::cities::Cities;

pub use access::{AccessDecision, MAX_NETWORKS, NetworkUse, access_errors, network_uses};
pub use defaults::{DefaultedField, defaults};
pub use field::{FieldError, FieldErrorKind, Path};
pub use referenced_data::{CheckedReference, MAX_SOURCES, new_references, reference_errors};

/// Whether an update is admitted without validation: the spec does not change, or the workload is being
/// deleted.
pub fn is_exempt(workload: &Workload, before: &Workload) -> bool {
    before.is_deleting() || workload.spec == before.spec
}

/// All errors of a workload, except those about access to its networks, and to its config maps and secrets
/// (see [`network_uses`] and [`new_references`]).
///
/// `before` is the workload that an update replaces.
pub fn validate(workload: &Workload, before: Option<&Workload>, cities: &Cities) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = Path::new("spec");
    let template = spec.at("template");
    if before.is_none() {
        metadata::check_name(&workload.metadata, &mut errors);
    }
    metadata::check_template(&workload.spec.template, &template.at("metadata"), &mut errors);
    volumes::check(&workload.spec.template.spec, &template.at("spec"), &mut errors);
    runtime::check(&workload.spec.template.spec, &template.at("spec"), &mut errors);
    access::check(workload, &template.at("spec"), &mut errors);
    referenced_data::check(workload, &template.at("spec"), &mut errors);
    placements::check(workload, before, cities, &spec.at("placements"), &mut errors);
    errors
}

/// The error detail for a name that is not a DNS label.
const DNS_LABEL: &str =
    "must be at most 63 lower-case letters, digits and '-', and begin and end with a letter or digit";

/// Checks a name that must be a DNS label.
fn check_label(name: &str, at: &Path, errors: &mut Vec<FieldError>) {
    if name.is_empty() {
        errors.push(at.required(""));
    } else if !polis_api::names::is_dns_label(name) {
        errors.push(at.invalid(name, DNS_LABEL));
    }
}
