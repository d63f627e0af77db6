//! The whole federation in one deterministic thread: a seed decides the operations of the users, the faults
//! of the network and the crashes of the processes; invariants are checked all along and at rest.
//!
//! All code under test is the code of the product: the embedded API servers, the controllers of every role,
//! the embedded federation, the stand-ins of the platform and the runtime controller. Only the containers and
//! the network between processes and API servers are simulated. Time is tokio's paused clock, so a simulated
//! hour takes a second, and the same seed gives the same run to the byte.
//!
//! ```text
//!   seed ─► Plan ─► run ─► Simulation ─► processes: platform, federation, management, one per cell
//!                    │                  │                         │
//!                    │                  └─► API servers ◄── Network (latency, loss, partitions, crashes)
//!                    └─► Journal: timeline, digest, violations ◄── invariants
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`plan`] | what happens in a run: topology, quota, operations, faults; generated from a seed |
//! | [`simulation`] | API servers and processes; crash and restart |
//! | [`network`] | the requests between processes and API servers, and their faults |
//! | [`machines`] | the simulated container runtime of a cell |
//! | [`users`] | applies the operations of users |
//! | [`crash_points`] | scenarios with a crash after each write of each process |
//! | [`deletion`] | deletions while one part of the installation is away |
//! | [`invariants`] | what must hold all along, and what must hold at rest |
//! | [`journal`] | everything that happened, in order, with its digest |
//! | [`planted_bugs`] | defects that the simulation must find |
//! | [`run`](mod@run) | runs a plan and returns its [`Report`] |
//! | [`shrink`](mod@shrink) | finds the steps of a failing plan that are enough to fail |
//!
//! `docs/dev/simulation.md` says how to run and to replay it. Only for tests: no crate of the product depends
//! on this one.

pub mod crash_points;
pub mod deletion;
pub mod invariants;
pub mod journal;
pub mod machines;
pub mod network;
pub mod plan;
pub mod planted_bugs;
pub mod run;
pub mod shrink;
pub mod simulation;
pub mod users;

pub use journal::{Detail, Journal, Violation};
pub use plan::Plan;
pub use run::{Report, run};
pub use shrink::shrink;
