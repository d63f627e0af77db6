//! The admission webhooks: what a Workload gets by default, and whether it is taken.
//!
//! ```text
//!   API server ─► service (HTTP, paths, sizes) ─► review (decoded) ─► project (which plane it is about)
//!              ◄─ verdict (status, causes, patch) ◄─ core::admission (the rules) ◄─ access (who may use a network)
//! ```
//!
//! A [`Webhook`] is a tower service: a program that has its API servers in the same process calls it there, any other
//! mounts it on TLS with [`serve`]. What is decided is decided in `polis_core::admission`; this room asks, and tells.
//!
//! It fails closed. A review that cannot be read, a project that is not known, a network about which no answer is had:
//! each is a refusal that says so, and never a yes. Only what changes no spec passes without a look.
//!
//! Who may enter: the binary. It reads project planes (LocationBindings, from the cache) and asks them for access
//! (SubjectAccessReviews), nothing else; it writes nothing.

mod access;
mod judge;
mod metrics;
mod project;
mod review;
mod serve;
mod service;
mod verdict;

pub use judge::Webhook;
pub use project::Projects;
pub use serve::serve;
pub use service::{MUTATE, VALIDATE};
pub use verdict::Refusal;
