//! Tests of the cell controllers with a hub and projects on the embedded API server, in one process and with
//! a paused clock: minutes of waiting take no time, and the results do not depend on the speed of the
//! machine.

mod crashes;
mod env;
mod heartbeat;
mod hub;
mod instances;
mod networks;
mod quota;
mod referenced_data;
