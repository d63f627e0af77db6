//! The admission webhooks for Workloads: one sets defaults, one validates.
//!
//! ```text
//!   API server ─► service (HTTP, limits) ─► review (decode) ─► project_resolver (plane of the request)
//!              ◄─ error (Status), patch ◄─ core::admission (rules) ◄─ access (who may use a network)
//! ```
//!
//! A [`Webhook`] is a tower service. A program that runs its API servers in the same process calls it
//! directly; any other program serves it over TLS with [`serve`]. The rules are in `polis_core::admission`;
//! this crate does the I/O.
//!
//! The webhooks fail closed: a review that cannot be decoded, an unknown project and a failed access review
//! are denied with the reason. Only requests that do not change a spec are allowed without checks.
//!
//! Dependents: the binary. The crate reads LocationBindings of project planes from the cache and creates
//! SubjectAccessReviews there. It writes nothing else.

mod access;
mod error;
mod metrics;
mod project_resolver;
mod review;
mod serve;
mod service;
mod webhook;

pub use error::AdmissionError;
pub use project_resolver::ProjectResolver;
pub use serve::serve;
pub use service::{MUTATE_PATH, VALIDATE_PATH};
pub use webhook::Webhook;
