//! The suite: what must hold across all planes, told in the words of the domain.
//!
//! A scenario reads like the sentence it protects, and does not know what its planes are made of:
//!
//! ```no_run
//! use polis_e2e::{draft::deployment, place::quiet, seek::policy, world::scenario};
//!
//! scenario(async |world| {
//!     let project = world.project("shop").await;
//!     let first = project.deploy(deployment("a").to("dfw")).await;
//!     let second = project.deploy(deployment("b").to("dfw")).await;
//!     let hub = world.hub().namespace_of(&project);
//!
//!     hub.has(policy("city-dfw")).await;
//!     first.delete().await;
//!     hub.keeps(policy("city-dfw"), quiet()).await;
//!     second.delete().await;
//!     hub.loses(policy("city-dfw")).await;
//! });
//! ```
//!
//! | file | holds |
//! |---|---|
//! | [`world`] | the stage that scenarios share, and what each is given |
//! | [`planes`], [`real`], [`embedded`] | what the suite needs of planes, and who gives it |
//! | [`project`], [`place`], [`seek`], [`draft`] | the words of a scenario: acts, looks, what is looked for, what is applied |
//! | [`eye`] | a mirror and a journal of each plane |
//! | [`provider`], [`network`], [`grants`] | the runtime and the network service of a cell and the quota service of a project, played |
//! | [`staff`], [`identities`] | the processes under test, and who they are on each plane |
//! | [`overlays`], [`rendered`], [`pod`] | the same processes as `deploy/` renders them |
//! | [`released`] | the kinds of the last release, in place of today's |
//! | [`wire`] | the line between a process and a plane: what passes is written down, and it can be cut |
//! | [`rights`] | what the shipped roles permit, held against what was asked for |
//! | [`report`] | what was seen when a scenario failed |
//!
//! The scenarios are in `tests/`: one file per group. Nobody imports this room.

pub mod draft;
pub mod embedded;
mod error;
pub mod eye;
pub mod grants;
pub mod identities;
pub mod network;
pub mod overlays;
pub mod place;
pub mod planes;
pub mod pod;
pub mod project;
pub mod provider;
pub mod real;
pub mod released;
pub mod rendered;
pub mod report;
pub mod rights;
pub mod seek;
pub mod staff;
pub mod wire;
pub mod world;

pub use error::Error;
