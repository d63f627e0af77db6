//! A fair queue for the permits of one priority level, after Kubernetes' API Priority and Fairness.
//!
//! A permit is the right to compute. A request holds one while it computes, and gives it back while it waits
//! for a webhook or for the disk. The queue is fair at two levels: between tenants (planes), and between the
//! flows (identities) of a tenant. Of the tenants with waiting requests the one that has computed least is
//! next, and of its flows the one that has computed least: what one of them uses delays the others by their
//! share and not by its size.
//!
//! The account of a tenant is a virtual time, as in start-time fair queuing: it begins where the level is,
//! so that time spent idle is no credit, and grows by the time that its requests computed. A tenant never
//! holds all permits: one stays for the next tenant, because a running request is not interrupted.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// The limits of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that compute at the same time.
    pub permits: usize,
    /// Requests of one tenant that compute at the same time.
    pub tenant_permits: usize,
    /// Requests of one flow that wait for their first permit.
    pub flow_queue: usize,
    /// Requests of the level that wait for their first permit.
    pub queue: usize,
}

/// Who a request is accounted to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey {
    /// The plane.
    pub tenant: Arc<str>,
    /// The identity.
    pub flow: Arc<str>,
}

/// A place in the queue, in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// The queue of the flow or of the level is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

/// The state of a level. Plain data: the caller supplies the times.
#[derive(Debug)]
pub struct FairQueue {
    limits: Limits,
    tenants: HashMap<Arc<str>, Tenant>,
    executing: usize,
    waiting: usize,
    /// The account of the tenant that was last given a permit: where a tenant without an account begins.
    level_time: Duration,
    next: u64,
}

#[derive(Debug, Default)]
struct Tenant {
    account: Duration,
    executing: usize,
    waiting: usize,
    level_time: Duration,
    flows: HashMap<Arc<str>, Flow>,
}

#[derive(Debug, Default)]
struct Flow {
    account: Duration,
    executing: usize,
    /// Whether the request waits for its first permit, by ticket.
    waiting: BTreeMap<Ticket, bool>,
}

impl Flow {
    fn queued(&self) -> usize {
        self.waiting.values().filter(|first| **first).count()
    }
}

impl FairQueue {
    /// An empty level.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            tenants: HashMap::new(),
            executing: 0,
            waiting: 0,
            level_time: Duration::ZERO,
            next: 0,
        }
    }

    /// Requests that compute.
    pub fn executing(&self) -> usize {
        self.executing
    }

    /// Requests that wait for a permit.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Queues a new request, or refuses it. [`Self::dispatch`] gives it a permit.
    pub fn arrive(&mut self, key: &FlowKey) -> Result<Ticket, QueueFull> {
        if self.waiting >= self.limits.queue {
            return Err(QueueFull);
        }
        let flow = self.tenants.get(&key.tenant).and_then(|tenant| tenant.flows.get(&key.flow));
        if flow.is_some_and(|flow| flow.queued() >= self.limits.flow_queue) {
            return Err(QueueFull);
        }
        self.next += 1;
        let ticket = Ticket(self.next);
        self.enqueue(key, ticket, true);
        Ok(ticket)
    }

    /// Queues a request that has had a permit before. It is never refused, and keeps its place in the order
    /// of arrival of its flow.
    pub fn resume(&mut self, key: &FlowKey, ticket: Ticket) {
        self.enqueue(key, ticket, false);
    }

    fn enqueue(&mut self, key: &FlowKey, ticket: Ticket, first: bool) {
        let level_time = self.level_time;
        let tenant = self.tenants.entry(key.tenant.clone()).or_default();
        if tenant.executing == 0 && tenant.waiting == 0 {
            tenant.account = tenant.account.max(level_time);
        }
        let tenant_time = tenant.level_time;
        let flow = tenant.flows.entry(key.flow.clone()).or_default();
        if flow.executing == 0 && flow.waiting.is_empty() {
            flow.account = flow.account.max(tenant_time);
        }
        flow.waiting.insert(ticket, first);
        tenant.waiting += 1;
        self.waiting += 1;
    }

    /// Gives free permits to waiting requests, and returns them.
    pub fn dispatch(&mut self) -> Vec<Ticket> {
        let mut started = Vec::new();
        while self.executing < self.limits.permits {
            let tenant_permits = self.limits.tenant_permits;
            let next = self
                .tenants
                .iter_mut()
                .filter(|(_, tenant)| tenant.waiting > 0 && tenant.executing < tenant_permits)
                .min_by(|(a, x), (b, y)| (x.account, a).cmp(&(y.account, b)));
            let Some((_, tenant)) = next else { break };
            self.level_time = self.level_time.max(tenant.account);
            let Some(ticket) = tenant.start() else { break };
            self.executing += 1;
            self.waiting -= 1;
            started.push(ticket);
        }
        started
    }

    /// Takes the permit of a request back, and charges the time for which it computed.
    pub fn finish(&mut self, key: &FlowKey, used: Duration) {
        if let Some(tenant) = self.tenants.get_mut(&key.tenant) {
            tenant.executing = tenant.executing.saturating_sub(1);
            tenant.account += used;
            if let Some(flow) = tenant.flows.get_mut(&key.flow) {
                flow.executing = flow.executing.saturating_sub(1);
                flow.account += used;
            }
        }
        self.executing = self.executing.saturating_sub(1);
        self.forget();
    }

    /// Removes a request that waits.
    pub fn abandon(&mut self, key: &FlowKey, ticket: Ticket) {
        if let Some(tenant) = self.tenants.get_mut(&key.tenant)
            && let Some(flow) = tenant.flows.get_mut(&key.flow)
            && flow.waiting.remove(&ticket).is_some()
        {
            tenant.waiting -= 1;
            self.waiting -= 1;
        }
        self.forget();
    }

    /// Drops accounts that no longer matter: of idle tenants and flows that have used no more than the
    /// others, and all of them when the level is idle.
    fn forget(&mut self) {
        if self.executing == 0 && self.waiting == 0 {
            self.tenants.clear();
            self.level_time = Duration::ZERO;
            return;
        }
        let level_time = self.level_time;
        self.tenants.retain(|_, tenant| {
            let tenant_time = tenant.level_time;
            tenant.flows.retain(|_, flow| {
                flow.executing > 0 || !flow.waiting.is_empty() || flow.account > tenant_time
            });
            tenant.executing > 0 || tenant.waiting > 0 || tenant.account > level_time
        });
    }
}

impl Tenant {
    /// Takes the next request of the flow that has computed least.
    fn start(&mut self) -> Option<Ticket> {
        let flows = self.flows.iter_mut().filter(|(_, flow)| !flow.waiting.is_empty());
        let (_, flow) = flows.min_by(|(a, x), (b, y)| (x.account, a).cmp(&(y.account, b)))?;
        let (ticket, _) = flow.waiting.pop_first()?;
        self.level_time = self.level_time.max(flow.account);
        flow.executing += 1;
        self.executing += 1;
        self.waiting -= 1;
        Some(ticket)
    }
}

/// An account of bytes that requests hold, with a limit for each flow and for each tenant.
#[derive(Debug)]
pub struct ByteAccount {
    flow_max: usize,
    tenant_max: usize,
    flows: HashMap<FlowKey, usize>,
    tenants: HashMap<Arc<str>, usize>,
}

impl ByteAccount {
    /// An empty account.
    pub fn new(flow_max: usize, tenant_max: usize) -> Self {
        Self { flow_max, tenant_max, flows: HashMap::new(), tenants: HashMap::new() }
    }

    /// Reserves bytes. Returns false, and reserves nothing, if they exceed a limit.
    pub fn reserve(&mut self, key: &FlowKey, bytes: usize) -> bool {
        let flow = self.flows.get(key).copied().unwrap_or_default() + bytes;
        let tenant = self.tenants.get(&key.tenant).copied().unwrap_or_default() + bytes;
        if flow > self.flow_max || tenant > self.tenant_max {
            return false;
        }
        self.flows.insert(key.clone(), flow);
        self.tenants.insert(key.tenant.clone(), tenant);
        true
    }

    /// Returns reserved bytes.
    pub fn release(&mut self, key: &FlowKey, bytes: usize) {
        subtract(&mut self.flows, key, bytes);
        subtract(&mut self.tenants, &key.tenant, bytes);
    }
}

fn subtract<K: Eq + std::hash::Hash>(accounts: &mut HashMap<K, usize>, key: &K, bytes: usize) {
    if let Some(held) = accounts.get_mut(key) {
        *held = held.saturating_sub(bytes);
        if *held == 0 {
            accounts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LIMITS: Limits = Limits { permits: 2, tenant_permits: 1, flow_queue: 3, queue: 6 };

    fn of(tenant: &str, flow: &str) -> FlowKey {
        FlowKey { tenant: tenant.into(), flow: flow.into() }
    }

    #[test]
    fn a_tenant_never_holds_the_last_permit() {
        let mut queue = FairQueue::new(LIMITS);
        let attack: Vec<Ticket> = (0..3).map(|n| queue.arrive(&of("a", &n.to_string())).unwrap()).collect();
        assert_eq!(queue.dispatch(), [attack[0]]);
        let neighbour = queue.arrive(&of("b", "x")).unwrap();
        assert_eq!(queue.dispatch(), [neighbour]);
        assert_eq!((queue.executing(), queue.waiting()), (2, 2));
    }

    #[test]
    fn the_tenant_that_has_computed_least_is_next() {
        let mut queue = FairQueue::new(Limits { permits: 1, ..LIMITS });
        let first = queue.arrive(&of("a", "x")).unwrap();
        let second = queue.arrive(&of("a", "x")).unwrap();
        assert_eq!(queue.dispatch(), [first]);
        let neighbour = queue.arrive(&of("b", "x")).unwrap();
        queue.finish(&of("a", "x"), SECOND);
        assert_eq!(queue.dispatch(), [neighbour]);
        queue.finish(&of("b", "x"), SECOND / 10);
        let again = queue.arrive(&of("b", "x")).unwrap();
        assert_eq!(queue.dispatch(), [again], "b has used a tenth of what a has");
        queue.finish(&of("b", "x"), SECOND * 2);
        assert_eq!(queue.dispatch(), [second]);
    }

    #[test]
    fn the_identity_of_a_tenant_that_has_computed_least_is_next() {
        let mut queue = FairQueue::new(Limits { permits: 1, ..LIMITS });
        let heavy: Vec<Ticket> = (0..3).map(|_| queue.arrive(&of("a", "heavy")).unwrap()).collect();
        assert_eq!(queue.dispatch(), [heavy[0]]);
        let light = queue.arrive(&of("a", "light")).unwrap();
        queue.finish(&of("a", "heavy"), SECOND);
        assert_eq!(queue.dispatch(), [light]);
        queue.finish(&of("a", "light"), SECOND / 10);
        assert_eq!(queue.dispatch(), [heavy[1]]);
    }

    #[test]
    fn time_spent_idle_is_no_credit() {
        let mut queue = FairQueue::new(Limits { permits: 1, ..LIMITS });
        let busy = of("a", "x");
        queue.arrive(&busy).unwrap();
        queue.dispatch();
        for _ in 0..10 {
            queue.arrive(&busy).unwrap();
            queue.finish(&busy, SECOND);
            assert_eq!(queue.dispatch().len(), 1);
        }
        let (own, other) = (queue.arrive(&busy).unwrap(), queue.arrive(&of("b", "x")).unwrap());
        queue.finish(&busy, SECOND);
        assert_eq!(queue.dispatch(), [other]);
        queue.finish(&of("b", "x"), SECOND * 3);
        queue.arrive(&of("b", "x")).unwrap();
        assert_eq!(queue.dispatch(), [own], "b gets no ten seconds for those in which it was idle");
    }

    #[test]
    fn a_full_queue_refuses_only_its_own_flow_until_the_level_is_full() {
        let mut queue = FairQueue::new(LIMITS);
        for _ in 0..3 {
            queue.arrive(&of("a", "x")).unwrap();
        }
        assert_eq!(queue.arrive(&of("a", "x")), Err(QueueFull));
        for flow in ["x", "y", "z"] {
            queue.arrive(&of("b", flow)).unwrap();
        }
        assert_eq!(queue.arrive(&of("c", "x")), Err(QueueFull), "the level is full");
    }

    #[test]
    fn a_resumed_request_is_not_refused_and_goes_before_later_ones() {
        let mut queue = FairQueue::new(Limits { permits: 1, ..LIMITS });
        let key = of("a", "x");
        let first = queue.arrive(&key).unwrap();
        let second = queue.arrive(&key).unwrap();
        assert_eq!(queue.dispatch(), [first]);
        queue.finish(&key, SECOND);
        assert_eq!(queue.dispatch(), [second]);
        queue.arrive(&key).unwrap();
        queue.arrive(&key).unwrap();
        queue.arrive(&key).unwrap();
        assert_eq!(queue.arrive(&key), Err(QueueFull));
        queue.resume(&key, first);
        queue.finish(&key, SECOND);
        assert_eq!(queue.dispatch(), [first]);
    }

    #[test]
    fn an_abandoned_request_gets_no_permit_and_an_idle_level_keeps_nothing() {
        let mut queue = FairQueue::new(Limits { permits: 1, ..LIMITS });
        let (a, b) = (of("a", "x"), of("b", "x"));
        queue.arrive(&a).unwrap();
        queue.dispatch();
        let gone = queue.arrive(&b).unwrap();
        queue.abandon(&b, gone);
        queue.abandon(&b, gone);
        queue.finish(&a, SECOND);
        assert_eq!(queue.dispatch(), []);
        assert_eq!((queue.executing(), queue.waiting(), queue.tenants.len()), (0, 0, 0));
    }

    #[test]
    fn bytes_are_limited_for_each_flow_and_for_each_tenant_until_they_are_released() {
        let mut account = ByteAccount::new(10, 15);
        let (x, y, other) = (of("a", "x"), of("a", "y"), of("b", "x"));
        assert!(account.reserve(&x, 10) && !account.reserve(&x, 1));
        assert!(account.reserve(&y, 5) && !account.reserve(&y, 1));
        assert!(account.reserve(&other, 10));
        account.release(&x, 10);
        assert!(account.reserve(&y, 5));
        for (key, bytes) in [(&y, 10), (&other, 10)] {
            account.release(key, bytes);
        }
        assert!(account.flows.is_empty() && account.tenants.is_empty());
    }
}
