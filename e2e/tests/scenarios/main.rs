//! What must hold across all planes while the processes of Polis run. One file per group.
//!
//! Scenarios run side by side, each in namespaces of its own; those that break things run alone.

// A scenario is boxed as a whole before it runs; how large it is does not matter.
#![allow(clippy::large_futures)]

mod bad_input;
mod chain;
mod city_guard;
mod compatibility;
mod confinement;
mod crash_points;
mod federation;
mod neighbours;
mod outages;
mod ownership;
mod replicas;
mod rights;
mod silence;
mod thrift;
mod upgrade;
