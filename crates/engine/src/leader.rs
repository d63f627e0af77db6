//! Leader election: of all replicas, at most one acts.
//!
//! By a `Lease` on a chosen plane. Nobody compares clocks of different machines: a replica that wants the lease waits until it has
//! *seen* the record unchanged for the whole lease time by its own clock. The holder counts from the moment it *sent* its last
//! successful renewal and stops acting a margin before that time is over. Sending is before the write, the write is before
//! anyone sees it: so the holder has stopped before anyone else can start, whatever is lost, delayed or skewed in between. All
//! writes carry the resource version, so of two who try at once one fails.
//!
//! The number of transitions of the lease is the fencing number: it grows with every change of leader.

use std::sync::Arc;
use std::time::Duration;

use polis_api::k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use polis_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::plane::Env;
use crate::{Clock, Error, Plane, Random};

/// Where and how to stand for election.
#[derive(Clone, Debug)]
pub struct Election {
    plane: Plane,
    namespace: String,
    name: String,
    identity: String,
    lease: Duration,
}

/// Share of the lease time after which a holder that could not renew stops acting. The rest is for what is still on its way.
const ACTS_FOR: f64 = 2.0 / 3.0;
/// Attempts per lease time.
const ATTEMPTS: u32 = 7;

impl Election {
    /// For the lease `namespace/name` on `plane`. `identity` must be unique to this start of this replica: host name and
    /// process id are the same again in a container that restarts, so a random part belongs to it.
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

    /// How long the lease is held without renewal. At least one second; the record counts whole seconds.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Duration::from_secs(lease.as_secs().max(1));
        self
    }

    /// Stands for election without an engine: for a program that does other work than reconciling, and for tests.
    pub fn stand(self, clock: Clock, random: &Random) -> (Elector, Leadership) {
        self.start(&Arc::new(Env { clock, random: random.split("election"), metrics: Arc::default() }))
    }

    /// Starts to stand for election, in a task of its own.
    pub(crate) fn start(self, env: &Arc<Env>) -> (Elector, Leadership) {
        let (tell, told) = watch::channel(None);
        let stop = CancellationToken::new();
        let plane = self.plane.bound_to(env, None);
        let candidate = Candidate {
            election: self,
            plane,
            env: env.clone(),
            tell,
            seen: None,
            sure: false,
            acts_until: None,
        };
        let task = tokio::spawn(candidate.run(stop.clone()));
        (Elector { stop, task }, Leadership { told, _undisputed: None })
    }
}

/// Whether this replica leads. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leadership {
    told: watch::Receiver<Option<i64>>,
    /// Keeps the channel open where nobody stands against us.
    _undisputed: Option<Arc<watch::Sender<Option<i64>>>>,
}

impl Leadership {
    pub(crate) fn undisputed() -> Self {
        let (tell, told) = watch::channel(Some(0));
        Self { told, _undisputed: Some(Arc::new(tell)) }
    }

    /// The fencing number while this replica leads; none otherwise.
    pub fn fence(&self) -> Option<i64> {
        *self.told.borrow()
    }

    /// Waits until this replica leads, and gives the fencing number.
    pub async fn gained(&mut self) -> i64 {
        let told = self.told.wait_for(Option::is_some).await.map(|fence| fence.unwrap_or_default()).ok();
        match told {
            Some(fence) => fence,
            None => std::future::pending().await, // no one will ever say so
        }
    }

    /// Waits until this replica no longer leads.
    pub async fn lost(&mut self) {
        let _ = self.told.wait_for(Option::is_none).await; // a silent elector is a lost one
    }
}

/// The election under way. It goes on if this is dropped; to step down, resign.
#[derive(Debug)]
pub struct Elector {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Elector {
    /// Steps down and gives the lease back, so that others need not wait for it to run out.
    pub async fn resign(self) {
        self.stop.cancel();
        // A panic in there has been heard; the lease then runs out by itself.
        let _ = self.task.await;
    }
}

/// The record as last seen, and since when it is like that.
struct Sight {
    lease: Lease,
    since: Instant,
}

/// What the record calls for.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Nobody has ever held it.
    Create,
    /// It is ours: say that we are still here.
    Renew,
    /// Its holder has given it back, or has not been heard of for the whole lease time.
    TakeOver,
    /// Someone else holds it.
    Wait,
}

fn step(seen: Option<&Sight>, identity: &str, lease: Duration, now: Instant) -> Step {
    let Some(seen) = seen else { return Step::Create };
    let spec = seen.lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.unwrap_or_default();
    // The holder may have been started with a longer time than ours.
    let theirs = Duration::from_secs(
        spec.lease_duration_seconds.and_then(|seconds| seconds.try_into().ok()).unwrap_or(0),
    );
    if holder == identity {
        Step::Renew
    } else if holder.is_empty() || now.saturating_duration_since(seen.since) > theirs.max(lease) {
        Step::TakeOver
    } else {
        Step::Wait
    }
}

struct Candidate {
    election: Election,
    plane: Plane,
    env: Arc<Env>,
    tell: watch::Sender<Option<i64>>,
    seen: Option<Sight>,
    /// The record is as we wrote it, as far as anyone can know.
    sure: bool,
    /// Until when we may act, if we lead.
    acts_until: Option<Instant>,
}

impl Candidate {
    async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.turn() => {}
            }
        }
        self.step_down("resigned");
        if let Err(error) = timeout(self.election.lease / 3, self.give_back()).await.unwrap_or(Ok(())) {
            tracing::debug!(%error, "lease not given back; it runs out by itself");
        }
    }

    /// One attempt and the pause after it. While we lead, neither lasts longer than we may act.
    async fn turn(&mut self) {
        let pause = self.env.random.jitter(self.election.lease / ATTEMPTS, 0.2);
        let started = Instant::now();
        let most = started + self.election.lease / 3;
        let until = self.acts_until.map_or(most, |end| end.min(most));
        match timeout_at(until, self.attempt(started)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                // Unknown or refused: what we believe about the record may be wrong. Look again the next time.
                tracing::debug!(%error, "no luck with the lease");
            }
            Err(_) => tracing::debug!("no answer about the lease"),
        }
        self.step_down_if_due();
        let wake = started + pause;
        sleep_until(self.acts_until.map_or(wake, |end| end.min(wake))).await;
        self.step_down_if_due();
    }

    fn step_down_if_due(&mut self) {
        if self.acts_until.is_some_and(|end| Instant::now() >= end) {
            self.step_down("could not renew in time");
        }
    }

    async fn attempt(&mut self, started: Instant) -> Result<(), Error> {
        // While all goes well the record is the one we wrote last: no need to read it before the next renewal.
        let sure = std::mem::take(&mut self.sure) && self.acts_until.is_some();
        if !sure {
            self.look().await?;
        }
        let step = step(self.seen.as_ref(), &self.election.identity, self.election.lease, Instant::now());
        if step != Step::Renew && self.acts_until.is_some() {
            self.step_down("the lease is someone else's");
        }
        match step {
            Step::Wait => Ok(()),
            Step::Create => {
                let lease = self.plane.create(&self.record(None)).await?;
                self.lead(lease, started);
                Ok(())
            }
            Step::Renew | Step::TakeOver => {
                let Some(current) = self.seen.as_ref().map(|seen| seen.lease.clone()) else { return Ok(()) };
                let wanted = self.record(Some(&current));
                let lease = self.plane.update(&current, &wanted).await?.into_object().unwrap_or(current);
                self.lead(lease, started);
                Ok(())
            }
        }
    }

    /// Reads the record, and notes since when it is as it is.
    async fn look(&mut self) -> Result<(), Error> {
        let place = (self.election.namespace.as_str(), self.election.name.as_str());
        let found = self.plane.live().get::<Lease>(place).await?;
        self.seen = found.map(|lease| {
            let since = match &self.seen {
                Some(seen) if seen.lease.metadata.resource_version == lease.metadata.resource_version => {
                    seen.since
                }
                // Counted from when the answer is here, which is after the write.
                _ => Instant::now(),
            };
            Sight { lease, since }
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
        // A term ends when we step down, even if nobody else came: the next one has a number of its own.
        let ours = before.holder_identity.as_deref() == Some(&election.identity) && self.acts_until.is_some();
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(election.identity.clone()),
            lease_duration_seconds: Some(i32::try_from(election.lease.as_secs()).unwrap_or(i32::MAX)),
            acquire_time: if ours { before.acquire_time.clone() } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(before.lease_transitions.unwrap_or(0) + i32::from(!ours)),
            ..before
        });
        lease
    }

    fn lead(&mut self, lease: Lease, started: Instant) {
        let fence = lease.spec.as_ref().and_then(|spec| spec.lease_transitions).map_or(0, i64::from);
        self.seen = Some(Sight { lease, since: Instant::now() });
        self.sure = true;
        let end = started + self.election.lease.mul_f64(ACTS_FOR);
        if Instant::now() >= end {
            return; // the answer took so long that acting on it would be late
        }
        self.acts_until = Some(end);
        if *self.tell.borrow() != Some(fence) {
            tracing::info!(lease = %self.election.name, fence, "leading");
            self.tell.send_replace(Some(fence));
        }
    }

    fn step_down(&mut self, why: &str) {
        if self.acts_until.take().is_some() {
            tracing::info!(lease = %self.election.name, why, "no longer leading");
            self.tell.send_replace(None);
        }
    }

    async fn give_back(&mut self) -> Result<(), Error> {
        let Some(current) = self.seen.as_ref().map(|seen| seen.lease.clone()) else { return Ok(()) };
        let mut wanted = current.clone();
        match &mut wanted.spec {
            Some(spec) if spec.holder_identity.as_deref() == Some(&self.election.identity) => {
                spec.holder_identity = Some(String::new());
                spec.renew_time = Some(MicroTime(self.env.clock.now()));
            }
            _ => return Ok(()),
        }
        self.plane.update(&current, &wanted).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(15);

    fn mk_sight(holder: &str, seconds: i32, since: Instant) -> Sight {
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(seconds),
            ..LeaseSpec::default()
        };
        Sight { lease: Lease { spec: Some(spec), ..Lease::default() }, since }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_taken_only_from_a_holder_not_heard_of_for_the_whole_time() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(step(None, "me", LEASE, start), Step::Create);
        assert_eq!(step(Some(&mk_sight("me", 15, start)), "me", LEASE, after(100)), Step::Renew);
        assert_eq!(step(Some(&mk_sight("", 15, start)), "me", LEASE, start), Step::TakeOver);
        assert_eq!(step(Some(&mk_sight("other", 15, start)), "me", LEASE, after(15)), Step::Wait);
        assert_eq!(step(Some(&mk_sight("other", 15, start)), "me", LEASE, after(16)), Step::TakeOver);
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_with_a_longer_lease_than_ours_keeps_it_that_long() {
        let start = Instant::now();
        let seen = mk_sight("other", 60, start);
        assert_eq!(step(Some(&seen), "me", LEASE, start + Duration::from_secs(59)), Step::Wait);
        assert_eq!(step(Some(&seen), "me", LEASE, start + Duration::from_secs(61)), Step::TakeOver);
    }
}
