//! The engine as its users see it, over a stand-in API server: in process on a paused clock, and on real sockets.

mod acting;
mod chaos;
mod desk;
mod election;
mod fairness;
mod network;
mod planes;
mod stand_in;
mod trouble;
mod watching;
