//! The webhooks with embedded project planes: the API server calls them in process, as in `polis up`.

mod env;
#[path = "../support/manifests.rs"]
mod manifests;
mod over_tls;
#[path = "../support/proxy.rs"]
mod proxy;
mod reviews;
mod workloads;
