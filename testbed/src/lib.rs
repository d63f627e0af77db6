//! Test clusters of real etcd, kube-apiserver, kube-controller-manager and Karmada processes.
//!
//! Everything runs as plain processes on 127.0.0.1, without containers: one etcd for all planes (each
//! kube-apiserver has its own prefix in it), a kube-apiserver for each project plane, for the federation hub
//! and for each cell, and Karmada on the hub with the cells joined to it. The programs are built once from
//! pinned Go modules into a cache; after that a test cluster starts in about ten seconds.
//!
//! A test starts a cluster and gets clients for its planes:
//!
//! ```no_run
//! # async fn example() -> Result<(), polis_testbed::Error> {
//! use polis_testbed::{Options, TestCluster};
//!
//! let cluster = TestCluster::up(Options::federation(["dfw", "ord"])).await?;
//! let hub = cluster.client("hub").await?;
//! cluster.kill(&cluster.plane("dfw")?.apiserver())?; // an outage
//! # Ok(())
//! # }
//! ```
//!
//! From the pins to the planes, one file each:
//!
//! | file | holds |
//! |---|---|
//! | [`pins`] | which programs, of which versions, built with which flags |
//! | [`go`] | the Go toolchain that builds them |
//! | [`binaries`] | the cache of built programs |
//! | [`disk`] | the check for free disk space |
//! | [`state_dir`] | the directory that holds all state of one test cluster |
//! | [`pki`] | the certificate authority; certificates and kubeconfigs for any user |
//! | [`port`] | free ports, and which process listens on a port |
//! | [`guard`] | kills the processes of a test cluster when its owner ends |
//! | [`process`] | one component: start, stop, kill, pause, resume |
//! | [`ready`] | waits until a component is ready on its own port |
//! | [`etcd`], [`plane`], [`hub`], [`cell`] | the arguments and the initial objects of each component |
//! | [`manifest`] | applies objects to a plane and waits until they are served |
//! | [`test_cluster`] | a whole test cluster |
//! | [`suite`] | one test cluster that all tests of a suite share |
//!
//! It needs Linux: processes and ports are identified through `/proc`.

pub mod binaries;
pub mod cell;
pub mod disk;
mod error;
pub mod etcd;
pub mod go;
pub mod guard;
pub mod hub;
pub mod manifest;
pub mod options;
pub mod pins;
pub mod pki;
pub mod plane;
pub mod port;
pub mod process;
pub mod ready;
pub mod state_dir;
pub mod suite;
pub mod test_cluster;

pub use error::Error;
pub use options::{CellCrds, Options, ProgressFn, TimingProfile};
pub use plane::{PlaneKind, TestPlane};
pub use test_cluster::TestCluster;
