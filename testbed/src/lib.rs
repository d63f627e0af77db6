//! A bed of real etcd, kube-apiserver, kube-controller-manager and Karmada for tests.
//!
//! Everything runs as plain processes on 127.0.0.1, without containers: one etcd for all planes (each
//! kube-apiserver has its own prefix in it), a kube-apiserver for each project plane, for the federation hub
//! and for each cell, and Karmada on the hub with the cells joined to it. The programs are built once from
//! pinned Go modules into a cache; a bed then stands in about ten seconds.
//!
//! A test asks for a bed and gets planes:
//!
//! ```no_run
//! # async fn example() -> Result<(), polis_testbed::Error> {
//! use polis_testbed::{Bed, Options};
//!
//! let bed = Bed::up(Options::federation(["dfw", "ord"])).await?;
//! let hub = bed.client("hub").await?;
//! bed.kill(&bed.plane("dfw")?.apiserver())?; // an outage
//! # Ok(())
//! # }
//! ```
//!
//! From the pins to the planes, one file each:
//!
//! | file | holds |
//! |---|---|
//! | [`pins`] | which programs, of which versions, built with which flags |
//! | [`go`] | the Go that builds them |
//! | [`binaries`] | the cache of built programs |
//! | [`disk`] | whether there is room |
//! | [`home`] | the directory in which all state of one bed lives |
//! | [`pki`] | the bed's authority, certificates and kubeconfigs for any identity |
//! | [`port`] | free ports, and whose they are |
//! | [`guard`] | no process outlives its owner |
//! | [`process`] | one component: start, stop, kill, pause, resume, and telling it from all other processes |
//! | [`ready`] | waiting until a component answers, on a port that is its own |
//! | [`etcd`], [`plane`], [`hub`], [`cell`] | what each component is started with and what is put on it |
//! | [`manifest`] | objects put on a plane, and waiting until they serve |
//! | [`bed`] | the whole |
//! | [`suite`] | one bed for all tests of a suite |
//!
//! The bed runs on Linux: it tells processes and ports apart through `/proc`.

pub mod bed;
pub mod binaries;
pub mod cell;
pub mod disk;
mod error;
pub mod etcd;
pub mod go;
pub mod guard;
pub mod home;
pub mod hub;
pub mod manifest;
pub mod options;
pub mod pins;
pub mod pki;
pub mod plane;
pub mod port;
pub mod process;
pub mod ready;
pub mod suite;

pub use bed::Bed;
pub use error::Error;
pub use options::{CellCrds, Options, Say, Tempo};
pub use plane::{Kind, Plane};
