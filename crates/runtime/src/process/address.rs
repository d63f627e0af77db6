//! Addresses: each instance has its own, where the host gives it one for nothing.
//!
//! On Linux the whole of 127.0.0.0/8 is the host itself, so every instance can have an address of that range and every port on
//! it. Which range: that of its network, where the cell keeps networks whose addresses are the host's; else one that its city
//! has for this. An instance's place in the range follows from its UID, and the next free place is taken if somebody is
//! there already. Elsewhere all share 127.0.0.1 and each port is mapped to a free one.

use std::fmt;
use std::net::Ipv4Addr;

use sha2::{Digest as _, Sha256};

use crate::provider::Range;

/// Where instances get addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Each its own, out of a pool.
    Own(Pool),
    /// 127.0.0.1 for all, with each port mapped to a free one.
    Shared,
}

impl Addresses {
    /// What suits this host, for the instances of a city.
    pub fn for_city(city: &str) -> Self {
        if cfg!(target_os = "linux") { Addresses::Own(Pool::for_city(city)) } else { Addresses::Shared }
    }
}

/// A range of loopback addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    start: u32,
    prefix: u8,
}

/// Ranges of cities lie from 127.1.0.0 to 127.7.255.255: below are addresses that people and distributions use (127.0.0.1,
/// 127.0.1.1, 127.0.0.53), above those of networks.
const FIRST: u32 = 0x7f01_0000;
/// Each city has 4,094 addresses ...
const PREFIX: u8 = 20;
/// ... and this many cities fit.
const CITIES: u64 = 112;

impl Pool {
    /// A range of the host itself; none if it is no such range, or too small to give an address.
    pub fn new(range: Range) -> Option<Self> {
        let Range { start, prefix } = range;
        let bits = u32::from(start);
        let aligned = (8..=30).contains(&prefix) && bits & (u32::MAX >> prefix) == 0;
        (start.is_loopback() && aligned).then_some(Pool { start: bits, prefix })
    }

    /// The range of a city, for instances whose network has none. Two cities may get the same by chance (1 in 112): each still
    /// tells its own instances apart, and only an instance of one and an instance of the other could meet.
    pub fn for_city(city: &str) -> Self {
        let number = (digest(city) % CITIES) as u32;
        Pool { start: FIRST + (number << (32 - PREFIX)), prefix: PREFIX }
    }

    /// Addresses that can be given: all but the first and the last.
    fn places(self) -> u32 {
        (u32::MAX >> self.prefix) - 1
    }

    /// The address for an instance: that of its UID, or the next that is not taken.
    pub(crate) fn choose(self, uid: &str, taken: impl Fn(Ipv4Addr) -> bool) -> Option<Ipv4Addr> {
        let places = self.places();
        let first = (digest(uid) % u64::from(places)) as u32;
        let at = |step| Ipv4Addr::from(self.start + 1 + (first + step) % places);
        (0..places).map(at).find(|address| !taken(*address))
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from(self.start), self.prefix)
    }
}

/// The address that somebody has given already, if the host has it.
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

    fn mk_pool(start: [u8; 4], prefix: u8) -> Option<Pool> {
        Pool::new(Range { start: start.into(), prefix })
    }

    #[test]
    fn an_instance_finds_its_address_again() {
        let pool = mk_pool([127, 20, 2, 0], 23).unwrap();
        let address = pool.choose("uid-1", |_| false).unwrap();
        assert_eq!(pool.choose("uid-1", |_| false), Some(address));
        assert_eq!(address.octets()[..2], [127, 20]);
        assert_eq!(pool.to_string(), "127.20.2.0/23");
    }

    #[test]
    fn a_taken_address_is_passed_by_and_a_full_range_says_so() {
        let pool = Pool::for_city("dfw");
        let first = pool.choose("uid-1", |_| false).unwrap();
        let second = pool.choose("uid-1", |address| address == first).unwrap();
        assert_ne!(first, second);
        assert_eq!(pool.choose("uid-1", |_| true), None);
    }

    #[test]
    fn a_range_gives_all_but_its_ends() {
        let pool = mk_pool([127, 16, 0, 0], 29).unwrap();
        let mut given = BTreeSet::new();
        while let Some(address) = pool.choose("uid-1", |address| given.contains(&address.octets()[3])) {
            given.insert(address.octets()[3]);
            assert!(given.len() <= 8);
        }
        assert_eq!(given.into_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn cities_stay_between_what_people_use_and_what_networks_use() {
        for city in ["dfw", "ord", "lhr", "x", ""] {
            let address = Pool::for_city(city).choose("uid-1", |_| false).unwrap();
            assert!((1..8).contains(&address.octets()[1]), "{city}: {address}");
        }
    }

    #[test]
    fn a_range_that_is_not_of_the_host_or_not_in_shape_is_none() {
        for (start, prefix) in
            [([10, 0, 0, 0], 8), ([127, 0, 0, 1], 24), ([127, 1, 0, 0], 31), ([127, 1, 0, 0], 15)]
        {
            assert_eq!(mk_pool(start, prefix), None, "{start:?}/{prefix}");
        }
    }

    #[test]
    fn only_an_address_of_the_host_is_usable() {
        assert_eq!(usable("127.9.0.3"), Some(Ipv4Addr::new(127, 9, 0, 3)));
        for foreign in ["10.0.0.3", "::1", "", "127.0.0"] {
            assert_eq!(usable(foreign), None, "{foreign}");
        }
    }
}
