//! The embedded Kubernetes API server: many control planes in one process, one store.
//!
//! A [`Server`] is a store and a set of planes. A plane is a small struct: its objects are in the store under its name,
//! its kinds in a catalogue that planes may share. The API is a tower [`Service`], called in process by controllers and
//! mounted on TLS by [`Server::serve`] for kubectl and everybody else.
//!
//! ```text
//!   request ─► route (plane, kind, verb) ─► identity ─► access ─► verb ─► admission ─► store ─► answer
//!                                                                                      └─► watchers, controllers
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `store` | revisions, compare-and-set, ranges, history, watches; memory and redb |
//! | `kinds` | built-in kinds, CRDs, catalogues |
//! | `verbs` | get, list, watch, create, update, patch, delete |
//! | `builtins` | what single built-in kinds do beyond storing |
//! | `access`, `admission` | who may do what; policies and webhooks |
//! | `controllers` | garbage collection, the end of namespaces and CRDs, expiry |
//! | `docs` | discovery and OpenAPI |
//! | `extension` | subresources that the embedding program serves |
//! | `schema`, `selector` | structural schemas and selectors, as pure functions |
//!
//! Who may enter: the binary, the simulation and the tests make servers; controllers see only the tower service.

mod access;
mod admission;
pub mod admission_cel;
pub mod apply;
mod builtins;
mod controllers;
mod docs;
mod events;
mod extension;
mod form;
mod health;
mod http;
mod identity;
mod json;
pub mod jsonpath;
mod kinds;
mod ownership;
pub mod patch;
mod plane;
mod protobuf;
pub mod quantity;
mod route;
pub mod schema;
mod seams;
pub mod selector;
mod serve;
mod server;
mod service;
mod status;
pub mod store;
mod strict;
pub mod table;
mod verbs;

pub use access::{Access, AuditSink};
pub use admission::{TlsWebhooks, WebhookCall, WebhookTransport};
pub use controllers::Switches;
pub use extension::{Extended, Extending, Extension};
pub use http::Body;
pub use identity::{AUTHENTICATED, Identity, MASTERS, UNAUTHENTICATED};
pub use plane::PlaneSpec;
pub use route::project_plane;
pub use seams::{Chance, Clock, SystemClock};
pub use serve::{Authority, Certificate, Tls, TlsError, kubeconfig};
pub use server::{Builder, Error, Server, Storage};
pub use service::Service;
pub use status::{About, Cause, Failure};
