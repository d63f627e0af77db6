//! The embedded federation: Karmada's API and observable behaviour over a hub plane and member planes.
//!
//! On a laptop, in tests and in simulation there is no Karmada; in production there is. Whoever writes objects
//! and policies to the hub must not be able to tell. This room holds what makes that true: decisions as pure
//! functions over plain data, and thin controllers that carry them out on an engine.
//!
//! - [`names`]: how bindings, works and execution namespaces are called;
//! - [`matching`], [`claim`]: which policy an object belongs to, and the marks that say so;
//! - [`placement`], [`division`]: which clusters it goes to, with how many replicas;
//! - [`manifest`], [`retain`]: what a member gets, and what it may keep;
//! - [`aggregate`], [`conditions`]: what is told back;
//! - [`Federation`]: the controllers that carry all this out, over [`planes`];
//! - [`interpreter`]: the Lua that tells the federation what it cannot know about a kind.

pub mod aggregate;
pub mod claim;
pub mod conditions;
mod controllers;
pub mod division;
mod error;
mod events;
mod federation;
pub mod interpreter;
pub mod manifest;
pub mod matching;
mod member;
pub mod names;
pub mod object;
pub mod placement;
pub mod planes;
mod queue;
pub mod retain;
mod routing;
mod world;

pub use federation::{Builder, Federation};
