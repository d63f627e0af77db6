//! The embedded Kubernetes API server: many control planes in one process, one store.
//!
//! A [`Server`] is one store and a set of planes. A plane costs little: its objects are in the store under
//! its name, and its kinds are in a catalogue that planes can share. The API is a tower [`Service`].
//! Controllers call it in process; [`Server::serve`] serves it over TLS to kubectl and other clients.
//!
//! ```text
//!   request ─► route ─► authentication, authorization ─► endpoint ─► flow ─► verb ─► admission ─► store
//!                                                        response, watchers, controllers ◄────────────┘
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `store` | revisions, compare-and-set, ranges, history, watches; memory and redb; encryption at rest |
//! | `kinds` | built-in kinds, CRDs, catalogues |
//! | `verbs` | get, list, watch, create, update, patch, delete |
//! | `builtins` | defaulting and validation of single built-in kinds |
//! | `access` | authentication, RBAC, audit |
//! | `admission` | policies and webhooks |
//! | `controllers` | garbage collection, deletion of namespaces and CRDs, token secrets, event expiry |
//! | `flow` | priority and fairness: who computes when, and outside of which threads |
//! | `docs` | discovery and OpenAPI |
//! | `metrics` | the metrics of the server |
//! | `subresource` | subresources that the embedding program serves |
//!
//! Schemas, CEL, apply, patches, selectors and tables are pure functions in `polis-apimachinery`.
//!
//! Only the binary and tests create servers. Controllers depend on the tower service alone.

// `pub` in this crate means public.
#![warn(unreachable_pub)]

mod access;
mod admission;
mod builtins;
mod controllers;
mod docs;
mod endpoint;
mod events;
mod flow;
mod health;
mod http;
mod kinds;
mod metrics;
mod ownership;
mod plane;
mod route;
mod serve;
mod server;
mod service;
mod status;
mod store;
mod strict;
mod subresource;
mod user;
mod verbs;
mod versioned_schema;

pub use access::{
    Access, Audit, AuditFile, AuditFileError, CONTROLLERS, Credential, CredentialKind, Revocation, TokenKeys,
    TokenKeysError,
};
pub use admission::{TlsWebhooks, WebhookCall, WebhookTransport};
pub use controllers::EnabledControllers;
pub use http::ResponseBody;
pub use plane::PlaneSpec;
pub use polis_apimachinery::storage_quota::StorageQuota;
pub use route::project_plane;
pub use serve::kubeconfig;
pub use server::{Builder, Error, Server, Storage};
pub use service::Service;
pub use status::StatusError;
pub use store::{EncryptionKeyError, EncryptionKeys};
pub use subresource::{SubresourceFuture, SubresourceHandler, SubresourceRequest};
pub use user::{MASTERS, UserInfo};

// The fixtures of `tests/`, for unit tests that need the store or other private parts.
#[cfg(test)]
extern crate self as polis_apiserver;
#[cfg(test)]
#[path = "../tests/common/mod.rs"]
mod common;
