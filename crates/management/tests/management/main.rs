//! Tests of the management controllers with two projects and a hub on the embedded API server, in one process
//! and with a paused clock. The test plays the federation and the cells: it writes the status of hub copies
//! and the instances on the hub.

mod cell_access;
mod city_guard;
mod coalescing;
mod contact;
mod crashes;
mod diagnostics;
mod env;
mod federator;
mod projector;
mod resolver;
mod restored;
mod teardown;
mod workload;
