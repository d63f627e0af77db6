//! What the tests of several crates share. Only for tests and benchmarks: no crate of the product depends on
//! it.
//!
//! ```text
//!   test ─► Cluster ─► engines with the controllers under test ─► Proxy ─► planes (embedded API server)
//!     │                                                             └ RequestLog: requests, faults    │
//!     └───► PlaneExt, eventually, consistently ◄────────────────────── PlaneRecorder: objects, changes ┘
//! ```
//!
//! A test states its planes, starts the controllers through a proxy, and waits for what must hold:
//!
//! ```no_run
//! # async fn example() {
//! use polis_testing::{Cluster, RequestFault, PlaneExt as _, builders::mk_workload};
//!
//! let mut cluster = Cluster::builder().project("acme").hub().cell("dfw").build().await;
//! let (projects, hub) = (cluster.proxy.plane("acme"), cluster.proxy.plane("hub"));
//! cluster.start("management", |engine| { /* declare the controllers on these planes */ });
//! cluster.proxy.requests_to("hub").fail(RequestFault::Refuse);
//! cluster.plane("acme").create(&mk_workload("default", "web", &["dfw"])).await.unwrap();
//! # }
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`Cluster`], [`ClusterBuilder`] | planes in one process, and the engines that run on them |
//! | [`Proxy`], [`RequestFault`], [`RequestLog`] | records the requests of a process, and injects faults into them |
//! | [`PlaneRecorder`](recorder::PlaneRecorder) | a mirror of a plane, and a journal of its changes |
//! | [`eventually`], [`consistently`], [`PlaneExt`] | waiting, and what a test does with a plane |
//! | [`create_untyped`] | objects of any kind, as JSON |
//! | [`builders`] | objects with defaults for what a test does not state |
//! | [`FakeProvider`] | a fake provider of a cell |
//! | [`RunningEngine`] | an engine that runs in the test |
//! | [`TlsSocket`], [`http_get`], [`free_address`] | servers on a socket |
//! | [`bench`] | the result table of a benchmark |

pub mod bench;
pub mod builders;
mod cluster;
mod engine;
mod eventually;
pub mod kubelet;
mod plane_ext;
pub mod provider;
mod proxy;
pub mod recorder;
mod request;
mod request_log;
mod socket;
mod untyped;

pub use cluster::{Cluster, ClusterBuilder, HUB, PROJECT_CATALOGUE};
pub use engine::{RunningEngine, plane_of};
pub use eventually::{consistently, eventually};
pub use plane_ext::PlaneExt;
pub use polis_apimachinery::RequestVerb;
pub use provider::{FakeProvider, MachineOutcome, MachineStart, ProviderBehavior};
pub use proxy::{Interceptor, PLATFORM, PlaneProxy, ProxiedBody, Proxy};
pub use request::{BlockingOwner, ClientIdentity, RecordedRequest, project_path, split_project_path};
pub use request_log::{FaultId, PlaneRequests, RequestFault, RequestLog};
pub use socket::{TlsSocket, free_address, http_get, http_get_blocking};
pub use untyped::{create_untyped, untyped_api};
