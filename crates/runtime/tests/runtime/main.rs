//! Runs the Instances of a cell as real processes: an embedded API server and the runtime in this process,
//! with shims and programs as child processes. All processes end with their test.

mod chaos;
mod clock;
mod health;
mod images;
mod isolation;
mod pods;
mod refusals;
mod restarting;
mod running;
mod sandbox;
mod stopping;
mod test_cell;
mod test_registry;
