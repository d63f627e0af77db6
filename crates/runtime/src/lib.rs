//! What turns an Instance into something running.
//!
//! [`declare`] puts a controller on an engine that watches the instances of one cell, has a [`Provider`] run those without
//! gates, and writes what the provider tells into their status. [`Process`] is the provider of this room: containers
//! are processes of the host, each beside a small shim, so that Polis may end, be killed or be replaced while they go on.
//!
//! - [`provider`]: the contract, so that others can follow;
//! - [`process`]: images, environment, addresses, restarts, and the folders of instances;
//! - `shim`: the process beside a container, and the launcher that confines what it starts;
//! - [`program`]: the programs of the built-in images;
//! - [`logs`]: reading what instances have written;
//! - [`inside`]: what the binary does when it is started by itself.
//!
//! This room touches its own cell and the host; it knows no hub and no project.

mod controller;
mod error;
mod inside;
pub mod logs;
pub mod process;
pub mod program;
pub mod provider;
mod shim;
mod status;

pub use controller::{Runtime, declare};
pub use error::Error;
pub use inside::inside;
pub use process::{Addresses, Pool, Process, Restarts, Settings};
pub use provider::Provider;
pub use shim::{Ending, How, Keep, State};
