//! Instances of a cell as real processes: an embedded API server in this process, the runtime on top, shims and programs
//! beside it. Whatever a test starts ends with it.

mod chaos;
mod clock;
mod ending;
mod refusing;
mod restarting;
mod running;
mod world;
