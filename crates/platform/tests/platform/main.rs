//! A whole platform on the embedded API server, in this process and on a paused clock: the stand-ins, and the
//! controllers of Polis beside them. Minutes of waiting take no time, and nothing depends on how fast the machine is.

mod cells;
mod cities;
mod line;
mod locations;
mod many;
mod networks;
mod projects;
mod quota;
mod world;
