//! Diagnostics: controllers that only report configuration problems, as events, log lines and metrics.

mod location_bindings;
pub(crate) mod unknown_projects;

pub use location_bindings::LocationBindingDiagnostics;
pub use unknown_projects::UnknownProjectDiagnostics;
