//! Leader election with a `Lease`: at most one replica reconciles at a time.
//!
//! Clocks of different machines are never compared. A replica takes over the lease only after it has
//! *observed* the record unchanged for the whole lease duration by its own clock. The leader counts from the
//! moment it *sent* its last successful renewal, and stops after two thirds of the lease duration without a
//! further one. The request is sent before the write, and the write happens before another replica observes
//! it. So the leader has stopped before another replica can start, whatever the network loses or delays and
//! however the clocks differ. Every write carries the resource version, so of two concurrent writes one
//! fails.
//!
//! The fencing token is the `leaseTransitions` of the lease: it grows with every change of leader.

use std::sync::Arc;
use std::time::Duration;

use polis_api::k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::plane::Env;
use crate::{Clock, Error, Plane, Random};

/// The configuration of a leader election: the lease and the identity of this replica.
#[derive(Clone, Debug)]
pub struct LeaderElection {
    plane: Plane,
    namespace: String,
    name: String,
    identity: String,
    lease: Duration,
}

/// Share of the lease duration after which a leader that could not renew stops. The rest is a margin for
/// requests in flight.
const LEAD_SHARE: f64 = 2.0 / 3.0;
/// Renewal attempts per lease duration.
const ATTEMPTS_PER_LEASE: u32 = 7;

impl LeaderElection {
    /// An election for the lease `namespace/name` on `plane`. `identity` must be unique to this process: a
    /// restarted container has the same host name and process id, so the identity needs a random part.
    pub fn new(
        plane: Plane,
        namespace: impl Into<String>,
        name: impl Into<String>,
        identity: impl Into<String>,
    ) -> Self {
        Self {
            plane,
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            lease: Duration::from_secs(15),
        }
    }

    /// Sets the lease duration, in whole seconds and at least one. The default is 15 seconds.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Duration::from_secs(lease.as_secs().max(1));
        self
    }

    /// Starts the election without an engine, for programs without controllers and for tests.
    pub fn campaign(self, clock: Clock, random: &Random) -> (LeaderElector, Leadership) {
        self.start(&Arc::new(Env { clock, random: random.split("election"), ..Env::default() }))
    }

    /// Starts the election in a new task.
    pub(crate) fn start(self, env: &Arc<Env>) -> (LeaderElector, Leadership) {
        let (sender, token) = watch::channel(None);
        let stop = CancellationToken::new();
        let plane = self.plane.bound_to(env, None);
        let candidate = Candidate {
            election: self,
            plane,
            env: env.clone(),
            sender,
            observed: None,
            observed_is_own_write: false,
            leads_until: None,
        };
        let task = tokio::spawn(candidate.run(stop.clone()));
        (LeaderElector { stop, task }, Leadership { token, _sender: None })
    }
}

/// Whether this replica leads. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leadership {
    token: watch::Receiver<Option<i64>>,
    /// Keeps the channel open when there is no election.
    _sender: Option<Arc<watch::Sender<Option<i64>>>>,
}

impl Leadership {
    /// The leadership of a program without leader election.
    pub(crate) fn permanent() -> Self {
        let (sender, token) = watch::channel(Some(0));
        Self { token, _sender: Some(Arc::new(sender)) }
    }

    /// The fencing token while this replica leads; none otherwise.
    pub fn fencing_token(&self) -> Option<i64> {
        *self.token.borrow()
    }

    /// Waits until this replica leads, and returns the fencing token.
    pub async fn acquired(&mut self) -> i64 {
        let token = self.token.wait_for(Option::is_some).await.map(|token| token.unwrap_or_default()).ok();
        match token {
            Some(token) => token,
            None => std::future::pending().await, // the election has ended without this replica leading
        }
    }

    /// Waits until this replica no longer leads.
    pub async fn lost(&mut self) {
        let _ = self.token.wait_for(Option::is_none).await; // an ended election counts as lost
    }
}

/// A running election. Dropping it does not end the election; [`LeaderElector::resign`] does.
#[derive(Debug)]
pub struct LeaderElector {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// Ends an election when it is dropped, without releasing the lease.
pub(crate) struct ElectionGuard(AbortHandle);

impl Drop for ElectionGuard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl LeaderElector {
    /// A guard that ends the election when it is dropped.
    pub(crate) fn abort_on_drop(&self) -> ElectionGuard {
        ElectionGuard(self.task.abort_handle())
    }

    /// Stops leading and releases the lease, so that another replica need not wait until it expires.
    pub async fn resign(self) {
        self.stop.cancel();
        // A panic of the task is already logged. The lease then expires.
        let _ = self.task.await;
    }
}

/// The lease as last observed, and since when it is unchanged.
struct ObservedLease {
    lease: Lease,
    since: Instant,
}

/// What to do with the lease in its observed state.
#[derive(Debug, PartialEq, Eq)]
enum LeaseAction {
    /// The lease does not exist.
    Create,
    /// This replica holds the lease.
    Renew,
    /// The holder has released the lease, or has not renewed it for the whole lease duration.
    TakeOver,
    /// Another replica holds the lease.
    Wait,
}

fn plan(observed: Option<&ObservedLease>, identity: &str, lease: Duration, now: Instant) -> LeaseAction {
    let Some(observed) = observed else { return LeaseAction::Create };
    let spec = observed.lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.unwrap_or_default();
    // The holder may use a longer lease duration than this replica.
    let holder_duration = Duration::from_secs(
        spec.lease_duration_seconds.and_then(|seconds| seconds.try_into().ok()).unwrap_or(0),
    );
    if holder == identity {
        LeaseAction::Renew
    } else if holder.is_empty() || now.saturating_duration_since(observed.since) > holder_duration.max(lease)
    {
        LeaseAction::TakeOver
    } else {
        LeaseAction::Wait
    }
}

struct Candidate {
    election: LeaderElection,
    plane: Plane,
    env: Arc<Env>,
    sender: watch::Sender<Option<i64>>,
    observed: Option<ObservedLease>,
    /// The last write succeeded, so `observed` is what this replica wrote.
    observed_is_own_write: bool,
    /// Until when this replica leads; none if it does not.
    leads_until: Option<Instant>,
}

impl Candidate {
    async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.attempt_and_wait() => {}
            }
        }
        self.step_down("resigned");
        if let Err(error) = timeout(self.election.lease / 3, self.release()).await.unwrap_or(Ok(())) {
            tracing::debug!(%error, "failed to release the lease; it expires");
        }
    }

    /// Makes one attempt and waits for the next. While this replica leads, neither lasts beyond
    /// `leads_until`.
    async fn attempt_and_wait(&mut self) {
        let pause = self.env.random.jitter(self.election.lease / ATTEMPTS_PER_LEASE, 0.2);
        let started = Instant::now();
        let most = started + self.election.lease / 3;
        let until = self.leads_until.map_or(most, |end| end.min(most));
        match timeout_at(until, self.attempt(started)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                // The state of the lease is unknown. The next attempt reads it.
                tracing::debug!(%error, "failed to read or write the lease");
            }
            Err(_) => tracing::debug!("request for the lease timed out"),
        }
        self.step_down_if_due();
        let wake = started + pause;
        sleep_until(self.leads_until.map_or(wake, |end| end.min(wake))).await;
        self.step_down_if_due();
    }

    fn step_down_if_due(&mut self) {
        if self.leads_until.is_some_and(|end| Instant::now() >= end) {
            self.step_down("failed to renew the lease in time");
        }
    }

    async fn attempt(&mut self, started: Instant) -> Result<(), Error> {
        // After a successful write the lease is known, and the next renewal need not read it.
        let known = std::mem::take(&mut self.observed_is_own_write) && self.leads_until.is_some();
        if !known {
            self.observe().await?;
        }
        let action =
            plan(self.observed.as_ref(), &self.election.identity, self.election.lease, Instant::now());
        if action != LeaseAction::Renew && self.leads_until.is_some() {
            self.step_down("another replica holds the lease");
        }
        match action {
            LeaseAction::Wait => Ok(()),
            LeaseAction::Create => {
                let lease = self.plane.create(&self.record(None)).await?;
                self.lead(lease, started);
                Ok(())
            }
            LeaseAction::Renew | LeaseAction::TakeOver => {
                let Some(current) = self.observed.as_ref().map(|observed| observed.lease.clone()) else {
                    return Ok(());
                };
                let desired = self.record(Some(&current));
                let lease = self.plane.update(&current, &desired).await?.into_object().unwrap_or(current);
                self.lead(lease, started);
                Ok(())
            }
        }
    }

    /// Reads the lease, and records since when it is unchanged.
    async fn observe(&mut self) -> Result<(), Error> {
        let name = (self.election.namespace.as_str(), self.election.name.as_str());
        let found = self.plane.uncached().get::<Lease>(name).await?;
        self.observed = found.map(|lease| {
            let since = match &self.observed {
                Some(observed)
                    if observed.lease.metadata.resource_version == lease.metadata.resource_version =>
                {
                    observed.since
                }
                // Counted from the arrival of the response, which is after the write.
                _ => Instant::now(),
            };
            ObservedLease { lease, since }
        });
        Ok(())
    }

    fn record(&self, current: Option<&Lease>) -> Lease {
        let election = &self.election;
        let mut lease = current.cloned().unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                namespace: Some(election.namespace.clone()),
                name: Some(election.name.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        });
        let before = lease.spec.take().unwrap_or_default();
        let now = MicroTime(self.env.clock.now());
        // A term ends when this replica stops leading, even if no other replica has led since. The next term
        // has a new fencing token.
        let same_term =
            before.holder_identity.as_deref() == Some(&election.identity) && self.leads_until.is_some();
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(election.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(election.lease.as_secs()).unwrap_or(i32::MAX)),
            acquire_time: if same_term { before.acquire_time.clone() } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(before.lease_transitions.unwrap_or(0) + i32::from(!same_term)),
            ..before
        });
        lease
    }

    fn lead(&mut self, lease: Lease, started: Instant) {
        let token = lease.spec.as_ref().and_then(|spec| spec.lease_transitions).map_or(0, i64::from);
        self.observed = Some(ObservedLease { lease, since: Instant::now() });
        self.observed_is_own_write = true;
        let end = started + self.election.lease.mul_f64(LEAD_SHARE);
        if Instant::now() >= end {
            return; // the response came too late to lead on it
        }
        self.leads_until = Some(end);
        if *self.sender.borrow() != Some(token) {
            tracing::info!(lease = %self.election.name, fencing_token = token, "leading");
            self.sender.send_replace(Some(token));
        }
    }

    fn step_down(&mut self, why: &str) {
        if self.leads_until.take().is_some() {
            tracing::info!(lease = %self.election.name, why, "no longer leading");
            self.sender.send_replace(None);
        }
    }

    async fn release(&mut self) -> Result<(), Error> {
        let Some(current) = self.observed.as_ref().map(|observed| observed.lease.clone()) else {
            return Ok(());
        };
        let mut desired = current.clone();
        match &mut desired.spec {
            Some(spec) if spec.holder_identity.as_deref() == Some(&self.election.identity) => {
                spec.holder_identity = Some(String::new());
                spec.renew_time = Some(MicroTime(self.env.clock.now()));
            }
            _ => return Ok(()),
        }
        self.plane.update(&current, &desired).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(15);

    fn mk_observed(holder: &str, seconds: i32, since: Instant) -> ObservedLease {
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(seconds),
            ..LeaseSpec::default()
        };
        ObservedLease { lease: Lease { spec: Some(spec), ..Lease::default() }, since }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_taken_over_only_after_the_whole_lease_duration_without_renewal() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(plan(None, "me", LEASE, start), LeaseAction::Create);
        assert_eq!(plan(Some(&mk_observed("me", 15, start)), "me", LEASE, after(100)), LeaseAction::Renew);
        assert_eq!(plan(Some(&mk_observed("", 15, start)), "me", LEASE, start), LeaseAction::TakeOver);
        assert_eq!(plan(Some(&mk_observed("other", 15, start)), "me", LEASE, after(15)), LeaseAction::Wait);
        assert_eq!(
            plan(Some(&mk_observed("other", 15, start)), "me", LEASE, after(16)),
            LeaseAction::TakeOver
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_longer_lease_duration_of_the_holder_is_respected() {
        let start = Instant::now();
        let observed = mk_observed("other", 60, start);
        assert_eq!(plan(Some(&observed), "me", LEASE, start + Duration::from_secs(59)), LeaseAction::Wait);
        assert_eq!(
            plan(Some(&observed), "me", LEASE, start + Duration::from_secs(61)),
            LeaseAction::TakeOver
        );
    }
}
