//! The embedded federation: Karmada's API and observable behaviour over a hub plane and member planes.
//!
//! Production uses Karmada; a laptop and tests use this crate instead. Clients that write objects
//! and policies to the hub observe no difference. The crate has two parts: decisions, as pure functions over
//! plain data, and thin controllers that execute them.
//!
//! ```text
//!   object + PropagationPolicy ─► ResourceBinding ─► Work per member ─► object on the member
//!            (hub)                   (placement)       (hub)                  │
//!   status on the hub ◄─ aggregate ◄─ ResourceBinding status ◄─ Work status ◄─┘
//! ```
//!
//! - [`names`]: names of bindings, Works and execution namespaces;
//! - [`matching`], [`claim`]: which policy an object belongs to, and the labels and annotations that record
//!   it;
//! - [`placement`], [`division`]: the clusters of an object, and the replicas of each;
//! - [`manifest`], [`retain`]: the object that a member gets, and the fields that the member keeps;
//! - [`aggregate`], [`conditions`]: the status on the hub;
//! - [`interpreter`]: Lua scripts that define replicas, status and health of custom kinds;
//! - [`Federation`]: the controllers, over [`planes`].

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
mod state;

pub use federation::{Builder, Federation};
