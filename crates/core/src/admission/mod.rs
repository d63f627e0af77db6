//! Which workloads are taken, and what is wrong with the others.
//!
//! A workload is judged when it is made and whenever its spec changes, by the same rules. All that is wrong is told at
//! once, each with the field as the user wrote it. A change of anything but the spec, and any change of a workload on
//! its way out, is taken as it is: finalizers and labels must be writable whatever the rules are by now.
//!
//! Two rules look at the world, and look only at what a change adds, so that losing something never blocks the way out:
//!
//! - a city must be bound to the project when a placement first names it. One whose binding went away later may be
//!   scaled, changed and left;
//! - a network may be used by whoever attaches something new to it: by a new template, or in a city that was not there
//!   before. Scaling, and taking a city out, attach nothing.
//!
//! The schema of the kind holds many of these rules too. They are repeated here because the schema of a plane may be of
//! another version, and because what this function takes must be good for every later decision.

mod access;
mod defaults;
mod field;
mod metadata;
mod placements;
mod runtime;
mod ssh;
#[cfg(test)]
mod tests;
mod volumes;

use polis_api::compute::Workload;

use crate::cities::Cities;
use crate::owner;

pub use access::{Answer, Use, access_errors, uses};
pub use defaults::{Filled, defaults};
pub use field::{Fault, FieldError, Path};

/// Whether a workload is taken without a look at its rules: nothing of its spec changes, or it is on its way out.
pub fn is_exempt(workload: &Workload, before: &Workload) -> bool {
    owner::is_deleting(&before.metadata) || workload.spec == before.spec
}

/// Everything that is wrong with a workload, but for who may use its networks (see [`uses`]).
///
/// `before` is the workload that it replaces.
pub fn errors(workload: &Workload, before: Option<&Workload>, cities: &Cities) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = Path::new("spec");
    let template = spec.at("template");
    if before.is_none() {
        metadata::check_name(&workload.metadata, &mut errors);
    }
    metadata::check_template(&workload.spec.template, &template.at("metadata"), &mut errors);
    volumes::check(&workload.spec.template.spec, &template.at("spec"), &mut errors);
    runtime::check(&workload.spec.template.spec, &template.at("spec"), &mut errors);
    access::check(&workload.spec.template.spec, &template.at("spec"), &mut errors);
    placements::check(workload, before, cities, &spec.at("placements"), &mut errors);
    errors
}

/// What a DNS label is, for people.
const DNS_LABEL: &str =
    "must be at most 63 lower-case letters, digits and '-', and begin and end with a letter or digit";

/// A name that must be a DNS label.
fn check_label(name: &str, at: &Path, errors: &mut Vec<FieldError>) {
    if name.is_empty() {
        errors.push(at.required(""));
    } else if !polis_api::names::is_dns_label(name) {
        errors.push(at.invalid(name, DNS_LABEL));
    }
}
