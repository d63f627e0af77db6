//! End-to-end suite: scenarios over all planes, with the controllers as real processes.
//!
//! A scenario states the rule that it tests, and does not depend on what its planes run on:
//!
//! ```no_run
//! use polis_e2e::{builders::deployment, matchers::policy, view::quiet_period, world::scenario};
//!
//! scenario(async |world| {
//!     let project = world.project("shop").await;
//!     let first = project.deploy(deployment("a").to("dfw")).await;
//!     let second = project.deploy(deployment("b").to("dfw")).await;
//!     let hub = world.hub().namespace_of(&project);
//!
//!     hub.eventually_has(policy("city-dfw")).await;
//!     first.delete().await;
//!     hub.consistently_has(policy("city-dfw"), quiet_period()).await;
//!     second.delete().await;
//!     hub.eventually_lacks(policy("city-dfw")).await;
//! });
//! ```
//!
//! ```text
//!   scenario ─► World ─► manager processes ─► proxies ─► planes (embedded or real)
//!                 └────► view, matchers ◄─── recorder ◄────┘
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`world`] | the shared fixture, and the environment of one scenario |
//! | [`planes`], [`real`], [`embedded`] | the interface to planes, and its implementations |
//! | [`project`], [`view`], [`matchers`], [`builders`] | what a scenario is written with: user actions, assertions, matchers, objects |
//! | [`recorder`] | a mirror of each plane and a journal of its changes |
//! | [`fakes`] | a cell's fake provider and network service, and a project's fake quota service |
//! | [`manager_process`], [`identities`] | the processes under test, and their identity on each plane |
//! | [`overlays`], [`rendered`], [`pod`] | the same processes as `deploy/` renders them |
//! | [`released`] | the CRDs of the last release |
//! | [`proxy`] | records the requests of a process and injects faults |
//! | [`rbac`] | compares the shipped roles with the recorded requests |
//! | [`report`] | the state of all planes, printed when a scenario fails |
//!
//! The scenarios are in `tests/`, one file per group. No other crate depends on this one.

pub mod embedded;
mod error;
pub mod fakes;
pub mod identities;
pub mod manager_process;
pub mod matchers;
pub mod overlays;
pub mod planes;
pub mod pod;
pub mod project;
pub mod proxy;
pub mod rbac;
pub mod real;
pub mod released;
pub mod rendered;
pub mod report;
pub mod view;
pub mod world;

pub use error::Error;
pub use polis_testing::{builders, recorder};
