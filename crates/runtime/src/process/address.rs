//! IP addresses of instances.
//!
//! On Linux all of 127.0.0.0/8 is the host itself, so each instance gets its own loopback address with all
//! ports. The range is the subnet of the instance's network if the cell has networks with loopback subnets,
//! else a range derived from the city. The UID selects an address in the range; if it is taken, the next free
//! address is used. On other systems all instances share 127.0.0.1, and each port is mapped to a free port.

use std::fmt;
use std::net::Ipv4Addr;

use sha2::{Digest as _, Sha256};

use crate::provider::AddressRange;

/// How instances get their addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressMode {
    /// One address per instance, from a pool.
    PerInstance(LoopbackPool),
    /// 127.0.0.1 for all instances, each port mapped to a free port.
    Shared,
}

impl AddressMode {
    /// The mode that this operating system supports, for the instances of a city.
    pub fn for_city(city: &str) -> Self {
        if cfg!(target_os = "linux") {
            AddressMode::PerInstance(LoopbackPool::for_city(city))
        } else {
            AddressMode::Shared
        }
    }
}

/// A range of loopback addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopbackPool {
    start: u32,
    prefix: u8,
}

/// City ranges lie between 127.1.0.0 and 127.7.255.255. Addresses below are in use by convention (127.0.0.1,
/// 127.0.1.1, 127.0.0.53); addresses above belong to networks.
const FIRST: u32 = 0x7f01_0000;
/// Prefix length of a city range: 4,094 addresses.
const PREFIX: u8 = 20;
/// Number of city ranges.
const CITIES: u64 = 112;

impl LoopbackPool {
    /// A pool over a range; `None` if the range is not loopback, not aligned, or too small to hold an
    /// address.
    pub fn new(range: AddressRange) -> Option<Self> {
        let AddressRange { start, prefix } = range;
        let bits = u32::from(start);
        let aligned = (8..=30).contains(&prefix) && bits & (u32::MAX >> prefix) == 0;
        (start.is_loopback() && aligned).then_some(LoopbackPool { start: bits, prefix })
    }

    /// The range of a city, for instances whose network has none. Two cities get the same range with a chance
    /// of one in 112. Addresses stay unique within each city; an instance of one city may then share an
    /// address with an instance of the other.
    pub fn for_city(city: &str) -> Self {
        let number = (digest(city) % CITIES) as u32;
        LoopbackPool { start: FIRST + (number << (32 - PREFIX)), prefix: PREFIX }
    }

    /// Number of assignable addresses: all but the first and the last.
    fn size(self) -> u32 {
        (u32::MAX >> self.prefix) - 1
    }

    /// The address for an instance: selected by its UID, or the next one that is not taken.
    pub(crate) fn choose(self, uid: &str, taken: impl Fn(Ipv4Addr) -> bool) -> Option<Ipv4Addr> {
        let size = self.size();
        let first = (digest(uid) % u64::from(size)) as u32;
        let at = |step| Ipv4Addr::from(self.start + 1 + (first + step) % size);
        (0..size).map(at).find(|address| !taken(*address))
    }
}

impl fmt::Display for LoopbackPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.start), self.prefix)
    }
}

/// Parses an address from an instance's status; `None` if it is not a loopback address.
pub(crate) fn usable(address: &str) -> Option<Ipv4Addr> {
    address.parse().ok().filter(Ipv4Addr::is_loopback)
}

fn digest(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    u64::from_be_bytes(digest[..8].try_into().expect("a digest has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::collections::BTreeSet;

    fn mk_pool(start: [u8; 4], prefix: u8) -> Option<LoopbackPool> {
        LoopbackPool::new(AddressRange { start: start.into(), prefix })
    }

    #[test]
    fn an_instance_gets_the_same_address_again() {
        let pool = mk_pool([127, 20, 2, 0], 23).unwrap();
        let address = pool.choose("uid-1", |_| false).unwrap();
        assert_eq!(pool.choose("uid-1", |_| false), Some(address));
        assert_eq!(address.octets()[..2], [127, 20]);
        assert_eq!(pool.to_string(), "127.20.2.0/23");
    }

    #[test]
    fn a_taken_address_is_skipped_and_a_full_range_returns_none() {
        let pool = LoopbackPool::for_city("dfw");
        let first = pool.choose("uid-1", |_| false).unwrap();
        let second = pool.choose("uid-1", |address| address == first).unwrap();
        assert_ne!(first, second);
        assert_eq!(pool.choose("uid-1", |_| true), None);
    }

    #[test]
    fn a_range_assigns_all_but_its_first_and_last_address() {
        let pool = mk_pool([127, 16, 0, 0], 29).unwrap();
        let mut assigned = BTreeSet::new();
        while let Some(address) = pool.choose("uid-1", |address| assigned.contains(&address.octets()[3])) {
            assigned.insert(address.octets()[3]);
            assert!(assigned.len() <= 8);
        }
        assert_eq!(assigned.into_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn city_ranges_lie_above_conventional_addresses_and_below_networks() {
        for city in ["dfw", "ord", "lhr", "x", ""] {
            let address = LoopbackPool::for_city(city).choose("uid-1", |_| false).unwrap();
            assert!((1..8).contains(&address.octets()[1]), "{city}: {address}");
        }
    }

    #[test]
    fn a_range_that_is_not_loopback_not_aligned_or_too_small_is_rejected() {
        for (start, prefix) in
            [([10, 0, 0, 0], 8), ([127, 0, 0, 1], 24), ([127, 1, 0, 0], 31), ([127, 1, 0, 0], 15)]
        {
            assert_eq!(mk_pool(start, prefix), None, "{start:?}/{prefix}");
        }
    }

    #[test]
    fn only_a_loopback_address_is_usable() {
        assert_eq!(usable("127.9.0.3"), Some(Ipv4Addr::new(127, 9, 0, 3)));
        for foreign in ["10.0.0.3", "::1", "", "127.0.0"] {
            assert_eq!(usable(foreign), None, "{foreign}");
        }
    }
}
