//! Address pool: allocates blocks of a city's addresses.
//!
//! A pure function. Every network in a city gets one block. Blocks never overlap, not even across projects,
//! because all projects on one machine share its loopback. The first free block from a fixed position on is
//! allocated, so that addresses are reused. Installations on one machine know nothing of each other's blocks:
//! each starts at a position of its own, so that their instances seldom ask for the same address.

use std::fmt;
use std::net::Ipv4Addr;

/// The number of cities that have addresses on the loopback of one machine.
pub const MAX_LOOPBACK_CITIES: u16 = 30 + 1024;

/// The addresses of one city.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressPool {
    whole: Block,
    /// Default prefix length of a block.
    block: u8,
    /// Where the search for a free block begins: the first address of a block of the default size.
    search_from: u32,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Block {
    start: u32,
    prefix: u8,
}

/// Why a pool is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "failed to create a pool of {start}/{prefix} in blocks of /{block}: the start must be aligned, and a block must fit into the pool and hold at least one host"
)]
pub struct AddressPoolError {
    start: Ipv4Addr,
    prefix: u8,
    block: u8,
}

/// Why a block cannot be allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoAddresses {
    #[error("the address pool {0} of this city is exhausted; delete an unused network")]
    Full(AddressPool),
    #[error("{0} is not a block of the address pool {1} of this city")]
    Outside(String, AddressPool),
    #[error("{0} is in use by another network")]
    Taken(Block),
}

impl AddressPool {
    /// A pool of the addresses `start/prefix`, in blocks of `/block`.
    pub fn new(start: Ipv4Addr, prefix: u8, block: u8) -> Result<Self, AddressPoolError> {
        let whole = Block { start: start.into(), prefix };
        let fits = prefix <= block && block <= 30 && whole.is_aligned();
        if fits {
            Ok(AddressPool::of_blocks(whole, block))
        } else {
            Err(AddressPoolError { start, prefix, block })
        }
    }

    /// The pool of a city on the loopback of this machine. The first thirty cities have 127.8.0.0/13,
    /// 127.16.0.0/13 and so on: 1,024 networks of 510 instances each. Later cities share 127.248.0.0/13, with
    /// eight networks of 62 instances each. None from [`MAX_LOOPBACK_CITIES`] on.
    pub fn loopback(city: u16) -> Option<Self> {
        const LARGE: u16 = 30;
        let (second, small) = match city {
            0..LARGE => (8 + 8 * u8::try_from(city).ok()?, None),
            LARGE..MAX_LOOPBACK_CITIES => (248, Some(u32::from(city - LARGE))),
            MAX_LOOPBACK_CITIES.. => return None,
        };
        let start = u32::from(Ipv4Addr::new(127, second, 0, 0));
        Some(match small {
            None => AddressPool::of_blocks(Block { start, prefix: 13 }, 23),
            Some(index) => AddressPool::of_blocks(Block { start: start + (index << 9), prefix: 23 }, 26),
        })
    }

    fn of_blocks(whole: Block, block: u8) -> Self {
        AddressPool { whole, block, search_from: whole.start }
    }

    /// The same pool, with blocks allocated from a position that the seed selects.
    pub fn searched_from(self, seed: u64) -> Self {
        let blocks = size(self.whole.prefix) / size(self.block);
        let offset = u32::try_from(seed % blocks * size(self.block)).expect("a position within the pool");
        AddressPool { search_from: self.whole.start + offset, ..self }
    }

    /// Returns a free block: the requested one if `start` is given, else the next of that size.
    pub(crate) fn allocate(
        &self,
        taken: &[Block],
        start: Option<&str>,
        prefix: Option<i32>,
    ) -> Result<Block, NoAddresses> {
        let requested = || format!("{}/{}", start.unwrap_or("*"), prefix.unwrap_or(i32::from(self.block)));
        let outside = || NoAddresses::Outside(requested(), *self);
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
        let end = u64::from(self.whole.start) + self::size(self.whole.prefix);
        let free = self.first_free(taken, prefix, self.search_from.into(), end);
        let free = free.or_else(|| self.first_free(taken, prefix, self.whole.start.into(), end));
        free.map(|start| Block { start, prefix }).ok_or(NoAddresses::Full(*self))
    }

    /// The start of the first free block from `from` on.
    fn first_free(&self, taken: &[Block], prefix: u8, from: u64, end: u64) -> Option<u32> {
        let size = size(prefix);
        let mut taken: Vec<Block> =
            taken.iter().copied().filter(|block| self.whole.overlaps(block)).collect();
        taken.sort();
        let mut candidate = from.next_multiple_of(size);
        for other in taken {
            if u64::from(other.start) >= candidate + size {
                break;
            }
            let after = u64::from(other.start) + self::size(other.prefix);
            candidate = candidate.max(after.next_multiple_of(size));
        }
        (candidate + size <= end).then(|| u32::try_from(candidate).expect("an IPv4 address"))
    }
}

impl Block {
    /// The block of a subnet, from the fields of its spec.
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

/// The number of addresses of a prefix length.
fn size(prefix: u8) -> u64 {
    1 << (32 - u32::from(prefix.min(32)))
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.start(), self.prefix)
    }
}

impl fmt::Display for AddressPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.whole.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_pool() -> AddressPool {
        AddressPool::new(Ipv4Addr::new(127, 8, 0, 0), 22, 24).unwrap()
    }

    fn mk_block(text: &str) -> Block {
        let (start, prefix) = text.split_once('/').unwrap();
        Block::read(Some(start), prefix.parse().ok()).unwrap()
    }

    #[test]
    fn the_lowest_free_block_is_allocated() {
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
            assert_eq!(mk_pool().allocate(&taken, None, None), Ok(mk_block(expected)), "{taken:?}");
        }
    }

    #[test]
    fn an_exhausted_pool_returns_an_error_until_a_block_is_freed() {
        let mut taken = Vec::new();
        for _ in 0..4 {
            taken.push(mk_pool().allocate(&taken, None, None).unwrap());
        }
        assert_eq!(mk_pool().allocate(&taken, None, None), Err(NoAddresses::Full(mk_pool())));
        taken.remove(2);
        assert_eq!(mk_pool().allocate(&taken, None, None), Ok(mk_block("127.8.2.0/24")));
    }

    #[test]
    fn a_requested_block_is_allocated_or_the_error_names_the_reason() {
        let taken = [mk_block("127.8.1.0/24")];
        let allocate = |start, prefix| mk_pool().allocate(&taken, Some(start), prefix);
        assert_eq!(allocate("127.8.2.0", None), Ok(mk_block("127.8.2.0/24")));
        assert_eq!(allocate("127.8.1.0", Some(25)), Err(NoAddresses::Taken(mk_block("127.8.1.0/25"))));
        for (start, prefix) in [("127.9.0.0", None), ("127.8.0.1", None), ("x", None), ("127.8.0.0", Some(8))]
        {
            assert!(matches!(allocate(start, prefix), Err(NoAddresses::Outside(..))), "{start}");
        }
        for prefix in [-1, 31, 99, i32::MAX] {
            assert!(mk_pool().allocate(&taken, None, Some(prefix)).is_err(), "{prefix}");
        }
    }

    #[test]
    fn a_block_of_another_size_is_aligned() {
        let taken = [mk_block("127.8.0.0/26")];
        assert_eq!(mk_pool().allocate(&taken, None, Some(26)), Ok(mk_block("127.8.0.64/26")));
        assert_eq!(mk_pool().allocate(&taken, None, Some(23)), Ok(mk_block("127.8.2.0/23")));
    }

    #[test]
    fn the_search_begins_where_the_seed_selects_and_wraps_around() {
        let pool = mk_pool().searched_from(4 + 2);
        let mut taken = Vec::new();
        for expected in ["127.8.2.0/24", "127.8.3.0/24", "127.8.0.0/24", "127.8.1.0/24"] {
            taken.push(pool.allocate(&taken, None, None).unwrap());
            assert_eq!(taken.last(), Some(&mk_block(expected)));
        }
        assert_eq!(pool.allocate(&taken, None, None), Err(NoAddresses::Full(pool)));
        assert_eq!(pool.allocate(&[], None, Some(22)), Ok(mk_block("127.8.0.0/22")));
    }

    #[test]
    fn cities_on_the_loopback_do_not_overlap() {
        let pools: Vec<AddressPool> = (0..MAX_LOOPBACK_CITIES).map_while(AddressPool::loopback).collect();
        assert_eq!(pools.len(), usize::from(MAX_LOOPBACK_CITIES));
        for (i, a) in pools.iter().enumerate() {
            assert!(pools[i + 1..].iter().all(|b| !a.whole.overlaps(&b.whole)), "{a}");
            assert!(a.start_is_loopback(), "{a}");
            assert!(a.allocate(&[], None, None).is_ok(), "{a}");
        }
        assert_eq!(AddressPool::loopback(MAX_LOOPBACK_CITIES), None);
    }

    #[test]
    fn an_invalid_pool_is_rejected() {
        for (start, prefix, block) in
            [("10.0.0.1", 8, 24), ("10.0.0.0", 24, 16), ("10.0.0.0", 8, 31), ("10.0.0.0", 40, 24)]
        {
            assert!(AddressPool::new(start.parse().unwrap(), prefix, block).is_err(), "{start}/{prefix}");
        }
    }

    impl AddressPool {
        fn start_is_loopback(&self) -> bool {
            self.whole.start().is_loopback()
        }
    }
}
