//! Tests of the local platform together with the controllers of Polis, on the embedded API server, in one
//! process and with a paused clock: minutes of waiting take no time, and the results do not depend on the
//! speed of the machine.

mod cells;
mod cities;
mod env;
mod locations;
mod many_projects;
mod networks;
mod projects;
mod quota;
