//! Integration tests of the engine against a fake API server: in process on a paused clock, and over real
//! sockets.

mod acting;
mod chaos;
mod election;
mod failures;
mod fairness;
mod fake_apiserver;
mod harness;
mod network;
mod planes;
mod read_your_writes;
mod restored;
mod untyped;
mod watching;
