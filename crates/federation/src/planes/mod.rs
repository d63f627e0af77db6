//! Planes as the federation sees them: objects of kinds that are only known at run time.
//!
//! Which kinds are propagated is said by policies while everything runs, so nothing here is declared beforehand:
//! a kind is looked up on the hub when a policy first names it, and mirrored from then on.

mod api;
mod kind;
mod mirror;

pub use api::{Api, ApiError, Fault};
pub use kind::Kind;
pub use mirror::{Change, Mirror};
