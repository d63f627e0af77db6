//! Seeing and acting on thousands of Kubernetes planes in one process, and silence when nothing happens.
//!
//! A *plane* is one Kubernetes API: a project, the hub, a cell. The engine watches the kinds that controllers declare on all
//! planes of a set, keeps what it sees as bytes, turns changes into keys, and works on keys one at a time per object, fairly
//! between planes. Controllers read, decide and write through [`Plane`]; they never see a connection.
//!
//! The way of a change: [`transport`] → `watch` → `cache` → `router` → `queue` → [`Reconciler`] → `write`.
//!
//! Time, randomness and transport come from outside ([`Clock`], [`Random`], [`Transport`]), so the same engine runs in a
//! simulation: on a paused runtime, over in-process planes, bit for bit reproducible from a seed.
//!
//! This room knows planes, kinds and keys. It does not know what any of them is for.

mod admin;
mod backoff;
mod cache;
mod certificate;
mod clock;
mod discovery;
mod engine;
mod error;
mod event;
mod index;
mod key;
mod kind;
mod kubeconfig;
mod lag;
mod leader;
mod live;
mod metrics;
mod plane;
mod planes;
mod queue;
mod random;
mod reconciler;
mod router;
mod schedule;
pub mod transport;
mod watch;
mod write;

pub use backoff::Backoff;
pub use certificate::{CertificateSecret, SecretError};
pub use clock::Clock;
pub use engine::{ControllerBuilder, Engine, Handle, Watched};
pub use error::{Class, Error, field_at};
pub use event::{Recorder, Tone};
pub use index::Index;
pub use key::{Key, Place, PlaneName};
pub use kind::{Kind, Object, Scope};
pub use lag::Lag;
pub use leader::{Election, Elector, Leadership};
pub use live::{Live, Query};
pub use metrics::Metrics;
pub use plane::Plane;
pub use planes::{Fixed, MiloProjects, PlaneSet, Provider, Readiness, Roster};
pub use random::Random;
pub use reconciler::{Outcome, Reconciler};
pub use router::Unresolved;
pub use transport::{Transport, TransportError};
pub use watch::Watch;
pub use write::{Exactly, Written};
