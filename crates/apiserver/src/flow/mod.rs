//! Priority and fairness: which requests compute, and where.
//!
//! A request belongs to a level by its [`Caller`]. Each level has permits, a queue that is fair between
//! planes and between the identities of a plane, and a limit beyond which it answers 429. Requests of the
//! platform have no queue. Work that may take long runs outside of the threads that serve connections, so
//! health, leases and other tenants are served while a tenant computes.
//!
//! ```text
//!   caller ─► body: bytes of the identity and of the plane ─► queue of its level ─► permit ─► response
//!                             └─► 429                                 └─► 429         │ ▲
//!                                                                           webhook, disk: no permit
//! ```

mod caller;
mod level;
mod permit;
#[cfg(test)]
mod tests;

pub(crate) use caller::{Caller, Origin, PriorityLevel};

use std::{sync::Arc, time::Duration};

use level::Level;
use parking_lot::Mutex;
use permit::{OffReactor, WithPermit};
use polis_apimachinery::fair_queue::{ByteAccount, FlowKey, Limits};

use crate::{metrics::Metrics, route::Verb, status::StatusError};

/// Time within which a queued request must be answered, as in kube-apiserver. Watches are answered when they
/// start.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
/// Bytes of a body and of the stored object up to which a request is computed on the thread that serves it.
const SMALL_BYTES: usize = 64 << 10;
/// Objects of a collection up to which a list is computed on the thread that serves it.
const SMALL_LIST: usize = 500;
/// Bytes of request bodies that one identity may have in memory at once.
const IDENTITY_BYTES: usize = 32 << 20;
/// Bytes of request bodies that the identities of one plane may have in memory at once.
const PLANE_BYTES: usize = 64 << 20;
/// What a request holds at least, so that the number of concurrent requests is limited too: to 2,048 of one
/// identity, 4,096 of one plane.
const REQUEST_BYTES: usize = 16 << 10;

/// How much a request may compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Bounded by [`SMALL_BYTES`] or [`SMALL_LIST`], without expressions of a tenant.
    Small,
    /// Anything else.
    Large,
}

/// What is known about a request before it is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Estimate {
    pub(crate) verb: Verb,
    /// Bytes of the body.
    pub(crate) body: usize,
    /// Bytes of the stored object, if the request names one.
    pub(crate) stored: usize,
    /// Objects of the collection, for requests about the whole collection.
    pub(crate) listed: usize,
}

impl Estimate {
    /// Requests of the platform are small by their size. Those of others are small only if they read one
    /// object: a write may evaluate expressions and schemas that a tenant has chosen.
    pub(crate) fn work(&self, level: PriorityLevel) -> Work {
        let fits = self.body + self.stored <= SMALL_BYTES && self.listed <= SMALL_LIST;
        match fits && (level == PriorityLevel::Exempt || self.verb == Verb::Get) {
            true => Work::Small,
            false => Work::Large,
        }
    }
}

/// The levels and the accounts of the server.
pub(crate) struct Flows {
    system: Arc<Level>,
    controllers: Arc<Level>,
    tenants: Arc<Level>,
    anonymous: Arc<Level>,
    bodies: Mutex<ByteAccount>,
    metrics: Arc<Metrics>,
}

/// The limits of a level with queues on a machine with this many cores.
fn limits(level: PriorityLevel, cores: usize) -> Limits {
    let cores = cores.max(2);
    match level {
        PriorityLevel::Exempt | PriorityLevel::System => {
            Limits { permits: cores * 2, tenant_permits: cores * 2, flow_queue: 1024, queue: 4096 }
        }
        PriorityLevel::Controllers => {
            Limits { permits: cores, tenant_permits: cores, flow_queue: 256, queue: 1024 }
        }
        PriorityLevel::Tenants => {
            Limits { permits: cores, tenant_permits: cores - 1, flow_queue: 64, queue: 1024 }
        }
        PriorityLevel::Anonymous => Limits { permits: 1, tenant_permits: 1, flow_queue: 16, queue: 64 },
    }
}

impl Flows {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let level =
            |level: PriorityLevel| Arc::new(Level::new(limits(level, cores), metrics.level(level.name())));
        Self {
            system: level(PriorityLevel::System),
            controllers: level(PriorityLevel::Controllers),
            tenants: level(PriorityLevel::Tenants),
            anonymous: level(PriorityLevel::Anonymous),
            bodies: Mutex::new(ByteAccount::new(IDENTITY_BYTES, PLANE_BYTES)),
            metrics,
        }
    }

    fn level(&self, level: PriorityLevel) -> Option<&Arc<Level>> {
        match level {
            PriorityLevel::Exempt => None,
            PriorityLevel::System => Some(&self.system),
            PriorityLevel::Controllers => Some(&self.controllers),
            PriorityLevel::Tenants => Some(&self.tenants),
            PriorityLevel::Anonymous => Some(&self.anonymous),
        }
    }

    /// Accounts for a body before it is read, or refuses the request with 429.
    pub(crate) fn hold_body(
        self: &Arc<Self>,
        caller: &Caller,
        plane: &Arc<str>,
        bytes: usize,
    ) -> Result<Option<HeldBody>, StatusError> {
        if caller.level == PriorityLevel::Exempt {
            return Ok(None);
        }
        let (key, bytes) = (caller.key(plane), bytes.max(REQUEST_BYTES));
        if self.bodies.lock().reserve(&key, bytes) {
            return Ok(Some(HeldBody { flows: self.clone(), key, bytes }));
        }
        self.metrics.level(caller.level.name()).reject("memory");
        Err(StatusError::too_many(format!(
            "the requests of {} or of its plane hold too much memory: send fewer at the same time",
            caller.identity()
        )))
    }

    /// Computes a request: at once if it is small, otherwise on a permit of its level and outside of the
    /// threads that serve connections.
    pub(crate) async fn run<T>(
        &self,
        caller: &Caller,
        plane: &Arc<str>,
        work: Work,
        request: impl Future<Output = Result<T, StatusError>> + Send,
    ) -> Result<T, StatusError> {
        match (self.level(caller.level), work) {
            (_, Work::Small) => request.await,
            (None, Work::Large) => OffReactor(Box::pin(request)).await,
            (Some(level), Work::Large) => {
                let granted = WithPermit::new(level.clone(), caller.key(plane), Box::pin(request));
                match tokio::time::timeout(DEADLINE, granted).await {
                    Ok(Ok(result)) => result,
                    Ok(Err(error)) => Err(error.status(caller)),
                    Err(_) => Err(StatusError::deadline_exceeded(DEADLINE)),
                }
            }
        }
    }
}

/// The bytes of a request's body, until it is answered.
pub(crate) struct HeldBody {
    flows: Arc<Flows>,
    key: FlowKey,
    bytes: usize,
}

impl Drop for HeldBody {
    fn drop(&mut self) {
        self.flows.bodies.lock().release(&self.key, self.bytes);
    }
}

#[cfg(test)]
mod decisions {
    use super::*;

    #[test]
    fn only_bounded_work_stays_on_the_thread_of_the_connection() {
        let get = Estimate { verb: Verb::Get, body: 0, stored: 1000, listed: 0 };
        let write = Estimate { verb: Verb::Patch, body: 100, ..get };
        let list = Estimate { verb: Verb::List, body: 0, stored: 0, listed: 20 };
        for (estimate, exempt, tenant) in [
            (get, Work::Small, Work::Small),
            (write, Work::Small, Work::Large),
            (list, Work::Small, Work::Large),
            (Estimate { stored: SMALL_BYTES + 1, ..get }, Work::Large, Work::Large),
            (Estimate { body: SMALL_BYTES, ..write }, Work::Large, Work::Large),
            (Estimate { listed: SMALL_LIST + 1, ..list }, Work::Large, Work::Large),
        ] {
            assert_eq!(estimate.work(PriorityLevel::Exempt), exempt, "{estimate:?}");
            assert_eq!(estimate.work(PriorityLevel::Tenants), tenant, "{estimate:?}");
        }
    }

    #[test]
    fn one_plane_of_a_tenant_never_has_all_permits_of_its_level() {
        for cores in [1, 2, 16] {
            let limits = limits(PriorityLevel::Tenants, cores);
            assert!(limits.tenant_permits >= 1 && limits.tenant_permits < limits.permits, "{cores} cores");
        }
    }
}
