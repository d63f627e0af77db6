//! The webhooks in front of embedded project planes: called in process by the API server, as `polis up` does it.

#[path = "../support/line.rs"]
mod line;
#[path = "../support/manifests.rs"]
mod manifests;
mod over_tls;
mod reviews;
mod workloads;
mod world;
