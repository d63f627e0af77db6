//! A multi-cluster controller runtime: informers, cache, work queue and workers for thousands of API servers
//! in one process. An idle system makes no requests.
//!
//! A *plane* is one Kubernetes API: a project, the hub, a cell. The engine watches the declared kinds on
//! every plane of a set, caches the objects as JSON bytes, maps changes to keys, and reconciles each key on
//! one worker at a time, with fair queuing between planes. Controllers read and write through [`Plane`].
//!
//! ```text
//! transport ─▶ watch ─▶ cache ─▶ router ─▶ queue ─▶ Reconciler ─▶ write
//! (HTTP)   (reflector) (informer (maps     (work               (create, update,
//!                       store)    changes)  queue)               delete, apply)
//!                         ▲                                        │
//!                         └───────────── response ─────────────────┘
//! ```
//!
//! Reads include own writes: the response of a write enters the cache at once and is routed like a watch
//! event. No key is reconciled on a cache that is older than its own last write.
//!
//! Kinds that are known only at run time have the same cache, writes and events: a plane gains and loses
//! watches while it runs ([`Plane::add_watch`]), and their objects are JSON trees ([`Plane::untyped`]).
//! Planes themselves come and go as their [`PlaneProvider`] decides.
//!
//! Time, randomness and transport are injected ([`Clock`], [`Random`], [`Transport`]). On a paused tokio
//! runtime, with in-process planes and a fixed seed, a run is reproducible to the byte.
//!
//! The crate depends only on `polis-api`, `polis-apimachinery` and `polis-tls`, and contains no Polis domain
//! logic. Every crate with controllers or webhooks may depend on it.

mod admin;
mod backoff;
mod cache;
mod certificate;
mod clock;
mod coalesce;
mod controller_builder;
mod copy;
mod discovery;
mod engine;
mod error;
mod event;
mod health;
mod hold;
mod index;
mod key;
mod kind;
mod kubeconfig;
mod leader;
mod metrics;
mod modify;
mod plane;
mod planes;
mod queue;
mod reconciler;
mod resource_version;
mod router;
mod schedule;
mod signal;
pub mod transport;
mod uncached;
mod watch;
mod write;

pub use backoff::Backoff;
pub use cache::{Change, Deletion, Untyped};
pub use certificate::{CertificateSecret, SecretError};
pub use clock::anchored_clock;
pub use coalesce::StatusCoalescer;
pub use controller_builder::{ControllerBuilder, WatchedPlanes};
pub use engine::{Engine, Handle};
pub use error::{Error, ErrorClass, field_at};
pub use event::EventRecorder;
pub use health::{FailingRequests, Reachability};
pub use index::Index;
pub use key::{Key, NamespacedName, PlaneName};
pub use kind::{Kind, Object, ResourceScope};
pub use leader::{LeaderElection, LeaderElector, Leadership};
pub use metrics::Metrics;
pub use plane::Plane;
pub use planes::{FixedPlanes, MiloProjects, PlaneProvider, PlaneRegistry, PlaneSet, Readiness};
pub use polis_apimachinery::{clock::Clock, random::Random};
pub use reconciler::{Action, Reconciler};
pub use router::Unresolved;
pub use transport::{Transport, TransportError};
pub use uncached::{ListOptions, UncachedReader};
pub use watch::Watch;
pub use write::{OperationResult, Preconditions};
