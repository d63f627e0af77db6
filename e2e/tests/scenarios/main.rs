//! Scenarios over all planes with the processes of Polis. One file per group.
//!
//! Scenarios run in parallel, each in its own namespaces; disruptive ones run alone.

// Scenarios are boxed before they run, so their size does not matter.
#![allow(clippy::large_futures)]

mod bad_input;
mod cells_of_a_city;
mod city_guard;
mod compatibility;
mod confinement;
mod crash_points;
mod federation;
mod outages;
mod ownership;
mod quiescence;
mod rbac;
mod replicas;
mod request_budget;
mod rollout;
mod upgrade;
