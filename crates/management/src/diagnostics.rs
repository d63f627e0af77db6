//! Diagnostics: controllers that only report configuration problems, as events, log lines and metrics.

pub(crate) mod location_bindings;
pub(crate) mod unknown_projects;
