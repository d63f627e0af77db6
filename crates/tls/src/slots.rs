//! The connections of a server, and which peers hold them: [`Slots`].
//!
//! Every open connection has a slot, from accept to close. Three rules keep slots free for peers that work:
//!
//! 1. At accept, when the peer is unknown: at most `connections` in all.
//! 2. After the handshake: at most `per_peer` of one client certificate or, without one, of one address.
//! 3. After the handshake, without a client certificate: at most `connections - reserve` of all such peers.
//!
//! Beyond a limit the longest idle connection under that limit is closed: under rule 1 those without a client
//! certificate first, and a handshake in progress counts as idle. If none is idle, the new connection is
//! closed. So a new peer never waits behind silent ones, and peers without a certificate can use the reserve
//! only for handshakes. These are closed from the oldest: with a reserve of 1,024 and 1,000 attempts per
//! second, a handshake has one second, and takes some milliseconds.
//!
//! A search visits every slot: 0.16 ms for a new connection with 8,192 of them, in a development build.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;

use crate::ConnectionLimits;
use crate::activity::Activity;

/// The slots of a server.
pub(crate) struct Slots {
    limits: ConnectionLimits,
    /// Hashes certificates with a random key, so that no peer can choose one with an equal hash.
    hasher: RandomState,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    open: HashMap<u64, Entry>,
}

struct Entry {
    holder: Holder,
    activity: Arc<Activity>,
}

/// Which peer holds a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// A peer before the end of its handshake.
    Unknown,
    /// The peers of an address.
    Address(IpAddr),
    /// The peers with a verified certificate, by its hash.
    Certificate(u64),
}

/// The slot of one connection, which is free when this is dropped.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    id: u64,
    address: IpAddr,
    pub(crate) activity: Arc<Activity>,
}

impl Slots {
    pub(crate) fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self { limits, hasher: RandomState::new(), table: Mutex::default() })
    }

    /// A slot for a new connection, by rule 1; `None` if the connection must be closed.
    pub(crate) fn open(self: &Arc<Self>, address: IpAddr) -> Option<Slot> {
        let mut table = self.table.lock();
        if table.open.len() >= self.limits.connections && !table.evict(|_| true) {
            return None;
        }
        let (id, activity) = (table.next, Arc::new(Activity::new()));
        table.next += 1;
        table.open.insert(id, Entry { holder: Holder::Unknown, activity: activity.clone() });
        Some(Slot { slots: self.clone(), id, address, activity })
    }

    /// Closes the longest idle connection, if there is one.
    pub(crate) fn evict(&self) {
        self.table.lock().evict(|_| true);
    }
}

impl Holder {
    fn is_certified(self) -> bool {
        matches!(self, Self::Certificate(_))
    }
}

impl Table {
    /// Closes the longest idle connection among those that match; `false` if none of them is idle.
    fn evict(&mut self, matches: impl Fn(&Entry) -> bool) -> bool {
        let idle =
            self.open.iter().filter(|(_, entry)| matches(entry)).filter_map(|(id, entry)| {
                Some((entry.holder.is_certified(), entry.activity.idle_since()?, *id))
            });
        let Some((.., id)) = idle.min() else { return false };
        if let Some(entry) = self.open.remove(&id) {
            entry.activity.evict();
        }
        true
    }

    /// Whether one more connection of those that match is within the limit, after an eviction if needed.
    fn admit(&mut self, limit: usize, matches: impl Fn(&Entry) -> bool) -> bool {
        self.open.values().filter(|entry| matches(entry)).count() < limit || self.evict(matches)
    }
}

impl Slot {
    /// Keeps the slot after the handshake, by rules 2 and 3; `false` if the connection must be closed.
    pub(crate) fn keep(&self, certificate: Option<&CertificateDer<'_>>) -> bool {
        let Slots { limits, hasher, table } = &*self.slots;
        let holder = match certificate {
            Some(certificate) => Holder::Certificate(hasher.hash_one(certificate.as_ref())),
            None => Holder::Address(network(self.address)),
        };
        let mut table = table.lock();
        let admitted = table.admit(limits.per_peer, |entry| entry.holder == holder)
            && (certificate.is_some()
                || table.admit(limits.connections.saturating_sub(limits.reserve), |entry| {
                    matches!(entry.holder, Holder::Address(_))
                }));
        match table.open.get_mut(&self.id) {
            Some(entry) if admitted => entry.holder = holder,
            _ => return false, // a limit, or evicted at this moment
        }
        self.activity.established();
        true
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.table.lock().open.remove(&self.id);
    }
}

/// What counts as one address: an IPv4 address, or the /64 network of an IPv6 address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::activity::RequestGuard;

    const LIMITS: ConnectionLimits =
        ConnectionLimits { reserve: 2, per_peer: 3, ..ConnectionLimits::new(8, 1) };

    /// A connection of `10.0.0.<host>` after its handshake, a second after the one before. It may have a
    /// certificate, which is that of the host.
    async fn connect(slots: &Arc<Slots>, host: u8, certified: bool) -> Option<Slot> {
        tokio::time::advance(Duration::from_secs(1)).await;
        let certificate = CertificateDer::from(vec![host]);
        slots.open([10, 0, 0, host].into()).filter(|slot| slot.keep(certified.then_some(&certificate)))
    }

    fn is_open(slot: &Slot) -> bool {
        slot.slots.table.lock().open.contains_key(&slot.id)
    }

    fn busy(slot: &Slot) -> RequestGuard {
        RequestGuard::new(slot.activity.clone())
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_closes_its_own_longest_idle_connection() {
        let slots = Slots::new(LIMITS);
        let other = connect(&slots, 2, false).await.unwrap();
        let first = connect(&slots, 1, false).await.unwrap();
        let second = connect(&slots, 1, false).await.unwrap();
        let third = connect(&slots, 1, false).await.unwrap();
        drop(busy(&first)); // idle for the shortest time
        let fourth = connect(&slots, 1, false).await.unwrap();
        assert!(!is_open(&second));
        assert!([&other, &first, &third, &fourth].into_iter().all(is_open));
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_whose_connections_are_all_busy_gets_no_further_one() {
        let slots = Slots::new(LIMITS);
        let mut held = Vec::new();
        for _ in 0..3 {
            let slot = connect(&slots, 1, false).await.unwrap();
            held.push((busy(&slot), slot));
        }
        assert!(connect(&slots, 1, false).await.is_none());
        assert!(connect(&slots, 2, false).await.is_some());
        assert!(connect(&slots, 1, true).await.is_some(), "a certificate is counted apart from its address");
    }

    #[tokio::test(start_paused = true)]
    async fn a_certificate_holds_no_more_than_an_address() {
        let slots = Slots::new(LIMITS);
        let mut held = Vec::new();
        for _ in 0..3 {
            let slot = connect(&slots, 1, true).await.unwrap();
            held.push((busy(&slot), slot));
        }
        assert!(connect(&slots, 1, true).await.is_none());
        assert!(connect(&slots, 2, true).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn peers_without_a_certificate_cannot_take_the_reserve() {
        let slots = Slots::new(LIMITS);
        let mut held = Vec::new();
        for host in 0..6 {
            let slot = connect(&slots, host, false).await.unwrap();
            held.push((busy(&slot), slot));
        }
        assert!(connect(&slots, 7, false).await.is_none());
        assert!(connect(&slots, 8, true).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_with_a_certificate_is_closed_after_all_idle_peers_without_one() {
        let slots = Slots::new(LIMITS);
        let certified = connect(&slots, 9, true).await.unwrap();
        let mut handshakes: Vec<_> = (0..7).map(|_| slots.open([10, 0, 0, 1].into()).unwrap()).collect();
        for _ in 0..20 {
            handshakes.push(slots.open([10, 0, 0, 1].into()).unwrap());
        }
        assert!(is_open(&certified));
        assert_eq!(slots.table.lock().open.len(), 8);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_closed_if_all_others_are_busy() {
        let slots = Slots::new(LIMITS);
        let mut held = Vec::new();
        for host in 0..8 {
            let slot = connect(&slots, host, true).await.unwrap();
            held.push((busy(&slot), slot));
        }
        assert!(slots.open([10, 0, 0, 1].into()).is_none());
        held.pop();
        assert!(slots.open([10, 0, 0, 1].into()).is_some());
    }

    #[test]
    fn an_ipv6_address_counts_as_its_network() {
        let network = |text: &str| network(text.parse().unwrap()).to_string();
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(network("::ffff:10.0.0.1"), "10.0.0.1");
    }
}
