//! A cell, its hub and its projects on the embedded API server, in this process and on a paused clock: minutes of waiting
//! take no time, and nothing depends on how fast the machine is.

mod crashes;
mod hub;
mod instances;
mod line;
mod networks;
mod quota;
mod world;
