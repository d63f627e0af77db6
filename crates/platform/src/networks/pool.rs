//! Pools: the addresses of one city, handed out in blocks.
//!
//! Pure. Every network in a city gets one block; blocks never overlap, whoever they are for, because on one machine all
//! projects share one loopback. The lowest free block is taken, so that addresses stay short and are used again.

use std::fmt;
use std::net::Ipv4Addr;

/// How many cities find addresses on the loopback of one machine.
pub const CITIES: u16 = 30 + 1024;

/// The addresses of one city.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    whole: Block,
    /// Prefix length of a block, unless somebody asks for another.
    block: u8,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Block {
    start: u32,
    prefix: u8,
}

/// Why a pool makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "failed to make a pool of {start}/{prefix} in blocks of /{block}: the start must be aligned, and a block must fit into the pool and leave room for a host"
)]
pub struct PoolError {
    start: Ipv4Addr,
    prefix: u8,
    block: u8,
}

/// Why there are no addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAddresses {
    #[error("the pool {0} of this city is used up; delete a network that is not needed")]
    Full(Pool),
    #[error("{0} is not a block of the pool {1} of this city")]
    Outside(String, Pool),
    #[error("{0} is in use by another network")]
    Taken(Block),
}

impl Pool {
    /// The addresses from `start` on, as many as a prefix of this length has, in blocks of `/block`.
    pub fn new(start: Ipv4Addr, prefix: u8, block: u8) -> Result<Self, PoolError> {
        let whole = Block { start: start.into(), prefix };
        let fits = prefix <= block && block <= 30 && whole.is_aligned();
        if fits { Ok(Pool { whole, block }) } else { Err(PoolError { start, prefix, block }) }
    }

    /// A part of this machine's loopback for a city, none of which is ever seen outside the machine. The first thirty
    /// cities have 127.8.0.0/13, 127.16.0.0/13 and so on: 1,024 networks of 510 instances each. Those after them share
    /// what is left, 127.248.0.0/13, with eight networks of 62 instances each. None when all [`CITIES`] have theirs.
    pub fn loopback(city: u16) -> Option<Self> {
        const LARGE: u16 = 30;
        let (second, small) = match city {
            0..LARGE => (8 + 8 * u8::try_from(city).ok()?, None),
            LARGE..CITIES => (248, Some(u32::from(city - LARGE))),
            CITIES.. => return None,
        };
        let start = u32::from(Ipv4Addr::new(127, second, 0, 0));
        Some(match small {
            None => Pool { whole: Block { start, prefix: 13 }, block: 23 },
            Some(place) => Pool { whole: Block { start: start + (place << 9), prefix: 23 }, block: 26 },
        })
    }

    /// A block that nobody has: a certain one if a start is asked for, else the lowest of that size.
    pub(crate) fn take(
        &self,
        taken: &[Block],
        start: Option<&str>,
        prefix: Option<i32>,
    ) -> Result<Block, NoAddresses> {
        let asked = || format!("{}/{}", start.unwrap_or("*"), prefix.unwrap_or(i32::from(self.block)));
        let outside = || NoAddresses::Outside(asked(), *self);
        let prefix = u8::try_from(prefix.unwrap_or(i32::from(self.block))).map_err(|_| outside())?;
        if prefix < self.whole.prefix || prefix > 30 {
            return Err(outside());
        }
        if let Some(start) = start {
            let start: Ipv4Addr = start.parse().map_err(|_| outside())?;
            let block = Block { start: start.into(), prefix };
            let inside = block.is_aligned() && self.whole.overlaps(&block);
            return match taken.iter().find(|other| other.overlaps(&block)) {
                _ if !inside => Err(outside()),
                Some(_) => Err(NoAddresses::Taken(block)),
                None => Ok(block),
            };
        }
        let mut taken: Vec<Block> =
            taken.iter().copied().filter(|block| self.whole.overlaps(block)).collect();
        taken.sort();
        let size = size(prefix);
        let mut candidate = u64::from(self.whole.start);
        for other in taken {
            if u64::from(other.start) >= candidate + size {
                break;
            }
            let after = u64::from(other.start) + self::size(other.prefix);
            candidate = candidate.max(after.next_multiple_of(size));
        }
        if candidate + size > u64::from(self.whole.start) + self::size(self.whole.prefix) {
            return Err(NoAddresses::Full(*self));
        }
        let start = u32::try_from(candidate).map_err(|_| NoAddresses::Full(*self))?;
        Ok(Block { start, prefix })
    }
}

impl Block {
    /// The block of a subnet, as it is written in its spec.
    pub(crate) fn read(start: Option<&str>, prefix: Option<i32>) -> Option<Self> {
        let start: Ipv4Addr = start?.parse().ok()?;
        let prefix = u8::try_from(prefix?).ok().filter(|prefix| *prefix <= 32)?;
        Some(Block { start: start.into(), prefix })
    }

    pub(crate) fn start(&self) -> Ipv4Addr {
        self.start.into()
    }

    pub(crate) fn prefix(&self) -> i32 {
        i32::from(self.prefix)
    }

    fn is_aligned(&self) -> bool {
        self.prefix <= 32 && u64::from(self.start) % size(self.prefix) == 0
    }

    fn overlaps(&self, other: &Block) -> bool {
        let (a, b) = (u64::from(self.start), u64::from(other.start));
        a < b + size(other.prefix) && b < a + size(self.prefix)
    }
}

/// How many addresses a prefix of this length has.
fn size(prefix: u8) -> u64 {
    1 << (32 - u32::from(prefix.min(32)))
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.start(), self.prefix)
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.whole.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_pool() -> Pool {
        Pool::new(Ipv4Addr::new(127, 8, 0, 0), 22, 24).unwrap()
    }

    fn mk_block(text: &str) -> Block {
        let (start, prefix) = text.split_once('/').unwrap();
        Block::read(Some(start), prefix.parse().ok()).unwrap()
    }

    #[test]
    fn the_lowest_free_block_is_taken() {
        let table = [
            (&[][..], "127.8.0.0/24"),
            (&["127.8.0.0/24"], "127.8.1.0/24"),
            (&["127.8.1.0/24"], "127.8.0.0/24"),
            (&["127.8.2.0/24", "127.8.0.0/24"], "127.8.1.0/24"),
            (&["127.8.0.0/23"], "127.8.2.0/24"),
            (&["127.8.0.128/25"], "127.8.1.0/24"),
            (&["10.0.0.0/8"], "127.8.0.0/24"),
        ];
        for (taken, expected) in table {
            let taken: Vec<Block> = taken.iter().map(|block| mk_block(block)).collect();
            assert_eq!(mk_pool().take(&taken, None, None), Ok(mk_block(expected)), "{taken:?}");
        }
    }

    #[test]
    fn a_pool_ends() {
        let mut taken = Vec::new();
        for _ in 0..4 {
            taken.push(mk_pool().take(&taken, None, None).unwrap());
        }
        assert_eq!(mk_pool().take(&taken, None, None), Err(NoAddresses::Full(mk_pool())));
        taken.remove(2);
        assert_eq!(mk_pool().take(&taken, None, None), Ok(mk_block("127.8.2.0/24")));
    }

    #[test]
    fn who_asks_for_a_certain_block_gets_it_or_hears_why_not() {
        let taken = [mk_block("127.8.1.0/24")];
        let ask = |start, prefix| mk_pool().take(&taken, Some(start), prefix);
        assert_eq!(ask("127.8.2.0", None), Ok(mk_block("127.8.2.0/24")));
        assert_eq!(ask("127.8.1.0", Some(25)), Err(NoAddresses::Taken(mk_block("127.8.1.0/25"))));
        for (start, prefix) in [("127.9.0.0", None), ("127.8.0.1", None), ("x", None), ("127.8.0.0", Some(8))]
        {
            assert!(matches!(ask(start, prefix), Err(NoAddresses::Outside(..))), "{start}");
        }
        for prefix in [-1, 31, 99, i32::MAX] {
            assert!(mk_pool().take(&taken, None, Some(prefix)).is_err(), "{prefix}");
        }
    }

    #[test]
    fn a_block_of_another_size_is_aligned() {
        let taken = [mk_block("127.8.0.0/26")];
        assert_eq!(mk_pool().take(&taken, None, Some(26)), Ok(mk_block("127.8.0.64/26")));
        assert_eq!(mk_pool().take(&taken, None, Some(23)), Ok(mk_block("127.8.2.0/23")));
    }

    #[test]
    fn cities_on_the_loopback_do_not_overlap() {
        let pools: Vec<Pool> = (0..CITIES).map_while(Pool::loopback).collect();
        assert_eq!(pools.len(), usize::from(CITIES));
        for (i, a) in pools.iter().enumerate() {
            assert!(pools[i + 1..].iter().all(|b| !a.whole.overlaps(&b.whole)), "{a}");
            assert!(a.start_is_loopback(), "{a}");
            assert!(a.take(&[], None, None).is_ok(), "{a}");
        }
        assert_eq!(Pool::loopback(CITIES), None);
    }

    #[test]
    fn a_pool_without_sense_is_refused() {
        for (start, prefix, block) in
            [("10.0.0.1", 8, 24), ("10.0.0.0", 24, 16), ("10.0.0.0", 8, 31), ("10.0.0.0", 40, 24)]
        {
            assert!(Pool::new(start.parse().unwrap(), prefix, block).is_err(), "{start}/{prefix}");
        }
    }

    impl Pool {
        fn start_is_loopback(&self) -> bool {
            self.whole.start().is_loopback()
        }
    }
}
